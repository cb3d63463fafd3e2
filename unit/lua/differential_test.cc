// Redis and core give the same decisions, keep the same state and forget it at the same moment.
#include <rapidcheck.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "lua/call.h"
#include "lua/mirror.h"
#include "lua/scenario.h"
#include "lua/script.h"
#include "lua/server.h"
#include "test.h"

namespace rate_limit {
namespace {

// In place of lua/keys.lua: the clock is what the call says, and a value has before it the moment at which it
// is gone.
constexpr char kTestKeys[] = R"lua(
local now = tonumber(ARGV[3])
local values = redis.call('MGET', unpack(KEYS))
for i = 1, #KEYS do
    if values[i] and struct.unpack('<I8', values[i]) <= now then
        redis.call('DEL', KEYS[i])
        values[i] = false
    end
    values[i] = values[i] and string.sub(values[i], 9)
end
local function keep(key, value, moment, same)
    assert(moment % 1 == 0)
    assert(not same or struct.unpack('<I8', redis.call('GET', key)) == moment)
    if value then
        redis.call('SET', key, struct.pack('<I8', moment) .. value)
    else
        redis.call('DEL', key)
    end
end
)lua";

std::uint64_t steps = 0;  // limits that were decided or given back
std::unique_ptr<Server> server;
std::string sha;

void start_server(const std::string& program) {
    server = std::make_unique<Server>(program);
    sha = text_of(*server->connection().call({"SCRIPT", "LOAD", script_text(kTestKeys)}));
}

// Groups of one moment, as one script call decides them.
struct TimedCall : Call {
    Micros now = 0;

