// Collects unsent counts, retries batches that may be lost, and applies replies.
#include "fleet/sync_ledger.h"

#include <algorithm>

namespace rate_limit {
namespace {

// How many clients ahead memory is prefetched.
constexpr std::size_t kClientsAhead = 8;

// Calls `visit` with each rate of a policy as a policy of its own, without min_interval.
template <class Visit>
void visit_rates(const Policy& policy, Visit visit) {
    if (policy.rates.size == 1 && policy.min_interval == 0) {
        visit(policy);
        return;
    }
    Policy one = policy;
    one.min_interval = 0;
    one.rates.size = 1;
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        one.rates.rates[0] = policy.rates.rates[i];
        visit(one);
    }
}

// The largest number of requests that a state has used of any rate.
std::uint64_t used_of_any(const Policy& policy, const StateLayout& layout, const std::uint64_t* state,
                          Micros now) {
    std::uint64_t most = 0;
    visit_rates(policy,
                [&](const Policy& one) { most = std::max(most, used_of(one, layout, state, now, 0)); });
    return most;
}

// The part of a client's counts that still affects decisions: the newest `used` requests.
struct Counting {
    std::uint64_t unsent;
    std::uint64_t sending;

    Counting(const UnsentCount& counts, std::uint64_t used)
        : unsent(std::min(counts.unsent(), used)), sending(std::min(counts.sending(), used - unsent)) {}
};

std::uint64_t client_of(const Slot& slot) { return slot.hash->load(std::memory_order_relaxed); }

void copy_rates(const RateList& from, RateList* to) {
    to->size = from.size;
    std::copy_n(from.rates, from.size, to->rates);
}

}  // namespace

SyncEntry::SyncEntry(const Slot& from, const UnsentCount& counts, const RateList& rates, std::uint64_t amount)
    : client(client_of(from)), slot(from.number), amount(amount) {
    const std::string_view text = counts.name();
    name_size = static_cast<std::uint8_t>(text.size());
    std::copy(text.begin(), text.end(), name_text);
    copy_rates(rates, &this->rates);
}

SyncLedger::SyncLedger(Table* table, const Policy& policy, Mode mode, Guard guard, const Process& process)
    : table_(table),
      policy_(&policy),
      mode_(mode),
      guard_(guard),
      process_(&process),
      cursor_(table->slots()) {}

void SyncLedger::resign() {
    if (leads_) {
        leads_ = false;
        table_->unsent_counts().leader().resign(*process_);
    }
}

bool SyncLedger::is_earlier(const Member& a, const Member& b) {
    return a.sender != b.sender ? a.sender < b.sender : a.sequence < b.sequence;
}

const RateList& SyncLedger::rates_of(const UnsentCount& counts, RateList* room) const {
    if (!varied()) {
        return policy_->rates;
    }
    *room = counts.rates();
    return *room;
}

const Policy& SyncLedger::policy_of(const SyncEntry& entry, Policy* room) const {
    if (!varied()) {
        return *policy_;
    }
    *room = *policy_;
    copy_rates(entry.rates, &room->rates);
    return *room;
}

std::uint64_t SyncLedger::used(const Slot& slot, const UnsentCount& counts, Micros now) const {
    if (!varied()) {
        return used_of_any(*policy_, table_->layout(), slot.state, now);
    }
    Policy policy = *policy_;
    policy.rates = counts.rates();
    return used_of_any(policy, table_->layout(), slot.state, now);
}

// A time of next() by this machine's clock.
Micros SyncLedger::local_time(Micros now) const {
    return mode_ == Mode::kSync ? now - table_->unsent_counts().ahead() : now;
}

bool SyncLedger::drains() const { return mode_ == Mode::kSync && is_bucket(policy_->algorithm); }

// How much of the unsent count is still worth sending.
std::uint64_t SyncLedger::worth_sending(const Slot& slot, const UnsentCount& counts, Micros since,
                                        Micros now) const {
    return drains() && since != 0 ? kMaxCount : used(slot, counts, now);
}

