// Locks the slots of a request's clients, decides, writes and unlocks.
#include "memory/table_check.h"

#include <algorithm>

namespace rate_limit {
namespace {

// What happens to the state of each limit once all limits of a request are decided.
enum class Ending : std::uint8_t {
    kCharge,  // the request is admitted
    kReject,
    kLeave,  // Redis has to decide first: nothing changes
};

// The next two functions are not inline: a table without unsent counts should not pay for them.

[[gnu::noinline]] void add_unsent(const TableLimit& limit, const Slot& slot, std::uint64_t amount,
                                  Micros now) {
    if (amount != 0) {
        limit.table->add_unsent(slot, amount, limit.name,
                                limit.rates != nullptr ? *limit.rates : limit.policy->rates, now);
    }
}

// How much a refused request adds to the used count. A bucket is only filled up to its capacity; with several
// rates, a bucket that is not full may take the whole cost.
[[gnu::noinline]] std::uint64_t counted_if_refused(const TableLimit& limit, const Slot& slot, Micros now) {
    const Policy& policy = *limit.policy;
    if (!is_bucket(policy.algorithm) || policy.rates.size != 1) {
        return limit.cost;
    }
    Check look;
    return std::min(limit.cost, look.evaluate(policy, limit.table->layout(), slot.state, now, 0).remaining);
}

// Must be called before any slot is locked.
void note_time(const TableLimit& limit, Micros now, const Process& process) {
    limit.table->note_time(now + limit.ahead, *limit.policy, process);
}

// A limit while the slot of its client is locked.
struct Held {
    TableLimit* limit;
    Slot slot;
    Check check;

    bool take(TableLimit* of, Micros time, const Process& process) {
        limit = of;
        const Micros now = time + limit->ahead;
        Table& table = *limit->table;
        slot = limit->cost != 0 ? table.acquire(limit->client, *limit->policy, now, process)
                                : table.find(limit->client, process);
        if (slot.state == nullptr && limit->cost != 0) {
            return false;
        }
        limit->decision = check.evaluate(*limit->policy, table.layout(), slot.state, now, limit->cost);
        return true;
    }

    void give_back(Ending ending, Micros now, const Process& process) {
        if (slot.state == nullptr) {
            return;
        }
        if (ending == Ending::kLeave) {
            let_go(process);
            return;
        }
        if (ending == Ending::kCharge) {
            check.charge(slot.state);
            if (limit->table->has_unsent_counts()) {
                add_unsent(*limit, slot, limit->cost, now);
            }
        } else if (slot.fresh && !limit->policy->count_all) {
            Table::drop(slot, process);
            return;
        } else {
            if (limit->table->has_unsent_counts() && limit->policy->count_all) {
                add_unsent(*limit, slot, counted_if_refused(*limit, slot, now + limit->ahead), now);
            }
            check.refuse(slot.state);
            limit->decision = check.decision();
        }
        Table::keep(slot, process);
    }

