// The directive rate_limit_zone.
#include <algorithm>

#include "configuration/options.h"
#include "nginx/collections.h"
#include "nginx/shared_state.h"

namespace rate_limit {
namespace {

constexpr std::uint32_t kDefaultVariableRates = 2;
constexpr std::uint32_t kDefaultVariableLog = 100;
constexpr Micros kDefaultDenyFor = kSecond;

constexpr char kZoneForm[] = "KEY zone=NAME:SIZE rate=RATES [option=value ...]";

// A rate_limit_zone while it is being read.
struct ZoneReader : DirectiveReader {
    Zone* zone;
    std::size_t size = 0;  // of zone=, bytes
    std::uint64_t rates = kDefaultVariableRates;
    std::uint64_t max_count = kMaxSmallCount;
    std::uint64_t log = kDefaultVariableLog;

    char* set_rate() const;
    void warn_of_repeated_rate() const;
    char* check_name(ngx_http_rate_limit_main_conf_t* conf) const;
    char* check_algorithm() const;
    char* check_variable_rate() const;
    char* check_sync() const;
    char* check_lease() const;
    char* check_memory_zone() const;
    char* check_redis_zone() const;
    char* check_size() const;
};

Parsed read_zone(ZoneReader* reader, const OptionValue& value) {
    const std::string_view text = view(value.text);
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos || colon == 0) {
        return Parsed::kInvalid;
    }
    const std::string_view name = text.substr(0, colon);
    const auto is_wrong = [](char c) { return c <= ' ' || c > '~' || c == '"' || c == '\\'; };
    if (std::any_of(name.begin(), name.end(), is_wrong)) {
        refuse(reader->cf, reader->cmd,
               "invalid zone name in \"%V\", it must be visible ASCII characters without quotes and "
               "backslashes",
               &value.word);
        return Parsed::kRefused;
    }
    reader->zone->name = ngx_str(name);
    reader->zone->label = name;
    ngx_str_t size_text = ngx_str(text.substr(colon + 1));
    const ssize_t bytes = ngx_parse_size(&size_text);
    if (bytes == NGX_ERROR) {
        refuse(reader->cf, reader->cmd,
               "invalid size \"%V\" in \"%V\", it must be a size such as 512k or 10m", &size_text,
               &value.word);
        return Parsed::kRefused;
    }
    reader->size = static_cast<std::size_t>(bytes);
    return Parsed::kOk;
}

Parsed read_rate(ZoneReader* reader, const OptionValue& value) {
    reader->zone->rate_text = value.text;
    return value.text.len != 0 ? Parsed::kOk : Parsed::kInvalid;
}

Parsed read_algorithm(ZoneReader* reader, const OptionValue& value) {
    if (parse_algorithm(view(value.text), &reader->zone->policy.algorithm)) {
        return Parsed::kOk;
    }
    reader->refuse_value(value, all_algorithm_names().text);
    return Parsed::kRefused;
}

Parsed read_align(ZoneReader* reader, const OptionValue& value) {
    return value.read_choice("clock", "first", &reader->zone->policy.align_first);
}

Parsed read_count(ZoneReader* reader, const OptionValue& value) {
    return value.read_choice("allowed", "all", &reader->zone->policy.count_all);
}

Parsed read_on_error(ZoneReader* reader, const OptionValue& value) {
    if (view(value.text) == "open") {
        reader->zone->on_error = OnError::kOpen;
    } else if (view(value.text) == "closed") {
        reader->zone->on_error = OnError::kClosed;
    } else if (view(value.text) == "local") {
        reader->zone->on_error = OnError::kLocal;
    } else {
        return Parsed::kInvalid;
    }
    return Parsed::kOk;
}

Parsed read_redis(ZoneReader* reader, const OptionValue& value) {
    reader->zone->redis_name = value.text;
    return value.text.len != 0 ? Parsed::kOk : Parsed::kInvalid;
}

Parsed read_deny_cache(ZoneReader* reader, const OptionValue& value) {
    std::uint64_t milliseconds = 0;
    const Parsed parsed = view(value.text) == "off" ? Parsed::kOk : value.read_milliseconds(&milliseconds);
    reader->zone->deny_for = static_cast<Micros>(milliseconds) * 1000;
    return parsed;
}

Parsed read_sync(ZoneReader* reader, const OptionValue& value) {
    std::uint64_t milliseconds = 0;
    const Parsed parsed = value.read_milliseconds(&milliseconds);
    reader->zone->sync = static_cast<ngx_msec_t>(milliseconds);
    reader->zone->policy.debt = true;
    return parsed;
}

// A number, or a percentage of the limit.
Parsed read_lease(ZoneReader* reader, const OptionValue& value) {
    std::string_view text = view(value.text);
    LeaseSize& lease = reader->zone->lease;
    lease.is_percent = !text.empty() && text.back() == '%';
    if (lease.is_percent) {
        text.remove_suffix(1);
    }
    const std::uint64_t most = lease.is_percent ? 100 : value.most;
    return parse_number(text, most, &lease.amount) && lease.amount >= value.least ? Parsed::kOk
                                                                                  : Parsed::kInvalid;
}

Parsed read_min_interval(ZoneReader* reader, const OptionValue& value) {
    std::uint64_t milliseconds = 0;
    const Parsed parsed = value.read_milliseconds(&milliseconds);
    reader->zone->policy.min_interval = static_cast<Micros>(milliseconds) * 1000;
    return parsed;
}

template <auto Policy::*kMember>
Parsed read_policy_number(ZoneReader* reader, const OptionValue& value) {
    return value.read_number(&(reader->zone->policy.*kMember));
}

template <std::uint64_t ZoneReader::*kMember>
Parsed read_own_number(ZoneReader* reader, const OptionValue& value) {
    return value.read_number(&(reader->*kMember));
}

constexpr Option<ZoneReader> kZoneOptions[] = {
    {"zone", "NAME:SIZE", "the name of the zone, and the memory for the state of all clients",
     "NAME:SIZE, such as zone=api:10m", read_zone},
    {"rate", "RATES", "one rate, or several rates separated by commas",
     "rates such as 10r/s or 100r/m,1000r/h, or a variable", read_rate},
    {"algorithm", "NAME", "how requests are counted", nullptr, read_algorithm},
    {"burst", "N", "number of requests beyond the first that may come at once", kNumberAccepted,
     read_policy_number<&Policy::burst>, 0, kMaxBurst},
    {"capacity", "N", "number of tokens that a client can save up", kNumberAccepted,
     read_policy_number<&Policy::capacity>, 1, kMaxCount},
    {"buckets", "N", "number of sub-windows", kNumberAccepted, read_policy_number<&Policy::buckets>,
     kMinBuckets, kMaxBuckets},
    {"align", "clock|first", "windows start on the clock, or with a client's first request", "clock or first",
     read_align},
    {"min_interval", "TIME", "minimum time between two admitted requests of a client",
     "a time from 1ms to 366d, such as 200ms or 2s", read_min_interval, 1, kMaxPeriod / 1000},
    {"count", "allowed|all", "all: rejected requests count too", "allowed or all", read_count},
    {"redis", "NAME", "the state is in the Redis with this name", "a name of rate_limit_redis", read_redis},
    {"sync", "TIME", "requests are decided from shared memory and never wait for Redis",
     "a time from 10ms to 1h", read_sync, 10, kHourMilliseconds},
    {"lease", "N|N%", "most requests of a client that an instance takes from Redis in advance",
     "a number from %uL to %uL, or a percentage of the limit from 1%% to 100%%", read_lease, 1, kMaxCount},
    {"on_error", "open|closed|local", "the fallback for a request whose limit cannot be decided",
     "open, closed or local", read_on_error},
    {"deny_cache", "TIME|off", "maximum time for which shared memory remembers a rejection",
     "a time from 1ms to 1h, or off", read_deny_cache, 1, kHourMilliseconds},
    {"rates", "N", "maximum number of rates in a value", kNumberAccepted, read_own_number<&ZoneReader::rates>,
     1, kMaxRates},
    {"max_count", "N", "maximum count in a value", kNumberAccepted, read_own_number<&ZoneReader::max_count>,
     1, kMaxCount},
    {"log", "N", "maximum count in a value", kNumberAccepted, read_own_number<&ZoneReader::log>, 1,
     kMaxLogEntries},
};

char* ZoneReader::set_rate() const {
    ngx_str_t text = zone->rate_text;
    if (view(text).find('$') != std::string_view::npos) {
        zone->rate = pool_new<ngx_http_complex_value_t>(cf->pool);
        zone->rates = pool_new<RateMemo>(cf->pool);
        if (zone->rate == nullptr || zone->rates == nullptr || !compile_value(cf, cmd, &text, zone->rate)) {
            return static_cast<char*>(NGX_CONF_ERROR);
        }
        zone->layout = layout_of(zone->policy, static_cast<std::uint32_t>(rates),
                                 static_cast<std::uint32_t>(log), max_count);
        return nullptr;
    }
    const char* wrong = parse_rates(view(text), &zone->policy.rates);
    if (wrong != nullptr) {
        return refuse(cf, cmd, "invalid rate \"%V\": %s; it must be %s", &text, wrong, kRatesAccepted);
    }
    warn_of_repeated_rate();
    zone->configured = zone->policy.rates;
    zone->layout = layout_of(zone->policy);
    if (zone->layout.log_entries > kMaxLogEntries) {
        return refuse(cf, cmd, "rate \"%V\" is too large for sliding_log, its count must be from 1 to %uD",
                      &text, kMaxLogEntries);
    }
    return nullptr;
}

void ZoneReader::warn_of_repeated_rate() const {
    const RateList& list = zone->policy.rates;
    for (std::uint32_t i = 1; i < list.size; i++) {
        const auto same = [&](const Rate& rate) {
            return rate.count == list.rates[i].count && rate.period == list.rates[i].period;
        };
        if (std::any_of(list.rates, list.rates + i, same)) {
            warn(cf, cmd, "\"rate=%V\" has a duplicate rate, which has no effect", &zone->rate_text);
            return;
        }
    }
}

// Whether another module has shared memory of this name.
bool is_taken(ngx_conf_t* cf, const ngx_str_t& name) {
    for (const ngx_shm_zone_t& zone : elements<const ngx_shm_zone_t>(cf->cycle->shared_memory)) {
        if (view(zone.shm.name) == view(name) && zone.tag != &ngx_http_rate_limit_module) {
            return true;
        }
    }
    return false;
}

char* ZoneReader::check_name(ngx_http_rate_limit_main_conf_t* conf) const {
    if (find_zone(conf, zone->name) != nullptr) {
        return refuse(cf, cmd, "zone \"%V\" is duplicate", &zone->name);
    }
    if (is_taken(cf, zone->name)) {
        return refuse(cf, cmd, "zone \"%V\" is a zone of another module, it must be a name of no other zone",
                      &zone->name);
    }
    return nullptr;
}

// Refuses options that the algorithm does not use.
char* ZoneReader::check_algorithm() const {
    const Algorithm algorithm = zone->policy.algorithm;
    const struct {
        const char* name;
        AlgorithmOption option;
    } options[] = {{"burst", kTakesBurst},
                   {"capacity", kTakesCapacity},
                   {"buckets", kTakesBuckets},
                   {"align", kTakesAlign}};
    for (const auto& row : options) {
        const ngx_str_t word = given(row.name);
        if (word.len != 0 && (kAlgorithmTraits[static_cast<unsigned>(algorithm)].options & row.option) == 0) {
            return refuse(cf, cmd, "\"%V\" requires the algorithm %s, not %s", &word,
                          names_of_algorithms_taking(row.option).text, algorithm_name(algorithm));
        }
    }
    return check_variable_rate();
}

// Refuses options for a variable rate if the rate is fixed or the algorithm does not use them.
char* ZoneReader::check_variable_rate() const {
    const bool is_log = has_state<StateKind::kLog>(zone->policy.algorithm);
    const ngx_str_t rates_word = given("rates");
    if (rates_word.len != 0 && (zone->rate == nullptr || is_log)) {
        return refuse(cf, cmd, "\"%V\" requires a variable in rate= and an algorithm other than sliding_log",
                      &rates_word);
    }
    const ngx_str_t count_word = given("max_count");
    if (count_word.len != 0 && (zone->rate == nullptr || is_log)) {
        return refuse(cf, cmd, "\"%V\" requires a variable in rate= and an algorithm other than sliding_log",
                      &count_word);
    }
    const ngx_str_t log_word = given("log");
    if (log_word.len != 0 && (zone->rate == nullptr || !is_log)) {
        return refuse(cf, cmd, "\"%V\" requires a variable in rate= and the algorithm sliding_log",
                      &log_word);
    }
    return nullptr;
}

// Refuses what a zone with sync= cannot have.
char* ZoneReader::check_sync() const {
    const ngx_str_t sync = given("sync");
    if (has_state<StateKind::kLog>(zone->policy.algorithm)) {
        return refuse(cf, cmd,
                      "\"%V\" requires an algorithm other than sliding_log, such as sliding_buckets: "
                      "sliding_log would send the time of every request",
                      &sync);
    }
    for (const char* option : {"on_error", "deny_cache"}) {
        const ngx_str_t word = given(option);
        if (word.len != 0) {
            return refuse(cf, cmd, "\"%V\" cannot be used with \"%V\", since no request waits for Redis",
                          &word, &sync);
        }
    }
    return nullptr;
}

// Refuses what a zone with lease= cannot have.
char* ZoneReader::check_lease() const {
    const ngx_str_t lease = given("lease");
    const ngx_str_t sync = given("sync");
    if (sync.len != 0) {
        return refuse(cf, cmd,
                      "\"%V\" cannot be used with \"%V\": sync= decides all requests in shared memory, "
                      "without leases",
                      &lease, &sync);
    }
    const char* objection = lease_objection(zone->policy);
    if (objection != nullptr) {
        return refuse(cf, cmd, "\"%V\" cannot be used: %s", &lease, objection);
    }
    return nullptr;
}

// Refuses what only a zone in Redis can have.
char* ZoneReader::check_memory_zone() const {
    for (const char* option : {"sync", "lease", "deny_cache"}) {
        const ngx_str_t word = given(option);
        if (word.len != 0) {
            return refuse(cf, cmd, "\"%V\" requires \"redis=\"", &word);
        }
    }
    if (zone->on_error == OnError::kLocal) {
        return refuse(cf, cmd,
                      "\"on_error=local\" requires \"redis=\"; without it, it must be open or closed");
    }
    return nullptr;
}

// Refuses what a zone in Redis cannot have.
char* ZoneReader::check_redis_zone() const {
    if (is_given("sync")) {
        if (char* wrong = check_sync()) {
            return wrong;
        }
    }
    if (is_given("lease")) {
        if (char* wrong = check_lease()) {
            return wrong;
        }
    }
    const ngx_str_t deny_cache = given("deny_cache");
    if (zone->policy.count_all && deny_cache.len != 0 && zone->deny_for != 0) {
        return refuse(cf, cmd,
                      "\"%V\" cannot be used with \"count=all\", which counts each rejected request; it must "
                      "be off",
                      &deny_cache);
    }
    if (view(zone->name).find_first_of("{}") != std::string_view::npos) {
        const ngx_str_t word = given("zone");
        return refuse(cf, cmd, "\"redis=\" requires a zone name without braces, not \"%V\"", &word);
    }
    return nullptr;
}

char* ZoneReader::check_size() const {
    const std::size_t least = zone_least_size(*zone);
    if (size < least) {
        const ngx_str_t word = given("zone");
        return refuse(cf, cmd,
                      "\"%V\" is too small, its size must be at least %uzk for this rate and algorithm",
                      &word, (least + 1023) / 1024);
    }
    return nullptr;
}

// Finds the index of the variable if a key is one variable: such a key is evaluated without a copy. The index
// is NGX_ERROR for any other key. False if memory is exhausted.
bool find_key_variable(ngx_conf_t* cf, std::string_view key, ngx_int_t* index) {
    *index = NGX_ERROR;
    if (key.size() < 2 || key[0] != '$' || !is_variable_name(key.substr(1))) {
        return true;
    }
    ngx_str_t name = ngx_str(key.substr(1));
    *index = ngx_http_get_variable_index(cf, &name);
    return *index != NGX_ERROR;
}

// Whether a key is the bytes of an address. Names of variables are case-insensitive in nginx.
bool is_binary_address(std::string_view key) {
    return same_letters(key, "$binary_remote_addr") || same_letters(key, "${binary_remote_addr}");
}

// Reads and checks all but the key. Returns null, or NGX_CONF_ERROR after an error was logged.
char* read_zone_options(ZoneReader* reader, ngx_http_rate_limit_main_conf_t* conf) {
    if (char* wrong = read_options(reader, kZoneOptions)) {
        return wrong;
    }
    for (const char* required : {"zone", "rate"}) {
        if (!reader->is_given(required)) {
            return refuse(reader->cf, reader->cmd, "requires \"%s=\" after \"%V\": %s", required,
                          &words_of(reader->cf)[1], kZoneForm);
        }
    }
    char* wrong = reader->check_name(conf);
    if (wrong == nullptr) {
        wrong = reader->set_rate();
    }
    if (wrong == nullptr) {
        wrong = reader->check_algorithm();
    }
    if (wrong == nullptr) {
        wrong = reader->is_given("redis") ? reader->check_redis_zone() : reader->check_memory_zone();
    }
    if (reader->is_given("redis") && reader->zone->policy.count_all) {
        reader->zone->deny_for = 0;
    }
    return wrong != nullptr ? wrong : reader->check_size();
}

char* read_zone_directive(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_main_conf_t* conf) {
    auto* zone = pool_new<Zone>(cf->pool);
    if (zone == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    set_position(cf, zone);
    ngx_str_t* words = words_of(cf);
    if (cf->args->nelts < 2 || words[1].len == 0 || find_option(kZoneOptions, words[1]) != nullptr) {
        return refuse(cf, cmd, "requires a key before \"%V\": %s", &words[cf->args->nelts < 2 ? 0 : 1],
                      kZoneForm);
    }
    zone->deny_for = kDefaultDenyFor;
    zone->by_address = is_binary_address(view(words[1]));
    ZoneReader reader = {{cf, cmd, 2}, zone};
    if (char* wrong = read_zone_options(&reader, conf)) {
        return wrong;
    }
    auto** slot = static_cast<Zone**>(ngx_array_push(&conf->zones));
    if (slot == nullptr || !compile_value(cf, cmd, &words[1], &zone->key) ||
        !find_key_variable(cf, view(words[1]), &zone->key_variable) ||
        !zone_add_memory(cf, zone, reader.size) || !add_shared_state(cf, zone)) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = zone;
    if (view(words[1]).find('$') == std::string_view::npos) {
        warn(cf, cmd, "key \"%V\" of zone \"%V\" has no variable: all clients share one quota", &words[1],
             &zone->name);
    }
    return NGX_CONF_OK;
}

}  // namespace
}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_zone(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_zone_directive(cf, cmd, static_cast<ngx_http_rate_limit_main_conf_t*>(conf));
}
