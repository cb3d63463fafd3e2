// Rejects replies from which hiredis does not protect the process.
#pragma once

#include <cstddef>
#include <string_view>

struct redisAsyncContext;

namespace rate_limit::redis {

// hiredis aborts (assert), or dereferences a null pointer, when a server sends a reply that no command waits
// for, or a pub/sub message of an unexpected form. hiredis allocates as much memory as a reply is long, and
// frees nested arrays by recursion. A guard checks each reply while hiredis reads and parses it. If the check
// fails, parsing fails: hiredis closes the connection, and `refused` says why.
struct ReplyGuard {
    // Starts to guard a new connection. The guard must outlive the context.
    void watch(redisAsyncContext* watched);

    // Guards the functions by which the context reads. Called by watch(), and to be called again after TLS
    // has replaced these functions.
    void watch_reads() const;

    redisAsyncContext* context = nullptr;
    std::string_view channel;       // the only channel with a subscription; empty for none
    std::size_t most = 16U << 20;   // bytes of memory that a reply may take
    std::size_t taken = 0;          // by the reply that is being parsed
    const char* refused = nullptr;  // why a reply was rejected, without a full stop; null if none was
};

}  // namespace rate_limit::redis
