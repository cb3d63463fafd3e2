// The kinds of errors between a client and Redis.
#pragma once

#include <cstdint>
#include <string_view>

namespace rate_limit::redis {

enum class Error : std::uint8_t {
    kNone,
    kUnavailable,  // not sent: the breaker is open
    kRefused,      // the connection could not be made
    kTimedOut,
    kClosed,  // the connection was lost before the reply
    kNoScript,
    kLoading,
    kBusy,
    kReadOnly,
    kOutOfMemory,
    kDenied,    // the password is wrong or missing, or the user may not run the command
    kMoved,     // another node has the slot of the key
    kAsk,       // the key is being migrated to another node
    kTryAgain,  // some of the keys are being migrated to another node
    kClusterDown,
    kProtocol,  // the reply is not RESP
    kShape,     // the reply has an unexpected type or content
    kTls,
    kUnresolved,  // the host name has no address
    kOther,       // another error of Redis
};
constexpr unsigned kErrors = 20;

// One word for logs and metrics.
const char* error_name(Error error);

// The kind of an error reply, by its first word. Before Redis 7, an error inside a script is wrapped, and the
// first word of the inner error counts, for example READONLY in "ERR Error running script (...):
// @user_script:1: -READONLY ...".
Error classify(std::string_view reply);

// A text for the log in place of an error reply to AUTH. Some servers repeat the password in the reply, so
// the result never contains text of the server.
std::string_view redact(std::string_view reply);

// Whether an error reply is kDenied because the user may not run the command. If not, the password is missing
// or wrong.
bool lacks_rights(std::string_view reply);

}  // namespace rate_limit::redis
