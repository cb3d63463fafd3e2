// Redirected calls reach the right node, or fail, by their deadline.
#include "fake_cluster.h"
#include "redis/real_server.h"

namespace rate_limit::redis {
namespace {

// The received commands other than those of the handshake and of the map.
std::vector<std::string> names(const FakeNode& node) {
    std::vector<std::string> found;
    for (const Words& command : node.commands) {
        if (command[0] == "EVALSHA" || command[0] == "ASKING" || command[0] == "SCRIPT") {
            found.push_back(command[0]);
        }
    }
    return found;
}

std::uint64_t errors(const TestCluster& cluster, HashSlot slot, Error error) {
    return cluster->client_of(slot)->counts().errors[static_cast<unsigned>(error)];
}

void test_moved_is_followed_and_remembered(void**) {
    Pair pair;
    pair.left.run = [&](const Words&) { return pair.right.moved(kLeft); };
    const SlotAsked& asked = pair.cluster.ask(kLeft, "a");
    assert_int_equal(asked.error, Error::kNone);
    assert_string_equal(asked.reply.c_str(), "a");
    assert_true(names(pair.right) == std::vector<std::string>{"EVALSHA"});
    // Until a new map is loaded, calls for this slot go to the new node, and others do not.
    assert_int_equal(pair.cluster.ask(kLeft, "b").error, Error::kNone);
    assert_int_equal(pair.left.calls.size(), 1);
    pair.left.run = nullptr;
    assert_int_equal(pair.cluster.ask(kLeft + 1, "c").error, Error::kNone);
    assert_int_equal(pair.left.calls.size(), 2);
    assert_int_equal(pair.right.calls.size(), 2);
}

void test_after_moved_the_map_is_loaded(void**) {
    Pair pair;
    pair.share(50);
    pair.left.run = [&](const Words&) { return pair.right.moved(kLeft); };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_true(pair.loop.run_until([&] { return pair.asked() == 1; }, 50));
    pair.loop.run_for(20);
    assert_int_equal(pair.cluster.ask(kLeft + 1).error, Error::kNone);
    assert_int_equal(pair.left.calls.size(), 1);
    pair.left.run = nullptr;
    assert_int_equal(pair.cluster.ask(1).error, Error::kNone);
    assert_int_equal(pair.left.calls.size(), 2);
}

// The map of the nodes does not change, so the left node redirects each call.
void test_the_map_is_loaded_every_100_ms_at_most_however_many_calls_move(void**) {
    Pair pair;
    pair.left.run = [&](const Words&) { return pair.right.moved(kLeft); };
    const Milliseconds start = pair.loop.now();
    while (pair.loop.now() < start + 450) {
        for (HashSlot slot = 0; slot < 20; slot++) {
            assert_int_equal(pair.cluster.send(slot).error, Error::kNone);
        }
        assert_true(pair.cluster.await());
    }
    assert_in_range(pair.asked(), 3, 6);
    for (const SlotAsked& asked : pair.cluster.all()) {
        assert_int_equal(asked.error, Error::kNone);
    }
}

void test_ask_is_followed_once_with_asking_and_not_remembered(void**) {
    Pair pair;
    pair.left.run = [&](const Words&) { return pair.right.ask(kLeft); };
    for (unsigned i = 1; i <= 3; i++) {
        const SlotAsked& asked = pair.cluster.ask(kLeft, "a");
        assert_int_equal(asked.error, Error::kNone);
        assert_string_equal(asked.reply.c_str(), "a");
        assert_int_equal(pair.left.calls.size(), i);
    }
    assert_true(names(pair.right) ==
                std::vector<std::string>({"ASKING", "EVALSHA", "ASKING", "EVALSHA", "ASKING", "EVALSHA"}));
    assert_int_equal(pair.left.count("ASKING"), 0);
    assert_int_equal(pair.asked(), 0);
    // A call that was not redirected has no ASKING.
    pair.right.commands.clear();
    assert_int_equal(pair.cluster.ask(kRight).error, Error::kNone);
    assert_int_equal(pair.right.count("ASKING"), 0);
}

void test_each_of_many_calls_has_its_own_asking(void**) {
    Pair pair;
    pair.left.run = [&](const Words&) { return pair.right.ask(kLeft); };
    for (unsigned i = 0; i < 50; i++) {
        pair.cluster.send(kLeft, std::to_string(i));
        pair.cluster.send(kRight, "own");
    }
    assert_true(pair.cluster.await());
    for (std::size_t i = 0; i < pair.right.commands.size(); i++) {
        const Words& command = pair.right.commands[i];
        if (command[0] == "EVALSHA") {
            assert_int_equal(i > 0 && pair.right.commands[i - 1][0] == "ASKING", command[3] != "own");
        }
    }
    assert_int_equal(pair.right.count("ASKING"), 50);
    for (std::size_t i = 0; i < 50; i++) {
        assert_string_equal(pair.cluster.all()[2 + 2 * i].reply.c_str(), std::to_string(i).c_str());
    }
}

void test_ask_may_point_to_a_node_without_slots(void**) {
    Pair pair;
    FakeNode third(&pair.loop);
    pair.left.run = [&](const Words&) { return third.ask(kLeft); };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_true(names(third) ==
                std::vector<std::string>({"SCRIPT", "ASKING", "EVALSHA", "ASKING", "EVALSHA"}));
    assert_int_equal(pair.cluster->nodes(), 2);
    assert_int_equal(third.accepted, 1);
    // The next map does not have this node.
    pair.left.run = [&](const Words&) { return pair.right.moved(kLeft); };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_true(pair.loop.run_until([&] { return third.connections() == 0; }));
}

void test_a_second_ask_is_an_error(void**) {
    Pair pair;
    pair.left.run = [&](const Words&) { return pair.right.ask(kLeft); };
    pair.right.run = [&](const Words&) { return pair.left.ask(kLeft); };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kAsk);
    assert_int_equal(pair.left.calls.size(), 1);
    assert_int_equal(pair.right.calls.size(), 1);
}

void test_moved_after_ask_is_followed_without_asking(void**) {
    Pair pair;
    FakeNode third(&pair.loop);
    pair.left.run = [&](const Words&) { return pair.right.ask(kLeft); };
    pair.right.run = [&](const Words&) { return third.moved(kLeft); };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_true(names(pair.right) == std::vector<std::string>({"ASKING", "EVALSHA"}));
    assert_true(names(third) == std::vector<std::string>({"SCRIPT", "EVALSHA"}));
}

void test_ask_after_moved_is_followed_with_asking(void**) {
    Pair pair;
    FakeNode third(&pair.loop);
    pair.left.run = [&](const Words&) { return pair.right.moved(kLeft); };
    pair.right.run = [&](const Words&) { return third.ask(kLeft); };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    assert_true(names(pair.right) == std::vector<std::string>({"EVALSHA"}));
    assert_true(names(third) == std::vector<std::string>({"SCRIPT", "ASKING", "EVALSHA"}));
}

void test_nodes_that_redirect_to_each_other_end_in_an_error(void**) {
    for (const bool itself : {false, true}) {
        Pair pair;
        FakeNode& other = itself ? pair.left : pair.right;
        pair.left.run = [&](const Words&) { return other.moved(kLeft); };
        pair.right.run = [&](const Words& command) {
            return command[3] == "own" ? echo_back(command) : pair.left.moved(kLeft);
        };
        for (unsigned i = 0; i < 10; i++) {
            const std::size_t before = pair.left.calls.size() + pair.right.calls.size();
            assert_int_equal(pair.cluster.ask(kLeft).error, Error::kMoved);
            assert_int_equal(pair.left.calls.size() + pair.right.calls.size() - before,
                             Client::kMostMoves + 1);
        }
        // Both nodes stay available.
        assert_true(pair.cluster.available(kLeft));
        assert_int_equal(pair.cluster.ask(kRight, "own").error, Error::kNone);
        pair.left.run = nullptr;
        assert_int_equal(pair.cluster.ask(1).error, Error::kNone);
    }
}

void test_an_invalid_redirection_is_an_error_of_its_call(void**) {
    Pair pair;
    const std::string port = std::to_string(pair.right.port());
    const std::string here = " 127.0.0.1:" + port;
    const std::string texts[] = {
        "",
        " ",
        "  ",
        " 100",
        " 100 ",
        " 100 127.0.0.1",
        " 100 127.0.0.1:",
        " 100 127.0.0.1:0",
        " 100 127.0.0.1:65536",
        " 100 127.0.0.1:99999999999999999999",
        " 100 127.0.0.1:-1",
        " 100 127.0.0.1:+" + port,
        " 100 127.0.0.1: " + port,
        " 100 127.0.0.1:" + port + "x",
        " 100 127.0.0.1:" + port + " ",
        " 100 ?:" + port,
        " 100 a b:" + port,
        " 100 [::1]:" + port,
        " 100 a/b:" + port,
        " 100 a\x01:" + port,
        " 100 a\xff:" + port,
        " 100 " + std::string(254, 'a') + ":" + port,
        here,
        " " + here,
        " x" + here,
        " -1" + here,
        " 16384" + here,
        " 4294967396" + here,
        " 99999999999999999999" + here,
        " 100x" + here,
        " 1e2" + here,
        "  100" + here,
        " 0x10" + here,
    };
    for (const char* word : {"-MOVED", "-ASK"}) {
        for (const std::string& text : texts) {
            pair.left.run = [&](const Words&) { return word + text + "\r\n"; };
            const SlotAsked& asked = pair.cluster.ask(kLeft);
            if (asked.error != (word[1] == 'M' ? Error::kMoved : Error::kAsk) || asked.took > 200) {
                fail_msg("%s%s: %s", word, text.c_str(), error_name(asked.error));
            }
        }
    }
    assert_int_equal(pair.right.calls.size(), 0);
    assert_in_range(pair.asked(), 0, 10);  // the map is loaded again, but not for each call
    pair.left.run = nullptr;
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    for (const TestLoop::Line& line : pair.loop.lines) {
        assert_true(
            std::all_of(line.text.begin(), line.text.end(), [](char c) { return c >= ' ' && c <= '~'; }));
    }
}

// The form of Redis 7 for an unknown address.
void test_a_redirection_without_a_host_is_to_the_same_host(void**) {
    for (const char* word : {"-MOVED 100 :", "-ASK 100 :"}) {
        Pair pair;
        pair.left.run = [&](const Words&) { return word + std::to_string(pair.right.port()) + "\r\n"; };
        assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
        assert_int_equal(pair.right.calls.size(), 1);
    }
}

void test_a_redirection_to_an_unreachable_node_is_an_error_of_its_call(void**) {
    for (const bool name : {false, true}) {
        Pair pair;
        const std::string target = name ? std::string(64, 'x') + ":6379" : "127.0.0.1:1";
        pair.left.run = [&](const Words&) { return "-MOVED 100 " + target + "\r\n"; };
        const SlotAsked& lost = pair.cluster.send(kLeft);
        pair.cluster.send(kRight);
        assert_true(pair.cluster.await());
        assert_int_equal(lost.error, name ? Error::kUnresolved : Error::kRefused);
        assert_int_equal(pair.cluster.ask(kRight).error, Error::kNone);
        // The map still has the right node.
        pair.left.run = nullptr;
        assert_true(pair.cluster.await_available(kLeft, true, 400));
        assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    }
}

void test_a_redirection_to_a_node_whose_breaker_is_open_does_not_wait(void**) {
    for (const bool asks : {false, true}) {
        Pair pair(400);
        pair.right.answers = false;
        assert_int_equal(pair.cluster.ask(kRight).error, Error::kTimedOut);
        assert_false(pair.cluster.available(kRight));
        pair.right.calls.clear();
        pair.left.run = [&](const Words&) { return asks ? pair.right.ask(kLeft) : pair.right.moved(kLeft); };
        const SlotAsked& asked = pair.cluster.ask(kLeft);
        assert_int_equal(asked.error, asks ? Error::kAsk : Error::kMoved);
        assert_in_range(asked.took, 0, 150);
        assert_int_equal(pair.right.calls.size(), 0);
    }
}

void test_after_ask_a_missing_script_is_loaded_and_asking_sent_again(void**) {
    Pair pair;
    bool loaded = false;
    pair.left.run = [&](const Words&) { return pair.right.ask(kLeft); };
    pair.right.run = [&](const Words& command) {
        const bool found = loaded;
        loaded = true;
        return found ? echo_back(command) : "-NOSCRIPT No matching script.\r\n";
    };
    const SlotAsked& asked = pair.cluster.ask(kLeft, "a");
    assert_int_equal(asked.error, Error::kNone);
    assert_string_equal(asked.reply.c_str(), "a");
    assert_true(names(pair.right) ==
                std::vector<std::string>({"ASKING", "EVALSHA", "SCRIPT", "ASKING", "EVALSHA"}));
}

void test_a_script_may_be_missing_at_each_node_once(void**) {
    Pair pair;
    bool left = false;
    bool right = false;
    pair.left.run = [&](const Words&) {
        const bool found = left;
        left = true;
        return found ? pair.right.moved(kLeft) : "-NOSCRIPT No matching script.\r\n";
    };
    pair.right.run = [&](const Words& command) {
        const bool found = right;
        right = true;
        return found ? echo_back(command) : "-NOSCRIPT No matching script.\r\n";
    };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNone);
    pair.right.run = [](const Words&) { return "-NOSCRIPT No matching script.\r\n"; };
    assert_int_equal(pair.cluster.ask(kLeft).error, Error::kNoScript);
}

