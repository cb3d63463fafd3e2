// Decides groups of limits.
#include "server/check_command.h"

#include <algorithm>

#include "protocol/pack.h"
#include "protocol/stored_state.h"
#include "server/limit_check.h"

namespace rate_limit {
namespace {

constexpr char kMalformed[] = "ERR the groups are malformed";
constexpr unsigned kMostInGroup = kLargeCosts - 1;

// The server runs one command at a time, so all calls share this memory.
LimitCheck limit_checks[kMostInGroup];

unsigned kind_of(unsigned head) { return head & kUndoRequest; }

std::size_t record_size(unsigned head) {
    return ((head & kLargeCosts) != 0 ? kLargeLimitSize : kLimitSize) +
           (kind_of(head) >= kUndo ? kChargeSize : 0);
}

}  // namespace

bool CheckCommand::read_limit(unsigned head, std::string_view* text, LimitCheck* limit) const {
    std::uint64_t number = 0;
    std::uint64_t at = 0;
    const bool read = (head & kLargeCosts) != 0 ? unpack<kLargeLimitFormat>(text, &number, &limit->cost)
                                                : unpack<kLimitFormat>(text, &number, &limit->cost);
    if (!read || number >= policies_.size() || limit->cost > kMaxCount) {
        return false;
    }
    limit->policy = &policies_[number];
    if (kind_of(head) < kUndo) {
        return true;
    }
    const bool undoes =
        unpack<kChargeFormat>(text, &limit->charge.cost, &at) && at <= static_cast<std::uint64_t>(kForever);
    limit->charge.at = static_cast<Micros>(at);
    return undoes;
}

const char* CheckCommand::read(std::string_view policies, std::string_view groups, std::size_t keys) {
    const char* wrong = policies_.read(policies);
    if (wrong != nullptr) {
        return wrong;
    }
    groups_ = groups;
    std::size_t limits = 0;
    while (!groups.empty()) {
        const auto head = static_cast<unsigned char>(groups.front());
        const std::size_t size = head % kLargeCosts;
        groups.remove_prefix(kGroupSize);
        for (std::size_t i = 0; i < size; i++) {
            if (!read_limit(head, &groups, limit_checks)) {
                return kMalformed;
            }
        }
        limits += size;
        if (size == 0 || limits > keys) {
            return kMalformed;
        }
    }
    return limits == keys ? nullptr : "ERR the number of keys is not that of the limits";
}

std::string_view CheckCommand::run(CommandKeys* keys, Micros now) {
    keys_ = keys;
    now_ = now;
    end_ = put_little_endian<8>(reply_, static_cast<std::uint64_t>(now));
    std::string_view text = groups_;
    std::size_t position = 0;
    while (!text.empty()) {
        const auto head = static_cast<unsigned char>(text.front());
        const std::size_t size = head % kLargeCosts;
        text.remove_prefix(kGroupSize);
        if (size == 1 && kind_of(head) == kDecide && run_single(head, text.data(), position)) {
            text.remove_prefix(record_size(head));
        } else {
            run_group(head, &text, position);
        }
        position += size;
    }
    return {reply_, static_cast<std::size_t>(end_ - reply_)};
}

// Decides a group of one limit of the most common kind. False for any other.
bool CheckCommand::run_single(unsigned head, const char* at, std::size_t position) {
    const auto number = static_cast<unsigned char>(*at);
    const ReadPolicy& read = policies_[number];
    const std::string_view value = keys_->value(position);
    if (!read.single || is_long_value(value)) {
        return false;
    }
    const std::uint64_t cost =
        (head & kLargeCosts) != 0 ? little_endian<7>(at + 1) : little_endian<4>(at + 1);
    LimitCheck& limit = limit_checks[0];
    limit.load(read, value);
    const Quota quota = quota_of(read.policy, read.layout, 0);
    const AlgorithmFunctions& functions = functions_of(read.policy.algorithm);
    View view;
    Outcome out = functions.evaluate(quota, limit.words, now_, cost, &view);
    if (cost == 0) {
        out.fits = true;
        out.retry_after = 0;
    }
    if ((out.fits && cost != 0) || view.moved) {
        functions.charge(quota, view, out.fits ? cost : 0, limit.words);
        const Micros expires = functions.needed_until(quota, limit.words, quota.rate.period);
        const bool same = out.fits && cost != 0 && read.fixed_expiry && view.a != 0 && !view.moved;
        if (same && !keys_->repeated()) {
            char short_value[kLargeState];
            keys_->write(position,
                         {short_value, encode_stored(read.layout, limit.words, limit.form, short_value)},
                         kKeepExpiry);
        } else {
            limit.form.log = true;
            limit.save(position, now_, expires, keys_);
        }
    }
    const Micros behind = view.now - now_;
    reply({out.fits, 0, quota.limit, out.remaining, out.reset_after + (out.reset_after != 0 ? behind : 0),
           out.retry_after + (out.retry_after > 0 ? behind : 0), out.delay, out.excess_milli});
    return true;
}

// Decides any group: evaluates all limits, then charges all or none, or corrects them.
void CheckCommand::run_group(unsigned head, std::string_view* text, std::size_t position) {
    const std::size_t size = head % kLargeCosts;
    bool admitted = true;
    for (std::size_t i = 0; i < size; i++) {
        LimitCheck& limit = limit_checks[i];
        read_limit(head, text, &limit);
        limit.load(*limit.policy, keys_->value(position + i));
        limit.evaluate(now_, limit.cost);
        admitted = admitted && limit.check.decision().allowed;
    }
    for (std::size_t i = 0; i < size; i++) {
        apply(&limit_checks[i], head, admitted, position + i);
        if (kind_of(head) == kDecide) {
            reply(limit_checks[i].check.decision());
        }
    }
}

void CheckCommand::apply(LimitCheck* limit, unsigned head, bool admitted, std::size_t position) {
    const StateLayout& layout = limit->policy->layout;
    const unsigned kind = kind_of(head);
    const bool counts = kind != kDecide || admitted || limit->policy->policy.count_all;
    if (limit->cost == 0 && kind != kDecide) {
        return;
    }
    limit->remember();
    if (kind == kOverdraw) {
        limit->check.overdraw(limit->words);
    } else if (kind != kDecide && limit->charge.at == kForever) {
        limit->check.give_back(limit->words);
        if (kind == kUndo && layout.interval) {
            limit->words[interval_index(layout)] = limit->interval_before();
        }
    } else if (kind != kDecide) {
        limit->check.undo(limit->charge, kind == kUndoRequest, limit->words);
    } else if (admitted) {
        limit->check.charge(limit->words);
    } else {
        limit->check.refuse(limit->words);
    }
    const bool charged = limit->cost != 0 && counts;
    if (charged || limit->has_changed()) {
        if (charged || !limit->only_interval()) {
            limit->note_written(kind >= kUndo);
        }
        limit->save(position, now_, limit->needed_until(now_, 0, !charged), keys_);
    }
}

void CheckCommand::reply(const Decision& decision) {
    const bool more = !decision.allowed || decision.delay > 0;
    const std::uint64_t low = decision.remaining & 0xffffffff;
    const std::uint64_t high = decision.remaining >> 32;
    const bool never = !decision.allowed && decision.retry_after == kNever;
    const unsigned flags = decision.rate | (decision.allowed ? kDecisionAllowed : 0U) |
                           (more ? kDecisionMore : 0U) | (never ? kDecisionNever : 0U) |
                           (high != 0 ? kDecisionHigh : 0U);
    end_ = pack<kDecisionFormat>(end_, flags | low << 8, decision.reset_after);
    if (more) {
        const Micros wait = decision.allowed ? decision.delay : never ? 0 : decision.retry_after;
        end_ = pack<kMoreFormat>(end_, wait, std::min(decision.excess_milli, kMaxCount));
    }
    end_ = high != 0 ? pack<kHighFormat>(end_, high) : end_;
}

}  // namespace rate_limit
