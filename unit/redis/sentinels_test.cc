// A client that asks Sentinels for its primary follows it, whatever they say.
#include "redis/sentinels.h"

#include "calls.h"
#include "real_server.h"

namespace rate_limit::redis {
namespace {

// A Sentinel as a test tells it to be.
class FakeSentinel : public FakeServer {
  public:
    explicit FakeSentinel(TestLoop* loop, std::uint16_t port = 0) : FakeServer(loop), primary(port) {
        answer = [this](const Words& command) {
            if (command[0] == "SENTINEL") {
                asked.push_back(command);
                return reply.empty() ? "*2\r\n" + bulk(host) + bulk(std::to_string(primary)) : reply;
            }
            return command[0] == "SUBSCRIBE" ? "*3\r\n" + bulk("subscribe") + bulk(command[1]) + ":1\r\n"
                                             : "";
        };
    }

    void switch_to(std::uint16_t port, const std::string& name = "limits") {
        primary = port;
        say("*3\r\n" + bulk("message") + bulk("+switch-master") +
            bulk(name + " 127.0.0.1 1 127.0.0.1 " + std::to_string(port)));
    }

    std::string host = "127.0.0.1";
    std::uint16_t primary;
    std::string reply;  // instead of host and primary
    std::vector<Words> asked;
};

Settings sentinel_settings() {
    Settings settings;
    settings.name = "fleet";
    settings.address.path = "unix";
    settings.connect_timeout = 100;
    return settings;
}

std::vector<Seed> seeds_of(std::initializer_list<const FakeSentinel*> sentinels) {
    std::vector<Seed> seeds;
    for (const FakeSentinel* sentinel : sentinels) {
        seeds.push_back({"sentinel", 26379, {sentinel->path()}});
    }
    return seeds;
}

struct Watcher : Locator::Owner {
    void on_moved() override { moves++; }
    unsigned moves = 0;
};

// Sentinels without a client.
struct Found {
    Found(TestLoop* loop, const std::vector<Seed>& seeds)
        : settings(sentinel_settings()), sentinels(Sentinels::make(settings, seeds, "limits", loop)) {
        assert_non_null(sentinels.get());
        sentinels->set_owner(&watcher);
    }
    Settings settings;
    Watcher watcher;
    std::unique_ptr<Sentinels> sentinels;
};

class TcpServer : public RealServer {
  public:
    explicit TcpServer(std::uint16_t port) : RealServer({"--port", std::to_string(port)}), port(port) {}
    const std::uint16_t port;
};

Settings primary_settings() {
    Settings settings = settings_for("", 2000);
    settings.greet_by_probe = true;
    return settings;
}

struct Limits {
    Limits(TestLoop* loop, const std::vector<Seed>& seeds)
        : settings(sentinel_settings()),
          calls(primary_settings(), loop,
                std::unique_ptr<Locator>(Sentinels::make(settings, seeds, "limits", loop))) {}
    Settings settings;
    Calls calls;
};

void test_the_primary_is_asked_for_once_and_then_listened_for(void**) {
    TestLoop loop;
    FakeSentinel sentinel(&loop, 7001);
    Found found(&loop, seeds_of({&sentinel}));
    assert_string_equal(found.sentinels->place().address.c_str(), "");
    assert_null(found.sentinels->place().trouble);
    assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
    assert_string_equal(found.sentinels->place().address.c_str(), "127.0.0.1");
    assert_int_equal(found.sentinels->place().port, 7001);
    assert_true(sentinel.asked[0] == Words({"SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits"}));
    assert_true(loop.run_until([&] { return sentinel.count("SUBSCRIBE") == 1; }));

    sentinel.switch_to(7002, "others");
    sentinel.switch_to(7002);
    assert_true(loop.run_until([&] { return found.watcher.moves == 2; }));
    assert_int_equal(found.sentinels->place().port, 7002);
    assert_int_equal(sentinel.asked.size(), 1);
    assert_int_equal(loop.said("the primary is now 127.0.0.1:7002"), 1);

    sentinel.switch_to(7002);
    loop.run_for(30);
    assert_int_equal(found.watcher.moves, 2);
}

void test_what_is_no_message_changes_nothing(void**) {
    TestLoop loop;
    FakeSentinel sentinel(&loop, 7001);
    Found found(&loop, seeds_of({&sentinel}));
    found.sentinels->place();
    assert_true(loop.run_until([&] { return sentinel.count("SUBSCRIBE") == 1; }));
    const auto message = [](const std::string& text) {
        return "*3\r\n" + bulk("message") + bulk("+switch-master") + bulk(text);
    };
    for (const char* text : {"", "limits", "limits 127.0.0.1", "limits 127.0.0.1 1 127.0.0.1",
                             "limits 127.0.0.1 1 127.0.0.1 0", "limits 127.0.0.1 1 127.0.0.1 65536",
                             "limits 127.0.0.1 1 127.0.0.1 x", "limits 127.0.0.1 1  7002", "limit s 1 2 3"}) {
        sentinel.say(message(text));
    }
    loop.run_for(30);
    assert_int_equal(found.watcher.moves, 1);
    assert_int_equal(found.sentinels->place().port, 7001);
}

void test_a_malformed_message_makes_the_client_ask_again(void**) {
    const std::string channel = bulk("+switch-master");
    for (const std::string& text : std::vector<std::string>{
             "*3\r\n:1\r\n:2\r\n:3\r\n", "*3\r\n$-1\r\n$-1\r\n$-1\r\n", "*3\r\n*0\r\n*0\r\n*0\r\n",
             "*3\r\n" + bulk("subscribe") + bulk("another") + ":1\r\n",
             "*3\r\n" + bulk("unsubscribe") + channel + bulk("x"),
             "*3\r\n" + bulk("punsubscribe") + channel + bulk("x"),
             "*4\r\n" + bulk("subscribe") + ":1\r\n:1\r\n:1\r\n",
             ">3\r\n" + bulk("subscribe") + bulk("another") + ":1\r\n", ">1\r\n" + bulk("message")}) {
        TestLoop loop;
        FakeSentinel sentinel(&loop, 7001);
        Found found(&loop, seeds_of({&sentinel}));
        found.sentinels->place();
        assert_true(loop.run_until([&] { return sentinel.count("SUBSCRIBE") == 1; }));
        sentinel.say(text);
        sentinel.primary = 7002;
        assert_true(loop.run_until([&] { return found.sentinels->place().port == 7002; }));
        assert_int_equal(loop.said("the server sent a reply that no command waits for"), 1);
    }
}

void test_a_sentinel_that_is_of_no_use_is_passed_over(void**) {
    for (const char* reply :
         {"*-1\r\n", "-ERR no\r\n", "-NOAUTH\r\n", ":1\r\n", "*1\r\n$1\r\na\r\n", "$1\r\na\r\n"}) {
        TestLoop loop;
        FakeSentinel bad(&loop, 7001);
        FakeSentinel good(&loop, 7002);
        FakeSentinel mute(&loop, 7003);
        FakeSentinel absent(&loop, 7004);
        bad.reply = reply;
        mute.answers = false;
        absent.refuse();
        Found found(&loop, seeds_of({&bad, &absent, &mute, &good}));
        found.sentinels->place();
        assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
        assert_int_equal(found.sentinels->place().port, 7002);
    }
}

void test_sentinels_that_all_fail_are_asked_again_and_again_but_not_all_the_time(void**) {
    TestLoop loop;
    FakeSentinel first(&loop, 7001);
    FakeSentinel second(&loop, 7001);
    first.reply = second.reply = "*-1\r\n";
    Found found(&loop, seeds_of({&first, &second}));
    for (unsigned i = 0; i < 100; i++) {
        found.sentinels->place();
        found.sentinels->doubt();
        loop.run_for(5);
    }
    assert_in_range(first.asked.size() + second.asked.size(), 4, 24);
    assert_int_equal(loop.said("it does not know the primary"), 1);
    first.reply.clear();
    assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
}

void test_doubt_asks_another_sentinel(void**) {
    TestLoop loop;
    FakeSentinel first(&loop, 7001);
    FakeSentinel second(&loop, 7001);
    Found found(&loop, seeds_of({&first, &second}));
    found.sentinels->place();
    assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
    FakeSentinel& other = first.asked.empty() ? first : second;
    other.primary = 7002;
    found.sentinels->doubt();
    found.sentinels->doubt();
    assert_true(loop.run_until([&] { return found.watcher.moves == 2; }));
    assert_int_equal(found.sentinels->place().port, 7002);
    assert_int_equal(first.asked.size() + second.asked.size(), 2);
}

void test_a_lost_sentinel_is_replaced_unasked(void**) {
    TestLoop loop;
    FakeSentinel first(&loop, 7001);
    FakeSentinel second(&loop, 7001);
    Found found(&loop, seeds_of({&first, &second}));
    found.sentinels->place();
    assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
    FakeSentinel& lost = first.asked.empty() ? second : first;
    FakeSentinel& other = first.asked.empty() ? first : second;
    lost.refuse();
    lost.hang_up();
    assert_true(loop.run_until([&] { return other.count("SUBSCRIBE") == 1; }));
    other.switch_to(7002);
    assert_true(loop.run_until([&] { return found.watcher.moves == 2; }));
}

void test_a_primary_may_have_a_name(void**) {
    TestLoop loop;
    FakeSentinel sentinel(&loop, 7001);
    sentinel.host = "localhost";
    loop.real = true;
    Found found(&loop, seeds_of({&sentinel}));
    found.sentinels->place();
    assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
    assert_true(is_numeric(found.sentinels->place().address));
    assert_int_equal(found.sentinels->place().port, 7001);
}

void test_the_first_call_waits_for_the_primary_to_be_found(void**) {
    TestLoop loop;
    const TcpServer server(free_port());
    FakeSentinel sentinel(&loop, server.port);
    Limits limits(&loop, seeds_of({&sentinel}));
    assert_int_equal(limits.calls.ask_echo("a").error, Error::kNone);
    assert_int_equal(limits.calls.ask_echo("b").error, Error::kNone);
    assert_int_equal(sentinel.asked.size(), 1);
}

void test_calls_go_to_the_new_primary_as_soon_as_it_is_named(void**) {
    TestLoop loop;
    const TcpServer old(free_port());
    const TcpServer next(free_port());
    FakeSentinel sentinel(&loop, old.port);
    Limits limits(&loop, seeds_of({&sentinel}));
    assert_int_equal(limits.calls.ask_echo("a").error, Error::kNone);
    sentinel.switch_to(next.port);
    assert_true(loop.run_until([&] { return loop.said("the primary is now") == 1; }));
    assert_int_equal(limits.calls.ask_echo("b").error, Error::kNone);
    assert_true(next.command({"INFO", "commandstats"}).find("cmdstat_evalsha") != std::string::npos);
}

// A server that has become a replica says READONLY to a write, and to the greeting of the next connection.
void test_a_primary_that_became_a_replica_is_left(void**) {
    TestLoop loop;
    const TcpServer old(free_port());
    const TcpServer next(free_port());
    FakeSentinel sentinel(&loop, old.port);
    Limits limits(&loop, seeds_of({&sentinel}));
    assert_int_equal(limits.calls.ask_echo("a").error, Error::kNone);
    old.command({"REPLICAOF", "127.0.0.1", std::to_string(next.port)});
    sentinel.primary = next.port;
    assert_int_equal(limits.calls.ask({"SET", "k", "v"}).error, Error::kReadOnly);
    assert_true(loop.run_until([&] { return loop.said("the primary is now") == 1; }));
    assert_true(limits.calls.await_open(false));
    assert_int_equal(limits.calls.ask_echo("b").error, Error::kNone);
    assert_true(next.command({"INFO", "commandstats"}).find("cmdstat_evalsha") != std::string::npos);
}

void test_a_sentinel_that_names_a_replica_is_not_believed(void**) {
    TestLoop loop;
    const TcpServer primary(free_port());
    const TcpServer replica(free_port());
    replica.command({"REPLICAOF", "127.0.0.1", std::to_string(primary.port)});
    FakeSentinel first(&loop, replica.port);
    FakeSentinel second(&loop, replica.port);
    Limits limits(&loop, seeds_of({&first, &second}));
    assert_int_equal(limits.calls.ask_echo("a").error, Error::kReadOnly);
    first.primary = second.primary = primary.port;
    assert_true(limits.calls.await_open(false));
    assert_int_equal(limits.calls.ask_echo("b").error, Error::kNone);
}

void test_a_killed_primary_is_left_when_another_is_named(void**) {
    TestLoop loop;
    TcpServer old(free_port());
    const TcpServer next(free_port());
    FakeSentinel sentinel(&loop, old.port);
    Limits limits(&loop, seeds_of({&sentinel}));
    assert_int_equal(limits.calls.ask_echo("a").error, Error::kNone);
    old.stop();
    // The connection is lost first, and then none can be made.
    while (limits.calls->available()) {
        assert_int_not_equal(limits.calls.ask_echo("b").error, Error::kNone);
    }
    sentinel.primary = next.port;
    assert_true(limits.calls.await_open(false));
    assert_int_equal(limits.calls.ask_echo("c").error, Error::kNone);
}

void test_without_memory_there_are_none(void**) {
    TestLoop loop;
    FakeSentinel sentinel(&loop, 7001);
    const Settings settings = sentinel_settings();
    loop.more_alarms = 0;
    assert_null(Sentinels::make(settings, seeds_of({&sentinel}), "limits", &loop));
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_primary_is_asked_for_once_and_then_listened_for),
        cmocka_unit_test(test_what_is_no_message_changes_nothing),
        cmocka_unit_test(test_a_malformed_message_makes_the_client_ask_again),
        cmocka_unit_test(test_a_sentinel_that_is_of_no_use_is_passed_over),
        cmocka_unit_test(test_sentinels_that_all_fail_are_asked_again_and_again_but_not_all_the_time),
        cmocka_unit_test(test_doubt_asks_another_sentinel),
        cmocka_unit_test(test_a_lost_sentinel_is_replaced_unasked),
        cmocka_unit_test(test_a_primary_may_have_a_name),
        cmocka_unit_test(test_the_first_call_waits_for_the_primary_to_be_found),
        cmocka_unit_test(test_calls_go_to_the_new_primary_as_soon_as_it_is_named),
        cmocka_unit_test(test_a_primary_that_became_a_replica_is_left),
        cmocka_unit_test(test_a_sentinel_that_names_a_replica_is_not_believed),
        cmocka_unit_test(test_a_killed_primary_is_left_when_another_is_named),
        cmocka_unit_test(test_without_memory_there_are_none),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
