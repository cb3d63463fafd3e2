// Looks for leases that are not used.
#include "lending/lease_keeper.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kSetsInRun = 4096;   // about a millisecond
constexpr redis::Milliseconds kLinger = 10;  // longer than the batcher holds what it gives back

}  // namespace

LeaseKeeper* LeaseKeeper::make(const StoreZone* zone, const Policy& policy, redis::Milliseconds after,
                               redis::Router* router, redis::Loop* loop, const Process& process) {
    auto* keeper = new LeaseKeeper(zone, policy, router, loop, process);
    keeper->start(after);
    return keeper;
}

bool LeaseKeeper::give_back(const IdleLease& idle) const {
    Policy policy = *policy_;
    policy.rates = idle.rates;
    if (zone_->lender->give_back({{idle.name, idle.name_size}, idle.client, &policy}, idle.rest)) {
        return true;
    }
    // While Redis is away, requests may use the units.
    zone_->leases->put_back(idle.client, idle.portion, idle.rest.amount, process());
    return false;
}

void LeaseKeeper::run() {
    IdleLease idle;
    while (zone_->leases->next_idle(&from_, kSetsInRun, false, process(), &idle)) {
        if (!give_back(idle)) {
            from_++;
            return;
        }
    }
}

void LeaseKeeper::on_end() {
    zone_->lender->end();
    IdleLease idle;
    std::uint64_t from = 0;
    while (zone_->leases->next_idle(&from, ~std::uint64_t{0}, true, process(), &idle) && give_back(idle)) {
    }
    linger_.reset(loop()->make_timer([](void*) {}, nullptr, true));
    linger_->arm(kLinger);
    resign();
}

}  // namespace rate_limit
