// Log lines about a Redis: their text, and how often each kind may be logged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "connection/error.h"
#include "connection/loop.h"

namespace rate_limit::redis {

// The effect of a failure on requests, which depends on the configuration. A log line ends with one of these
// texts, unless the text is empty.
struct Consequence {
    std::string unreachable;  // no connection can be made
    std::string failed;       // a call has failed
    std::string recovered;    // Redis answers again
};

// Limits how often each kind of line is logged. The clients of one Redis in a process share a journal, so
// that they log a failure once. Belongs to one thread.
class Journal {
  public:
    static constexpr Milliseconds kEvery = 10'000;  // between two lines of the same kind
    static constexpr std::size_t kMostNodes = 64;   // with limits of their own

    // Whether a line is about requests. A recent line with kOther does not suppress one with kRequests; a
    // recent line with kRequests suppresses one with kOther.
    enum Subject : std::uint8_t { kRequests, kOther };

    // Whether a line of this kind may be logged now. If so, `*left_out` is how many were suppressed since the
    // last one. `node` is the node of a cluster; empty for a single server.
    bool may_complain(std::string_view node, Subject subject, Error error, Milliseconds now,
                      std::uint64_t* left_out);

    // Whether the recovery of a node may be logged now.
    bool may_report_recovery(std::string_view node, Milliseconds now);

    // A log line about an error.
    struct Complaint {
        std::string_view name;   // of the Redis, as configured
        std::string_view where;  // its address
        std::string_view node;   // as for may_complain()
        Subject subject;
        Error error;
        std::string_view detail;
        std::string_view consequence;  // for requests; may be empty
    };

    // Logs a complaint, if may_complain() allows it.
    void complain(const Complaint& complaint, Loop* loop);

  private:
    struct Entry {
        std::string node;
        Milliseconds used_at = 0;
        Milliseconds complained_at[2][kErrors] = {};  // 0 for never
        std::uint64_t left_out[2][kErrors] = {};
        Milliseconds recovered_at = 0;  // 0 for never
    };

    Entry* find(std::string_view node, Milliseconds now);

    std::vector<Entry> entries_;
};

// HOST:PORT, with brackets around an IPv6 address.
std::string print_target(const std::string& host, std::uint16_t port);

// `ERROR (DETAIL), N more times since the last line`; the last part only if `left_out` is not 0. A long
// detail is truncated.
std::string describe(Error error, std::string_view detail, std::uint64_t left_out);

// `redis "NAME" WHERE: WHAT; CONSEQUENCE`. In all but the consequence, `?` replaces bytes that are not
// printable ASCII.
std::string log_line(std::string_view name, std::string_view where, std::string_view what,
                     std::string_view consequence);

}  // namespace rate_limit::redis
