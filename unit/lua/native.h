// The commands of src/server, without a server: their keys are in memory, and the test sets the time.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/check_command.h"
#include "server/keys.h"
#include "server/sync_command.h"

namespace rate_limit {

// A key: its value, and the time until which it exists, in microseconds.
struct StoredKey {
    std::string value;
    Micros expires = 0;
};

class MemoryKeys final : public CommandKeys {
  public:
    MemoryKeys(std::map<std::string, StoredKey>* stored, std::vector<std::string> names, Micros now)
        : stored_(stored), names_(std::move(names)) {
        std::map<std::string, int> counts;
        for (const std::string& name : names_) {
            const auto found = stored_->find(name);
            if (found != stored_->end() && found->second.expires <= now) {
                stored_->erase(found);
            }
            repeated_ = repeated_ || ++counts[name] > 1;
        }
    }

    std::string_view value(std::size_t position) override {
        const auto found = stored_->find(names_.at(position));
        return found != stored_->end() ? std::string_view(found->second.value) : std::string_view();
    }

    void write(std::size_t position, std::string_view value, Micros expires) override {
        StoredKey& key = (*stored_)[names_.at(position)];
        key.value = std::string(value);
        key.expires = expires != kKeepExpiry ? expires : key.expires;
    }

    void remove(std::size_t position) override { stored_->erase(names_.at(position)); }

    bool repeated() const override { return repeated_; }

  private:
    std::map<std::string, StoredKey>* stored_;
    std::vector<std::string> names_;
    bool repeated_ = false;
};

// A server without a network.
class NativeServer {
  public:
    // Runs a check with these keys, POLICIES and GROUPS. Returns the reply, or the error.
    std::string check(const std::vector<std::string>& keys, const std::string& policies,
                      const std::string& groups, Micros now) {
        const char* wrong = check_->read(policies, groups, keys.size());
        if (wrong != nullptr) {
            return wrong;
        }
        MemoryKeys memory(&stored_, keys, now);
        return std::string(check_->run(&memory, now));
    }

    // Runs a sync call. The last key is the guard.
    std::string sync(const std::vector<std::string>& keys, const SyncCommand::Arguments& arguments,
                     Micros now) {
        const char* wrong = sync_->read(arguments, keys.size() - 1);
        if (wrong != nullptr) {
            return wrong;
        }
        MemoryKeys memory(&stored_, keys, now);
        const std::size_t room = sync_->reply_room();
        std::string reply(room, '\0');
        const std::size_t size = sync_->run(&memory, keys.back(), now, reply.data());
        if (size > room) {
            std::abort();
        }
        reply.resize(size);
        return reply;
    }

    std::map<std::string, StoredKey>& stored() { return stored_; }

  private:
    std::map<std::string, StoredKey> stored_;
    std::unique_ptr<CheckCommand> check_ = std::make_unique<CheckCommand>();
    std::unique_ptr<SyncCommand> sync_ = std::make_unique<SyncCommand>();
};

}  // namespace rate_limit
