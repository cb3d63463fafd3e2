// Questions to a fake Redis that parses the calls of the script. Each question must be answered exactly once.
#pragma once

#include <memory>

#include "script_server.h"

namespace rate_limit {

inline const Policy kPolicy = policy_of(Algorithm::kSlidingWindow, "10r/m");
inline const StateLayout kShape = layout_of(kPolicy);

// A question; owns its limits, zones and names.
struct Asking {
    struct Text {
        std::string zone;
        std::string client;
    };

    explicit Asking(const std::string& client = "alice", std::uint32_t cost = 1, std::size_t count = 1) {
        for (std::size_t i = 0; i < count; i++) {
            add(i == 0 ? "api" : "zone" + std::to_string(i), client, kPolicy, kShape, cost);
        }
        question.asker = this;
        question.done = [](Question* question) {
            auto* self = static_cast<Asking*>(question->asker);
            self->answers++;
            self->place = places++;
            if (self->then) {
                self->then();
            }
        };
    }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

    void add(const std::string& zone, const std::string& client, const Policy& policy,
             const StateLayout& layout, std::uint32_t cost = 1) {
        texts.push_back({zone, client});
        zones.push_back({});
        zones.back().label = texts.back().zone;
        zones.back().layout = layout;
        limits.push_back({&zones.back(), &policy, texts.back().client, cost, false, false, {}, {}, {}});
        question.limits = limits.data();
        question.indices[question.count] = static_cast<std::uint8_t>(question.count);
        question.count++;
    }

    const Decision& decision(std::size_t index = 0) const { return limits[index].decision; }

    static inline unsigned places = 0;

    std::deque<Text> texts;
    std::deque<StoreZone> zones;
    std::vector<Limit> limits;
    Question question;
    unsigned answers = 0;
    unsigned place = 0;
    std::function<void()> then;
};

// Questions that must each be answered exactly once.
class Questions {
  public:
    Questions(const TestRemote& batcher, redis::TestLoop* loop) : batcher_(batcher), loop_(loop) {}
    ~Questions() {
        for (const auto& asking : all_) {
            assert_int_equal(asking->answers, 1);
        }
    }
    Questions(const Questions&) = delete;
    Questions& operator=(const Questions&) = delete;

    Asking& ask(const std::string& client = "alice", std::uint32_t cost = 1, std::size_t count = 1) {
        all_.push_back(std::make_unique<Asking>(client, cost, count));
        return send();
    }

    Asking& ask(const Policy& policy, const StateLayout& layout) {
        all_.push_back(std::make_unique<Asking>("alice", 1, 0));
        all_.back()->add("api", "alice", policy, layout);
        return send();
    }

    bool await(redis::Milliseconds most = 5000) {
        return loop_->run_until(
            [this] {
                return std::all_of(all_.begin(), all_.end(),
                                   [](const auto& asking) { return asking->answers != 0; });
            },
            most);
    }

    Asking& operator[](std::size_t index) const { return *all_[index]; }
    std::size_t size() const { return all_.size(); }

  private:
    Asking& send() {
        Asking& asking = *all_.back();
        assert_true(batcher_->ask(&asking.question));
        assert_int_equal(asking.answers, 0);
        return asking;
    }

    const TestRemote& batcher_;
    redis::TestLoop* loop_;
    std::vector<std::unique_ptr<Asking>> all_;
};

// A fake server, a connected batcher, and questions to it.
struct Scene {
    explicit Scene(std::uint32_t batch = 64, redis::Milliseconds timeout = 2000)
        : server(&loop), batcher(&loop, server.server.path(), batch, timeout), questions(batcher, &loop) {
        warm_up();
    }

    void warm_up() {
        Asking first;
        assert_true(batcher->ask(&first.question));
        assert_true(loop.run_until([&] { return first.answers == 1; }));
        server.calls.clear();
    }

    redis::TestLoop loop;
    ScriptServer server;
    TestRemote batcher;
    Questions questions;
};

}  // namespace rate_limit
