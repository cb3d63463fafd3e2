// The check script in a real Redis.
#include "questions.h"
#include "redis/real_server.h"

namespace rate_limit {
namespace {

using redis::Error;

void test_the_real_script_admits_the_quota_and_refunds(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const TestBatcher batcher(&loop, server.path());
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy policy = policy_of(algorithm, "10r/h");
        const StateLayout layout = layout_of(policy);
        Questions questions(batcher, &loop);
        for (unsigned i = 0; i < 15; i++) {
            questions.ask(policy, layout);
        }
        assert_true(questions.await());
        for (unsigned i = 0; i < 15; i++) {
            const Decision& decision = questions[i].decision();
            assert_int_equal(questions[i].question.error, Error::kNone);
            assert_int_equal(decision.allowed, i < 10);
            assert_int_equal(decision.limit, 10);
            assert_int_equal(decision.remaining, i < 10 ? 9 - i : 0);
            assert_true(decision.allowed == (decision.retry_after == 0));
        }
        questions[0].limits[0].cost = 4;
        questions[0].limits[0].decided_at = questions[0].question.time;
        batcher->undo(questions[0].limits.data(), questions[0].question.indices, 1);
        for (unsigned i = 0; i < 6; i++) {
            questions.ask(policy, layout);
        }
        assert_true(questions.await());
        for (unsigned i = 0; i < 6; i++) {
            assert_int_equal(questions[15 + i].decision().allowed, i < 4);
        }
        const std::string key = std::string("rate_limit:api:") + algorithm_name(algorithm) + ":{alice}";
        assert_string_equal(server.command({"EXISTS", key}).c_str(), "1");
        assert_true(std::stol(server.command({"PTTL", key})) > 0);
        assert_true(server.command({"DEL", key}) == "1");
    }
}

void test_the_real_script_charges_all_limits_of_a_group_or_none(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const TestBatcher batcher(&loop, server.path());
    Questions questions(batcher, &loop);
    const Policy narrow = policy_of(Algorithm::kFixedWindow, "3r/d");
    const StateLayout narrow_shape = layout_of(narrow);
    std::deque<TestQuestion> all;
    for (unsigned i = 0; i < 6; i++) {
        all.emplace_back("alice", 1, 2);
        all.back().add("narrow", "alice", narrow, narrow_shape);
        assert_true(batcher->ask(&all.back().question));
    }
    assert_true(loop.run_until([&] { return all.back().answers == 1; }));
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(all[i].decision(2).allowed, i < 3);
        assert_true(all[i].decision(0).allowed);
    }
    questions.ask("alice", 0, 2);
    assert_true(questions.await());
    assert_int_equal(questions[0].decision(0).remaining, 7);
    assert_int_equal(questions[0].decision(1).remaining, 7);
}

void test_the_real_script_accepts_the_largest_call(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const TestBatcher batcher(&loop, server.path(), 100'000, 10'000);
    Questions questions(batcher, &loop);
    for (unsigned i = 0; i < 150; i++) {
        questions.ask("client" + std::to_string(i), 1, 16);
    }
    assert_true(questions.await(20'000));
    for (unsigned i = 0; i < 150; i++) {
        assert_int_equal(questions[i].question.error, Error::kNone);
        assert_int_equal(questions[i].decision(15).remaining, 9);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_real_script_admits_the_quota_and_refunds),
        cmocka_unit_test(test_the_real_script_charges_all_limits_of_a_group_or_none),
        cmocka_unit_test(test_the_real_script_accepts_the_largest_call),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
