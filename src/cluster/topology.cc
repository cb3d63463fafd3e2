// Sends CLUSTER SLOTS to nodes in turn, and reads the reply.
#include "cluster/topology.h"

#include <hiredis/async.h>

#include <utility>

#include "connection/command.h"
#include "connection/resolver.h"

namespace rate_limit::redis {
namespace {

bool is_integer(const redisReply& reply, long long most) {
    return reply.type == REDIS_REPLY_INTEGER && reply.integer >= 0 && reply.integer <= most;
}

// Reads [first, last, [host, port, ...], replicas...]. An empty host means the node that has answered.
bool read_range(const redisReply& reply, const Endpoint::Target& asked, SlotRange* range) {
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements < 3 ||
        !is_integer(*reply.element[0], kHashSlots - 1) || !is_integer(*reply.element[1], kHashSlots - 1)) {
        return false;
    }
    const redisReply& master = *reply.element[2];
    if (master.type != REDIS_REPLY_ARRAY || master.elements < 2 || !is_integer(*master.element[1], 65535)) {
        return false;
    }
    const redisReply& host = *master.element[0];
    const bool named = host.type == REDIS_REPLY_STRING && host.len != 0;
    if (named ? !is_host({host.str, host.len})
              : host.type != REDIS_REPLY_STRING && host.type != REDIS_REPLY_NIL) {
        return false;
    }
    range->first = static_cast<HashSlot>(reply.element[0]->integer);
    range->last = static_cast<HashSlot>(reply.element[1]->integer);
    range->port = static_cast<std::uint16_t>(master.element[1]->integer);
    range->host = named ? std::string(host.str, host.len) : asked.address;
    range->name = named ? range->host : asked.name;
    return range->first <= range->last && range->port != 0;
}

}  // namespace

Topology::Topology(const Settings& settings, Loop* loop, Owner* owner)
    : settings_(settings),
      connection_(settings, loop, this),
      owner_(owner),
      timer_(loop->make_timer([](void* self) { static_cast<Topology*>(self)->on_timer(); }, this, false)) {}

Topology::~Topology() {
    connection_.close();
    delete timer_;
}

void Topology::ask(std::vector<Endpoint::Target> nodes) {
    nodes_ = std::move(nodes);
    next_ = 0;
    // The timer connects: connecting may fail at once, and the owner must not be called from ask().
    timer_->arm(0);
}

void Topology::on_timer() {
    if (connection_.connected()) {
        fail(Error::kTimedOut, connection_.ready() ? "no answer" : connection_.awaited());
        return;
    }
    ask_next();
}

void Topology::ask_next() {
    if (next_ == nodes_.size()) {
        fail(Error::kUnresolved, "no node is known");
        return;
    }
    std::string line;
    if (!connection_.open(nodes_[next_++], &line)) {
        fail(Error::kRefused, line);
        return;
    }
    timer_->arm(settings_.connect_timeout);
}

void Topology::fail(Error error, std::string_view line) {
    const std::string kept(line);
    connection_.close();
    if (next_ < nodes_.size()) {
        timer_->arm(0);
        return;
    }
    timer_->disarm();
    const std::string where =
        nodes_.empty() ? "cluster" : print_target(nodes_.back().address, nodes_.back().port);
    nodes_.clear();
    owner_->on_no_ranges(where, error, kept);
}

void Topology::on_ready() {
    if (!connection_.send(format_command({"CLUSTER", "SLOTS"}), on_slots, this)) {
        fail(Error::kOutOfMemory, "out of memory");
    }
}

void Topology::on_lost(Error error, std::string_view line) { fail(error, line); }

void Topology::on_slots(redisAsyncContext*, void* answer, void* self_pointer) {
    auto* self = static_cast<Topology*>(self_pointer);
    const auto* reply = static_cast<const redisReply*>(answer);
    if (reply == nullptr) {
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY) {
        const bool is_error = reply->type == REDIS_REPLY_ERROR;
        const std::string_view text =
            is_error ? std::string_view(reply->str, reply->len) : "unexpected reply to CLUSTER SLOTS";
        self->fail(is_error ? classify(text) : Error::kShape, text);
        return;
    }
    std::vector<SlotRange> ranges;
    for (std::size_t i = 0; i < reply->elements; i++) {
        SlotRange range;
        if (read_range(*reply->element[i], self->nodes_[self->next_ - 1], &range)) {
            ranges.push_back(std::move(range));
        }
    }
    if (ranges.empty()) {
        self->fail(Error::kClusterDown, "the node knows no slots");
        return;
    }
    self->timer_->disarm();
    self->nodes_.clear();
    self->connection_.close();
    self->owner_->on_ranges(ranges);
}

}  // namespace rate_limit::redis
