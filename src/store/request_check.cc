// Charges a request's limits in memory and in Redis, and refunds them if one of the limits rejects.
#include "store/request_check.h"

#include <algorithm>
#include <new>
#include <type_traits>

#include "core/arithmetic.h"
#include "store/deny_cache.h"
#include "store/take_lease.h"

namespace rate_limit {

// The limits of a request that tables in memory decide.
struct MemoryLimits {
    TableLimits limits;
    std::size_t indices[kMaxLimits];
    PolicyRoom parts[kMaxLimits];  // used only if memory is a fallback
};

namespace {

// Whether the lowest rate of `a` is lower than the lowest rate of `b`.
bool is_lower(const RateList& a, const RateList& b) {
    const auto lower = [](const Rate& x, const Rate& y) {
        return multiply(x.count, static_cast<std::uint64_t>(y.period)) <
               multiply(y.count, static_cast<std::uint64_t>(x.period));
    };
    return lower(*std::min_element(a.rates, a.rates + a.size, lower),
                 *std::min_element(b.rates, b.rates + b.size, lower));
}

}  // namespace

RequestCheck::RequestCheck(Limit* limits, std::size_t count, const Process& process, Micros (*wall)(),
                           void (*done)(RequestCheck* check))
    : limits_(limits), count_(count), process_(process), wall_(wall), done_(done) {
    question_.limits = limits;
    question_.done = on_answer;
    question_.data = this;
    for (std::size_t i = 0; i < count_; i++) {
        const StoreZone& zone = *limits_[i].zone;
        limits_[i].decided_by = DecidedBy::kNobody;
        limits_[i].reason = kNoReason;
        limits_[i].charged = false;
        slots_[i] = zone.batcher != nullptr ? zone.batcher->hash_slot_of(limits_[i]) : redis::HashSlot{0};
        order_[i] = static_cast<std::uint8_t>(i);
        has_tables_ = has_tables_ || zone.table != nullptr;
        has_leases_ = has_leases_ || zone.lender != nullptr;
        scattered_ = scattered_ || !together(i, 0);
    }
    if (scattered_) {
        arrange();
    }
}

// Whether one group may have both limits: they have the same batcher and slot, or both have no batcher.
bool RequestCheck::together(std::size_t a, std::size_t b) const {
    return limits_[a].zone->batcher == limits_[b].zone->batcher && slots_[a] == slots_[b];
}

// Whether limit `a` is charged before limit `b`. Of two limits with the same rate, the limit in Redis comes
// first: a limit in memory that is charged last never needs a refund.
bool RequestCheck::precedes(std::size_t a, std::size_t b) const {
    const RateList& rates = limits_[a].policy->rates;
    const RateList& others = limits_[b].policy->rates;
    if (is_lower(rates, others) || is_lower(others, rates)) {
        return is_lower(rates, others);
    }
    return limits_[a].zone->batcher != nullptr && limits_[b].zone->batcher == nullptr;
}

void RequestCheck::arrange() {
    for (std::size_t i = 1; i < count_; i++) {
        const std::uint8_t moved = order_[i];
        std::size_t to = i;
        for (; to != 0 && precedes(moved, order_[to - 1]); to--) {
            order_[to] = order_[to - 1];
        }
        order_[to] = moved;
    }
}

Progress RequestCheck::start() {
    started_at_ = process_.clock();
    progress_ = look_at_memory();
    return progress_;
}

void RequestCheck::forget() { CheckBatcher::forget(&question_); }

void RequestCheck::leave(Gone gone) {
    if (question_.waiting == nullptr) {
        return;
    }
    RequestCheck* successor = copy();
    if (successor == nullptr) {
        CheckBatcher::forget(&question_);
        give_back();
        return;
    }
    successor->gone_ = gone;
    CheckBatcher::hand_over(&question_, &successor->question_);
}

// Copies the check, its limits, and the policies and client names of the limits, which are in the request's
// memory. end_copy frees the copy. Null if memory is exhausted.
RequestCheck* RequestCheck::copy() const {
    std::size_t size = sizeof(RequestCheck) + count_ * (sizeof(Limit) + sizeof(Policy));
    for (std::size_t i = 0; i < count_; i++) {
        size += limits_[i].client.size();
    }
    void* memory = ::operator new(size, std::nothrow);
    if (memory == nullptr) {
        return nullptr;
    }
    auto* copy = new (memory) RequestCheck(*this);
    copy->limits_ = reinterpret_cast<Limit*>(copy + 1);
    auto* policies = reinterpret_cast<Policy*>(copy->limits_ + count_);
    auto* text = reinterpret_cast<char*>(policies + count_);
    for (std::size_t i = 0; i < count_; i++) {
        const Limit& limit = limits_[i];
        auto* copied = new (&copy->limits_[i]) Limit(limit);
        copied->policy = new (&policies[i]) Policy(*limit.policy);
        copied->client = {text, limit.client.size()};
        text = std::copy(limit.client.begin(), limit.client.end(), text);
    }
    copy->question_.limits = copy->limits_;
    copy->question_.data = copy;
    copy->question_.lost = [](Question* question) { ::operator delete(question->data); };
    copy->done_ = end_copy;
    copy->data = nullptr;
    return copy;
}

void RequestCheck::end_copy(RequestCheck* copy) {
    if (copy->gone_ != nullptr) {
        copy->gone_(*copy);
    }
    ::operator delete(copy);
}

// Collects the limits before position `end` of the order that memory has to decide, including limits for
// which memory is the fallback of Redis.
void RequestCheck::gather_memory(std::size_t end, MemoryLimits* memory) const {
    for (std::size_t position = 0; position < end; position++) {
        const std::size_t i = order_[position];
        const Limit& limit = limits_[i];
        const bool instead =
            tried_[i] && limit.decided_by == DecidedBy::kNobody && limit.zone->on_error == OnError::kLocal;
        if (limit.zone->table != nullptr && (limit.zone->batcher == nullptr || instead) && !in_memory_[i]) {
            add_memory_limit(i, memory);
        }
    }
}

TableLimit* RequestCheck::add_memory_limit(std::size_t i, MemoryLimits* memory) const {
    const Limit& limit = limits_[i];
    const std::size_t index = memory->limits.size();
    memory->indices[index] = i;
    TableLimit* own =
        memory->limits.add(limit.zone->table, *limit.policy, limit.client, limit.cost, limit.is_short);
    if (limit.zone->batcher != nullptr) {
        make_fallback(limit, &memory->parts[index], own);
    }
    return own;
}

void RequestCheck::copy_decisions(const MemoryLimits& memory, Micros now) {
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        Limit& limit = limits_[memory.indices[i]];
        limit.decision = memory.limits[i].decision;
        limit.decided_at = now;
        limit.decided_by = limit.zone->batcher == nullptr ? DecidedBy::kMemory : DecidedBy::kFallback;
    }
}

