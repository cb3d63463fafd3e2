// Resolves host names without blocking the event loop.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rate_limit::redis {

// The numeric addresses of `host`, from the resolver of the system; empty if there are none. Blocks.
std::vector<std::string> resolve(const std::string& host);

// Whether a text is a numeric IPv4 or IPv6 address.
bool is_numeric(const std::string& host);

// Whether a text from a server has only characters of a host name or a numeric address, and not too many.
bool is_host(std::string_view text);

// A lookup of a host name in a thread. The caller polls done(), and calls forget() in the end. A process has
// at most kMostThreads such threads: further lookups wait in a queue, and forget() removes a lookup from the
// queue. A thread ends when the queue is empty.
class NameLookup {
  public:
    static constexpr unsigned kMostThreads = 4;

    // Starts a lookup. Null if no thread can be started.
    static NameLookup* start(const std::string& host);

    bool done() const;

    // The numeric addresses; empty if none was found. Only when done().
    const std::vector<std::string>& addresses() const;

    // Deletes this object. A lookup in progress ends in the background.
    void forget();

  private:
    struct Shared;

    explicit NameLookup(Shared* shared) : shared_(shared) {}
    ~NameLookup() = default;
    bool leave_queue();

    Shared* shared_;
};

}  // namespace rate_limit::redis
