// Redis servers that a test starts, and blocking connections to them.
#pragma once

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace rate_limit {

struct ReplyDeleter {
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyDeleter>;

inline std::string text_of(const redisReply& reply) { return {reply.str, reply.len}; }

// A connection with pipelining: replies are taken in the order of the commands.
class Connection {
  public:
    // Null if no server listens.
    static std::unique_ptr<Connection> open(const std::string& path) {
        std::unique_ptr<Connection> connection(new Connection(path));
        const bool open = connection->context_ != nullptr && connection->context_->err == 0;
        return open ? std::move(connection) : nullptr;
    }

    void send(const std::vector<std::string>& words) {
        std::vector<const char*> at;
        std::vector<std::size_t> size;
        for (const std::string& word : words) {
            at.push_back(word.data());
            size.push_back(word.size());
        }
        redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), at.data(), size.data());
    }

    Reply take() {
        void* reply = nullptr;
        if (redisGetReply(context_.get(), &reply) != REDIS_OK) {
            throw std::runtime_error(std::string("the server is gone: ") + context_->errstr);
        }
        return Reply(static_cast<redisReply*>(reply));
    }

    // Throws if the reply is an error.
    Reply call(const std::vector<std::string>& words) {
        send(words);
        Reply reply = take();
        if (reply->type == REDIS_REPLY_ERROR) {
            throw std::runtime_error(text_of(*reply));
        }
        return reply;
    }

  private:
    explicit Connection(const std::string& path) : context_(redisConnectUnix(path.c_str())) {}

    struct ContextDeleter {
        void operator()(redisContext* context) const { redisFree(context); }
    };
    std::unique_ptr<redisContext, ContextDeleter> context_;
};

// A server with a temporary folder. It stops with this object, or when the test dies.
class Server {
  public:
    // `options` are added to the command line.
    explicit Server(const std::string& program, std::vector<std::string> options = {})
        : program_(program), options_(std::move(options)) {
        char folder[] = "/tmp/rate_limit_unit_XXXXXX";
        if (mkdtemp(folder) == nullptr) {
            throw std::runtime_error("cannot make a folder in /tmp");
        }
        folder_ = folder;
        pid_ = fork();
        if (pid_ == 0) {
            run();
        }
        // The server creates its socket shortly before it listens.
        for (int waited = 0; connection_ == nullptr; ++waited) {
            if (waited > 1000 || waitpid(pid_, nullptr, WNOHANG) == pid_) {
                throw std::runtime_error("cannot start " + program);
            }
            usleep(10'000);
            connection_ = Connection::open(socket());
        }
    }

    ~Server() {
        connection_.reset();
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        unlink(socket().c_str());
        rmdir(folder_.c_str());
    }

    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    Connection& connection() { return *connection_; }
    const std::string& program() const { return program_; }
    std::string socket() const { return folder_ + "/socket"; }

  private:
    [[noreturn]] void run() const {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        const std::string path = socket();
        std::vector<const char*> words = {
            program_.c_str(), "--port", "0", "--unixsocket", path.c_str(), "--dir",
            folder_.c_str(),  "--save", "",  "--appendonly", "no"};
        for (const std::string& option : options_) {
            words.push_back(option.c_str());
        }
        words.push_back(nullptr);
        execvp(program_.c_str(), const_cast<char* const*>(words.data()));
        _exit(127);
    }

    std::string program_;
    std::vector<std::string> options_;
    std::string folder_;
    pid_t pid_ = -1;
    std::unique_ptr<Connection> connection_;
};

// The servers to test with: Redis, and Valkey if it is installed.
inline std::vector<std::string> server_programs() {
    const char* redis = getenv("RL_REDIS_SERVER");
    const char* valkey = getenv("RL_VALKEY_SERVER");
    std::vector<std::string> programs = {redis != nullptr ? redis : "redis-server"};
    const std::string other = valkey != nullptr ? valkey : "build/valkey/usr/bin/valkey-server";
    if (access(other.c_str(), X_OK) == 0) {
        programs.push_back(other);
    }
    return programs;
}

}  // namespace rate_limit
