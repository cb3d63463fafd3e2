// Makes calls of batches, and hands what they bring back to the table.
#include "store/courier.h"

#include <algorithm>
#include <new>
#include <utility>

#include "redis/command.h"
#include "store/name.h"
#include "store/script_text.h"
#include "store/value.h"
#include "store/wire.h"

namespace rate_limit {
namespace {

constexpr std::size_t kCallsInCluster = 128;  // under way, of one client each
constexpr std::size_t kFailuresInRound = 1024;
static_assert(kClientsInCall <= kMaxPolicies, "each client may have rates of its own");

}  // namespace

Courier::Courier(Table* table, const Policy& policy, const Options& options, redis::Service* service,
                 redis::Loop* loop, const Host& host, Micros (*wall)())
    : table_(table),
      policy_(&policy),
      options_(options),
      service_(service),
      loop_(loop),
      wall_(wall),
      reconciler_(table, policy, options.mode,
                  service->split() ? Reconciler::Guard::kClient : Reconciler::Guard::kSender, host),
      state_(words_of(table->shape())) {}

Courier* Courier::make(Table* table, const Policy& policy, const Options& options, redis::Service* service,
                       redis::Loop* loop, const Host& host, Micros (*wall)()) {
    auto* courier = new (std::nothrow) Courier(table, policy, options, service, loop, host, wall);
    if (courier == nullptr) {
        return nullptr;
    }
    courier->timer_ =
        loop->make_timer([](void* self) { static_cast<Courier*>(self)->on_timer(); }, courier, false);
    if (courier->timer_ == nullptr) {
        delete courier;
        return nullptr;
    }
    courier->timer_->arm(options.every + options.later);
    return courier;
}

Courier::~Courier() { delete timer_; }

void Courier::end() {
    if (ending_ || service_ == nullptr) {
        return;
    }
    ending_ = true;
    ended_at_ = loop_->now();
    timer_->disarm();
    failed_ = 0;
    reconciler_.begin_round();
    send_all();
}

void Courier::stop() {
    service_ = nullptr;
    timer_->disarm();
}

bool Courier::is_over() const {
    constexpr redis::Milliseconds kLongestEnd = 1000;
    return ending_ && loop_->now() > ended_at_ + kLongestEnd;
}

Micros Courier::now() const {
    return wall_() + (options_.mode == Reconciler::Mode::kSync ? table_->accounts().ahead() : 0);
}

void Courier::on_timer() {
    timer_->arm(options_.every);
    failed_ = 0;
    reconciler_.begin_round();
    send_all();
}

void Courier::send_all() {
    send_batches();
    if (ending_ && under_way_ == 0) {
        reconciler_.resign();
    }
}

// Where each client may be at another server, each has a call, and many are under way at once; else one
// follows the other.
void Courier::send_batches() {
    const bool split = service_->split();
    const std::size_t most = split ? kCallsInCluster : 1;
    while (under_way_ < most && failed_ < kFailuresInRound && !is_over()) {
        std::unique_ptr<Trip> trip;
        if (free_.empty()) {
            trip.reset(new (std::nothrow) Trip);
        } else {
            trip = std::move(free_.back());
            free_.pop_back();
        }
        if (trip == nullptr) {
            return;
        }
        trip->courier = this;
        if (!reconciler_.next(now(), split ? 1 : kClientsInCall, &trip->batch)) {
            free_.push_back(std::move(trip));
            return;
        }
        if (!send(trip.get())) {
            failed_++;
            reconciler_.failed(trip->batch);
            free_.push_back(std::move(trip));
            continue;
        }
        under_way_++;
        trip.release();  // NOLINT(bugprone-unused-return-value): on_answer takes it back
    }
}

redis::Slot Courier::slot_of(std::string_view client) const {
    if (!service_->split()) {
        return 0;
    }
    redis::Buffer key;
    append_key_text(options_.prefix, options_.zone, policy_->algorithm, client, &key);
    return redis::slot_of(key.view());
}

// The guard is where the clients' keys are: beside the one client, where they may be in different places.
void Courier::append_guard(const Batch& batch, redis::Buffer* buffer) const {
    std::string key = options_.prefix + "sync:" + options_.zone + ":" + print_id(batch.sender);
    if (service_->split()) {
        // The tag of the client's own key, which need not be its name: a brace may be part of that.
        redis::Buffer text;
        append_key_text(options_.prefix, options_.zone, policy_->algorithm, batch.entries[0].name(), &text);
        key += ":" + std::string(text.view().substr(text.view().find('{')));
    }
    redis::append_bulk(key, buffer);
}

void Courier::append_keys(const Batch& batch, redis::Buffer* buffer) const {
    // All keys are alike up to the client's name.
    redis::Buffer start;
    append_key_text(options_.prefix, options_.zone, policy_->algorithm, {}, &start);
    start.cut(start.size() - 1);
    for (const Entry& entry : batch.entries) {
        redis::append_bulk_header(start.size() + entry.name_size + 1, buffer);
        buffer->append(start.view());
        buffer->append(entry.name());
        buffer->append("}\r\n");
    }
    append_guard(batch, buffer);
}

void Courier::append_entries(const Batch& batch, redis::Buffer* policies, redis::Buffer* entries) const {
    char record[kLongestPolicy];
    if (!table_->shape().varied) {
        policies->append({record, encode_policy(*policy_, table_->shape(), record)});
        for (const Entry& entry : batch.entries) {
            append_entry(0, entry.amount, entries);
        }
        return;
    }
    Policy room;
    std::vector<std::string> known;
    for (const Entry& entry : batch.entries) {
        const Policy& policy = reconciler_.policy_of(entry, &room);
        const std::string text(record, encode_policy(policy, table_->shape(), record));
        const auto found = std::find(known.begin(), known.end(), text);
        append_entry(static_cast<std::size_t>(found - known.begin()), entry.amount, entries);
        if (found == known.end()) {
            known.push_back(text);
            policies->append(text);
        }
    }
}

bool Courier::send(Trip* trip) {
    const Batch& batch = trip->batch;
    trip->slot = slot_of(batch.entries[0].name());
    trip->sent_at = wall_();
    redis::Client* client = service_->client_of(trip->slot);
    redis::Call* call = client != nullptr && client->available() ? client->make_call() : nullptr;
    if (call == nullptr) {
        return false;
    }
    redis::Buffer policies;
    redis::Buffer entries;
    constexpr std::size_t kOtherWords =
        8;  // EVALSHA, digest, number of keys, guard, policies, entries, sequence, age
    append_entries(batch, &policies, &entries);
    const Micros age = batch.since != 0 ? std::max<Micros>(now() - batch.since, 0) : 0;
    redis::Buffer& command = call->command;
    command.append("*");
    redis::append_decimal(batch.entries.size() + kOtherWords, &command);
    command.append("\r\n");
    redis::append_bulk("EVALSHA", &command);
    redis::append_bulk(kSyncScriptSha1, &command);
    redis::append_bulk_number(batch.entries.size() + 1, &command);
    append_keys(batch, &command);
    redis::append_bulk(policies.view(), &command);
    redis::append_bulk(entries.view(), &command);
    redis::append_bulk_number(batch.sequence, &command);
    redis::append_bulk_number(static_cast<std::uint64_t>(age), &command);
    call->slot = trip->slot;
    client->send(call, on_answer, trip);
    return true;
}

void Courier::on_answer(void* self, redis::Error error, std::string_view reply) {
    std::unique_ptr<Trip> trip(static_cast<Trip*>(self));
    Courier* courier = trip->courier;
    courier->under_way_--;
    if (error != redis::Error::kNone || !courier->take_in(*trip, reply)) {
        courier->failed_++;
        courier->reconciler_.failed(trip->batch);
    }
    courier->free_.push_back(std::move(trip));
    if (courier->service_ != nullptr) {
        courier->send_all();
    }
}

// Hands what Redis has to the table; false if the reply is not the script's.
bool Courier::take_in(const Trip& trip, std::string_view reply) {
    Micros time = 0;
    std::string_view rest = reply;
    bool whole = decode_time(&rest, &time);
    const std::string_view records = rest;
    std::uint32_t overshoot = 0;
    std::string_view value;
    for (std::size_t i = 0; i < trip.batch.entries.size() && whole; i++) {
        whole = decode_entry(&rest, &overshoot, &value);
    }
    if (!whole || !rest.empty()) {
        redis::Client* client = service_ != nullptr ? service_->client_of(trip.slot) : nullptr;
        if (client != nullptr) {
            client->distrust(redis::Error::kShape,
                             "a reply of the sync script is not as long as its clients");
        }
        return false;
    }
    // What comes back is of this time, and other processes judge it at once.
    set_clock(trip.sent_at, time);
    rest = records;
    Policy room;
    for (std::size_t i = 0; i < trip.batch.entries.size(); i++) {
        decode_entry(&rest, &overshoot, &value);
        const Policy& policy = reconciler_.policy_of(trip.batch.entries[i], &room);
        const bool known = decode_value(policy, table_->shape(), value, state_.data());
        reconciler_.settle(trip.batch, i, known ? state_.data() : nullptr, time, overshoot);
    }
    return true;
}

// Redis' clock was read some time between the call and now: as long as it may be as far ahead as was thought,
// that stays, so that the time does not jump with every call.
void Courier::set_clock(Micros sent_at, Micros time) const {
    const Micros received_at = wall_();
    const Micros ahead = table_->accounts().ahead();
    if (time < sent_at + ahead || time > received_at + ahead) {
        table_->accounts().set_ahead(time - sent_at - (received_at - sent_at) / 2);
    }
}

}  // namespace rate_limit
