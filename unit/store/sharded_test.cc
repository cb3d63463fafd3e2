// Limits whose keys are in different slots of a cluster: they are decided one after the other, and all are
// charged or none.
#include <malloc.h>

#include <map>

#include "redis/real_server.h"
#include "sharded_router.h"

namespace rate_limit {
namespace {

void test_the_slot_of_a_limit_is_that_of_its_key(void**) {
    SplitScene scene;
    for (const std::string& client :
         {std::string("alice"), std::string(), std::string("}x"), std::string("a}b"), std::string("{a}"),
          std::string("\0x", 2), std::string(128, 'x'), std::string(129, 'x'), std::string("sha256:x"),
          std::string(5000, '}')}) {
        for (const char* zone : {"api", "login"}) {
            redis::Buffer buffer;
            append_key("rate_limit:", zone, kPolicy.algorithm, client, &buffer);
            const std::string_view bulk = buffer.view();
            const std::size_t start = bulk.find("\r\n") + 2;
            StoreZone store_zone = {};
            store_zone.label = zone;
            const Limit limit = {&store_zone, &kPolicy, client, 1, nullptr, false, false,
                                 {},          {},       {},     0, false,   0};
            assert_int_equal(scene.batcher->hash_slot_of(limit),
                             redis::hash_slot_of(bulk.substr(start, bulk.size() - start - 2)));
        }
    }
}

void test_without_sharding_all_limits_have_the_same_slot(void**) {
    Scene scene;
    StoreZone zone = {};
    zone.label = "api";
    for (const char* client : {"alice", "bob", "carol"}) {
        assert_int_equal(scene.first->hash_slot_of(
                             {&zone, &kPolicy, client, 1, nullptr, false, false, {}, {}, {}, 0, false, 0}),
                         0);
    }
}

void test_checks_of_one_turn_are_one_call_per_node(void**) {
    SplitScene scene;
    const std::string twin = name_where(
        [&](const std::string& name) {
            return name != scene.lefty && redis::hash_slot_of(name) == redis::hash_slot_of(scene.lefty);
        },
        1);
    const std::string cousin = name_where([&](const std::string& name) {
        return is_left(name) && redis::hash_slot_of(name) != redis::hash_slot_of(scene.lefty);
    });
    const std::string clients[] = {scene.lefty, twin, scene.righty, cousin};
    std::deque<Request> requests;
    for (unsigned i = 0; i < 20; i++) {
        requests.emplace_back(std::vector<TestLimit>{scene.of(clients[i % 4])});
    }
    for (const Request& request : requests) {
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    }
    for (const ScriptServer* server : {&scene.left, &scene.right}) {
        assert_int_equal(server->calls.size(), 1);
        assert_int_equal(server->calls[0].groups.size(), server == &scene.left ? 15 : 5);
        assert_false(server->calls[0].declared);
    }
}

void test_each_answer_reaches_its_own_request(void**) {
    SplitScene scene;
    std::map<std::string, unsigned> numbers;
    const auto decide = [&](const SeenLimit& limit) { return admit(numbers[limit.key]); };
    scene.left.decide = scene.right.decide = decide;
    std::deque<std::string> names;
    std::deque<Request> requests;
    for (unsigned i = 0; i < 300; i++) {
        names.push_back("client" + std::to_string(i));
        numbers[key_of(names.back())] = i;
        requests.emplace_back(std::vector<TestLimit>{scene.of(names.back())});
    }
    for (unsigned i = 0; i < 300; i++) {
        assert_int_equal(requests[i].in_the_end(&scene.loop), Progress::kAdmitted);
        assert_int_equal(requests[i].decision(0).remaining, i);
    }
    assert_in_range(scene.left.calls.size() + scene.right.calls.size(), 300 / 64 + 1, 300 / 64 + 2);
}

void test_no_call_has_more_groups_than_the_batch_size(void**) {
    SplitScene scene(3);
    std::deque<Request> requests;
    for (unsigned i = 0; i < 14; i++) {
        requests.emplace_back(std::vector<TestLimit>{scene.of(i % 2 == 0 ? scene.lefty : scene.righty)});
    }
    for (const Request& request : requests) {
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    }
    for (const ScriptServer* server : {&scene.left, &scene.right}) {
        assert_int_equal(server->calls.size(), 3);
        assert_int_equal(server->calls[0].groups.size(), 3);
        assert_int_equal(server->calls[1].groups.size(), 3);
        assert_int_equal(server->calls[2].groups.size(), 1);
    }
}

void test_all_zones_of_a_client_are_one_group(void**) {
    SplitScene scene;
    const Request request({scene.of(scene.lefty), scene.of(scene.righty),
                           scene.of(scene.lefty, OnError::kOpen, "login"),
                           scene.of(scene.righty, OnError::kOpen, "login")});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    for (const ScriptServer* server : {&scene.left, &scene.right}) {
        const std::string client = server == &scene.left ? scene.lefty : scene.righty;
        assert_int_equal(server->calls.size(), 1);
        assert_int_equal(server->calls[0].groups.size(), 1);
        const std::vector<SeenLimit>& limits = server->calls[0].groups[0].limits;
        assert_int_equal(limits.size(), 2);
        assert_string_equal(limits[0].key.c_str(), key_of(client).c_str());
        assert_string_equal(limits[1].key.c_str(), key_of(client, "login").c_str());
    }
}

// With such a name, keys would have no hash tag and different slots, so keys have a digest of the name
// instead.
void test_all_zones_of_a_client_whose_name_begins_with_a_brace_are_one_call(void**) {
    SplitScene scene;
    const std::string client = "}";
    std::deque<std::string> zones;
    std::vector<TestLimit> limits;
    for (unsigned i = 0; i < 8; i++) {
        zones.push_back("zone" + std::to_string(i));
        limits.push_back(scene.of(client, OnError::kOpen, zones.back().c_str()));
    }
    const Request request(limits);
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(scene.left.calls.size() + scene.right.calls.size(), 1);
}

void test_one_slot_is_decided_after_the_other(void**) {
    SplitScene scene;
    scene.left.server.answers = false;
    const std::size_t before = scene.left.server.count("EVALSHA");
    const Request request({scene.of(scene.lefty), scene.of(scene.righty), {&scene.zone}});
    assert_true(scene.loop.run_until([&] { return scene.left.server.count("EVALSHA") > before; }));
    scene.loop.run_for(20);
    assert_int_equal(scene.right.calls.size(), 0);
    assert_int_equal(scene.zone->clients(), 0);
    scene.left.server.say(redis::bulk(packed(5, 8) + admit(3)));
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(scene.right.calls.size(), 1);
    assert_int_equal(request.decision(0).remaining, 3);
    assert_int_equal(request.decision(1).remaining, 5);
    assert_int_equal(used(scene.zone), 1);
    assert_int_equal(scene.refunds(), 0);
}

void test_the_first_slot_is_refunded_if_the_second_rejects(void**) {
    SplitScene scene;
    always_reject(&scene.right);
    TestLimit charged = scene.of(scene.lefty);
    charged.cost = 3;
    const Request request(
        {charged, scene.of(scene.lefty, OnError::kOpen, "login"), scene.of(scene.righty), {&scene.zone}});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_true(scene.loop.run_until([&] { return scene.refunds() == 1; }));
    scene.loop.run_for(10);
    assert_int_equal(scene.refunds(), 1);
    const SeenGroup refund = scene.left.refunds()[0];
    assert_int_equal(refund.limits.size(), 2);
    assert_string_equal(refund.limits[0].key.c_str(), key_of(scene.lefty).c_str());
    assert_string_equal(refund.limits[1].key.c_str(), key_of(scene.lefty, "login").c_str());
    assert_int_equal(refund.limits[0].cost, 3);
    assert_int_equal(refund.limits[1].cost, 1);
    assert_int_equal(scene.zone->clients(), 0);
    assert_false(request.decision(2).allowed);
}

// Three slots on two servers: the two charged slots are refunded, each by a call of its own.
void test_every_slot_is_refunded_if_a_later_one_rejects(void**) {
    SplitScene scene;
    const std::string other = name_where([&](const std::string& name) {
        return is_left(name) && redis::hash_slot_of(name) != redis::hash_slot_of(scene.lefty);
    });
    scene.left.decide = [&](const SeenLimit& limit) {
        return limit.key == key_of(other) ? reject() : admit();
    };
    const Request request({scene.of(scene.lefty), scene.of(scene.righty), scene.of(other)});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_true(scene.loop.run_until([&] { return scene.refunds() == 2; }));
    scene.loop.run_for(10);
    assert_int_equal(scene.left.refunds().size(), 1);
    assert_string_equal(scene.left.refunds()[0].limits[0].key.c_str(), key_of(scene.lefty).c_str());
    assert_int_equal(scene.right.refunds().size(), 1);
}

void test_a_slot_is_not_called_if_an_earlier_one_rejects(void**) {
    SplitScene scene;
    always_reject(&scene.left);
    const Request request({scene.of(scene.lefty), scene.of(scene.righty)});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    scene.loop.run_for(10);
    assert_int_equal(scene.right.calls.size(), 0);
    assert_int_equal(request.decided_by(1), DecidedBy::kNobody);
    assert_int_equal(scene.refunds(), 0);
}

void test_every_slot_is_refunded_if_memory_rejects_last(void**) {
    SplitScene scene;
    const Request request({{&scene.zone}, scene.of(scene.lefty), scene.of(scene.righty)});
    use(scene.zone, 10);
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_true(scene.loop.run_until([&] { return scene.refunds() == 2; }));
    assert_int_equal(scene.left.refunds().size(), 1);
    assert_int_equal(scene.right.refunds().size(), 1);
}

void test_on_error_applies_to_a_slot_without_a_node(void**) {
    SplitScene scene;
    scene.router->right_absent = true;
    assert_true(scene.batcher->available(0));
    assert_false(scene.batcher->available(kBorder));

    const Request open({scene.of(scene.righty), scene.of(scene.lefty)});
    assert_int_equal(open.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(open.error(), Error::kUnavailable);
    assert_int_equal(open.decided_by(0), DecidedBy::kNobody);
    assert_int_equal(open.decided_by(1), DecidedBy::kRedis);

    const Request refused_first({scene.of(scene.righty, OnError::kClosed), scene.of(scene.lefty)});
    assert_int_equal(refused_first.at_once(), Progress::kRefused);
    assert_int_equal(scene.refunds(), 0);

    const Request refused_last({scene.of(scene.lefty), scene.of(scene.righty, OnError::kClosed)});
    assert_int_equal(refused_last.in_the_end(&scene.loop), Progress::kRefused);
    assert_true(scene.loop.run_until([&] { return scene.refunds() == 1; }));

    TestLimit by_memory = scene.of(scene.righty, OnError::kLocal);
    by_memory.zone = &scene.zone;
    const Request local({by_memory, scene.of(scene.lefty)});
    assert_int_equal(local.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(local.decided_by(0), DecidedBy::kFallback);
    assert_int_equal(local.decided_by(1), DecidedBy::kRedis);
    assert_int_equal(scene.right.calls.size(), 0);
}

// The slot loses its node between the check and the end of the turn, when the call is sent.
void test_a_slot_may_lose_its_node_before_the_call_is_sent(void**) {
    SplitScene scene;
    const Request lost({scene.of(scene.righty)});
    const Request kept({scene.of(scene.lefty)});
    scene.router->right_absent = true;
    assert_int_equal(lost.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(lost.error(), Error::kUnavailable);
    assert_int_equal(kept.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(kept.error(), Error::kNone);
    assert_int_equal(scene.right.calls.size(), 0);
}

void test_an_error_of_one_slot_does_not_affect_the_others(void**) {
    SplitScene scene;
    scene.right.send = [](const std::string&) { return "-TRYAGAIN Multiple keys request\r\n"; };
    const Request open({scene.of(scene.righty), scene.of(scene.lefty)});
    const Request closed({scene.of(scene.lefty), scene.of(scene.righty, OnError::kClosed)});
    const Request other({scene.of(scene.lefty)});
    assert_int_equal(open.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(open.error(), Error::kTryAgain);
    assert_int_equal(open.decided_by(1), DecidedBy::kRedis);
    assert_int_equal(closed.in_the_end(&scene.loop), Progress::kRefused);
    assert_int_equal(other.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(other.error(), Error::kNone);
    assert_true(scene.loop.run_until([&] { return scene.refunds() == 1; }));
    assert_int_equal(scene.left.refunds().size(), 1);
}

void test_a_rejection_by_one_slot_counts_in_others_where_rejected_requests_count(void**) {
    SplitScene scene;
    Policy counting = kPolicy;
    counting.count_all = true;
    always_reject(&scene.left);
    TestLimit counted = scene.of(scene.righty);
    counted.policy = &counting;
    counted.cost = 4;
    TestLimit again = counted;
    again.name = "login";
    const Request request({scene.of(scene.lefty), counted, again});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    assert_int_equal(request.decided_by(1), DecidedBy::kNobody);
    assert_true(scene.loop.run_until([&] { return scene.right.groups() == 2; }));
    scene.loop.run_for(10);
    assert_int_equal(scene.right.groups(), 2);
    assert_int_equal(scene.right.calls.size(), 1);
    assert_int_equal(scene.right.calls[0].groups[0].limits[0].cost, 4);
    assert_int_equal(scene.refunds(), 0);

    // A request that was counted before another slot rejects stays counted.
    scene.right.calls.clear();
    const Request later({counted, scene.of(scene.lefty)});
    assert_int_equal(later.in_the_end(&scene.loop), Progress::kRejected);
    scene.loop.run_for(10);
    assert_int_equal(scene.right.groups(), 1);
    assert_int_equal(scene.refunds(), 0);

    // The slot has no server that could count the request.
    scene.router->right_absent = true;
    const Request lost({scene.of(scene.lefty), counted});
    assert_int_equal(lost.in_the_end(&scene.loop), Progress::kRejected);
    scene.loop.run_for(10);
    assert_int_equal(scene.right.groups(), 1);
}

void test_no_refund_is_sent_to_a_slot_that_has_lost_its_node(void**) {
    SplitScene scene;
    scene.right.decide = [&](const SeenLimit&) {
        scene.router->left_absent = true;
        return reject();
    };
    const Request request({scene.of(scene.lefty), scene.of(scene.righty)});
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kRejected);
    scene.loop.run_for(10);
    assert_int_equal(scene.refunds(), 0);
}

// Aborts the request after any number of turns: while the call for the first slot or the second is in flight,
// or after both replies.
void test_an_aborted_request_is_charged_to_both_slots(void**) {
    bool before = false;
    bool between = false;
    for (unsigned turns = 0; turns < 12; turns++) {
        SplitScene scene;
        auto request = std::make_unique<Request>(
            std::vector<TestLimit>{scene.of(scene.lefty), scene.of(scene.righty), {&scene.zone}});
        for (unsigned i = 0; i < turns; i++) {
            scene.loop.turn(0);
        }
        if (scene.zone->clients() != 0) {
            continue;
        }
        before = before || scene.right.calls.empty();
        between = between || !scene.right.calls.empty();
        request->leave(nullptr);
        request.reset();
        assert_true(scene.loop.run_until([&] { return scene.zone->clients() != 0; }));
        assert_int_equal(used(scene.zone), 1);
        assert_int_equal(scene.left.groups(), 1);
        assert_int_equal(scene.right.groups(), 1);
        const Request next({scene.of(scene.lefty), scene.of(scene.righty)});
        assert_int_equal(next.in_the_end(&scene.loop), Progress::kAdmitted);
    }
    assert_true(before && between);
}

// The other requests of the same call get their own decisions.
void test_an_aborted_request_does_not_affect_others_of_its_call(void**) {
    SplitScene scene;
    unsigned number = 0;
    scene.left.decide = [&](const SeenLimit&) { return admit(++number); };
    std::deque<Request> requests;
    for (unsigned i = 0; i < 6; i++) {
        requests.emplace_back(std::vector<TestLimit>{scene.of(scene.lefty)});
    }
    requests[0].leave(nullptr);
    requests[3].leave(nullptr);
    requests[5].leave(nullptr);
    for (const unsigned i : {1, 2, 4}) {
        assert_int_equal(requests[i].in_the_end(&scene.loop), Progress::kAdmitted);
        assert_int_equal(requests[i].decision(0).remaining, i + 1);
    }
}

void test_malformed_replies_open_the_breaker_of_their_own_server(void**) {
    SplitScene scene;
    scene.right.send = [](const std::string&) { return redis::bulk("x"); };
    for (unsigned i = 0; i < 5; i++) {
        assert_true(scene.batcher->available(kBorder));
        const Request request({scene.of(scene.righty)});
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
        assert_int_equal(request.error(), Error::kShape);
    }
    assert_false(scene.batcher->available(kBorder));
    assert_true(scene.batcher->available(0));
}

void test_a_batcher_may_be_destroyed_with_calls_for_many_slots(void**) {
    for (unsigned turns = 0; turns < 6; turns++) {
        SplitScene scene;
        std::deque<std::string> names;
        std::deque<Request> requests;
        for (unsigned i = 0; i < 200; i++) {
            names.push_back("client" + std::to_string(i));
            requests.emplace_back(std::vector<TestLimit>{scene.of(names.back()), scene.of(scene.righty)});
        }
        for (unsigned i = 0; i < turns; i++) {
            scene.loop.turn(0);
        }
        scene.batcher.reset();
        for (Request& request : requests) {
            if (request.at_once() == Progress::kWaiting && !request.answered()) {
                request.leave(nullptr);
            }
        }
        scene.loop.run_for(2);
    }
}

void test_checks_do_not_leak_memory(void**) {
    SplitScene scene;
    std::deque<std::string> names;
    for (unsigned i = 0; i < 50; i++) {
        names.push_back("client" + std::to_string(i));
    }
    const auto round = [&] {
        {
            std::deque<Request> requests;
            for (const std::string& name : names) {
                requests.emplace_back(std::vector<TestLimit>{scene.of(name)});
            }
            for (const Request& request : requests) {
                assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
            }
        }
        for (ScriptServer* server : {&scene.left, &scene.right}) {
            std::vector<SeenCall>().swap(server->calls);
            std::vector<redis::Words>().swap(server->server.commands);
        }
    };
    for (unsigned i = 0; i < 10; i++) {
        round();
    }
    const std::size_t before = mallinfo2().uordblks;
    for (unsigned i = 0; i < 100; i++) {
        round();
    }
    assert_true(mallinfo2().uordblks < before + 10'000);
}

void test_with_two_real_servers_each_limit_holds_and_no_rejected_request_is_charged(void**) {
    redis::TestLoop loop;
    const redis::RealServer left;
    const redis::RealServer right;
    const std::unique_ptr<CheckBatcher> batcher(
        new CheckBatcher(new ShardedRouter(&loop, left.path(), right.path()), {"rate_limit:", 64}, &loop));
    const std::string narrow = name_where(is_left);
    const std::string wide = name_where([](const std::string& name) { return !is_left(name); });
    for (const Algorithm algorithm : kEveryAlgorithm) {
        const Policy hundred = policy_of(algorithm, "100r/d");
        const Policy seven = policy_of(algorithm, "7r/d");
        TestLimit in_wide = {nullptr, batcher.get()};
        in_wide.policy = &hundred;
        in_wide.client = wide.c_str();
        TestLimit in_narrow = {nullptr, batcher.get()};
        in_narrow.policy = &seven;
        in_narrow.client = narrow.c_str();
        std::deque<Request> requests;
        for (unsigned i = 0; i < 20; i++) {
            requests.emplace_back(std::vector<TestLimit>{in_wide, in_narrow});
        }
        unsigned admitted = 0;
        for (const Request& request : requests) {
            admitted += request.in_the_end(&loop) == Progress::kAdmitted ? 1 : 0;
            assert_int_equal(request.error(), Error::kNone);
        }
        assert_int_equal(admitted, 7);
        loop.run_for(20);
        in_wide.cost = in_narrow.cost = 0;
        const Request look({in_wide, in_narrow});
        assert_int_equal(look.in_the_end(&loop), Progress::kAdmitted);
        assert_int_equal(look.decision(0).remaining, 93);
        assert_int_equal(look.decision(1).remaining, 0);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_slot_of_a_limit_is_that_of_its_key),
        cmocka_unit_test(test_without_sharding_all_limits_have_the_same_slot),
        cmocka_unit_test(test_checks_of_one_turn_are_one_call_per_node),
        cmocka_unit_test(test_each_answer_reaches_its_own_request),
        cmocka_unit_test(test_no_call_has_more_groups_than_the_batch_size),
        cmocka_unit_test(test_all_zones_of_a_client_are_one_group),
        cmocka_unit_test(test_all_zones_of_a_client_whose_name_begins_with_a_brace_are_one_call),
        cmocka_unit_test(test_one_slot_is_decided_after_the_other),
        cmocka_unit_test(test_the_first_slot_is_refunded_if_the_second_rejects),
        cmocka_unit_test(test_every_slot_is_refunded_if_a_later_one_rejects),
        cmocka_unit_test(test_a_slot_is_not_called_if_an_earlier_one_rejects),
        cmocka_unit_test(test_every_slot_is_refunded_if_memory_rejects_last),
        cmocka_unit_test(test_on_error_applies_to_a_slot_without_a_node),
        cmocka_unit_test(test_a_slot_may_lose_its_node_before_the_call_is_sent),
        cmocka_unit_test(test_an_error_of_one_slot_does_not_affect_the_others),
        cmocka_unit_test(test_a_rejection_by_one_slot_counts_in_others_where_rejected_requests_count),
        cmocka_unit_test(test_no_refund_is_sent_to_a_slot_that_has_lost_its_node),
        cmocka_unit_test(test_an_aborted_request_is_charged_to_both_slots),
        cmocka_unit_test(test_an_aborted_request_does_not_affect_others_of_its_call),
        cmocka_unit_test(test_malformed_replies_open_the_breaker_of_their_own_server),
        cmocka_unit_test(test_a_batcher_may_be_destroyed_with_calls_for_many_slots),
        cmocka_unit_test(test_checks_do_not_leak_memory),
        cmocka_unit_test(test_with_two_real_servers_each_limit_holds_and_no_rejected_request_is_charged),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
