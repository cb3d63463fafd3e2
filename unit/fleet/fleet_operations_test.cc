// Resets, changes of a rate, lookups and corrections on the whole fleet: their commands, in order, and their
// outcome.
#include "fleet/fleet_operations.h"

#include <memory>
#include <string>
#include <vector>

#include "fleet_zones.h"
#include "protocol/script_text.h"
#include "redis/real_server.h"

namespace rate_limit {
namespace {

constexpr std::string_view kAliceKey = "rate_limit:api:token_bucket:{alice}";

void test_a_clients_key_is_deleted_by_its_short_name(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const TestClient client(server.path(), &loop);
    NameRoom room;
    const std::string long_name(short_name(std::string(300, 'x'), &room));
    const std::string key = "rate_limit:z:gcra:{" + long_name + "}";
    server.command({"SET", key, "1"});
    run(delete_client("rate_limit:", "z", Algorithm::kGcra, long_name), client.get(), &loop);
    assert_string_equal(server.command({"EXISTS", key}).c_str(), "0");
}

void test_redis_says_whether_it_has_a_client(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const TestClient client(server.path(), &loop);
    const FleetCommand look = find_client("rate_limit:", "z", Algorithm::kGcra, "alice");
    const FleetCommand reset = delete_client("rate_limit:", "z", Algorithm::kGcra, "alice");
    assert_string_equal(run(look, client.get(), &loop).c_str(), "0");
    assert_string_equal(run(reset, client.get(), &loop).c_str(), "0");
    server.command({"SET", "rate_limit:z:gcra:{alice}", "1"});
    assert_string_equal(run(look, client.get(), &loop).c_str(), "1");
    assert_string_equal(run(reset, client.get(), &loop).c_str(), "1");
    assert_string_equal(run(look, client.get(), &loop).c_str(), "0");
}

void test_a_table_says_whether_it_has_a_client(void**) {
    TestZone zone("api");
    assert_false(knows_client(FleetZone(), "alice", this_process()));
    assert_false(knows_client(zone.followed(), "alice", this_process()));
    zone.use("alice");
    assert_true(knows_client(zone.followed(), "alice", this_process()));
    assert_true(knows_client(zone.followed(), "alice", this_process()));  // it is not left locked
    assert_false(knows_client(zone.followed(), "bob", this_process()));
    assert_true(forget_client(zone.followed(), "alice", this_process()));
    assert_false(knows_client(zone.followed(), "alice", this_process()));
    assert_false(forget_client(zone.followed(), "alice", this_process()));
}

void test_in_a_cluster_rates_and_resets_are_in_one_slot(void**) {
    for (const char* prefix : {"rate_limit:", "", "p{tag}:"}) {
        assert_int_equal(change_rate(prefix, "z", "1r/s").slot,
                         announce_reset(prefix, true, 1, "z", "c").slot);
    }
}

Micros now = 1000 * kSecond;

// A fake server, an instance with one zone, and an operation of that instance.
struct Scene {
    Scene() : server(&loop), client(server.path(), &loop), zone("api"), process(this_process()) {
        process.clock = [] { return now; };
        server.answer = [this](const redis::Words& words) {
            if (words[0] != "EVAL") {
                return redis::FakeServer::healthy(words);
            }
            seen.push_back(words);
            return seen.size() <= replies.size() ? replies[seen.size() - 1] : redis::bulk("OK");
        };
    }

    OperationTarget place() { return {zone.followed(), "rate_limit:", &process}; }

    void begin(FleetOperation* operation) {
        operation->start(
            client.get(), [](void* self) { static_cast<Scene*>(self)->done++; }, this);
    }

    redis::Error run(FleetOperation* operation) {
        begin(operation);
        assert_true(loop.run_until([&] { return done != 0; }));
        assert_int_equal(done, 1);
        return operation->error();
    }

