// The groups of a call while a batcher collects and sends them. Only check_batcher.cc includes this file.
#pragma once

#include <cstddef>

#include "connection/buffer.h"
#include "protocol/policy_list.h"
#include "store/check_batcher.h"

namespace rate_limit {

// A group in a batch that waits for its part of the reply. Outlives the question, which may be forgotten.
struct Waiting {
    Question* question;
    std::size_t limits;
    GroupKind kind;
    Waiting* next;
};

// The groups of one call.
struct CheckBatcher::Batch {
    CheckBatcher* batcher = nullptr;
    Node* node = nullptr;           // where the keys are; null if all keys are of `client`
    redis::HashSlot slot = 0;       // of the first key
    redis::Milliseconds since = 0;  // when the first check was added, or the first group if there is none
    redis::Buffer client;           // only set if there is no node
    std::size_t groups = 0;
    std::size_t checks = 0;  // groups without those that settle, for which no request waits
    std::size_t keys = 0;
    redis::Buffer key_texts;  // in RESP
    PolicyList policies;
    redis::Buffer group_texts;
    bool storable = true;  // native commands can read and write all states
    Waiting* first = nullptr;
    Waiting* last = nullptr;
    Batch* next = nullptr;
};

// A server whose clients share one batch.
struct CheckBatcher::Node {
    const redis::Client* client;      // identifies the server; may be dangling
    Batch* open;                      // the batch that is being filled; may be null
    std::size_t in_flight;            // groups in flight
    std::size_t checks_in_flight;     // see Batch
    redis::Milliseconds split_until;  // until then, each client gets its own batch
    Node* next;
    Node* next_open;

    // True while more checks are in flight than have been collected: sending now would only queue behind
    // them, so the next reply triggers one larger call. A batch that is as large as those in flight is sent
    // at once, so several batches are in flight, and neither Redis nor the worker is idle.
    bool must_wait() const { return open->checks < checks_in_flight; }
};

}  // namespace rate_limit
