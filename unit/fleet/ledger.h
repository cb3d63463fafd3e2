// Takes the batches of a SyncLedger in the place of Redis: applies each sequence number of a sender once.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fleet/sync_ledger.h"
#include "memory/unsent.h"

namespace rate_limit {

using Mode = SyncLedger::Mode;
using Guard = SyncLedger::Guard;

class Ledger {
  public:
    // The state of each entry's client after a batch.
    using Answer = std::vector<std::vector<std::uint64_t>>;

    Ledger(const Policy& policy, const StateLayout& layout, Guard guard)
        : policy_(policy), layout_(layout), guard_(guard) {}

    Answer apply(const SyncBatch& batch, Micros now) {
        Answer answer;
        bool applied = false;
        for (const SyncEntry& entry : batch.entries) {
            const std::string name(entry.name());
            std::uint64_t& last = last_[{batch.sender, guard_ == Guard::kClient ? name : ""}];
            const bool is_new = batch.sequence > last || (guard_ == Guard::kSender && applied);
            if (is_new) {
                impose(name, entry, batch.since, now);
                applied = true;
                last = batch.sequence;
            }
            answer.push_back(state(name));
        }
        batches++;
        return answer;
    }

    // Requests that were charged to a client.
    std::uint64_t charged(const std::string& name) { return charged_[name]; }

    std::vector<std::uint64_t>& state(const std::string& name) {
        std::vector<std::uint64_t>& words = states_[name];
        words.resize(words_of(layout_));
        return words;
    }

    Decision peek(const std::string& name, Micros now, std::uint64_t cost) {
        Check check;
        return check.evaluate(policy_, layout_, state(name).data(), now, cost);
    }

    unsigned batches = 0;

  private:
    // A bucket is charged at the time of admission, or at the time of its last charge if that is later.
    Micros time_of_charge(const std::uint64_t* state, Micros since, Micros now) const {
        if (!is_bucket(policy_.algorithm) || since == 0) {
            return now;
        }
        const auto last = static_cast<Micros>(state[0] & ((std::uint64_t{1} << 52) - 1));
        return std::min(now, std::max(since, last));
    }

    void impose(const std::string& name, const SyncEntry& entry, Micros since, Micros now) {
        if (entry.amount == 0) {
            return;
        }
        Policy policy = policy_;
        policy.rates = entry.rates;
        std::uint64_t* words = state(name).data();
        Check check;
        check.evaluate(policy, layout_, words, time_of_charge(words, since, now), entry.amount);
        check.impose(words);
        charged_[name] += entry.amount;
    }

    Policy policy_;
    StateLayout layout_;
    Guard guard_;
    std::map<std::pair<std::uint64_t, std::string>, std::uint64_t> last_;
    std::map<std::string, std::uint64_t> charged_;
    std::map<std::string, std::vector<std::uint64_t>> states_;
};

inline void confirm(SyncLedger* sync_ledger, const SyncBatch& batch, const Ledger::Answer& answer,
                    Micros time) {
    for (std::size_t i = 0; i < batch.entries.size(); i++) {
        sync_ledger->confirm(batch, i, answer[i].data(), time, 0);
    }
}

// A round without failures.
inline void sync(SyncLedger* sync_ledger, Ledger* ledger, Micros now = kNow, std::size_t most = 5) {
    SyncBatch batch;
    sync_ledger->begin_round();
    while (sync_ledger->next(now, most, &batch)) {
        confirm(sync_ledger, batch, ledger->apply(batch, now), now);
    }
}

// A process that waits for others for a long time. `dead_process` is taken for dead.
inline std::uint32_t dead_process = 0;

inline Process host_number(std::uint32_t number) {
    Process process = made_up_process(number);
    process.alive = [](std::uint32_t process) {
        return process != dead_process && process_is_alive(process);
    };
    process.clock = [] { return monotonic_clock() / 20; };
    return process;
}

}  // namespace rate_limit
