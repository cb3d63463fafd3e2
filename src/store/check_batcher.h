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
#include "protocol/key_writer.h"
#include "redis/client.h"
#include "store/limit.h"

namespace rate_limit {

struct Waiting;

// The limits of a request that one Redis decides together. The limits must live until `done` is called, which
// happens at the end of a turn of the event loop, or until CheckBatcher::forget.
struct Question {
    Limit* limits = nullptr;           // all limits of the request
    std::uint8_t indices[kMaxLimits];  // those of them that are asked for
    std::size_t count = 0;             // of `indices`
    void (*done)(Question* question) = nullptr;
    void* asker = nullptr;                     // the argument of whoever set `done`
    redis::Error error = redis::Error::kNone;  // the answer; if not kNone, nothing was decided
    Micros time = 0;                           // of the decision, by Redis' clock
    Waiting* waiting = nullptr;                // while the question is in flight
    // Called instead of `done` if the CheckBatcher is destroyed before; may be null.
    void (*lost)(Question* question) = nullptr;

    Limit& operator[](std::size_t index) const { return limits[indices[index]]; }
};

class RedisCounter;

class CheckBatcher {
  public:
    struct Options {
        std::string prefix;               // of every key
        std::uint32_t batch = 64;         // groups in a call
        Micros budget = kForever;         // of a request that has to ask several times
        RedisCounter* counter = nullptr;  // is told how large batches are; may be null
        // For debug lines; may be null.
        void (*on_send)(std::size_t groups, std::size_t keys) = nullptr;
        void (*on_reply)(std::size_t groups, redis::Error error) = nullptr;
    };

    // Takes the router over. Null if there is no memory.
    static CheckBatcher* make(redis::Router* router, const Options& options, redis::Loop* loop);
    ~CheckBatcher();
    CheckBatcher(const CheckBatcher&) = delete;
    CheckBatcher& operator=(const CheckBatcher&) = delete;

    // The slot of a limit's key: 0 where keys of all slots are in one place. Only limits of one slot can be
    // asked for together.
    redis::Slot slot_of(const Limit& limit) { return sharded_ ? slot_of_key(limit) : redis::Slot{0}; }

    // Whether Redis is worth asking for a slot.
    bool available(redis::Slot slot) const;

    // Decides and charges, all of the question's limits or none. False if there is no memory.
    bool ask(Question* question);

    // `done` is not called.
    static void forget(Question* question);

    // The answer to a question goes to a copy of it.
    static void hand_over(Question* question, Question* copy);

    // Decides and charges one limit without an answer: for a request that another limit rejected, where
    // rejected requests count.
    void count(const Limit& limit);

    // Gives back the charge of some limits of an admitted question, which have one slot. If Redis does not
    // answer, they stay charged.
    void give_back(const Limit* limits, const std::uint8_t* indices, std::size_t count);

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
    bool add(const Limit* limits, const std::uint8_t* indices, std::size_t count, bool refund,
             Question* question);
    redis::Slot slot_of_key(const Limit& limit);
    void add_key(const Limit& limit, redis::Buffer* buffer) {
        keys_.append(limit.zone->label, limit.policy->algorithm, limit.client, limit.is_short, buffer);
    }
    Batch* batch_for(const Limit& limit);
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
