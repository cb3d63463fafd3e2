// Sends heartbeats, and reads the number of instances from the replies.
#include "fleet/heartbeat.h"

#include <charconv>

#include "connection/command.h"
#include "core/client_name.h"
#include "fleet/fleet_commands.h"
#include "protocol/key_writer.h"
#include "protocol/script_text.h"

namespace rate_limit {
namespace {

// How many replies in a row must have a lower number of instances before it is believed. After Redis was down
// or has lost its data, the first instance is alone until the others have sent a heartbeat.
constexpr unsigned kFewerReplies = 3;

// How many heartbeats ask for the rank once. If one instance goes and another comes, the number is the same
// but ranks may change.
constexpr unsigned kRankEvery = 10;

constexpr std::uint32_t kMostInstances = 1'000'000;

// Reads "3 1".
bool read_share(std::string_view text, Share* share) {
    const char* end = text.data() + text.size();
    const auto instances = std::from_chars(text.data(), end, share->instances);
    if (instances.ec != std::errc() || instances.ptr == end || *instances.ptr != ' ') {
        return false;
    }
    const auto rank = std::from_chars(instances.ptr + 1, end, share->rank);
    return rank.ec == std::errc() && rank.ptr == end && share->rank < share->instances &&
           share->instances <= kMostInstances;
}

}  // namespace

Heartbeat::Heartbeat(Membership* membership, std::string_view prefix, redis::Router* router,
                     redis::Loop* loop, const Process& process)
    : PeriodicTask(&membership->leader(), kEvery, router, loop, process),
      membership_(membership),
      key_(std::string(prefix) + "instances"),
      slot_(redis::hash_slot_of(key_)) {}

Heartbeat* Heartbeat::make(Membership* membership, std::string_view prefix, redis::Router* router,
                           redis::Loop* loop, const Process& process, redis::Milliseconds after) {
    auto* heartbeat = new Heartbeat(membership, prefix, router, loop, process);
    heartbeat->start(after);
    return heartbeat;
}

void Heartbeat::run() {
    if (in_flight_) {
        return;
    }
    const Share known = calls_ % kRankEvery != 0 ? membership_->share() : Share{0, 0};
    const std::string id = print_id(membership_->id());
    const std::string instances = std::to_string(known.instances);
    const std::string rank = std::to_string(known.rank);
    in_flight_ = send_command({redis::format_eval(kHeartbeatScript, {key_}, {id, instances, rank}), slot_},
                              router(), on_answer, this);
    if (in_flight_) {
        calls_++;
    } else {
        membership_->set_away();
    }
}

void Heartbeat::on_answer(void* self, redis::Error error, std::string_view reply) {
    static_cast<Heartbeat*>(self)->on_answer(error, reply);
}

void Heartbeat::on_answer(redis::Error error, std::string_view reply) {
    in_flight_ = false;
    Share share;
    if (error != redis::Error::kNone || !read_share(reply, &share)) {
        membership_->set_away();
        return;
    }
    membership_->set_answering(process().clock());
    const bool fewer = share.instances < membership_->share().instances;
    fewer_ = fewer ? fewer_ + 1 : 0;
    if (!fewer || fewer_ >= kFewerReplies) {
        membership_->set_share(share);
    }
}

}  // namespace rate_limit
