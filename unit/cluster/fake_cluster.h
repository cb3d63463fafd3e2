// Fake nodes of a cluster whose replies a test sets, and calls for slots that must each be answered once.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cluster/cluster.h"
#include "redis/calls.h"

namespace rate_limit::redis {

inline std::string integer(long long number) { return ":" + std::to_string(number) + "\r\n"; }

inline std::string array(const std::vector<std::string>& elements) {
    std::string text = "*" + std::to_string(elements.size()) + "\r\n";
    for (const std::string& element : elements) {
        text += element;
    }
    return text;
}

// A range in the reply to CLUSTER SLOTS, with one replica.
inline std::string range(long long first, long long last, const std::string& host, long long port) {
    return array({integer(first), integer(last), array({bulk(host), integer(port), bulk("id"), "*0\r\n"}),
                  array({bulk("192.0.2.1"), integer(port), bulk("id"), "*0\r\n"})});
}

class FakeNode : public FakeServer {
  public:
    explicit FakeNode(TestLoop* loop, const std::string& host = "127.0.0.1") : FakeServer(loop, host) {
        answer = [this](const Words& command) {
            if (command[0] == "CLUSTER") {
                asked++;
                return map;
            }
            if (command[0] == "ASKING") {
                return std::string("+OK\r\n");
            }
            if (command[0] == "EVALSHA") {
                calls.push_back(command[3]);
                return run ? run(command) : echo_back(command);
            }
            return std::string("-ERR what?\r\n");
        };
    }

    std::string target() const { return host() + ":" + std::to_string(port()); }
    std::string range(long long first, long long last) const {
        return redis::range(first, last, host(), port());
    }
    std::string moved(HashSlot slot) const {
        return "-MOVED " + std::to_string(slot) + " " + target() + "\r\n";
    }
    std::string ask(HashSlot slot) const { return "-ASK " + std::to_string(slot) + " " + target() + "\r\n"; }

    std::string map;                 // the reply to CLUSTER SLOTS
    unsigned asked = 0;              // how often CLUSTER SLOTS came
    std::vector<std::string> calls;  // the arguments of the calls of the script
    Answer run;                      // the script; by default it returns its argument
};

inline Settings cluster_settings(Milliseconds timeout = 1000) {
    Settings settings = settings_for("", timeout);
    settings.probe_key = "probe";
    settings.connect_timeout = 200;
    return settings;
}

inline Seed seed_of(const FakeNode& node) { return {node.host(), node.port(), {node.host()}}; }

// A call and its result.
struct SlotAsked {
    HashSlot slot = 0;
    unsigned answers = 0;
    Error error = Error::kNone;
    std::string reply;
    Milliseconds sent_at = 0;
    Milliseconds took = 0;
    const TestLoop* loop = nullptr;
};

// A cluster under test.
class TestCluster {
  public:
    TestCluster(TestLoop* loop, const std::vector<Seed>& seeds, const Settings& settings = cluster_settings())
        : loop_(loop), settings_(settings), cluster_(new Cluster(settings_, seeds, loop)) {
        assert_non_null(cluster_.get());
        loop->real = true;
    }
    ~TestCluster() {
        end();
        for (const SlotAsked& asked : asked_) {
            assert_int_equal(asked.answers, 1);
        }
    }
    TestCluster(const TestCluster&) = delete;
    TestCluster& operator=(const TestCluster&) = delete;

    SlotAsked& send(HashSlot slot, const std::string& text = "x") {
        return send(slot, {"EVALSHA", sha1_of(kEcho), "0", text});
    }

    // Sends a call for a slot that has a client.
    SlotAsked& send(HashSlot slot, const Words& words) {
        Client* client = cluster_->client_of(slot);
        assert_non_null(client);
        assert_true(client->available());
        Call* call = client->make_call();
        call->command.append(command_of(words));
        call->slot = slot;
        asked_.emplace_back();
        SlotAsked& asked = asked_.back();
        asked.slot = slot;
        asked.loop = loop_;
        asked.sent_at = loop_->now();
        client->send(call, on_answer, &asked);
        assert_int_equal(asked.answers, 0);
        return asked;
    }

    const SlotAsked& ask(HashSlot slot, const std::string& text = "x") {
        const SlotAsked& asked = send(slot, text);
        assert_true(await());
        return asked;
    }

    bool await(Milliseconds most = 5000) {
        return loop_->run_until(
            [this] {
                return std::all_of(asked_.begin(), asked_.end(),
                                   [](const SlotAsked& asked) { return asked.answers != 0; });
            },
            most);
    }

    // Whether a call for the slot would be sent.
    bool available(HashSlot slot) const {
        const Client* client = cluster_->client_of(slot);
        return client != nullptr && client->available();
    }

    bool await_available(HashSlot slot, bool is = true, Milliseconds most = 5000) const {
        return loop_->run_until([&] { return available(slot) == is; }, most);
    }

    void end() { cluster_.reset(); }

    Cluster* operator->() const { return cluster_.get(); }
    const std::deque<SlotAsked>& all() const { return asked_; }

  private:
    static void on_answer(void* self, Error error, std::string_view reply) {
        auto* asked = static_cast<SlotAsked*>(self);
        asked->answers++;
        asked->error = error;
        asked->reply = reply;
        asked->took = asked->loop->now() - asked->sent_at;
    }

    TestLoop* loop_;
    Settings settings_;
    std::unique_ptr<Cluster> cluster_;
    std::deque<SlotAsked> asked_;
};

constexpr HashSlot kLeft = 100;     // a slot of the first of two nodes
constexpr HashSlot kRight = 16000;  // and one of the second

// Two nodes with half of the slots each. The map is loaded, and a call was sent to each node.
struct Pair {
    explicit Pair(Milliseconds timeout = 1000)
        : left(&loop), right(&loop), cluster(&loop, {seed_of(left)}, cluster_settings(timeout)) {
        share(8192);
        assert_int_equal(cluster.ask(kLeft).error, Error::kNone);
        assert_int_equal(cluster.ask(kRight).error, Error::kNone);
        forget();
    }

    // The left node has all slots below this one.
    void share(HashSlot border) {
        left.map = right.map = array({left.range(0, border - 1), right.range(border, 16383)});
    }

    // Allows the map to be loaded at once, and resets the counters.
    void forget() {
        loop.jump(200);
        loop.turn(false);
        for (FakeNode* node : {&left, &right}) {
            node->asked = 0;
            node->calls.clear();
            node->commands.clear();
        }
    }

    unsigned asked() const { return left.asked + right.asked; }

    TestLoop loop;
    FakeNode left;
    FakeNode right;
    TestCluster cluster;
};

}  // namespace rate_limit::redis