// The node already has a call with a later deadline.
void test_a_moved_call_keeps_its_deadline(void**) {
    Pair pair(400);
    pair.left.run = pair.right.run = [](const Words&) { return ""; };
    const SlotAsked& asked = pair.cluster.send(kLeft);
    pair.loop.run_for(150);
    const SlotAsked& own = pair.cluster.send(kRight);
    pair.loop.run_for(100);
    pair.left.say(pair.right.moved(kLeft));
    assert_true(pair.loop.run_until([&] { return pair.right.calls.size() == 2; }));
    assert_true(pair.loop.run_until([&] { return asked.answers == 1; }));
    assert_int_equal(asked.error, Error::kTimedOut);
    assert_in_range(asked.took, 390, 480);
    // That is not a failure of the node, and does not affect its other call.
    assert_true(pair.cluster.available(kRight));
    assert_int_equal(own.answers, 0);
    pair.right.say(bulk("own") + bulk("late"));
    assert_true(pair.cluster.await());
    assert_int_equal(own.error, Error::kNone);
    assert_string_equal(own.reply.c_str(), "own");
    pair.right.run = nullptr;
    assert_string_equal(pair.cluster.ask(kRight, "next").reply.c_str(), "next");
}

void test_a_call_that_follows_ask_keeps_its_deadline(void**) {
    Pair pair(300);
    pair.left.run = pair.right.run = [](const Words&) { return ""; };
    const SlotAsked& asked = pair.cluster.send(kLeft);
    pair.loop.run_for(200);
    pair.left.say(pair.right.ask(kLeft));
    assert_true(pair.cluster.await());
    assert_int_equal(pair.right.calls.size(), 1);
    assert_int_equal(asked.error, Error::kTimedOut);
    assert_in_range(asked.took, 290, 380);
    assert_true(pair.cluster.available(kRight));
}

