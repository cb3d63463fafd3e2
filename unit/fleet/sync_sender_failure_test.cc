// SyncSenders whose calls are lost, rejected or get malformed replies: each count is charged in the end,
// once.
#include "protocol/wire.h"
#include "sync_senders.h"

namespace rate_limit {
namespace {

const Policy kPolicy = with_debt(policy_of(Algorithm::kFixedWindow, "1000r/d"));

std::string key_of(const std::string& client) { return "rate_limit:api:fixed_window:{" + client + "}"; }

// A zone, its SyncSender and a fake server.
struct Scene {
    explicit Scene(redis::Milliseconds timeout = 2000, const SyncSender::Options& options = every(10),
                   const Policy& policy = kPolicy)
        : server(&loop),
          instance(policy, 128),
          settings(sync_settings(server.server.path(), timeout)),
          client(redis::Client::make(settings, {}, &loop)),
          sync_sender(start(instance, client.get(), &loop, process, options)) {
        nginx_loop = &loop;
    }
    ~Scene() {
        sync_sender->stop();
        client.reset();
        nginx_loop = nullptr;
    }

    bool deliver() {
        return loop.run_until([&] { return !instance.any(); });
    }
    bool await_calls(std::size_t count) {
        return loop.run_until([&] { return server.calls.size() >= count; });
    }
    std::uint64_t errors(redis::Error error) const {
        return client->counts().errors[static_cast<unsigned>(error)];
    }

