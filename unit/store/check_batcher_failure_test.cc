// Checks whose reply is lost, late, an error or malformed.
#include "questions.h"

namespace rate_limit {
namespace {

using redis::Error;

void test_no_refund_is_sent_to_an_unavailable_redis(void**) {
    Scene scene(64, 50);
    scene.server.server.answers = false;
    scene.loop.run_for(5);
    scene.questions.ask();
    assert_true(scene.questions.await());
    assert_false(scene.batcher->available(0));
    const std::size_t calls = scene.server.calls.size();
    const TestQuestion charged;
    scene.batcher->undo(charged.limits.data(), charged.question.indices, 1);
    scene.loop.run_for(10);
    assert_int_equal(scene.server.calls.size(), calls);
}

void test_an_error_reaches_every_question_of_the_call(void**) {
    Scene scene;
    scene.server.send = [](const std::string&) { return "-OOM command not allowed\r\n"; };
    for (unsigned i = 0; i < 20; i++) {
        scene.questions.ask();
    }
    assert_true(scene.questions.await());
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(scene.questions[i].question.error, Error::kOutOfMemory);
    }
    assert_int_equal(scene.batcher.errors(Error::kOutOfMemory), 1);
    assert_true(scene.batcher->available(0));
}

void test_a_timeout_is_reported_in_time_and_a_late_reply_is_ignored(void**) {
    Scene scene(64, 60);
    scene.server.server.answers = false;
    scene.loop.run_for(5);
    const redis::Milliseconds start = scene.loop.now();
    scene.questions.ask();
    scene.questions.ask();
    assert_true(scene.questions.await());
    assert_in_range(scene.loop.now() - start, 55, 250);
    assert_int_equal(scene.questions[1].question.error, Error::kTimedOut);
    scene.server.server.answers = true;
    scene.server.server.say(redis::bulk(packed(1, 8) + reject() + reject()));
    assert_true(scene.loop.run_until([&] { return scene.batcher->available(0); }));
    scene.questions.ask();
    assert_true(scene.questions.await());
    assert_true(scene.questions[2].decision().allowed);
}

void test_a_check_in_the_turn_in_which_the_breaker_opens_does_not_wait(void**) {
    Scene scene;
    scene.server.server.answers = false;
    scene.questions.ask("first");
    scene.loop.run_for(10);
    scene.questions.ask("second");
    scene.loop.jump(2000);
    scene.loop.turn();
    assert_false(scene.batcher->available(0));
    assert_true(scene.questions.await(500));
    assert_int_equal(scene.questions[0].question.error, Error::kTimedOut);
    assert_int_not_equal(scene.questions[1].question.error, Error::kNone);
}

void test_a_reply_of_the_wrong_length_is_an_error(void**) {
    for (int change = -21; change <= 13; change++) {
        Scene scene;
        scene.server.send = [&](const std::string& reply) {
            const std::size_t size = reply.size() + static_cast<std::size_t>(change);
            return redis::bulk((reply + std::string(20, '\0')).substr(0, size));
        };
        scene.questions.ask("a");
        scene.questions.ask("b");
        assert_true(scene.questions.await());
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(scene.questions[i].question.error, change == 0 ? Error::kNone : Error::kShape);
        }
        assert_int_equal(scene.batcher.errors(Error::kShape), change == 0 ? 0 : 1);
    }
}

void test_a_decision_with_an_unknown_rate_is_an_error(void**) {
    Scene scene;
    scene.server.decide = [](const SeenLimit& limit) {
        return limit.key.find("{bad}") != std::string::npos ? packed(9, 1) + packed(0, 11) : admit();
    };
    for (const char* client : {"good", "bad", "after"}) {
        scene.questions.ask(client);
    }
    assert_true(scene.questions.await());
    assert_int_equal(scene.questions[1].question.error, Error::kShape);
    assert_int_equal(scene.questions[2].question.error, Error::kShape);
}

void test_five_malformed_replies_open_the_breaker(void**) {
    Scene scene;
    scene.server.send = [](const std::string&) { return redis::bulk("x"); };
    for (unsigned i = 0; i < 5; i++) {
        assert_true(scene.batcher->available(0));
        scene.questions.ask();
        assert_true(scene.questions.await());
    }
    assert_false(scene.batcher->available(0));
    assert_int_equal(scene.batcher.errors(Error::kShape), 5);
}

void test_a_refused_connection_is_reported_in_a_later_turn(void**) {
    redis::TestLoop loop;
    const TestBatcher batcher(&loop, redis::Folder::own().file("nowhere"));
    Questions questions(batcher, &loop);
    questions.ask();
    questions.ask();
    assert_true(questions.await());
    assert_int_equal(questions[0].question.error, Error::kRefused);
    assert_int_equal(questions[1].question.error, Error::kRefused);
    assert_false(batcher->available(0));
}

void test_a_batcher_may_be_destroyed_with_questions_at_any_stage(void**) {
    for (unsigned stage = 0; stage < 4; stage++) {
        redis::TestLoop loop;
        ScriptServer server(&loop);
        server.server.answers = stage == 3;
        TestBatcher batcher(&loop, server.server.path());
        std::vector<std::unique_ptr<TestQuestion>> all;
        for (unsigned i = 0; i < 10; i++) {
            all.push_back(std::make_unique<TestQuestion>());
            assert_true(batcher->ask(&all.back()->question));
        }
        if (stage == 3) {
            all[0]->then = [&] {
                for (unsigned i = 0; i < 10; i++) {
                    all.push_back(std::make_unique<TestQuestion>());
                    assert_true(batcher->ask(&all.back()->question));
                }
                all[0]->then = nullptr;
            };
            assert_true(loop.run_until([&] { return all[9]->answers == 1; }));
        }
        for (unsigned i = 0; i < 3 && stage == 1; i++) {
            loop.turn();
        }
        if (stage == 2) {
            assert_true(loop.run_until([&] { return server.server.count("SCRIPT") == 1; }));
            loop.run_for(10);
        }
        batcher.end();
        for (const auto& asked : all) {
            assert_in_range(asked->answers, 0, 1);
            CheckBatcher::forget(&asked->question);
        }
        loop.run_for(2);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_no_refund_is_sent_to_an_unavailable_redis),
        cmocka_unit_test(test_an_error_reaches_every_question_of_the_call),
        cmocka_unit_test(test_a_timeout_is_reported_in_time_and_a_late_reply_is_ignored),
        cmocka_unit_test(test_a_check_in_the_turn_in_which_the_breaker_opens_does_not_wait),
        cmocka_unit_test(test_a_reply_of_the_wrong_length_is_an_error),
        cmocka_unit_test(test_a_decision_with_an_unknown_rate_is_an_error),
        cmocka_unit_test(test_five_malformed_replies_open_the_breaker),
        cmocka_unit_test(test_a_refused_connection_is_reported_in_a_later_turn),
        cmocka_unit_test(test_a_batcher_may_be_destroyed_with_questions_at_any_stage),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
