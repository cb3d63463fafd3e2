// Runs random scenarios by the scripts in a server, by core and by the commands of src/server. All must make
// the same decisions, keep the same state and expire it at the same time; the replies and values of the
// commands have the same bytes as those of the scripts.
#pragma once

#include <rapidcheck.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "lua/call.h"
#include "lua/mirror.h"
#include "lua/native.h"
#include "lua/scenario.h"
#include "lua/script.h"
#include "lua/server.h"
#include "protocol/redis_value.h"
#include "test.h"

namespace rate_limit {

// The last argument of a call is the time, and the first 8 bytes of a value are its expiry. In a call whose
// keys are not declared, the script takes the time for one more key; no limit has this key.
constexpr char kTestKeys[] = R"lua(
local from_bytes, to_bytes = struct.unpack, struct.pack
local now = tonumber(ARGV[#ARGV])
local modern, values = true, false
local function part_of(key, value)
    if value and from_bytes('<I8', value) <= now then
        redis.call('DEL', key)
        value = false
    end
    return value and string.sub(value, 9)
end
local function call(name, ...)
    local found = redis.call(name, ...)
    for i = 1, name == 'MGET' and #found or 0 do
        found[i] = part_of(select(i, ...), found[i])
    end
    return found
end
local function try(name, key)
    assert(name == 'GET')
    local value = redis.pcall(name, key)
    return value and value.err and value or part_of(key, value)
end
local function rewrite(_, key, value)
    redis.call('SET', key, string.sub(redis.call('GET', key), 1, 8) .. value)
end
local function save(key, value, expires, same_expiry)
    assert(expires % 1 == 0)
    assert(not same_expiry or from_bytes('<I8', redis.call('GET', key)) == expires)
    if value then
        redis.call('SET', key, to_bytes('<I8', expires) .. value)
    else
        redis.call('DEL', key)
    end
end
)lua";

constexpr char kTestLargeValues[] = R"lua(
local function read_part(key, first, last)
    local expires = redis.call('GETRANGE', key, 0, 7)
    if first == 0 and #expires == 8 and from_bytes('<I8', expires) <= now then
        redis.call('DEL', key)
    end
    return redis.call('GETRANGE', key, first + 8, last < 0 and last or last + 8)
end
local function write_part(key, first, text)
    redis.call('SETRANGE', key, first + 8, text)
end
local function save_until(key, expires)
    assert(expires % 1 == 0)
    redis.call('SETRANGE', key, 0, to_bytes('<I8', expires))
end
)lua";

constexpr KeyFiles kTestFiles = {kTestKeys, kTestLargeValues};

inline std::uint64_t steps = 0;  // limits that were decided or changed
inline std::unique_ptr<Server> server;
inline std::string sha;
inline std::string sync_sha;
inline bool declared = true;  // whether checks declare their keys
inline bool native = true;    // whether the commands of src/server store the same values as the scripts
inline std::uint64_t native_calls = 0;  // whose replies and values were compared

// Loads scripts in which a log of up to `whole` entries is not a ring; see script_text.
inline void load_scripts(long whole) {
    Connection& connection = server->connection();
    sha = text_of(*connection.call({"SCRIPT", "LOAD", script_text("ORDER", &kTestFiles, whole)}));
    sync_sha = text_of(*connection.call({"SCRIPT", "LOAD", script_text("ORDER.sync", &kTestFiles, whole)}));
}

inline void start_server(const std::string& program) {
    server = std::make_unique<Server>(program);
    load_scripts(-1);
}

// A check or a sync call at a given time.
struct TimedCall : Call {
    Micros now = 0;
    std::uint64_t sequence = 0;  // of a sync call; 0 for a check
    Micros age = 0;              // of the charged requests

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

// Whether the marks of `rates` differ from those of all other periods that the zone had. If two periods have
// the same mark, a key may expire with the wrong one: see save() in lua/keys.lua.
inline bool has_own_marks(const RateList& rates, Marks* before) {
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

// The calls of a scenario. All checks of one moment are in one call, even if policies change in between. A
// client is charged at most once in a sync call. Some sync calls are repeated with the same sequence number.
class Calls {
  public:
    explicit Calls(const Scenario& scenario) : zones_(scenario.zones), marks_(zones_.size()) {
        for (std::size_t i = 0; i < zones_.size(); ++i) {
            has_own_marks(zones_[i].policy.rates, &marks_[i]);
        }
        Micros now = scenario.start;
        for (const Event& event : scenario.events) {
            now = scenario.moved(now, event.move);
            if (event.changes && has_own_marks(event.policy.rates, &marks_[event.limits[0].zone])) {
                zones_[event.limits[0].zone].policy = event.policy;
                numbers_.clear();
            }
            for (std::uint32_t i = 0; event.imposes && i < event.times; ++i) {
                begin(now);
                sequence_ += event.repeats && sequence_ != 0 ? 0 : 1;
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
        CallGroup group = {event.imposes ? kDecide : event.kind, {}};
        for (const ScenarioLimit& limit : event.limits) {
            const Micros at = std::max<Micros>(calls_.back().now - limit.before, 1);
            const Charge charge = {limit.cost + limit.more, limit.newest ? kForever : at};
            group.limits.push_back({numbers_[limit.zone], key_of(limit), limit.cost, charge});
        }
        call.groups.insert(call.groups.end(), times, group);
    }

    std::vector<ScenarioZone> zones_;
    std::vector<Marks> marks_;
    std::vector<TimedCall> calls_;
    std::vector<std::size_t> numbers_;  // index of each zone's policy in the last call
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

// Makes the same calls with core, and compares the replies and values.
class Mirror {
  public:
    // `kept` are the values of the call's keys after the call.
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
            limits.push_back({&clients_[limit.key], &policy, layout, limit.cost, limit.charge});
        }
        return limits;
    }

    void compare_decisions(const TimedCall& call, std::string_view reply) {
        for (const CallGroup& group : call.groups) {
            std::vector<MirroredLimit> limits = limits_of(call, group);
            mirror_group(&limits, call.now, group.kind);
            for (std::size_t i = 0; group.kind == kDecide && i < limits.size(); ++i) {
                Decision expected = limits[i].check.decision();
                if (expected.allowed && expected.delay == 0) {
                    expected.excess_milli = 0;  // the script does not reply with it
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
            const std::uint64_t expected = mirror_charge(&limits[i], call.now, call.age);
            std::uint64_t overshoot = 0;
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
        // kForever is counted from the time of the charge, which may be `age` ago.
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
        RC_ASSERT(!has_expiry(client->layout()) || static_cast<Micros>(reader.expiry()) == moment);
        if (call.policies[limit.policy].second.algorithm != Algorithm::kSlidingLog) {
            compare_decoded(call.policies[limit.policy].first, value, *client);
        }
    }

    // decode_value returns the state of core, for this layout and for others.
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

inline std::string show_bytes(std::string_view text) {
    std::string shown;
    for (const char byte : text) {
        char digits[4];
        std::snprintf(digits, sizeof(digits), "%02x ", static_cast<unsigned char>(byte));
        shown += digits;
    }
    return shown;
}

// Makes the same calls with the commands of src/server, and compares the bytes of replies and values.
class NativeMirror {
  public:
    void compare(const TimedCall& call, std::string_view reply, const redisReply& kept) {
        const std::vector<std::string> words = call.command();
        const std::string got = run(call, words);
        if (got.find("needs the script") == std::string::npos) {
            if (got != reply) {
                RC_FAIL("at " + std::to_string(call.now) + "\n  script " + show_bytes(reply) + "\n  native " +
                        show_bytes(got) + "\n  " + got);
            }
            compare_values(call, kept);
            native_calls++;
        } else if (call.sequence != 0) {
            set_guard(call);
        }
        copy_values(call, kept);
    }

  private:
    std::string run(const TimedCall& call, const std::vector<std::string>& words) {
        std::vector<std::string> keys = call.keys();
        if (call.sequence != 0) {
            keys.emplace_back("guard");
            const std::size_t at = 3 + keys.size();
            return server_.sync(keys, {words[at], words[at + 1], words[at + 2], words[at + 3]}, call.now);
        }
        const std::size_t at = declared ? 3 + keys.size() : 3;
        return server_.check(keys, words[at], words[at + 1], call.now);
    }

    void compare_values(const TimedCall& call, const redisReply& kept) {
        std::size_t at = 0;
        for (const std::string& key : call.keys()) {
            const redisReply& stored = *kept.element[at++];
            std::string expected = stored.type == REDIS_REPLY_STRING ? text_of(stored) : "";
            const auto found = server_.stored().find(key);
            std::string got;
            if (found != server_.stored().end()) {
                char expires[8];
                put_little_endian<8>(expires, static_cast<std::uint64_t>(found->second.expires));
                got = std::string(expires, 8) + found->second.value;
            }
            if (got != expected) {
                RC_FAIL("at " + std::to_string(call.now) + " client " + key + "\n  script " +
                        show_bytes(expected) + "\n  native " + show_bytes(got));
            }
        }
    }

    // The sequence numbers of a scenario never fall.
    void set_guard(const TimedCall& call) {
        StoredKey& guard = server_.stored()["guard"];
        const std::string sequence = std::to_string(call.sequence);
        if (guard.value != sequence || guard.expires <= call.now) {
            guard = {sequence, call.now + kDay};
        }
    }

    // The next call begins with the same values, even if this one needed the script.
    void copy_values(const TimedCall& call, const redisReply& kept) {
        std::size_t at = 0;
        for (const std::string& key : call.keys()) {
            const redisReply& stored = *kept.element[at++];
            server_.stored().erase(key);
            if (stored.type == REDIS_REPLY_STRING) {
                const std::string text = text_of(stored);
                server_.stored()[key] = {text.substr(8), static_cast<Micros>(bytes_at(text, 0, 8))};
            }
        }
    }

    NativeServer server_;
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
    NativeMirror native_mirror;
    for (std::size_t i = 0; i < calls.all().size(); ++i) {
        const redisReply& reply = *replies[2 * i + 1];
        if (reply.type != REDIS_REPLY_STRING) {
            RC_FAIL("the script says " + text_of(reply));
        }
        mirror.compare(calls.all()[i], {reply.str, reply.len}, *replies[2 * i + 2]);
        if (native) {
            native_mirror.compare(calls.all()[i], {reply.str, reply.len}, *replies[2 * i + 2]);
        }
    }
}

struct Kind {
    const char* name;
    unsigned bits;
    std::uint32_t zones;
};

// Compares logs that are rings in Redis: all logs, those of more than 8 and of more than 60 entries.
template <class Kinds>
void compare_rings(const Kinds& kinds) {
    start_server(server_programs()[0]);
    native = false;
    bool kept = true;
    for (const long whole : {0, 8, 60}) {
        load_scripts(whole);
        for (const Kind& kind : kinds) {
            kept &= rc::check(
                "whole up to " + std::to_string(whole) + ", " + kind.name + ": Redis agrees",
                [&] { redis_agrees(*any_scenario(Algorithm::kSlidingLog, kind.bits, kind.zones)); });
        }
    }
    native = true;
    assert_true(kept);
}

template <class Kinds>
void compare_with(const std::string& program, const Kinds& kinds) {
    start_server(program);
    const std::uint64_t before = steps;
    native_calls = 0;
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
    std::printf("# %s: %llu steps, %llu calls also by native commands, in %.1f s, RC_PARAMS='%s'\n",
                program.c_str(), static_cast<unsigned long long>(steps - before),
                static_cast<unsigned long long>(native_calls), took.count(), getenv("RC_PARAMS"));
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

// Sets the parameters of RC_PARAMS that the environment does not: `successes` scenarios of each kind with
// RL_LONG, otherwise fewer.
inline void set_parameters(const char* successes) {
    const char* given = getenv("RC_PARAMS");
    const char* fewer = getenv("RL_SANITIZE") != nullptr ? "9" : "12";
    std::string parameters =
        given != nullptr ? given : std::string("max_success=") + (whole_run() ? successes : fewer);
    if (parameters.find("seed=") == std::string::npos) {
        // A fixed seed makes failures reproducible. RL_SEED sets another.
        const char* seed = getenv("RL_SEED");
        parameters += std::string(" seed=") + (seed != nullptr ? seed : "898494491");
    }
    if (parameters.find("max_size=") == std::string::npos) {
        parameters += " max_size=150";
    }
    setenv("RC_PARAMS", parameters.c_str(), 1);
}

}  // namespace rate_limit
