// The directive rate_limit_zone.
#include <algorithm>
#include <iterator>

#include "directives/configuration.h"
#include "nginx/shared_state.h"

namespace rate_limit {
namespace {

constexpr std::uint32_t kDefaultVariableRates = 2;
constexpr std::uint32_t kDefaultVariableLog = 100;
constexpr Micros kDefaultDenyFor = kSecond;

constexpr char kZoneForm[] = "KEY zone=NAME:SIZE rate=RATES [option=value ...]";
constexpr char kZoneOptions[] =
    "zone=, rate=, algorithm=, burst=, capacity=, buckets=, align=, min_interval=, count=, redis=, sync=, "
    "on_error=, deny_cache=, rates= and log=";
constexpr char kAlgorithmsAccepted[] =
    "token_bucket, leaky_bucket, gcra, fixed_window, sliding_window, sliding_buckets or sliding_log";

constexpr const char* kZoneOptionNames[] = {"zone",    "rate",     "algorithm", "burst",        "capacity",
                                            "buckets", "align",    "count",     "min_interval", "rates",
                                            "log",     "on_error", "redis",     "deny_cache",   "sync"};

// A rate_limit_zone while it is being read.
struct ZoneReader {
    ngx_conf_t* cf;
    ngx_command_t* cmd;
    Zone* zone;
    ngx_str_t zone_word = {};  // zone=NAME:SIZE, whole
    ngx_str_t rate_word = {};  // what follows rate=
    ngx_str_t burst_word = {}, capacity_word = {}, buckets_word = {}, align_word = {}, rates_word = {},
              log_word = {}, on_error_word = {}, deny_cache_word = {}, sync_word = {};
    std::size_t size = 0;
    std::uint64_t rates = kDefaultVariableRates;
    std::uint64_t log = kDefaultVariableLog;

