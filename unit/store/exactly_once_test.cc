// Each admitted request is charged exactly once, whichever calls are lost, whichever process dies, and
// however many instances share a limit.
#include <memory>
#include <numeric>
#include <random>

#include "fleet/ledger.h"
#include "memory/processes.h"

namespace rate_limit {
namespace {

const Policy kWide = with_debt(policy_of(Algorithm::kSlidingWindow, "1000000000r/366d"));

Micros steady = 1000 * kSecond;
std::uint32_t living = 0;

// Random numbers, the same in each run.
class Dice {
  public:
    explicit Dice(unsigned seed) : engine_(seed) {}
    unsigned below(unsigned most) { return static_cast<unsigned>(engine_() % most); }
    bool one_in(unsigned times) { return below(times) == 0; }

  private:
    std::mt19937 engine_;
};

// One instance. Its ledger, network and memory lose and repeat counts at random.
class Trial {
  public:
    Trial(unsigned seed, Mode mode, Guard guard)
        : dice_(seed), mode_(mode), guard_(guard), ledger_(kWide, layout_of(kWide), guard) {
        reload();
    }

    void run(unsigned steps) {
        for (unsigned i = 0; i < steps; i++) {
            step();
            note_losses();
        }
        finish();
    }

    void check_result() {
        for (unsigned i = 0; i < kClients; i++) {
            const std::uint64_t charged = ledger_.charged(name_of(i));
            assert_true(charged <= admitted_[i]);
            assert_true(charged + lost_[i] >= admitted_[i]);
            // The clients that use most are never evicted while they have an unsent count.
            if (i < kHeavy) {
                assert_int_equal(lost_[i], 0);
            }
        }
    }

    std::uint64_t lost() const {
        std::uint64_t sum = 0;
        for (const std::uint64_t one : lost_) {
            sum += one;
        }
        return sum;
    }

    unsigned repeated = 0;

  private:
    static constexpr unsigned kHeavy = 10;
    static constexpr unsigned kClients = 90;

    void step() {
        const unsigned kind = dice_.below(200);
        now_ += dice_.below(1000);
        if (kind < 150) {
            request();
        } else if (kind < 170) {
            begin();
        } else if (kind < 195) {
            finish_one();
        } else if (kind < 198) {
            crash();
        } else if (kind < 199) {
            sync_old();
        } else {
            reload();
        }
    }

    void request() {
        const unsigned client = dice_.one_in(2) ? dice_.below(kHeavy) : dice_.below(kClients);
        const std::uint64_t cost = client < kHeavy ? 10'000 + dice_.below(1000) : 1 + dice_.below(5);
        if (use(*zone_, name_of(client), cost, now_) == Verdict::kAdmitted) {
            admitted_[client] += cost;
        }
    }

    void begin() {
        sync_ledger_->begin_round();
        SyncBatch batch;
        while (in_flight_.size() < 8 && sync_ledger_->next(now_, 1 + dice_.below(20), &batch)) {
            std::uint64_t& last = last_[batch.sender];
            repeated += batch.sequence <= last ? 1 : 0;
            last = std::max(last, batch.sequence);
            in_flight_.push_back(batch);
        }
    }

    // A call arrives once, twice or never; its reply arrives whole, in part or never.
    void finish_one() {
        if (in_flight_.empty()) {
            return;
        }
        const std::size_t index = dice_.below(static_cast<unsigned>(in_flight_.size()));
        const SyncBatch batch = in_flight_[index];
        in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(index));
        if (dice_.one_in(3)) {
            sync_ledger_->failed(batch);
            return;
        }
        Ledger::Answer answer = ledger_.apply(batch, now_);
        if (dice_.one_in(5)) {
            answer = ledger_.apply(batch, now_);
        }
        if (dice_.one_in(3)) {
            const std::size_t some = dice_.below(static_cast<unsigned>(batch.entries.size()));
            for (std::size_t i = 0; i < some; i++) {
                sync_ledger_->confirm(batch, i, answer[i].data(), now_, 0);
            }
            sync_ledger_->failed(batch);
            return;
        }
        confirm(sync_ledger_.get(), batch, answer, now_);
    }

    // Calls in flight may have arrived.
    void crash() {
        for (const SyncBatch& batch : in_flight_) {
            if (dice_.one_in(2)) {
                ledger_.apply(batch, now_);
            }
        }
        in_flight_.clear();
        if (dice_.one_in(2)) {
            sync_ledger_.reset();
        } else {
            abandoned_.push_back(std::move(sync_ledger_));
        }
        start(&sync_ledger_);
    }

