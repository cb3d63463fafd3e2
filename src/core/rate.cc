// The parser of rates.
#include "core/rate.h"

#include <charconv>

namespace rate_limit {
namespace {

Micros unit_of(char letter) {
    switch (letter) {
        case 's':
            return kSecond;
        case 'm':
            return 60 * kSecond;
        case 'h':
            return 3600 * kSecond;
        case 'd':
            return 24 * 3600 * kSecond;
        case 'w':
            return 7 * 24 * 3600 * kSecond;
        default:
            return 0;
    }
}

const char* parse_rate(std::string_view text, Rate* rate) {
    const std::size_t mark = text.find("r/");
    if (mark == std::string_view::npos || mark == 0) {
        return "it is not of the form COUNTr/PERIOD";
    }
    std::uint64_t count = 0;
    if (!parse_number(text.substr(0, mark), kMaxCount, &count) || count == 0) {
        return "the count is not a number from 1 to 9007199254740991";
    }
    std::string_view period = text.substr(mark + 2);
    const Micros unit = period.empty() ? 0 : unit_of(period.back());
    if (unit == 0) {
        return "the period does not end in s, m, h, d or w";
    }
    period.remove_suffix(1);
    std::uint64_t units = 1;
    if (!period.empty() &&
        (!parse_number(period, static_cast<std::uint64_t>(kMaxPeriod / unit), &units) || units == 0)) {
        return "the period is not from 1s to 366d";
    }
    rate->count = count;
    rate->period = static_cast<Micros>(units) * unit;
    return nullptr;
}

char* append_number(std::uint64_t number, char* at) { return std::to_chars(at, at + 20, number).ptr; }

char* print_period(Micros period, char* at) {
    const PeriodUnit unit = unit_of_period(period);
    if (unit.count != 1) {
        at = append_number(unit.count, at);
    }
    *at++ = unit.letter;
    return at;
}

}  // namespace

const char kRatesAccepted[] =
    "a rate such as 10r/s, 100r/m, 1000r/h, 5r/d, 20r/w or 100r/30s, up to 8 rates separated by commas, or "
    "off";

PeriodUnit unit_of_period(Micros period) {
    constexpr char kLetters[] = {'w', 'd', 'h', 'm', 's'};
    const char* letter = kLetters;
    while (period % unit_of(*letter) != 0) {
        letter++;
    }
    return {static_cast<std::uint64_t>(period / unit_of(*letter)), *letter};
}

bool parse_number(std::string_view text, std::uint64_t most, std::uint64_t* value) {
    if (text.empty()) {
        return false;
    }
    std::uint64_t number = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') {
            return false;
        }
        const auto digit = static_cast<std::uint64_t>(c - '0');
        if (digit > most || number > (most - digit) / 10) {
            return false;
        }
        number = number * 10 + digit;
    }
    *value = number;
    return true;
}

const char* parse_rates(std::string_view text, RateList* list) {
    list->size = 0;
    if (text == "off") {
        return nullptr;
    }
    for (;;) {
        if (list->size == kMaxRates) {
            return "there are more than 8 rates";
        }
        const std::size_t comma = text.find(',');
        const char* wrong = parse_rate(text.substr(0, comma), &list->rates[list->size]);
        if (wrong != nullptr) {
            return wrong;
        }
        list->size++;
        if (comma == std::string_view::npos) {
            return nullptr;
        }
        text.remove_prefix(comma + 1);
    }
}

std::size_t print_rates(const RateList& list, char* at) {
    static_assert(kLongestRates >= kMaxRates * (16 + 2 + 8 + 1 + 1),
                  "the longest count and period, and a comma");
    const char* start = at;
    for (const char c : std::string_view(list.size == 0 ? "off" : "")) {
        *at++ = c;
    }
    for (std::uint32_t i = 0; i < list.size; i++) {
        if (i != 0) {
            *at++ = ',';
        }
        at = append_number(list.rates[i].count, at);
        *at++ = 'r';
        *at++ = '/';
        at = print_period(list.rates[i].period, at);
    }
    return static_cast<std::size_t>(at - start);
}

}  // namespace rate_limit
