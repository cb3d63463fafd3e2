// The arguments of API calls.
#pragma once

#include <string>

#include "core/rate.h"
#include "nginx/zone.h"

namespace rate_limit {

// The arguments of a call, decoded.
struct ApiArguments {
    std::string zone;
    std::string key;    // as written; after name_client, as short_name returns it
    std::string shown;  // after name_client, as shown_name returns it
    std::uint64_t permits = 1;
    std::uint64_t amount = 0;
    std::string rate;  // as written
    bool has_rate = false;
    RateList rates = {};  // after name_rate
};

// The arguments that a call accepts: none; zone and key; also rate; also permits; or amount, which is
// required, instead of permits.
enum class ApiTakes : std::uint8_t { kNothing, kClient, kRate, kPermits, kAmount };

// Reads the arguments of a call. False if they are wrong, with the reason as a sentence in `*wrong`.
bool read_arguments(std::string_view text, ApiTakes takes, ApiArguments* arguments, std::string* wrong);

// Finds the client of a zone that the key, as written, names.
void name_client(const Zone& zone, ApiArguments* arguments);

// Reads the argument rate, if there is one. False if it is not valid for the zone, with the reason as a
// sentence in `*wrong`.
bool name_rate(const Zone& zone, ApiArguments* arguments, std::string* wrong);

// Reads rates for a zone. False if the text is not valid, or the zone has no room for the rates, with the
// reason as a sentence in `*wrong`.
bool read_zone_rates(const Zone& zone, std::string_view text, RateList* rates, std::string* wrong);

// Text, escaped as in the log.
std::string escaped_key(std::string_view key);

// A client of a zone, as in the log. `client` is a name as shown_name returns it.
std::string client_text(const Zone& zone, std::string_view client);

}  // namespace rate_limit