    char* read_word(ngx_str_t* word);
    char* read_name(ngx_str_t value);
    char* read_number(const ngx_str_t& word, const ngx_str_t& value, std::uint64_t least, std::uint64_t most,
                      std::uint64_t* number) const;
    char* read_choice(const ngx_str_t& word, const ngx_str_t& value, const char* no, const char* yes,
                      bool* flag) const;
    char* read_on_error(const ngx_str_t& word, const ngx_str_t& value);
    char* read_deny_cache(const ngx_str_t& word, ngx_str_t value);
    char* read_sync(const ngx_str_t& word, ngx_str_t value);
    char* read_rate();
    void warn_of_repeated_rate() const;
    char* check_options() const;
    char* check_sync() const;
    char* check_store() const;
    char* unused(const ngx_str_t& word, const char* users) const;
    char* check_size() const;
};

char* ZoneReader::read_number(const ngx_str_t& word, const ngx_str_t& value, std::uint64_t least,
                              std::uint64_t most, std::uint64_t* number) const {
    if (!parse_number(view(value), most, number) || *number < least) {
        return refuse(cf, cmd, "\"%V\" is out of range; accepted are numbers from %uL to %uL", &word, least,
                      most);
    }
    return nullptr;
}

char* ZoneReader::read_choice(const ngx_str_t& word, const ngx_str_t& value, const char* no, const char* yes,
                              bool* flag) const {
    *flag = view(value) == yes;
    if (!*flag && view(value) != no) {
        return refuse(cf, cmd, "\"%V\" is not known; accepted are %s or %s", &word, no, yes);
    }
    return nullptr;
}

char* ZoneReader::read_name(ngx_str_t value) {
    const std::string_view text = view(value);
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos || colon == 0) {
        return refuse(cf, cmd,
                      "\"%V\" has no name or no size; accepted is zone=NAME:SIZE, such as zone=api:10m",
                      &zone_word);
    }
    zone->name = ngx_str(text.substr(0, colon));
    zone->label = view(zone->name);
    for (const char c : view(zone->name)) {
        if (c <= ' ' || c > '~' || c == '"' || c == '\\') {
            return refuse(cf, cmd,
                          "\"%V\": a zone's name is made of visible ASCII without quotes and backslashes",
                          &zone_word);
        }
    }
    ngx_str_t size_word = ngx_str(text.substr(colon + 1));
    const ssize_t bytes = ngx_parse_size(&size_word);
    if (bytes == NGX_ERROR) {
        return refuse(cf, cmd, "\"%V\": \"%V\" is not a size; accepted are sizes such as 512k or 10m",
                      &zone_word, &size_word);
    }
    size = static_cast<std::size_t>(bytes);
    return nullptr;
}

char* ZoneReader::read_word(ngx_str_t* word) {
    Policy& policy = zone->policy;
    ngx_str_t value = {};
    std::uint64_t number = 0;
    char* wrong = nullptr;
    if (option(*word, "zone", &value)) {
        zone_word = *word;
        return read_name(value);
    }
    if (option(*word, "rate", &value)) {
        rate_word = value;
        return nullptr;
    }
    if (option(*word, "algorithm", &value)) {
        if (!parse_algorithm(view(value), &policy.algorithm)) {
            return refuse(cf, cmd, "\"%V\" is not known; accepted are %s", word, kAlgorithmsAccepted);
        }
        return nullptr;
    }
    if (option(*word, "burst", &value)) {
        burst_word = *word;
        wrong = read_number(*word, value, 0, kMaxBurst, &number);
        policy.burst = static_cast<std::uint32_t>(number);
        return wrong;
    }
    if (option(*word, "capacity", &value)) {
        capacity_word = *word;
        wrong = read_number(*word, value, 1, kMaxCount, &number);
        policy.capacity = static_cast<std::uint32_t>(number);
        return wrong;
    }
    if (option(*word, "buckets", &value)) {
        buckets_word = *word;
        wrong = read_number(*word, value, kMinBuckets, kMaxBuckets, &number);
        policy.buckets = static_cast<std::uint32_t>(number);
        return wrong;
    }
    if (option(*word, "rates", &value)) {
        rates_word = *word;
        return read_number(*word, value, 1, kMaxRates, &rates);
    }
    if (option(*word, "log", &value)) {
        log_word = *word;
        return read_number(*word, value, 1, kMaxLogEntries, &log);
    }
    if (option(*word, "align", &value)) {
        align_word = *word;
        return read_choice(*word, value, "clock", "first", &policy.align_first);
    }
    if (option(*word, "count", &value)) {
        return read_choice(*word, value, "allowed", "all", &policy.count_all);
    }
    if (option(*word, "on_error", &value)) {
        return read_on_error(*word, value);
    }
    if (option(*word, "redis", &value)) {
        zone->redis_name = value;
        return value.len != 0
                   ? nullptr
                   : refuse(cf, cmd, "\"%V\" names no server; accepted is a name of rate_limit_redis", word);
    }
    if (option(*word, "deny_cache", &value)) {
        return read_deny_cache(*word, value);
    }
    if (option(*word, "sync", &value)) {
        return read_sync(*word, value);
    }
    if (option(*word, "min_interval", &value)) {
        const ngx_int_t milliseconds = ngx_parse_time(&value, 0);
        if (milliseconds == NGX_ERROR || milliseconds == 0 || milliseconds > kMaxPeriod / 1000) {
            return refuse(cf, cmd,
                          "\"%V\" is not a time; accepted are times from 1ms to 366d, such as 200ms or 2s",
                          word);
        }
        policy.min_interval = static_cast<Micros>(milliseconds) * 1000;
        return nullptr;
    }
    return refuse(cf, cmd, "\"%V\" is not an option; accepted are %s", word, kZoneOptions);
}

char* ZoneReader::read_on_error(const ngx_str_t& word, const ngx_str_t& value) {
    on_error_word = word;
    if (view(value) == "open") {
        zone->on_error = OnError::kOpen;
    } else if (view(value) == "closed") {
        zone->on_error = OnError::kClosed;
    } else if (view(value) == "local") {
        zone->on_error = OnError::kLocal;
    } else {
        return refuse(cf, cmd, "\"%V\" is not known; accepted are open, closed or local", &word);
    }
    return nullptr;
}

char* ZoneReader::read_deny_cache(const ngx_str_t& word, ngx_str_t value) {
    constexpr ngx_int_t kMost = 3'600'000;
    deny_cache_word = word;
    if (view(value) == "off") {
        zone->deny_for = 0;
        return nullptr;
    }
    const ngx_int_t milliseconds = ngx_parse_time(&value, 0);
    if (milliseconds == NGX_ERROR || milliseconds < 1 || milliseconds > kMost) {
        return refuse(cf, cmd, "\"%V\" is not a time; accepted are times from 1ms to 1h, or off", &word);
    }
    zone->deny_for = static_cast<Micros>(milliseconds) * 1000;
    return nullptr;
}

char* ZoneReader::read_sync(const ngx_str_t& word, ngx_str_t value) {
    constexpr ngx_int_t kLeast = 10;
    constexpr ngx_int_t kMost = 3'600'000;
    sync_word = word;
    const ngx_int_t milliseconds = ngx_parse_time(&value, 0);
    if (milliseconds == NGX_ERROR || milliseconds < kLeast || milliseconds > kMost) {
        return refuse(cf, cmd, "\"%V\" is not a time; accepted are times from 10ms to 1h", &word);
    }
    zone->sync = static_cast<ngx_msec_t>(milliseconds);
    zone->policy.debt = true;
    return nullptr;
}

char* ZoneReader::read_rate() {
    zone->rate_text = rate_word;
    if (ngx_strlchr(rate_word.data, rate_word.data + rate_word.len, '$') != nullptr) {
        zone->rate = pool_new<ngx_http_complex_value_t>(cf->pool);
        zone->rates = pool_new<RateMemo>(cf->pool);
        if (zone->rate == nullptr || zone->rates == nullptr ||
            !compile_value(cf, cmd, &rate_word, zone->rate)) {
            return static_cast<char*>(NGX_CONF_ERROR);
        }
        zone->layout =
            layout_of(zone->policy, static_cast<std::uint32_t>(rates), static_cast<std::uint32_t>(log));
        return nullptr;
    }
    const char* wrong = parse_rates(view(rate_word), &zone->policy.rates);
    if (wrong != nullptr) {
        return refuse(cf, cmd, "rate \"%V\" is wrong: %s; %s", &rate_word, wrong, kRatesAccepted);
    }
    warn_of_repeated_rate();
    zone->configured = zone->policy.rates;
    zone->layout = layout_of(zone->policy);
    if (zone->layout.log_entries > kMaxLogEntries) {
        return refuse(cf, cmd, "rate \"%V\" is too large for sliding_log; accepted are counts up to %uD",
                      &rate_word, kMaxLogEntries);
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
            warn(cf, cmd, "\"rate=%V\" has the same rate twice, which limits no more than once", &rate_word);
            return;
        }
    }
}

