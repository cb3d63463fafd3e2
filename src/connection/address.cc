// Parses URLs of Redis servers.
#include "connection/address.h"

#include <algorithm>

#include "connection/resolver.h"

namespace rate_limit::redis {
namespace {

constexpr std::uint32_t kMostDatabases = 1U << 16;
constexpr std::uint16_t kSentinelPort = 26379;
constexpr std::size_t kLongestPath = 107;  // the limit of Linux

bool cut_prefix(std::string_view* text, std::string_view prefix) {
    if (text->substr(0, prefix.size()) != prefix) {
        return false;
    }
    text->remove_prefix(prefix.size());
    return true;
}

int hex_digit(char c) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const std::size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
    return digit == std::string_view::npos ? -1 : static_cast<int>(digit);
}

bool decode_percent(std::string_view text, std::string* out) {
    for (std::size_t i = 0; i < text.size(); i++) {
        if (text[i] != '%') {
            out->push_back(text[i]);
            continue;
        }
        const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
        const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0) {
            return false;
        }
        out->push_back(static_cast<char>(high * 16 + low));
        i += 2;
    }
    return true;
}

bool parse_number(std::string_view text, std::uint32_t most, std::uint32_t* number) {
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (text.empty() || text.size() > 6 || !std::all_of(text.begin(), text.end(), is_digit)) {
        return false;
    }
    *number = 0;
    for (const char c : text) {
        *number = *number * 10 + static_cast<std::uint32_t>(c - '0');
    }
    return *number <= most;
}

const char* parse_credentials(std::string_view text, Address* address) {
    const std::size_t colon = text.find(':');
    const std::string_view user = text.substr(0, colon);
    const std::string_view password = colon == std::string_view::npos ? "" : text.substr(colon + 1);
    if (!decode_percent(user, &address->user) || !decode_percent(password, &address->password)) {
        return "a % in the user or password is not followed by two hexadecimal digits";
    }
    return nullptr;
}

// Whether a text may be a host name or an IPv4 address: labels separated by dots, with an optional dot at the
// end. Whether a name has an address may change while nginx runs, so only the syntax is checked.
bool may_be_name(std::string_view text) {
    constexpr std::size_t kLongestLabel = 63;
    text.remove_suffix(!text.empty() && text.back() == '.' ? 1 : 0);
    if (!is_host(text) || text.find_first_of(":%") != std::string_view::npos) {
        return false;
    }
    while (true) {
        const std::size_t size = std::min(text.find('.'), text.size());
        if (size == 0 || size > kLongestLabel) {
            return false;
        }
        if (size == text.size()) {
            return true;
        }
        text.remove_prefix(size + 1);
    }
}

const char* parse_host(std::string_view text, Address* address) {
    std::string_view port;
    bool has_port = false;
    if (!text.empty() && text.front() == '[') {
        const std::size_t end = text.find(']');
        if (end == std::string_view::npos) {
            return "the bracket of the IPv6 address is not closed";
        }
        address->host = text.substr(1, end - 1);
        if (address->host.find(':') == std::string::npos || !is_numeric(address->host)) {
            return "the text in brackets is not an IPv6 address";
        }
        port = text.substr(end + 1);
        has_port = !port.empty();
        if (has_port && port.front() != ':') {
            return "the port does not follow a colon";
        }
        port.remove_prefix(has_port ? 1 : 0);
    } else {
        const std::size_t colon = text.find(':');
        if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos) {
            return "an IPv6 address requires brackets";
        }
        address->host = text.substr(0, colon);
        has_port = colon != std::string_view::npos;
        port = has_port ? text.substr(colon + 1) : port;
    }
    if (address->host.empty()) {
        return "the host is missing";
    }
    if (!is_numeric(address->host) && !may_be_name(address->host)) {
        return "the host is neither an address nor a name of letters, digits, \"-\", \"_\" and \".\"";
    }
    std::uint32_t number = 0;
    if (has_port && (!parse_number(port, 65535, &number) || number == 0)) {
        return "the port is not a number from 1 to 65535";
    }
    address->port = has_port ? static_cast<std::uint16_t>(number) : address->port;
    return nullptr;
}

const char* parse_database(std::string_view text, Address* address) {
    return text.empty() || parse_number(text, kMostDatabases - 1, &address->database)
               ? nullptr
               : "the database is not a number";
}

// Parses "host:port,host".
const char* parse_seeds(std::string_view hosts, std::uint16_t port, Address* address) {
    while (true) {
        const std::size_t comma = hosts.find(',');
        Address seed;
        seed.port = port;
        if (const char* wrong = parse_host(hosts.substr(0, comma), &seed)) {
            return wrong;
        }
        address->seeds.push_back({seed.host, seed.port});
        if (comma == std::string_view::npos) {
            return nullptr;
        }
        hosts.remove_prefix(comma + 1);
    }
}

// Parses "primary/db".
const char* parse_primary(std::string_view path, Address* address) {
    const std::size_t slash = path.find('/');
    address->primary = path.substr(0, slash);
    if (address->primary.empty()) {
        return "the name of the primary is missing";
    }
    return slash == std::string_view::npos ? nullptr : parse_database(path.substr(slash + 1), address);
}

// Parses the path of "unix:PATH".
const char* parse_socket(std::string_view path, Address* address) {
    address->path = path;
    if (path.size() > kLongestPath) {
        return "the path of a unix socket has at most 107 bytes";
    }
    return path.empty() || path.front() != '/' ? "the path of a unix socket starts with /" : nullptr;
}

// Parses "user:password@" and removes it from the front of `text`, if `text` has it.
const char* take_credentials(bool several_hosts, std::string_view* text, Address* address) {
    const std::size_t at = text->rfind('@');
    if (at == std::string_view::npos) {
        return nullptr;
    }
    const std::string_view credentials = text->substr(0, at);
    if (several_hosts && credentials.find(',') != std::string_view::npos) {
        return "the user and password before the @ are for all hosts; a comma in them is written %2C";
    }
    text->remove_prefix(at + 1);
    return parse_credentials(credentials, address);
}

}  // namespace

const char kAddressAccepted[] =
    "redis://[user:password@]host[:port][/db], unix:PATH, "
    "redis+sentinel://[user:password@]host[:port],.../primary[/db] or "
    "redis+cluster://[user:password@]host[:port],..., with rediss instead of redis for TLS";

const char* parse_address(std::string_view text, Address* address) {
    if (cut_prefix(&text, "unix:")) {
        return parse_socket(text, address);
    }
    address->tls = cut_prefix(&text, "rediss");
    const bool known = address->tls || cut_prefix(&text, "redis");
    const bool sentinel = known && cut_prefix(&text, "+sentinel");
    const bool cluster = known && !sentinel && cut_prefix(&text, "+cluster");
    if (!known || !cut_prefix(&text, "://")) {
        return "it does not start with redis://, redis+sentinel://, redis+cluster:// or unix:";
    }
    if (const char* wrong = take_credentials(sentinel || cluster, &text, address)) {
        return wrong;
    }
    std::string_view path;
    const std::size_t slash = text.find('/');
    if (slash != std::string_view::npos) {
        path = text.substr(slash + 1);
        text = text.substr(0, slash);
    }
    if (!sentinel && !cluster) {
        const char* wrong = parse_database(path, address);
        return wrong != nullptr ? wrong : parse_host(text, address);
    }
    if (cluster && !path.empty()) {
        return "a cluster has no databases";
    }
    const char* wrong = parse_seeds(text, sentinel ? kSentinelPort : address->port, address);
    return wrong != nullptr || cluster ? wrong : parse_primary(path, address);
}

}  // namespace rate_limit::redis
