// Refuses replies that hiredis takes on trust, before hiredis acts on them.
#pragma once

#include <cstddef>
#include <string_view>

struct redisAsyncContext;

namespace rate_limit::redis {

// hiredis ends the process (assert), or follows a null pointer, when a server sends a reply that no command
// waits for, or a pub/sub message of an unexpected form. It takes as much memory as a reply is long, and
// frees nested arrays by recursion. A guard looks at each reply while hiredis reads and parses it, and makes
// that fail instead: hiredis then closes the connection, and `refused` says why.
struct ReplyGuard {
    // Begins to watch a new connection. The guard must live as long as the context.
    void watch(redisAsyncContext* watched);

    // Watches what is read by the context's present functions. Called by watch(), and again once TLS has
    // replaced them.
    void watch_reads() const;

    redisAsyncContext* context = nullptr;
    std::string_view channel;       // the only one that may be subscribed to; empty for none
    std::size_t most = 16U << 20;   // bytes of memory that a reply may take
    std::size_t taken = 0;          // by the reply that is being parsed
    const char* refused = nullptr;  // a sentence without a full stop; null if nothing was
};

}  // namespace rate_limit::redis
