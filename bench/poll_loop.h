// An event loop on poll(2) for programs that use the Redis client without nginx, at full speed.
#pragma once

#include <hiredis/async.h>
#include <poll.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "connection/loop.h"

namespace rate_limit::redis {

// Has the order of nginx's event loop: sockets, timers, then deferred tasks. Writes once per turn, as the
// module does.
class PollLoop final : public Loop {
  public:
    Alarm* make_timer(Handler handler, void* self, bool) override {
        return new LoopAlarm(this, handler, self, false);
    }
    Alarm* make_task(Handler handler, void* self) override {
        return new LoopAlarm(this, handler, self, true);
    }

    bool attach(redisAsyncContext* context) override {
        sockets_.push_back(std::make_unique<Socket>(Socket{context}));
        context->ev.data = sockets_.back().get();
        context->ev.addRead = [](void* data) { of(data)->reads = true; };
        context->ev.delRead = [](void* data) { of(data)->reads = false; };
        context->ev.addWrite = [](void* data) { of(data)->writes = true; };
        context->ev.delWrite = [](void* data) { of(data)->writes = false; };
        context->ev.cleanup = [](void* data) {
            of(data)->context->ev = {};
            of(data)->context = nullptr;
        };
        return true;
    }

    Milliseconds now() const override { return now_; }
    std::uint32_t random() override { return 0; }
    void log(Severity, std::string_view line) override {
        std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
    }

    // Runs one turn, which waits for at most a millisecond.
    void turn() {
        sockets_.erase(
            std::remove_if(sockets_.begin(), sockets_.end(), [](const auto& socket) { return !*socket; }),
            sockets_.end());
        std::vector<pollfd> polls;
        for (const auto& socket : sockets_) {
            const int events = (socket->reads ? POLLIN : 0) | (socket->writes ? POLLOUT : 0);
            polls.push_back({socket->context->c.fd, static_cast<short>(events), 0});
        }
        poll(polls.data(), polls.size(), 1);
        now_ = milliseconds();
        for (std::size_t i = 0; i < polls.size(); i++) {
            handle(sockets_[i].get(), polls[i].revents);
        }
        ring(false);
        while (ring(true)) {
        }
        for (std::size_t i = 0; i < sockets_.size(); i++) {
            if (*sockets_[i] && sockets_[i]->connected && sockets_[i]->writes) {
                redisAsyncHandleWrite(sockets_[i]->context);
            }
        }
    }

  private:
    class LoopAlarm final : public Alarm {
      public:
        LoopAlarm(PollLoop* loop, Handler handler, void* self, bool task)
            : loop_(loop), handler_(handler), self_(self), task_(task) {
            loop_->alarms_.push_back(this);
        }
        ~LoopAlarm() override {
            auto& all = loop_->alarms_;
            all.erase(std::remove(all.begin(), all.end(), this), all.end());
        }
        LoopAlarm(const LoopAlarm&) = delete;
        LoopAlarm& operator=(const LoopAlarm&) = delete;

        void arm(Milliseconds after) override {
            at_ = loop_->now_ + after;
            armed_ = true;
        }
        void disarm() override { armed_ = false; }
        bool armed() const override { return armed_; }

        bool ring(bool tasks) {
            if (!armed_ || tasks != task_ || (!task_ && at_ > loop_->now_)) {
                return false;
            }
            armed_ = false;
            handler_(self_);
            return true;
        }

      private:
        PollLoop* loop_;
        Handler handler_;
        void* self_;
        bool task_;
        bool armed_ = false;
        Milliseconds at_ = 0;
    };

    struct Socket {
        redisAsyncContext* context;  // null if the connection has ended
        bool reads = false;
        bool writes = false;
        bool connected = false;  // the socket was writable once

        explicit operator bool() const { return context != nullptr; }
    };

    static Socket* of(void* data) { return static_cast<Socket*>(data); }

    static Milliseconds milliseconds() {
        timespec time = {};
        clock_gettime(CLOCK_MONOTONIC, &time);
        return static_cast<Milliseconds>(time.tv_sec) * 1000 +
               static_cast<Milliseconds>(time.tv_nsec) / 1'000'000;
    }

    static void handle(Socket* socket, int events) {
        if (*socket && socket->reads && (events & ~POLLOUT) != 0) {
            redisAsyncHandleRead(socket->context);
        }
        if (*socket && socket->writes && (events & POLLOUT) != 0) {
            socket->connected = true;
            redisAsyncHandleWrite(socket->context);
        }
    }

    // A callback may create or delete alarms; neither affects the alarms before it.
    bool ring(bool tasks) {
        bool rang = false;
        for (std::size_t i = 0; i < alarms_.size(); i++) {
            rang = alarms_[i]->ring(tasks) || rang;
        }
        return rang;
    }

    Milliseconds now_ = milliseconds();
    std::vector<LoopAlarm*> alarms_;
    std::vector<std::unique_ptr<Socket>> sockets_;
};

}  // namespace rate_limit::redis
