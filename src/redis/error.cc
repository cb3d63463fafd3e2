// Names of the errors, and the words by which Redis tells them.
#include "redis/error.h"

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

// A user who may run the script but not what it calls: as Redis until 7 and from 7 on say it, and Valkey. And
// a script that is too long for someone who has not given a password.
constexpr std::string_view kDeniedParts[] = {
    "The user executing the script can't",
    "ACL failure in script",
    "Protocol error: unauthenticated",
};

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
    for (const std::string_view part : kDeniedParts) {
        if (reply.find(part) != std::string_view::npos) {
            return Error::kDenied;
        }
    }
    if (!starts_with(reply, "ERR Error")) {
        return by_first_word(reply);
    }
    const std::size_t dash = reply.find(" -");
    return dash == std::string_view::npos ? Error::kOther : by_first_word(reply.substr(dash + 2));
}

}  // namespace rate_limit::redis
