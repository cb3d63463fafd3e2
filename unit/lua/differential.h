// Random scenarios, run by the scripts in a server and by core: both must give the same decisions, keep the
// same state and forget it at the same moment.
#pragma once

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
#include "protocol/redis_value.h"
#include "test.h"

namespace rate_limit {

// In place of lua/keys.lua: the clock is what the call says last, and a value has before it the moment at
// which it is gone. Where keys are not declared, the clock passes for another one, which no limit has.
constexpr char kTestKeys[] = R"lua(
local now = tonumber(ARGV[#ARGV])
for i = 1, #keys do
    if values[i] and struct.unpack('<I8', values[i]) <= now then
        redis.call('DEL', keys[i])
        values[i] = false
    end
    values[i] = values[i] and string.sub(values[i], 9)
end
local function rewrite(_, key, value)
    redis.call('SET', key, string.sub(redis.call('GET', key), 1, 8) .. value)
end
local function save(key, value, expires, same_expiry)
    assert(expires % 1 == 0)
    assert(not same_expiry or struct.unpack('<I8', redis.call('GET', key)) == expires)
    if value then
        redis.call('SET', key, struct.pack('<I8', expires) .. value)
    else
        redis.call('DEL', key)
    end
end
local function read_part(key, first, last)
    local expires = redis.call('GETRANGE', key, 0, 7)
    if first == 0 and #expires == 8 and struct.unpack('<I8', expires) <= now then
        redis.call('DEL', key)
    end
    return redis.call('GETRANGE', key, first + 8, last < 0 and last or last + 8)
end
local function write_part(key, first, text)
    redis.call('SETRANGE', key, first + 8, text)
end
local function save_until(key, expires)
    assert(expires % 1 == 0)
    redis.call('SETRANGE', key, 0, struct.pack('<I8', expires))
end
)lua";

inline std::uint64_t steps = 0;  // limits that were decided, given back or charged
inline std::unique_ptr<Server> server;
inline std::string sha;
inline std::string sync_sha;
inline bool declared = true;  // the keys of calls that decide

// Scripts that keep a log whole unless it may have more than `whole` entries; see script_text.
inline void load_scripts(long whole) {
    Connection& connection = server->connection();
    sha = text_of(*connection.call({"SCRIPT", "LOAD", script_text("ORDER", kTestKeys, whole)}));
    sync_sha = text_of(*connection.call({"SCRIPT", "LOAD", script_text("ORDER.sync", kTestKeys, whole)}));
}

inline void start_server(const std::string& program) {
    server = std::make_unique<Server>(program);
    load_scripts(-1);
}

// What one script call has to do at one moment: groups that it decides, or one that it charges as it is.
struct TimedCall : Call {
    Micros now = 0;
    std::uint64_t sequence = 0;  // of a call that charges
    Micros age = 0;              // of what it charges

    std::vector<std::string> command() const {
        std::vector<std::string> words =
            sequence == 0 ? Call::command(sha, declared)
                          : sync_command(sync_sha, "guard", std::to_string(sequence), std::to_string(age));
        words.push_back(std::to_string(now));
        return words;
    }
};

inline std::string key_of(const ScenarioLimit& limit) {
    return std::to_string(limit.zone) + ":" + std::to_string(limit.client);
}

using Marks = std::map<std::uint64_t, Micros>;

// Whether a window's mark tells the periods of `rates` from all that a zone had before. Where it does not, a
// key may be kept for as long as the other period wants: see keep() in lua/keys.lua.
inline bool told_apart(const RateList& rates, Marks* before) {
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

// The calls of a scenario. They are as few as can be: what is decided in one moment is one call, whatever
// changes in it. What is charged comes once in a call, and sometimes again with the same number.
class Calls {
  public:
    explicit Calls(const Scenario& scenario) : zones_(scenario.zones), marks_(zones_.size()) {
        for (std::size_t i = 0; i < zones_.size(); ++i) {
            told_apart(zones_[i].policy.rates, &marks_[i]);
        }
        Micros now = scenario.start;
        for (const Event& event : scenario.events) {
            now = scenario.moved(now, event.move);
            if (event.changes && told_apart(event.policy.rates, &marks_[event.limits[0].zone])) {
                zones_[event.limits[0].zone].policy = event.policy;
                numbers_.clear();
            }
            for (std::uint32_t i = 0; event.imposes && i < event.times; ++i) {
                begin(now);
                sequence_ += event.refund && sequence_ != 0 ? 0 : 1;
                calls_.back().sequence = sequence_;
                calls_.back().age = event.age;
                add(event, 1);
            }
            if (!event.imposes) {
                const TimedCall* last = calls_.empty() ? nullptr : &calls_.back();
                if (last == nullptr || last->now != now || last->sequence != 0 ||
                    last->policies.size() > 100) {
                    begin(now);
                }
                add(event, event.times);
            }
        }
    }

    const std::vector<TimedCall>& all() const { return calls_; }

  private:
    void begin(Micros now) {
        calls_.emplace_back();
        calls_.back().now = now;
        numbers_.clear();
    }

    void add(const Event& event, std::uint32_t times) {
        TimedCall& call = calls_.back();
        if (numbers_.empty()) {
            for (const ScenarioZone& zone : zones_) {
                numbers_.push_back(call.policies.size());
                call.policies.emplace_back(zone.policy, zone.layout());
            }
        }
        CallGroup group = {event.refund && !event.imposes, {}};
        for (const ScenarioLimit& limit : event.limits) {
            group.limits.push_back({numbers_[limit.zone], key_of(limit), limit.cost});
        }
        call.groups.insert(call.groups.end(), times, group);
    }

    std::vector<ScenarioZone> zones_;
    std::vector<Marks> marks_;
    std::vector<TimedCall> calls_;
    std::vector<std::size_t> numbers_;  // of the zones' policies in the last call
    std::uint64_t sequence_ = 0;
};

inline std::string show(const Decision& d) {
    std::ostringstream out;
    out << (d.allowed ? "allowed" : "rejected") << " rate " << int{d.rate} << " limit " << d.limit
        << " remaining " << d.remaining << " reset " << d.reset_after << " retry " << d.retry_after
        << " delay " << d.delay << " excess " << d.excess_milli;
    return out.str();
}

inline std::string show(const Content& content) {
    std::ostringstream out;
    for (const std::uint64_t word : content) {
        out << " " << std::hex << word;
    }
    return out.str();
}

// What core has after the same calls, and what it makes of their replies.
class Mirror {
  public:
    // `kept` are the values that the keys of the call have after it.
    void compare(const TimedCall& call, std::string_view reply, const redisReply& kept) {
        Micros time = 0;
        RC_ASSERT(decode_time(&reply, &time));
        RC_ASSERT(time == call.now);
        if (call.sequence == 0) {
            compare_decisions(call, reply);
        } else {
            compare_charges(call, reply, kept);
        }
        std::size_t at = 0;
        for (const CallGroup& group : call.groups) {
            for (const CallLimit& limit : group.limits) {
                compare_client(call, limit, value_of(kept, at++));
            }
        }
    }

  private:
    static std::string value_of(const redisReply& kept, std::size_t at) {
        const redisReply& value = *kept.element[at];
        return value.type == REDIS_REPLY_STRING ? text_of(value) : std::string(8, '\0');
    }

    std::vector<MirroredLimit> limits_of(const TimedCall& call, const CallGroup& group) {
        std::vector<MirroredLimit> limits;
        for (const CallLimit& limit : group.limits) {
            const auto& [policy, layout] = call.policies[limit.policy];
            limits.push_back({&clients_[limit.key], &policy, layout, limit.cost});
        }
        return limits;
    }

    void compare_decisions(const TimedCall& call, std::string_view reply) {
        for (const CallGroup& group : call.groups) {
            std::vector<MirroredLimit> limits = limits_of(call, group);
            mirror_group(&limits, call.now, group.refund);
            for (std::size_t i = 0; !group.refund && i < limits.size(); ++i) {
                Decision expected = limits[i].check.decision();
                if (expected.allowed && expected.delay == 0) {
                    expected.excess_milli = 0;  // nobody asks for it then
                }
                Decision got = {};
                RC_ASSERT(decode_decision(&reply, *limits[i].policy, &got));
                if (!(got == expected)) {
                    RC_FAIL("at " + std::to_string(call.now) + " client " + group.limits[i].key +
                            "\n  core  " + show(expected) + "\n  redis " + show(got));
                }
            }
            steps += limits.size();
        }
        RC_ASSERT(reply.empty());
    }

    void compare_charges(const TimedCall& call, std::string_view reply, const redisReply& kept) {
        const bool applied = call.now < guarded_until_ && call.sequence <= guard_;
        if (!applied) {
            guard_ = call.sequence;
            guarded_until_ = call.now + kDay;
        }
        std::vector<MirroredLimit> limits = limits_of(call, call.groups[0]);
        for (std::size_t i = 0; i < limits.size(); ++i) {
            limits[i].cost = applied ? 0 : limits[i].cost;
            const std::uint32_t expected = mirror_charge(&limits[i], call.now, call.age);
            std::uint32_t overshoot = 0;
            std::string_view value;
            RC_ASSERT(decode_entry(&reply, &overshoot, &value));
            RC_ASSERT(overshoot <= expected);
            RC_ASSERT(call.age != 0 || overshoot == expected);
            const std::string whole = value_of(kept, i);
            const bool log = limits[i].layout.algorithm == Algorithm::kSlidingLog;
            const bool gone = static_cast<Micros>(bytes_at(whole, 0, 8)) <= call.now;
            RC_ASSERT(value == (log || gone ? "" : whole.substr(8)));
        }
        RC_ASSERT(reply.empty());
        steps += limits.size();
    }

    void compare_client(const TimedCall& call, const CallLimit& limit, const std::string& text) {
        MirroredClient* client = &clients_[limit.key];
        const auto moment = static_cast<Micros>(bytes_at(text, 0, 8));
        const std::string where = "at " + std::to_string(call.now) + " client " + limit.key;
        if ((moment > call.now) != client->present()) {
            RC_FAIL(where + (client->present() ? " is forgotten, not at " + std::to_string(client->moment())
                                               : " is kept until " + std::to_string(moment)));
        }
        if (!client->present()) {
            return;
        }
        // The longest of all waits counts from when a level was charged.
        const bool longest = moment >= kForever && client->moment() - moment <= call.age;
        if (client->vague() || longest ? moment < client->moment() - call.age : moment != client->moment()) {
            RC_FAIL(where + " is kept until " + std::to_string(moment) + ", not " +
                    std::to_string(client->moment()));
        }
        client->set_moment(moment);
        const std::string_view value = std::string_view(text).substr(8);
        ValueReader reader(client->layout(), value);
        const std::optional<Content> content = reader.read();
        const Content expected = content_of(client->layout(), client->words());
        if (!content || *content != expected) {
            RC_FAIL(where + "\n  core " + show(expected) + "\n  redis" +
                    (content ? show(*content) : " cannot be read"));
        }
        RC_ASSERT(!has_lives(client->layout()) || static_cast<Micros>(reader.lives()) == moment);
        if (call.policies[limit.policy].second.algorithm != Algorithm::kSlidingLog) {
            compare_decoded(call.policies[limit.policy].first, value, *client);
        }
    }

    // Whoever takes the value over, with this layout or another, has what core has.
    static void compare_decoded(const Policy& policy, std::string_view value, const MirroredClient& client) {
        for (std::uint32_t rates = 0; rates <= kMaxRates; ++rates) {
            if (rates != 0 && rates < policy.rates.size) {
                continue;
            }
            const StateLayout layout = rates == 0 ? client.layout() : layout_of(policy, rates, 0);
            Words expected = client.read(policy, layout);
            if (layout.varied) {
                expected[weight_index(layout)] = 0;
            }
            Words words(words_of(layout), ~std::uint64_t{0});
            RC_ASSERT(decode_value(policy, layout, value, words.data()));
            if (words != expected) {
                RC_FAIL("in room for " + std::to_string(rates) + "\n  core   " + show(expected) +
                        "\n  decoded" + show(words));
            }
        }
    }

    std::map<std::string, MirroredClient> clients_;
    std::uint64_t guard_ = 0;
    Micros guarded_until_ = 0;
};

inline void redis_agrees(const Scenario& scenario) {
    const Calls calls(scenario);
    Connection& connection = server->connection();
    connection.send({"FLUSHALL"});
    for (const TimedCall& call : calls.all()) {
        connection.send(call.command());
        std::vector<std::string> get = call.keys();
        get.insert(get.begin(), "MGET");
        connection.send(get);
    }
    std::vector<Reply> replies;
    for (std::size_t i = 0; i < 2 * calls.all().size() + 1; ++i) {
        replies.push_back(connection.take());
    }
    Mirror mirror;
    for (std::size_t i = 0; i < calls.all().size(); ++i) {
        const redisReply& reply = *replies[2 * i + 1];
        if (reply.type != REDIS_REPLY_STRING) {
            RC_FAIL("the script says " + text_of(reply));
        }
        mirror.compare(calls.all()[i], {reply.str, reply.len}, *replies[2 * i + 2]);
    }
}

struct Kind {
    const char* name;
    unsigned bits;
    std::uint32_t zones;
};

// Logs that are rings in Redis: all of them, those of more than a few entries, and those of a variable rate.
template <class Kinds>
void compare_rings(const Kinds& kinds) {
    start_server(server_programs()[0]);
    bool kept = true;
    for (const long whole : {0, 8, 60}) {
        load_scripts(whole);
        for (const Kind& kind : kinds) {
            kept &= rc::check(
                "whole up to " + std::to_string(whole) + ", " + kind.name + ": Redis agrees",
                [&] { redis_agrees(*any_scenario(Algorithm::kSlidingLog, kind.bits, kind.zones)); });
        }
    }
    assert_true(kept);
}

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

inline int stop_server(void**) {
    server.reset();
    return 0;
}

inline bool whole_run() {
    return getenv("RL_LONG") != nullptr && getenv("RC_PARAMS") == nullptr && getenv("RL_SANITIZE") == nullptr;
}

// Sets RC_PARAMS, as far as nobody has, to `successes` scenarios of each kind if the run is whole, else to
// fewer.
inline void set_parameters(const char* successes) {
    const char* given = getenv("RC_PARAMS");
    const char* fewer = getenv("RL_SANITIZE") != nullptr ? "9" : "12";
    std::string parameters =
        given != nullptr ? given : std::string("max_success=") + (whole_run() ? successes : fewer);
    if (parameters.find("seed=") == std::string::npos) {
        // The same every time, so that whoever runs the tests sees what others saw; RL_SEED takes another.
        const char* seed = getenv("RL_SEED");
        parameters += std::string(" seed=") + (seed != nullptr ? seed : "898494491");
    }
    if (parameters.find("max_size=") == std::string::npos) {
        parameters += " max_size=150";
    }
    setenv("RC_PARAMS", parameters.c_str(), 1);
}

}  // namespace rate_limit
