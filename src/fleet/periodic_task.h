// A background task that repeats on a timer, in one process at a time.
#pragma once

#include "connection/loop.h"
#include "memory/leader.h"
#include "memory/process.h"
#include "redis/router.h"

namespace rate_limit {

// The processes that share a Leader each have such a task; the elected leader among them runs it. Belongs to
// one thread.
//
// The life of a task: start(), then end() when the process is about to exit, then stop(). Both end() and
// stop() may be left out, and stop() may come first.
class PeriodicTask {
  public:
    virtual ~PeriodicTask();
    PeriodicTask(const PeriodicTask&) = delete;
    PeriodicTask& operator=(const PeriodicTask&) = delete;

    // The process is about to exit: the timer stops, and another process may take the lead.
    void end();

    // The task no longer uses the router, which may then be destroyed. Replies to earlier calls may still
    // arrive.
    void stop();

  protected:
    // Runs every `every` milliseconds. All that is referred to must outlive the task, except for the router
    // after stop().
    PeriodicTask(Leader* leader, redis::Milliseconds every, redis::Router* router, redis::Loop* loop,
                 const Process& process);

    // Starts the timer; the first run is `after` milliseconds from now.
    void start(redis::Milliseconds after);

    // The next run is `after` milliseconds from now, instead of a whole interval.
    void run_again(redis::Milliseconds after);

    // Does the work. Called by the timer in the leading process.
    virtual void run() = 0;

    // Called by the timer in every process, before run().
    virtual void on_timer() {}

    // Called once by end(). Must call resign(), now or later.
    virtual void on_end() { resign(); }

    // Whether this process leads; takes the lead if no process has it.
    virtual bool lead();

    // Lets another process take the lead at once.
    void resign() { leader_->resign(*process_); }

    // Null after stop().
    redis::Router* router() const { return router_; }
    redis::Loop* loop() const { return loop_; }
    const Process& process() const { return *process_; }

  private:
    void tick();

    Leader* leader_;
    redis::Milliseconds every_;
    redis::Router* router_;
    redis::Loop* loop_;
    const Process* process_;
    redis::Alarm* timer_;
    bool ended_ = false;
};

}  // namespace rate_limit
