// A zone of an instance that follows the fleet, and a client without a script that sends its commands.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "fleet/fleet_commands.h"
#include "fleet/fleet_zone.h"
#include "memory/processes.h"
#include "store/script_calls.h"

namespace rate_limit {

inline redis::Settings settings_of(const std::string& path, redis::Milliseconds timeout = 1000) {
    return settings_with({}, path, timeout);
}

inline Policy policy_of(std::string_view rates) {
    Policy policy;
    policy.algorithm = Algorithm::kTokenBucket;
    assert_null(parse_rates(rates, &policy.rates));
    return policy;
}

constexpr std::size_t kDenialsSize = 64 * 64;

// A zone in the memory of an instance.
struct TestZone {
    explicit TestZone(const std::string& as)
        : name(as),
          policy(policy_of("10r/h")),
          zone(zone_with_unsent_counts(policy, 4)),
          memory(kDenialsSize),
          denials(Denials::create(memory.at(), memory.size(), kKey)) {
        assert_non_null(denials);
    }

    FleetZone followed() {
        return {name, "10r/h", &policy, layout_of(policy), &live, &zone.table(), denials};
    }

    bool has(std::string_view text) const {
        std::uint64_t version = 0;
        RateList rates = {};
        RateList wanted = {};
        if (live.read(&version, &rates) == LiveRate::Kind::kNone) {
            return text.empty();
        }
        return !text.empty() && parse_rates(text, &wanted) == nullptr && same_rates(rates, wanted);
    }

    // Charges a client, and remembers a denial of it.
    void use(std::string_view client) {
        NameRoom room;
        TableLimit limit = memory_limit(&zone.table(), policy, client, 4, &room, true);
        assert_int_equal(check(&limit, 1, kNow, this_process()), Verdict::kAdmitted);
        Decision decision = limit.decision;
        decision.allowed = false;
        decision.retry_after = kSecond;
        denials->remember(denials->hash(client), policy, 1, kNow, kNow, decision, kSecond);
    }

    bool knows(std::string_view client) {
        Decision decision;
        Micros time = 0;
        const Slot slot = zone->find(zone->hash(client), this_process());
        if (slot.state != nullptr) {
            Table::keep(slot, this_process());
        }
        const bool denied = denials->find(denials->hash(client), policy, 1, kNow, &decision, &time);
        assert_int_equal(slot.state != nullptr, denied);
        return denied;
    }

    std::string name;
    Policy policy;
    Zone zone;
    Memory memory;
    Denials* denials;
    LiveRate live;
};

// A client with its settings.
class TestClient {
  public:
    TestClient(const std::string& path, redis::TestLoop* loop)
        : settings_(settings_of(path)), client_(redis::Client::make(settings_, {}, loop)) {}

    redis::Client* get() const { return client_.get(); }
    void close() { client_.reset(); }

  private:
    redis::Settings settings_;
    std::unique_ptr<redis::Client> client_;
};

// Sends a command; returns its reply.
inline std::string run(const FleetCommand& command, redis::Client* client, redis::TestLoop* loop) {
    struct Seen {
        bool answered = false;
        redis::Error error = redis::Error::kNone;
        std::string reply = {};
    } seen;
    const auto answer = [](void* self, redis::Error error, std::string_view reply) {
        *static_cast<Seen*>(self) = {true, error, std::string(reply)};
    };
    assert_true(send_command(command, client, answer, &seen));
    assert_true(loop->run_until([&] { return seen.answered; }));
    assert_int_equal(seen.error, redis::Error::kNone);
    return seen.reply;
}

}  // namespace rate_limit
