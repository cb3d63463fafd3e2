// Sends HTTP requests at a fixed rate, independent of the responses, and prints the result of each.
//
//   load port=PORT rate=N seconds=N connections=N [start=TIME] clients=FILE
//   load port=PORT rate=N seconds=N connections=N [start=TIME] keys=N [seed=N]
//
// FILE has a name on each line. Request N has line N as its header X-Client, and starts again at the first
// line after the last. With `keys`, requests are GET /?k=KEY with uniformly random keys from 1 to `keys`, the
// same in each run with the same `seed` (1).
//
// Request N is due N / `rate` seconds after `start` (CLOCK_MONOTONIC in microseconds, in the future; by
// default a moment after the program has started). It is sent on connection N modulo `connections`, after the
// response to the request before on this connection. So a slow response delays later requests, as it would
// delay a user, and their latency must be counted from the time when they were due.
//
// Prints a line for each request, in order:
//
//   DUE SENT DONE STATUS STORE VERDICT CLIENT
//
// Times are microseconds since START. STATUS is the status of the response, 0 without a response. STORE and
// VERDICT are the headers X-Store and X-Verdict, - if absent. CLIENT is the number of the line in FILE, from
// 0, or KEY. SENT is - for a request that was never sent.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr std::int64_t kNever = -1;
constexpr std::int64_t kPatience_us = 2'000'000;  // for the last answers
constexpr std::int64_t kSoon_us = 100'000;        // enough to open all connections

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "load: %s: %s\n", what, std::strerror(errno));
    std::exit(1);
}

int must(int result, const char* what) {
    if (result < 0) {
        fail(what);
    }
    return result;
}

struct Options {
    int port = 0;
    double rate = 0;     // requests per second
    double seconds = 0;  // until the last request is due
    std::size_t connections = 0;
    std::int64_t start_us = 0;
    std::string clients;  // a file
    std::uint32_t keys = 0;
    std::uint64_t seed = 1;
};

struct Request {
    std::int64_t due_us;
    std::uint32_t client = 0;  // an index of texts_
    std::int64_t sent_us = kNever;
    std::int64_t done_us = kNever;
    int status = 0;
    std::string store = "-";
    std::string verdict = "-";
};

struct Connection {
    int descriptor = -1;
    std::size_t next;  // the request to send next, or to wait for
    bool waits = false;
    std::string received;
};

// The value of a header in the head of a response; empty if absent.
std::string_view header(std::string_view head, std::string_view name) {
    const std::string line = "\r\n" + std::string(name) + ": ";
    const std::size_t at = head.find(line);
    if (at == head.npos) {
        return {};
    }
    head.remove_prefix(at + line.size());
    return head.substr(0, head.find("\r\n"));
}

class Load {
  public:
    explicit Load(const Options& options) : start_us_(options.start_us), connections_(options.connections) {
        address_.sin_family = AF_INET;
        address_.sin_port = htons(static_cast<std::uint16_t>(options.port));
        address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        requests_.resize(static_cast<std::size_t>(options.seconds * options.rate));
        for (std::size_t index = 0; index < requests_.size(); index++) {
            requests_[index].due_us =
                static_cast<std::int64_t>(static_cast<double>(index) * 1e6 / options.rate);
        }
        if (options.keys != 0) {
            draw_keys(options.keys, options.seed);
        } else {
            read_clients(options.clients.c_str());
        }
        if (start_us_ == 0) {
            start_us_ = now_us() + kSoon_us;
        }
    }

    void run();
    void print() const;

  private:
    std::int64_t now_us() const;
    void draw_keys(std::uint32_t keys, std::uint64_t seed);
    void read_clients(const char* file);
    void open(Connection* connection);
    void lose(Connection* connection);
    void finish(Connection* connection);
    void send_due(Connection* connection);
    void receive(Connection* connection);
    bool take_answer(Connection* connection);
    void set_timer(std::int64_t time_us) const;