bool SyncLedger::lead() {
    const Leader::Lead lead = table_->unsent_counts().leader().lead(*process_);
    if (lead == Leader::Lead::kNo) {
        leads_ = false;
    } else if (lead == Leader::Lead::kNew || !leads_) {
        leads_ = true;
        find_retries();
    }
    return leads_;
}

// Finds the entries in flight that an earlier leader left.
void SyncLedger::find_retries() {
    retries_.clear();
    round_failed_ = false;
    unconfirmed_ = 0;
    std::uint64_t from = 0;
    for (;;) {
        const Slot slot = table_->next_unsent(&from, *process_);
        if (slot.state == nullptr) {
            break;
        }
        const UnsentCount& counts = table_->unsent_of(slot);
        const Member member = {counts.sender(), counts.sequence(), client_of(slot), 0};
        const bool sending = counts.sending() != 0;
        release(slot);
        if (sending) {
            retries_.push_back(member);
        }
    }
    std::sort(retries_.begin(), retries_.end(), is_earlier);
    due_ = retries_.size();
}

void SyncLedger::begin_round() {
    cursor_ = cursor_ < table_->slots() ? cursor_ : 0;
    due_ = retries_.size();
    round_failed_ = false;
}

bool SyncLedger::next(Micros now, std::size_t most, SyncBatch* batch) {
    batch->entries.clear();
    if (!lead() || (guard_ == Guard::kSender && (unconfirmed_ != 0 || round_failed_))) {
        return false;
    }
    most = guard_ == Guard::kSender ? most : 1;
    const bool new_first = guard_ == Guard::kClient && retried_;
    retried_ = !(new_first && collect(now, most, batch)) && retry(now, batch);
    if (batch->entries.empty() && !collect(now, most, batch)) {
        return false;
    }
    unconfirmed_ = batch->entries.size();
    lag_ = batch->since != 0 ? std::max(lag_, now - batch->since) : lag_;
    return true;
}

bool SyncLedger::retry(Micros now, SyncBatch* batch) {
    while (due_ != 0 && batch->entries.empty()) {
        const Member first = retries_.front();
        batch->sender = first.sender;
        batch->sequence = first.sequence;
        batch->since = first.since;
        do {
            retry(retries_.front(), now, batch);
            retries_.pop_front();
            due_--;
        } while (due_ != 0 && retries_.front().sender == first.sender &&
                 retries_.front().sequence == first.sequence &&
                 (guard_ == Guard::kSender || batch->entries.empty()));
    }
    return !batch->entries.empty();
}

void SyncLedger::retry(const Member& member, Micros now, SyncBatch* batch) {
    const Slot slot = table_->find(member.client, *process_);
    if (slot.state == nullptr) {
        return;
    }
    const UnsentCount& counts = table_->unsent_of(slot);
    if (counts.is_in(member.sender, member.sequence)) {
        const Counting counting(counts, worth_sending(slot, counts, member.since, now));
        RateList room;
        batch->entries.emplace_back(slot, counts, rates_of(counts, &room), counting.sending);
    }
    release(slot);
}

bool SyncLedger::collect(Micros now, std::size_t most, SyncBatch* batch) {
    if (cursor_ == 0) {
        last_pass_ = pass_;
        pass_ = now;
    }
    batch->since = last_pass_;
    if (table_->unsent_counts().next_marked(cursor_) >= table_->slots()) {
        cursor_ = table_->slots();
        return false;
    }
    most = std::min<std::size_t>(most, table_->slots());
    batch->entries.reserve(most);  // so that nothing is allocated while a slot is locked
    std::uint64_t ahead = cursor_;
    for (std::size_t i = 0; i < std::min(most, kClientsAhead); i++) {
        ahead = prefetch_unsent(ahead);
    }
    while (batch->entries.size() < most) {
        ahead = prefetch_unsent(ahead);
        const Slot slot = table_->next_unsent(&cursor_, *process_);
        if (slot.state == nullptr) {
            break;
        }
        collect(slot, now, batch);
        release(slot);
    }
    return !batch->entries.empty();
}

