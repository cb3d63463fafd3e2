// Parses a scenario.
#include "simulation/scenario.h"

#include <cmath>
#include <cstdlib>
#include <functional>

namespace rate_limit::simulation {
namespace {

bool parse_real(std::string_view text, double least, double most, double* value) {
    const std::string copy(text);
    char* end = nullptr;
    *value = std::strtod(copy.c_str(), &end);
    return !copy.empty() && *end == '\0' && *value >= least && *value <= most;
}

// Parses 0.5ms, 10ms, 5s, 10m, 24h.
bool parse_time(std::string_view text, Micros* time) {
    constexpr struct {
        std::string_view name;
        double micros;
    } kUnits[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}};
    const std::size_t digits = text.find_first_not_of("0123456789.");
    const std::string_view unit = digits < text.size() ? text.substr(digits) : std::string_view();
    for (const auto& known : kUnits) {
        double number = 0;
        if (unit == known.name && parse_real(text.substr(0, digits), 0, 1e9, &number)) {
            *time = std::llround(number * known.micros);
            return true;
        }
    }
    return false;
}

bool parse_interval(std::string_view text, Micros* time) { return parse_time(text, time) && *time > 0; }

bool parse_count(std::string_view text, std::uint32_t* count) {
    std::uint64_t value = 0;
    const bool valid = parse_number(text, kMaxCount, &value);
    *count = static_cast<std::uint32_t>(value);
    return valid;
}

bool parse_instances(std::string_view text, std::uint32_t* count) {
    return parse_count(text, count) && *count > 0;
}

template <class T>
bool parse_list(std::string_view text, bool (*parse)(std::string_view, T*), std::vector<T>* list) {
    list->clear();
    for (;;) {
        const std::size_t comma = text.find(',');
        T item;
        if (!parse(text.substr(0, comma), &item)) {
            return false;
        }
        list->push_back(item);
        if (comma == std::string_view::npos) {
            return true;
        }
        text.remove_prefix(comma + 1);
    }
}

// Parses 500 and 10%.
bool parse_lease(std::string_view text, LeaseSize* size) {
    size->is_percent = !text.empty() && text.back() == '%';
    text.remove_suffix(size->is_percent ? 1 : 0);
    return parse_number(text, size->is_percent ? 100 : kMaxCount, &size->amount) && size->amount > 0;
}

struct Reader {
    std::string_view name;
    std::function<bool(std::string_view, Options*)> read;
};

bool read_file(std::string_view text, std::string* file) {
    *file = text;
    return !text.empty();
}

bool read_bursts(std::string_view text, Scenario* scenario) {
    const std::size_t slash = text.find('/');
    return slash != std::string_view::npos && parse_time(text.substr(0, slash), &scenario->on) &&
           parse_time(text.substr(slash + 1), &scenario->off) && scenario->on > 0;
}

bool read_floods(std::string_view text, Scenario* scenario) {
    const std::size_t slash = text.find('/');
    return slash != std::string_view::npos && parse_count(text.substr(0, slash), &scenario->floods) &&
           parse_real(text.substr(slash + 1), 0.01, 1e6, &scenario->flood);
}

const Reader kReaders[] = {
    {"algorithm",
     [](auto text, Options* o) {
         return parse_algorithm(text, &o->scenario.policy.algorithm) &&
                o->scenario.policy.algorithm != Algorithm::kSlidingLog;
     }},
    {"rate",
     [](auto text, Options* o) {
         return parse_rates(text, &o->scenario.policy.rates) == nullptr && o->scenario.policy.rates.size == 1;
     }},
    {"burst", [](auto text, Options* o) { return parse_number(text, kMaxCount, &o->scenario.policy.burst); }},
    {"capacity",
     [](auto text, Options* o) { return parse_number(text, kMaxCount, &o->scenario.policy.capacity); }},
    {"instances", [](auto text, Options* o) { return parse_list(text, parse_instances, &o->instances); }},
    {"sync", [](auto text, Options* o) { return parse_list(text, parse_interval, &o->syncs); }},
    {"lease", [](auto text, Options* o) { return parse_list(text, parse_lease, &o->leases); }},
    {"phases", [](auto text, Options* o) { return parse_list(text, parse_interval, &o->scenario.phases); }},
    {"latency", [](auto text, Options* o) { return parse_time(text, &o->scenario.latency); }},
    {"jitter", [](auto text, Options* o) { return parse_time(text, &o->scenario.jitter); }},
    {"loss", [](auto text, Options* o) { return parse_real(text, 0, 0.99, &o->scenario.loss); }},
    {"timeout", [](auto text, Options* o) { return parse_time(text, &o->scenario.timeout); }},
    {"clients",
     [](auto text, Options* o) {
         return parse_count(text, &o->scenario.clients) && o->scenario.clients > 0;
     }},
    {"zipf", [](auto text, Options* o) { return parse_real(text, 0, 10, &o->scenario.zipf); }},
    {"load", [](auto text, Options* o) { return parse_real(text, 0, 1e6, &o->scenario.load); }},
    {"requests", [](auto text, Options* o) { return parse_real(text, 1, 1e12, &o->scenario.requests); }},
    {"bursts", [](auto text, Options* o) { return read_bursts(text, &o->scenario); }},
    {"tail", [](auto text, Options* o) { return parse_real(text, 1.01, 100, &o->scenario.tail); }},
    {"swing", [](auto text, Options* o) { return parse_real(text, 0, 1, &o->scenario.swing); }},
    {"day", [](auto text, Options* o) { return parse_time(text, &o->scenario.day) && o->scenario.day > 0; }},
    {"floods", [](auto text, Options* o) { return read_floods(text, &o->scenario); }},
    {"sticky",
     [](auto text, Options* o) {
         o->scenario.sticky = text == "on";
         return text == "on" || text == "off";
     }},
    {"uneven", [](auto text, Options* o) { return parse_real(text, 0, 10, &o->scenario.uneven); }},
    {"turn", [](auto text, Options* o) { return parse_time(text, &o->scenario.turn); }},
    {"duration", [](auto text, Options* o) { return parse_time(text, &o->scenario.duration); }},
    {"warm_up", [](auto text, Options* o) { return parse_time(text, &o->scenario.warm_up); }},
    {"start",
     [](auto text, Options* o) {
         double seconds = 0;
         const bool valid = parse_real(text, 1, 4e9, &seconds);
         o->scenario.start = std::llround(seconds * 1e6);
         return valid;
     }},
    {"seed",
     [](auto text, Options* o) {
         std::uint32_t seed = 0;
         const bool valid = parse_count(text, &seed);
         o->scenario.seed = seed;
         return valid;
     }},
    {"trace", [](auto text, Options* o) { return read_file(text, &o->trace); }},
    {"write_trace", [](auto text, Options* o) { return read_file(text, &o->write_trace); }},
    {"per_client", [](auto text, Options* o) { return read_file(text, &o->per_client); }},
    {"header",
     [](auto text, Options* o) {
         o->header = text == "on";
         return text == "on" || text == "off";
     }},
};

bool read_word(std::string_view word, Options* options) {
    const std::size_t equals = word.find('=');
    for (const Reader& reader : kReaders) {
        if (equals != std::string_view::npos && word.substr(0, equals) == reader.name) {
            return reader.read(word.substr(equals + 1), options);
        }
    }
    return false;
}

}  // namespace

