// A process dies between any two instructions of a charge or of a sync round: each request is still charged
// once.
#if defined(__x86_64__)

#include "fleet/ledger.h"
#include "stepper.h"

namespace rate_limit {
namespace {

const Policy kPolicy = with_debt(policy_of(Algorithm::kSlidingWindow, "1000r/h"));

// The process after the dead one.
Process survivor() {
    Process process = made_up_process(1);
    process.alive = [](std::uint32_t) { return false; };
    process.yield = [] {};
    process.clock = [] { return monotonic_clock() + 10 * kSecond; };
    return process;
}

Zone varied_zone(std::size_t sets) {
    const StateLayout layout = layout_of(kPolicy, 2, 0);
    return Zone(kPolicy, layout, size_with_unsent(layout, sets), true);
}

// A copy of the memory of a zone at its last change.
class Memorized {
  public:
    // Whether the memory has changed.
    bool follow(const Zone& zone) {
        const auto* at = zone.memory().as<unsigned char>();
        if (!last_.empty() && std::equal(last_.begin(), last_.end(), at)) {
            return false;
        }
        last_.assign(at, at + zone.memory().size());
        return true;
    }

    void copy_to(const Zone& copy) const {
        std::copy(last_.begin(), last_.end(), copy.memory().as<unsigned char>());
    }

