// Charges clients, even beyond the limit.
#include "server/sync_command.h"

#include <algorithm>
#include <cmath>

#include "algorithms/rate_slots.h"
#include "core/rate.h"
#include "protocol/pack.h"

namespace rate_limit {
namespace {

constexpr Micros kGuardFor = 86400 * kSecond;
constexpr Micros kClientGuardFor = 60 * kSecond;

static_assert(kMostReported >= kLongestStored, "a reply has every value that an algorithm writes");

LimitCheck limit_check;  // the server runs one command at a time

bool is_number(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The last charge of the states of a bucket.
Micros last_charge(const LimitCheck& limit) {
    const StateLayout& layout = limit.policy->layout;
    const RateList& rates = limit.policy->policy.rates;
    const RateSlots slots =
        has_marks(layout) ? find_rate_slots(rates, layout, limit.words[marks_index(layout)]) : RateSlots();
    Micros last = 0;
    for (std::uint32_t i = 0; i < rates.size; i++) {
        const std::uint64_t word = limit.words[slots.from[i] * words_per_rate(layout)];
        last = std::max(last, static_cast<Micros>(word & ((std::uint64_t{1} << kWindowBits) - 1)));
    }
    return last;
}

}  // namespace

const char* SyncCommand::read(const Arguments& arguments, std::size_t clients) {
    const char* wrong = policies_.read(arguments.policies);
    if (wrong != nullptr) {
        return wrong;
    }
    arguments_ = arguments;
    clients_ = clients;
    if (arguments.entries.size() != clients * kLargeLimitSize) {
        return "ERR the number of keys is not that of the entries";
    }
    for (std::string_view entries = arguments.entries; !entries.empty();) {
        std::uint64_t number = 0;
        std::uint64_t cost = 0;
        unpack<kLargeLimitFormat>(&entries, &number, &cost);
        if (number >= policies_.size() || cost > kMaxCount) {
            return "ERR the entries are malformed";
        }
    }
    constexpr std::size_t kLongestNumber = 20;
    if (!is_number(arguments.sequence) || arguments.sequence.size() > kLongestNumber) {
        return "ERR the sequence is not a number";
    }
    if (!parse_number(arguments.age, kMaxCount, &age_)) {
        return "ERR the age is not a number";
    }
    return nullptr;
}

std::size_t SyncCommand::run(CommandKeys* keys, std::string_view guard, Micros now, char* reply) {
    keys_ = keys;
    now_ = now;
    const auto age = static_cast<Micros>(std::min(age_, static_cast<std::uint64_t>(now)));
    since_ = std::max<Micros>(now - age, 1);
    const std::string_view sequence = arguments_.sequence;
    const std::string_view last = keys->value(clients_);
    // Sequence numbers are compared as text, because they may exceed 64 bits.
    const bool applied = is_number(last) && (last.size() > sequence.size() ||
                                             (last.size() == sequence.size() && last >= sequence));
    char* at = put_little_endian<8>(reply, static_cast<std::uint64_t>(now));
    Micros first_expires = 0;
    for (std::size_t i = 0; i < clients_; i++) {
        std::uint64_t overshoot = 0;
        Micros expires = 0;
        std::string_view value = charge(i, applied, &overshoot, &expires);
        value = value.size() > kMostReported ? std::string_view() : value;
        at = pack<kEntryFormat>(at, overshoot, value.size());
        at += value.copy(at, value.size());
        first_expires = i == 0 ? expires : first_expires;
    }
    if (!applied) {
        Micros until = now + kGuardFor;
        // A guard whose name ends with "}" belongs to one client. It is not needed longer than the client's
        // key: requests that have left the window are not sent again.
        if (!guard.empty() && guard.back() == '}') {
            until = std::min(until, std::max(first_expires, now + kClientGuardFor));
        }
        keys->write(clients_, sequence, until);
    }
    return static_cast<std::size_t>(at - reply);
}

// Charges the client at `position`. Returns the value for the reply; sets `*expires` if the key has changed.
std::string_view SyncCommand::charge(std::size_t position, bool applied, std::uint64_t* overshoot,
                                     Micros* expires) {
    std::string_view entry = arguments_.entries.substr(position * kLargeLimitSize, kLargeLimitSize);
    std::uint64_t number = 0;
    std::uint64_t cost = 0;
    unpack<kLargeLimitFormat>(&entry, &number, &cost);
    const ReadPolicy& read = policies_[number];
    const bool simple =
        read.fixed_expiry && read.policy.rates.size == 1 && read.layout.rates == 1 && !read.layout.interval;
    if (applied || cost == 0 || !simple || is_long_value(keys_->value(position))) {
        return charge_client(read, position, applied ? 0 : cost, overshoot, expires);
    }
    return charge_window(read, position, cost, overshoot, expires);
}

// Charges a client of a window that needs no Check.
std::string_view SyncCommand::charge_window(const ReadPolicy& read, std::size_t position, std::uint64_t cost,
                                            std::uint64_t* overshoot, Micros* expires) {
    LimitCheck& limit = limit_check;
    limit.load(read, keys_->value(position));
    const Quota quota = quota_of(read.policy, read.layout, 0);
    const AlgorithmFunctions& functions = functions_of(read.policy.algorithm);
    View view;
    const Outcome out = functions.evaluate(quota, limit.words, now_, 0, &view);
    functions.impose(quota, view, cost, limit.words);
    *overshoot = cost - std::min(cost, out.remaining);
    *expires = functions.needed_until(quota, limit.words, quota.rate.period);
    char value[kLargeState];
    const std::size_t size = encode_stored(read.layout, limit.words, limit.form, value);
    keys_->write(position, {value, size}, view.a != 0 && !view.moved ? kKeepExpiry : *expires);
    return keys_->value(position);
}

// Charges a client under any policy.
std::string_view SyncCommand::charge_client(const ReadPolicy& read, std::size_t position, std::uint64_t cost,
                                            std::uint64_t* overshoot, Micros* expires) {
    LimitCheck& limit = limit_check;
    limit.load(read, keys_->value(position));
    limit.cost = cost;
    limit.remember();
    const bool back = evaluate_at_admission(&limit);
    *overshoot = overshoot_of(limit);
    limit.evaluate(limit.check.moment(), cost);
    limit.check.impose(limit.words);
    if (back && read.layout.interval) {
        set_interval(&limit, static_cast<Micros>(limit.interval_before()), now_);
    }
    if (cost != 0 || limit.has_changed()) {
        if (cost != 0 || !limit.only_interval()) {
            limit.note_written(false);
        }
        *expires = limit.needed_until(now_, back ? now_ - since_ : 0, cost == 0);
        limit.save(position, now_, *expires, keys_);
    }
    return has_state<StateKind::kLog>(read.policy.algorithm) ? std::string_view() : keys_->value(position);
}

// Evaluates a client without a cost. A state that drains and is to be charged is evaluated at the time when
// the requests were admitted, or of its last charge if that is later: from then on the state has drained for
// all instances. Returns whether it is such a state.
bool SyncCommand::evaluate_at_admission(LimitCheck* limit) const {
    const bool back = is_bucket(limit->policy->policy.algorithm) && limit->cost != 0 && since_ < now_;
    Micros moment = back ? since_ : now_;
    if (back) {
        const Micros last = last_charge(*limit);
        moment = last - since_ > kClockSlack ? std::min(last, now_) : since_;
    }
    limit->evaluate(moment, 0);
    return back;
}

// How many of the requests exceed the limit. Of a state that drains, an upper bound, in the arithmetic of
// lua/bucket.lua.
std::uint64_t SyncCommand::overshoot_of(const LimitCheck& limit) const {
    const Policy& policy = limit.policy->policy;
    if (!is_bucket(policy.algorithm) || limit.cost == 0 || since_ >= now_) {
        return limit.cost - std::min(limit.cost, limit.check.decision().remaining);
    }
    double most = 0;
    const auto cost = static_cast<double>(limit.cost);
    for (std::uint32_t i = 0; i < policy.rates.size; i++) {
        const View& view = limit.check.view(i);
        const Rate& rate = policy.rates.rates[i];
        const auto capacity = static_cast<double>(capacity_of(policy, rate));
        const double drained =
            static_cast<double>(std::max<Micros>(now_ - view.now, 0)) * static_cast<double>(rate.count);
        const double filled = static_cast<double>(view.a) +
                              (static_cast<double>(view.b) - drained) / static_cast<double>(rate.period);
        most = std::max(most, filled < capacity ? std::ceil(filled + cost - capacity) : cost);
    }
    return static_cast<std::uint64_t>(most);
}

void SyncCommand::set_interval(LimitCheck* limit, Micros last, Micros now) {
    const bool set_back = last - now > kClockSlack;
    limit->words[interval_index(limit->policy->layout)] =
        static_cast<std::uint64_t>(set_back ? now : std::max(last, now));
}

}  // namespace rate_limit
