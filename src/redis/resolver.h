// The addresses of a name, found without making anybody wait.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rate_limit::redis {

// Numeric addresses of `host`, by the system's own means; empty if it has none. Waits for the answer.
std::vector<std::string> resolve(const std::string& host);

bool is_numeric(const std::string& host);

// Whether a text that came from elsewhere may be a host's name or address.
bool is_host(std::string_view text);

// A look-up in a thread beside the loop. Whoever asks looks again until it is done, or forgets it. A process
// has few such threads: further look-ups wait for their turn, and one that is forgotten before leaves the
// queue. A thread ends when nothing waits.
class Lookup {
  public:
    static constexpr unsigned kMostThreads = 4;

    // Null if there is no memory, or no thread can be started.
    static Lookup* start(const std::string& host);

    bool done() const;

    // Those found, once it is done.
    const std::vector<std::string>& addresses() const;

    void forget();

  private:
    struct Shared;

    explicit Lookup(Shared* shared) : shared_(shared) {}
    ~Lookup() = default;
    bool leave_queue();

    Shared* shared_;
};

}  // namespace rate_limit::redis
