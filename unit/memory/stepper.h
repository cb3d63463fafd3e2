// A process that can be stopped between any two instructions, for example of a check.
#pragma once

#include <sys/ptrace.h>
#include <sys/user.h>

#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "processes.h"
#include "shared_zone.h"

namespace rate_limit {

// After the instruction at `address` has been reached `times` times.
struct Moment {
    unsigned long long address;
    unsigned times;
};

// What a stepped process reports.
struct Progress {
    std::atomic<bool> done;     // with the check
    std::atomic<bool> waiting;  // for who holds the client
};

class Stepper {
  public:
    // Stops before the first instruction of the function, which returns an answer. Skips the test if
    // processes cannot be traced.
    Stepper(const std::function<int(const Process&)>& action, Progress* progress)
        : progress_(reset(progress)), child_([&action, progress] {
              told = progress;
              Process process = patient_process();
              process.yield = [] {
                  told->waiting = true;
                  sched_yield();
              };
              if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
                  return 98;
              }
              raise(SIGSTOP);
              const int answer = action(process);
              progress->done = true;
              return answer;
          }) {
        siginfo_t info = {};
        assert_int_equal(waitid(P_PID, static_cast<id_t>(child_.pid()), &info, WEXITED | WSTOPPED | WNOWAIT),
                         0);
        if (info.si_code == CLD_EXITED) {
            _skip(__FILE__, __LINE__);
        }
        await();
    }

    // The same with a check of `client`.
    Stepper(const Zone& zone, std::uint64_t client, Micros now, Progress* progress)
        : Stepper(
              [&zone, client, now](const Process& process) {
                  TableLimit limit = zone.limit(client);
                  return static_cast<int>(check(&limit, 1, now, process));
              },
              progress) {}

    bool done() const { return progress_->done; }
    bool waiting() const { return progress_->waiting; }
    std::uint32_t id() const { return static_cast<std::uint32_t>(child_.pid()); }

    unsigned long long address() const { return registers().rip; }

    void step() const {
        trace(PTRACE_SINGLESTEP);
        await();
    }

    // Continues until the moment, which must come.
    void run_to(const Moment& moment) const {
        for (unsigned i = 0; i < moment.times; i++) {
            if (i != 0) {
                step();
            }
            run_to(moment.address);
        }
    }

    // Continues without another stop.
    void go_on() const { trace(PTRACE_CONT); }

    Verdict answer() {
        if (!answered_) {
            answer_ = child_.wait();
            answered_ = true;
        }
        return static_cast<Verdict>(answer_);
    }

  private:
    static inline Progress* told = nullptr;

    static Progress* reset(Progress* progress) {
        progress->done = progress->waiting = false;
        return progress;
    }

    void trace(__ptrace_request request) const {
        assert_int_equal(ptrace(request, child_.pid(), nullptr, nullptr), 0);
    }

    void await() const {
        int status = 0;
        assert_int_equal(waitpid(child_.pid(), &status, 0), child_.pid());
        assert_true(WIFSTOPPED(status) && (WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP));
    }

    user_regs_struct registers() const {
        user_regs_struct registers = {};
        assert_int_equal(ptrace(PTRACE_GETREGS, child_.pid(), nullptr, &registers), 0);
        return registers;
    }

    // With a breakpoint instead of the instruction.
    void run_to(unsigned long long address) const {
        user_regs_struct now = registers();
        if (now.rip == address) {
            return;
        }
        constexpr long kBreakpoint = 0xcc;
        const long code = ptrace(PTRACE_PEEKTEXT, child_.pid(), address, nullptr);
        const long changed = (code & ~0xffL) | kBreakpoint;
        assert_int_equal(ptrace(PTRACE_POKETEXT, child_.pid(), address, changed), 0);
        trace(PTRACE_CONT);
        await();
        assert_int_equal(ptrace(PTRACE_POKETEXT, child_.pid(), address, code), 0);
        now = registers();
        assert_int_equal(now.rip, address + 1);
        now.rip = address;
        assert_int_equal(ptrace(PTRACE_SETREGS, child_.pid(), nullptr, &now), 0);
    }

    Progress* progress_;
    Child child_;
    bool answered_ = false;
    int answer_ = 0;
};

// The moments at which to interrupt a check: when each of its instructions, or some of them if there are too
// many, is first reached; and before and after each change of the table.
inline std::vector<Moment> moments_of(const Zone& zone, std::uint64_t client, Micros now,
                                      Progress* progress) {
    constexpr std::size_t kMost = 500;
    std::vector<Moment> first;
    std::vector<Moment> moments;
    std::map<unsigned long long, unsigned> times;
    std::vector<unsigned char> before(zone.memory().size());
    const Stepper stepper(zone, client, now, progress);
    for (bool changed = false; !stepper.done();) {
        const unsigned long long address = stepper.address();
        const Moment moment = {address, ++times[address]};
        std::memcpy(before.data(), zone.memory().at(), before.size());
        stepper.step();
        const bool changes = std::memcmp(before.data(), zone.memory().at(), before.size()) != 0;
        if (changed || changes) {
            moments.push_back(moment);
        } else if (moment.times == 1) {
            first.push_back(moment);
        }
        changed = changes;
        assert_true(times.size() < 100'000);
    }
    for (std::size_t i = 0; i < std::min(first.size(), kMost); i++) {
        moments.push_back(first[i * first.size() / std::min(first.size(), kMost)]);
    }
    return moments;
}

}  // namespace rate_limit
