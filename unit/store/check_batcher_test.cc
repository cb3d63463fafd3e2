// CheckBatcher: checks are batched into calls, replies are split, and each check is answered once or
// forgotten.
#include "store/check_batcher.h"

#include <malloc.h>

#include <utility>

#include "memory/shared_zone.h"
#include "protocol/wire.h"
#include "questions.h"
#include "store/redis_statistics.h"

namespace rate_limit {
namespace {

using redis::Error;

void test_checks_of_one_turn_are_one_call(void**) {
    Scene scene;
    for (unsigned turn = 1; turn <= 3; turn++) {
        for (unsigned i = 0; i < 20; i++) {
            scene.questions.ask(std::to_string(i));
        }
        assert_true(scene.questions.await());
        assert_int_equal(scene.server.calls.size(), turn);
        assert_int_equal(scene.server.calls.back().groups.size(), 20);
        for (unsigned i = 0; i < 20; i++) {
            assert_string_equal(scene.server.calls.back().groups[i].limits[0].key.c_str(),
                                ("rate_limit:api:sliding_window:{" + std::to_string(i) + "}").c_str());
        }
    }
}

void test_no_call_has_more_groups_than_the_batch_size(void**) {
    for (const std::uint32_t batch : {1, 2, 7, 64}) {
        Scene scene(batch);
        for (unsigned i = 0; i < 150; i++) {
            scene.questions.ask(std::to_string(i));
        }
        assert_true(scene.questions.await());
        assert_int_equal(scene.server.calls.size(), (150 + batch - 1) / batch);
        for (const SeenCall& call : scene.server.calls) {
            assert_in_range(call.groups.size(), 1, batch);
        }
        assert_int_equal(scene.server.groups(), 150);
    }
}

// Holds the replies of a server. Once `open` is set, the next reply is sent together with all held replies.
struct Dam {
    explicit Dam(ScriptServer* server) {
        server->send = [this](const std::string& reply) {
            held += redis::bulk(reply);
            return open ? std::exchange(held, "") : "";
        };
    }

