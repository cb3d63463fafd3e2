// A simulated Redis, and instances of nginx that lease from it, in virtual time. One client, the hot key.
//
// Each instance has real leases. Its messages take time, overtake each other, and may be lost with it.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "algorithms/check.h"
#include "lease/leases.h"

namespace rate_limit::simulation {

// The clock of the instance that runs.
inline Micros instance_clock = 0;

// One client's state in Redis, by the algorithms of core.
class SimulatedRedis {
  public:
    explicit SimulatedRedis(const Policy& policy)
        : policy_(policy), layout_(layout_of(policy)), state_(words_of(layout_)) {}

    Decision decide(Micros now, std::uint64_t cost) {
        Check check;
        const Decision decision = check.evaluate(policy_, layout_, state_.data(), now, cost);
        if (decision.allowed) {
            check.charge(state_.data());
        } else {
            check.refuse(state_.data());
        }
        if (decision.allowed && policy_.align_first) {
            windows_.insert(now + decision.reset_after);
        }
        return decision;
    }

    void give_back(Micros now, const LeaseRest& rest) {
        Check check;
        check.evaluate(policy_, layout_, state_.data(), now, rest.amount);
        check.undo({rest.amount, rest.charged_at}, false, state_.data());
    }

    // The ends of all windows of align=first.
    const std::set<Micros>& windows() const { return windows_; }

  private:
    Policy policy_;
    StateLayout layout_;
    std::vector<std::uint64_t> state_;
    std::set<Micros> windows_;
};

// A request that was admitted, with times of Redis's clock.
struct Use {
    Micros time;  // when it was decided
    std::uint64_t cost;
    Micros came;
    bool operator<(const Use& other) const { return time < other.time; }
};

// How long a message to Redis or from it takes: drawn evenly for each message.
struct MessageTime {
    Micros least;
    Micros most;
};

// Instances whose clocks differ from that of Redis, and the events that are on their way.
class LeasingFleet {
  public:
    struct Counts {
        std::uint64_t leased = 0;    // requests that leases admitted
        std::uint64_t decided = 0;   // requests that Redis admitted
        std::uint64_t rejected = 0;  // all others
        std::uint64_t asks = 0;      // for portions
        std::uint64_t asked = 0;     // units of these
        std::uint64_t direct = 0;    // requests that asked Redis
        std::uint64_t returns = 0;   // of unused units
    };

    // Starts at a time of Redis's clock.
    LeasingFleet(const Policy& policy, const LeaseSize& size, std::size_t instances, std::uint64_t seed,
                 const MessageTime& message_time, Micros start)
        : policy_(policy),
          size_(size),
          redis_(policy),
          random_(seed),
          message_time_(message_time),
          start_(start),
          now_(start) {
        for (std::size_t i = 0; i < instances; i++) {
            instances_.push_back(make_instance());
        }
    }

    std::uint64_t random(std::uint64_t most) { return random_() % (most + 1); }
    Micros now() const { return now_; }

    // Delivers what arrives within a time.
    void pass(Micros time) {
        const Micros until = now_ + time;
        while (!events_.empty() && events_.begin()->first <= until) {
            const auto event = events_.begin();
            now_ = event->first;
            const std::function<void()> act = std::move(event->second);
            events_.erase(event);
            act();
        }
        now_ = until;
    }

    // A request to an instance. With `refund`, another limit rejects it.
    void request(std::size_t number, std::uint64_t cost, bool refund) {
        Instance& instance = *instances_[number];
        set_clock(instance);
        LeaseTake take;
        instance.leases->take(client_of(instance), size_, cost, instance_clock, process_, &take);
        give_back(&instance, take.rest);
        if (take.ask.amount != 0) {
            ask(number, take.ask, false);
        }
        if (take.use == LeaseUse::kDry) {
            counts.rejected++;
        } else if (take.use == LeaseUse::kTaken && refund) {
            if (!instance.leases->put_back(instance.hash, take.portion, cost, process_) &&
                !is_bucket(policy_.algorithm)) {
                give_back(&instance, {cost, take.decided_at});
            }
        } else if (take.use == LeaseUse::kTaken) {
            counts.leased++;
            uses.push_back({now_, cost, now_});
        } else if (!refund) {
            request_of_redis(&instance, cost);
        }
    }

    // Gives back what an instance does not use, or all it has.
    void keep(std::size_t number, bool all) {
        Instance& instance = *instances_[number];
        set_clock(instance);
        std::uint64_t from = 0;
        IdleLease idle;
        while (instance.leases->next_idle(&from, ~std::uint64_t{0}, all, process_, &idle)) {
            give_back(&instance, idle.rest);
        }
    }