    // Whether command `index` was a call of a script with these words after the number of keys.
    bool was(std::size_t index, std::string_view script, const std::vector<std::string>& words) const {
        return index < seen.size() && seen[index][1] == script &&
               std::vector<std::string>(seen[index].begin() + 3, seen[index].end()) == words;
    }
    bool was_deletion(std::size_t index) const {
        return was(index, kDeleteClientScript, {std::string(kAliceKey)});
    }
    bool was_announcement(std::size_t index) const {
        return was(index, kAnnounceResetScript, {"rate_limit:resets", "0000000000000011 api alice"});
    }

    redis::TestLoop loop;
    redis::FakeServer server;
    TestClient client;
    TestZone zone;
    Process process;
    std::vector<std::string> replies;
    std::vector<redis::Words> seen;
    unsigned done = 0;
};

void test_a_reset_deletes_announces_forgets_and_deletes_again(void**) {
    Scene scene;
    scene.zone.use("alice");
    bool forgotten_early = false;
    scene.server.answer = [&](const redis::Words& words) {
        scene.seen.push_back(words);
        forgotten_early = forgotten_early || (scene.seen.size() <= 2 && !scene.zone.knows("alice"));
        return redis::bulk("0");
    };
    ClientReset reset(scene.place(), 0x11, "alice");
    assert_int_equal(scene.run(&reset), redis::Error::kNone);
    assert_int_equal(scene.seen.size(), 3);
    assert_true(scene.was_deletion(0) && scene.was_announcement(1) && scene.was_deletion(2));
    assert_false(forgotten_early);
    assert_false(scene.zone.knows("alice"));
    assert_true(reset.known());
}

void test_a_reset_of_a_client_that_this_instance_does_not_know_deletes_once(void**) {
    for (const bool in_redis : {true, false}) {
        Scene scene;
        scene.replies = {redis::bulk(in_redis ? "1" : "0")};
        ClientReset reset(scene.place(), 0x11, "alice");
        assert_int_equal(scene.run(&reset), redis::Error::kNone);
        assert_int_equal(scene.seen.size(), 2);
        assert_true(scene.was_deletion(0) && scene.was_announcement(1));
        assert_int_equal(reset.known(), in_redis);
    }
}

void test_after_an_error_a_reset_takes_no_further_step(void**) {
    for (const std::size_t failing : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
        Scene scene;
        scene.zone.use("alice");
        scene.replies.assign(failing, redis::bulk("1"));
        scene.replies.push_back("-READONLY no\r\n");
        ClientReset reset(scene.place(), 0x11, "alice");
        assert_int_equal(scene.run(&reset), redis::Error::kReadOnly);
        assert_int_equal(scene.seen.size(), failing + 1);
        assert_int_equal(scene.zone.knows("alice"), failing < 2);
        assert_int_equal(reset.forgotten(), failing == 2);
    }
}

void test_without_a_server_an_operation_ends_at_once(void**) {
    class NoServer final : public redis::Router {
      public:
        bool sharded() const override { return true; }
        redis::Client* client_of(redis::HashSlot) override { return nullptr; }
    } router;
    TestZone zone("api");
    zone.use("alice");
    const Process process = this_process();
    ClientReset reset({zone.followed(), "rate_limit:", &process}, 0x11, "alice");
    unsigned done = 0;
    reset.start(
        &router, [](void* self) { ++*static_cast<unsigned*>(self); }, &done);
    assert_int_equal(done, 1);
    assert_int_equal(reset.error(), redis::Error::kUnavailable);
    assert_true(zone.knows("alice"));
}

void test_the_end_of_the_router_ends_an_operation(void**) {
    Scene scene;
    scene.replies = {""};
    ClientReset reset(scene.place(), 0x11, "alice");
    scene.begin(&reset);
    assert_true(scene.loop.run_until([&] { return scene.seen.size() == 1; }));
    assert_int_equal(scene.done, 0);
    scene.client.close();
    assert_int_equal(scene.done, 1);
    assert_int_equal(reset.error(), redis::Error::kClosed);
}

RateList rates_of(std::string_view text) {
    RateList rates = {};
    assert_null(parse_rates(text, &rates));
    return rates;
}

void test_a_changed_rate_holds_here_once_redis_has_it(void**) {
    Scene scene;
    FleetChangesState state;
    const RateList rates = rates_of("20r/m");
    RateChange change(scene.place(), &state, &rates);
    assert_int_equal(scene.run(&change), redis::Error::kNone);
    assert_true(scene.was(0, kChangeRateScript, {"rate_limit:rates", "api", "20r/m"}));
    assert_true(scene.zone.has("20r/m"));
    assert_int_equal(state.changes(), 1);
    assert_string_equal(change.texts().before.c_str(), "10r/h");
    assert_string_equal(change.texts().now.c_str(), "20r/m");
    scene.done = 0;
    RateChange restoration(scene.place(), &state, nullptr);
    assert_int_equal(scene.run(&restoration), redis::Error::kNone);
    assert_true(scene.was(1, kChangeRateScript, {"rate_limit:rates", "api", ""}));
    assert_true(scene.zone.has(""));
    assert_int_equal(state.changes(), 2);
    assert_string_equal(restoration.texts().before.c_str(), "20r/m");
    assert_string_equal(restoration.texts().now.c_str(), "10r/h");
}

void test_a_rate_that_redis_does_not_take_does_not_hold_here(void**) {
    Scene scene;
    FleetChangesState state;
    const RateList rates = rates_of("20r/m");
    scene.replies = {"-READONLY no\r\n"};
    RateChange change(scene.place(), &state, &rates);
    assert_int_equal(scene.run(&change), redis::Error::kReadOnly);
    assert_true(scene.zone.has(""));
    assert_int_equal(state.changes(), 0);
}

void test_a_lookup_asks_redis_only_for_a_client_that_is_not_here(void**) {
    Scene scene;
    Micros denied_at = 0;
    scene.zone.use("alice");
    ClientLookup alice(scene.place(), "alice", &denied_at);
    assert_true(alice.find_here());
    assert_int_equal(alice.known(), Known::kYes);
    ClientLookup without_redis(scene.place(), "bob", nullptr);
    assert_true(without_redis.find_here());
    assert_int_equal(without_redis.known(), Known::kNo);
    for (const bool in_redis : {true, false}) {
        scene.replies.push_back(redis::bulk(in_redis ? "1" : "0"));
        scene.done = 0;
        ClientLookup bob(scene.place(), "bob", &denied_at);
        assert_false(bob.find_here());
        assert_int_equal(scene.run(&bob), redis::Error::kNone);
        assert_int_equal(bob.known(), in_redis ? Known::kYes : Known::kNo);
    }
    assert_true(scene.was(0, kFindClientScript, {"rate_limit:api:token_bucket:{bob}"}));
}

void test_after_a_denied_lookup_redis_is_not_asked_for_a_while(void**) {
    Scene scene;
    Micros denied_at = 0;
    scene.replies = {"-READONLY no\r\n", "-NOPERM no\r\n"};
    for (const bool denied : {false, true}) {
        scene.done = 0;
        ClientLookup lookup(scene.place(), "bob", &denied_at);
        assert_false(lookup.find_here());
        scene.run(&lookup);
        assert_int_equal(lookup.known(), Known::kUnsure);
        assert_int_equal(denied_at, denied ? now : 0);
    }
    now += 29 * kSecond;
    ClientLookup early(scene.place(), "bob", &denied_at);
    assert_true(early.find_here());
    assert_int_equal(early.known(), Known::kUnsure);
    now += kSecond;
    ClientLookup late(scene.place(), "bob", &denied_at);
    assert_false(late.find_here());
}

// A real server, and a client of it that loads the script of checks.
struct ScriptScene {
    ScriptScene()
        : settings(settings_with(kScript, server.path(), 60000)),
          client(redis::Client::make(settings, {}, &loop)),
          zone("api"),
          process(this_process()) {
        zone.policy.overdraft = kOneMore;
    }

