// A real Redis server, started in a temporary folder and stopped with the test.
#pragma once

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <set>
#include <sstream>
#include <string>

#include "fake_server.h"

namespace rate_limit::redis {

// A free port: one of those that scripts/test has reserved, else any.
inline std::uint16_t free_port() {
    static std::istringstream reserved(
        std::getenv("RL_REDIS_PORTS") != nullptr ? std::getenv("RL_REDIS_PORTS") : "");
    unsigned port = 0;
    if (reserved >> port) {
        return static_cast<std::uint16_t>(port);
    }
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    socklen_t size = sizeof address;
    assert_int_equal(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    assert_int_equal(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    close(fd);
    return ntohs(address.sin6_port);
}

class RealServer {
  public:
    // `options` are for the command line of redis-server. The server also listens on a unix socket.
    explicit RealServer(const Words& options = {}) : options_(options) {
        static unsigned number = 0;
        folder_ = Folder::own().file("redis" + std::to_string(number++));
        assert_int_equal(mkdir(folder_.c_str(), 0700), 0);
        start();
    }
    ~RealServer() { stop(); }
    RealServer(const RealServer&) = delete;
    RealServer& operator=(const RealServer&) = delete;

    std::string path() const { return folder_ + "/socket"; }
    pid_t pid() const { return pid_; }

    // Sends a signal. After SIGSTOP, returns when the server has stopped.
    void signal(int number) const {
        assert_int_equal(kill(pid_, number), 0);
        if (number == SIGSTOP) {
            int status = 0;
            assert_int_equal(waitpid(pid_, &status, WUNTRACED), pid_);
            assert_true(WIFSTOPPED(status));
        }
    }

    void start() {
        Words words = {"redis-server",
                       "--port",
                       "0",
                       "--unixsocket",
                       path(),
                       "--save",
                       "",
                       "--daemonize",
                       "no",
                       "--dir",
                       folder_,
                       "--logfile",
                       folder_ + "/log",
                       "--enable-debug-command",
                       "yes"};
        const char* given = std::getenv("RL_REDIS_SERVER");
        words[0] = given != nullptr ? given : words[0];
        words.insert(words.end(), options_.begin(), options_.end());
        std::vector<char*> arguments;
        for (std::string& word : words) {
            arguments.push_back(word.data());
        }
        arguments.push_back(nullptr);
        std::fflush(nullptr);
        const pid_t parent = getpid();
        pid_ = fork();
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent) {
                execvp(arguments[0], arguments.data());
            }
            _exit(99);
        }
        assert_true(pid_ > 0);
        living().insert(pid_);
        TestLoop::processes++;
        for (unsigned i = 0; i < 1000 && !answers(); i++) {
            usleep(10'000);
        }
        assert_true(answers());
    }

    void stop() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
            living().erase(pid_);
            TestLoop::processes--;
            pid_ = 0;
            unlink(path().c_str());
        }
    }

    // The reply to a command of redis-cli, as text.
    std::string command(const Words& words) const {
        redisContext* context = redisConnectUnix(path().c_str());
        if (context == nullptr || context->err != 0) {
            redisFree(context);
            return "no connection";
        }
        std::string text;
        if (!password.empty()) {
            freeReplyObject(redisCommand(context, "AUTH %s", password.c_str()));
        }
        std::vector<const char*> at;
        std::vector<std::size_t> sizes;
        for (const std::string& word : words) {
            at.push_back(word.data());
            sizes.push_back(word.size());
        }
        auto* reply = static_cast<redisReply*>(
            redisCommandArgv(context, static_cast<int>(at.size()), at.data(), sizes.data()));
        if (reply != nullptr) {
            text =
                reply->str != nullptr ? std::string(reply->str, reply->len) : std::to_string(reply->integer);
            freeReplyObject(reply);
        }
        redisFree(context);
        return text;
    }

    // A number in the reply to INFO.
    long info(const std::string& name) const {
        const std::string text = command({"INFO", "everything"});
        const std::size_t at = text.find("\n" + name + ":");
        assert_true(at != std::string::npos);
        return std::stol(text.substr(at + name.size() + 2));
    }

    std::string password;

  private:
    bool answers() const {
        const std::string text = command({"PING"});
        return text == "PONG" || text.compare(0, 6, "NOAUTH") == 0 || text.compare(0, 10, "MASTERDOWN") == 0;
    }

    // Servers that a failed assertion has left behind end with this program.
    static std::set<pid_t>& living() {
        static std::set<pid_t> pids;
        static const int registered = std::atexit([] {
            for (const pid_t pid : living()) {
                kill(pid, SIGKILL);
            }
        });
        static_cast<void>(registered);
        return pids;
    }

    Words options_;
    std::string folder_;
    pid_t pid_ = 0;
};

// Joins two nodes of a cluster, and waits until both agree. CLUSTER MEET is repeated: a node drops one that
// took too long, and the other node does not retry.
template <class Agreed>
void introduce(const RealServer& node, const std::string& port, const std::string& bus,
               const Agreed& agreed) {
    for (unsigned i = 0; i < 2000 && !agreed(); i++) {
        if (i % 300 == 0) {
            node.command({"CLUSTER", "MEET", "127.0.0.1", port, bus});
        }
        usleep(10'000);
    }
    assert_true(agreed());
}

}  // namespace rate_limit::redis
