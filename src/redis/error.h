// What can go wrong between a check and Redis, told apart.
#pragma once

#include <cstdint>
#include <string_view>

namespace rate_limit::redis {

enum class Error : std::uint8_t {
    kNone,
    kUnavailable,  // not asked: the breaker is open
    kRefused,      // no connection
    kTimedOut,
    kClosed,  // the connection was lost before the answer
    kNoScript,
    kLoading,
    kBusy,
    kReadOnly,
    kOutOfMemory,
    kDenied,    // the password is wrong or missing, or the user may not
    kMoved,     // the key is another node's
    kAsk,       // the key is on its way to another node
    kTryAgain,  // some of the keys are on their way to another node
    kClusterDown,
    kProtocol,  // what came is not RESP
    kShape,     // a reply, but not one of the script's
    kTls,
    kUnresolved,  // the name has no address
    kOther,       // another error of Redis
};
constexpr unsigned kErrors = 20;

// One word for logs and metrics.
const char* error_name(Error error);

// Tells an error reply by its first word, or by that of the error that it wraps: until Redis 7 an error
// inside a script came as "ERR Error running script (...): @user_script:1: -READONLY ...".
Error classify(std::string_view reply);

// What the log may say of the error that answers AUTH. Some servers repeat the password in it, in part or
// whole; so the result is never the server's own text.
std::string_view redact(std::string_view reply);

// Whether an error reply that is kDenied says that Redis knows the user, but does not allow the command. If
// not, the password is missing or wrong.
bool lacks_rights(std::string_view reply);

}  // namespace rate_limit::redis
