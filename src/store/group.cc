// Takes a request's limits through memory and Redis, and back if one of them rejects.
#include "store/group.h"

#include <algorithm>
#include <new>
#include <type_traits>

#include "core/arithmetic.h"

namespace rate_limit {

// Those of a request's limits that memory decides.
struct MemoryLimits {
    Limits limits;
    std::size_t indices[kMaxLimits];
    std::aligned_storage_t<sizeof(Policy), alignof(Policy)> parts[kMaxLimits];  // of policies, where needed
};

namespace {

// Whether `a` admits fewer requests in the long run than `b`, each by its lowest rate.
bool is_lower(const RateList& a, const RateList& b) {
    const auto lower = [](const Rate& x, const Rate& y) {
        return multiply(x.count, static_cast<std::uint64_t>(y.period)) <
               multiply(y.count, static_cast<std::uint64_t>(x.period));
    };
    return lower(*std::min_element(a.rates, a.rates + a.size, lower),
                 *std::min_element(b.rates, b.rates + b.size, lower));
}

// A client as denials know it.
std::uint64_t denied_client(const GroupLimit& limit) {
    NameRoom room;
    return limit.denials->hash(short_name(limit.client, limit.is_short, &room));
}

}  // namespace

Group::Group(GroupLimit* limits, RemoteLimit* room, std::size_t count, const Host& host, Micros (*wall)(),
             void (*done)(Group* group))
    : limits_(limits), count_(count), host_(host), wall_(wall), done_(done) {
    question_.limits = room;
    question_.done = on_answer;
    question_.asker = this;
    for (std::size_t i = 0; i < count_; i++) {
        limits_[i].source = Source::kNobody;
        limits_[i].reason = kNoReason;
        slots_[i] =
            limits_[i].remote != nullptr ? limits_[i].remote->slot_of(remote_limit(i)) : redis::Slot{0};
        order_[i] = static_cast<std::uint8_t>(i);
        has_tables_ = has_tables_ || limits_[i].table != nullptr;
        scattered_ = scattered_ || !together(i, 0);
    }
    if (scattered_) {
        arrange();
    }
}

RemoteLimit Group::remote_limit(std::size_t index) const {
    const GroupLimit& limit = limits_[index];
    return {limit.zone, limit.client, limit.policy, limit.shape, limit.cost, limit.is_short, {}};
}

// Whether both limits are in the same place, and one call may have them.
bool Group::together(std::size_t a, std::size_t b) const {
    return limits_[a].remote == limits_[b].remote && slots_[a] == slots_[b];
}

// Of two with the same rate the one in Redis is charged before: what memory is charged last need not be given
// back.
bool Group::precedes(std::size_t a, std::size_t b) const {
    const RateList& rates = limits_[a].policy->rates;
    const RateList& others = limits_[b].policy->rates;
    if (is_lower(rates, others) || is_lower(others, rates)) {
        return is_lower(rates, others);
    }
    return limits_[a].remote != nullptr && limits_[b].remote == nullptr;
}

void Group::arrange() {
    for (std::size_t i = 1; i < count_; i++) {
        const std::uint8_t moved = order_[i];
        std::size_t to = i;
        for (; to != 0 && precedes(moved, order_[to - 1]); to--) {
            order_[to] = order_[to - 1];
        }
        order_[to] = moved;
    }
}

Progress Group::start(bool undenied) {
    started_at_ = host_.clock();
    progress_ = !undenied && denied() ? Progress::kRejected : look_at_memory();
    return progress_;
}

void Group::forget() { Remote::forget(&question_); }

void Group::leave(Gone gone) {
    if (question_.waiting == nullptr) {
        return;
    }
    Group* successor = copy();
    if (successor == nullptr) {
        Remote::forget(&question_);
        give_back();
        return;
    }
    successor->gone_ = gone;
    Remote::hand_over(&question_, &successor->question_);
}

// A copy with everything that belongs to the request, in memory of its own, which end_copy frees; null if
// there is none.
Group* Group::copy() const {
    std::size_t size =
        sizeof(Group) + count_ * (sizeof(GroupLimit) + sizeof(RemoteLimit) + sizeof(Policy) + sizeof(Shape));
    for (std::size_t i = 0; i < count_; i++) {
        size += limits_[i].client.size();
    }
    void* memory = ::operator new(size, std::nothrow);
    if (memory == nullptr) {
        return nullptr;
    }
    auto* copy = new (memory) Group(*this);
    copy->limits_ = reinterpret_cast<GroupLimit*>(copy + 1);
    copy->question_.limits = reinterpret_cast<RemoteLimit*>(copy->limits_ + count_);
    auto* policies = reinterpret_cast<Policy*>(copy->question_.limits + count_);
    auto* shapes = reinterpret_cast<Shape*>(policies + count_);
    auto* text = reinterpret_cast<char*>(shapes + count_);
    for (std::size_t i = 0; i < count_; i++) {
        const GroupLimit& limit = limits_[i];
        auto* copied = new (&copy->limits_[i]) GroupLimit(limit);
        copied->policy = new (&policies[i]) Policy(*limit.policy);
        copied->shape = new (&shapes[i]) Shape(*limit.shape);
        copied->client = {text, limit.client.size()};
        text = std::copy(limit.client.begin(), limit.client.end(), text);
    }
    for (std::size_t i = 0; i < std::min(question_.count, count_); i++) {
        auto* asked = new (&copy->question_.limits[i]) RemoteLimit(copy->remote_limit(asked_indices_[i]));
        asked->decision = question_.limits[i].decision;
    }
    copy->question_.asker = copy;
    copy->question_.lost = [](Question* question) { ::operator delete(question->asker); };
    copy->done_ = end_copy;
    copy->data = nullptr;
    return copy;
}

void Group::end_copy(Group* copy) {
    if (copy->gone_ != nullptr) {
        copy->gone_(*copy);
    }
    ::operator delete(copy);
}

// Whether one of the limits is known to reject. Where rejected requests count, each has to be counted.
bool Group::denied() {
    const auto counts = [](const GroupLimit& limit) { return limit.policy->count_all; };
    if (std::any_of(limits_, limits_ + count_, counts)) {
        return false;
    }
    for (std::size_t i = 0; i < count_; i++) {
        GroupLimit& limit = limits_[i];
        if (limit.denials == nullptr || limit.cost == 0 || !limit.denials->any(started_at_)) {
            continue;
        }
        const std::uint64_t client = denied_client(limit);
        if (limit.denials->find(client, *limit.policy, limit.cost, started_at_, &limit.decision,
                                &decided_at_)) {
            limit.source = Source::kCache;
            return true;
        }
    }
    return false;
}

// Gathers what memory has to decide of the limits before `end` in the order, those that it decides instead of
// a Redis included.
void Group::gather_memory(std::size_t end, MemoryLimits* memory) const {
    for (std::size_t place = 0; place < end; place++) {
        const std::size_t i = order_[place];
        const GroupLimit& limit = limits_[i];
        const bool instead =
            tried_[i] && limit.source == Source::kNobody && limit.on_error == OnError::kLocal;
        if (limit.table != nullptr && (limit.remote == nullptr || instead) && !in_memory_[i]) {
            add_memory_limit(i, memory);
        }
    }
}

Limit* Group::add_memory_limit(std::size_t i, MemoryLimits* memory) const {
    const GroupLimit& limit = limits_[i];
    const std::size_t index = memory->limits.size();
    memory->indices[index] = i;
    Limit* own = memory->limits.add(limit.table, *limit.policy, limit.client, limit.cost, limit.is_short);
    if (limit.remote != nullptr) {
        // What this instance admits is charged in Redis later, where the whole rate holds.
        own->ahead = 0;
        own->rates = &limit.policy->rates;
        if (limit.membership != nullptr) {
            own->policy =
                new (&memory->parts[index]) Policy(part_of(*limit.policy, limit.membership->share()));
        }
    }
    return own;
}

void Group::copy_decisions(const MemoryLimits& memory) {
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        GroupLimit& limit = limits_[memory.indices[i]];
        limit.decision = memory.limits[i].decision;
        limit.source = limit.remote == nullptr ? Source::kMemory : Source::kFallback;
    }
}

