// Refuses replies that hiredis takes on trust, before hiredis acts on them.
#pragma once

#include <string_view>

struct redisAsyncContext;

namespace rate_limit::redis {

// hiredis ends the process (assert), or follows a null pointer, when a server sends a reply that no command
// waits for, or a pub/sub message of an unexpected form. A guard looks at each reply while hiredis parses it,
// and makes the parser fail instead: hiredis then closes the connection, and `refused` is set.
struct ReplyGuard {
    // Begins to watch a new connection. The guard must live as long as the context.
    void watch(redisAsyncContext* watched);

    redisAsyncContext* context = nullptr;
    std::string_view channel;  // the only one that may be subscribed to; empty for none
    bool refused = false;
};

}  // namespace rate_limit::redis
