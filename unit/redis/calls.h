// A client under test, with calls that must each be answered exactly once.
#pragma once

#include <openssl/evp.h>

#include <deque>
#include <memory>
#include <string>

#include "fake_server.h"
#include "redis/client.h"
#include "test_loop.h"

namespace rate_limit::redis {

// The script of these tests returns its argument.
constexpr std::string_view kEcho = "return ARGV[1]";

// The reply of the script to a command.
inline std::string echo_back(const Words& command) { return command[0] == "EVALSHA" ? bulk(command[3]) : ""; }

inline std::string sha1_of(std::string_view text) {
    unsigned char digest[20];
    EVP_Digest(text.data(), text.size(), digest, nullptr, EVP_sha1(), nullptr);
    std::string hex;
    for (const unsigned char byte : digest) {
        hex += "0123456789abcdef"[byte >> 4];
        hex += "0123456789abcdef"[byte & 15];
    }
    return hex;
}

inline Settings settings_for(const std::string& path, Milliseconds timeout = 1000) {
    Settings settings;
    settings.name = "fleet";
    settings.address.path = path;
    settings.script = kEcho;
    settings.probe = command_of({"SET", "probe", "1", "PX", "1"});
    settings.timeout = timeout;
    settings.connect_timeout = 1000;
    return settings;
}

class Calls;

// A call and its result.
struct Asked {
    Calls* owner = nullptr;
    unsigned answers = 0;
    Error error = Error::kNone;
    std::string reply;
    Milliseconds sent_at = 0;
    Milliseconds took = 0;
    unsigned position = 0;  // its position in the order of answers
};

class Calls {
  public:
    Calls(const Settings& settings, TestLoop* loop, const std::vector<std::string>& addresses = {})
        : settings_(settings), loop_(loop), client_(Client::make(settings_, addresses, loop)) {
        assert_non_null(client_);
        loop->real = loop->real || !settings.address.host.empty();
    }
    Calls(const Settings& settings, TestLoop* loop, std::unique_ptr<Endpoint> endpoint)
        : settings_(settings), loop_(loop), client_(Client::make_with(settings_, std::move(endpoint), loop)) {
        assert_non_null(client_);
    }
    ~Calls() {
        end();
        for (const Asked& asked : asked_) {
            assert_int_equal(asked.answers, 1);
        }
    }
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;

    Asked& send(const Words& words, std::string_view native = {}) {
        Call* call = client_->make_call();
        assert_non_null(call);
        call->native = native;
        call->command.append(command_of(words));
        asked_.push_back({});
        Asked& asked = asked_.back();
        asked.owner = this;
        asked.sent_at = loop_->now();
        sending_ = true;
        client_->send(call, on_answer, &asked);
        sending_ = false;
        return asked;
    }

    Asked& echo(const std::string& text) { return send({"EVALSHA", sha1_of(kEcho), "0", text}); }

    // Sends and waits for the answer.
    const Asked& ask(const Words& words) {
        const Asked& asked = send(words);
        assert_true(await());
        return asked;
    }

    const Asked& ask_echo(const std::string& text) { return ask({"EVALSHA", sha1_of(kEcho), "0", text}); }

    // Runs the loop until every call is answered.
    bool await(Milliseconds most = 5000) {
        return loop_->run_until([this] { return answered_ == asked_.size(); }, most);
    }

    bool await_open(bool open = true, Milliseconds most = 5000) {
        return loop_->run_until([&] { return client_->available() != open; }, most);
    }

    void end() {
        delete client_;
        client_ = nullptr;
    }

    std::uint64_t errors(Error error) const { return client_->counts().errors[static_cast<unsigned>(error)]; }
    Client* operator->() const { return client_; }
    std::size_t answered() const { return answered_; }
    bool answered_inside() const { return answered_inside_; }
    const std::deque<Asked>& all() const { return asked_; }

  private:
    static void on_answer(void* self, Error error, std::string_view reply) {
        auto* asked = static_cast<Asked*>(self);
        Calls* calls = asked->owner;
        asked->answers++;
        asked->error = error;
        asked->reply = reply;
        asked->took = calls->loop_->now() - asked->sent_at;
        asked->position = calls->answered_++;
        calls->answered_inside_ = calls->answered_inside_ || calls->sending_;
    }

    Settings settings_;
    TestLoop* loop_;
    Client* client_;
    std::deque<Asked> asked_;
    unsigned answered_ = 0;
    bool sending_ = false;
    bool answered_inside_ = false;
};

}  // namespace rate_limit::redis