// Asks nobody else if memory is known to reject.
Progress Group::look_at_memory() {
    if (!has_tables_) {
        return ask_next();
    }
    MemoryLimits memory;
    gather_memory(count_, &memory);
    if (memory.limits.size() != 0) {
        decided_at_ = wall_();
        const Verdict verdict = precheck(memory.limits.data(), memory.limits.size(), decided_at_, host_);
        if (verdict == Verdict::kRejected) {
            copy_decisions(memory);
            note_rejection();
            return Progress::kRejected;
        }
    }
    return ask_next();
}

// The place in the order of the next limit whose Redis is to be asked; count_ if there is none left.
std::size_t Group::next_place() const {
    std::size_t place = 0;
    while (place < count_ && (limits_[order_[place]].remote == nullptr || tried_[order_[place]])) {
        place++;
    }
    return place;
}

// Makes the question for that limit and all others that are in the same place.
void Group::choose(std::size_t place) {
    const std::size_t first = order_[place];
    question_.count = 0;
    asked_ = limits_[first].remote;
    for (std::size_t i = 0; i < count_; i++) {
        if (!tried_[i] && together(i, first)) {
            tried_[i] = true;
            asked_indices_[question_.count] = static_cast<std::uint8_t>(i);
            question_.limits[question_.count++] = remote_limit(i);
        }
    }
}