    std::vector<std::string> command() const {
        std::vector<std::string> words = Call::command(sha);
        words.push_back(std::to_string(now));
        return words;
    }
};

std::string key_of(const ScenarioLimit& limit) {
    return std::to_string(limit.zone) + ":" + std::to_string(limit.client);
}

using Marks = std::map<std::uint64_t, Micros>;

// Whether a window's mark tells the periods of `rates` from all that a zone had before. Where it does not, a
// key may be kept for as long as the other period wants: see keep() in lua/keys.lua.
bool told_apart(const RateList& rates, Marks* before) {
    for (std::uint32_t i = 0; i < rates.size; ++i) {
        const auto found = before->find(period_mark(rates.rates[i]));
        if (found != before->end() && found->second != rates.rates[i].period) {
            return false;
        }
    }
    for (std::uint32_t i = 0; i < rates.size; ++i) {
        before->emplace(period_mark(rates.rates[i]), rates.rates[i].period);
    }
    return true;
}

// As few calls as can be: a moment is one call, whatever changes in it.
std::vector<TimedCall> calls_of(const Scenario& scenario) {
    std::vector<TimedCall> calls;
    std::vector<ScenarioZone> zones = scenario.zones;
    std::vector<std::size_t> numbers;  // of the zones' policies in the call
    std::vector<Marks> marks(zones.size());
    for (std::size_t i = 0; i < zones.size(); ++i) {
        told_apart(zones[i].policy.rates, &marks[i]);
    }
    Micros now = scenario.start;
    for (const Event& event : scenario.events) {
        const Micros next = scenario.moved(now, event.move);
        if (calls.empty() || next != now || calls.back().policies.size() > 100) {
            calls.emplace_back();
            calls.back().now = now = next;
            numbers.clear();
        }
        TimedCall& call = calls.back();
        if (numbers.empty()) {
            for (const ScenarioZone& zone : zones) {
                numbers.push_back(call.policies.size());
                call.policies.emplace_back(zone.policy, zone.shape());
            }
        }
        if (event.changes && told_apart(event.policy.rates, &marks[event.limits[0].zone])) {
            ScenarioZone& zone = zones[event.limits[0].zone];
            zone.policy = event.policy;
            numbers[event.limits[0].zone] = call.policies.size();
            call.policies.emplace_back(zone.policy, zone.shape());
        }
        CallGroup group = {event.refund, {}};
        for (const ScenarioLimit& limit : event.limits) {
            group.limits.push_back({numbers[limit.zone], key_of(limit), limit.cost});
        }
        call.groups.insert(call.groups.end(), event.times, group);
    }
    return calls;
}

std::string show(const Decision& d) {
    std::ostringstream out;
    out << (d.allowed ? "allowed" : "rejected") << " rate " << int{d.rate} << " limit " << d.limit
        << " remaining " << d.remaining << " reset " << d.reset_after << " retry " << d.retry_after
        << " delay " << d.delay << " excess " << d.excess_milli;
    return out.str();
}

std::string show(const Content& content) {
    std::ostringstream out;
    for (const std::uint64_t word : content) {
        out << " " << std::hex << word;
    }
    return out.str();
}

using Clients = std::map<std::string, MirroredClient>;

void compare_decisions(const TimedCall& call, std::string_view reply, Clients* clients) {
    Micros time = 0;
    RC_ASSERT(decode_time(&reply, &time));
    RC_ASSERT(time == call.now);
    for (const CallGroup& group : call.groups) {
        std::vector<MirroredLimit> limits;
        for (const CallLimit& limit : group.limits) {
            const auto& [policy, shape] = call.policies[limit.policy];
            limits.push_back({&(*clients)[limit.key], &policy, shape, limit.cost});
        }
        mirror_group(&limits, call.now, group.refund);
        for (std::size_t i = 0; !group.refund && i < limits.size(); ++i) {
            Decision expected = limits[i].check.decision();
            if (expected.allowed && expected.delay == 0) {
                expected.excess_milli = 0;  // nobody asks for it then
            }
            Decision got = {};
            RC_ASSERT(decode_decision(&reply, *limits[i].policy, &got));
            if (!(got == expected)) {
                RC_FAIL("at " + std::to_string(call.now) + " client " + group.limits[i].key + "\n  core  " +
                        show(expected) + "\n  redis " + show(got));
            }
        }
        steps += limits.size();
    }
    RC_ASSERT(reply.empty());
}

void compare_client(Micros now, const std::string& key, const redisReply& reply, MirroredClient* client) {
    const std::string text = reply.type == REDIS_REPLY_STRING ? text_of(reply) : std::string(8, '\0');
    const auto moment = static_cast<Micros>(bytes_at(text, 0, 8));
    const std::string where = "at " + std::to_string(now) + " client " + key;
    if ((moment > now) != client->present()) {
        RC_FAIL(where + (client->present() ? " is forgotten, not at " + std::to_string(client->moment())
                                           : " is kept until " + std::to_string(moment)));
    }
    if (!client->present()) {
        return;
    }
    if (client->vague() ? moment < client->moment() : moment != client->moment()) {
        RC_FAIL(where + " is kept until " + std::to_string(moment) + ", not " +
                std::to_string(client->moment()));
    }
    client->set_moment(moment);
    ValueReader reader(client->shape(), std::string_view(text).substr(8));
    const std::optional<Content> content = reader.read();
    const Content expected = content_of(client->shape(), client->words());
    if (!content || *content != expected) {
        RC_FAIL(where + "\n  core " + show(expected) + "\n  redis" +
                (content ? show(*content) : " cannot be read"));
    }
    RC_ASSERT(!has_lives(client->shape()) || static_cast<Micros>(reader.lives()) == moment);
}

void redis_agrees(const Scenario& scenario) {
    const std::vector<TimedCall> calls = calls_of(scenario);
    Connection& connection = server->connection();
    connection.send({"FLUSHALL"});
    std::vector<std::vector<std::string>> keys;
    for (const TimedCall& call : calls) {
        connection.send(call.command());
        keys.push_back(call.keys());
        std::vector<std::string> get = {"MGET"};
        get.insert(get.end(), keys.back().begin(), keys.back().end());
        connection.send(get);
    }
    std::vector<Reply> replies;
    for (std::size_t i = 0; i < 2 * calls.size() + 1; ++i) {
        replies.push_back(connection.take());
    }
    Clients clients;
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const redisReply& decisions = *replies[2 * i + 1];
        if (decisions.type != REDIS_REPLY_STRING) {
            RC_FAIL("the script says " + text_of(decisions));
        }
        compare_decisions(calls[i], {decisions.str, decisions.len}, &clients);
        for (std::size_t k = 0; k < keys[i].size(); ++k) {
            compare_client(calls[i].now, keys[i][k], *replies[2 * i + 2]->element[k], &clients[keys[i][k]]);
        }
    }
}