const char kUsage[] =
    "  algorithm=NAME      any but sliding_log (sliding_window)\n"
    "  rate=600r/m         one rate\n"
    "  burst=N capacity=N  as in rate_limit_zone\n"
    "  instances=N,...     of nginx (3)\n"
    "  sync=TIME,...       (100ms)\n"
    "  lease=N|N%,...      more runs, with leases instead of sync=; requires clients=1 and loss=0\n"
    "  phases=TIME,...     when each instance has a round, since the start (drawn by chance)\n"
    "  latency=TIME        to Redis and back (0.5ms)\n"
    "  jitter=TIME         at most so much more, each way (0s)\n"
    "  loss=PART           of calls and of answers, 0 to 0.99 (0); timeout=TIME: when they are missed "
    "(20ms)\n"
    "  clients=N           (20)\n"
    "  zipf=EXPONENT       how unequal they are (1)\n"
    "  load=FACTOR         what an average client sends, in units of its limit (2)\n"
    "  bursts=ON/OFF       clients send for about TIME and pause for about TIME, with the same load\n"
    "  tail=SHAPE          of these times, by Pareto: above 1, heavy below 2 (they are exponential)\n"
    "  swing=PART day=TIME so much more and less is sent in the middle and at the ends of a day (0, 24h)\n"
    "  requests=N          that all clients send together, on average, instead of load=\n"
    "  floods=N/FACTOR     N of the clients send FACTOR times the limit instead, once, for a tenth of the "
    "time\n"
    "  sticky=on           all requests of a client go to one instance\n"
    "  uneven=EXPONENT     how unequal the loads of the instances are (0)\n"
    "  turn=TIME           instances receive all requests in turn, each for TIME\n"
    "  duration=TIME       (10m); warm_up=TIME: so much of it is not in the totals (0s)\n"
    "  start=SECONDS       the time of day at which it begins, since 1970\n"
    "  seed=N              (1)\n"
    "  write_trace=FILE    write the arrivals and end: microseconds, client, instance\n"
    "  trace=FILE          read them\n"
    "  per_client=FILE     write what each client was admitted in the last run: client, admitted, exact\n"
    "  header=off          print no names of columns\n";

std::string parse_options(const std::vector<std::string_view>& words, Options* options) {
    if (parse_rates("600r/m", &options->scenario.policy.rates) != nullptr) {
        std::abort();
    }
    for (const std::string_view word : words) {
        if (!read_word(word, options)) {
            return "\"" + std::string(word) + "\" is not understood";
        }
    }
    if (options->scenario.warm_up >= options->scenario.duration) {
        return "warm_up= is not shorter than duration=";
    }
    if (options->scenario.floods >= options->scenario.clients) {
        return "floods= leaves no other clients";
    }
    if (!options->leases.empty() && (options->scenario.clients != 1 || options->scenario.loss != 0)) {
        return "lease= requires clients=1 and loss=0";
    }
    return "";
}

}  // namespace rate_limit::simulation