// Prefetches the next client from a slot on that may have an unsent count; returns the number after its slot.
std::uint64_t SyncLedger::prefetch_unsent(std::uint64_t from) const {
    const std::uint64_t number = table_->unsent_counts().next_marked(from);
    if (number >= table_->slots()) {
        return number;
    }
    table_->prefetch(number);
    return number + 1;
}

void SyncLedger::collect(const Slot& slot, Micros now, SyncBatch* batch) {
    UnsentCount& counts = table_->unsent_of(slot);
    if (counts.sending() != 0) {
        return;
    }
    const std::uint64_t amount =
        counts.name().empty() ? 0 : Counting(counts, worth_sending(slot, counts, batch->since, now)).unsent;
    if (amount == 0) {
        counts.drop_unsent(local_time(now));
        return;
    }
    if (batch->entries.empty()) {
        batch->sender = table_->unsent_counts().sender();
        batch->sequence = table_->unsent_counts().next_sequence();
    }
    RateList room;
    batch->entries.emplace_back(slot, counts, rates_of(counts, &room), amount);
    counts.send(amount, batch->sender, batch->sequence, local_time(now));
}

// With kSender, numbers must arrive in order, so a failed batch is sent first. With kClient, it goes to the
// end, so that it does not block others.
void SyncLedger::failed(const SyncBatch& batch) {
    for (const SyncEntry& entry : batch.entries) {
        const Member member = {batch.sender, batch.sequence, entry.client, batch.since};
        if (guard_ == Guard::kSender) {
            retries_.push_front(member);
        } else {
            retries_.push_back(member);
        }
    }
    round_failed_ = true;
    unconfirmed_ = 0;
}

void SyncLedger::confirm(const SyncBatch& batch, std::size_t index, const std::uint64_t* state, Micros time,
                         std::uint64_t overshoot) {
    unconfirmed_ -= std::min<std::size_t>(unconfirmed_, 1);
    if (index + kClientsAhead < batch.entries.size()) {
        table_->prefetch(batch.entries[index + kClientsAhead].slot);
    }
    const Slot slot = table_->find(batch.entries[index].client, batch.entries[index].slot, *process_);
    if (overshoot != 0) {
        Policy room;
        table_->unsent_counts().add_overshoot(
            beyond_limit(policy_of(batch.entries[index], &room), state, time, overshoot,
                         slot.state != nullptr ? &table_->unsent_of(slot) : nullptr));
    }
    if (slot.state == nullptr) {
        return;
    }
    UnsentCount& counts = table_->unsent_of(slot);
    if (counts.is_in(batch.sender, batch.sequence)) {
        // The state first: if the process dies before arrive(), the entry is retried.
        if (mode_ == Mode::kSync) {
            take_over(slot, counts, state, time, batch.since != 0 ? lag_ + kClockSlack : kForever);
            weigh(slot, counts, time);
        }
        counts.arrive();
    }
    release(slot);
}

// Of the requests that exceeded the limit, those that the client does not make up for by waiting.
std::uint64_t SyncLedger::beyond_limit(const Policy& policy, const std::uint64_t* state, Micros time,
                                       std::uint64_t overshoot, UnsentCount* counts) const {
    if (mode_ != Mode::kSync || state == nullptr) {
        return overshoot;
    }
    if (is_bucket(policy.algorithm)) {
        return counts != nullptr ? beyond_bucket(policy, state, time, overshoot, counts) : overshoot;
    }
    return std::min(overshoot, window_excess(policy, table_->layout(), state, time));
}

