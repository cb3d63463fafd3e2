// Log lines about a Redis: its name, its address, the event, and the effect on requests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "redis/error.h"
#include "redis/loop.h"

namespace rate_limit::redis {

// What a failure means for requests, by the configuration. A log line ends with one of these texts; an empty
// text is left out.
struct Consequence {
    std::string unreachable;  // there is no connection
    std::string failed;       // a call has failed
    std::string recovered;    // Redis answers again
};

// Remembers when each kind of line was last logged. All clients of one Redis in a process share a journal, so
// that a failure is logged once. Belongs to one thread.
class Journal {
  public:
    static constexpr Milliseconds kEvery = 10'000;  // between two lines of the same kind
    static constexpr std::size_t kMostNodes = 64;   // that are told apart

    // What a line is about. One about requests comes even if there was one about anything else; the reverse
    // does not hold.
    enum Subject : std::uint8_t { kRequests, kOther };

    // Whether a line of this kind may be logged now; if so, `*left_out` is how many were not logged since the
    // last one. `node` tells the nodes of a cluster apart; it is empty for a single server.
    bool may_complain(std::string_view node, Subject subject, Error error, Milliseconds now,
                      std::uint64_t* left_out);

    // Whether it may be logged now that a node answers again.
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

// `ERROR (DETAIL), N more times since the last line`. A long detail is cut.
std::string describe(Error error, std::string_view detail, std::uint64_t left_out);

// `redis "NAME" WHERE: WHAT; CONSEQUENCE`, of which all but the consequence is made printable ASCII.
std::string log_line(std::string_view name, std::string_view where, std::string_view what,
                     std::string_view consequence);

}  // namespace rate_limit::redis
