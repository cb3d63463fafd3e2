// Gives back what idle clients have leased.
#pragma once

#include <memory>

#include "fleet/periodic_task.h"
#include "store/limit.h"

namespace rate_limit {

// The Leader is that of the leases. When the process is about to exit, all units are given back, also those
// that another process may still use: that process asks for others.
class LeaseKeeper final : public PeriodicTask {
  public:
    static constexpr redis::Milliseconds kEvery = 100;

    // The zone has leases and a lender. `policy` may change; its rates are used only for the zone's name.
    // Lifetimes are those of PeriodicTask; all else must outlive the task. The first run is `after`
    // milliseconds from now.
    static LeaseKeeper* make(const StoreZone* zone, const Policy& policy, redis::Milliseconds after,
                             redis::Router* router, redis::Loop* loop, const Process& process);

  private:
    LeaseKeeper(const StoreZone* zone, const Policy& policy, redis::Router* router, redis::Loop* loop,
                const Process& process)
        : PeriodicTask(&zone->leases->leader(), kEvery, router, loop, process),
          zone_(zone),
          policy_(&policy) {}

    void run() override;
    void on_end() override;
    bool give_back(const IdleLease& idle) const;

    const StoreZone* zone_;
    const Policy* policy_;
    std::uint64_t from_ = 0;                // the first set of the next run
    std::unique_ptr<redis::Alarm> linger_;  // keeps the process until its last calls are sent
};

}  // namespace rate_limit