void test_a_call_that_moves_often_keeps_its_deadline(void**) {
    Pair pair(300);
    pair.left.run = pair.right.run = [](const Words&) { return ""; };
    const SlotAsked& asked = pair.cluster.send(kLeft);
    for (unsigned i = 0; i < 10 && asked.answers == 0; i++) {
        pair.loop.run_for(80);
        (i % 2 == 0 ? pair.left : pair.right).say((i % 2 == 0 ? pair.right : pair.left).moved(kLeft));
    }
    assert_true(pair.cluster.await());
    assert_int_equal(asked.error, Error::kTimedOut);
    assert_in_range(asked.took, 290, 380);
}

void test_a_node_that_hangs_is_detected_by_its_own_calls(void**) {
    Pair pair(100);
    pair.right.answers = false;
    pair.left.run = [&](const Words&) { return pair.right.ask(kLeft); };
    for (unsigned i = 0; i < 4; i++) {
        pair.cluster.send(kLeft);
    }
    pair.loop.run_for(30);
    const SlotAsked& own = pair.cluster.send(kRight);
    assert_true(pair.cluster.await());
    assert_int_equal(own.error, Error::kTimedOut);
    assert_false(pair.cluster.available(kRight));
    assert_true(pair.cluster.available(kLeft));
}