// Checks the limits in memory without charging them, and continues unless one of them rejects.
Progress RequestCheck::look_at_memory() {
    if (!has_tables_) {
        return take_leases();
    }
    MemoryLimits memory;
    gather_memory(count_, &memory);
    if (memory.limits.size() != 0) {
        const Micros now = wall_();
        const Verdict verdict = precheck(memory.limits.data(), memory.limits.size(), now, process_);
        if (verdict == Verdict::kRejected) {
            copy_decisions(memory, now);
            count_rejection();
            return Progress::kRejected;
        }
    }
    return take_leases();
}

// Charges the limits that have a lease, and asks Redis unless one of them rejects. The only limit of a
// request was tried before.
Progress RequestCheck::take_leases() {
    for (std::size_t i = 0; i < count_ && has_leases_ && count_ > 1; i++) {
        if (limits_[i].zone->lender == nullptr) {
            continue;
        }
        const LeaseUse use = take_lease(&limits_[i], started_at_, process_);
        tried_[i] = use != LeaseUse::kNone;
        if (use == LeaseUse::kDry) {
            return reject();
        }
    }
    return ask_next();
}

// The position in the order of the next limit whose Redis has to be asked; count_ if there is none.
std::size_t RequestCheck::next_position() const {
    std::size_t position = 0;
    while (position < count_ &&
           (limits_[order_[position]].zone->batcher == nullptr || tried_[order_[position]])) {
        position++;
    }
    return position;
}

// Makes the question for the limit at `position` and all limits that may be in the same group.
void RequestCheck::choose(std::size_t position) {
    const std::size_t first = order_[position];
    question_.count = 0;
    asked_ = limits_[first].zone->batcher;
    for (std::size_t i = 0; i < count_; i++) {
        if (!tried_[i] && together(i, first)) {
            tried_[i] = true;
            question_.indices[question_.count++] = static_cast<std::uint8_t>(i);
        }
    }
}

// Charges the next limits in the order, until the check has to wait for Redis or is decided.
Progress RequestCheck::ask_next() {
    for (;;) {
        const std::size_t position = next_position();
        const Progress charged = has_tables_ ? charge_memory(position) : Progress::kAdmitted;
        if (charged != Progress::kAdmitted || position == count_) {
            return charged;
        }
        choose(position);
        const Micros asked_at = waited_ ? process_.clock() : started_at_;
        if (!asked_->available(slots_[question_.indices[0]])) {
            error_ = redis::Error::kUnavailable;
        } else if (asked_at - started_at_ >= asked_->budget()) {
            error_ = redis::Error::kTimedOut;
        } else if (asked_->ask(&question_)) {
            return Progress::kWaiting;
        } else {
            error_ = redis::Error::kOutOfMemory;
        }
        if (must_refuse()) {
            return Progress::kRefused;
        }
    }
}

void RequestCheck::on_answer(Question* question) {
    auto* check = static_cast<RequestCheck*>(question->data);
    check->progress_ = check->take_answer();
    if (check->progress_ != Progress::kWaiting) {
        check->done_(check);
    }
}