    sockaddr_in address_{};
    std::int64_t start_us_;
    std::vector<Request> requests_;
    std::vector<Connection> connections_;
    std::vector<std::string> texts_;  // one request text for each client
    int poll_ = must(epoll_create1(0), "epoll_create1");
    int timer_ = must(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), "timerfd_create");
    std::size_t open_requests_ = 0;
};

std::int64_t Load::now_us() const {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1'000'000 + time.tv_nsec / 1000 - start_us_;
}

void Load::draw_keys(std::uint32_t keys, std::uint64_t seed) {
    for (std::uint32_t key = 0; key <= keys; key++) {
        texts_.push_back("GET /?k=" + std::to_string(key) + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    }
    std::mt19937_64 random(seed);
    for (Request& request : requests_) {
        request.client = static_cast<std::uint32_t>(1 + random() % keys);
    }
}

void Load::read_clients(const char* file) {
    std::ifstream in(file);
    for (std::string name; std::getline(in, name);) {
        texts_.push_back("GET / HTTP/1.1\r\nHost: localhost\r\nX-Client: " + name + "\r\n\r\n");
    }
    if (texts_.empty()) {
        fail(file);
    }
    for (std::size_t index = 0; index < requests_.size(); index++) {
        requests_[index].client = static_cast<std::uint32_t>(index % texts_.size());
    }
}

// On this machine a connection is established, or refused, at once.
void Load::open(Connection* connection) {
    const int descriptor = must(socket(AF_INET, SOCK_STREAM, 0), "socket");
    if (connect(descriptor, reinterpret_cast<sockaddr*>(&address_), sizeof address_) != 0) {
        close(descriptor);
        return;
    }
    const int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    must(fcntl(descriptor, F_SETFL, O_NONBLOCK), "fcntl");
    epoll_event event{EPOLLIN, {connection}};
    must(epoll_ctl(poll_, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
    connection->descriptor = descriptor;
}

// Pending requests remain without a response. The next request opens a new connection.
void Load::lose(Connection* connection) {
    if (connection->descriptor >= 0) {
        close(connection->descriptor);
    }
    connection->descriptor = -1;
    connection->received.clear();
    if (connection->waits) {
        requests_[connection->next].status = 0;
        finish(connection);
    }
}

void Load::finish(Connection* connection) {
    requests_[connection->next].done_us = now_us();
    connection->next += connections_.size();
    connection->waits = false;
    open_requests_--;
}

void Load::send_due(Connection* connection) {
    while (!connection->waits && connection->next < requests_.size() &&
           requests_[connection->next].due_us <= now_us()) {
        if (connection->descriptor < 0) {
            open(connection);
        }
        const std::string& text = texts_[requests_[connection->next].client];
        connection->waits = true;
        requests_[connection->next].sent_us = now_us();
        const ssize_t sent = send(connection->descriptor, text.data(), text.size(), MSG_NOSIGNAL);
        if (sent != static_cast<ssize_t>(text.size())) {
            lose(connection);
        }
    }
}

void Load::receive(Connection* connection) {
    char bytes[16'384];
    const ssize_t count = recv(connection->descriptor, bytes, sizeof bytes, 0);
    if (count < 0 && errno == EAGAIN) {
        return;
    }
    if (count > 0) {
        connection->received.append(bytes, static_cast<std::size_t>(count));
    }
    if (count <= 0 || !take_answer(connection)) {
        lose(connection);
    }
    send_due(connection);
}

// Reads the response if it is complete. Returns false if the input is not a response.
bool Load::take_answer(Connection* connection) {
    const std::string_view received = connection->received;
    const std::size_t end = received.find("\r\n\r\n");
    if (end == received.npos) {
        return true;
    }
    const std::string_view head = received.substr(0, end + 2);
    const std::string length(header(head, "Content-Length"));
    if (!connection->waits || head.substr(0, 9) != "HTTP/1.1 " || length.empty()) {
        return false;
    }
    const std::size_t whole = end + 4 + std::strtoul(length.c_str(), nullptr, 10);
    if (received.size() < whole) {
        return true;
    }
    Request& request = requests_[connection->next];
    request.status = std::atoi(std::string(head.substr(9, 3)).c_str());
    if (const std::string_view store = header(head, "X-Store"); !store.empty()) {
        request.store = store;
    }
    if (const std::string_view verdict = header(head, "X-Verdict"); !verdict.empty()) {
        request.verdict = verdict;
    }
    const bool last = header(head, "Connection") == "close";
    connection->received.erase(0, whole);
    finish(connection);
    return !last;
}

void Load::set_timer(std::int64_t time_us) const {
    const std::int64_t at_us = start_us_ + time_us;
    itimerspec when{};
    when.it_value = {at_us / 1'000'000, at_us % 1'000'000 * 1000};
    must(timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr), "timerfd_settime");
}

void Load::run() {
    prctl(PR_SET_TIMERSLACK, 1UL);
    epoll_event timer_event{EPOLLIN, {nullptr}};
    must(epoll_ctl(poll_, EPOLL_CTL_ADD, timer_, &timer_event), "epoll_ctl");
    for (std::size_t index = 0; index < connections_.size(); index++) {
        connections_[index].next = index;
        open(&connections_[index]);
    }
    std::size_t cursor = 0;  // the first request that is not due yet
    open_requests_ = requests_.size();
    const std::int64_t end_us = requests_.back().due_us + kPatience_us;
    set_timer(0);
    while (open_requests_ > 0 && now_us() < end_us) {
        epoll_event events[64];
        const int count = epoll_wait(poll_, events, 64, 100);
        for (int index = 0; index < count; index++) {
            if (auto* connection = static_cast<Connection*>(events[index].data.ptr); connection != nullptr) {
                receive(connection);
            }
        }
        if (cursor == requests_.size()) {
            continue;
        }
        for (; cursor < requests_.size() && requests_[cursor].due_us <= now_us(); cursor++) {
            send_due(&connections_[cursor % connections_.size()]);
        }
        set_timer(cursor < requests_.size() ? requests_[cursor].due_us : end_us);
    }
}

void Load::print() const {
    for (const Request& request : requests_) {
        const std::int64_t done_us = request.done_us != kNever ? request.done_us : now_us();
        const std::string sent = request.sent_us != kNever ? std::to_string(request.sent_us) : "-";
        std::printf("%lld %s %lld %d %s %s %u\n", static_cast<long long>(request.due_us), sent.c_str(),
                    static_cast<long long>(done_us), request.status, request.store.c_str(),
                    request.verdict.c_str(), request.client);
    }
}

bool set_option(std::string_view name, const std::string& value, Options* options) {
    const char* text = value.c_str();
    if (name == "port") {
        options->port = std::atoi(text);
    } else if (name == "rate") {
        options->rate = std::atof(text);
    } else if (name == "seconds") {
        options->seconds = std::atof(text);
    } else if (name == "connections") {
        options->connections = std::strtoul(text, nullptr, 10);
    } else if (name == "start") {
        options->start_us = std::atoll(text);
    } else if (name == "clients") {
        options->clients = value;
    } else if (name == "keys") {
        options->keys = static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
    } else if (name == "seed") {
        options->seed = std::strtoull(text, nullptr, 10);
    } else {
        return false;
    }
    return true;
}

Options parse_options(int count, char** words) {
    Options options;
    for (int index = 1; index < count; index++) {
        const std::string_view word = words[index];
        const std::size_t equals = word.find('=');
        if (equals == word.npos ||
            !set_option(word.substr(0, equals), std::string(word.substr(equals + 1)), &options)) {
            std::fprintf(stderr, "load: unknown option %s\n", words[index]);
            std::exit(2);
        }
    }
    if (options.port == 0 || options.connections == 0 || options.rate * options.seconds < 1 ||
        (options.keys == 0) == options.clients.empty()) {
        std::fprintf(stderr,
                     "usage: load port=PORT rate=N seconds=N connections=N [start=TIME]"
                     " clients=FILE | keys=N [seed=N]\n");
        std::exit(2);
    }
    return options;
}

}  // namespace

int main(int count, char** words) {
    Load load(parse_options(count, words));
    load.run();
    load.print();
    return 0;
}
