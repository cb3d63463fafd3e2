// A table with unsent counts, its SyncLedger, a Ledger in the place of Redis, and the text of batches.
#pragma once

#include <set>
#include <string>

#include "ledger.h"
#include "test.h"

namespace rate_limit {

inline const Policy kPolicy = with_debt(policy_of(Algorithm::kSlidingWindow, "1000r/h"));
constexpr std::size_t kMany = 1000;

inline const Process& process() {
    static const Process this_host = this_process();
    return this_host;
}

// A table, its SyncLedger and its Ledger.
struct Scene {
    explicit Scene(const Policy& policy = kPolicy, Mode mode = Mode::kSync, Guard guard = Guard::kSender,
                   std::size_t sets = 8)
        : Scene(policy, layout_of(policy), mode, guard, sets) {}
    Scene(const Policy& policy, const StateLayout& layout, Mode mode, Guard guard, std::size_t sets = 8)
        : zone(policy, layout, size_with_unsent(layout, sets), true),
          sync_ledger(&zone.table(), zone.policy(), mode, guard, process()),
          ledger(policy, layout, guard) {}

    bool next(std::size_t most = kMany, Micros now = kNow) { return sync_ledger.next(now, most, &batch); }
    bool begin(std::size_t most = kMany, Micros now = kNow) {
        sync_ledger.begin_round();
        return next(most, now);
    }
    void confirm_all(Micros now = kNow) { confirm(&sync_ledger, batch, ledger.apply(batch, now), now); }

    Zone zone;
    SyncLedger sync_ledger;
    Ledger ledger;
    SyncBatch batch;
};

inline std::string content(const SyncBatch& batch) {
    std::set<std::string> parts;
    for (const SyncEntry& entry : batch.entries) {
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