Progress RequestCheck::take_answer() {
    waited_ = true;
    if (question_.error != redis::Error::kNone) {
        error_ = question_.error;
        return must_refuse() ? Progress::kRefused : ask_next();
    }
    bool allowed = true;
    for (std::size_t i = 0; i < question_.count; i++) {
        Limit& limit = question_[i];
        limit.decided_by = DecidedBy::kRedis;
        limit.decided_at = question_.time;
        allowed = allowed && limit.decision.allowed;
        if (!limit.decision.allowed) {
            remember_denial(limit, process_.clock(), question_.time);
        }
    }
    MemoryLimits memory;
    const bool followed = !has_tables_ || tell_memory(&memory);
    if (!allowed) {
        return reject();
    }
    for (std::size_t i = 0; i < question_.count; i++) {
        question_[i].charged = true;
    }
    if (!followed) {
        return reject_for_memory(memory);
    }
    return question_.count == count_ ? Progress::kAdmitted : ask_next();
}

// Passes Redis's decisions to the tables that are the fallback of these limits. False if a table rejects;
// then `memory` has the decision of each table.
bool RequestCheck::tell_memory(MemoryLimits* memory) const {
    bool allowed = true;
    for (std::size_t i = 0; i < question_.count; i++) {
        const Limit& limit = question_[i];
        const StoreZone& zone = *limit.zone;
        if (zone.on_error != OnError::kLocal || zone.table == nullptr || limit.cost == 0) {
            continue;
        }
        TableLimit* own = add_memory_limit(question_.indices[i], memory);
        const Share share = zone.membership != nullptr ? zone.membership->share() : Share();
        const Micros back_at = zone.membership != nullptr ? zone.membership->back_at() : 0;
        const std::uint64_t left = part_of(limit.decision.remaining, share);
        own->decision.allowed = follow_redis(own, limit.decision, left, back_at, wall_(), process_);
        allowed = allowed && own->decision.allowed;
    }
    return allowed;
}

// Rejects a request that Redis has admitted, because a fallback table rejects it.
Progress RequestCheck::reject_for_memory(const MemoryLimits& memory) {
    const Progress rejected = reject();
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        if (!memory.limits[i].decision.allowed) {
            Limit& limit = limits_[memory.indices[i]];
            limit.decision = memory.limits[i].decision;
            limit.decided_at = wall_();
            limit.decided_by = DecidedBy::kFallback;
        }
    }
    return rejected;
}

// Called when Redis could not be asked or has not answered. True if one of its limits has on_error=closed.
// Otherwise its limits are left out (open) or decided by memory (local).
bool RequestCheck::must_refuse() {
    for (std::size_t i = 0; i < question_.count; i++) {
        question_[i].reason = reason_of(error_);
    }
    for (std::size_t i = 0; i < question_.count; i++) {
        if (question_[i].zone->on_error == OnError::kClosed) {
            give_back();
            return true;
        }
    }
    return false;
}

// Charges the limits before position `end` of the order that memory decides; kAdmitted if none rejects.
Progress RequestCheck::charge_memory(std::size_t end) {
    MemoryLimits memory;
    gather_memory(end, &memory);
    if (memory.limits.size() == 0) {
        return Progress::kAdmitted;
    }
    const Micros now = wall_();
    const Verdict verdict = check(memory.limits.data(), memory.limits.size(), now, process_);
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        in_memory_[memory.indices[i]] = true;
    }
    if (verdict == Verdict::kBusy) {
        return leave_memory_out(memory);
    }
    copy_decisions(memory, now);
    if (verdict == Verdict::kRejected) {
        return reject();
    }
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        Limit& limit = limits_[memory.indices[i]];
        limit.charged = true;
        if (limit.zone->batcher != nullptr && limit.zone->table->has_unsent_counts()) {
            limit.zone->table->unsent_counts().set_alone_at(process_.clock());
        }
    }
    return Progress::kAdmitted;
}

// Called when a limit found no slot for its client: on_error applies to all limits of `memory`.
Progress RequestCheck::leave_memory_out(const MemoryLimits& memory) {
    bool closed = false;
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        Limit& limit = limits_[memory.indices[i]];
        limit.reason = limit.reason == kNoReason ? kNoSlot : limit.reason;
        closed = closed || limit.zone->on_error == OnError::kClosed;
    }
    if (closed) {
        give_back();
    }
    return closed ? Progress::kRefused : Progress::kAdmitted;
}

// Called when a limit has rejected. Refunds the charged limits, and counts the request where rejected
// requests count.
Progress RequestCheck::reject() {
    give_back();
    count_rejection();
    MemoryLimits memory;
    gather_memory(count_, &memory);
    const Micros now = wall_();
    if (memory.limits.size() != 0 &&
        note_rejection(memory.limits.data(), memory.limits.size(), now, process_) != Verdict::kBusy) {
        copy_decisions(memory, now);
    }
    return Progress::kRejected;
}

// Counts the rejected request in each Redis that was not asked, where rejected requests count.
void RequestCheck::count_rejection() {
    for (std::size_t i = 0; i < count_; i++) {
        const Limit& limit = limits_[i];
        if (limit.zone->batcher != nullptr && !tried_[i] && limit.policy->count_all && limit.cost != 0) {
            limit.zone->batcher->count(limit);
        }
    }
}

}  // namespace rate_limit