// Charges what comes next in the order, until an answer has to be waited for.
Progress Group::ask_next() {
    for (;;) {
        const std::size_t place = next_place();
        const Progress charged = has_tables_ ? charge_memory(place) : Progress::kAdmitted;
        if (charged != Progress::kAdmitted || place == count_) {
            return charged;
        }
        choose(place);
        if (!asked_->available(slots_[asked_indices_[0]])) {
            error_ = redis::Error::kUnavailable;
        } else if (waited_ && host_.clock() - started_at_ >= asked_->budget()) {
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

void Group::on_answer(Question* question) {
    auto* group = static_cast<Group*>(question->asker);
    group->progress_ = group->take_answer();
    if (group->progress_ != Progress::kWaiting) {
        group->done_(group);
    }
}

Progress Group::take_answer() {
    waited_ = true;
    if (question_.error != redis::Error::kNone) {
        error_ = question_.error;
        return must_refuse() ? Progress::kRefused : ask_next();
    }
    decided_at_ = question_.time;
    bool allowed = true;
    for (std::size_t i = 0; i < question_.count; i++) {
        GroupLimit& limit = limits_[asked_indices_[i]];
        limit.decision = question_.limits[i].decision;
        limit.source = Source::kRedis;
        allowed = allowed && limit.decision.allowed;
        if (!limit.decision.allowed && limit.denials != nullptr && !limit.policy->count_all) {
            limit.denials->remember(denied_client(limit), *limit.policy, limit.cost, host_.clock(),
                                    decided_at_, limit.decision, limit.deny_for);
        }
    }
    const bool followed = !has_tables_ || tell_memory();
    if (!allowed) {
        return reject();
    }
    if (followed && question_.count == count_) {
        return Progress::kAdmitted;  // nobody else decides, and nothing can have to be given back
    }
    const Micros charged_at = host_.clock();
    for (std::size_t i = 0; i < question_.count; i++) {
        charged_at_[asked_indices_[i]] = charged_at;
    }
    return followed ? ask_next() : reject_for_memory();
}

// Tells the tables that decide while Redis cannot be asked what it has said; false if one of them rejects,
// whose decision then is the question's.
bool Group::tell_memory() {
    bool allowed = true;
    for (std::size_t i = 0; i < question_.count; i++) {
        GroupLimit& limit = limits_[asked_indices_[i]];
        if (limit.on_error != OnError::kLocal || limit.table == nullptr || limit.cost == 0) {
            continue;
        }
        MemoryLimits memory;
        const Limit* own = add_memory_limit(asked_indices_[i], &memory);
        const Share share = limit.membership != nullptr ? limit.membership->share() : Share();
        const Micros back_at = limit.membership != nullptr ? limit.membership->back_at() : 0;
        const std::uint32_t left = part_of(limit.decision.remaining, share);
        if (!follow_redis(memory.limits.data(), limit.decision, left, back_at, wall_(), host_)) {
            question_.limits[i].decision = own->decision;
            allowed = false;
        }
    }
    return allowed;
}

Progress Group::reject_for_memory() {
    const Progress rejected = reject();
    for (std::size_t i = 0; i < question_.count; i++) {
        GroupLimit& limit = limits_[asked_indices_[i]];
        if (!question_.limits[i].decision.allowed) {
            limit.decision = question_.limits[i].decision;
            limit.source = Source::kFallback;
        }
    }
    return rejected;
}

// A Redis could not be asked: whether one of its limits then admits nothing. The others are left out, or
// decided by memory.
bool Group::must_refuse() {
    for (std::size_t i = 0; i < question_.count; i++) {
        limits_[asked_indices_[i]].reason = reason_of(error_);
    }
    for (std::size_t i = 0; i < question_.count; i++) {
        if (limits_[asked_indices_[i]].on_error == OnError::kClosed) {
            give_back();
            return true;
        }
    }
    return false;
}

// Charges what memory decides of the limits before `end` in the order; kAdmitted if none of them rejects.
Progress Group::charge_memory(std::size_t end) {
    MemoryLimits memory;
    gather_memory(end, &memory);
    if (memory.limits.size() == 0) {
        return Progress::kAdmitted;
    }
    const Verdict verdict = check(memory.limits.data(), memory.limits.size(), wall_(), host_);
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        in_memory_[memory.indices[i]] = true;
    }
    if (verdict == Verdict::kBusy) {
        return leave_memory_out(memory);
    }
    copy_decisions(memory);
    if (verdict == Verdict::kRejected) {
        return reject();
    }
    const Micros charged_at = host_.clock();
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        const GroupLimit& limit = limits_[memory.indices[i]];
        charged_at_[memory.indices[i]] = charged_at;
        if (limit.remote != nullptr && limit.table->has_accounts()) {
            limit.table->accounts().set_alone_at(charged_at);
        }
    }
    return Progress::kAdmitted;
}

// A limit found no slot for its client: all of these go by on_error.
Progress Group::leave_memory_out(const MemoryLimits& memory) {
    bool closed = false;
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        GroupLimit& limit = limits_[memory.indices[i]];
        limit.reason = limit.reason == kNoReason ? kNoSlot : limit.reason;
        closed = closed || limit.on_error == OnError::kClosed;
    }
    if (closed) {
        give_back();
    }
    return closed ? Progress::kRefused : Progress::kAdmitted;
}

