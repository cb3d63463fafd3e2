// A simulated Redis, and instances that lease from it. Messages take time and may be lost with their
// instance.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "client.h"
#include "lease/leases.h"
#include "memory/shared_zone.h"

namespace rate_limit {

inline Micros simulated_clock = 0;

// One client's state in Redis, by the algorithms of core.
class SimulatedRedis {
  public:
    explicit SimulatedRedis(const Policy& policy) : policy_(policy), client_(policy) {}

    Decision decide(Micros now, std::uint64_t cost) {
        const Decision decision = client_.request(now, cost);
        if (decision.allowed && policy_.align_first) {
            windows_.insert(now + decision.reset_after);
        }
        return decision;
    }

    void give_back(Micros now, const LeaseRest& rest) {
        Check check;
        auto& state = const_cast<std::vector<std::uint64_t>&>(client_.state());
        check.evaluate(policy_, client_.layout(), state.data(), now, rest.amount);
        check.undo({rest.amount, rest.charged_at}, false, state.data());
    }

    std::uint64_t remaining(Micros now) const { return client_.look(now).remaining; }

    // The ends of all windows of align=first.
    const std::set<Micros>& windows() const { return windows_; }

  private:
    Policy policy_;
    Client client_;
    std::set<Micros> windows_;
};

// A request that was admitted, at a time of Redis's clock.
struct Use {
    Micros time;
    std::uint64_t cost;
    bool operator<(const Use& other) const { return time < other.time; }
};

// Instances whose clocks differ from that of Redis, and the events that are on their way.
class Fleet {
  public:
    struct Counts {
        std::uint64_t leased = 0;    // requests that leases admitted
        std::uint64_t decided = 0;   // requests that Redis admitted
        std::uint64_t rejected = 0;  // all others
        std::uint64_t asks = 0;
    };

    Fleet(const Policy& policy, const LeaseSize& size, std::size_t instances, std::uint64_t seed,
          Micros longest_trip)
        : policy_(policy), size_(size), redis_(policy), random_(seed), longest_trip_(longest_trip) {
        for (std::size_t i = 0; i < instances; i++) {
            start_instance();
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
            const std::function<void()> act = event->second;
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
        instance.leases->take(client_of(instance), size_, cost, simulated_clock, process_, &take);
        give_back(take.rest);
        if (take.ask.amount != 0) {
            ask(number, take.ask, false);
        }
        if (take.use == LeaseUse::kDry) {
            counts.rejected++;
        } else if (take.use == LeaseUse::kTaken && refund) {
            if (!instance.leases->put_back(instance.hash, take.portion, cost, process_) &&
                !is_bucket(policy_.algorithm)) {
                give_back({cost, take.decided_at});
            }
        } else if (take.use == LeaseUse::kTaken) {
            counts.leased++;
            uses.push_back({now_, cost});
        } else if (!refund) {
            later(trip(), [this, cost] {
                const bool allowed = redis_.decide(now_, cost).allowed;
                (allowed ? counts.decided : counts.rejected)++;
                if (allowed) {
                    uses.push_back({now_, cost});
                }
            });
        }
    }

    // Gives back what an instance does not use, or all it has.
    void keep(std::size_t number, bool all) {
        Instance& instance = *instances_[number];
        set_clock(instance);
        std::uint64_t from = 0;
        IdleLease idle;
        while (instance.leases->next_idle(&from, ~std::uint64_t{0}, all, process_, &idle)) {
            give_back(idle.rest);
        }
    }

    // An instance dies with all it has leased; another one takes its place.
    void kill(std::size_t number) { instances_[number] = make_instance(); }

    void start_instance() { instances_.push_back(make_instance()); }
    std::size_t instances() const { return instances_.size(); }
    const SimulatedRedis& redis() const { return redis_; }

    Counts counts;
    std::vector<Use> uses;
    bool lossy = false;  // some answers do not arrive

  private:
    struct Instance {
        std::unique_ptr<Memory> memory;
        Leases* leases;
        std::uint64_t hash;
        Micros ahead;  // its clock
        std::uint64_t life;
    };

    std::unique_ptr<Instance> make_instance() {
        auto instance = std::make_unique<Instance>();
        instance->memory = std::make_unique<Memory>(Leases::least_size());
        instance->leases = Leases::create(instance->memory->at(), instance->memory->size(), kKey);
        instance->hash = instance->leases->hash("hot");
        instance->ahead = static_cast<Micros>(random(1000 * kSecond));
        instance->life = ++lives_;
        return instance;
    }

    LeaseClient client_of(const Instance& instance) const { return {"hot", instance.hash, &policy_}; }

    void set_clock(const Instance& instance) const {
        simulated_clock = now_ - kMidnight + instance.ahead + kDay;
    }

    Micros trip() { return static_cast<Micros>(random(static_cast<std::uint64_t>(longest_trip_))); }

    void later(Micros after, std::function<void()> act) { events_.emplace(now_ + after, std::move(act)); }

    void give_back(const LeaseRest& rest) {
        if (rest.amount != 0) {
            later(trip(), [this, rest] { redis_.give_back(now_, rest); });
        }
    }

    // Calls `act` when an answer arrives, if the instance lives.
    void answer(std::size_t number, std::uint64_t life, const std::function<void(Instance&)>& act) {
        later(trip(), [=] {
            if (instances_[number]->life == life) {
                set_clock(*instances_[number]);
                act(*instances_[number]);
            }
        });
    }

    void ask(std::size_t number, const LeaseAsk& ask, bool again) {
        counts.asks++;
        set_clock(*instances_[number]);
        const std::uint64_t life = instances_[number]->life;
        const Micros sent_at = simulated_clock;
        later(trip(), [=] {
            const Decision decision = redis_.decide(now_, ask.amount);
            const Micros time = now_;
            answer(number, life, [=](Instance& instance) {
                if (lossy && random(50) == 0) {
                    instance.leases->fail(client_of(instance), ask, process_);
                } else if (decision.allowed) {
                    give_back(
                        instance.leases->grant(client_of(instance), ask, decision, time, sent_at, process_));
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
    Micros longest_trip_;
    Micros now_ = kMidnight + 7 * kHour;
    std::vector<std::unique_ptr<Instance>> instances_;
    std::multimap<Micros, std::function<void()>> events_;
    std::uint64_t lives_ = 0;
    Process process_ = {1, process_is_alive, yield_to_others, [] { return simulated_clock; }};
};

}  // namespace rate_limit