// A bucket that is too full rejects the client until it has drained. If several instances each admit what has
// drained since, it is too full again, although the client was admitted no more than before. So only an
// increase of the excess counts, until the client has rested for a period after its whole quota was back. The
// debt of a bucket is limited; what exceeds this limit is never made up for.
std::uint64_t SyncLedger::beyond_bucket(const Policy& policy, const std::uint64_t* state, Micros time,
                                        std::uint64_t overshoot, UnsentCount* counts) const {
    std::uint64_t excess = 0;
    bool is_most = false;
    Micros rested = 0;
    visit_rates(policy, [&](const Policy& one) {
        const Rate& rate = one.rates.rates[0];
        const std::uint64_t limit = capacity_of(one, rate);
        const std::uint64_t used = used_of(one, table_->layout(), state, time, 0);
        Check look;
        rested = std::max(
            rested, time + look.evaluate(one, table_->layout(), state, time, 0).reset_after + rate.period);
        excess = std::max(excess, used - std::min(used, limit));
        is_most = is_most || used >= limit + std::max<std::uint64_t>(limit, rate.count);
    });
    const std::uint64_t counted = time / kSecond < counts->rested_at() ? counts->excess() : 0;
    counts->set_excess(std::max(excess, counted),
                       static_cast<std::uint32_t>(std::min<Micros>(rested / kSecond, ~std::uint32_t{0})));
    const std::uint64_t more = excess - std::min(excess, counted);
    return is_most ? overshoot : std::min(overshoot, more);
}

// Whether a bucket is at least as full as another one, and needs at most `most` longer to drain.
bool SyncLedger::is_fuller(const std::uint64_t* state, const std::uint64_t* than, const Policy& policy,
                           Micros time, Micros most) const {
    bool fuller = true;
    visit_rates(policy, [&](const Policy& one) {
        Check here;
        Check there;
        const Micros longer = here.evaluate(one, table_->layout(), state, time, 0).reset_after -
                              there.evaluate(one, table_->layout(), than, time, 0).reset_after;
        fuller = fuller && longer >= 0 && longer <= most;
    });
    return fuller;
}

// Copies a state except for its weight, which Redis does not store.
void SyncLedger::replace(const Slot& slot, const std::uint64_t* state) const {
    const std::size_t words = words_of(table_->layout()) - (varied() ? 1 : 0);
    if (state != nullptr) {
        std::copy_n(state, words, slot.state);
    } else {
        std::fill_n(slot.state, words, 0);
    }
}

// Updates the weight of a state, which includes what other instances have admitted.
void SyncLedger::weigh(const Slot& slot, const UnsentCount& counts, Micros time) const {
    if (!varied()) {
        return;
    }
    Policy policy = *policy_;
    policy.rates = counts.rates();
    Check look;
    look.evaluate(policy, table_->layout(), slot.state, time, 0);
    look.write_weight(slot.state);
}

// Replaces the state by that of Redis, and charges what was admitted since the batch was created. A bucket
// that is fuller here is more accurate and stays: Redis gets the counts later, and without their times. This
// explains a difference that drains within `most`. If the difference is larger, charges were given back.
void SyncLedger::take_over(const Slot& slot, const UnsentCount& counts, const std::uint64_t* state,
                           Micros time, Micros most) const {
    const StateLayout& layout = table_->layout();
    // The common case of windows: nothing was admitted since.
    if (counts.unsent() == 0 && !drains()) {
        replace(slot, state);
        return;
    }
    const std::uint64_t unsent = Counting(counts, used(slot, counts, time)).unsent;
    std::uint64_t before[kMaxRates * 3 + 1];  // the words of all rates
    const std::size_t levels = drains() ? interval_index(layout) : 0;
    std::copy_n(slot.state, levels, before);
    replace(slot, state);
    RateList room;
    Policy policy = *policy_;
    policy.rates = rates_of(counts, &room);
    if (unsent != 0) {
        Check check;
        check.evaluate(policy, layout, slot.state, time, unsent);
        check.impose(slot.state);
    }
    if (drains() && is_fuller(before, slot.state, policy, time, most)) {
        std::copy_n(before, levels, slot.state);
    }
}

void SyncLedger::release(const Slot& slot) const {
    table_->unmark(slot);
    Table::keep(slot, *process_);
}

}  // namespace rate_limit
