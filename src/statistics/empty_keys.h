// Detects a zone whose key is empty for all of its first requests.
#pragma once

#include <atomic>
#include <cstdint>

namespace rate_limit {

// Created in memory that is all zero, which processes may share.
class EmptyKeys {
  public:
    static constexpr std::uint32_t kRequests = 1000;

    // Counts a request with an empty key. True for the last one of the first requests, if the key of all was
    // empty.
    bool count() {
        std::uint32_t count = count_.load(std::memory_order_relaxed);
        while (count < kRequests &&
               !count_.compare_exchange_weak(count, count + 1, std::memory_order_relaxed)) {
        }
        return count + 1 == kRequests;
    }

    // Ends the count, because a request has a key.
    void end() { count_.store(kRequests, std::memory_order_relaxed); }

    // Whether a request had a key, or the first requests are over.
    bool ended() const { return count_.load(std::memory_order_relaxed) == kRequests; }

    // Counts from 0 again.
    void restart() { count_.store(0, std::memory_order_relaxed); }

  private:
    std::atomic<std::uint32_t> count_ = 0;
};

}  // namespace rate_limit
