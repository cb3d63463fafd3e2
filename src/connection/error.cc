// The names of errors, and the texts by which they are recognized.
#include "connection/error.h"

#include <algorithm>
#include <iterator>

namespace rate_limit::redis {
namespace {

constexpr const char* kNames[kErrors] = {
    "none",        "unavailable", "refused", "timeout", "closed",     "noscript", "loading",
    "busy",        "readonly",    "oom",     "auth",    "moved",      "ask",      "tryagain",
    "clusterdown", "protocol",    "shape",   "tls",     "unresolved", "other",
};

constexpr struct {
    std::string_view word;
    Error error;
} kWords[] = {
    {"NOSCRIPT", Error::kNoScript},
    {"LOADING", Error::kLoading},
    {"BUSY", Error::kBusy},
    {"READONLY", Error::kReadOnly},
    {"OOM", Error::kOutOfMemory},
    {"NOAUTH", Error::kDenied},
    {"WRONGPASS", Error::kDenied},
    {"NOPERM", Error::kDenied},
    {"DENIED", Error::kDenied},
    {"MOVED", Error::kMoved},
    {"ASK", Error::kAsk},
    {"TRYAGAIN", Error::kTryAgain},
    {"CLUSTERDOWN", Error::kClusterDown},
    {"ERR invalid password", Error::kDenied},
    {"ERR AUTH", Error::kDenied},
    {"ERR Client sent AUTH", Error::kDenied},
};

// The user may run the script, but not a command of the script: in Redis before 7, and in Redis 7 and Valkey.
constexpr std::string_view kRightsParts[] = {
    "The user executing the script can't",
    "ACL failure in script",
};

// Error replies to AUTH, and the text that is logged.
constexpr struct {
    std::string_view start;
    std::string_view shown;
} kAuthAnswers[] = {
    {"WRONGPASS", "WRONGPASS: the user or the password is wrong"},
    {"ERR invalid password", "ERR invalid password"},
    {"ERR AUTH", "ERR AUTH: the server has no password for the default user"},
    {"ERR Client sent AUTH", "ERR Client sent AUTH, but no password is set"},
    {"ERR unknown command", "ERR unknown command: the server does not know AUTH"},
    {"ERR wrong number of arguments", "ERR wrong number of arguments: the server does not know users"},
    {"ERR max number of clients", "ERR max number of clients reached"},
    {"NOAUTH", "NOAUTH Authentication required"},
    {"NOPERM", "NOPERM: the user may not run AUTH"},
    {"DENIED", "DENIED: the server is in protected mode"},
    {"LOADING", "LOADING: the server is loading its data"},
    {"BUSY", "BUSY: the server runs a script"},
};

// A server that requires a password limits the length of commands before AUTH, and SCRIPT LOAD is longer.
constexpr std::string_view kTooLong = "Protocol error: unauthenticated";

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool has_rights_part(std::string_view text) {
    return std::any_of(std::begin(kRightsParts), std::end(kRightsParts),
                       [&](std::string_view part) { return has(text, part); });
}

bool starts_with(std::string_view text, std::string_view word) {
    return text.substr(0, word.size()) == word &&
           (text.size() == word.size() || text[word.size()] == ' ' || text[word.size()] == ',');
}

Error by_first_word(std::string_view text) {
    for (const auto& known : kWords) {
        if (starts_with(text, known.word)) {
            return known.error;
        }
    }
    return Error::kOther;
}

}  // namespace

const char* error_name(Error error) { return kNames[static_cast<unsigned>(error)]; }

Error classify(std::string_view reply) {
    if (has_rights_part(reply) || has(reply, kTooLong)) {
        return Error::kDenied;
    }
    if (!starts_with(reply, "ERR Error")) {
        return by_first_word(reply);
    }
    const std::size_t dash = reply.find(" -");
    return dash == std::string_view::npos ? Error::kOther : by_first_word(reply.substr(dash + 2));
}

std::string_view redact(std::string_view reply) {
    for (const auto& known : kAuthAnswers) {
        if (reply.substr(0, known.start.size()) == known.start) {
            return known.shown;
        }
    }
    return "AUTH was answered by an error that is not logged, as it may repeat the password";
}

bool lacks_rights(std::string_view reply) {
    return classify(reply) == Error::kDenied && (has_rights_part(reply) || has(reply, "NOPERM"));
}

}  // namespace rate_limit::redis