struct Kind {
    const char* name;
    unsigned bits;
    std::uint32_t zones;
};

constexpr Kind kKinds[] = {
    {"plain", kPlain, 1},
    {"steps of the clock", kStepsBack, 1},
    {"several rates", kSeveralRates | kStepsBack, 1},
    {"new rates", kRateChanges | kStepsBack, 1},
    {"new lists of rates", kRateChanges | kSeveralRates | kStepsBack, 1},
    {"min_interval", kIntervals | kStepsBack | kRateChanges, 1},
    {"count=all", kCountAll | kStepsBack | kRateChanges, 1},
    {"everything", kCountAll | kIntervals | kStepsBack | kRateChanges | kSeveralRates, 1},
    {"several limits", kStepsBack, 4},
    {"several limits and everything", kCountAll | kIntervals | kStepsBack | kRateChanges | kSeveralRates, 4},
};

template <class Kinds>
void compare_with(const std::string& program, const Kinds& kinds) {
    start_server(program);
    const std::uint64_t before = steps;
    const auto began = std::chrono::steady_clock::now();
    bool kept = true;
    for (const Kind& kind : kinds) {
        for (const Algorithm algorithm : kEveryAlgorithm) {
            kept &= rc::check(std::string(algorithm_name(algorithm)) + ", " + kind.name + ": Redis agrees",
                              [&] { redis_agrees(*any_scenario(algorithm, kind.bits, kind.zones)); });
        }
    }
    server.reset();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::printf("# %s: %llu steps in %.1f s, RC_PARAMS='%s'\n", program.c_str(),
                static_cast<unsigned long long>(steps - before), took.count(), getenv("RC_PARAMS"));
    std::fflush(stdout);
    assert_true(kept);
}

bool whole = false;  // nobody asked for a shorter run

void test_redis_decides_as_core_does(void**) {
    compare_with(server_programs()[0], kKinds);
    assert_true(steps >= 1'000'000 || !whole);
}

// Another server runs the same script by the same rules: what counts is that it does so at all.
void test_valkey_decides_as_core_does(void**) {
    const std::vector<std::string> programs = server_programs();
    assert_int_equal(programs.size(), 2);
    compare_with(programs[1], std::vector<Kind>{kKinds[std::size(kKinds) - 1]});
}

int stop_server(void**) {
    server.reset();
    return 0;
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    whole = getenv("RC_PARAMS") == nullptr && getenv("RL_SANITIZE") == nullptr;
    const char* given = getenv("RC_PARAMS");
    std::string parameters = given != nullptr ? given : whole ? "max_success=180" : "max_success=9";
    if (parameters.find("seed=") == std::string::npos) {
        // The same every time, so that whoever runs the tests sees what others saw; RL_SEED takes another.
        const char* seed = getenv("RL_SEED");
        parameters += std::string(" seed=") + (seed != nullptr ? seed : "898494491");
    }
    if (parameters.find("max_size=") == std::string::npos) {
        parameters += " max_size=150";
    }
    setenv("RC_PARAMS", parameters.c_str(), 1);
    const CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_redis_decides_as_core_does, stop_server),
        cmocka_unit_test_teardown(test_valkey_decides_as_core_does, stop_server),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
