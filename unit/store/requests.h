// Requests with limits in memory and in two Redis servers.
#pragma once

#include <algorithm>
#include <memory>

#include "memory/shared_zone.h"
#include "script_server.h"
#include "store/decide.h"

namespace rate_limit {

using redis::Error;

inline Micros wall_clock = kNow;
inline Micros steady_clock = 1000 * kSecond;

inline Process this_host() {
    Process process = this_process();
    process.clock = [] { return steady_clock; };
    return process;
}

inline const Process kProcess = this_host();

// The parameters of a limit of a request.
struct TestLimit {
    const Zone* zone = nullptr;
    CheckBatcher* batcher = nullptr;
    OnError on_error = OnError::kOpen;
    Denials* denials = nullptr;
    const char* name = "api";
    const Policy* policy = nullptr;  // the zone's unless given
    std::uint64_t cost = 1;
    const char* client = "alice";
    const Membership* membership = nullptr;
    CheckBatcher* corrector = nullptr;
};

inline const Policy kPolicy = policy_of(Algorithm::kSlidingWindow, "10r/m");

// A request with some limits.
class Request {
  public:
    explicit Request(const std::vector<TestLimit>& limits) {
        for (const TestLimit& limit : limits) {
            const Policy* policy = limit.policy != nullptr ? limit.policy
                                   : limit.zone != nullptr ? &limit.zone->policy()
                                                           : &kPolicy;
            zones_.push_back({limit.name, layout_of(*policy),
                              limit.zone != nullptr ? &limit.zone->table() : nullptr, limit.batcher,
                              limit.corrector, limit.membership, limit.denials, kSecond, limit.on_error});
            limits_.push_back({&zones_.back(),
                               policy,
                               limit.client,
                               limit.cost,
                               nullptr,
                               false,
                               is_single(*policy, zones_.back().layout),
                               DecidedBy::kCache,
                               kNoSlot,
                               {},
                               0,
                               true,
                               0});
        }
        outcome_ = decide(
            limits_.data(), limits_.size(), kProcess, [] { return wall_clock; },
            {[](void* request, std::size_t) -> void* { return &static_cast<Request*>(request)->check_; },
             [](RequestCheck* check) {
                 auto* request = static_cast<Request*>(check->data);
                 request->answers_++;
                 request->outcome_ = check->outcome();
             }},
            this);
        at_once_ = outcome_.progress;
        assert_int_equal(answers_, 0);
    }
    ~Request() { assert_int_equal(answers_, at_once_ == Progress::kWaiting && !forgotten_ ? 1 : 0); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    // The result when decide() returned, and the result after waiting for Redis.
    Progress at_once() const { return at_once_; }
    Progress in_the_end(redis::TestLoop* loop) const {
        assert_int_equal(at_once_, Progress::kWaiting);
        assert_true(loop->run_until([this] { return answers_ != 0; }));
        return outcome_.progress;
    }

    // Ends the request before it is decided. The request may then be destroyed.
    void leave(RequestCheck::Gone gone) {
        if (outcome_.progress == Progress::kWaiting) {
            outcome_.check->leave(gone);
        }
        kept_zones_.push_back(std::move(zones_));
        forgotten_ = true;
    }

    bool answered() const { return answers_ != 0; }
    const Decision& decision(std::size_t index) const { return limits_[index].decision; }
    DecidedBy decided_by(std::size_t index) const { return limits_[index].decided_by; }
    Reason reason(std::size_t index) const { return limits_[index].reason; }
    const std::vector<Limit>& limits() const { return limits_; }
    Error error() const { return outcome_.error; }
    Micros decided_at(std::size_t index = 0) const { return limits_[index].decided_at; }

    // Corrects the charge of a limit.
    bool settle(std::size_t index, std::uint64_t actual) {
        return rate_limit::settle(&limits_[index], actual, kProcess, [] { return wall_clock; });
    }

    // Refunds the limits, as after a rejection by a later limit. Returns how many limits stay charged.
    long refund_all() {
        refund(limits_.data(), limits_.size(), kProcess, [] { return wall_clock; });
        return std::count_if(limits_.begin(), limits_.end(),
                             [](const Limit& limit) { return limit.charged; });
    }

  private:
    static inline std::deque<std::deque<StoreZone>> kept_zones_;  // of aborted requests

    std::deque<StoreZone> zones_;
    std::vector<Limit> limits_;
    std::aligned_storage_t<sizeof(RequestCheck), alignof(RequestCheck)> check_;
    RequestOutcome outcome_;
    Progress at_once_;
    unsigned answers_ = 0;
    bool forgotten_ = false;
};

inline std::uint32_t used(const Zone& zone) { return zone.used(zone->hash("alice"), wall_clock); }

inline void use(const Zone& zone, std::uint64_t cost) {
    assert_int_equal(zone.request(zone->hash("alice"), wall_clock, cost), Verdict::kAdmitted);
}

// Two fake Redis servers, a zone in memory, and a deny cache.
struct Scene {
    explicit Scene(redis::Milliseconds timeout = 2000)
        : first_server(&loop),
          second_server(&loop),
          first(&loop, first_server.server.path(), 64, timeout),
          second(&loop, second_server.server.path(), 64, timeout),
          zone(kPolicy),
          memory(65536),
          denials(Denials::create(memory.at(), memory.size(), kKey)) {
        for (const TestBatcher* batcher : {&first, &second}) {
            const Request request({{nullptr, batcher->get()}});
            assert_int_equal(request.in_the_end(&loop), Progress::kAdmitted);
        }
        first_server.calls.clear();
        second_server.calls.clear();
    }

    TestLimit in_memory() const { return {&zone}; }
    TestLimit in_first(OnError on_error = OnError::kOpen, const Zone* local = nullptr) const {
        return {local, first.get(), on_error};
    }
    TestLimit in_second(OnError on_error = OnError::kOpen, const Zone* local = nullptr) const {
        return {local, second.get(), on_error};
    }
    TestLimit cached(std::uint64_t cost = 1, const Policy* policy = nullptr) const {
        TestLimit limit = {nullptr, first.get(), OnError::kOpen, denials};
        limit.cost = cost;
        limit.policy = policy;
        return limit;
    }

    static void fail(ScriptServer* server) {
        server->send = [](const std::string&) { return "-OOM command not allowed\r\n"; };
    }

    // Opens the breaker of the first server.
    void lose_first() {
        first_server.server.refuse();
        first_server.server.hang_up();
        assert_true(loop.run_until([&] { return loop.attached == 1; }));
        const Request request({in_first()});
        assert_int_equal(request.in_the_end(&loop), Progress::kAdmitted);
        assert_int_equal(request.error(), Error::kRefused);
        assert_false(first->available(0));
    }

    redis::TestLoop loop;
    ScriptServer first_server;
    ScriptServer second_server;
    TestBatcher first;
    TestBatcher second;
    Zone zone;
    Memory memory;
    Denials* denials;
};

inline void always_reject(ScriptServer* server) {
    server->decide = [](const SeenLimit&) { return reject(); };
}

}  // namespace rate_limit
