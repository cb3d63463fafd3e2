// The command RATELIMIT.SYNC: charges requests that an instance has admitted, as lua/sync.lua does.
// protocol/wire.h describes its arguments and its reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/check_command.h"
#include "server/keys.h"
#include "server/limit_check.h"
#include "server/policies.h"

namespace rate_limit {

class SyncCommand {
  public:
    struct Arguments {
        std::string_view policies;
        std::string_view entries;
        std::string_view sequence;
        std::string_view age;
    };

    static constexpr std::size_t kMostClients = 1024;  // of a call

    // Reads the arguments of a call with this number of client keys. Returns null, or what is wrong. The
    // texts must live until run() has returned.
    const char* read(const Arguments& arguments, std::size_t clients);

    // Charges what read() has read, at `now`. The last key, `guard`, is the guard of the sender. Writes the
    // reply to `reply`, which has room for reply_room() bytes, and returns its size.
    std::size_t run(CommandKeys* keys, std::string_view guard, Micros now, char* reply);

    std::size_t reply_room() const { return 8 + clients_ * (9 + kMostReported); }

  private:
    std::string_view charge(std::size_t position, bool applied, std::uint64_t* overshoot, Micros* expires);
    std::string_view charge_window(const ReadPolicy& read, std::size_t position, std::uint64_t cost,
                                   std::uint64_t* overshoot, Micros* expires);
    std::string_view charge_client(const ReadPolicy& read, std::size_t position, std::uint64_t cost,
                                   std::uint64_t* overshoot, Micros* expires);
    bool evaluate_at_admission(LimitCheck* limit) const;
    std::uint64_t overshoot_of(const LimitCheck& limit) const;
    static void set_interval(LimitCheck* limit, Micros last, Micros now);

    Policies policies_;
    Arguments arguments_;
    std::size_t clients_ = 0;
    std::uint64_t age_ = 0;
    CommandKeys* keys_ = nullptr;
    Micros now_ = 0;
    Micros since_ = 0;  // when the first of the requests was admitted
};

}  // namespace rate_limit