void test_a_late_redirection_is_ignored(void**) {
    Pair pair(60);
    pair.left.run = [](const Words&) { return ""; };
    const SlotAsked& asked = pair.cluster.ask(kLeft);
    assert_int_equal(asked.error, Error::kTimedOut);
    pair.loop.run_for(150);
    const unsigned maps = pair.asked();
    pair.left.say(pair.right.moved(kLeft));
    pair.loop.run_for(20);
    assert_int_equal(pair.right.calls.size(), 0);
    assert_in_range(pair.asked(), maps, maps + 1);
}

void test_tryagain_is_an_error_of_its_call_alone(void**) {
    Pair pair;
    pair.left.run = [](const Words&) {
        return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
    };
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(pair.cluster.ask(kLeft).error, Error::kTryAgain);
        assert_true(pair.cluster.available(kLeft));
    }
    assert_int_equal(pair.right.calls.size(), 0);
    assert_int_equal(errors(pair.cluster, kLeft, Error::kTryAgain), 20);
}

void test_a_cluster_that_is_down_opens_the_breaker(void**) {
    Pair pair;
    pair.left.handshake = [](const Words& command) {
        return command[0] == "SET" ? "-CLUSTERDOWN The cluster is down\r\n" : FakeServer::healthy(command);
    };
    pair.left.run = [](const Words&) { return "-CLUSTERDOWN The cluster is down\r\n"; };
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(pair.cluster.ask(kLeft).error, Error::kClusterDown);
    }
    assert_false(pair.cluster.available(kLeft));
    assert_int_equal(pair.cluster.ask(kRight).error, Error::kNone);
    assert_true(pair.loop.run_until([&] { return pair.asked() >= 1; }));
    pair.loop.run_for(300);
    assert_false(pair.cluster.available(kLeft));
    pair.left.run = nullptr;
    pair.left.handshake = FakeServer::healthy;
    assert_true(pair.cluster.await_available(kLeft, true, 1100));
}

