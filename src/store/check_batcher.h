// Limits whose state is in Redis: the checks of one turn of the event loop go out together as one call
// of the script, in a cluster one to each node, and its reply is taken apart again. While more are on their
// way to a node than have gathered for it, these wait for the next reply.
//
// Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "memory/table_check.h"
#include "protocol/key_writer.h"
#include "redis/client.h"

namespace rate_limit {

// One of a request's limits that Redis decides.
struct BatchedLimit {
    std::string_view zone;      // its name
    std::string_view client;    // the client's
    const Policy* policy;       // has rates
    const StateLayout* layout;  // of the zone
    std::uint32_t cost;         // 0 looks
    bool is_short = false;      // the client's name is as short_name gives it
    Decision decision = {};     // the answer
};

struct Waiting;

// A request's limits on one Redis, while it asks. They and their texts must live until `done` is called,
// which happens at the end of a turn of the loop, or until CheckBatcher::forget.
struct Question {
    BatchedLimit* limits = nullptr;
    std::size_t count = 0;
    void (*done)(Question* question) = nullptr;
    void* asker = nullptr;                     // whoever `done` is for
    redis::Error error = redis::Error::kNone;  // the answer, if not kNone: nothing was decided
    Micros time = 0;                           // else Redis' own, at which it decided
    Waiting* waiting = nullptr;                // while it asks
    // Called instead of `done` if the CheckBatcher ends before; may be null.
    void (*lost)(Question* question) = nullptr;
};

class RedisCounter;

class CheckBatcher {
  public:
    struct Options {
        std::string prefix;               // of every key
        std::uint32_t batch = 64;         // groups in a call
        Micros budget = kForever;         // of a request that has to ask several times
        RedisCounter* counter = nullptr;  // is told how large batches are; may be null
    };

    // Takes the router over. Null if there is no memory.
    static CheckBatcher* make(redis::Router* router, const Options& options, redis::Loop* loop);
    ~CheckBatcher();
    CheckBatcher(const CheckBatcher&) = delete;
    CheckBatcher& operator=(const CheckBatcher&) = delete;

    // The slot of a limit's key: 0 where keys of all slots are in one place. Only limits of one slot can be
    // asked for together.
    redis::Slot slot_of(const BatchedLimit& limit) { return sharded_ ? slot_of_key(limit) : redis::Slot{0}; }

    // Whether Redis is worth asking for a slot.
    bool available(redis::Slot slot) const;

    // Decides and charges, all of the question's limits or none. False if there is no memory.
    bool ask(Question* question);

    // `done` is not called.
    static void forget(Question* question);

    // The answer to a question goes to a copy of it.
    static void hand_over(Question* question, Question* copy);

    // Decides and charges, and tells nobody: for a request that was rejected elsewhere, where rejected
    // requests count.
    void count(const BatchedLimit* limits, std::size_t count);

    // Gives back what an admitted question was charged, as well as can be: if Redis is gone, it stays
    // charged.
    void give_back(const BatchedLimit* limits, std::size_t count);

    // How long after its first question a request may ask another.
    Micros budget() const { return options_.budget; }

    redis::Router& router() { return *router_; }

  private:
    struct Batch;
    struct Node;

    CheckBatcher(redis::Router* router, const Options& options, redis::Loop* loop)
        : router_(router),
          sharded_(router->sharded()),
          options_(options),
          keys_(options.prefix),
          loop_(loop) {}

    static void on_answer(void* self, redis::Error error, std::string_view reply);
    bool add(const BatchedLimit* limits, std::size_t count, bool refund, Question* question);
    redis::Slot slot_of_key(const BatchedLimit& limit);
    void add_key(const BatchedLimit& limit, redis::Buffer* buffer) {
        keys_.append(limit.zone, limit.policy->algorithm, limit.client, limit.is_short, buffer);
    }
    Batch* batch_for(const BatchedLimit& limit);
    Batch* batch_of_node(Node* node, redis::Slot slot);
    Batch* batch_of_client(std::string_view client, redis::Slot slot);
    Node* node_of(const redis::Client* client);
    void close(Batch* batch);
    void flush();
    bool holds(const Node& node);
    void leave(Batch* batch);
    void send(Batch* batch);
    void ask_apart(Batch* batch);
    static bool is_whole(const Batch& batch, std::string_view reply);
    void finish(Batch* batch, redis::Error error, std::string_view reply);
    void wake();
    Batch* make_batch();
    void recycle(Batch* batch);
    Waiting* make_waiting();

    static constexpr std::size_t kLists = 64;

    redis::Router* router_;
    const bool sharded_;  // the router is
    Options options_;
    KeyWriter keys_;
    redis::Loop* loop_;
    redis::Alarm* flush_ = nullptr;
    redis::Alarm* wake_ = nullptr;
    redis::Alarm* hold_ = nullptr;  // until a batch that waits for an answer leaves without it
    Node* whole_ = nullptr;         // if the router is not sharded: the only one
    Node* nodes_[kLists] = {};      // in lists by their clients
    Node* first_open_ = nullptr;    // of those that have a batch that is being filled
    Batch* open_[kLists] = {};      // others that are being filled, in lists by their slots
    std::uint64_t filled_ = 0;      // a bit for each list of these that may have any
    redis::Buffer key_;
    Batch* free_batches_ = nullptr;
    Waiting* free_waiting_ = nullptr;
    Waiting* first_done_ = nullptr;
    Waiting* last_done_ = nullptr;
};

}  // namespace rate_limit
