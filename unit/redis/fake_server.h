// A fake Redis server in the loop of the test, whose replies the test sets.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "test_loop.h"

namespace rate_limit::redis {

using Words = std::vector<std::string>;

inline std::string bulk(std::string_view text) {
    return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}

inline std::string command_of(const Words& words) {
    std::string command = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
        command += bulk(word);
    }
    return command;
}

// A temporary folder, removed when the program ends.
class Folder {
  public:
    Folder() {
        std::string name = "/tmp/rate_limit_unit.XXXXXX";
        assert_non_null(mkdtemp(name.data()));
        path_ = name;
    }
    ~Folder() { assert_int_equal(std::system(("rm -rf " + path_).c_str()), 0); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    std::string file(const std::string& name) const { return path_ + "/" + name; }

    static const Folder& own() {
        static const Folder folder;
        return folder;
    }

  private:
    std::string path_;
};

class FakeServer {
  public:
    // The reply to a command, in RESP; empty for none.
    using Answer = std::function<std::string(const Words& command)>;

    explicit FakeServer(TestLoop* loop) : loop_(loop) {
        static unsigned number = 0;
        path_ = Folder::own().file("fake" + std::to_string(number++));
        listen();
    }

    // Listens on a port of a numeric address instead of a unix socket.
    FakeServer(TestLoop* loop, const std::string& host) : loop_(loop), host_(host) {
        loop->real = true;
        listen();
    }
    ~FakeServer() {
        refuse();
        hang_up();
    }
    FakeServer(const FakeServer&) = delete;
    FakeServer& operator=(const FakeServer&) = delete;

    const std::string& path() const { return path_; }
    const std::string& host() const { return host_; }
    std::uint16_t port() const { return port_; }

    void listen() {
        const int fd = path_.empty() ? bind_port() : bind_path();
        assert_int_equal(::listen(fd, 16), 0);
        listener_ = loop_->watch(fd, POLLIN, [this](short) { accept(); });
    }

    // Stops listening. Connections stay.
    void refuse() {
        if (listener_ != nullptr) {
            close(listener_->fd);
            if (!path_.empty()) {
                unlink(path_.c_str());
            }
            listener_->gone = true;
            listener_ = nullptr;
        }
    }

    // Closes all connections, or one of them.
    void hang_up(unsigned connection = 0) {
        for (Peer& peer : peers_) {
            if (connection == 0 || peer.number == connection) {
                close(peer.watch->fd);
                peer.watch->gone = true;
            }
        }
        peers_.remove_if([](const Peer& peer) { return peer.watch->gone; });
    }

    // Sends data on the latest connection.
    void say(const std::string& text) {
        assert_false(peers_.empty());
        peers_.back().output += text;
        write(&peers_.back());
    }

    // Sends data on a connection, unless it is closed.
    void say(const std::string& text, unsigned connection) {
        for (Peer& peer : peers_) {
            if (peer.number == connection) {
                peer.output += text;
                write(&peer);
            }
        }
    }

    // The connection whose command is being answered.
    unsigned serving() const { return serving_; }

    // Whether received data is read, or stays in the socket.
    void read(bool on) {
        reads_ = on;
        for (Peer& peer : peers_) {
            write(&peer);
        }
    }

    // Delays all replies on a connection, as if a packet was lost. The first connection is 1.
    void hold(unsigned connection) { held_.insert(connection); }

    // Sends all delayed replies of a connection.
    void let_go(unsigned connection) {
        held_.erase(connection);
        for (Peer& peer : peers_) {
            write(&peer);
        }
    }

    std::size_t connections() const { return peers_.size(); }

    // The commands other than those of the handshake.
    std::size_t count(const std::string& name) const {
        return static_cast<std::size_t>(std::count_if(commands.begin(), commands.end(),
                                                      [&](const Words& words) { return words[0] == name; }));
    }

    // The replies of a healthy Redis to the handshake.
    static std::string healthy(const Words& command) {
        if (command[0] == "SCRIPT") {
            return bulk(std::string(40, 'a'));
        }
        return command[0] == "AUTH" || command[0] == "SELECT" || command[0] == "SET" || command[0] == "PING"
                   ? "+OK\r\n"
                   : "";
    }

    std::vector<Words> commands;  // all received commands
    unsigned accepted = 0;
    std::size_t received = 0;  // bytes
    bool accepts = true;       // else connections stay in the backlog
    bool answers = true;       // else records commands and sends nothing
    bool drops = false;        // closes the connection at a command other than those of the handshake
    Answer answer;             // to commands other than those of the handshake
    Answer handshake = healthy;