    void let_go(const Process& process) const {
        if (slot.state != nullptr && slot.fresh) {
            Table::drop(slot, process);
        } else if (slot.state != nullptr) {
            Table::keep(slot, process);
        }
    }
};

Verdict check_one(TableLimit* limit, Micros now, const Process& process, Ending if_allowed) {
    note_time(*limit, now, process);
    Held held;
    if (!held.take(limit, now, process)) {
        return Verdict::kBusy;
    }
    const bool allowed = limit->decision.allowed;
    held.give_back(allowed ? if_allowed : Ending::kReject, now, process);
    return allowed ? Verdict::kAdmitted : Verdict::kRejected;
}

Verdict check_all(TableLimit* limits, std::size_t count, Micros now, const Process& process,
                  Ending if_allowed) {
    // All processes lock in the order of the tables' addresses, which prevents deadlocks.
    TableLimit* ordered[kMaxLimits];
    for (std::size_t i = 0; i < count; i++) {
        ordered[i] = &limits[i];
        note_time(limits[i], now, process);
    }
    std::sort(ordered, ordered + count,
              [](const TableLimit* a, const TableLimit* b) { return a->table < b->table; });

    Held held[kMaxLimits];
    bool allowed = true;
    for (std::size_t i = 0; i < count; i++) {
        if (!held[i].take(ordered[i], now, process)) {
            while (i-- > 0) {
                held[i].let_go(process);
            }
            return Verdict::kBusy;
        }
        allowed = allowed && ordered[i]->decision.allowed;
    }
    for (std::size_t i = 0; i < count; i++) {
        held[i].give_back(allowed ? if_allowed : Ending::kReject, now, process);
    }
    return allowed ? Verdict::kAdmitted : Verdict::kRejected;
}

// Lets `write` lower what a client has used by the cost of the limit. Takes the cost from what is unsent as
// well, if `is_unsent` says that the charge is in there. Returns how much of the cost Redis has to give back;
// 0 if the table has no unsent counts.
template <class IsUnsent, class Write>
std::uint64_t lower(const TableLimit& limit, Micros now, const Process& process, IsUnsent is_unsent,
                    Write write) {
    Table& table = *limit.table;
    const Slot slot = table.find(limit.client, process);
    if (slot.state == nullptr) {
        return table.has_unsent_counts() ? limit.cost : 0;
    }
    Check check;
    check.evaluate(*limit.policy, table.layout(), slot.state, now + limit.ahead, limit.cost);
    write(check, slot.state);
    std::uint64_t sent = 0;
    if (table.has_unsent_counts()) {
        UnsentCount& counts = table.unsent_of(slot);
        sent = limit.cost - (is_unsent(counts) ? counts.take_back(limit.cost) : 0);
        table.unmark(slot);
    }
    Table::keep(slot, process);
    return sent;
}

}  // namespace

Verdict check_by_name(Table* table, const Policy& policy, std::string_view client, std::uint64_t cost,
                      Micros now, const Process& process, Decision* decision, bool is_short) {
    NameRoom room;
    TableLimit limit = memory_limit(table, policy, client, cost, &room, is_short);
    const Verdict verdict = check_one(&limit, now, process, Ending::kCharge);
    *decision = limit.decision;
    return verdict;
}

Verdict check(TableLimit* limits, std::size_t count, Micros now, const Process& process) {
    return count == 1 ? check_one(limits, now, process, Ending::kCharge)
                      : check_all(limits, count, now, process, Ending::kCharge);
}

Verdict precheck(TableLimit* limits, std::size_t count, Micros now, const Process& process) {
    return check_all(limits, count, now, process, Ending::kLeave);
}

Verdict note_rejection(TableLimit* limits, std::size_t count, Micros now, const Process& process) {
    return check_all(limits, count, now, process, Ending::kReject);
}

bool follow_redis(TableLimit* limit, const Decision& said, std::uint64_t left, Micros back_at, Micros now,
                  const Process& process) {
    Table& table = *limit->table;
    const Policy& policy = *limit->policy;
    const Slot slot = table.acquire(limit->client, policy, now, process);
    if (slot.state == nullptr) {
        return true;
    }
    const std::uint64_t unsent = !slot.fresh && table.has_unsent_counts() ? table.unsent_of(slot).total() : 0;
    const Micros alone_at =
        std::max(back_at, table.has_unsent_counts() ? table.unsent_counts().alone_at() : 0);
    const bool settled = unsent == 0 && (alone_at == 0 || process.clock() - alone_at >= kFallbackLasts);
    Check check;
    const auto evaluate = [&](std::uint64_t cost) {
        return check.evaluate(policy, table.layout(), slot.state, now, cost);
    };
    if (!settled && said.allowed && !evaluate(limit->cost).allowed) {
        limit->decision = check.decision();
        Table::keep(slot, process);
        return false;
    }
    left -= std::min(left, unsent);
    const Decision own = evaluate(0);
    if (own.rate == said.rate && own.remaining > left) {
        evaluate(own.remaining - left);
        check.impose(slot.state);
    } else if (slot.fresh) {
        Table::drop(slot, process);
        return true;
    } else if (own.rate == said.rate && own.remaining < left && settled && policy.min_interval == 0) {
        evaluate(left - own.remaining);
        check.give_back(slot.state);
    }
    Table::keep(slot, process);
    return true;
}

std::uint64_t undo(const TableLimit& limit, Charge charge, bool whole, Micros now, const Process& process) {
    const Micros charged_at = charge.at;
    charge.at += limit.ahead;
    return lower(
        limit, now, process,
        [charged_at](const UnsentCount& counts) { return counts.has_unsent(charged_at); },
        [&](const Check& check, std::uint64_t* state) { check.undo(charge, whole, state); });
}

std::uint64_t give_back(const TableLimit& limit, Micros now, const Process& process) {
    return lower(
        limit, now, process, [](const UnsentCount&) { return true; },
        [](const Check& check, std::uint64_t* state) { check.give_back(state); });
}

bool overdraw(const TableLimit& limit, Micros now, const Process& process) {
    Table& table = *limit.table;
    note_time(limit, now, process);
    const Slot slot = table.acquire(limit.client, *limit.policy, now + limit.ahead, process);
    if (slot.state == nullptr) {
        return false;
    }
    Check check;
    check.evaluate(*limit.policy, table.layout(), slot.state, now + limit.ahead, limit.cost);
    check.overdraw(slot.state);
    if (table.has_unsent_counts()) {
        add_unsent(limit, slot, limit.cost, now);
    }
    Table::keep(slot, process);
    return true;
}

}  // namespace rate_limit
