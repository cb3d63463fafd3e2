// Rates such as 10r/s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/constants.h"
#include "core/time.h"

namespace rate_limit {

struct Rate {
    std::uint64_t count;  // requests, 1 to kMaxCount
    Micros period;        // one second to kMaxPeriod, in whole seconds
};

// The rates of a policy, which all apply. No rate means `off`: unlimited.
struct RateList {
    std::uint32_t size;
    Rate rates[kMaxRates];
};

// Reads `10r/s`, `100r/30s`, `100r/m,1000r/h` or `off`. Returns null, or a sentence without a full stop that
// says what is wrong; `*list` is then unspecified.
const char* parse_rates(std::string_view text, RateList* list);

// Writes the rates in the form that parse_rates reads, each period in its largest unit, to `at`, which has
// room for kLongestRates bytes. Returns the size of the text.
constexpr std::size_t kLongestRates = 240;
std::size_t print_rates(const RateList& list, char* at);

// A period in the largest unit of which it is a multiple.
struct PeriodUnit {
    std::uint64_t count;
    char letter;  // w, d, h, m or s
};
PeriodUnit unit_of_period(Micros period);

// Reads an unsigned decimal number of at most `most`; false for anything else.
bool parse_number(std::string_view text, std::uint64_t most, std::uint64_t* value);

// What parse_rates accepts, for error messages: "it must be …".
extern const char kRatesAccepted[];

}  // namespace rate_limit
