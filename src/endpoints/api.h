// The JSON API: its location, its calls, and what they have in common.
#pragma once

#include <string>

#include "identity/claims.h"
#include "nginx/api_settings.h"
#include "nginx/zone.h"
#include "store/fleet_operations.h"

namespace rate_limit {

// Reads `[write=on] [keys=off]` of a directive whose location has a handler; null, or an error.
char* read_api_settings(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_loc_conf_t* conf,
                        ngx_http_handler_pt handler);

// Answers a call. The location has settings.
ngx_int_t handle_api(ngx_http_request_t* r);

const ApiSettings& api_settings(ngx_http_request_t* r);

// What of the request's path follows that of its location, without a slash before it.
std::string_view api_path(ngx_http_request_t* r);

// What a call is asked for, decoded.
struct ApiArguments {
    std::string zone;
    std::string key;    // as it was written; after name_client, as short_name gives it
    std::string shown;  // after name_client, as shown_name gives it
    std::uint32_t permits = 1;
    std::string rate;  // as it was written
    bool has_rate = false;
    RateList rates = {};  // after name_rate
};

// Reads the arguments of a call: none, zone and key, rate besides, or permits besides that. False if they are
// wrong, with a sentence of why in `*wrong`.
enum class ApiTakes : std::uint8_t { kNothing, kClient, kRate, kPermits };
bool read_arguments(std::string_view text, ApiTakes takes, ApiArguments* arguments, std::string* wrong);

// Finds who the key that was written names in a zone.
void name_client(const Zone& zone, ApiArguments* arguments);

// Finds which rates the rate that was written, if any, names in a zone; false if it is none for the zone,
// with a sentence of why.
bool name_rate(const Zone& zone, ApiArguments* arguments, std::string* wrong);

// Reads rates for a zone; false if they are none, or none that it has room for, with a sentence of why.
bool read_zone_rates(const Zone& zone, std::string_view text, RateList* rates, std::string* wrong);

// Text as it is logged, and a client of a zone, whose name is as shown_name gives it.
std::string escaped_key(std::string_view key);
std::string client_text(const Zone& zone, std::string_view client);

// Answers. Each returns what a content handler returns.
ngx_int_t send_json(ngx_http_request_t* r, ngx_uint_t status, const identity::Json& json);
ngx_int_t send_api_problem(ngx_http_request_t* r, ngx_uint_t status, const std::string& detail);
ngx_int_t send_no_content(ngx_http_request_t* r);

// Adds a header to the answer; false if there is no memory. The texts must live as long as the request.
bool add_answer_header(ngx_http_request_t* r, std::string_view name, std::string_view value);

// Seconds, as a number of JSON.
json_t* json_seconds(Micros micros);

// What an operator is told of all zones, or of one with the clients that it limits most; empty if there is no
// memory.
identity::Json describe_zones(ngx_http_request_t* r);
identity::Json describe_zone(ngx_http_request_t* r, Zone* zone);

// Whether the Redis that zones need answer, and whether nobody is refused because one does not.
identity::Json describe_health(ngx_http_request_t* r, bool* healthy);

// Decides a client's request, and answers, now or later.
ngx_int_t api_check(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

// Looks at what a client has left, and answers, now or later. The first finds out whether the client is
// known, and goes on with the second.
ngx_int_t api_remaining(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);
ngx_int_t api_look(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, Known known);

// Forgets a client.
ngx_int_t api_reset(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments);

// Changes the rate of a zone to what the request's body says, or back to the configuration.
ngx_int_t api_patch(ngx_http_request_t* r, Zone* zone);
ngx_int_t api_restore(ngx_http_request_t* r, Zone* zone);

}  // namespace rate_limit
