// Fleet changes: an instance follows the rates that others change and the clients that they reset.
#include "fleet/fleet_changes.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fleet_zones.h"
#include "redis/real_server.h"

namespace rate_limit {
namespace {

// A worker of an instance.
struct Worker {
    Worker(FleetChangesState* state, std::vector<FleetZone> zones, const std::string& path,
           redis::TestLoop* loop, std::uint32_t number, std::uint64_t instance = 1)
        : process(made_up_process(number)),
          settings(settings_of(path)),
          client(redis::Client::make(settings, {}, loop)) {
        FleetChanges::Options options;
        options.prefix = "rate_limit:";
        options.instance = instance;
        options.each_time = [](void* turns) { ++*static_cast<unsigned*>(turns); };
        options.self = &turns;
        fleet_changes.reset(
            FleetChanges::make(state, std::move(zones), options, client.get(), loop, process));
        assert_non_null(fleet_changes.get());
        living.insert(this);
    }
    ~Worker() {
        living.erase(this);
        fleet_changes->stop();
        client.reset();
    }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    static inline std::set<const Worker*> living;

    Process process;
    unsigned turns = 0;
    redis::Settings settings;
    std::unique_ptr<redis::Client> client;
    std::unique_ptr<FleetChanges> fleet_changes;
};

// Lets every worker whose timer is due send its call, and a real server reply.
void settle(redis::TestLoop* loop) {
    loop->run_for(20);
    const auto busy = [](const Worker* worker) { return worker->client->busy(); };
    assert_true(redis::TestLoop::processes == 0 || loop->run_until([&] {
        return std::none_of(Worker::living.begin(), Worker::living.end(), busy);
    }));
}

void turn(redis::TestLoop* loop) {
    loop->jump(FleetChanges::kEvery);
    settle(loop);
}

void test_a_changed_rate_is_followed_and_so_is_its_restoration(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    TestZone api("api");
    TestZone other("other");
    FleetChangesState state;
    const Worker worker(&state, {api.followed(), other.followed()}, server.path(), &loop, 1);
    settle(&loop);
    assert_true(api.has("") && other.has(""));
    assert_int_equal(api.live.version(), 0);
    assert_true(state.heard() != 0);
    run(change_rate("rate_limit:", "api", "20r/m"), worker.client.get(), &loop);
    assert_string_equal(server.command({"HGET", "rate_limit:rates", "api"}).c_str(), "20r/m");
    turn(&loop);
    assert_true(api.has("20r/m") && other.has(""));
    const std::uint64_t version = api.live.version();
    turn(&loop);
    assert_int_equal(api.live.version(), version);  // an unchanged rate is not written
    run(change_rate("rate_limit:", "api", "off"), worker.client.get(), &loop);
    turn(&loop);
    assert_true(api.has("off"));
    run(change_rate("rate_limit:", "api", ""), worker.client.get(), &loop);
    assert_string_equal(server.command({"EXISTS", "rate_limit:rates"}).c_str(), "0");
    turn(&loop);
    assert_true(api.has(""));
}

void test_a_new_instance_has_the_rate_at_once(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    server.command({"HSET", "rate_limit:rates", "api", "7r/s"});
    TestZone api("api");
    FleetChangesState state;
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1);
    assert_true(loop.run_until([&] { return api.has("7r/s"); }));
}

void test_a_wrong_rate_is_ignored(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    TestZone api("api");
    FleetChangesState state;
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1);
    server.command({"HSET", "rate_limit:rates", "api", "7r/s"});
    settle(&loop);
    turn(&loop);
    assert_true(api.has("7r/s"));
    for (const char* wrong : {"7", "r/s", "0r/s", "\xff\n\"", "7r/s,8r/m"}) {
        server.command({"HSET", "rate_limit:rates", "api", wrong});
        turn(&loop);
        assert_true(api.has("7r/s"));
    }
}

void test_while_redis_is_away_the_rate_stays(void**) {
    redis::TestLoop loop;
    redis::RealServer server;
    TestZone api("api");
    FleetChangesState state;
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1);
    server.command({"HSET", "rate_limit:rates", "api", "7r/s"});
    assert_true(loop.run_until([&] {
        loop.jump(100);
        return api.has("7r/s");
    }));
    server.stop();
    const Micros heard = state.heard();
    for (unsigned i = 0; i < 5; i++) {
        turn(&loop);
    }
    assert_true(api.has("7r/s"));
    assert_int_equal(state.heard(), heard);
}