    redis::TestLoop loop;
    SyncServer server;
    InstanceZone instance;
    Process process = this_process();
    redis::Settings settings;
    std::unique_ptr<redis::Client> client;
    std::unique_ptr<SyncSender> sync_sender;
};

void test_a_call_has_clients_amounts_and_a_sequence_number(void**) {
    Scene scene;
    scene.instance.admitted("alice", 3);
    scene.instance.admitted("bob", 1, 5);
    assert_true(scene.deliver());
    assert_int_equal(scene.server.calls.size(), 1);
    const SeenCall call = scene.server.calls[0];
    assert_int_equal(call.keys.size(), 2);
    assert_int_equal(call.amounts.at(key_of("alice")), 3);
    assert_int_equal(call.amounts.at(key_of("bob")), 5);
    assert_int_equal(call.policies.size(), 1);
    assert_string_equal(call.sequence.c_str(), "1");
    char sender[17];
    std::snprintf(sender, sizeof sender, "%016lx", scene.instance.unsent_counts().sender());
    assert_string_equal(call.guard.c_str(), (std::string("rate_limit:sync:api:") + sender).c_str());
    scene.instance.admitted("bob");
    assert_true(scene.deliver());
    assert_int_equal(scene.server.calls.size(), 2);
    assert_string_equal(scene.server.calls[1].sequence.c_str(), "2");
    assert_int_equal(scene.server.calls[1].keys.size(), 1);
    assert_true(scene.server.calls[1].guard == call.guard);
}

// The largest possible age of a request in the call: the time since the SyncSender last collected counts.
void test_a_call_has_the_largest_possible_age_of_its_requests(void**) {
    Scene scene(60, every(100));
    scene.instance.admitted("alice");
    assert_true(scene.deliver());
    assert_int_equal(scene.server.calls[0].age, 0);
    scene.loop.run_for(250);
    scene.instance.admitted("alice");
    assert_true(scene.deliver());
    assert_in_range(scene.server.calls[1].age, 90'000, 150'000);
    // The age of a retry has grown.
    scene.server.send = [](const std::string&) { return ""; };
    scene.instance.admitted("alice");
    assert_true(scene.await_calls(3));
    scene.loop.run_for(300);
    scene.server.send = redis::bulk;
    assert_true(scene.deliver());
    assert_string_equal(scene.server.calls.back().sequence.c_str(), "3");
    assert_in_range(scene.server.calls.back().age, 300'000, 2'000'000);
}

void test_clients_of_the_same_rates_share_a_policy(void**) {
    Policy policy = with_debt(policy_of(Algorithm::kFixedWindow, "off"));
    const StateLayout layout = layout_of(policy, 1, 0);
    redis::TestLoop loop;
    SyncServer server(&loop);
    const InstanceZone instance(policy, layout, 64);
    const Process process = this_process();
    const redis::Settings settings = sync_settings(server.server.path());
    const std::unique_ptr<redis::Client> client(redis::Client::make(settings, {}, &loop));
    const auto sync_sender = start(instance, client.get(), &loop, process);
    const Policy policies[] = {with_debt(policy_of(Algorithm::kFixedWindow, "7r/d")),
                               with_debt(policy_of(Algorithm::kFixedWindow, "8r/d")),
                               with_debt(policy_of(Algorithm::kFixedWindow, "9r/h"))};
    for (unsigned i = 0; i < 30; i++) {
        instance.admitted(name_of(i), 1, 1, &policies[i % 3]);
    }
    assert_true(loop.run_until([&] { return !instance.any(); }));
    const SeenCall& call = server.calls[0];
    assert_int_equal(call.keys.size(), 30);
    assert_int_equal(call.policies.size(), 3);
    for (std::size_t i = 0; i < call.keys.size(); i++) {
        char record[kLongestPolicy];
        const unsigned number =
            static_cast<unsigned>(std::stoul(call.keys[i].substr(call.keys[i].find("client ") + 7)));
        const std::string text(record, encode_policy(policies[number % 3], layout, record));
        assert_true(call.policies[call.numbers[i]] == text);
    }
    sync_sender->stop();
}

void test_the_state_of_redis_is_taken_over(void**) {
    Scene scene;
    scene.server.answer = [](const std::string& key) {
        if (key == key_of("bob")) {
            return record(0, "");
        }
        const bool over = key == key_of("carol");
        return record(over ? 7 : 0, window(nginx_clock(), kPolicy.rates.rates[0], over ? 1007 : 990));
    };
    scene.instance.admitted("alice", 3);
    scene.instance.admitted("bob", 3);
    scene.instance.admitted("carol", 9);
    assert_true(scene.deliver());
    assert_int_equal(scene.instance.remaining("alice"), 10);
    assert_int_equal(scene.instance.remaining("carol"), 0);
    assert_int_equal(scene.instance.remaining("bob"), 1000);  // Redis has no state of bob
    assert_int_equal(scene.instance.unsent_counts().overshoot(), 7);
}

void test_a_malformed_state_in_redis_is_ignored(void**) {
    Scene scene;
    for (const std::string& value : {std::string(1, 'x'), std::string(12, '\0'), std::string(13, '\xff'),
                                     std::string(40, '\x80'), std::string(65535, 'y')}) {
        scene.server.answer = [&](const std::string&) { return record(0, value); };
        scene.instance.admitted("alice", 3);
        assert_true(scene.deliver());
        assert_int_equal(scene.instance.remaining("alice"), 1000);
    }
    assert_int_equal(scene.errors(redis::Error::kShape), 0);
}

// Ways in which the first calls fail; later calls succeed.
struct Trouble {
    const char* name;
    std::function<void(Scene* scene)> begin;
    std::function<void(Scene* scene)> end = [](Scene* scene) { scene->server.send = redis::bulk; };
};

void test_a_lost_call_is_retried_and_charged_once(void**) {
    const auto send = [](const std::function<std::string(const std::string&)>& how) {
        return [how](Scene* scene) { scene->server.send = how; };
    };
    const Trouble troubles[] = {
        {"an error", send([](const std::string&) { return "-OOM command not allowed\r\n"; })},
        {"an error of the script", send([](const std::string&) { return "-ERR user_script:1: no\r\n"; })},
        {"no permission", send([](const std::string&) { return "-NOPERM this user may not\r\n"; })},
        {"no string", send([](const std::string&) { return ":5\r\n"; })},
        {"nothing", send([](const std::string&) { return "$-1\r\n"; })},
        {"an empty string", send([](const std::string&) { return redis::bulk(""); })},
        {"a time alone", send([](const std::string& text) { return redis::bulk(text.substr(0, 8)); })},
        {"half a record", send([](const std::string& text) { return redis::bulk(text.substr(0, 11)); })},
        {"a byte too few",
         send([](const std::string& text) { return redis::bulk(text.substr(0, text.size() - 1)); })},
        {"a byte too many", send([](const std::string& text) { return redis::bulk(text + "x"); })},
        {"a record too many",
         send([](const std::string& text) { return redis::bulk(text + record(1, "x")); })},
        {"a value that is too long", send([](const std::string& text) {
             return redis::bulk(text.substr(0, 15) + packed(60000, 2) + text.substr(17));
         })},
        {"a time that is none",
         send([](const std::string& text) { return redis::bulk(std::string(8, '\xff') + text.substr(8)); })},
        {"no protocol", send([](const std::string&) { return "what?\r\n"; })},
        {"no answer", send([](const std::string&) { return ""; })},
        {"a connection that is lost", [](Scene* scene) { scene->server.server.drops = true; },
         [](Scene* scene) { scene->server.server.drops = false; }},
        {"a server that is gone",
         [](Scene* scene) {
             scene->server.server.refuse();
             scene->server.server.hang_up();
         },
         [](Scene* scene) { scene->server.server.listen(); }},
    };
    for (const Mode mode : {Mode::kSync, Mode::kFallback}) {
        for (const Trouble& trouble : troubles) {
            Scene scene(60, every(10, mode));
            scene.instance.admitted("first");
            assert_true(scene.deliver());
            trouble.begin(&scene);
            scene.instance.admitted("alice", 3);
            scene.instance.admitted("bob", 4);
            assert_true(
                scene.loop.run_until([&] { return unsent_of(scene.instance.zone, "bob").sending != 0; }));
            scene.instance.admitted("alice", 2);
            scene.loop.run_for(100);
            const UnsentCopy unsent = unsent_of(scene.instance.zone, "alice");
            if (unsent.sending != 3 || unsent.unsent != 2 || unsent.sequence != 2) {
                fail_msg("%s: %u on the way, %u unsent, number %lu", trouble.name, unsent.sending,
                         unsent.unsent, unsent.sequence);
            }
            trouble.end(&scene);
            assert_true(scene.deliver());
            for (const SeenCall& call : scene.server.calls) {
                if (call.sequence == "2") {
                    assert_int_equal(call.keys.size(), 2);
                }
            }
            if (scene.server.total() != 10 || scene.server.charged[key_of("alice")] != 5) {
                fail_msg("%s: %lu were charged", trouble.name, scene.server.total());
            }
        }
    }
}

void test_a_flushed_script_is_loaded_and_the_call_retried(void**) {
    Scene scene;
    unsigned forgotten = 0;
    scene.server.send = [&](const std::string& reply) {
        return forgotten++ == 0 ? "-NOSCRIPT No matching script.\r\n" : redis::bulk(reply);
    };
    scene.instance.admitted("alice", 3);
    assert_true(scene.deliver());
    assert_int_equal(scene.server.server.count("SCRIPT"), 2);
    assert_int_equal(scene.server.calls.size(), 2);
    assert_string_equal(scene.server.calls[1].sequence.c_str(), "1");
    assert_true(scene.loop.lines.empty());
}

void test_no_call_is_made_while_the_server_is_unavailable(void**) {
    Scene scene(60);
    scene.instance.admitted("first");
    assert_true(scene.deliver());
    scene.server.server.refuse();
    scene.server.server.hang_up();
    assert_true(scene.loop.run_until([&] { return scene.loop.attached == 0; }));
    scene.instance.admitted("alice", 3);
    assert_true(scene.loop.run_until([&] { return !scene.client->available(); }));
    const std::uint64_t calls = scene.client->counts().calls;
    scene.loop.run_for(40);
    assert_int_equal(scene.client->counts().calls, calls);
    scene.server.server.listen();
    assert_true(scene.deliver());
    assert_int_equal(scene.server.total(), 4);
}

void test_one_call_follows_the_other(void**) {
    Scene scene(2000, every(5));
    for (unsigned i = 0; i < 600; i++) {
        scene.instance.admitted(name_of(i));
    }
    scene.server.send = [](const std::string&) { return ""; };
    assert_true(scene.await_calls(1));
    scene.loop.run_for(50);
    assert_int_equal(scene.server.calls.size(), 1);
    assert_int_equal(scene.server.calls[0].keys.size(), 200);
    std::string reply = packed(static_cast<std::uint64_t>(nginx_clock()), 8);
    for (unsigned i = 0; i < 200; i++) {
        reply += record(0, "");
    }
    scene.server.server.say(redis::bulk(reply));
    assert_true(scene.await_calls(2));
    scene.loop.run_for(20);
    assert_int_equal(scene.server.calls.size(), 2);
    assert_string_equal(scene.server.calls[1].sequence.c_str(), "2");
}

void test_batches_in_flight_are_retried_by_the_next_sync_sender(void**) {
    Scene scene(1000);
    scene.server.send = [](const std::string&) { return ""; };
    scene.instance.admitted("alice", 3);
    assert_true(scene.await_calls(1));
    // As when a worker exits: destroying the router answers the calls in flight.
    scene.sync_sender->stop();
    scene.client.reset();
    scene.sync_sender.reset();
    scene.server.send = redis::bulk;
    scene.instance.admitted("alice", 2);
    scene.client.reset(redis::Client::make(scene.settings, {}, &scene.loop));
    scene.sync_sender = start(scene.instance, scene.client.get(), &scene.loop, scene.process);
    assert_true(scene.deliver());
    assert_int_equal(scene.server.calls.size(), 3);
    assert_string_equal(scene.server.calls[1].sequence.c_str(), "1");
    assert_int_equal(scene.server.calls[1].amounts.at(key_of("alice")), 3);
    assert_string_equal(scene.server.calls[2].sequence.c_str(), "2");
    assert_int_equal(scene.server.calls[2].amounts.at(key_of("alice")), 2);
    assert_int_equal(scene.server.total(), 5);
}

void test_a_reply_after_the_stop_is_still_applied(void**) {
    Scene scene;
    scene.server.send = [](const std::string&) { return ""; };
    scene.instance.admitted("alice", 3);
    assert_true(scene.await_calls(1));
    scene.sync_sender->stop();
    scene.instance.admitted("bob");
    scene.server.server.say(
        redis::bulk(packed(static_cast<std::uint64_t>(nginx_clock()), 8) + record(0, "")));
    assert_true(scene.loop.run_until([&] { return unsent_of(scene.instance.zone, "alice").sending == 0; }));
    scene.loop.run_for(30);
    assert_int_equal(scene.server.calls.size(), 1);
    // Nor does a malformed reply do harm then.
    Scene other;
    other.server.send = [](const std::string&) { return ""; };
    other.instance.admitted("alice", 3);
    assert_true(other.await_calls(1));
    other.sync_sender->stop();
    other.server.server.say(redis::bulk("nonsense"));
    other.loop.run_for(20);
    assert_int_equal(unsent_of(other.instance.zone, "alice").sending, 3);
}

void test_a_process_that_ends_does_not_try_for_long(void**) {
    Scene scene(3000, every(3'600'000));
    for (unsigned i = 0; i < 600; i++) {
        scene.instance.admitted(name_of(i));
    }
    scene.server.send = [&](const std::string& reply) {
        scene.loop.jump(600);
        return redis::bulk(reply);
    };
    scene.sync_sender->end();
    scene.loop.run_for(100);
    assert_int_equal(scene.server.calls.size(), 2);  // of the six that all counts would take
    assert_true(scene.instance.any());
    // Another process may send at once.
    const Process other = made_up_process(1);
    const auto next = start(scene.instance, scene.client.get(), &scene.loop, other);
    assert_true(scene.deliver());
    next->stop();
    assert_int_equal(scene.server.total(), 600);
}

void test_a_process_that_ends_while_redis_is_down_resigns_at_once(void**) {
    Scene scene(60, every(20));
    scene.instance.admitted("alice");
    scene.server.server.refuse();
    assert_true(scene.loop.run_until([&] { return !scene.client->available(); }));
    scene.sync_sender->end();
    const Process other = made_up_process(1);
    assert_int_equal(scene.instance.unsent_counts().leader().lead(other), Leader::Lead::kNew);
    scene.instance.unsent_counts().leader().resign(other);
}

void test_the_clock_follows_the_replies(void**) {
    Scene scene;
    Micros ahead = 90 * kSecond;
    scene.server.clock = [&] { return nginx_clock() + ahead; };
    scene.instance.admitted("alice");
    assert_true(scene.deliver());
    const Micros first = scene.instance.unsent_counts().ahead();
    assert_in_range(first, 90 * kSecond - 50'000, 90 * kSecond + 50'000);
    // A difference that the round trip can explain does not change the clock.
    for (const Micros change : {Micros{0}, Micros{10}, Micros{-10}}) {
        scene.server.clock = [&] {
            scene.loop.jump(1);
            return nginx_clock() + first + change;
        };
        scene.server.send = [&](const std::string& reply) {
            scene.loop.jump(2);
            return redis::bulk(reply);
        };
        scene.instance.admitted("alice");
        assert_true(scene.deliver());
        assert_int_equal(scene.instance.unsent_counts().ahead(), first);
    }
    // A larger difference does: a step in either direction.
    for (const Micros step : {Micros{-3600 * kSecond}, Micros{5 * kSecond}, Micros{0}}) {
        ahead = step;
        scene.server.clock = [&] { return nginx_clock() + ahead; };
        scene.instance.admitted("alice");
        assert_true(scene.deliver());
        assert_in_range(scene.instance.unsent_counts().ahead() - step + kSecond, kSecond - 50'000,
                        kSecond + 50'000);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_has_clients_amounts_and_a_sequence_number),
        cmocka_unit_test(test_a_call_has_the_largest_possible_age_of_its_requests),
        cmocka_unit_test(test_clients_of_the_same_rates_share_a_policy),
        cmocka_unit_test(test_the_state_of_redis_is_taken_over),
        cmocka_unit_test(test_a_malformed_state_in_redis_is_ignored),
        cmocka_unit_test(test_a_lost_call_is_retried_and_charged_once),
        cmocka_unit_test(test_a_flushed_script_is_loaded_and_the_call_retried),
        cmocka_unit_test(test_no_call_is_made_while_the_server_is_unavailable),
        cmocka_unit_test(test_one_call_follows_the_other),
        cmocka_unit_test(test_batches_in_flight_are_retried_by_the_next_sync_sender),
        cmocka_unit_test(test_a_reply_after_the_stop_is_still_applied),
        cmocka_unit_test(test_a_process_that_ends_does_not_try_for_long),
        cmocka_unit_test(test_a_process_that_ends_while_redis_is_down_resigns_at_once),
        cmocka_unit_test(test_the_clock_follows_the_replies),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