char* ZoneReader::unused(const ngx_str_t& word, const char* users) const {
    return refuse(cf, cmd, "\"%V\" is not an option of %s; it is accepted with %s", &word,
                  algorithm_name(zone->policy.algorithm), users);
}

char* ZoneReader::check_options() const {
    const Algorithm algorithm = zone->policy.algorithm;
    if (burst_word.len != 0 && algorithm != Algorithm::kLeakyBucket && algorithm != Algorithm::kGcra) {
        return unused(burst_word, "leaky_bucket and gcra");
    }
    if (capacity_word.len != 0 && algorithm != Algorithm::kTokenBucket) {
        return unused(capacity_word, "token_bucket");
    }
    if (buckets_word.len != 0 && algorithm != Algorithm::kSlidingBuckets) {
        return unused(buckets_word, "sliding_buckets");
    }
    if (align_word.len != 0 && algorithm != Algorithm::kFixedWindow) {
        return unused(align_word, "fixed_window");
    }
    if (rates_word.len != 0 && (zone->rate == nullptr || algorithm == Algorithm::kSlidingLog)) {
        return refuse(cf, cmd,
                      "\"%V\" is accepted where rate= is a variable and the algorithm is not sliding_log",
                      &rates_word);
    }
    if (log_word.len != 0 && (zone->rate == nullptr || algorithm != Algorithm::kSlidingLog)) {
        return refuse(cf, cmd,
                      "\"%V\" is accepted where rate= is a variable and the algorithm is sliding_log",
                      &log_word);
    }
    return nullptr;
}

// What a zone that reconciles with Redis now and then has no use for.
char* ZoneReader::check_sync() const {
    if (zone->policy.algorithm == Algorithm::kSlidingLog) {
        return refuse(cf, cmd,
                      "\"%V\" is not an option of sliding_log, since the time of every request would have to "
                      "travel; accepted are all other algorithms, such as sliding_buckets",
                      &sync_word);
    }
    if (on_error_word.len != 0 || deny_cache_word.len != 0) {
        return refuse(cf, cmd, "\"%V\" has no meaning with sync=, where no request waits for Redis",
                      on_error_word.len != 0 ? &on_error_word : &deny_cache_word);
    }
    return nullptr;
}

// What only a zone in Redis has, or cannot have.
char* ZoneReader::check_store() const {
    if (zone->redis_name.len == 0) {
        if (sync_word.len != 0) {
            return refuse(cf, cmd, "\"%V\" is accepted with redis=", &sync_word);
        }
        if (zone->on_error == OnError::kLocal) {
            return refuse(cf, cmd, "\"%V\" is accepted with redis=; a zone in memory has open or closed",
                          &on_error_word);
        }
        if (deny_cache_word.len != 0) {
            return refuse(cf, cmd, "\"%V\" is accepted with redis=", &deny_cache_word);
        }
        return nullptr;
    }
    if (sync_word.len != 0) {
        if (char* wrong = check_sync()) {
            return wrong;
        }
    }
    if (zone->policy.count_all && deny_cache_word.len != 0 && zone->deny_for != 0) {
        return refuse(cf, cmd,
                      "\"%V\" contradicts count=all, which counts each rejected request; accepted is off",
                      &deny_cache_word);
    }
    if (zone->policy.count_all) {
        zone->deny_for = 0;
    }
    if (view(zone->name).find_first_of("{}") != std::string_view::npos) {
        return refuse(cf, cmd, "\"%V\": with redis= a zone's name is accepted without braces", &zone_word);
    }
    return nullptr;
}

