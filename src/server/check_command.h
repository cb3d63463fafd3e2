// The command RATELIMIT.CHECK: decides groups of limits as lua/main.lua does. protocol/wire.h describes its
// arguments and its reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "algorithms/check.h"
#include "server/keys.h"
#include "server/policies.h"

namespace rate_limit {

constexpr std::size_t kMostKeys = 2048;  // of a call

// A limit of a group, and its check.
struct LimitCheck;

class CheckCommand {
  public:
    // The most bytes of a reply.
    static constexpr std::size_t kLongestReply = 8 + kMostKeys * 31;

    // Reads the arguments of a call with this number of keys, one for each limit. Returns null, or what is
    // wrong. Both texts must live until run() has returned.
    const char* read(std::string_view policies, std::string_view groups, std::size_t keys);

    // Decides and charges what read() has read, at `now`. Returns the reply, which is valid until the next
    // call.
    std::string_view run(CommandKeys* keys, Micros now);

  private:
    bool read_limit(unsigned head, std::string_view* text, LimitCheck* limit) const;
    bool run_single(unsigned head, const char* at, std::size_t position);
    void run_group(unsigned head, std::string_view* text, std::size_t position);
    void apply(LimitCheck* limit, unsigned head, bool admitted, std::size_t position);
    void reply(const Decision& decision);

    Policies policies_;
    std::string_view groups_;
    CommandKeys* keys_ = nullptr;
    Micros now_ = 0;
    char* end_ = nullptr;  // of the reply so far
    char reply_[kLongestReply];
};

}  // namespace rate_limit
