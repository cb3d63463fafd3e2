// Corrects what a client has used: in memory at once, in Redis by one call.
#include "api/correct.h"

#include <memory>
#include <utility>

#include "api/answer.h"
#include "api/check.h"
#include "api/operation.h"
#include "nginx/clock.h"
#include "request/counters.h"
#include "store/check_batcher.h"
#include "store/refund.h"

namespace rate_limit {
namespace {

Policy policy_with(const Zone& zone, const RateList& rates) {
    Policy policy = zone.policy;
    policy.rates = rates;
    return policy;
}

// A limit of the client of a call. `policy` and `arguments` must live as long as the limit.
Limit limit_of(Zone* zone, const Policy& policy, const ApiArguments& arguments) {
    Limit limit = {};
    make_limit(zone, policy, arguments.key, arguments.amount, &limit);
    limit.is_short = true;
    return limit;
}

// Whether Redis may have applied a call that ended with this error.
bool may_be_applied(redis::Error error) {
    return error == redis::Error::kTimedOut || error == redis::Error::kClosed ||
           error == redis::Error::kProtocol || error == redis::Error::kShape || error == redis::Error::kOther;
}

// What a failed call to Redis means.
std::string effect_of(const Zone& zone, bool gives_back, redis::Error error) {
    if (zone.sync != 0) {
        return "the client was refunded in this instance, but perhaps not in Redis";
    }
    const std::string unchanged = "nothing was changed in this instance";
    return may_be_applied(error) ? unchanged + ", but perhaps the client was " +
                                       (gives_back ? "refunded" : "charged") + " in Redis"
                                 : unchanged;
}

// A correction in Redis.
struct Correction final : ApiOperation {
    Correction(Zone* zone, const ApiArguments& asked, const RateList& rates, Known known, bool gives_back,
               std::uint64_t amount)
        : ApiOperation(zone),
          asked(asked),
          policy(policy_with(*zone, rates)),
          known(known),
          gives_back(gives_back),
          correction(operation_target(*zone), policy, asked.key, gives_back, amount) {}

    FleetOperation* operation() override { return &correction; }

    // The checks of this worker use the same router, so that its next checks see the correction.
    redis::Router* router() override {
        const Limit limit = limit_of(zone, policy, asked);  // connects the zone
        zone_connect_corrector(zone);
        return &(limit.zone->batcher != nullptr ? zone->batcher : zone->corrector)->router();
    }

    void on_success() override {
        if (zone->sync != 0) {
            follow_here(limit_of(zone, policy, asked), correction.decision(), this_process(), wall_clock);
        }
        count_settled(*zone, gives_back ? Settled::kLess : Settled::kMore);
    }

    ngx_int_t answer() override {
        if (correction.error() != redis::Error::kNone) {
            return answer_error();
        }
        return zone->sync != 0 ? answer_remaining(request, zone, asked, known)
                               : answer_decided(request, zone, asked, policy.rates, correction.decision(),
                                                correction.time(), known);
    }

    // If Redis has not charged the client, the fallback does.
    ngx_int_t answer_error() {
        const redis::Error error = correction.error();
        if (!gives_back && !may_be_applied(error) && zone->on_error == OnError::kLocal &&
            charge_here(limit_of(zone, policy, asked), this_process(), wall_clock)) {
            count_settled(*zone, Settled::kMore);
            return answer_remaining(request, zone, asked, Known::kYes);
        }
        count_settled(*zone, Settled::kKept);
        return send_api_problem(request, NGX_HTTP_SERVICE_UNAVAILABLE,
                                "Redis \"" + std::string(view(zone->redis->name)) +
                                    "\" cannot be asked, and " + effect_of(*zone, gives_back, error) + ": " +
                                    redis::error_name(error));
    }

    ApiArguments asked;
    Policy policy;
    Known known;  // before the correction
    bool gives_back;
    ClientCorrection correction;
};

ngx_int_t refuse_unrated(ngx_http_request_t* r, const Zone& zone) {
    return send_api_problem(r, NGX_HTTP_BAD_REQUEST,
                            "the rate of this zone is " + escaped_key(view(zone.rate_text)) +
                                ", and that of this client is not known; the argument rate tells it");
}

// The second part of the call refund.
ngx_int_t refund_found(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments, Known known) {
    const RateList* rates = known_rates(zone, arguments);
    if (rates == nullptr) {
        return refuse_unrated(r, *zone);
    }
    if (known == Known::kNo || rates->size == 0) {
        return answer_remaining(r, zone, arguments, known);
    }
    std::uint64_t amount = arguments.amount;
    if (!asks_redis(*zone)) {
        const Policy policy = policy_with(*zone, *rates);
        amount = give_back_here(limit_of(zone, policy, arguments), this_process(), wall_clock);
        if (amount == 0) {
            count_settled(*zone, Settled::kLess);
            return answer_remaining(r, zone, arguments, known);
        }
    }
    return start_operation(r, std::make_unique<Correction>(zone, arguments, *rates, known, true, amount));
}

}  // namespace

ngx_int_t api_charge(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments) {
    const RateList* rates = known_rates(zone, arguments);
    if (rates == nullptr) {
        return refuse_unrated(r, *zone);
    }
    if (rates->size == 0) {
        return api_remaining(r, zone, arguments);
    }
    if (asks_redis(*zone)) {
        return start_operation(
            r, std::make_unique<Correction>(zone, arguments, *rates, Known::kYes, false, arguments.amount));
    }
    const Policy policy = policy_with(*zone, *rates);
    const bool charged = charge_here(limit_of(zone, policy, arguments), this_process(), wall_clock);
    count_settled(*zone, charged ? Settled::kMore : Settled::kKept);
    return charged ? answer_remaining(r, zone, arguments, Known::kYes)
                   : send_api_problem(r, NGX_HTTP_SERVICE_UNAVAILABLE,
                                      "zone \"" + escaped_key(view(zone->name)) +
                                          "\" has no free slot for the client, and nothing was changed");
}

ngx_int_t api_refund(ngx_http_request_t* r, Zone* zone, const ApiArguments& arguments) {
    return look_up_client(r, zone, arguments, refund_found);
}

}  // namespace rate_limit