    // Corrects what alice has used; returns the remaining requests.
    std::uint64_t correct(bool gives_back, std::uint64_t amount) {
        bool done = false;
        ClientCorrection correction({zone.followed(), "rate_limit:", &process}, zone.policy, "alice",
                                    gives_back, amount);
        correction.start(
            client.get(), [](void* self) { *static_cast<bool*>(self) = true; }, &done);
        assert_true(loop.run_until([&] { return done; }));
        assert_int_equal(correction.error(), redis::Error::kNone);
        assert_true(correction.time() > 0);
        return correction.decision().remaining;
    }

    redis::TestLoop loop;
    redis::RealServer server;
    redis::Settings settings;
    std::unique_ptr<redis::Client> client;
    TestZone zone;
    Process process;
};

void test_a_client_in_redis_is_charged_and_refunded(void**) {
    ScriptScene scene;
    assert_int_equal(scene.correct(true, 3), 10);
    assert_string_equal(scene.server.command({"EXISTS", std::string(kAliceKey)}).c_str(), "0");
    scene.zone.use("alice");
    assert_int_equal(scene.correct(false, 4), 6);
    assert_true(scene.zone.knows("alice"));  // and its rejection
    assert_int_equal(scene.correct(true, 1), 7);
    Decision decision;
    Micros time = 0;
    assert_false(scene.zone.denials->find(scene.zone.denials->hash("alice"), scene.zone.policy, 1, kNow,
                                          &decision, &time));
    assert_int_equal(scene.correct(false, 1000), 0);
    assert_int_equal(scene.correct(true, 10), 0);
    assert_int_equal(scene.correct(true, 3), 3);
    assert_int_equal(scene.correct(true, 1000), 10);
    assert_string_equal(scene.server.command({"EXISTS", std::string(kAliceKey)}).c_str(), "0");
}

void test_a_correction_fails_with_redis_and_for_a_wrong_reply(void**) {
    for (const bool answers : {false, true}) {
        Scene scene;
        scene.zone.use("alice");
        scene.server.answer = [&](const redis::Words& words) {
            return words[0] != "EVALSHA" ? redis::FakeServer::healthy(words)
                   : answers             ? redis::bulk("12345678")
                                         : std::string("-READONLY no\r\n");
        };
        ClientCorrection refund(scene.place(), scene.zone.policy, "alice", true, 1);
        assert_int_equal(scene.run(&refund), answers ? redis::Error::kShape : redis::Error::kReadOnly);
        Decision decision;
        Micros time = 0;
        // Redis may have given the request back: the client may be admitted.
        assert_int_equal(scene.zone.denials->find(scene.zone.denials->hash("alice"), scene.zone.policy, 1,
                                                  kNow, &decision, &time),
                         !answers);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_clients_key_is_deleted_by_its_short_name),
        cmocka_unit_test(test_redis_says_whether_it_has_a_client),
        cmocka_unit_test(test_a_table_says_whether_it_has_a_client),
        cmocka_unit_test(test_in_a_cluster_rates_and_resets_are_in_one_slot),
        cmocka_unit_test(test_a_reset_deletes_announces_forgets_and_deletes_again),
        cmocka_unit_test(test_a_reset_of_a_client_that_this_instance_does_not_know_deletes_once),
        cmocka_unit_test(test_after_an_error_a_reset_takes_no_further_step),
        cmocka_unit_test(test_without_a_server_an_operation_ends_at_once),
        cmocka_unit_test(test_the_end_of_the_router_ends_an_operation),
        cmocka_unit_test(test_a_changed_rate_holds_here_once_redis_has_it),
        cmocka_unit_test(test_a_rate_that_redis_does_not_take_does_not_hold_here),
        cmocka_unit_test(test_a_lookup_asks_redis_only_for_a_client_that_is_not_here),
        cmocka_unit_test(test_after_a_denied_lookup_redis_is_not_asked_for_a_while),
        cmocka_unit_test(test_a_client_in_redis_is_charged_and_refunded),
        cmocka_unit_test(test_a_correction_fails_with_redis_and_for_a_wrong_reply),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