void test_of_several_workers_one_calls_and_another_after_its_end(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    TestZone api("api");
    FleetChangesState state;
    auto first =
        std::make_unique<Worker>(&state, std::vector<FleetZone>{api.followed()}, server.path(), &loop, 1);
    Worker second(&state, {api.followed()}, server.path(), &loop, 2);
    settle(&loop);
    turn(&loop);
    turn(&loop);
    assert_true(first->client->counts().calls >= 3);
    assert_int_equal(second.client->counts().calls, 0);
    assert_true(second.turns >= first->client->counts().calls);
    const std::uint64_t asked = first->client->counts().calls;
    first->fleet_changes->end();
    turn(&loop);
    assert_true(second.client->counts().calls >= 1);
    assert_int_equal(first->client->counts().calls, asked);
}

void test_a_reply_to_a_call_before_an_own_change_is_ignored(void**) {
    redis::TestLoop loop;
    redis::FakeServer server(&loop);
    server.answer = [](const redis::Words&) { return ""; };
    TestZone api("api");
    FleetChangesState state;
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1);
    assert_true(loop.run_until([&] { return server.count("EVAL") == 1; }));
    RateList rates = {};
    parse_rates("5r/s", &rates);
    state.note_change();
    api.live.set(rates);
    server.say(
        redis::bulk(std::string("\1\0\0\0"
                                "5"
                                "\0\0\0\0",
                                9)));
    loop.run_for(20);
    assert_true(api.has("5r/s"));
    turn(&loop);
    server.say(
        redis::bulk(std::string("\1\0\0\0"
                                "5"
                                "\0\0\0\0",
                                9)));
    assert_true(loop.run_until([&] { return api.has(""); }));
}

void test_a_malformed_reply_does_no_harm(void**) {
    redis::TestLoop loop;
    redis::FakeServer server(&loop);
    std::string reply;
    server.answer = [&](const redis::Words&) { return redis::bulk(reply); };
    TestZone api("api");
    FleetChangesState state;
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1);
    const std::string wrong[] = {"",
                                 "x",
                                 std::string("\1\0\0\0", 4),
                                 std::string("\1\0\0\0x", 5),
                                 std::string("\xff\xff\xff\xff"
                                             "5",
                                             5),
                                 std::string("\1\0\0\0"
                                             "5",
                                             5),
                                 std::string("\1\0\0\0"
                                             "5"
                                             "\5\0\0\0"
                                             "5r/s",
                                             13),
                                 std::string("\1\0\0\0"
                                             "5"
                                             "\0\0\0\0"
                                             "\3\0\0\0"
                                             "a b",
                                             16),
                                 std::string("\1\0\0\0"
                                             "5"
                                             "\0\0\0\0"
                                             "\5\0\0\0"
                                             "a b c"
                                             "\1",
                                             19)};
    for (const std::string& text : wrong) {
        reply = text;
        turn(&loop);
        assert_true(api.has(""));
        assert_int_equal(api.live.version(), 0);
    }
}

void test_a_reset_is_followed_by_other_instances_only(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    TestZone here("api");
    TestZone there("api");
    TestZone other("other");
    FleetChangesState one;
    FleetChangesState two;
    const Worker first(&one, {here.followed()}, server.path(), &loop, 1, 0x11);
    const Worker second(&two, {there.followed(), other.followed()}, server.path(), &loop, 2, 0x22);
    settle(&loop);
    const std::string name = std::string("a {b} c\0\xff", 9);
    NameRoom room;
    const std::string long_name(short_name(std::string(300, 'x'), &room));
    for (const std::string& client : {name, long_name, std::string("bystander")}) {
        here.use(client);
        there.use(client);
        other.use(client);
    }
    run(announce_reset("rate_limit:", false, 0x11, "api", name), first.client.get(), &loop);
    run(announce_reset("rate_limit:", false, 0x11, "api", long_name), first.client.get(), &loop);
    turn(&loop);
    assert_false(there.knows(name) || there.knows(long_name));
    assert_true(here.knows(name) && here.knows(long_name));
    assert_true(other.knows(name) && there.knows("bystander"));
    assert_in_range(std::stol(server.command({"PTTL", "rate_limit:resets"})), 50'000, 60'000);
    // A reset is followed once: counts after it stay.
    there.use(name);
    turn(&loop);
    turn(&loop);
    assert_true(there.knows(name));
    // A second reset of the same client is followed as well.
    run(announce_reset("rate_limit:", false, 0x11, "api", name), first.client.get(), &loop);
    turn(&loop);
    assert_false(there.knows(name));
}

void test_a_new_instance_does_not_follow_old_resets(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    const redis::Settings settings = settings_of(server.path());
    const std::unique_ptr<redis::Client> client(redis::Client::make(settings, {}, &loop));
    run(announce_reset("rate_limit:", false, 0x11, "api", "alice"), client.get(), &loop);
    TestZone api("api");
    FleetChangesState state;
    api.use("alice");
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1, 0x22);
    settle(&loop);
    turn(&loop);
    assert_true(api.knows("alice"));
    assert_true(state.resets_until() != 0);
}

