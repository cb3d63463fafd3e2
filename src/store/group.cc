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
    }
}

RemoteLimit Group::remote_limit(std::size_t index) const {
    const GroupLimit& limit = limits_[index];
    return {limit.zone, limit.client, limit.policy, limit.shape, limit.cost, limit.is_short, {}};
}

// Whether one call may have both limits.
bool Group::together(std::size_t a, std::size_t b) const {
    return limits_[a].remote == limits_[b].remote && slots_[a] == slots_[b];
}

Progress Group::start(bool undenied) {
    started_at_ = host_.clock();
    progress_ = !undenied && denied() ? Progress::kRejected : check_memory_first();
    return progress_;
}

void Group::forget() { Remote::forget(&question_); }

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

// The limits that memory decides, with those that it decides instead of Redis or without.
void Group::gather_memory(bool fallback, MemoryLimits* memory) const {
    for (std::size_t i = 0; i < count_; i++) {
        const GroupLimit& limit = limits_[i];
        const bool instead =
            fallback && tried_[i] && limit.source == Source::kNobody && limit.on_error == OnError::kLocal;
        if (limit.table == nullptr || (limit.remote != nullptr && !instead)) {
            continue;
        }
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
    }
}

void Group::copy_decisions(const MemoryLimits& memory) {
    for (std::size_t i = 0; i < memory.limits.size(); i++) {
        GroupLimit& limit = limits_[memory.indices[i]];
        limit.decision = memory.limits[i].decision;
        limit.source = limit.remote == nullptr ? Source::kMemory : Source::kFallback;
    }
}

Progress Group::check_memory_first() {
    MemoryLimits memory;
    gather_memory(false, &memory);
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

// Chooses the next Redis, or slot of one, that decides, and all limits that are its own; false if there is
// none left.
bool Group::choose_next() {
    question_.count = 0;
    asked_ = nullptr;
    for (std::size_t i = 0; i < count_; i++) {
        if (limits_[i].remote == nullptr || tried_[i] ||
            (asked_ != nullptr && !together(i, asked_indices_[0]))) {
            continue;
        }
        asked_ = limits_[i].remote;
        tried_[i] = true;
        asked_indices_[question_.count] = static_cast<std::uint8_t>(i);
        question_.limits[question_.count++] = remote_limit(i);
    }
    return asked_ != nullptr;
}

Progress Group::ask_next() {
    while (choose_next()) {
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
    return check_memory_last();
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
    // If nobody else decides, nothing can have to be given back.
    const Micros charged_at = question_.count < count_ ? host_.clock() : 0;
    bool allowed = true;
    for (std::size_t i = 0; i < question_.count; i++) {
        GroupLimit& limit = limits_[asked_indices_[i]];
        limit.decision = question_.limits[i].decision;
        limit.source = Source::kRedis;
        charged_at_[asked_indices_[i]] = charged_at;
        allowed = allowed && limit.decision.allowed;
        if (!limit.decision.allowed && limit.denials != nullptr && !limit.policy->count_all) {
            limit.denials->remember(denied_client(limit), *limit.policy, limit.cost, host_.clock(),
                                    decided_at_, limit.decision, limit.deny_for);
        }
    }
    return allowed ? ask_next() : reject();
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

Progress Group::check_memory_last() {
    MemoryLimits memory;
    gather_memory(true, &memory);
    if (memory.limits.size() == 0) {
        return Progress::kAdmitted;
    }
    const Verdict verdict = check(memory.limits.data(), memory.limits.size(), wall_(), host_);
    if (verdict == Verdict::kBusy) {
        for (std::size_t i = 0; i < memory.limits.size(); i++) {
            GroupLimit& limit = limits_[memory.indices[i]];
            limit.reason = limit.reason == kNoReason ? kNoSlot : limit.reason;
        }
        for (std::size_t i = 0; i < memory.limits.size(); i++) {
            if (limits_[memory.indices[i]].on_error == OnError::kClosed) {
                give_back();
                return Progress::kRefused;
            }
        }
        return Progress::kAdmitted;
    }
    copy_decisions(memory);
    if (verdict == Verdict::kRejected) {
        give_back();
        return Progress::kRejected;
    }
    return Progress::kAdmitted;
}

// One Redis has rejected. What others were charged is given back; all note it where rejected requests count.
Progress Group::reject() {
    for (std::size_t i = 0; i < question_.count; i++) {
        charged_at_[asked_indices_[i]] = 0;
    }
    give_back();
    note_rejection();
    MemoryLimits memory;
    gather_memory(true, &memory);
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

// Returns to each Redis what it was charged.
void Group::give_back() {
    for (std::size_t first = 0; first < count_; first++) {
        RemoteLimit charged[kMaxLimits];
        std::size_t count = 0;
        for (std::size_t i = first; i < count_; i++) {
            if (together(i, first) && is_refundable(i)) {
                charged[count++] = remote_limit(i);
                charged_at_[i] = 0;
            }
        }
        if (count != 0) {
            limits_[first].remote->give_back(charged, count);
        }
    }
}

}  // namespace rate_limit
