// Sends batches as calls of the sync script, and applies the replies.
#include "fleet/sync_sender.h"

#include <algorithm>
#include <utility>

#include "connection/command.h"
#include "core/client_name.h"
#include "protocol/key_writer.h"
#include "protocol/redis_value.h"
#include "protocol/script_text.h"
#include "protocol/stored_state.h"
#include "protocol/wire.h"

namespace rate_limit {
namespace {

constexpr std::size_t kCallsInCluster = 128;  // in flight, of one client each
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
    auto* sync_sender = new SyncSender(table, policy, options, router, loop, process, wall);
    sync_sender->start(options.every + options.later);
    return sync_sender;
}

// Sends the last counts, for no longer than a second. The lead ends with the last reply.
void SyncSender::on_end() {
    ending_ = true;
    ended_at_ = loop()->now();
    run();
}

bool SyncSender::out_of_time() const {
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
    if (ending_ && in_flight_ == 0) {
        ledger_.resign();
    }
}

// In Cluster, each client has a call of its own, and many calls are in flight. Otherwise one call with many
// clients is in flight at a time.
void SyncSender::send_batches() {
    const bool sharded = router()->sharded();
    const std::size_t most = sharded ? kCallsInCluster : 1;
    while (in_flight_ < most && failed_ < kFailuresInRound && !out_of_time()) {
        std::unique_ptr<Sent> sent;
        if (free_.empty()) {
            sent = std::make_unique<Sent>();
        } else {
            sent = std::move(free_.back());
            free_.pop_back();
        }
        sent->sync_sender = this;
        if (!ledger_.next(now(), sharded ? 1 : kClientsInCall, &sent->batch)) {
            free_.push_back(std::move(sent));
            return;
        }
        if (!send(sent.get())) {
            failed_++;
            ledger_.failed(sent->batch);
            free_.push_back(std::move(sent));
            continue;
        }
        in_flight_++;
        sent.release();  // NOLINT(bugprone-unused-return-value): on_answer takes it back
    }
}

redis::HashSlot SyncSender::hash_slot_of(std::string_view client) const {
    if (!router()->sharded()) {
        return 0;
    }
    redis::Buffer key;
    append_key_text(options_.prefix, options_.zone, policy_->algorithm, client, &key);
    return redis::hash_slot_of(key.view());
}

// In Cluster, the guard is in the slot of the only client.
void SyncSender::append_guard(const SyncBatch& batch, redis::Buffer* buffer) const {
    std::string key = options_.prefix + "sync:" + options_.zone + ":" + print_id(batch.sender);
    if (router()->sharded()) {
        // The hash tag of the client's key. It may differ from the client's name, which may contain a brace.
        redis::Buffer text;
        append_key_text(options_.prefix, options_.zone, policy_->algorithm, batch.entries[0].name(), &text);
        key += ":" + std::string(text.view().substr(text.view().find('{')));
    }
    redis::append_bulk(key, buffer);
}

void SyncSender::append_keys(const SyncBatch& batch, redis::Buffer* buffer) const {
    // All keys are equal up to the client's name.
    redis::Buffer start;
    append_key_text(options_.prefix, options_.zone, policy_->algorithm, {}, &start);
    start.cut(start.size() - 1);
    for (const SyncEntry& entry : batch.entries) {
        redis::append_bulk_header(start.size() + entry.name_size + 1, buffer);
        buffer->append(start.view());
        buffer->append(entry.name());
        buffer->append("}\r\n");
    }
    append_guard(batch, buffer);
}

void SyncSender::append_entries(const SyncBatch& batch, redis::Buffer* policies,
                                redis::Buffer* entries) const {
    char record[kLongestPolicy];
    if (!table_->layout().varied) {
        policies->append({record, encode_policy(*policy_, table_->layout(), record)});
        for (const SyncEntry& entry : batch.entries) {
            append_entry(0, entry.amount, entries);
        }
        return;
    }
    Policy room;
    std::vector<std::string> known;
    for (const SyncEntry& entry : batch.entries) {
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

bool SyncSender::send(Sent* sent) {
    const SyncBatch& batch = sent->batch;
    sent->slot = hash_slot_of(batch.entries[0].name());
    sent->sent_at = wall_();
    redis::Client* client = router()->client_of(sent->slot);
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
    call->slot = sent->slot;
    call->native = is_storable(table_->layout()) ? kNativeSync : std::string_view();
    client->send(call, on_answer, sent);
    return true;
}

void SyncSender::on_answer(void* self, redis::Error error, std::string_view reply) {
    std::unique_ptr<Sent> sent(static_cast<Sent*>(self));
    SyncSender* sync_sender = sent->sync_sender;
    sync_sender->in_flight_--;
    if (error != redis::Error::kNone || !sync_sender->apply_reply(*sent, reply)) {
        sync_sender->failed_++;
        sync_sender->ledger_.failed(sent->batch);
    }
    sync_sender->free_.push_back(std::move(sent));
    if (sync_sender->router() != nullptr) {
        sync_sender->send_all();
    }
}

// Applies the states of a reply to the table; false if the reply is malformed.
bool SyncSender::apply_reply(const Sent& sent, std::string_view reply) {
    Micros time = 0;
    std::string_view rest = reply;
    bool whole = decode_time(&rest, &time);
    const std::string_view records = rest;
    std::uint64_t overshoot = 0;
    std::string_view value;
    for (std::size_t i = 0; i < sent.batch.entries.size() && whole; i++) {
        whole = decode_entry(&rest, &overshoot, &value);
    }
    if (!whole || !rest.empty()) {
        redis::Client* client = router() != nullptr ? router()->client_of(sent.slot) : nullptr;
        if (client != nullptr) {
            client->distrust(redis::Error::kShape,
                             "a reply of the sync script is not as long as its clients");
        }
        return false;
    }
    // The states are of this time, and other processes use them at once.
    set_clock(sent.sent_at, time);
    rest = records;
    Policy room;
    for (std::size_t i = 0; i < sent.batch.entries.size(); i++) {
        decode_entry(&rest, &overshoot, &value);
        const Policy& policy = ledger_.policy_of(sent.batch.entries[i], &room);
        const bool known = decode_value(policy, table_->layout(), value, state_.data());
        ledger_.confirm(sent.batch, i, known ? state_.data() : nullptr, time, overshoot);
    }
    return true;
}

// Redis's clock was read between the call and now. The known difference stays while it is possible, so that
// the time does not jump with every call.
void SyncSender::set_clock(Micros sent_at, Micros time) const {
    const Micros received_at = wall_();
    const Micros ahead = table_->unsent_counts().ahead();
    if (time < sent_at + ahead || time > received_at + ahead) {
        table_->unsent_counts().set_ahead(time - sent_at - (received_at - sent_at) / 2);
    }
}

}  // namespace rate_limit
