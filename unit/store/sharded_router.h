// A router that distributes keys over two servers by their slots, as in a cluster.
#pragma once

#include <memory>
#include <string>

#include "requests.h"

namespace rate_limit {

constexpr redis::HashSlot kBorder = 8192;  // the first slot of the right server

inline bool is_left(const std::string& client) { return redis::hash_slot_of(client) < kBorder; }

// The first name from `number` on for which `fits` is true.
template <class Fits>
std::string name_where(Fits fits, unsigned number = 0) {
    while (!fits("client" + std::to_string(number))) {
        number++;
    }
    return "client" + std::to_string(number);
}

class ShardedRouter final : public redis::Router {
  public:
    ShardedRouter(redis::TestLoop* loop, const std::string& left, const std::string& right,
                  redis::Milliseconds timeout = 2000)
        : left_settings_(script_settings(left, timeout)),
          right_settings_(script_settings(right, timeout)),
          left_(redis::Client::make(left_settings_, {}, loop)),
          right_(redis::Client::make(right_settings_, {}, loop)) {}

    bool sharded() const override { return true; }
    redis::Client* client_of(redis::HashSlot slot) override {
        const bool left = slot < kBorder && !all_right;
        return (left ? left_absent : right_absent) ? nullptr : (left ? left_ : right_).get();
    }

    bool left_absent = false;  // its slots have no server
    bool right_absent = false;
    bool all_right = false;  // the right server has all slots

  private:
    redis::Settings left_settings_;
    redis::Settings right_settings_;
    std::unique_ptr<redis::Client> left_;
    std::unique_ptr<redis::Client> right_;
};

// Both servers, a connected batcher, a client name for each server, and a zone in memory.
struct SplitScene {
    explicit SplitScene(std::uint32_t batch = 64, redis::Milliseconds timeout = 2000)
        : left(&loop),
          right(&loop),
          router(new ShardedRouter(&loop, left.server.path(), right.server.path(), timeout)),
          batcher(new CheckBatcher(router, {"rate_limit:", batch}, &loop)),
          zone(kPolicy) {
        for (const std::string* client : {&lefty, &righty}) {
            const Request request({of(*client)});
            assert_int_equal(request.in_the_end(&loop), Progress::kAdmitted);
        }
        left.calls.clear();
        right.calls.clear();
    }

    TestLimit of(const std::string& client, OnError on_error = OnError::kOpen,
                 const char* name = "api") const {
        TestLimit limit = {nullptr, batcher.get(), on_error};
        limit.client = client.c_str();
        limit.name = name;
        return limit;
    }

    std::size_t refunds() const { return left.refunds().size() + right.refunds().size(); }

    // Names of clients in different slots.
    const std::string lefty = name_where(is_left);
    const std::string righty = name_where([](const std::string& name) { return !is_left(name); });
    redis::TestLoop loop;
    ScriptServer left;
    ScriptServer right;
    ShardedRouter* router;  // owned by the batcher
    std::unique_ptr<CheckBatcher> batcher;
    Zone zone;
};

inline std::string key_of(const std::string& client, const std::string& name = "api") {
    return "rate_limit:" + name + ":sliding_window:{" + client + "}";
}

}  // namespace rate_limit
