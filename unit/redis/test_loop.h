// An event loop on poll(2), whose turns a test runs.
#pragma once

#include <hiredis/async.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "connection/loop.h"
#include "test.h"

namespace rate_limit::redis {

inline std::uint64_t microseconds_of(clockid_t clock) {
    timespec time = {};
    clock_gettime(clock, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000 +
           static_cast<std::uint64_t>(time.tv_nsec) / 1000;
}

inline std::uint64_t real_microseconds() { return microseconds_of(CLOCK_MONOTONIC); }

// The CPU time of this process.
inline Milliseconds milliseconds_of_work() { return microseconds_of(CLOCK_PROCESS_CPUTIME_ID) / 1000; }

// The loop has its own clock. A turn takes at most a millisecond on this clock, however long the process
// waits for a CPU. Unless the loop waits for real time (see `real` and `processes`), an idle turn takes a
// millisecond on this clock and no real time.
class TestLoop final : public Loop {
  public:
    struct Line {
        Severity severity;
        std::string text;
    };

    // A file descriptor that the loop polls until `gone`.
    struct Watch {
        int fd;
        short events;
        std::function<void(short events)> ready;
        bool gone = false;
    };

    TestLoop() {
        // As nginx does.
        signal(SIGPIPE, SIG_IGN);
    }
    ~TestLoop() override {
        assert_int_equal(alarms_.size(), 0);
        for (const Watch& watch : watches_) {
            assert_true(watch.gone);
        }
    }

    Alarm* make_timer(Handler handler, void* self, bool) override {
        return new TestAlarm(this, handler, self, false);
    }
    Alarm* make_task(Handler handler, void* self) override {
        return new TestAlarm(this, handler, self, true);
    }

    bool attach(redisAsyncContext* context) override {
        if (refuse_to_attach) {
            return false;
        }
        auto* attachment = new Attachment{
            this, context, watch(context->c.fd, 0, [context](short events) { handle(context, events); })};
        attached++;
        context->ev.data = attachment;
        context->ev.addRead = [](void* data) { of(data)->watch->events |= POLLIN; };
        context->ev.delRead = [](void* data) { of(data)->watch->events &= ~POLLIN; };
        context->ev.addWrite = [](void* data) { of(data)->watch->events |= POLLOUT; };
        context->ev.delWrite = [](void* data) { of(data)->watch->events &= ~POLLOUT; };
        context->ev.cleanup = [](void* data) {
            Attachment* attachment = of(data);
            attachment->context->ev = {};
            attachment->watch->gone = true;
            attachment->loop->attached--;
            if (attachment->freed != nullptr) {
                *attachment->freed = true;
            }
            delete attachment;
        };
        return true;
    }

    Milliseconds now() const override { return passed_ / 1000 + skipped_; }
    std::uint32_t random() override { return chance; }
    void log(Severity severity, std::string_view line) override {
        lines.push_back({severity, std::string(line)});
    }

    Watch* watch(int fd, short events, std::function<void(short)> ready) {
        watches_.push_back({fd, events, std::move(ready)});
        return &watches_.back();
    }

    // Runs one turn: sockets, then timers, then tasks, as nginx does. If a test has armed tasks since the
    // last turn, no time passes before they run: in nginx they would have run in that turn. `waits`: an idle
    // turn takes time.
    void turn(bool waits = true) {
        watches_.remove_if([](const Watch& watch) { return watch.gone; });
        std::vector<pollfd> polls;
        std::vector<Watch*> polled;
        for (Watch& watch : watches_) {
            polls.push_back({watch.fd, watch.events, 0});
            polled.push_back(&watch);
        }
        const bool at_once = has_tasks();
        const bool sleeps = waits && !at_once && (real || processes != 0);
        const int ready = poll(polls.data(), polls.size(), sleeps ? 1 : 0);
        const std::uint64_t looked_at = real_microseconds();
        if (!at_once) {
            passed_ += ready == 0 && waits ? kTurn : std::min(kTurn, looked_at - looked_at_);
        }
        looked_at_ = looked_at;
        for (std::size_t i = 0; i < polls.size(); i++) {
            if (polls[i].revents != 0 && !polled[i]->gone) {
                polled[i]->ready(polls[i].revents);
            }
        }
        ring(false);
        ring(true);
    }

    // Runs turns until `happened`. False if that takes longer than `most`, not counting jumps.
    bool run_until(const std::function<bool()>& happened, Milliseconds most = 5000) {
        const std::uint64_t end = passed_ + most * 1000;
        while (!happened()) {
            if (passed_ > end) {
                return false;
            }
            turn();
        }
        return true;
    }

    void run_for(Milliseconds time) {
        run_until([] { return false; }, time);
    }

    // Advances the clock.
    void jump(Milliseconds time) { skipped_ += time; }

    // The number of logged lines that contain `text`.
    unsigned said(std::string_view text) const {
        return static_cast<unsigned>(std::count_if(lines.begin(), lines.end(), [&](const Line& line) {
            return line.text.find(text) != std::string::npos;
        }));
    }

    // Other processes of the test, which take real time.
    static inline unsigned processes = 0;

    std::vector<Line> lines;
    std::uint32_t chance = 0;
    unsigned attached = 0;
    bool refuse_to_attach = false;
    bool real = false;  // the test waits for TCP or lookups, which take real time

  private:
    class TestAlarm final : public Alarm {
      public:
        TestAlarm(TestLoop* loop, Handler handler, void* self, bool task)
            : loop_(loop), handler_(handler), self_(self), task_(task) {
            loop_->alarms_.push_back(this);
        }
        ~TestAlarm() override { loop_->alarms_.remove(this); }
        TestAlarm(const TestAlarm&) = delete;
        TestAlarm& operator=(const TestAlarm&) = delete;

        void arm(Milliseconds after) override {
            at_ = loop_->now() + after;
            armed_ = true;
        }
        void disarm() override { armed_ = false; }
        bool armed() const override { return armed_; }

        bool due(bool task) const { return task == task_ && armed_ && (task || at_ <= loop_->now()); }
        void ring() {
            armed_ = false;
            handler_(self_);
        }

      private:
        TestLoop* loop_;
        Handler handler_;
        void* self_;
        bool task_;
        bool armed_ = false;
        Milliseconds at_ = 0;
    };

    struct Attachment {
        TestLoop* loop;
        redisAsyncContext* context;
        Watch* watch;
        bool* freed = nullptr;
    };

    static constexpr std::uint64_t kTurn = 1000;  // the longest turn, in microseconds

    static Attachment* of(void* data) { return static_cast<Attachment*>(data); }

    static void handle(redisAsyncContext* context, short events) {
        Attachment* attachment = of(context->ev.data);
        bool freed = false;
        attachment->freed = &freed;
        const short wanted = attachment->watch->events;
        if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && (wanted & POLLIN) != 0) {
            redisAsyncHandleRead(context);
        }
        if (!freed && (events & (POLLOUT | POLLHUP | POLLERR)) != 0 &&
            (attachment->watch->events & POLLOUT) != 0) {
            redisAsyncHandleWrite(context);
        }
        if (!freed) {
            attachment->freed = nullptr;
        }
    }

    bool has_tasks() const {
        return std::any_of(alarms_.begin(), alarms_.end(),
                           [](const TestAlarm* alarm) { return alarm->due(true); });
    }

    // Calls the handlers that are due. Tasks that they arm run in the same turn.
    void ring(bool tasks) {
        std::vector<TestAlarm*> due;
        do {
            due.clear();
            std::copy_if(alarms_.begin(), alarms_.end(), std::back_inserter(due),
                         [&](const TestAlarm* alarm) { return alarm->due(tasks); });
            for (TestAlarm* alarm : due) {
                if (std::find(alarms_.begin(), alarms_.end(), alarm) != alarms_.end() && alarm->due(tasks)) {
                    alarm->ring();
                }
            }
        } while (tasks && !due.empty());
    }

    std::uint64_t passed_ = real_microseconds();
    std::uint64_t looked_at_ = passed_;  // on the real clock
    Milliseconds skipped_ = 0;
    std::list<TestAlarm*> alarms_;
    std::list<Watch> watches_;
};

}  // namespace rate_limit::redis
