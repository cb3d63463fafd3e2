// Reads the arguments of API calls.
#include "api/arguments.h"

#include <algorithm>

#include "identity/address.h"
#include "request/log.h"

namespace rate_limit {
namespace {

int digit_of(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = static_cast<char>(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Decodes escapes: a mark of `mark` bytes, for which `is_escape` is true, and two hexadecimal digits. False
// for a mark without two digits.
template <class IsEscape>
bool decode(std::string_view text, std::size_t mark, IsEscape is_escape, std::string* decoded) {
    decoded->clear();
    for (std::size_t i = 0; i < text.size(); i++) {
        if (!is_escape(text.substr(i, mark))) {
            *decoded += text[i];
            continue;
        }
        const int high = i + mark < text.size() ? digit_of(text[i + mark]) : -1;
        const int low = i + mark + 1 < text.size() ? digit_of(text[i + mark + 1]) : -1;
        if (high < 0 || low < 0) {
            return false;
        }
        *decoded += static_cast<char>(high << 4 | low);
        i += mark + 1;
    }
    return true;
}

bool decode_percent(std::string_view text, std::string* decoded) {
    return decode(
        text, 1, [](std::string_view mark) { return mark == "%"; }, decoded);
}

// Decodes the escapes that the log writes, see print_escaped().
bool decode_logged(std::string_view text, std::string* decoded) {
    return decode(
        text, 2, [](std::string_view mark) { return mark == "\\x"; }, decoded);
}

const char* accepted(ApiTakes takes) {
    switch (takes) {
        case ApiTakes::kNothing:
            return "there must be no arguments";
        case ApiTakes::kClient:
            return "arguments must be zone and key, each once";
        case ApiTakes::kRate:
            return "arguments must be zone, key and rate, each once";
        case ApiTakes::kPermits:
            return "arguments must be zone, key, permits and rate, each once";
        default:
            return "arguments must be zone, key, amount and rate, each once";
    }
}

// Reads one argument; false if it is wrong.
bool read_argument(std::string_view name, const std::string& value, ApiArguments* arguments,
                   std::string* wrong) {
    if (name == "zone") {
        arguments->zone = value;
        return true;
    }
    if (name == "key") {
        std::string decoded;
        if (!decode_logged(value, &decoded)) {
            *wrong =
                "argument key has \\x without two hexadecimal digits; it must be a key as it is logged, "
                "percent-encoded";
            return false;
        }
        arguments->key = value;
        return true;
    }
    if (name == "rate") {
        arguments->rate = value;
        arguments->has_rate = true;
        return true;
    }
    std::uint64_t number = 0;
    if (!parse_number(value, kMaxCost, &number) || number == 0) {
        *wrong = "argument " + std::string(name) + " is \"" + escaped_key(value.substr(0, kLongestLogged)) +
                 "\"; it must be a number from 1 to " + std::to_string(kMaxCost) +
                 " (the call remaining looks and charges nothing)";
        return false;
    }
    if (name == "amount") {
        arguments->amount = number;
    } else {
        arguments->permits = number;
    }
    return true;
}

// The name of an argument that a call requires and that is missing; null if there is none.
const char* missing_argument(ApiTakes takes, const ApiArguments& arguments) {
    if (takes == ApiTakes::kNothing) {
        return nullptr;
    }
    if (arguments.zone.empty()) {
        return "zone";
    }
    if (arguments.key.empty()) {
        return "key";
    }
    return takes == ApiTakes::kAmount && arguments.amount == 0 ? "amount" : nullptr;
}

}  // namespace

std::string escaped_key(std::string_view key) {
    std::string text(4 * key.size(), '\0');
    auto* start = reinterpret_cast<u_char*>(text.data());
    text.resize(static_cast<std::size_t>(print_escaped(start, key) - start));
    return text;
}

std::string client_text(const Zone& zone, std::string_view client) {
    return std::string(view(LogText(zone, client).escaped));
}

void name_client(const Zone& zone, ApiArguments* arguments) {
    char address[16];
    const std::size_t size = zone.by_address ? identity::parse_plain_address(arguments->key, address) : 0;
    const std::string written = arguments->key;
    if (size != 0) {
        arguments->key.assign(address, size);
    } else {
        decode_logged(written, &arguments->key);
    }
    // An argument in the form of a digest names the client with this digest. A client whose key has that form
    // is named by the digest of its key.
    NameRoom room;
    arguments->shown = arguments->key;
    if (!is_digest(arguments->key)) {
        arguments->shown = std::string(shown_name(arguments->shown, &room));
        arguments->key = std::string(short_name(arguments->key, &room));
    }
}

bool read_zone_rates(const Zone& zone, std::string_view text, RateList* rates, std::string* wrong) {
    const char* objection = parse_rates(text, rates);
    if (objection != nullptr) {
        *wrong = "rate \"" + escaped_key(text.substr(0, kLongestLogged)) + "\" is wrong: " + objection +
                 "; it must be " + kRatesAccepted;
        return false;
    }
    objection = zone_objection(zone, *rates);
    if (objection != nullptr) {
        *wrong = "rate \"" + std::string(text) + "\" does not fit: " + objection +
                 "; it must fit what the zone was made for when nginx started";
        return false;
    }
    return true;
}

bool name_rate(const Zone& zone, ApiArguments* arguments, std::string* wrong) {
    if (!arguments->has_rate) {
        return true;
    }
    if (zone.rate == nullptr) {
        *wrong = "argument rate is for a zone whose rate is a variable; that of zone \"" +
                 escaped_key(view(zone.name)) + "\" is " + std::string(view(zone.rate_text)) +
                 " for every client";
        return false;
    }
    return read_zone_rates(zone, arguments->rate, &arguments->rates, wrong);
}

bool read_arguments(std::string_view text, ApiTakes takes, ApiArguments* arguments, std::string* wrong) {
    constexpr unsigned kMost = 4;
    const std::string_view names[kMost] = {"zone", "key", "rate",
                                           takes == ApiTakes::kAmount ? "amount" : "permits"};
    const unsigned count =
        takes == ApiTakes::kNothing ? 0 : std::min(1 + static_cast<unsigned>(takes), kMost);
    bool seen[kMost] = {};
    while (!text.empty()) {
        const std::size_t end = text.find('&');
        const std::string_view pair = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        const std::size_t equals = pair.find('=');
        std::string name;
        std::string value;
        if (!decode_percent(pair.substr(0, equals), &name) ||
            (equals != std::string_view::npos && !decode_percent(pair.substr(equals + 1), &value))) {
            *wrong = "argument \"" + escaped_key(pair.substr(0, std::min(equals, kLongestLogged))) +
                     "\" has a % without two hexadecimal digits; it must be percent-encoded";
            return false;
        }
        unsigned index = 0;
        while (index < count && name != names[index]) {
            index++;
        }
        if (index == count || seen[index]) {
            *wrong = "argument \"" + escaped_key(name.substr(0, kLongestLogged)) +
                     (index == count ? "\" is not known; " : "\" is given twice; ") + accepted(takes);
            return false;
        }
        seen[index] = true;
        if (!read_argument(name, value, arguments, wrong)) {
            return false;
        }
    }
    const char* missing = missing_argument(takes, *arguments);
    if (missing != nullptr) {
        *wrong = std::string("argument ") + missing + " is missing or empty; " + accepted(takes);
    }
    return missing == nullptr;
}

}  // namespace rate_limit
