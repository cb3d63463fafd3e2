// Sentinels: finding the primary, following its changes, and invalid replies.
#include "cluster/sentinels.h"

#include <dlfcn.h>
#include <netdb.h>

#include <iterator>
#include <random>
#include <utility>

#include "redis/calls.h"
#include "redis/real_server.h"

// Replaces getaddrinfo of the system: made-up names are not looked up.
extern "C" int getaddrinfo(const char* host, const char* router, const addrinfo* hints, addrinfo** found) {
    using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
    static const auto system = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
    addrinfo numeric = hints != nullptr ? *hints : addrinfo();
    numeric.ai_flags |= std::string_view(host) == "localhost" ? 0 : AI_NUMERICHOST;
    return system(host, router, &numeric, found);
}

namespace rate_limit::redis {
namespace {

// A fake Sentinel whose replies a test sets.
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

// A text with some bytes changed, removed, repeated or inserted: most often bytes
// with a meaning in RESP.
std::string mutated(std::string text, std::mt19937* random) {
    const std::string bytes = std::string("*$:+->,#_%~=(") + "0123456789\r\n" + std::string("\0\xff", 2);
    const std::string whole[] = {":1\r\n", "$-1\r\n", "*-1\r\n",       "*0\r\n", "$11\r\nunsubscribe\r\n",
                                 "*3\r\n", ">3\r\n",  "$3\r\nabc\r\n", "_\r\n",  "-ERR x\r\n"};
    for (unsigned changes = (*random)() % 4; changes != 0 && !text.empty(); changes--) {
        const std::size_t at = (*random)() % text.size();
        switch ((*random)() % 6) {
            case 0:
                text[at] = bytes[(*random)() % bytes.size()];
                break;
            case 1:
                text.erase(at, 1 + (*random)() % 8);
                break;
            case 2:
                text.insert(at, text.substr(at, 1 + (*random)() % 16));
                break;
            case 3:
                text.insert(at, whole[(*random)() % std::size(whole)]);
                break;
            default: {
                // An element in place of another.
                const std::size_t start = text.find_first_of("*$:", at);
                const std::size_t end = text.find_first_of("*$:", start + 1);
                if (start != std::string::npos && end != std::string::npos) {
                    text.replace(start, end - start, whole[(*random)() % std::size(whole)]);
                }
                break;
            }
        }
    }
    return text;
}

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

struct Watcher : Endpoint::Owner {
    void on_moved() override { moves++; }
    unsigned moves = 0;
};

// Sentinels without a client.
struct Found {
    Found(TestLoop* loop, const std::vector<Seed>& seeds)
        : settings(sentinel_settings()), sentinels(new Sentinels(settings, seeds, "limits", loop)) {
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
    settings.probe_in_handshake = true;
    return settings;
}

struct PrimaryCalls {
    PrimaryCalls(TestLoop* loop, const std::vector<Seed>& seeds)
        : settings(sentinel_settings()),
          calls(primary_settings(), loop,
                std::unique_ptr<Endpoint>(new Sentinels(settings, seeds, "limits", loop))) {}
    Settings settings;
    Calls calls;
};

void test_the_primary_is_queried_once_and_then_subscribed_to(void**) {
    TestLoop loop;
    FakeSentinel sentinel(&loop, 7001);
    Found found(&loop, seeds_of({&sentinel}));
    assert_string_equal(found.sentinels->target().address.c_str(), "");
    assert_null(found.sentinels->target().trouble);
    assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
    assert_string_equal(found.sentinels->target().address.c_str(), "127.0.0.1");
    assert_int_equal(found.sentinels->target().port, 7001);
    assert_true(sentinel.asked[0] == Words({"SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits"}));
    assert_true(loop.run_until([&] { return sentinel.count("SUBSCRIBE") == 1; }));

    sentinel.switch_to(7002, "others");
    sentinel.switch_to(7002);
    assert_true(loop.run_until([&] { return found.watcher.moves == 2; }));
    assert_int_equal(found.sentinels->target().port, 7002);
    assert_int_equal(sentinel.asked.size(), 1);
    assert_int_equal(loop.said("the primary is now 127.0.0.1:7002"), 1);

    sentinel.switch_to(7002);
    loop.run_for(30);
    assert_int_equal(found.watcher.moves, 2);
}

void test_other_replies_than_messages_are_ignored(void**) {
    TestLoop loop;
    FakeSentinel sentinel(&loop, 7001);
    Found found(&loop, seeds_of({&sentinel}));
    found.sentinels->target();
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
    assert_int_equal(found.sentinels->target().port, 7001);
}

void test_after_a_malformed_message_the_primary_is_queried_again(void**) {
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
        found.sentinels->target();
        assert_true(loop.run_until([&] { return sentinel.count("SUBSCRIBE") == 1; }));
        sentinel.say(text);
        sentinel.primary = 7002;
        assert_true(loop.run_until([&] { return found.sentinels->target().port == 7002; }));
        assert_int_equal(loop.said("the server sent a reply that no command waits for"), 1);
    }
}

// A session of a real Sentinel, which each round mutates.
void test_mutations_of_a_session_do_no_harm(void**) {
    const std::string message =
        "*3\r\n" + bulk("message") + bulk("+switch-master") + bulk("limits 127.0.0.1 7001 127.0.0.1 7002");
    unsigned listened = 0;
    for (unsigned seed = 0; seed < 3000; seed++) {
        std::mt19937 random(seed);
        TestLoop loop;
        FakeSentinel sentinel(&loop, 7001);
        const FakeServer::Answer usual = sentinel.answer;
        const unsigned stage =
            random() % 3;  // what is mutated: all, the part after SUBSCRIBE, or only messages
        sentinel.answer = [&](const Words& command) {
            const std::string text = usual(command);
            return stage == 2 || (stage == 1 && command[0] != "SUBSCRIBE") ? text : mutated(text, &random);
        };
        Found found(&loop, seeds_of({&sentinel}));
        found.sentinels->target();
        loop.run_for(10);
        if (sentinel.count("SUBSCRIBE") != 0 && sentinel.connections() != 0) {
            sentinel.say(mutated(message, &random));
            sentinel.say(mutated(message, &random));
            loop.run_for(2);
            listened++;
        }
        sentinel.answer = usual;
        sentinel.hang_up();
        sentinel.primary = 7003;
        // A lookup takes real time.
        assert_true(loop.run_until([&] { return found.sentinels->target().port == 7003; }, 600'000));
    }
    assert_in_range(listened, 1000, 3000);
}

void test_a_sentinel_that_answers_and_closes_is_queried_at_intervals(void**) {
    TestLoop loop;
    FakeSentinel first(&loop, 7001);
    FakeSentinel second(&loop, 7001);
    for (FakeSentinel* sentinel : {&first, &second}) {
        const FakeServer::Answer usual = sentinel->answer;
        sentinel->answer = [usual](const Words& command) {
            return command[0] == "SUBSCRIBE" ? "*3\r\n:1\r\n:2\r\n:3\r\n" : usual(command);
        };
    }
    Found found(&loop, seeds_of({&first, &second}));
    found.sentinels->target();
    loop.run_for(2000);
    assert_in_range(first.asked.size() + second.asked.size(), 10, 22);
}

void test_changes_of_the_primary_are_limited_and_so_is_their_log(void**) {
    TestLoop loop;
    FakeSentinel sentinel(&loop, 7001);
    Found found(&loop, seeds_of({&sentinel}));
    found.sentinels->target();
    assert_true(loop.run_until([&] { return sentinel.count("SUBSCRIBE") == 1; }));
    const Milliseconds began = loop.now();
    for (unsigned i = 0; i < 3000; i++) {
        sentinel.switch_to(static_cast<std::uint16_t>(10'000 + i));
        if (i % 10 == 0) {
            loop.run_for(1);
        }
    }
    assert_true(loop.run_until([&] { return found.sentinels->target().port == 12'999; }));
    assert_in_range(found.watcher.moves, 2, 3 + (loop.now() - began) / 100);
    for (unsigned i = 0; i < 150; i++) {
        sentinel.switch_to(static_cast<std::uint16_t>(20'000 + i));
        loop.run_for(101);
    }
    // Twenty lines in ten seconds. The next line has the number of those suppressed.
    assert_in_range(loop.said("the primary is now 127.0.0.1:"), 20, 100);
    loop.jump(10'000);
    sentinel.switch_to(30'000);
    assert_true(loop.run_until(
        [&] { return loop.said("the primary is now 127.0.0.1:30000; requests are decided there (") == 1; }));
}

void test_names_are_looked_up_one_at_a_time(void**) {
    TestLoop loop;
    loop.real = true;
    FakeSentinel sentinel(&loop, 7001);
    Found found(&loop, seeds_of({&sentinel}));
    found.sentinels->target();
    assert_true(loop.run_until([&] { return sentinel.count("SUBSCRIBE") == 1; }));
    for (unsigned i = 0; i < 1000; i++) {
        sentinel.say("*3\r\n" + bulk("message") + bulk("+switch-master") +
                     bulk("limits 127.0.0.1 1 " + std::string(64, 'x') + std::to_string(i) + " 1"));
    }
    sentinel.host = "127.1";
    sentinel.primary = 7002;
    sentinel.say("*3\r\n" + bulk("message") + bulk("+switch-master") + bulk("limits 127.0.0.1 1 127.1 7002"));
    assert_true(loop.run_until([&] { return found.sentinels->target().port == 7002; }));
    assert_string_equal(found.sentinels->target().address.c_str(), "127.0.0.1");
    assert_string_equal(found.sentinels->target().name.c_str(), "127.1");
    // An invalid host is not looked up.
    sentinel.say("*3\r\n" + bulk("message") + bulk("+switch-master") + bulk("limits 127.0.0.1 1 a/b 7003"));
    assert_true(
        loop.run_until([&] { return loop.said("the Sentinel returned no address of the primary") == 1; }));
    assert_int_equal(found.sentinels->target().port, 7002);
}

void test_a_sentinel_that_fails_is_skipped(void**) {
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
        found.sentinels->target();
        assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
        assert_int_equal(found.sentinels->target().port, 7002);
    }
}

void test_while_all_sentinels_fail_they_are_queried_at_intervals(void**) {
    TestLoop loop;
    FakeSentinel first(&loop, 7001);
    FakeSentinel second(&loop, 7001);
    first.reply = second.reply = "*-1\r\n";
    Found found(&loop, seeds_of({&first, &second}));
    for (unsigned i = 0; i < 100; i++) {
        found.sentinels->target();
        found.sentinels->suspect();
        loop.run_for(5);
    }
    assert_in_range(first.asked.size() + second.asked.size(), 4, 24);
    assert_int_equal(loop.said("the Sentinel does not know the primary"), 1);
    first.reply.clear();
    assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
}

// Two Sentinels, one of which has named the primary.
struct TwoSentinels {
    TwoSentinels() : first(&loop, 7001), second(&loop, 7001), found(&loop, seeds_of({&first, &second})) {
        found.sentinels->target();
        await_moves(1);
        if (first.asked.empty()) {
            std::swap(asked, other);
        }
    }

    void await_moves(unsigned moves) {
        assert_true(loop.run_until([&] { return found.watcher.moves == moves; }));
    }

    TestLoop loop;
    FakeSentinel first;
    FakeSentinel second;
    FakeSentinel* asked = &first;
    FakeSentinel* other = &second;
    Found found;
};

void test_suspect_queries_another_sentinel(void**) {
    TwoSentinels two;
    two.other->primary = 7002;
    two.found.sentinels->suspect();
    two.found.sentinels->suspect();
    two.await_moves(2);
    assert_int_equal(two.found.sentinels->target().port, 7002);
    assert_int_equal(two.first.asked.size() + two.second.asked.size(), 2);
}

void test_a_lost_sentinel_is_replaced_at_once(void**) {
    TwoSentinels two;
    two.asked->refuse();
    two.asked->hang_up();
    assert_true(two.loop.run_until([&] { return two.other->count("SUBSCRIBE") == 1; }));
    two.other->switch_to(7002);
    two.await_moves(2);
}

void test_a_primary_may_have_a_name(void**) {
    TestLoop loop;
    FakeSentinel sentinel(&loop, 7001);
    sentinel.host = "localhost";
    loop.real = true;
    Found found(&loop, seeds_of({&sentinel}));
    found.sentinels->target();
    assert_true(loop.run_until([&] { return found.watcher.moves == 1; }));
    assert_true(is_numeric(found.sentinels->target().address));
    assert_int_equal(found.sentinels->target().port, 7001);
}

void test_the_first_call_waits_for_the_primary(void**) {
    TestLoop loop;
    const TcpServer server(free_port());
    FakeSentinel sentinel(&loop, server.port);
    PrimaryCalls through(&loop, seeds_of({&sentinel}));
    assert_int_equal(through.calls.ask_echo("a").error, Error::kNone);
    assert_int_equal(through.calls.ask_echo("b").error, Error::kNone);
    assert_int_equal(sentinel.asked.size(), 1);
}

// A client with a primary, and a server that takes over.
struct Failover {
    Failover()
        : old(free_port()),
          next(free_port()),
          sentinel(&loop, old.port),
          through(&loop, seeds_of({&sentinel})) {
        assert_int_equal(through.calls.ask_echo("a").error, Error::kNone);
    }

    void assert_next_serves() {
        assert_int_equal(through.calls.ask_echo("b").error, Error::kNone);
        assert_true(next.command({"INFO", "commandstats"}).find("cmdstat_evalsha") != std::string::npos);
    }

    TestLoop loop;
    TcpServer old;
    TcpServer next;
    FakeSentinel sentinel;
    PrimaryCalls through;
};

void test_calls_go_to_the_new_primary_as_soon_as_it_is_named(void**) {
    Failover failover;
    failover.sentinel.switch_to(failover.next.port);
    assert_true(failover.loop.run_until([&] { return failover.loop.said("the primary is now") == 1; }));
    failover.assert_next_serves();
}

// A replica answers a write, and the handshake of the next connection, by READONLY.
void test_a_primary_that_became_a_replica_is_replaced(void**) {
    Failover failover;
    failover.old.command({"REPLICAOF", "127.0.0.1", std::to_string(failover.next.port)});
    failover.sentinel.primary = failover.next.port;
    assert_int_equal(failover.through.calls.ask({"SET", "k", "v"}).error, Error::kReadOnly);
    assert_true(failover.loop.run_until([&] { return failover.loop.said("the primary is now") == 1; }));
    assert_true(failover.through.calls.await_open(false));
    failover.assert_next_serves();
}

void test_a_replica_that_a_sentinel_names_is_not_used(void**) {
    TestLoop loop;
    const TcpServer primary(free_port());
    const TcpServer replica(free_port());
    replica.command({"REPLICAOF", "127.0.0.1", std::to_string(primary.port)});
    FakeSentinel first(&loop, replica.port);
    FakeSentinel second(&loop, replica.port);
    PrimaryCalls through(&loop, seeds_of({&first, &second}));
    assert_int_equal(through.calls.ask_echo("a").error, Error::kReadOnly);
    first.primary = second.primary = primary.port;
    assert_true(through.calls.await_open(false));
    assert_int_equal(through.calls.ask_echo("b").error, Error::kNone);
}

void test_a_killed_primary_is_replaced_when_another_is_named(void**) {
    Failover failover;
    Calls& calls = failover.through.calls;
    failover.old.stop();
    // First the connection is lost, then connecting fails.
    while (calls->available()) {
        assert_int_not_equal(calls.ask_echo("lost").error, Error::kNone);
    }
    failover.sentinel.primary = failover.next.port;
    assert_true(calls.await_open(false));
    failover.assert_next_serves();
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_primary_is_queried_once_and_then_subscribed_to),
        cmocka_unit_test(test_other_replies_than_messages_are_ignored),
        cmocka_unit_test(test_after_a_malformed_message_the_primary_is_queried_again),
        cmocka_unit_test(test_mutations_of_a_session_do_no_harm),
        cmocka_unit_test(test_a_sentinel_that_answers_and_closes_is_queried_at_intervals),
        cmocka_unit_test(test_changes_of_the_primary_are_limited_and_so_is_their_log),
        cmocka_unit_test(test_names_are_looked_up_one_at_a_time),
        cmocka_unit_test(test_a_sentinel_that_fails_is_skipped),
        cmocka_unit_test(test_while_all_sentinels_fail_they_are_queried_at_intervals),
        cmocka_unit_test(test_suspect_queries_another_sentinel),
        cmocka_unit_test(test_a_lost_sentinel_is_replaced_at_once),
        cmocka_unit_test(test_a_primary_may_have_a_name),
        cmocka_unit_test(test_the_first_call_waits_for_the_primary),
        cmocka_unit_test(test_calls_go_to_the_new_primary_as_soon_as_it_is_named),
        cmocka_unit_test(test_a_primary_that_became_a_replica_is_replaced),
        cmocka_unit_test(test_a_replica_that_a_sentinel_names_is_not_used),
        cmocka_unit_test(test_a_killed_primary_is_replaced_when_another_is_named),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