    // Others charge a new table, while the old one still sends for a while.
    void reload() {
        auto next = std::make_unique<Zone>(kWide, layout_of(kWide), size_with_unsent(layout_of(kWide), 3),
                                           true, HashKey{7, zones_.size()});
        if (zone_ != nullptr) {
            (*next)->import(zone_->table(), kWide.rates, kWide, now_, this_process());
        }
        sync_ledger_.reset();
        old_.reset();
        if (zone_ != nullptr && dice_.one_in(2)) {
            start(&old_);
        }
        zone_ = next.get();
        zones_.push_back(std::move(next));
        in_flight_.clear();
        start(&sync_ledger_);
    }

    void start(std::unique_ptr<SyncLedger>* sync_ledger) {
        steady += 2 * kSecond;
        Process process = made_up_process(++processes_);
        living = process.self;
        process.alive = [](std::uint32_t process) { return process == living; };
        process.clock = [] { return steady; };
        used_processes_.push_back(std::make_unique<Process>(process));
        *sync_ledger =
            std::make_unique<SyncLedger>(&zone_->table(), kWide, mode_, guard_, *used_processes_.back());
    }

    void sync_old() {
        if (old_ != nullptr) {
            sync(old_.get(), &ledger_, now_);
        }
    }

    void note_losses() {
        for (unsigned i = 0; i < kClients; i++) {
            const UnsentCopy unsent = unsent_of(*zone_, name_of(i));
            if (!unsent.known) {
                lost_[i] += unsent_[i].unsent + unsent_[i].sending;
            }
            unsent_[i] = unsent;
        }
    }

    void finish() {
        crash();
        sync_old();
        for (unsigned i = 0; i < 3; i++) {
            sync(sync_ledger_.get(), &ledger_, now_);
        }
        assert_int_equal(marks(zone_->table()), 0);
    }

