// Processes that a test starts, waits for and kills, and barriers.
#pragma once

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>

#include "memory/shared_zone.h"
#include "test.h"

namespace rate_limit {

// A process that runs a function and returns its result. It ends soon after its parent.
class Child {
  public:
    template <class Function>
    explicit Child(Function function) {
        std::fflush(nullptr);
        const pid_t parent = getpid();
        pid_ = fork();
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(kMostSeconds);
            _exit(getppid() == parent ? function() : 99);
        }
        assert_true(pid_ > 0);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() {
        if (!reaped_) {
            kill();
            wait();
        }
    }

    pid_t pid() const { return pid_; }
    void send(int signal) const { assert_int_equal(::kill(pid_, signal), 0); }
    void kill() const { send(SIGKILL); }

    // The result of the function, or -1 if the process was killed.
    int wait() {
        int status = 0;
        assert_int_equal(waitpid(pid_, &status, 0), pid_);
        reaped_ = true;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    // Waits until the process is dead, but leaves it a zombie.
    void await_death() const {
        siginfo_t info = {};
        assert_int_equal(waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
    }

    // Waits until the process is stopped.
    void await_stop() const {
        int status = 0;
        assert_int_equal(waitpid(pid_, &status, WUNTRACED), pid_);
        assert_true(WIFSTOPPED(status));
    }

  private:
    static constexpr unsigned kMostSeconds = 120;

    pid_t pid_;
    bool reaped_ = false;
};

// Tells another process that something has happened.
class Signal {
  public:
    Signal() { assert_int_equal(pipe2(ends_, O_CLOEXEC), 0); }
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;
    ~Signal() {
        close(ends_[0]);
        close(ends_[1]);
    }

    bool give() const { return write(ends_[1], "!", 1) == 1; }
    bool await() const {
        char byte = 0;
        return read(ends_[0], &byte, 1) == 1;
    }

  private:
    int ends_[2];
};

// A spinning barrier: processes wait for each other and continue at the same instant. Lives in shared memory
// that was all zero.
class Meeting {
  public:
    void join(unsigned processes) {
        const unsigned turn = turn_.load();
        if (joined_.fetch_add(1) + 1 == processes) {
            joined_.store(0);
            turn_.store(turn + 1);
            return;
        }
        for (unsigned i = 0; turn_.load() == turn; i++) {
            if (i % 64 == 63) {
                sched_yield();
            }
        }
    }

  private:
    std::atomic<unsigned> joined_;
    std::atomic<unsigned> turn_;
};

}  // namespace rate_limit
