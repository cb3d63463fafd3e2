// Questions to a fake Redis that parses the calls of the script. Each question must be answered exactly once.
#pragma once

#include <memory>

#include "script_server.h"

namespace rate_limit {

inline const Policy kPolicy = policy_of(Algorithm::kSlidingWindow, "10r/m");
inline const StateLayout kLayout = layout_of(kPolicy);

// A question; owns its limits, zones and names.
struct TestQuestion {
    struct Text {
        std::string zone;
        std::string client;
    };

    explicit TestQuestion(const std::string& client = "alice", std::uint64_t cost = 1,
                          std::size_t count = 1) {
        for (std::size_t i = 0; i < count; i++) {
            add(i == 0 ? "api" : "zone" + std::to_string(i), client, kPolicy, kLayout, cost);
        }
        question.data = this;
        question.done = [](Question* question) {
            auto* self = static_cast<TestQuestion*>(question->data);
            self->answers++;
            self->position = positions++;
            if (self->then) {
                self->then();
            }
        };
    }
    TestQuestion(const TestQuestion&) = delete;
    TestQuestion& operator=(const TestQuestion&) = delete;

    void add(const std::string& zone, const std::string& client, const Policy& policy,
             const StateLayout& layout, std::uint64_t cost = 1) {
        texts.push_back({zone, client});
        zones.push_back({});
        zones.back().label = texts.back().zone;
        zones.back().layout = layout;
        limits.push_back({&zones.back(),
                          &policy,
                          texts.back().client,
                          cost,
                          nullptr,
                          false,
                          false,
                          {},
                          {},
                          {},
                          0,
                          false,
                          0});
        question.limits = limits.data();
        question.indices[question.count] = static_cast<std::uint8_t>(question.count);
        question.count++;
    }

    const Decision& decision(std::size_t index = 0) const { return limits[index].decision; }

    static inline unsigned positions = 0;

    std::deque<Text> texts;
    std::deque<StoreZone> zones;
    std::vector<Limit> limits;
    Question question;
    unsigned answers = 0;
    unsigned position = 0;
    std::function<void()> then;
};

// Questions that must each be answered exactly once.
class Questions {
  public:
    Questions(const TestBatcher& batcher, redis::TestLoop* loop) : batcher_(batcher), loop_(loop) {}
    ~Questions() {
        for (const auto& asked : all_) {
            assert_int_equal(asked->answers, 1);
        }
    }
    Questions(const Questions&) = delete;
    Questions& operator=(const Questions&) = delete;

    TestQuestion& ask(const std::string& client = "alice", std::uint64_t cost = 1, std::size_t count = 1) {
        all_.push_back(std::make_unique<TestQuestion>(client, cost, count));
        return send();
    }

    TestQuestion& ask(const Policy& policy, const StateLayout& layout) {
        all_.push_back(std::make_unique<TestQuestion>("alice", 1, 0));
        all_.back()->add("api", "alice", policy, layout);
        return send();
    }

    bool await(redis::Milliseconds most = 5000) {
        return loop_->run_until(
            [this] {
                return std::all_of(all_.begin(), all_.end(),
                                   [](const auto& asked) { return asked->answers != 0; });
            },
            most);
    }

    TestQuestion& operator[](std::size_t index) const { return *all_[index]; }
    std::size_t size() const { return all_.size(); }

  private:
    TestQuestion& send() {
        TestQuestion& asked = *all_.back();
        assert_true(batcher_->ask(&asked.question));
        assert_int_equal(asked.answers, 0);
        return asked;
    }

    const TestBatcher& batcher_;
    redis::TestLoop* loop_;
    std::vector<std::unique_ptr<TestQuestion>> all_;
};

// A fake server, a connected batcher, and questions to it.
struct Scene {
    explicit Scene(std::uint32_t batch = 64, redis::Milliseconds timeout = 2000)
        : server(&loop), batcher(&loop, server.server.path(), batch, timeout), questions(batcher, &loop) {
        warm_up();
    }

    void warm_up() {
        TestQuestion first;
        assert_true(batcher->ask(&first.question));
        assert_true(loop.run_until([&] { return first.answers == 1; }));
        server.calls.clear();
    }

    redis::TestLoop loop;
    ScriptServer server;
    TestBatcher batcher;
    Questions questions;
};

}  // namespace rate_limit
