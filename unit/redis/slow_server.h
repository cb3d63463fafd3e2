// A fake server that is too slow for its calls.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "calls.h"

namespace rate_limit::redis {

// Answers one command in 10 ms, probes included, by the connection on which it came.
class SlowServer {
  public:
    explicit SlowServer(TestLoop* loop) : server(loop), loop_(loop) {
        server.handshake = [](const Words& command) {
            return command[0] == "SET" ? std::string() : FakeServer::healthy(command);
        };
        server.answer = [this](const Words& command) {
            queue_.emplace_back(server.serving(), command[0] == "SET" ? "+OK\r\n" : bulk("x"));
            return "";
        };
    }

    // Sends a call each millisecond in which the client is available, and checks that the queue stays short.
    void overload(Calls* calls) {
        Milliseconds answered_at = loop_->now();
        std::size_t longest = 0;
        unsigned rejected = 0;
        const Milliseconds end = loop_->now() + 1500;
        while (loop_->now() < end) {
            if ((*calls)->available()) {
                calls->echo("x");
            } else {
                rejected++;
            }
            loop_->run_for(1);
            longest = std::max(longest, queue_.size());
            if (!queue_.empty() && loop_->now() >= answered_at + 10) {
                answered_at = loop_->now();
                server.say(queue_.front().second, queue_.front().first);
                queue_.pop_front();
            }
        }
        assert_true((*calls)->counts().opened > 0);
        assert_true(rejected > calls->all().size());
        assert_true(longest < 100);
    }

    FakeServer server;

  private:
    TestLoop* loop_;
    std::deque<std::pair<unsigned, std::string>> queue_;  // connections and replies
};

}  // namespace rate_limit::redis