  private:
    std::vector<unsigned char> last_;
};

// Sends all unsent counts of a zone, after a process has died.
void reconcile(const Zone& zone, Ledger* ledger) {
    const Process process = survivor();
    SyncLedger sync_ledger(&zone.table(), zone.policy(), Mode::kSync, Guard::kSender, process);
    sync(&sync_ledger, ledger, kNow, 2);
    sync(&sync_ledger, ledger, kNow, 2);
    assert_int_equal(marks(zone.table()), 0);
}

void test_a_process_may_die_after_any_instruction_of_a_charge(void**) {
    const Memory memory(sizeof(Progress));
    // The client has an unsent count, or none, or is new in a free slot or in that of a client with an unsent
    // count.
    enum Kind { kOwes, kOwesNothing, kIsNew, kTakesPlace };
    for (const Kind kind : {kOwes, kOwesNothing, kIsNew, kTakesPlace}) {
        const Zone zone = varied_zone(1);
        const Zone copy = varied_zone(1);
        const std::uint32_t before = kind == kOwes ? 5 : 0;
        const unsigned others = kind == kTakesPlace ? 16 : 3;
        const std::string name = "alice";
        if (kind < kIsNew) {
            use(zone, name, 5);
        }
        if (kind == kOwesNothing) {
            confirm(zone, name);
        }
        for (unsigned i = 0; i < others; i++) {
            use(zone, name_of(i), 20 + i);
        }
        const Policy two = with_debt(policy_of(Algorithm::kSlidingWindow, "1000r/h,9000r/d"));
        const Stepper dying(
            [&](const Process& process) {
                TableLimit limit = limit_of(zone, name, 100);
                limit.policy = &two;
                return static_cast<int>(check(&limit, 1, kNow, process));
            },
            memory.as<Progress>());
        Memorized memorized;
        unsigned changes = 0;
        for (unsigned i = 0; !dying.done(); i++) {
            assert_true(i < 1'000'000);
            dying.step();
            if (!memorized.follow(zone)) {
                continue;
            }
            memorized.copy_to(copy);
            changes++;
            Ledger ledger(kPolicy, copy->layout(), Guard::kSender);
            reconcile(copy, &ledger);
            const std::uint64_t charged = ledger.charged(name);
            assert_true(charged == before || charged == before + 100);
            unsigned missing = 0;
            for (unsigned i = 0; i < others; i++) {
                const std::uint64_t one = ledger.charged(name_of(i));
                assert_true(one == 20 + i || one == 0);
                missing += one == 0 ? 1 : 0;
            }
            assert_true(missing <= (kind == kTakesPlace ? 1 : 0));
            // New clients do not inherit counts.
            use(copy, name, 7, kNow, survivor());
            reconcile(copy, &ledger);
            assert_int_equal(ledger.charged(name), charged + 7);
            use(copy, "bob", 9, kNow, survivor());
            reconcile(copy, &ledger);
            assert_int_equal(ledger.charged("bob"), 9);
            assert_int_equal(ledger.charged(name), charged + 7);
        }
        assert_true(changes > 10);
    }
}

constexpr unsigned kClients = 3;

// Number 1 of a sender, with so much for the first client, one more for the next, and so on.
SyncBatch first_batch(std::uint64_t sender, std::uint32_t amount) {
    SyncBatch batch;
    batch.sender = sender;
    batch.sequence = 1;
    for (unsigned i = 0; i < kClients; i++) {
        const std::string name = name_of(i);
        SyncEntry entry = {};
        entry.amount = amount + i;
        entry.rates = kPolicy.rates;
        entry.name_size = static_cast<std::uint8_t>(name.size());
        std::copy(name.begin(), name.end(), entry.name_text);
        batch.entries.push_back(entry);
    }
    return batch;
}

// The dying process reports that its batch was applied.
struct Applied {
    Progress progress;
    std::atomic<bool> applied;
};

void test_a_process_may_die_after_any_instruction_of_a_round(void**) {
    const Memory memory(sizeof(Applied));
    auto* told = memory.as<Applied>();
    const Zone zone = varied_zone(2);
    const Zone copy = varied_zone(2);
    // Other clients have used 50, 51 and 52.
    Ledger start(kPolicy, zone->layout(), Guard::kSender);
    start.apply(first_batch(1, 50), kNow);
    for (unsigned i = 0; i < kClients; i++) {
        use(zone, name_of(i), 10 + i);
    }
    Ledger later = start;
    const Ledger::Answer answers = later.apply(first_batch(zone->unsent_counts().sender(), 10), kNow);
    const Stepper dying(
        [&](const Process& process) {
            SyncLedger sync_ledger(&zone.table(), zone.policy(), Mode::kSync, Guard::kSender, process);
            SyncBatch batch;
            sync_ledger.begin_round();
            if (!sync_ledger.next(kNow, 10, &batch) || batch.entries.size() != kClients) {
                return 1;
            }
            told->applied = true;
            for (std::size_t i = 0; i < kClients; i++) {
                const unsigned number = batch.entries[i].name().back() - '0';
                sync_ledger.confirm(batch, i, answers[number].data(), kNow, 0);
            }
            return 0;
        },
        &told->progress);
    Memorized memorized;
    unsigned changes = 0;
    bool applied = false;
    for (unsigned step = 0; !dying.done(); step++) {
        assert_true(step < 1'000'000);
        dying.step();
        if (!memorized.follow(zone) && applied == told->applied) {
            continue;
        }
        applied = told->applied;
        memorized.copy_to(copy);
        changes++;
        Ledger ledger = start;
        if (applied) {
            ledger.apply(first_batch(zone->unsent_counts().sender(), 10), kNow);
        }
        use(copy, name_of(0), 3, kNow, survivor());
        reconcile(copy, &ledger);
        for (unsigned i = 0; i < kClients; i++) {
            const std::uint32_t expected = 60 + 2 * i + (i == 0 ? 3 : 0);
            assert_int_equal(ledger.charged(name_of(i)), expected);
            assert_int_equal(copy.used(copy->hash(name_of(i))), expected);
        }
    }
    assert_true(told->applied);
    assert_int_equal(marks(zone.table()), 0);
    assert_true(changes > 20);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_process_may_die_after_any_instruction_of_a_charge),
        cmocka_unit_test(test_a_process_may_die_after_any_instruction_of_a_round),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

#else

// Requires a processor whose registers the test knows.
int main() { return 0; }

#endif
