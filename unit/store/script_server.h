// A server that takes the script's calls apart and decides as a test tells it, and questions to it.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "client.h"
#include "protocol/script_text.h"
#include "redis/calls.h"
#include "store/check_batcher.h"

namespace rate_limit {

// A limit of a group, as it came.
struct SeenLimit {
    std::string key;
    std::string policy;  // its record
    unsigned index;      // of the policy
    std::uint32_t cost;
};

struct SeenGroup {
    bool refund;
    std::vector<SeenLimit> limits;
};

// One call of the script.
struct SeenCall {
    std::vector<std::string> policies;
    std::vector<SeenGroup> groups;
    std::size_t keys;
    bool declared;  // they are
};

inline std::uint64_t number_at(const std::string& text, std::size_t at, std::size_t bytes) {
    std::uint64_t number = 0;
    assert_true(at + bytes <= text.size());
    for (std::size_t i = 0; i < bytes; i++) {
        number |= std::uint64_t{static_cast<unsigned char>(text[at + i])} << (8 * i);
    }
    return number;
}

inline std::string packed(std::uint64_t number, std::size_t bytes) {
    std::string text;
    for (std::size_t i = 0; i < bytes; i++) {
        text.push_back(static_cast<char>(number >> (8 * i) & 0xff));
    }
    return text;
}

inline std::string admit(std::uint32_t remaining = 5, Micros reset = 90 * kSecond) {
    return packed(8, 1) + packed(remaining, 4) + packed(static_cast<std::uint64_t>(reset), 7);
}

inline std::string reject(Micros retry = 30 * kSecond, Micros reset = 60 * kSecond,
                          std::uint32_t remaining = 0) {
    return packed(16, 1) + packed(remaining, 4) + packed(static_cast<std::uint64_t>(reset), 7) +
           packed(static_cast<std::uint64_t>(retry), 7) + packed(1000, 8);
}

class ScriptServer {
  public:
    static constexpr Micros kTime = 1'700'000'000'123'456;

    explicit ScriptServer(redis::TestLoop* loop) : server(loop) {
        server.answer = [this](const redis::Words& command) {
            return command[0] == "EVALSHA" && command[1] == kScriptSha1 ? run(command) : "-ERR what?\r\n";
        };
    }

    std::size_t groups() const {
        std::size_t count = 0;
        for (const SeenCall& call : calls) {
            count += call.groups.size();
        }
        return count;
    }

    std::vector<SeenGroup> refunds() const {
        std::vector<SeenGroup> found;
        for (const SeenCall& call : calls) {
            for (const SeenGroup& group : call.groups) {
                if (group.refund) {
                    found.push_back(group);
                }
            }
        }
        return found;
    }

    redis::FakeServer server;
    std::vector<SeenCall> calls;
    std::function<std::string(const SeenLimit& limit)> decide = [](const SeenLimit&) { return admit(); };
    // Whether it does not have the slots of all keys that a call has not declared; such calls are not in
    // `calls`.
    std::function<bool(const redis::Words& keys)> elsewhere;
    std::size_t refused = 0;                                                  // of those
    std::function<std::string(const std::string& reply)> send = redis::bulk;  // the last word on a reply

  private:
    std::string run(const redis::Words& command) {
        const std::size_t declared = std::stoul(command[2]);
        const std::size_t count = command.size() - 5;
        assert_true(declared == 0 || declared == count);
        SeenCall call = {split(command[declared + 3]), {}, count, declared != 0};
        const std::string& groups = command[declared + 4];
        std::string reply = packed(kTime, 8);
        std::size_t key = declared != 0 ? 3 : 5;
        const std::size_t end = key + count;
        if (declared == 0 && elsewhere && elsewhere({command.begin() + 5, command.end()})) {
            refused++;
            return redis::bulk("");
        }
        for (std::size_t at = 0; at < groups.size();) {
            const auto kind = static_cast<unsigned>(number_at(groups, at++, 1));
            SeenGroup group = {kind >= 128, {}};
            for (unsigned i = 0; i < kind % 128; i++, at += 5) {
                const auto index = static_cast<unsigned>(number_at(groups, at, 1));
                assert_true(index < call.policies.size() && key < end);
                group.limits.push_back({command[key++], call.policies[index], index,
                                        static_cast<std::uint32_t>(number_at(groups, at + 1, 4))});
                reply += group.refund ? "" : decide(group.limits.back());
            }
            call.groups.push_back(group);
        }
        assert_int_equal(key, end);
        calls.push_back(call);
        return send(reply);
    }

    static std::vector<std::string> split(const std::string& text) {
        std::vector<std::string> records;
        for (std::size_t at = 0; at < text.size(); at += records.back().size()) {
            records.push_back(text.substr(at, 24 + 12 * number_at(text, at + 2, 1)));
        }
        return records;
    }
};

inline redis::Settings script_settings(const std::string& path, redis::Milliseconds timeout = 2000) {
    redis::Settings settings = redis::settings_for(path, timeout);
    settings.script = {kScript, sizeof kScript - 1};
    return settings;
}

// A worker's way to a Redis, which tests may end early.
class TestRemote {
  public:
    TestRemote(redis::TestLoop* loop, const std::string& path, std::uint32_t batch = 64,
               redis::Milliseconds timeout = 2000)
        : settings_(script_settings(path, timeout)),
          batcher_(
              CheckBatcher::make(redis::Client::make(settings_, {}, loop), {"rate_limit:", batch}, loop)) {
        assert_non_null(batcher_);
    }
    ~TestRemote() { end(); }
    TestRemote(const TestRemote&) = delete;
    TestRemote& operator=(const TestRemote&) = delete;

    void end() {
        delete batcher_;
        batcher_ = nullptr;
    }

    // As nginx has it for requests.
    void use_spare() { settings_.spare = true; }

    CheckBatcher* operator->() const { return batcher_; }
    CheckBatcher* get() const { return batcher_; }
    std::uint64_t errors(redis::Error error) const {
        return batcher_->router().client_of(0)->counts().errors[static_cast<unsigned>(error)];
    }

  private:
    redis::Settings settings_;
    CheckBatcher* batcher_;
};

}  // namespace rate_limit
