// Checks for one node of a cluster share a call, and get a call each if the node does not serve all their
// slots.
#include <map>

#include "sharded_router.h"

namespace rate_limit {
namespace {

// The names of `count` clients of the left node.
std::deque<std::string> left_names(unsigned count) {
    std::deque<std::string> names;
    for (unsigned number = 0; names.size() < count; number++) {
        const std::string name = "client" + std::to_string(number);
        if (is_left(name)) {
            names.push_back(name);
        }
    }
    return names;
}

// The call has a request with several limits, a check without an answer, an aborted request and a refund.
void test_a_call_that_a_node_cannot_serve_is_retried_as_one_call_per_group(void**) {
    SplitScene scene;
    const std::deque<std::string> names = left_names(6);
    std::map<std::string, unsigned> numbers;
    for (unsigned i = 0; i < names.size(); i++) {
        numbers[key_of(names[i])] = i;
        numbers[key_of(names[i], "login")] = 100 + i;
    }
    scene.left.elsewhere = [](const redis::Words&) { return true; };
    scene.left.decide = [&](const SeenLimit& limit) { return admit(numbers[limit.key]); };
    StoreZone zone = {};
    zone.label = "api";
    zone.layout = layout_of(kPolicy);
    const Limit limits[] = {{&zone, &kPolicy, names[4], 7, nullptr, false, false, {}, {}, {}, 0, false, 0},
                            {&zone, &kPolicy, names[5], 9, nullptr, false, false, {}, {}, {}, 0, false, 0}};
    const std::uint8_t refunded = 1;
    std::deque<Request> requests;
    for (unsigned i = 0; i < 4; i++) {
        std::vector<TestLimit> of_request = {scene.of(names[i])};
        if (i % 2 != 0) {
            of_request.push_back(scene.of(names[i], OnError::kOpen, "login"));
        }
        requests.emplace_back(of_request);
    }
    scene.batcher->count(limits[0]);
    scene.batcher->undo(limits, &refunded, 1);
    requests[2].leave(nullptr);
    for (const unsigned i : {0, 1, 3}) {
        assert_int_equal(requests[i].in_the_end(&scene.loop), Progress::kAdmitted);
        assert_int_equal(requests[i].error(), Error::kNone);
        assert_int_equal(requests[i].decision(0).remaining, i);
    }
    assert_int_equal(requests[1].decision(1).remaining, 101);
    assert_int_equal(requests[3].decision(1).remaining, 103);
    assert_true(scene.loop.run_until([&] { return scene.left.groups() == 6; }));
    scene.loop.run_for(10);
    assert_int_equal(scene.left.refused, 1);
    assert_int_equal(scene.left.calls.size(), 6);
    for (unsigned i = 0; i < 6; i++) {
        const SeenCall& call = scene.left.calls[i];
        assert_true(call.declared);
        assert_int_equal(call.groups.size(), 1);
        assert_int_equal(call.groups[0].kind, i == 5 ? kUndoRequest : kDecide);
        assert_int_equal(call.groups[0].limits.size(), i == 1 || i == 3 ? 2 : 1);
        assert_string_equal(call.groups[0].limits[0].key.c_str(), key_of(names[i]).c_str());
        assert_int_equal(call.groups[0].limits[0].cost, i == 4 ? 7 : i == 5 ? 9 : 1);
    }
    assert_int_equal(scene.right.calls.size(), 0);
}

void test_a_redirection_of_a_shared_call_is_no_error_of_its_requests(void**) {
    for (const char* error : {"-MOVED 1 127.0.0.1:1", "-ASK 1 127.0.0.1:1", "-TRYAGAIN Multiple keys",
                              "-CLUSTERDOWN The cluster is down"}) {
        SplitScene scene;
        unsigned told = 0;
        scene.left.send = [&](const std::string& reply) {
            return scene.left.calls.back().declared || told++ != 0 ? redis::bulk(reply)
                                                                   : std::string(error) + "\r\n";
        };
        const std::deque<std::string> names = left_names(3);
        std::deque<Request> requests;
        for (const std::string& name : names) {
            requests.emplace_back(std::vector<TestLimit>{scene.of(name)});
        }
        for (const Request& request : requests) {
            assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
            assert_int_equal(request.error(), Error::kNone);
        }
        assert_int_equal(told, 1);
        assert_int_equal(scene.left.calls.size(), 4);
    }
}

// Otherwise each call would fail first while slots migrate.
void test_after_a_failed_call_a_node_gets_one_call_per_client_for_a_while(void**) {
    SplitScene scene;
    const std::deque<std::string> names = left_names(3);
    const auto round = [&] {
        std::deque<Request> requests;
        for (const std::string& name : names) {
            requests.emplace_back(std::vector<TestLimit>{scene.of(name)});
        }
        requests.emplace_back(std::vector<TestLimit>{scene.of(scene.righty)});
        for (const Request& request : requests) {
            assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
        }
    };
    scene.left.elsewhere = [](const redis::Words&) { return true; };
    round();
    assert_int_equal(scene.left.refused, 1);
    round();
    assert_int_equal(scene.left.refused, 1);
    assert_int_equal(scene.left.calls.size(), 6);
    assert_true(scene.left.calls.back().declared);
    assert_false(scene.right.calls.back().declared);
    scene.left.elsewhere = nullptr;
    scene.loop.run_for(1100);
    round();
    assert_int_equal(scene.left.calls.size(), 7);
    assert_int_equal(scene.left.calls.back().groups.size(), 3);
    assert_false(scene.left.calls.back().declared);
}

void test_a_retry_has_the_deadline_of_the_first_call(void**) {
    SplitScene scene(64, 400);
    scene.left.server.answers = false;
    const redis::Milliseconds began = scene.loop.now();
    const std::size_t before = scene.left.server.count("EVALSHA");
    const Request request({scene.of(scene.lefty)});
    scene.loop.run_for(200);
    assert_int_equal(scene.left.server.count("EVALSHA"), before + 1);
    scene.left.server.say(redis::bulk(""));
    assert_true(scene.loop.run_until([&] { return scene.left.server.count("EVALSHA") == before + 2; }));
    assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(request.error(), Error::kTimedOut);
    assert_in_range(scene.loop.now() - began, 390, 550);
}

void test_fewer_checks_than_are_in_flight_to_a_node_wait_for_its_reply(void**) {
    SplitScene scene;
    scene.left.server.answers = false;
    const std::size_t before = scene.left.server.count("EVALSHA");
    const std::deque<std::string> names = left_names(4);
    std::deque<Request> first;
    for (unsigned i = 0; i < 3; i++) {
        first.emplace_back(std::vector<TestLimit>{scene.of(names[i])});
    }
    assert_true(scene.loop.run_until([&] { return scene.left.server.count("EVALSHA") == before + 1; }));
    const Request second({scene.of(names[3])});
    const Request other({scene.of(scene.righty)});
    assert_int_equal(other.in_the_end(&scene.loop), Progress::kAdmitted);
    scene.loop.run_for(20);
    assert_int_equal(scene.left.server.count("EVALSHA"), before + 1);
    scene.left.server.answers = true;
    scene.left.server.say(redis::bulk(packed(5, 8) + admit(3) + admit(3) + admit(3)));
    assert_int_equal(second.in_the_end(&scene.loop), Progress::kAdmitted);
    for (const Request& request : first) {
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    }
}

// While a check waits for a reply, its slot may move to another node. The check is then sent to that node.
void test_waiting_checks_follow_their_slot(void**) {
    SplitScene scene;
    scene.left.server.answers = false;
    const std::size_t before = scene.left.server.count("EVALSHA");
    const std::deque<std::string> names = left_names(4);
    std::deque<Request> first;
    for (unsigned i = 0; i < 2; i++) {
        first.emplace_back(std::vector<TestLimit>{scene.of(names[i])});
    }
    assert_true(scene.loop.run_until([&] { return scene.left.server.count("EVALSHA") == before + 1; }));
    const Request second({scene.of(names[3])});
    scene.loop.run_for(5);
    scene.router->all_right = true;
    scene.left.server.say(redis::bulk(packed(5, 8) + admit(3) + admit(3)));
    assert_int_equal(second.in_the_end(&scene.loop), Progress::kAdmitted);
    assert_int_equal(second.error(), Error::kNone);
    assert_int_equal(scene.right.calls.size(), 1);
    assert_true(scene.right.calls[0].declared);
    assert_string_equal(scene.right.calls[0].groups[0].limits[0].key.c_str(), key_of(names[3]).c_str());
    assert_int_equal(scene.left.server.count("EVALSHA"), before + 1);
    for (const Request& request : first) {
        assert_int_equal(request.in_the_end(&scene.loop), Progress::kAdmitted);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_that_a_node_cannot_serve_is_retried_as_one_call_per_group),
        cmocka_unit_test(test_a_redirection_of_a_shared_call_is_no_error_of_its_requests),
        cmocka_unit_test(test_after_a_failed_call_a_node_gets_one_call_per_client_for_a_while),
        cmocka_unit_test(test_a_retry_has_the_deadline_of_the_first_call),
        cmocka_unit_test(test_fewer_checks_than_are_in_flight_to_a_node_wait_for_its_reply),
        cmocka_unit_test(test_waiting_checks_follow_their_slot),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