    Dice dice_;
    Mode mode_;
    Guard guard_;
    Ledger ledger_;
    std::vector<std::unique_ptr<Zone>> zones_;
    std::vector<std::unique_ptr<Process>> used_processes_;
    std::vector<std::unique_ptr<SyncLedger>> abandoned_;
    Zone* zone_ = nullptr;
    std::unique_ptr<SyncLedger> sync_ledger_;
    std::unique_ptr<SyncLedger> old_;
    std::uint32_t processes_ = 0;
    Micros now_ = kNow;
    std::vector<SyncBatch> in_flight_;
    std::map<std::uint64_t, std::uint64_t> last_;
    std::uint64_t admitted_[kClients] = {};
    std::uint64_t lost_[kClients] = {};
    UnsentCopy unsent_[kClients];
};

void test_whatever_is_lost_or_repeated_each_request_is_charged_once(void**) {
    std::uint64_t lost = 0;
    unsigned repeated = 0;
    for (unsigned seed = 0; seed < 12; seed++) {
        for (const Mode mode : {Mode::kSync, Mode::kFallback}) {
            for (const Guard guard : {Guard::kSender, Guard::kClient}) {
                Trial trial(seed, mode, guard);
                trial.run(1000);
                trial.check_result();
                lost += trial.lost();
                repeated += trial.repeated;
            }
        }
    }
    // Counts were lost and repeated often enough.
    assert_true(lost > 100);
    assert_true(repeated > 300);
}

constexpr unsigned kShared = 20;  // clients of several processes

struct Counts {
    Meeting meeting;
    std::atomic<bool> enough;
    std::atomic<std::uint64_t> admitted[kShared];
};

std::uint64_t total(const Counts& counts) {
    return std::accumulate(counts.admitted, counts.admitted + kShared, std::uint64_t{0});
}

// Charges random clients and counts the admitted requests, until there are enough.
int charge(const Zone& zone, Counts* counts, unsigned seed) {
    Dice dice(seed);
    Process process = patient_process();
    for (unsigned i = 0; !counts->enough; i++) {
        const unsigned client = dice.below(kShared);
        const std::string name = name_of(client);
        TableLimit limit = limit_of(zone, name, 1 + dice.below(3));
        if (check(&limit, 1, kNow + i, process) == Verdict::kAdmitted) {
            counts->admitted[client] += limit.cost;
        }
    }
    return 0;
}

void test_requests_of_several_processes_are_charged_once_while_one_sends(void**) {
    for (const Guard guard : {Guard::kSender, Guard::kClient}) {
        for (const Mode mode : {Mode::kSync, Mode::kFallback}) {
            const Zone zone = zone_with_unsent_counts(kWide, 6);
            const Memory memory(sizeof(Counts));
            auto* counts = memory.as<Counts>();
            Ledger ledger(kWide, layout_of(kWide), guard);
            const Process process = patient_process();
            SyncLedger sync_ledger(&zone.table(), kWide, mode, guard, process);
            const auto work = [&](unsigned seed) {
                counts->meeting.join(4);
                return charge(zone, counts, seed);
            };
            Child children[3] = {Child([&] { return work(1); }), Child([&] { return work(2); }),
                                 Child([&] { return work(3); })};
            counts->meeting.join(4);
            while (ledger.batches < 300) {
                sync(&sync_ledger, &ledger, kNow, 7);
            }
            counts->enough = true;
            for (Child& child : children) {
                assert_int_equal(child.wait(), 0);
            }
            sync(&sync_ledger, &ledger, kNow, 7);
            for (unsigned i = 0; i < kShared; i++) {
                assert_int_equal(ledger.charged(name_of(i)), counts->admitted[i]);
                assert_int_equal(zone.used(zone->hash(name_of(i))), counts->admitted[i]);
            }
        }
    }
}

void test_processes_killed_at_any_moment_lose_one_request_at_most(void**) {
    const Zone zone = zone_with_unsent_counts(kWide, 6);
    const Memory memory(sizeof(Counts));
    auto* counts = memory.as<Counts>();
    Ledger ledger(kWide, layout_of(kWide), Guard::kSender);
    const Process process = this_process();
    SyncLedger sync_ledger(&zone.table(), kWide, Mode::kSync, Guard::kSender, process);
    constexpr unsigned kKills = 100;
    for (unsigned round = 0; round < kKills; round++) {
        Signal started;
        Child child([&] {
            started.give();
            return charge(zone, counts, round);
        });
        assert_true(started.await());
        const double latest = seconds() + 10;
        for (unsigned i = 0; i < 1 + round % 5 || (total(*counts) <= 101 * (round + 1) && seconds() < latest);
             i++) {
            sync(&sync_ledger, &ledger, kNow, 7);
        }
        child.kill();
        child.wait();
        sync(&sync_ledger, &ledger, kNow, 7);
    }
    sync(&sync_ledger, &ledger, kNow, 7);
    const std::uint64_t admitted = total(*counts);
    std::uint64_t charged = 0;
    for (unsigned i = 0; i < kShared; i++) {
        charged += ledger.charged(name_of(i));
    }
    assert_true(admitted > 10'000);
    assert_in_range(charged, admitted, admitted + 3 * kKills);
    assert_int_equal(marks(zone.table()), 0);
}

void assert_agrees(const Zone& zone, Ledger* ledger, const std::string& name, Micros now) {
    const Micros period = zone.policy().rates.rates[0].period;
    for (unsigned i = 0; i < 12; i++) {
        for (const std::uint64_t cost : {0U, 1U, 4U}) {
            const Micros later = now + i * period / 5;
            TableLimit limit = limit_of(zone, name, cost);
            precheck(&limit, 1, later, this_process());
            const Decision expected = ledger->peek(name, later, cost);
            if (is_bucket(zone.policy().algorithm)) {
                // Redis does not get the times of requests: a bucket may be fuller here, never emptier.
                assert_true(cost != 0 || limit.decision.remaining <= expected.remaining);
                continue;
            }
            assert_int_equal(limit.decision.allowed, expected.allowed);
            assert_int_equal(limit.decision.remaining, expected.remaining);
            assert_int_equal(limit.decision.reset_after, expected.reset_after);
            assert_int_equal(limit.decision.retry_after, expected.retry_after);
        }
    }
}

// Three instances share a limit. Returns how many requests they have admitted together.
void share_a_limit(const Policy& policy, unsigned seed) {
    constexpr unsigned kInstances = 3;
    constexpr unsigned kClients = 3;
    Dice dice(seed);
    const StateLayout layout = layout_of(policy);
    Ledger ledger(policy, layout, Guard::kSender);
    std::vector<std::unique_ptr<Zone>> zones;
    std::vector<std::unique_ptr<SyncLedger>> sync_ledgers;
    const Process process = this_process();
    for (unsigned i = 0; i < kInstances; i++) {
        zones.push_back(
            std::make_unique<Zone>(policy, layout, size_with_unsent(layout, 2), true, HashKey{seed, i}));
        sync_ledgers.push_back(std::make_unique<SyncLedger>(&zones[i]->table(), zones[i]->policy(),
                                                            Mode::kSync, Guard::kSender, process));
    }
    Micros now = kNow;
    for (unsigned i = 0; i < 300; i++) {
        now += dice.one_in(10) ? dice.below(40'000'000) : dice.below(500'000);
        const unsigned instance = dice.below(kInstances);
        const Zone& zone = *zones[instance];
        if (!dice.one_in(4)) {
            use(zone, name_of(dice.below(kClients)), 1 + dice.below(3), now);
            continue;
        }
        // A slow call; requests continue meanwhile.
        SyncBatch batch;
        sync_ledgers[instance]->begin_round();
        while (sync_ledgers[instance]->next(now, 2, &batch)) {
            const Ledger::Answer answer = ledger.apply(batch, now);
            if (dice.one_in(2)) {
                use(zone, batch.entries[0].name(), 1, now);
            }
            confirm(sync_ledgers[instance].get(), batch, answer, now);
            // A client without requests meanwhile has the same state here and in the ledger.
            for (const SyncEntry& entry : batch.entries) {
                if (unsent_of(zone, entry.name()).unsent == 0) {
                    assert_agrees(zone, &ledger, std::string(entry.name()), now);
                }
            }
        }
    }
    // In the end, each instance with an unsent count has the counts of all instances.
    for (unsigned i = 0; i < kInstances; i++) {
        sync(sync_ledgers[i].get(), &ledger, now, 2);
    }
    now += policy.rates.rates[policy.rates.size - 1].period * 3;
    for (unsigned i = 0; i < kInstances; i++) {
        for (unsigned client = 0; client < kClients; client++) {
            assert_int_equal(use(*zones[i], name_of(client), 1, now), Verdict::kAdmitted);
        }
        sync(sync_ledgers[i].get(), &ledger, now, 2);
        for (unsigned client = 0; client < kClients; client++) {
            assert_agrees(*zones[i], &ledger, name_of(client), now);
        }
    }
}

void test_instances_that_share_a_limit_decide_as_redis_would(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        if (algorithm == Algorithm::kSlidingLog) {
            continue;
        }
        for (const char* rates : {"10r/m", "10r/m,100r/h"}) {
            for (const bool interval : {false, true}) {
                Policy policy = with_debt(policy_of(algorithm, rates));
                policy.min_interval = interval ? kSecond / 10 : 0;
                for (unsigned seed = 0; seed < 5; seed++) {
                    share_a_limit(policy, seed);
                }
            }
        }
    }
}

// An instance knows the counts of the others after its next round, so together they exceed a limit by at most
// what they admit between two rounds.
void test_instances_together_exceed_a_limit_by_what_they_admit_between_two_rounds(void**) {
    for (const Algorithm algorithm : kEveryAlgorithm) {
        if (algorithm == Algorithm::kSlidingLog) {
            continue;
        }
        const Policy policy = with_debt(policy_of(algorithm, "60r/h"));
        const StateLayout layout = layout_of(policy);
        Ledger ledger(policy, layout, Guard::kSender);
        const Zone zones[2] = {Zone(policy, layout, 1 << 16, true, {1, 2}),
                               Zone(policy, layout, 1 << 16, true, {3, 4})};
        const Process process = this_process();
        SyncLedger first(&zones[0].table(), policy, Mode::kSync, Guard::kSender, process);
        SyncLedger second(&zones[1].table(), policy, Mode::kSync, Guard::kSender, process);
        unsigned admitted = 0;
        for (unsigned i = 0; i < 200; i++) {
            const Micros now = kNow + i * kSecond / 10;
            for (const Zone& zone : zones) {
                admitted += use(zone, "alice", 1, now) == Verdict::kAdmitted ? 1 : 0;
            }
            if (i % 5 == 4) {
                sync(&first, &ledger, now);
                sync(&second, &ledger, now);
            }
        }
        assert_in_range(admitted, 60, 60 + 10);
        assert_int_equal(ledger.charged("alice"), admitted);
    }
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_whatever_is_lost_or_repeated_each_request_is_charged_once),
        cmocka_unit_test(test_requests_of_several_processes_are_charged_once_while_one_sends),
        cmocka_unit_test(test_processes_killed_at_any_moment_lose_one_request_at_most),
        cmocka_unit_test(test_instances_that_share_a_limit_decide_as_redis_would),
        cmocka_unit_test(test_instances_together_exceed_a_limit_by_what_they_admit_between_two_rounds),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
