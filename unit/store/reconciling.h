// A table with accounts, its reconciler and a ledger, and what their batches say.
#pragma once

#include <set>
#include <string>

#include "ledger.h"
#include "test.h"

namespace rate_limit {

inline const Policy kPolicy = with_debt(policy_of(Algorithm::kSlidingWindow, "1000r/h"));
constexpr std::size_t kMany = 1000;

inline const Host& host() {
    static const Host this_host = this_process();
    return this_host;
}

// A table and who reconciles it.
struct Scene {
    explicit Scene(const Policy& policy = kPolicy, Mode mode = Mode::kSync, Guard guard = Guard::kSender,
                   std::size_t sets = 8)
        : Scene(policy, shape_of(policy), mode, guard, sets) {}
    Scene(const Policy& policy, const Shape& shape, Mode mode, Guard guard, std::size_t sets = 8)
        : zone(policy, shape, size_with_accounts(shape, sets), true),
          reconciler(&zone.table(), zone.policy(), mode, guard, host()),
          ledger(policy, shape, guard) {}

    bool next(std::size_t most = kMany, Micros now = kNow) { return reconciler.next(now, most, &batch); }
    bool begin(std::size_t most = kMany, Micros now = kNow) {
        reconciler.begin_round();
        return next(most, now);
    }
    void settle_all(Micros now = kNow) { settle(&reconciler, batch, ledger.apply(batch, now), now); }

    Zone zone;
    Reconciler reconciler;
    Ledger ledger;
    Batch batch;
};

inline std::string content(const Batch& batch) {
    std::set<std::string> parts;
    for (const Entry& entry : batch.entries) {
        parts.insert(std::string(entry.name()) + "=" + std::to_string(entry.amount) + " ");
    }
    std::string text;
    for (const std::string& part : parts) {
        text += part;
    }
    return text;
}

#define assert_content(batch, text) assert_string_equal(content(batch).c_str(), (text))

}  // namespace rate_limit
