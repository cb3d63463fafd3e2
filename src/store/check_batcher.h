// Limits whose state is in Redis. The checks of one turn of the event loop are batched into one call of the
// script (in a cluster, one call per node), and the reply is split into decisions again. While more checks
// are in flight to a node than have been collected for it, the collected checks wait for the next reply.
//
// Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "algorithms/check.h"
#include "protocol/key_writer.h"
#include "redis/client.h"
#include "store/limit.h"

namespace rate_limit {

struct Waiting;

// A group: the limits of one request that one script call decides together. The limits must live until `done`
// is called, at the end of a turn of the event loop, or until CheckBatcher::forget.
struct Question {
    Limit* limits = nullptr;           // all limits of the request
    std::uint8_t indices[kMaxLimits];  // of the limits in this group
    std::size_t count = 0;             // of `indices`
    void (*done)(Question* question) = nullptr;
    void* data = nullptr;                      // of the caller, for `done` and `lost`
    redis::Error error = redis::Error::kNone;  // if not kNone, nothing was decided
    Micros time = 0;                           // of the decision, by Redis's clock
    Waiting* waiting = nullptr;                // while the question is in flight
    // Called instead of `done` if the CheckBatcher is destroyed first; may be null.
    void (*lost)(Question* question) = nullptr;

    Limit& operator[](std::size_t index) const { return limits[indices[index]]; }
};

class RedisCounter;

class CheckBatcher {
  public:
    struct Options {
        std::string prefix;               // of every key
        std::uint32_t batch = 64;         // the most checks in a call
        Micros budget = kForever;         // see budget()
        RedisCounter* counter = nullptr;  // counts the sizes of batches; may be null
        // For debug lines; may be null.
        void (*on_send)(std::size_t groups, std::size_t keys) = nullptr;
        void (*on_reply)(std::size_t groups, redis::Error error) = nullptr;
    };

    // Takes ownership of the router.
    CheckBatcher(redis::Router* router, const Options& options, redis::Loop* loop);
    ~CheckBatcher();
    CheckBatcher(const CheckBatcher&) = delete;
    CheckBatcher& operator=(const CheckBatcher&) = delete;

    // The slot of a limit's key; always 0 if the router is not sharded. All limits of a question must have
    // the same slot.
    redis::HashSlot hash_slot_of(const Limit& limit) {
        return sharded_ ? hash_slot_of_key(limit) : redis::HashSlot{0};
    }

    // False if calls for this slot would fail at once: it has no server, or its breaker is open.
    bool available(redis::HashSlot slot) const;

    // Whether a call for this slot would be written to a connection that exists. Otherwise the call waits for
    // a connection, and fails if there is none in time.
    bool connected(redis::HashSlot slot) const;

    // Decides the question's limits, and charges all of them or none. False if memory is exhausted.
    bool ask(Question* question);

    // Drops the answer: `done` is not called.
    static void forget(Question* question);

    // Sends the answer to `copy`, a copy of the question.
    static void hand_over(Question* question, Question* copy);

    // Decides and charges one limit, and drops the answer. For a request that another limit has rejected, if
    // rejected requests count.
    void count(const Limit& limit);

    // Undoes the charges of some limits: their request is rejected. All of them must have the same slot. If
    // Redis does not answer, the limits stay charged.
    void undo(const Limit* limits, const std::uint8_t* indices, std::size_t count);

    // Corrects the charge of a limit whose request turned out to cost `actual`, in the call of the next check
    // or, if there is none, some milliseconds later. False if Redis is not available. If Redis does not
    // answer, the limit stays charged as it is.
    bool settle(const Limit& limit, std::uint64_t actual);

    // Gives back `amount` of a charge that a sync call has told Redis, at the time of the charge by Redis's
    // clock. `whole`: the request was rejected. Otherwise as settle().
    bool give_back(const Limit& limit, std::uint64_t amount, Micros charged_at, bool whole);

    // How long after its start a request may send another question.
    Micros budget() const { return options_.budget; }

    redis::Router& router() { return *router_; }

  private:
    struct Batch;
    struct Node;

    static void on_answer(void* self, redis::Error error, std::string_view reply);
    bool add(const Limit* limits, const std::uint8_t* indices, std::size_t count, GroupKind kind,
             const std::uint64_t* amount, Question* question);
    void complete(Batch* batch);
    redis::HashSlot hash_slot_of_key(const Limit& limit);
    void add_key(const Limit& limit, redis::Buffer* buffer) {
        keys_.append(limit.zone->label, limit.policy->algorithm, limit.client, limit.is_short, buffer);
    }
    Batch* batch_for(const Limit& limit);
    Batch* batch_of_node(Node* node, redis::HashSlot slot);
    Batch* batch_of_client(std::string_view client, redis::HashSlot slot);
    Node* node_of(const redis::Client* client);
    void close(Batch* batch);
    void flush();
    bool holds(const Node& node);
    bool holds_until(redis::Milliseconds until);
    void leave(Batch* batch);
    void send(Batch* batch);
    void send_split(Batch* batch);
    static bool is_whole(const Batch& batch, std::string_view reply);
    void finish(Batch* batch, redis::Error error, std::string_view reply);
    void wake();
    Batch* make_batch();
    void recycle(Batch* batch);
    Waiting* make_waiting();

    static constexpr std::size_t kLists = 64;

    redis::Router* router_;
    const bool sharded_;  // router_->sharded()
    Options options_;
    KeyWriter keys_;
    redis::Loop* loop_;
    redis::Alarm* flush_;
    redis::Alarm* wake_;
    redis::Alarm* hold_;          // until a held batch is sent without waiting for a reply
    bool keeps_process_ = false;  // a held batch has settled charges, which a shutdown waits for
    Node* whole_ = nullptr;       // the only node if the router is not sharded, else null
    Node* nodes_[kLists] = {};    // hash table by client
    Node* first_open_ = nullptr;  // list of the nodes with an open batch
    Batch* open_[kLists] = {};    // open batches without a node: hash table by slot
    std::uint64_t filled_ = 0;    // bit i is set if list i of open_ may not be empty
    redis::Buffer key_;
    Batch* free_batches_ = nullptr;
    Waiting* free_waiting_ = nullptr;
    Waiting* first_done_ = nullptr;
    Waiting* last_done_ = nullptr;
};

}  // namespace rate_limit
