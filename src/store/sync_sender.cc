// Makes calls of batches, and hands what they bring back to the table.
#include "store/sync_sender.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/client_name.h"
#include "protocol/key_writer.h"
#include "protocol/redis_value.h"
#include "protocol/script_text.h"
#include "protocol/wire.h"
#include "redis/command.h"

namespace rate_limit {
namespace {

constexpr std::size_t kCallsInCluster = 128;  // under way, of one client each
constexpr std::size_t kFailuresInRound = 1024;
static_assert(kClientsInCall <= kMaxPolicies, "each client may have rates of its own");

}  // namespace

SyncSender::SyncSender(Table* table, const Policy& policy, const Options& options, redis::Router* router,
                       redis::Loop* loop, const Process& process, Micros (*wall)())
    : PeriodicTask(&table->unsent_counts().leader(), options.every, router, loop, process),
      table_(table),
      policy_(&policy),
      options_(options),
      wall_(wall),
      ledger_(table, policy, options.mode,
              router->sharded() ? SyncLedger::Guard::kClient : SyncLedger::Guard::kSender, process),
      state_(words_of(table->layout())) {}

SyncSender* SyncSender::make(Table* table, const Policy& policy, const Options& options,
                             redis::Router* router, redis::Loop* loop, const Process& process,
                             Micros (*wall)()) {
    std::unique_ptr<SyncSender> sync_sender(
        new SyncSender(table, policy, options, router, loop, process, wall));
    return sync_sender->start(options.every + options.later) ? sync_sender.release() : nullptr;
}

// Sends the last counts, for no longer than a second. The lead ends with the last reply.
void SyncSender::on_end() {
    ending_ = true;
    ended_at_ = loop()->now();
    run();
}

bool SyncSender::is_over() const {
    constexpr redis::Milliseconds kLongestEnd = 1000;
    return ending_ && loop()->now() > ended_at_ + kLongestEnd;
}

Micros SyncSender::now() const {
    return wall_() + (options_.mode == SyncLedger::Mode::kSync ? table_->unsent_counts().ahead() : 0);
}

void SyncSender::run() {
    failed_ = 0;
    ledger_.begin_round();
    send_all();
}

void SyncSender::send_all() {
    send_batches();
    if (ending_ && under_way_ == 0) {
        ledger_.resign();
    }
}

// Where each client may be at another server, each has a call, and many are under way at once; else one
// follows the other.
void SyncSender::send_batches() {
    const bool sharded = router()->sharded();
    const std::size_t most = sharded ? kCallsInCluster : 1;
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
        trip->sync_sender = this;
        if (!ledger_.next(now(), sharded ? 1 : kClientsInCall, &trip->batch)) {
            free_.push_back(std::move(trip));
            return;
        }
        if (!send(trip.get())) {
            failed_++;
            ledger_.failed(trip->batch);
            free_.push_back(std::move(trip));
            continue;
        }
        under_way_++;
        trip.release();  // NOLINT(bugprone-unused-return-value): on_answer takes it back
    }
}

redis::Slot SyncSender::slot_of(std::string_view client) const {
    if (!router()->sharded()) {
        return 0;
    }
    redis::Buffer key;
    append_key_text(options_.prefix, options_.zone, policy_->algorithm, client, &key);
    return redis::slot_of(key.view());
}

// The guard is where the clients' keys are: beside the one client, where they may be in different places.
void SyncSender::append_guard(const Batch& batch, redis::Buffer* buffer) const {
    std::string key = options_.prefix + "sync:" + options_.zone + ":" + print_id(batch.sender);
    if (router()->sharded()) {
        // The tag of the client's own key, which need not be its name: a brace may be part of that.
        redis::Buffer text;
        append_key_text(options_.prefix, options_.zone, policy_->algorithm, batch.entries[0].name(), &text);
        key += ":" + std::string(text.view().substr(text.view().find('{')));
    }
    redis::append_bulk(key, buffer);
}

void SyncSender::append_keys(const Batch& batch, redis::Buffer* buffer) const {
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

void SyncSender::append_entries(const Batch& batch, redis::Buffer* policies, redis::Buffer* entries) const {
    char record[kLongestPolicy];
    if (!table_->layout().varied) {
        policies->append({record, encode_policy(*policy_, table_->layout(), record)});
        for (const Entry& entry : batch.entries) {
            append_entry(0, entry.amount, entries);
        }
        return;
    }
    Policy room;
    std::vector<std::string> known;
    for (const Entry& entry : batch.entries) {
        const Policy& policy = ledger_.policy_of(entry, &room);
        const std::string text(record, encode_policy(policy, table_->layout(), record));
        const auto found = std::find(known.begin(), known.end(), text);
        append_entry(static_cast<std::size_t>(found - known.begin()), entry.amount, entries);
        if (found == known.end()) {
            known.push_back(text);
            policies->append(text);
        }
    }
}

bool SyncSender::send(Trip* trip) {
    const Batch& batch = trip->batch;
    trip->slot = slot_of(batch.entries[0].name());
    trip->sent_at = wall_();
    redis::Client* client = router()->client_of(trip->slot);
    redis::Call* call = client != nullptr && client->available() ? client->make_call() : nullptr;
    if (call == nullptr) {
        return false;
    }
    redis::Buffer policies;
    redis::Buffer entries;
    append_entries(batch, &policies, &entries);
    const Micros age = batch.since != 0 ? std::max<Micros>(now() - batch.since, 0) : 0;
    redis::Buffer& command = call->command;
    constexpr std::size_t kArguments = 4;  // policies, entries, sequence, age
    redis::append_evalsha(kSyncScriptSha1, batch.entries.size() + 1, kArguments, &command);
    append_keys(batch, &command);
    redis::append_bulk(policies.view(), &command);
    redis::append_bulk(entries.view(), &command);
    redis::append_bulk_number(batch.sequence, &command);
    redis::append_bulk_number(static_cast<std::uint64_t>(age), &command);
    call->slot = trip->slot;
    client->send(call, on_answer, trip);
    return true;
}

void SyncSender::on_answer(void* self, redis::Error error, std::string_view reply) {
    std::unique_ptr<Trip> trip(static_cast<Trip*>(self));
    SyncSender* sync_sender = trip->sync_sender;
    sync_sender->under_way_--;
    if (error != redis::Error::kNone || !sync_sender->take_in(*trip, reply)) {
        sync_sender->failed_++;
        sync_sender->ledger_.failed(trip->batch);
    }
    sync_sender->free_.push_back(std::move(trip));
    if (sync_sender->router() != nullptr) {
        sync_sender->send_all();
    }
}

// Hands what Redis has to the table; false if the reply is not the script's.
bool SyncSender::take_in(const Trip& trip, std::string_view reply) {
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
        redis::Client* client = router() != nullptr ? router()->client_of(trip.slot) : nullptr;
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
        const Policy& policy = ledger_.policy_of(trip.batch.entries[i], &room);
        const bool known = decode_value(policy, table_->layout(), value, state_.data());
        ledger_.confirm(trip.batch, i, known ? state_.data() : nullptr, time, overshoot);
    }
    return true;
}

// Redis' clock was read some time between the call and now: as long as it may be as far ahead as was thought,
// that stays, so that the time does not jump with every call.
void SyncSender::set_clock(Micros sent_at, Micros time) const {
    const Micros received_at = wall_();
    const Micros ahead = table_->unsent_counts().ahead();
    if (time < sent_at + ahead || time > received_at + ahead) {
        table_->unsent_counts().set_ahead(time - sent_at - (received_at - sent_at) / 2);
    }
}

}  // namespace rate_limit
