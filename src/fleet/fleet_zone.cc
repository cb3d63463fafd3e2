// Changes the live rate of a zone, and forgets its clients.
#include "fleet/fleet_zone.h"

namespace rate_limit {
namespace {

std::string text_of(const RateList& rates) {
    char text[kLongestRates];
    return {text, print_rates(rates, text)};
}

}  // namespace

RateTexts change_live_rate(const FleetZone& zone, const RateList* rates) {
    std::uint64_t version = 0;
    RateList before = {};
    const bool was_live = zone.live->read(&version, &before) == LiveRate::Kind::kRates;
    if (rates != nullptr) {
        zone.live->set(*rates);
    } else {
        zone.live->clear();
    }
    return {was_live ? text_of(before) : zone.configured,
            rates != nullptr ? text_of(*rates) : zone.configured};
}

bool forget_client(const FleetZone& zone, std::string_view client, const Process& process) {
    if (zone.denials != nullptr) {
        zone.denials->forget(zone.denials->hash(client));
    }
    if (zone.leases != nullptr) {
        zone.leases->forget(zone.leases->hash(client), process);
    }
    return zone.table != nullptr && zone.table->forget(zone.table->hash(client), process);
}

bool knows_client(const FleetZone& zone, std::string_view client, const Process& process) {
    const Slot slot = zone.table != nullptr ? zone.table->find(zone.table->hash(client), process) : Slot();
    if (slot.state != nullptr) {
        Table::keep(slot, process);
    }
    return slot.state != nullptr;
}

}  // namespace rate_limit