char* ZoneReader::check_size() const {
    const std::size_t least = zone_least_size(*zone);
    if (size < least) {
        return refuse(cf, cmd,
                      "\"%V\" is too small; accepted are sizes from %uzk for this rate and algorithm",
                      &zone_word, (least + 1023) / 1024);
    }
    return nullptr;
}

bool is_zone_option(const ngx_str_t& word) {
    ngx_str_t value;
    return std::any_of(std::begin(kZoneOptionNames), std::end(kZoneOptionNames),
                       [&](const char* name) { return option(word, name, &value); });
}

// Whether another module has shared memory of this name.
bool is_taken(ngx_conf_t* cf, const ngx_str_t& name) {
    for (ngx_list_part_t* part = &cf->cycle->shared_memory.part; part != nullptr; part = part->next) {
        const auto* zones = static_cast<ngx_shm_zone_t*>(part->elts);
        for (ngx_uint_t i = 0; i < part->nelts; i++) {
            if (view(zones[i].shm.name) == view(name) && zones[i].tag != &ngx_http_rate_limit_module) {
                return true;
            }
        }
    }
    return false;
}

// A key that is one variable is read without making text of it first.
bool find_key_variable(ngx_conf_t* cf, std::string_view key, ngx_int_t* index) {
    *index = NGX_ERROR;
    if (key.size() < 2 || key[0] != '$' || !is_variable_name(key.substr(1))) {
        return true;
    }
    ngx_str_t name = ngx_str(key.substr(1));
    *index = ngx_http_get_variable_index(cf, &name);
    return *index != NGX_ERROR;
}

// Whether a key is the bytes of an address. nginx does not tell letters of variables apart by their case.
bool is_binary_address(std::string_view key) {
    return same_letters(key, "$binary_remote_addr") || same_letters(key, "${binary_remote_addr}");
}

char* read_zone(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_main_conf_t* conf) {
    auto* zone = pool_new<Zone>(cf->pool);
    if (zone == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    zone->file = cf->conf_file->file.name;
    zone->line = cf->conf_file->line;
    ngx_str_t* words = words_of(cf);
    if (cf->args->nelts < 2 || words[1].len == 0 || is_zone_option(words[1])) {
        return refuse(cf, cmd, "the key is missing before \"%V\"; accepted is %s",
                      &words[cf->args->nelts < 2 ? 0 : 1], kZoneForm);
    }
    if (char* wrong = refuse_repeated(cf, cmd, 2)) {
        return wrong;
    }
    zone->deny_for = kDefaultDenyFor;
    zone->by_address = is_binary_address(view(words[1]));
    ZoneReader reader = {cf, cmd, zone};
    for (ngx_uint_t i = 2; i < cf->args->nelts; i++) {
        char* wrong = reader.read_word(&words[i]);
        if (wrong != nullptr) {
            return wrong;
        }
    }
    if (reader.zone_word.len == 0 || reader.rate_word.len == 0) {
        return refuse(cf, cmd, "%s is missing after \"%V\"; accepted is %s",
                      reader.zone_word.len == 0 ? "zone=" : "rate=", &words[1], kZoneForm);
    }
    if (find_zone(conf, zone->name) != nullptr) {
        return refuse(cf, cmd, "zone \"%V\" is defined twice; accepted is each name once", &zone->name);
    }
    if (is_taken(cf, zone->name)) {
        return refuse(cf, cmd, "zone \"%V\" is another module's; accepted are names that no other zone has",
                      &zone->name);
    }
    char* wrong = reader.read_rate();
    if (wrong == nullptr) {
        wrong = reader.check_options();
    }
    if (wrong == nullptr) {
        wrong = reader.check_store();
    }
    if (wrong == nullptr) {
        wrong = reader.check_size();
    }
    if (wrong != nullptr) {
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
        warn(cf, cmd, "key \"%V\" of zone \"%V\" has no variable: all clients together have one quota",
             &words[1], &zone->name);
    }
    return NGX_CONF_OK;
}

}  // namespace
}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_zone(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_zone(cf, cmd, static_cast<ngx_http_rate_limit_main_conf_t*>(conf));
}