    std::string held;
    bool open = false;
};

void ask_many(Scene* scene, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        scene->questions.ask(std::to_string(scene->questions.size()));
    }
}

void test_fewer_checks_than_are_in_flight_wait_for_more(void**) {
    Scene scene;
    Dam dam(&scene.server);
    ask_many(&scene, 20);
    assert_true(scene.loop.run_until([&] { return scene.server.calls.size() == 1; }));
    for (unsigned i = 0; i < 4; i++) {
        ask_many(&scene, 4);
        scene.loop.run_for(3);
        assert_int_equal(scene.server.calls.size(), 1);
    }
    dam.open = true;
    ask_many(&scene, 4);
    assert_true(scene.questions.await());
    assert_int_equal(scene.server.calls.size(), 2);
    assert_int_equal(scene.server.calls.back().groups.size(), 20);
}

void test_waiting_checks_are_sent_after_the_next_reply(void**) {
    Scene scene;
    std::vector<std::size_t> sizes;
    scene.server.send = [&](const std::string& reply) {
        sizes.push_back(scene.server.calls.back().groups.size());
        if (sizes.size() == 1) {
            ask_many(&scene, 3);
        }
        return redis::bulk(reply);
    };
    ask_many(&scene, 20);
    assert_true(scene.loop.run_until([&] { return scene.questions.size() == 23; }));
    assert_true(scene.questions.await());
    assert_true(sizes == std::vector<std::size_t>({20, 3}));
}

void test_the_time_that_a_check_waits_for_others_is_part_of_its_timeout(void**) {
    constexpr redis::Milliseconds kTimeout = 1000;
    Scene scene(64, kTimeout);
    Dam dam(&scene.server);
    ask_many(&scene, 2);
    assert_true(scene.loop.run_until([&] { return scene.server.calls.size() == 1; }));
    scene.loop.jump(kTimeout / 2);
    ask_many(&scene, 1);
    scene.loop.run_for(3);
    assert_int_equal(scene.server.calls.size(), 1);
    // With one more check, the batch is as large as the one in flight: it is sent, but gets no reply either.
    scene.loop.jump(kTimeout / 2 - 100);
    ask_many(&scene, 1);
    assert_true(scene.loop.run_until([&] { return scene.server.calls.size() == 2; }));
    scene.loop.jump(kTimeout / 2 + 110);
    assert_true(scene.questions.await(300));
    assert_int_equal(scene.questions[3].question.error, Error::kTimedOut);
}

void test_checks_do_not_wait_for_a_late_reply(void**) {
    Scene scene(64, 100);
    scene.batcher.use_spare();
    scene.server.server.hold(1);
    ask_many(&scene, 2);
    assert_true(scene.loop.run_until([&] { return scene.server.calls.size() == 1; }));
    ask_many(&scene, 1);
    scene.loop.run_for(10);
    assert_int_equal(scene.server.calls.size(), 1);
    // After a quarter of the timeout, the batch is sent on a second connection, which is not blocked.
    assert_true(scene.loop.run_until([&] { return scene.questions[2].answers == 1; }, 60));
    assert_int_equal(scene.questions[2].question.error, Error::kNone);
    assert_int_equal(scene.server.server.accepted, 2);
    assert_true(scene.questions.await(200));
    assert_int_equal(scene.questions[0].question.error, Error::kTimedOut);
    assert_int_equal(scene.server.groups(), 3);
}

void test_answers_come_in_order_each_with_its_own_decision(void**) {
    Scene scene(10);
    unsigned count = 0;
    scene.server.decide = [&](const SeenLimit&) {
        count++;
        return count % 3 == 0 ? reject(count * kSecond) : admit(count, count * kSecond);
    };
    for (unsigned i = 0; i < 55; i++) {
        scene.questions.ask(std::to_string(i), 1, 1 + i % 4);
    }
    assert_true(scene.questions.await());
    unsigned number = 0;
    for (unsigned i = 0; i < 55; i++) {
        assert_int_equal(scene.questions[i].position, scene.questions[0].position + i);
        assert_int_equal(scene.questions[i].question.error, Error::kNone);
        assert_int_equal(scene.questions[i].question.time, ScriptServer::kTime);
        for (unsigned limit = 0; limit < 1 + i % 4; limit++) {
            const Decision& decision = scene.questions[i].decision(limit);
            number++;
            assert_int_equal(decision.allowed, number % 3 != 0);
            assert_int_equal(number % 3 == 0 ? decision.retry_after : decision.reset_after, number * kSecond);
            assert_int_equal(decision.limit, 10);
        }
    }
}

void test_a_key_has_prefix_zone_algorithm_and_client(void**) {
    const auto key_of = [](std::string_view client, Algorithm algorithm = Algorithm::kTokenBucket) {
        redis::Buffer buffer;
        append_key("p:", "zone", algorithm, client, &buffer);
        return std::string(buffer.view());
    };
    assert_string_equal(key_of("alice").c_str(), "$27\r\np:zone:token_bucket:{alice}\r\n");
    assert_string_equal(key_of("").c_str(), "$22\r\np:zone:token_bucket:{}\r\n");
    assert_string_equal(key_of("a", Algorithm::kSlidingLog).c_str(), "$22\r\np:zone:sliding_log:{a}\r\n");
    const std::string binary("\0\r\n{}\xff", 6);
    assert_true(key_of(binary) == redis::bulk("p:zone:token_bucket:{" + binary + "}"));
    const std::string longest(128, 'x');
    assert_true(key_of(longest) == redis::bulk("p:zone:token_bucket:{" + longest + "}"));
    assert_true(key_of(std::string(129, 'x')).find("{sha256:") != std::string::npos);
    assert_int_equal(key_of(std::string(129, 'x')).size(), key_of(std::string(100'000, 'x')).size());
    assert_true(key_of(std::string(129, 'x')) != key_of(std::string(130, 'x')));
    assert_true(key_of(std::string(128, 'x') + "a") != key_of(std::string(128, 'x') + "b"));
}

// The batcher caches the beginning of keys for a few zones.
void test_keys_are_right_with_many_zones(void**) {
    Scene scene;
    const Policy buckets = policy_of(Algorithm::kTokenBucket, "10r/m");
    const StateLayout layout = layout_of(buckets);
    std::deque<TestQuestion> all;
    std::vector<std::string> expected;
    for (unsigned i = 0; i < 60; i++) {
        const std::string zone =
            i % 10 == 9 ? std::string(i + 60, 'z') : "zone" + std::to_string(i % 7 * (i % 3));
        const bool other = i % 4 == 0;
        all.emplace_back("x", 1, 0);
        all.back().add(zone, "client" + std::to_string(i), other ? buckets : kPolicy,
                       other ? layout : kLayout);
        expected.push_back("rate_limit:" + zone + (other ? ":token_bucket" : ":sliding_window") + ":{client" +
                           std::to_string(i) + "}");
        assert_true(scene.batcher->ask(&all.back().question));
        all.back().texts[0].zone.assign(zone.size(), '?');  // the memory of the name may be reused
    }
    assert_true(scene.loop.run_until([&] { return all.back().answers == 1; }));
    std::vector<std::string> keys;
    for (const SeenCall& call : scene.server.calls) {
        for (const SeenGroup& group : call.groups) {
            keys.push_back(group.limits[0].key);
        }
    }
    assert_true(keys == expected);
}

void test_a_long_name_is_replaced_by_its_sha256(void**) {
    redis::Buffer buffer;
    append_key("", "z", Algorithm::kGcra, std::string(1'000'000, 'a'), &buffer);
    // The third test vector of FIPS 180-2.
    assert_true(
        buffer.view() ==
        redis::bulk("z:gcra:{sha256:cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0}"));
}

void test_no_name_has_the_key_of_a_digest(void**) {
    const auto key_of = [](const std::string& client) {
        redis::Buffer buffer;
        append_key("", "z", Algorithm::kGcra, client, &buffer);
        return std::string(buffer.view());
    };
    const std::string key = key_of(std::string(200, 'x'));
    const std::size_t start = key.find('{') + 1;
    const std::string digest = key.substr(start, key.find('}') - start);
    assert_int_equal(digest.size(), 71);
    assert_true(key_of(digest) != key);
    assert_true(key_of(digest) == key_of(digest));
    assert_true(key_of("sha256") == redis::bulk("z:gcra:{sha256}"));
}

void test_a_policy_is_sent_once_per_call(void**) {
    Scene scene;
    Policy other = kPolicy;
    other.rates = rates_of("20r/m");
    const StateLayout layout = layout_of(other);
    for (unsigned i = 0; i < 30; i++) {
        scene.questions.ask(i % 3 == 0 ? other : kPolicy, i % 3 == 0 ? layout : kLayout);
    }
    assert_true(scene.questions.await());
    assert_int_equal(scene.server.calls.size(), 1);
    const SeenCall& call = scene.server.calls[0];
    assert_int_equal(call.policies.size(), 2);
    for (unsigned i = 0; i < 30; i++) {
        assert_int_equal(number_at(call.groups[i].limits[0].policy, kPolicySize, 7), i % 3 == 0 ? 20 : 10);
        assert_int_equal(scene.questions[i].decision().limit, i % 3 == 0 ? 20 : 10);
    }
}

void test_equal_policies_at_different_addresses_are_sent_once(void**) {
    Scene scene;
    const Policy copies[] = {kPolicy, kPolicy, kPolicy};
    for (const Policy& policy : copies) {
        scene.questions.ask(policy, kLayout);
    }
    assert_true(scene.questions.await());
    assert_int_equal(scene.server.calls[0].policies.size(), 1);
}

// Each policy differs from the first in one property.
void test_policies_that_differ_are_all_sent(void**) {
    Policy first = policy_of(Algorithm::kLeakyBucket, "10r/m,100r/h");
    first.burst = 5;
    std::vector<std::pair<Policy, StateLayout>> all(14, {first, layout_of(first)});
    all[1].first.algorithm = Algorithm::kGcra;
    all[2].first.align_first = true;
    all[3].first.count_all = true;
    all[4].first.debt = true;
    all[5].first.burst = 6;
    all[6].first.ceiling = 7;
    all[7].first.delay = 2;
    all[8].first.min_interval = 1;
    all[9].first.rates.size = 1;
    all[10].first.rates.rates[1].count = 99;
    all[11].first.rates.rates[0].period = 2 * kMinute;
    all[12].second.rates++;
    all[13].second.varied = true;
    for (std::size_t i = 1; i < all.size(); i++) {
        Scene scene;
        for (const std::size_t which : {std::size_t{0}, i, std::size_t{0}, i}) {
            scene.questions.ask(all[which].first, all[which].second);
        }
        assert_true(scene.questions.await());
        const std::vector<SeenGroup>& groups = scene.server.calls[0].groups;
        for (const std::size_t which : {0, 1, 2, 3}) {
            char record[kLongestPolicy];
            const auto& [policy, layout] = all[which % 2 == 0 ? 0 : i];
            assert_true(groups[which].limits[0].policy ==
                        std::string(record, encode_policy(policy, layout, record)));
        }
        assert_int_equal(scene.server.calls[0].policies.size(), 2);
    }
}

void test_a_call_that_would_have_too_many_policies_is_split(void**) {
    Scene scene(100'000);
    std::deque<Policy> policies;
    for (unsigned i = 0; i < 700; i++) {
        policies.push_back(kPolicy);
        policies.back().rates.rates[0].count = i + 1;
    }
    std::deque<TestQuestion> large;
    for (unsigned i = 0; i < 700; i++) {
        scene.questions.ask(policies[i], kLayout);
    }
    assert_true(scene.questions.await());
    assert_in_range(scene.server.calls.size(), 3, 4);
    for (const SeenCall& call : scene.server.calls) {
        assert_in_range(call.policies.size(), 1, 255);
    }
    unsigned number = 0;
    for (const SeenCall& call : scene.server.calls) {
        for (const SeenGroup& group : call.groups) {
            assert_int_equal(number_at(group.limits[0].policy, kPolicySize + 7, 7), ++number);
        }
    }
    assert_int_equal(number, 700);
}

void test_a_call_that_would_have_too_many_keys_is_split(void**) {
    Scene scene(100'000);
    for (unsigned i = 0; i < 200; i++) {
        scene.questions.ask(std::to_string(i), 1, 1 + i % 16);
    }
    assert_true(scene.questions.await());
    std::size_t keys = 0;
    for (const SeenCall& call : scene.server.calls) {
        assert_in_range(call.keys, 1, 1024);
        keys += call.keys;
    }
    assert_int_equal(scene.server.groups(), 200);
    assert_in_range(scene.server.calls.size(), 2, 3);
    for (unsigned i = 0, seen = 0; i < 200; i++) {
        seen += 1 + i % 16;
        assert_true(i < 199 || seen == keys);
        assert_int_equal(scene.questions[i].question.error, Error::kNone);
    }
}

void test_costs_are_sent_unchanged(void**) {
    Scene scene;
    for (const std::uint64_t cost : std::initializer_list<std::uint64_t>{0, 1, 255, 256, ~std::uint32_t{0},
                                                                         std::uint64_t{1} << 32, kMaxCost}) {
        scene.questions.ask("alice", cost);
        assert_true(scene.questions.await());
        assert_int_equal(scene.server.calls.back().groups[0].limits[0].cost, cost);
    }
}

void test_a_forgotten_question_is_not_answered_and_others_get_their_own_answers(void**) {
    for (const unsigned stage : {0, 1, 2}) {
        Scene scene;
        unsigned number = 0;
        scene.server.decide = [&](const SeenLimit&) {
            number++;
            return number % 2 == 0 ? reject(number) : admit(number);
        };
        std::vector<std::unique_ptr<TestQuestion>> all;
        for (unsigned i = 0; i < 10; i++) {
            all.push_back(std::make_unique<TestQuestion>(std::to_string(i), 1, 1 + i % 3));
            assert_true(scene.batcher->ask(&all.back()->question));
        }
        if (stage == 1) {
            scene.loop.turn();
        } else if (stage == 2) {
            assert_true(scene.loop.run_until([&] { return scene.server.calls.size() == 1; }));
        }
        for (unsigned i = 0; i < 10; i += 3) {
            CheckBatcher::forget(&all[i]->question);
            CheckBatcher::forget(&all[i]->question);
            all[i].reset();
        }
        assert_true(scene.loop.run_until([&] { return all[8]->answers == 1; }));
        number = 0;
        for (unsigned i = 0; i < 10; i++) {
            for (unsigned limit = 0; limit < 1 + i % 3; limit++) {
                number++;
                if (all[i] != nullptr) {
                    assert_int_equal(all[i]->answers, 1);
                    assert_int_equal(all[i]->decision(limit).allowed, number % 2 != 0);
                    assert_int_equal(all[i]->decision(limit).retry_after, number % 2 == 0 ? number : 0);
                }
            }
        }
    }
}

void test_the_answer_to_one_question_may_forget_a_later_one(void**) {
    Scene scene;
    TestQuestion first("first");
    auto second = std::make_unique<TestQuestion>("second");
    TestQuestion third("third");
    first.then = [&] {
        CheckBatcher::forget(&second->question);
        second.reset();
    };
    assert_true(scene.batcher->ask(&first.question));
    assert_true(scene.batcher->ask(&second->question));
    assert_true(scene.batcher->ask(&third.question));
    assert_true(scene.loop.run_until([&] { return third.answers == 1; }));
    assert_int_equal(first.answers, 1);
}

void test_the_answer_to_a_question_may_send_another(void**) {
    Scene scene;
    TestQuestion asked;
    unsigned left = 20;
    asked.then = [&] {
        if (left-- > 0) {
            assert_true(scene.batcher->ask(&asked.question));
        }
    };
    assert_true(scene.batcher->ask(&asked.question));
    assert_true(scene.loop.run_until([&] { return asked.answers == 21; }));
    scene.loop.run_for(5);
    assert_int_equal(asked.answers, 21);
    assert_int_equal(scene.server.groups(), 21);
}

void test_a_refund_has_the_keys_and_costs_of_its_limits(void**) {
    Scene scene;
    const TestQuestion charged("alice", 7, 3);
    scene.questions.ask("before");
    scene.batcher->undo(charged.limits.data(), charged.question.indices, 3);
    scene.questions.ask("after");
    assert_true(scene.questions.await());
    assert_int_equal(scene.server.calls.size(), 1);
    const std::vector<SeenGroup>& groups = scene.server.calls[0].groups;
    assert_int_equal(groups.size(), 3);
    assert_int_equal(groups[0].kind, kDecide);
    assert_int_equal(groups[1].kind, kUndoRequest);
    assert_int_equal(groups[2].kind, kDecide);
    assert_int_equal(groups[1].limits.size(), 3);
    for (const SeenLimit& limit : groups[1].limits) {
        assert_int_equal(limit.cost, 7);
        assert_int_equal(limit.charge.cost, 7);
    }
    assert_string_equal(groups[1].limits[1].key.c_str(), "rate_limit:zone1:sliding_window:{alice}");
    assert_int_equal(scene.questions[1].question.error, Error::kNone);
}

void test_sizes_of_batches_are_counted(void**) {
    redis::TestLoop loop;
    ScriptServer server(&loop);
    const redis::Settings settings = script_settings(server.server.path());
    RedisStatistics statistics;
    const Process process = this_process();
    RedisCounter counter(&statistics, 0, process);
    CheckBatcher::Options options;
    options.batch = 4;
    options.counter = &counter;
    const std::unique_ptr<CheckBatcher> batcher(
        new CheckBatcher(redis::Client::make(settings, {}, &loop), options, &loop));
    TestQuestion asked[7];
    for (TestQuestion& one : asked) {
        assert_true(batcher->ask(&one.question));
    }
    assert_true(loop.run_until([&] { return asked[6].answers == 1; }));
    const BatchTotals batches = statistics.read().batches;
    assert_int_equal(batches.count, 2);
    assert_int_equal(batches.sum, 7);
    assert_int_equal(batches.counts[2], 2);  // four, and three
}

void test_a_refund_is_sent_without_checks(void**) {
    Scene scene;
    {
        const TestQuestion charged("alice", 7);
        scene.batcher->undo(charged.limits.data(), charged.question.indices, 1);
    }
    assert_true(scene.loop.run_until([&] { return scene.server.refunds().size() == 1; }));
    scene.questions.ask();
    assert_true(scene.questions.await());
    assert_true(scene.batcher->available(0));
}

void test_checks_do_not_leak_memory(void**) {
    Scene scene;
    std::deque<TestQuestion> all;
    for (unsigned i = 0; i < 50; i++) {
        all.emplace_back(std::to_string(i), 1, 1 + i % 3);
    }
    const auto round = [&] {
        for (TestQuestion& asked : all) {
            asked.answers = 0;
            assert_true(scene.batcher->ask(&asked.question));
        }
        assert_true(scene.loop.run_until([&] { return all.back().answers == 1; }));
        scene.server.calls.clear();
        scene.server.server.commands.clear();
        scene.server.calls.shrink_to_fit();
        scene.server.server.commands.shrink_to_fit();
    };
    for (unsigned i = 0; i < 20; i++) {
        round();
    }
    const std::size_t before = mallinfo2().uordblks;
    for (unsigned i = 0; i < 200; i++) {
        round();
    }
    assert_true(mallinfo2().uordblks < before + 10'000);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_checks_of_one_turn_are_one_call),
        cmocka_unit_test(test_no_call_has_more_groups_than_the_batch_size),
        cmocka_unit_test(test_fewer_checks_than_are_in_flight_wait_for_more),
        cmocka_unit_test(test_waiting_checks_are_sent_after_the_next_reply),
        cmocka_unit_test(test_the_time_that_a_check_waits_for_others_is_part_of_its_timeout),
        cmocka_unit_test(test_checks_do_not_wait_for_a_late_reply),
        cmocka_unit_test(test_answers_come_in_order_each_with_its_own_decision),
        cmocka_unit_test(test_a_key_has_prefix_zone_algorithm_and_client),
        cmocka_unit_test(test_keys_are_right_with_many_zones),
        cmocka_unit_test(test_a_long_name_is_replaced_by_its_sha256),
        cmocka_unit_test(test_no_name_has_the_key_of_a_digest),
        cmocka_unit_test(test_a_policy_is_sent_once_per_call),
        cmocka_unit_test(test_equal_policies_at_different_addresses_are_sent_once),
        cmocka_unit_test(test_policies_that_differ_are_all_sent),
        cmocka_unit_test(test_a_call_that_would_have_too_many_policies_is_split),
        cmocka_unit_test(test_a_call_that_would_have_too_many_keys_is_split),
        cmocka_unit_test(test_costs_are_sent_unchanged),
        cmocka_unit_test(test_a_forgotten_question_is_not_answered_and_others_get_their_own_answers),
        cmocka_unit_test(test_the_answer_to_one_question_may_forget_a_later_one),
        cmocka_unit_test(test_the_answer_to_a_question_may_send_another),
        cmocka_unit_test(test_a_refund_has_the_keys_and_costs_of_its_limits),
        cmocka_unit_test(test_a_refund_is_sent_without_checks),
        cmocka_unit_test(test_sizes_of_batches_are_counted),
        cmocka_unit_test(test_checks_do_not_leak_memory),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