void test_an_instance_deletes_the_key_that_its_own_count_may_have_written(void**) {
    redis::TestLoop loop;
    const redis::RealServer server;
    TestZone api("api");
    FleetChangesState state;
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1, 0x22);
    settle(&loop);
    api.use("alice");
    server.command({"SET", "rate_limit:api:token_bucket:{alice}", "late"});
    server.command({"SET", "rate_limit:api:token_bucket:{bob}", "other"});
    run(announce_reset("rate_limit:", false, 0x11, "api", "alice"), worker.client.get(), &loop);
    run(announce_reset("rate_limit:", false, 0x11, "api", "bob"), worker.client.get(), &loop);
    turn(&loop);
    turn(&loop);
    assert_string_equal(server.command({"EXISTS", "rate_limit:api:token_bucket:{alice}"}).c_str(), "0");
    assert_string_equal(server.command({"EXISTS", "rate_limit:api:token_bucket:{bob}"}).c_str(), "1");
}

void test_a_user_without_the_right_calls_seldom(void**) {
    redis::TestLoop loop;
    redis::FakeServer server(&loop);
    server.answer = [](const redis::Words&) { return "-NOPERM this user has no permissions\r\n"; };
    TestZone api("api");
    FleetChangesState state;
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1);
    assert_true(loop.run_until([&] { return server.count("EVAL") == 1; }));
    for (unsigned i = 0; i < 20; i++) {
        turn(&loop);
    }
    assert_int_equal(server.count("EVAL"), 1);
    assert_true(state.heard() != 0);
    loop.jump(30'000);
    assert_true(loop.run_until([&] {
        loop.jump(100);
        return server.count("EVAL") == 2;
    }));
}

// The reply of the script with a changed rate.
std::string told_rate() {
    return redis::bulk(
        std::string("\1\0\0\0"
                    "5"
                    "\5\0\0\0"
                    "20r/m",
                    14));
}

void test_after_a_wrong_password_rates_are_followed_at_once(void**) {
    for (const bool greeted : {false, true}) {
        redis::TestLoop loop;
        redis::FakeServer server(&loop);
        const std::string refusal = greeted ? "-NOAUTH Authentication required.\r\n"
                                            : "-WRONGPASS invalid username-password pair\r\n";
        bool right = false;
        server.answer = [&](const redis::Words&) { return right ? told_rate() : refusal; };
        server.handshake = [&](const redis::Words& words) {
            const std::string usual = redis::FakeServer::healthy(words);
            return usual.empty() || right || (greeted && words[0] != "SET") ? usual : refusal;
        };
        TestZone api("api");
        FleetChangesState state;
        const Worker worker(&state, {api.followed()}, server.path(), &loop, 1);
        assert_true(loop.run_until([&] { return !worker.client->available(); }));
        loop.run_for(3000);
        right = true;
        const redis::Milliseconds since = loop.now();
        assert_true(loop.run_until([&] { return api.has("20r/m"); }, 1200));
        print_message("followed after %u ms\n", static_cast<unsigned>(loop.now() - since));
        assert_int_equal(loop.said("does not let this user read rates"), 0);
    }
}

void test_a_missing_right_is_logged_each_time_it_is_lost(void**) {
    redis::TestLoop loop;
    redis::FakeServer server(&loop);
    bool allowed = false;
    server.answer = [&](const redis::Words&) {
        return allowed ? told_rate() : "-NOPERM this user has no permissions\r\n";
    };
    TestZone api("api");
    FleetChangesState state;
    const Worker worker(&state, {api.followed()}, server.path(), &loop, 1);
    for (unsigned times = 1; times <= 2; times++) {
        allowed = false;
        assert_true(loop.run_until([&] { return loop.said("does not let this user read rates") == times; }));
        allowed = true;
        loop.jump(30'000);
        assert_true(loop.run_until([&] { return api.has("20r/m"); }));
        api.live.clear();
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_changed_rate_is_followed_and_so_is_its_restoration),
        cmocka_unit_test(test_a_new_instance_has_the_rate_at_once),
        cmocka_unit_test(test_a_wrong_rate_is_ignored),
        cmocka_unit_test(test_while_redis_is_away_the_rate_stays),
        cmocka_unit_test(test_of_several_workers_one_calls_and_another_after_its_end),
        cmocka_unit_test(test_a_reply_to_a_call_before_an_own_change_is_ignored),
        cmocka_unit_test(test_a_malformed_reply_does_no_harm),
        cmocka_unit_test(test_a_reset_is_followed_by_other_instances_only),
        cmocka_unit_test(test_a_new_instance_does_not_follow_old_resets),
        cmocka_unit_test(test_an_instance_deletes_the_key_that_its_own_count_may_have_written),
        cmocka_unit_test(test_a_user_without_the_right_calls_seldom),
        cmocka_unit_test(test_after_a_wrong_password_rates_are_followed_at_once),
        cmocka_unit_test(test_a_missing_right_is_logged_each_time_it_is_lost),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