void test_moved_is_not_a_failure_of_the_node(void**) {
    Pair pair;
    for (unsigned i = 0; i < 20; i++) {
        pair.left.run = [&](const Words&) { return i % 4 == 3 ? pair.right.moved(kLeft) : "-OOM no\r\n"; };
        pair.loop.run_until([&] { return pair.cluster.available(kLeft); });
        pair.cluster.ask(1);
        pair.share(8192);
        pair.loop.run_for(5);
    }
    assert_int_equal(errors(pair.cluster, 1, Error::kOutOfMemory), 15);
    assert_int_equal(errors(pair.cluster, 1, Error::kMoved), 5);
    assert_int_equal(pair.cluster->client_of(1)->counts().opened, 0);
}

// A client without a cluster does not follow redirections: they are failures.
void test_a_redirection_by_a_single_server_is_an_error(void**) {
    for (const char* word : {"MOVED", "ASK"}) {
        TestLoop loop;
        FakeNode other(&loop);
        FakeServer server(&loop);
        server.answer = [&](const Words&) {
            return "-" + std::string(word) + " 1 " + other.target() + "\r\n";
        };
        Calls calls(settings_for(server.path()), &loop);
        for (unsigned i = 0; i < 5; i++) {
            assert_true(calls->available());
            assert_int_equal(calls.ask_echo("a").error, word[0] == 'M' ? Error::kMoved : Error::kAsk);
        }
        assert_false(calls->available());
        assert_int_equal(other.accepted, 0);
        assert_false(calls->sharded());
        assert_ptr_equal(calls->client_of(7), calls.operator->());
    }
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_moved_is_followed_and_remembered),
        cmocka_unit_test(test_after_moved_the_map_is_loaded),
        cmocka_unit_test(test_the_map_is_loaded_every_100_ms_at_most_however_many_calls_move),
        cmocka_unit_test(test_ask_is_followed_once_with_asking_and_not_remembered),
        cmocka_unit_test(test_each_of_many_calls_has_its_own_asking),
        cmocka_unit_test(test_ask_may_point_to_a_node_without_slots),
        cmocka_unit_test(test_a_second_ask_is_an_error),
        cmocka_unit_test(test_moved_after_ask_is_followed_without_asking),
        cmocka_unit_test(test_ask_after_moved_is_followed_with_asking),
        cmocka_unit_test(test_nodes_that_redirect_to_each_other_end_in_an_error),
        cmocka_unit_test(test_an_invalid_redirection_is_an_error_of_its_call),
        cmocka_unit_test(test_a_redirection_without_a_host_is_to_the_same_host),
        cmocka_unit_test(test_a_redirection_to_an_unreachable_node_is_an_error_of_its_call),
        cmocka_unit_test(test_a_redirection_to_a_node_whose_breaker_is_open_does_not_wait),
        cmocka_unit_test(test_after_ask_a_missing_script_is_loaded_and_asking_sent_again),
        cmocka_unit_test(test_a_script_may_be_missing_at_each_node_once),
        cmocka_unit_test(test_a_moved_call_keeps_its_deadline),
        cmocka_unit_test(test_a_call_that_follows_ask_keeps_its_deadline),
        cmocka_unit_test(test_a_call_that_moves_often_keeps_its_deadline),
        cmocka_unit_test(test_a_node_that_hangs_is_detected_by_its_own_calls),
        cmocka_unit_test(test_a_late_redirection_is_ignored),
        cmocka_unit_test(test_tryagain_is_an_error_of_its_call_alone),
        cmocka_unit_test(test_a_cluster_that_is_down_opens_the_breaker),
        cmocka_unit_test(test_moved_is_not_a_failure_of_the_node),
        cmocka_unit_test(test_a_redirection_by_a_single_server_is_an_error),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
