// Sends asks through the batcher of requests, and passes the answers to the leases.
#include "lending/redis_lender.h"

#include <algorithm>
#include <new>
#include <utility>

#include "memory/table_check.h"
#include "store/deny_cache.h"
#include "store/refund.h"

namespace rate_limit {

// A portion that was asked for.
struct RedisLender::Asked {
    RedisLender* lender;
    Question question;
    Limit limit;
    Policy policy;
    std::uint64_t client;
    LeaseAsk ask;
    Micros sent_at;
    bool again;  // Redis has refused a larger portion
    Asked* next;
    Asked* previous;
    char name[kLongestName];

    LeaseClient who() const { return {limit.client, client, &policy}; }
};

RedisLender::~RedisLender() {
    while (in_flight_ != nullptr) {
        CheckBatcher::forget(&in_flight_->question);
        recycle(in_flight_);
    }
    while (free_ != nullptr) {
        delete std::exchange(free_, free_->next);
    }
}

// Null after end(), or if memory is exhausted.
RedisLender::Asked* RedisLender::make_asked() {
    if (ended_) {
        return nullptr;
    }
    Asked* asked = free_;
    if (asked == nullptr) {
        return new (std::nothrow) Asked;
    }
    free_ = asked->next;
    return asked;
}

void RedisLender::ask(const LeaseClient& client, const LeaseAsk& ask) {
    Asked* asked = make_asked();
    if (asked == nullptr) {
        zone_->leases->fail(client, ask, *process_);
        return;
    }
    asked->lender = this;
    asked->policy = *client.policy;
    asked->client = client.hash;
    asked->ask = ask;
    asked->again = false;
    std::copy(client.name.begin(), client.name.end(), asked->name);
    asked->limit = {};
    asked->limit.zone = zone_;
    asked->limit.policy = &asked->policy;
    asked->limit.client = {asked->name, client.name.size()};
    asked->limit.is_short = true;
    asked->question = {};
    asked->question.limits = &asked->limit;
    asked->question.indices[0] = 0;
    asked->question.count = 1;
    asked->question.done = on_answer;
    asked->question.lost = on_lost;
    asked->question.data = asked;
    asked->previous = nullptr;
    asked->next = in_flight_;
    (in_flight_ != nullptr ? in_flight_->previous : in_flight_) = asked;
    in_flight_ = asked;
    if (!send(asked)) {
        zone_->leases->fail(client, ask, *process_);
        recycle(asked);
    }
}

bool RedisLender::send(Asked* asked) {
    CheckBatcher* batcher = zone_->batcher;
    asked->limit.cost = asked->ask.amount;
    asked->sent_at = process_->clock();
    zone_->leases->count_ask();
    return batcher->available(batcher->hash_slot_of(asked->limit)) && batcher->ask(&asked->question);
}

void RedisLender::on_answer(Question* question) {
    auto* asked = static_cast<Asked*>(question->data);
    asked->lender->take_answer(asked);
}

void RedisLender::on_lost(Question* question) {
    auto* asked = static_cast<Asked*>(question->data);
    asked->lender->recycle(asked);
}

void RedisLender::take_answer(Asked* asked) {
    Leases& leases = *zone_->leases;
    const LeaseClient client = asked->who();
    const Decision& decision = asked->limit.decision;
    const bool answered = asked->question.error == redis::Error::kNone;
    const bool usable = answered && !ended_ && tell_memory(asked->limit);
    if (usable && !decision.allowed) {
        take_refusal(asked);
        return;
    }
    if (usable) {
        const LeaseRest rest =
            leases.grant(client, asked->ask, decision, asked->question.time, asked->sent_at, *process_);
        give_back(client, rest);
    } else {
        leases.fail(client, asked->ask, *process_);
        if (answered && decision.allowed && !is_bucket(asked->policy.algorithm)) {
            give_back(client, {asked->ask.amount, asked->question.time});
        }
    }
    recycle(asked);
}

// Asks once more, for what is left or for what a request costs.
void RedisLender::take_refusal(Asked* asked) {
    const LeaseAsk next = zone_->leases->refuse(asked->who(), asked->ask, asked->limit.decision,
                                                asked->question.time, asked->again, *process_);
    const Micros wait = asked->limit.decision.retry_after;
    // The deny cache would also reject requests that can use units of the lease.
    if ((wait > kLeaseHorizon || wait == kNever) &&
        zone_->leases->units(asked->who(), *process_) < asked->limit.cost) {
        remember_denial(asked->limit, process_->clock(), asked->question.time);
    }
    if (next.amount == 0) {
        recycle(asked);
        return;
    }
    asked->ask = next;
    asked->again = true;
    if (!send(asked)) {
        zone_->leases->fail(asked->who(), asked->ask, *process_);
        recycle(asked);
    }
}

// Passes the decision to the table that is the fallback. False if the table rejects: Redis may lack requests
// that the fallback has admitted.
bool RedisLender::tell_memory(const Limit& limit) const {
    const StoreZone& zone = *limit.zone;
    if (zone.on_error != OnError::kLocal || zone.table == nullptr) {
        return true;
    }
    NameRoom name;
    PolicyRoom part;
    TableLimit own = memory_limit(zone.table, *limit.policy, limit.client, limit.cost, &name, limit.is_short);
    make_fallback(limit, &part, &own);
    const Share share = zone.membership != nullptr ? zone.membership->share() : Share();
    const Micros back_at = zone.membership != nullptr ? zone.membership->back_at() : 0;
    return follow_redis(&own, limit.decision, part_of(limit.decision.remaining, share), back_at, wall_(),
                        *process_);
}

void RedisLender::recycle(Asked* asked) {
    (asked->previous != nullptr ? asked->previous->next : in_flight_) = asked->next;
    if (asked->next != nullptr) {
        asked->next->previous = asked->previous;
    }
    asked->next = free_;
    free_ = asked;
}

bool RedisLender::give_back(const LeaseClient& client, const LeaseRest& rest) {
    if (rest.amount == 0) {
        return true;
    }
    Limit limit = {};
    limit.zone = zone_;
    limit.policy = client.policy;
    limit.client = client.name;
    limit.is_short = true;
    limit.cost = rest.amount;
    CheckBatcher* batcher = zone_->batcher;
    if (!batcher->connected(batcher->hash_slot_of(limit)) ||
        !batcher->give_back(limit, rest.amount, rest.charged_at, false)) {
        return false;
    }
    zone_->leases->count_returned(rest.amount);
    forget_denial(limit);
    return true;
}

}  // namespace rate_limit
