// Lists the zones of a server by what happens to their requests.
#include "nginx/consequence.h"

#include <algorithm>
#include <functional>

#include "nginx/collections.h"
#include "nginx/zone.h"

namespace rate_limit {
namespace {

constexpr std::size_t kMostNames = 5;       // in a list of zones
constexpr std::size_t kLongestNames = 200;  // bytes

using IsMeant = std::function<bool(const Zone&)>;

// "zone a: ", "zones a, b: " or "zones a, b and 12 more: "; empty if no zone is meant. From the first name
// that does not fit on, zones are only counted.
std::string list_zones(const ngx_http_rate_limit_main_conf_t& conf, const IsMeant& is_meant) {
    std::string names;
    std::size_t named = 0;
    std::size_t all = 0;
    for (const Zone* zone : pointers<Zone>(conf.zones)) {
        if (!is_meant(*zone)) {
            continue;
        }
        all++;
        const std::string_view name = view(zone->name);
        if (named + 1 == all && named < kMostNames && names.size() + name.size() <= kLongestNames) {
            names += (named++ == 0 ? "" : ", ") + std::string(name);
        }
    }
    if (named == 0) {
        return all == 0 ? "" : std::to_string(all) + (all == 1 ? " zone: " : " zones: ");
    }
    if (named < all) {
        names += " and " + std::to_string(all - named) + " more";
    }
    return (all == 1 ? "zone " : "zones ") + names + ": ";
}

// Adds a sentence about some zones, if there are any.
void add(const std::string& zones, const char* what, std::string* text) {
    if (!zones.empty()) {
        *text += (text->empty() ? "" : "; ") + zones + what;
    }
}

}  // namespace

void describe_consequence(const ngx_http_rate_limit_main_conf_t& conf, RedisServer* server) {
    const auto list = [&](const IsMeant& is_meant) {
        return list_zones(conf, [&](const Zone& zone) { return zone.redis == server && is_meant(zone); });
    };
    const auto list_asking = [&](OnError on_error) {
        return list(
            [&](const Zone& zone) { return asks_redis(zone) && !zone.shadow && zone.on_error == on_error; });
    };
    std::string lost;
    add(list_asking(OnError::kOpen), "requests are not limited (on_error=open)", &lost);
    add(list_asking(OnError::kClosed), "requests get 503 (on_error=closed)", &lost);
    add(list_asking(OnError::kLocal),
        "requests are limited by this instance's share of the rate (on_error=local)", &lost);
    add(list([](const Zone& zone) { return !asks_redis(zone) && !zone.shadow; }),
        "requests are limited by what this instance counts (sync=)", &lost);
    add(list([](const Zone& zone) { return zone.shadow; }), "requests are not affected (rate_limit_shadow)",
        &lost);
    std::string back;
    add(list([](const Zone&) { return true; }), "limits are enforced again", &back);
    server->consequence = {lost, lost, back};
    server->background_consequence = {
        lost, "no request waits for this call; what instances share may be out of date", back};
}

}  // namespace rate_limit
