// Processes rounds, calls and answers in the order of their times.
#include "simulation/fleet.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "memory/table_check.h"

namespace rate_limit::simulation {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSlotsInSet = 16;
constexpr std::uint64_t kStreamOfNetwork = (1U << 31) + 1;

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// Each process is the only one of its nginx, so that it never waits.
Process alone() {
    return {1, [](std::uint32_t) { return true; }, [] {}, [] { return kSecond; }};
}

}  // namespace

struct Fleet::Instance {
    Instance(const Scenario& scenario, const StateLayout& layout, const Process& process,
             std::uint32_t number, Micros starts_at)
        : phase(starts_at) {
        // Twice as many slots as clients, so that no client is evicted.
        const std::size_t sets = 2 + scenario.clients * 2 / kSlotsInSet;
        const std::size_t size = (Table::least_size(layout, true) * sets + kAlignment - 1) & -kAlignment;
        memory.reset(std::aligned_alloc(kAlignment, size));
        if (memory == nullptr) {
            std::abort();
        }
        std::memset(memory.get(), 0, size);
        table = Table::create(memory.get(), size, layout, {number + 1, scenario.seed}, true);
        sync_ledger = std::make_unique<SyncLedger>(table, scenario.policy, SyncLedger::Mode::kSync,
                                                   SyncLedger::Guard::kSender, process);
    }

    std::unique_ptr<void, Free> memory;
    Table* table;
    std::unique_ptr<SyncLedger> sync_ledger;
    Micros phase;  // the time of its first round
    Micros last_arrival = 0;
    bool round_planned = false;
    bool in_flight = false;
};

Fleet::Fleet(const Scenario& scenario)
    : scenario_(scenario),
      layout_(layout_of(scenario.policy)),
      process_(alone()),
      random_(scenario.seed, kStreamOfNetwork),
      ledger_(scenario_.policy, scenario.clients) {
    scenario_.policy.debt = true;
    for (std::uint32_t i = 0; i < scenario_.clients; i++) {
        names_.push_back(name_of(i));
    }
    for (std::uint32_t i = 0; i < scenario_.instances; i++) {
        const Micros drawn = random_.below(static_cast<std::uint32_t>(scenario_.sync));
        const Micros phase = (i < scenario_.phases.size() ? scenario_.phases[i] : drawn) % scenario_.sync;
        instances_.push_back(std::make_unique<Instance>(scenario_, layout_, process_, i,
                                                        scenario_.start - scenario_.sync + phase));
    }
}

Fleet::~Fleet() = default;

bool Fleet::admits(const Arrival& arrival) {
    const Micros now = scenario_.start + arrival.at;
    while (!events_.empty() && events_.top().at <= now) {
        const Event event = events_.top();
        events_.pop();
        happen(event);
    }
    Instance& instance = *instances_[arrival.instance];
    make_up_rounds(&instance, now);
    NameRoom room;
    TableLimit limit = memory_limit(instance.table, scenario_.policy, names_[arrival.client], 1, &room);
    if (check(&limit, 1, now, process_) != Verdict::kAdmitted) {
        return false;
    }
    plan_round(arrival.instance, now);
    return true;
}

void Fleet::add(Micros at, Kind kind, std::uint32_t subject) {
    events_.push({at, event_count_++, kind, subject});
}

// A round without unsent counts does nothing, and is skipped.
void Fleet::plan_round(std::uint32_t number, Micros now) {
    Instance& instance = *instances_[number];
    if (!instance.round_planned) {
        const Micros since = now - instance.phase;
        const Micros rounds = since < 0 ? 0 : since / scenario_.sync + 1;
        add(instance.phase + rounds * scenario_.sync, Kind::kRound, number);
        instance.round_planned = true;
    }
}

// Runs the last of the skipped rounds.
void Fleet::make_up_rounds(Instance* instance, Micros now) {
    const Micros since = now - instance->phase;
    if (instance->round_planned || instance->in_flight || since < 0) {
        return;
    }
    SyncBatch none;
    instance->sync_ledger->begin_round();
    if (instance->sync_ledger->next(now - since % scenario_.sync, kClientsInCall, &none)) {
        std::abort();
    }
}

void Fleet::happen(const Event& event) {
    if (event.kind == Kind::kRound) {
        Instance& instance = *instances_[event.subject];
        instance.round_planned = false;
        instance.sync_ledger->begin_round();
        send(event.subject, event.at);
        return;
    }
    Trip& trip = *trips_[event.subject];
    if (event.kind == Kind::kArrive) {
        ledger_.apply(trip.batch, event.at, &trip.answer);
    } else {
        instances_[trip.instance]->in_flight = false;
        if (event.kind == Kind::kAnswer) {
            take_in(trip);
        } else {
            instances_[trip.instance]->sync_ledger->failed(trip.batch);
            plan_round(trip.instance, event.at);
        }
        send(trip.instance, event.at);
    }
    if (--trip.events == 0) {
        free_trips_.push_back(event.subject);
    }
}

void Fleet::send(std::uint32_t number, Micros now) {
    Instance& instance = *instances_[number];
    if (instance.in_flight) {
        return;
    }
    const std::uint32_t index = new_trip();
    Trip& trip = *trips_[index];
    if (!instance.sync_ledger->next(now, kClientsInCall, &trip.batch)) {
        free_trips_.push_back(index);
        return;
    }
    trip.instance = number;
    instance.in_flight = true;
    calls_++;
    charges_ += trip.batch.entries.size();
    travel(index, now);
}

// A connection delivers in order: a call does not overtake an earlier one, even if that has timed out.
void Fleet::travel(std::uint32_t index, Micros now) {
    Trip& trip = *trips_[index];
    Instance& instance = *instances_[trip.instance];
    const bool arrives = random_.uniform() >= scenario_.loss;
    const bool is_answered = arrives && random_.uniform() >= scenario_.loss;
    trip.events = 1;
    if (arrives) {
        instance.last_arrival = std::max(instance.last_arrival, now + one_way());
        add(instance.last_arrival, Kind::kArrive, index);
        trip.events++;
    }
    const Micros answered_at = instance.last_arrival + one_way();
    if (is_answered && answered_at <= now + scenario_.timeout) {
        add(answered_at, Kind::kAnswer, index);
    } else {
        add(now + scenario_.timeout, Kind::kTimeout, index);
    }
}

void Fleet::take_in(const Trip& trip) {
    const std::size_t words = words_of(layout_);
    for (std::size_t i = 0; i < trip.batch.entries.size(); i++) {
        instances_[trip.instance]->sync_ledger->confirm(trip.batch, i, &trip.answer.states[i * words],
                                                        trip.answer.time, trip.answer.overshoots[i]);
    }
}

std::uint32_t Fleet::new_trip() {
    if (free_trips_.empty()) {
        trips_.push_back(std::make_unique<Trip>());
        return static_cast<std::uint32_t>(trips_.size() - 1);
    }
    const std::uint32_t index = free_trips_.back();
    free_trips_.pop_back();
    return index;
}

Micros Fleet::one_way() {
    return scenario_.latency / 2 +
           static_cast<Micros>(random_.uniform() * static_cast<double>(scenario_.jitter));
}

std::uint64_t Fleet::overshoot() const {
    std::uint64_t sum = 0;
    for (const auto& instance : instances_) {
        sum += instance->table->overshoot();
    }
    return sum;
}

std::uint64_t Fleet::evictions() const {
    std::uint64_t sum = 0;
    for (const auto& instance : instances_) {
        sum += instance->table->evictions();
    }
    return sum;
}

}  // namespace rate_limit::simulation
