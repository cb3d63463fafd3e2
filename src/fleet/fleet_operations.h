// What an API call does on the whole fleet: reset a client, change a rate, look for a client, correct what a
// client has used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "connection/error.h"
#include "fleet/fleet_changes.h"
#include "fleet/fleet_commands.h"
#include "fleet/fleet_zone.h"
#include "redis/router.h"

namespace rate_limit {

// A sequence of commands. Each is sent after the reply to the one before, so that they take effect in their
// order even if different servers have their keys. The first error ends the operation. Belongs to one thread.
class FleetOperation {
  public:
    using Done = void (*)(void* self);

    virtual ~FleetOperation() = default;
    FleetOperation(const FleetOperation&) = delete;
    FleetOperation& operator=(const FleetOperation&) = delete;

    // Sends the first command. Calls `done` once, possibly before start() returns. The operation and the
    // router must live until then: destroying the router ends the operation with an error.
    void start(redis::Router* router, Done done, void* self);

    // After `done` was called: kNone if all commands succeeded.
    redis::Error error() const { return error_; }

  protected:
    FleetOperation() = default;

    // The commands at the start.
    virtual std::vector<FleetCommand> commands(bool sharded) const = 0;

    // Command `index` has succeeded.
    virtual void on_reply(std::size_t index, std::string_view reply) = 0;

    // A command has failed.
    virtual void on_error(redis::Error) {}

    // For on_reply() of the last command: the reply is not valid.
    void fail(redis::Error error) { error_ = error; }

    // Adds a command after all others.
    void add(FleetCommand command) { commands_.push_back(std::move(command)); }

  private:
    static void on_answer(void* self, redis::Error error, std::string_view reply);
    void send_next();

    std::vector<FleetCommand> commands_;
    std::size_t next_ = 0;  // the index of the command in flight
    redis::Router* router_ = nullptr;
    redis::Error error_ = redis::Error::kNone;
    Done done_ = nullptr;
    void* self_ = nullptr;
};

// What an operation works on. All that is referred to must outlive the operation.
struct OperationTarget {
    FleetZone zone;
    std::string prefix;  // of every key
    const Process* process;
};

// Resets a client in Redis, in this instance and in the others: deletes the key in Redis, then tells the
// other instances, then forgets the client in this instance. After an error, the steps that follow are left
// out. An instance whose table had a state of the client may have sent a count to Redis meanwhile; it deletes
// the key again.
class ClientReset final : public FleetOperation {
  public:
    // `instance` is the id of this instance.
    ClientReset(OperationTarget target, std::uint64_t instance, std::string client);

    // Whether Redis or this instance had a state of the client.
    bool known() const { return known_; }

    // Whether this instance had a state of the client and has forgotten it. If error() is not kNone then,
    // Redis may still have a state.
    bool forgotten() const { return forgotten_; }

  private:
    std::vector<FleetCommand> commands(bool sharded) const override;
    void on_reply(std::size_t index, std::string_view reply) override;
    FleetCommand deletion() const;

    OperationTarget target_;
    std::uint64_t instance_;
    std::string client_;
    bool known_ = false;
    bool forgotten_ = false;
};

// Changes the rate of a zone in Redis, and then in this instance.
class RateChange final : public FleetOperation {
  public:
    // With null `rates`, the rate is set back to the configuration.
    RateChange(OperationTarget target, FleetChangesState* state, const RateList* rates);

    // Of this instance; empty after an error.
    const RateTexts& texts() const { return texts_; }

  private:
    std::vector<FleetCommand> commands(bool sharded) const override;
    void on_reply(std::size_t index, std::string_view reply) override;

    OperationTarget target_;
    FleetChangesState* state_;
    bool restores_;
    RateList rates_ = {};
    RateTexts texts_;
};

// Whether there is a state of a client.
enum class Known : std::uint8_t { kNo, kYes, kUnsure };

// Looks for the state of a client in this instance, and then in Redis.
class ClientLookup final : public FleetOperation {
  public:
    // `*denied_at` is when Redis last denied a lookup of this process because the user lacks the right; 0 if
    // it never did. Null if the zone has no Redis.
    ClientLookup(OperationTarget target, std::string client, Micros* denied_at);

    // Looks in this instance. True if there is no use in start(): the client was found, the zone has no
    // Redis, or Redis has denied a lookup lately.
    bool find_here();

    // The result; kUnsure if Redis could not be asked.
    Known known() const { return known_; }

  private:
    std::vector<FleetCommand> commands(bool sharded) const override;
    void on_reply(std::size_t index, std::string_view reply) override;
    void on_error(redis::Error error) override;

    OperationTarget target_;
    std::string client_;
    Micros* denied_at_;
    Known known_ = Known::kNo;
};

// Charges a client in Redis, even if that does not fit, up to debt_of() the policy; or gives back its newest
// requests that still count.
class ClientCorrection final : public FleetOperation {
  public:
    // The router of start() is for calls of kScript. `policy` has the rates of the client.
    ClientCorrection(OperationTarget target, const Policy& policy, std::string client, bool gives_back,
                     std::uint64_t amount);

    // What a request of cost 0 is told after the correction, and the time of Redis then.
    const Decision& decision() const { return decision_; }
    Micros time() const { return time_; }

  private:
    std::vector<FleetCommand> commands(bool sharded) const override;
    void on_reply(std::size_t index, std::string_view reply) override;

    OperationTarget target_;
    Policy policy_;
    std::string client_;
    bool gives_back_;
    std::uint64_t amount_;
    Decision decision_ = {};
    Micros time_ = 0;
};

}  // namespace rate_limit
