// Tables whose SyncSenders call a real or a fake Redis.
#pragma once

#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/algorithm.h"
#include "fleet/sync_sender.h"
#include "memory/unsent.h"
#include "protocol/script_text.h"
#include "store/script_calls.h"

namespace rate_limit {

using Mode = SyncLedger::Mode;

// The time of day of nginx in a test.
inline Micros nginx_ahead = 0;                       // of the real time
inline const redis::TestLoop* nginx_loop = nullptr;  // if given, time passes as in this loop
inline Micros nginx_clock() {
    constexpr Micros kStart = 1'700'000'000 * kSecond;
    if (nginx_loop != nullptr) {
        return kStart + static_cast<Micros>(nginx_loop->now()) * 1000 + nginx_ahead;
    }
    return static_cast<Micros>(redis::microseconds_of(CLOCK_REALTIME)) + nginx_ahead;
}

inline redis::Settings sync_settings(const std::string& path, redis::Milliseconds timeout = 2000) {
    return settings_with(kSyncScript, path, timeout);
}

// One call of the script.
struct SeenCall {
    std::map<std::string, std::uint32_t> amounts;  // by key
    std::vector<std::string> keys;
    std::vector<std::string> policies;  // their records
    std::vector<unsigned> numbers;      // of the policy of each key
    std::string guard;
    std::string sequence;
    Micros age = 0;
};

// The record of a client in the reply.
inline std::string record(std::uint32_t overshoot, const std::string& value) {
    return packed(overshoot, 7) + packed(value.size(), 2) + value;
}

// The value of a key of fixed_window.
inline std::string window(Micros now, const Rate& rate, std::uint32_t count) {
    return packed(pack_window(window_end(now, rate.period), rate), 8) + packed(count, 4);
}

// A server that parses the calls of SyncSenders, and charges each sequence number of a guard once.
class SyncServer {
  public:
    explicit SyncServer(redis::TestLoop* loop) : server(loop) {
        server.answer = [this](const redis::Words& command) { return run(command); };
    }

    std::uint64_t total() const {
        std::uint64_t sum = 0;
        for (const auto& each : charged) {
            sum += each.second;
        }
        return sum;
    }

    redis::FakeServer server;
    std::vector<SeenCall> calls;
    std::map<std::string, std::uint64_t> charged;  // by key
    std::function<Micros()> clock = nginx_clock;
    std::function<std::string(const std::string& key)> answer = [](const std::string&) {
        return record(0, "");
    };
    std::function<std::string(const std::string& reply)> send =
        redis::bulk;  // makes the reply in RESP; empty for no reply

  private:
    std::string run(const redis::Words& command) {
        if (!calls_script(command, kSyncScriptSha1)) {
            return "-ERR what?\r\n";
        }
        const ScriptCall words(command);
        assert_int_equal(words.arguments.size(), 4);
        const std::string& entries = words.arguments[1];
        SeenCall call;
        call.keys.assign(words.keys.begin(), words.keys.end() - 1);
        call.guard = words.keys.back();
        call.policies = policy_records(words.arguments[0]);
        call.sequence = words.arguments[2];
        call.age = std::stoll(words.arguments[3]);
        assert_int_equal(entries.size(), call.keys.size() * kLargeLimitSize);
        const std::uint64_t sequence = std::stoull(call.sequence);
        const bool fresh = sequence > applied_[call.guard];
        std::string reply = packed(static_cast<std::uint64_t>(clock()), 8);
        for (std::size_t i = 0; i < call.keys.size(); i++) {
            const std::string& key = call.keys[i];
            const std::uint64_t amount = number_at(entries, i * kLargeLimitSize + 1, 7);
            call.numbers.push_back(static_cast<unsigned>(number_at(entries, i * kLargeLimitSize, 1)));
            assert_true(call.numbers.back() < call.policies.size());
            assert_true(call.amounts.emplace(key, amount).second);
            charged[key] += fresh ? amount : 0;
            reply += answer(key);
        }
        applied_[call.guard] = fresh ? sequence : applied_[call.guard];
        calls.push_back(call);
        return send(reply);
    }

    std::map<std::string, std::uint64_t> applied_;
};

// Several servers, each with a part of the slots.
class ShardedRouter final : public redis::Router {
  public:
    ShardedRouter(const std::vector<std::string>& paths, redis::TestLoop* loop,
                  redis::Milliseconds timeout = 2000) {
        for (const std::string& path : paths) {
            settings_.push_back(std::make_unique<redis::Settings>(sync_settings(path, timeout)));
            clients_.emplace_back(redis::Client::make(*settings_.back(), {}, loop));
        }
    }

    bool sharded() const override { return true; }
    redis::Client* client_of(redis::HashSlot slot) override {
        const std::size_t part = part_of(slot);
        return part != nobody ? clients_[part].get() : nullptr;
    }

    std::size_t part_of(redis::HashSlot slot) const { return slot % clients_.size(); }

    std::size_t nobody = ~std::size_t{0};  // this part of the slots has no server

  private:
    std::vector<std::unique_ptr<redis::Settings>> settings_;
    std::vector<std::unique_ptr<redis::Client>> clients_;
};

// A zone of an instance.
class InstanceZone {
  public:
    explicit InstanceZone(const Policy& policy, std::size_t sets = 16)
        : InstanceZone(policy, layout_of(policy), sets) {}
    InstanceZone(const Policy& policy, const StateLayout& layout, std::size_t sets)
        : zone(policy, layout, size_with_unsent(layout, sets), true, next_key()) {}

    // How many of `requests` requests are admitted, at nginx's time.
    unsigned admitted(const std::string& client, unsigned requests = 1, std::uint64_t cost = 1,
                      const Policy* policy = nullptr) const {
        unsigned count = 0;
        for (unsigned i = 0; i < requests; i++) {
            NameRoom room;
            TableLimit limit =
                memory_limit(&zone.table(), policy != nullptr ? *policy : zone.policy(), client, cost, &room);
            count += check(&limit, 1, nginx_clock(), this_process()) == Verdict::kAdmitted ? 1 : 0;
        }
        return count;
    }

    std::uint64_t remaining(const std::string& client) const {
        NameRoom room;
        TableLimit limit = memory_limit(&zone.table(), zone.policy(), client, 0, &room);
        check(&limit, 1, nginx_clock(), this_process());
        return limit.decision.remaining;
    }

    UnsentCounts& unsent_counts() const { return zone->unsent_counts(); }
    bool any() const { return marks(zone.table()) != 0; }

    Zone zone;

  private:
    // Each instance has its own key, and so its own sender.
    static HashKey next_key() {
        static std::uint64_t number = 0;
        HashKey key = kKey;
        key.low += ++number;
        return key;
    }
};

inline SyncSender::Options every(redis::Milliseconds time, Mode mode = Mode::kSync) {
    return {"api", "rate_limit:", time, mode};
}

inline std::unique_ptr<SyncSender> start(const InstanceZone& instance, redis::Router* router,
                                         redis::TestLoop* loop, const Process& process,
                                         const SyncSender::Options& options = every(10)) {
    std::unique_ptr<SyncSender> sync_sender(SyncSender::make(&instance.zone.table(), instance.zone.policy(),
                                                             options, router, loop, process, nginx_clock));
    assert_non_null(sync_sender.get());
    return sync_sender;
}

}  // namespace rate_limit