  private:
    struct Peer {
        TestLoop::Watch* watch;
        std::string input;
        std::string output;
        unsigned number;
    };

    int bind_path() const {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        sockaddr_un address = {};
        address.sun_family = AF_UNIX;
        path_.copy(address.sun_path, sizeof address.sun_path - 1);
        assert_int_equal(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        return fd;
    }

    // Any free port at first; later the same again.
    int bind_port() {
        sockaddr_storage storage = {};
        auto* address = reinterpret_cast<sockaddr*>(&storage);
        auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
        auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
        storage.ss_family = host_.find(':') != std::string::npos ? AF_INET6 : AF_INET;
        const bool six = storage.ss_family == AF_INET6;
        void* at = six ? static_cast<void*>(&v6->sin6_addr) : &v4->sin_addr;
        (six ? v6->sin6_port : v4->sin_port) = htons(port_);
        assert_int_equal(inet_pton(storage.ss_family, host_.c_str(), at), 1);
        const int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        const int on = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        socklen_t size = six ? sizeof *v6 : sizeof *v4;
        assert_int_equal(bind(fd, address, size), 0);
        assert_int_equal(getsockname(fd, address, &size), 0);
        port_ = ntohs(six ? v6->sin6_port : v4->sin_port);
        return fd;
    }

    void accept() {
        const int fd = accepts ? accept4(listener_->fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
        if (fd < 0) {
            return;
        }
        accepted++;
        peers_.push_back({nullptr, {}, {}, accepted});
        Peer* peer = &peers_.back();
        peer->watch = loop_->watch(fd, POLLIN, [this, peer](short events) { serve(peer, events); });
    }

    void serve(Peer* peer, short events) {
        if ((events & POLLOUT) != 0) {
            write(peer);
        }
        if (!reads_ || (events & (POLLIN | POLLHUP)) == 0) {
            return;
        }
        char buffer[65536];
        const ssize_t size = ::read(peer->watch->fd, buffer, sizeof buffer);
        if (size <= 0) {
            if (size == 0 || errno != EAGAIN) {
                leave(peer);
            }
            return;
        }
        received += static_cast<std::size_t>(size);
        peer->input.append(buffer, static_cast<std::size_t>(size));
        Words words;
        serving_ = peer->number;
        while (take(&peer->input, &words)) {
            commands.push_back(words);
            const std::string reply = handshake ? handshake(words) : "";
            if (drops && reply.empty()) {
                leave(peer);
                return;
            }
            if (answers) {
                peer->output += !reply.empty() ? reply : answer ? answer(words) : "";
            }
        }
        write(peer);
    }

    void write(Peer* peer) {
        if (held_.count(peer->number) != 0) {
            peer->watch->events = static_cast<short>(reads_ ? POLLIN : 0);
            return;
        }
        const ssize_t size = ::send(peer->watch->fd, peer->output.data(), peer->output.size(), MSG_NOSIGNAL);
        peer->output.erase(0, size > 0 ? static_cast<std::size_t>(size) : 0);
        peer->watch->events =
            static_cast<short>((reads_ ? POLLIN : 0) | (peer->output.empty() ? 0 : POLLOUT));
    }

    void leave(Peer* peer) {
        close(peer->watch->fd);
        peer->watch->gone = true;
        peers_.remove_if([&](const Peer& each) { return &each == peer; });
    }

    static bool take_number(const std::string& text, std::size_t* at, char mark, std::size_t* number) {
        const std::size_t end = text.find("\r\n", *at);
        if (end == std::string::npos || text[*at] != mark) {
            return false;
        }
        *number = std::stoul(text.substr(*at + 1, end - *at - 1));
        *at = end + 2;
        return true;
    }

    // Takes a complete command from the received data.
    static bool take(std::string* input, Words* words) {
        std::size_t at = 0;
        std::size_t count = 0;
        words->clear();
        if (input->empty() || !take_number(*input, &at, '*', &count)) {
            return false;
        }
        for (std::size_t i = 0; i < count; i++) {
            std::size_t size = 0;
            if (at >= input->size() || !take_number(*input, &at, '$', &size) ||
                at + size + 2 > input->size()) {
                return false;
            }
            words->push_back(input->substr(at, size));
            at += size + 2;
        }
        input->erase(0, at);
        return true;
    }

    TestLoop* loop_;
    std::string path_;  // empty if it listens on a port
    std::string host_;
    std::uint16_t port_ = 0;
    bool reads_ = true;
    TestLoop::Watch* listener_ = nullptr;
    std::list<Peer> peers_;
    std::set<unsigned> held_;
    unsigned serving_ = 0;
};

}  // namespace rate_limit::redis