    // An instance dies with all it has leased; another one takes its place.
    void kill(std::size_t number) { instances_[number] = make_instance(); }

    std::size_t instances() const { return instances_.size(); }

    // Calls to Redis: of all instances, and the most of one.
    std::uint64_t calls() const { return counts.asks + counts.direct + counts.returns; }
    std::uint64_t most_calls() const {
        std::uint64_t most = 0;
        for (const auto& instance : instances_) {
            most = std::max(most, instance->calls);
        }
        return most;
    }

    const SimulatedRedis& redis() const { return redis_; }

    Counts counts;
    std::vector<Use> uses;  // in the order of their times
    bool lossy = false;     // some answers do not arrive

  private:
    static constexpr Micros kDay = 24 * 3600 * kSecond;

    struct alignas(64) Line {
        std::uint64_t words[8];
    };

    struct Instance {
        std::vector<Line> memory;
        Leases* leases;
        std::uint64_t hash;
        Micros ahead;  // its clock
        std::uint64_t life;
        std::uint64_t calls;
    };

    std::unique_ptr<Instance> make_instance() {
        auto instance = std::make_unique<Instance>();
        instance->memory.resize((Leases::least_size() + sizeof(Line) - 1) / sizeof(Line));
        instance->leases = Leases::create(instance->memory.data(), instance->memory.size() * sizeof(Line),
                                          {0x0706050403020100, 0x0f0e0d0c0b0a0908});
        instance->hash = instance->leases->hash("hot");
        instance->ahead = static_cast<Micros>(random(1000 * kSecond));
        instance->life = ++lives_;
        return instance;
    }

    LeaseClient client_of(const Instance& instance) const { return {"hot", instance.hash, &policy_}; }

    void set_clock(const Instance& instance) const { instance_clock = now_ - start_ + instance.ahead + kDay; }

    Micros trip() {
        const auto more = static_cast<std::uint64_t>(message_time_.most - message_time_.least);
        return message_time_.least + static_cast<Micros>(random(more));
    }

    void later(Micros after, std::function<void()> act) { events_.emplace(now_ + after, std::move(act)); }

    void request_of_redis(Instance* instance, std::uint64_t cost) {
        counts.direct++;
        instance->calls++;
        later(trip(), [this, cost, came = now_] {
            const bool allowed = redis_.decide(now_, cost).allowed;
            (allowed ? counts.decided : counts.rejected)++;
            if (allowed) {
                uses.push_back({now_, cost, came});
            }
        });
    }

    void give_back(Instance* instance, const LeaseRest& rest) {
        if (rest.amount != 0) {
            counts.returns++;
            instance->calls++;
            later(trip(), [this, rest] { redis_.give_back(now_, rest); });
        }
    }

    // Calls `act` when an answer arrives, if the instance lives.
    void answer(std::size_t number, std::uint64_t life, const std::function<void(Instance&)>& act) {
        later(trip(), [this, number, life, act] {
            if (instances_[number]->life == life) {
                set_clock(*instances_[number]);
                act(*instances_[number]);
            }
        });
    }

    void ask(std::size_t number, const LeaseAsk& ask, bool again) {
        counts.asks++;
        instances_[number]->calls++;
        counts.asked += ask.amount;
        set_clock(*instances_[number]);
        const std::uint64_t life = instances_[number]->life;
        const Micros sent_at = instance_clock;
        later(trip(), [this, number, ask, again, life, sent_at] {
            const Decision decision = redis_.decide(now_, ask.amount);
            const Micros time = now_;
            answer(number, life, [this, number, ask, again, decision, time, sent_at](Instance& instance) {
                if (lossy && random(50) == 0) {
                    instance.leases->fail(client_of(instance), ask, process_);
                } else if (decision.allowed) {
                    give_back(&instance, instance.leases->grant(client_of(instance), ask, decision, time,
                                                                sent_at, process_));
                } else {
                    const LeaseAsk next =
                        instance.leases->refuse(client_of(instance), ask, decision, time, again, process_);
                    if (next.amount != 0) {
                        this->ask(number, next, true);
                    }
                }
            });
        });
    }

    Policy policy_;
    LeaseSize size_;
    SimulatedRedis redis_;
    std::mt19937_64 random_;
    MessageTime message_time_;
    Micros start_;
    Micros now_;
    std::vector<std::unique_ptr<Instance>> instances_;
    std::multimap<Micros, std::function<void()>> events_;
    std::uint64_t lives_ = 0;

    // The only process of its nginx, so that it never waits.
    Process process_ = {1, [](std::uint32_t) { return true; }, [] {}, [] { return instance_clock; }};
};

}  // namespace rate_limit::simulation