// A limit has rejected. What others were charged is given back; all note it where rejected requests count.
Progress Group::reject() {
    give_back();
    note_rejection();
    MemoryLimits memory;
    gather_memory(count_, &memory);
    if (memory.limits.size() != 0 &&
        note_refusal(memory.limits.data(), memory.limits.size(), wall_(), host_) != Verdict::kBusy) {
        copy_decisions(memory);
    }
    return Progress::kRejected;
}

// Tells each Redis that was not asked of a request that was rejected before, where rejected requests count.
void Group::note_rejection() {
    for (std::size_t i = 0; i < count_; i++) {
        const GroupLimit& limit = limits_[i];
        if (limit.remote != nullptr && !tried_[i] && limit.policy->count_all && limit.cost != 0) {
            const RemoteLimit counted = remote_limit(i);
            limit.remote->count(&counted, 1);
        }
    }
}

// Whether what a limit was charged can be given back without giving more. What has left its window meanwhile,
// or may have drained, is gone anyway.
bool Group::is_refundable(std::size_t index) const {
    const GroupLimit& limit = limits_[index];
    const Policy& policy = *limit.policy;
    if (charged_at_[index] == 0 || limit.cost == 0 || policy.count_all) {
        return false;
    }
    const Micros passed = host_.clock() - charged_at_[index];
    const auto all_rates = [&](auto holds) {
        return std::all_of(policy.rates.rates, policy.rates.rates + policy.rates.size, holds);
    };
    switch (policy.algorithm) {
        case Algorithm::kFixedWindow:
        case Algorithm::kSlidingWindow: {
            const bool sliding = policy.algorithm == Algorithm::kSlidingWindow;
            if (policy.rates.size == 1) {
                return passed < limit.decision.reset_after - (sliding ? policy.rates.rates[0].period : 0);
            }
            // The decision tells of one rate only, but the clock of all. Windows that start with the client
            // may have ended meanwhile, but hardly any does.
            constexpr Micros kHardly = 100;
            return all_rates([&](const Rate& rate) {
                return policy.align_first ? passed * kHardly < rate.period
                                          : decided_at_ / rate.period == (decided_at_ + passed) / rate.period;
            });
        }
        case Algorithm::kTokenBucket:
        case Algorithm::kLeakyBucket:
        case Algorithm::kGcra:
            return all_rates([&](const Rate& rate) {
                return multiply(static_cast<std::uint64_t>(passed), rate.count) <
                       multiply(limit.cost, static_cast<std::uint64_t>(rate.period));
            });
        default:
            return true;
    }
}

// Returns what was charged. A rejection that rested on such a charge must not be remembered.
void Group::give_back() {
    give_back_to_memory();
    for (std::size_t first = 0; first < count_; first++) {
        RemoteLimit charged[kMaxLimits];
        std::size_t count = 0;
        for (std::size_t i = first; i < count_; i++) {
            if (together(i, first) && is_refundable(i)) {
                charged[count++] = remote_limit(i);
                charged_at_[i] = 0;
                if (limits_[i].denials != nullptr) {
                    limits_[i].denials->forget(denied_client(limits_[i]));
                }
            }
        }
        if (count != 0) {
            limits_[first].remote->give_back(charged, count);
        }
    }
}

void Group::give_back_to_memory() {
    MemoryLimits memory;
    for (std::size_t i = 0; i < count_; i++) {
        if (in_memory_[i] && is_refundable(i)) {
            add_memory_limit(i, &memory);
        }
        charged_at_[i] = in_memory_[i] ? 0 : charged_at_[i];
    }
    rate_limit::give_back(memory.limits.data(), memory.limits.size(), wall_(), host_);
}

}  // namespace rate_limit
