// Resolves host names by getaddrinfo, which blocks, in threads.
#include "connection/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>

namespace rate_limit::redis {

namespace {

struct Lock {
    Lock() { pthread_mutex_lock(&mutex); }
    ~Lock() { pthread_mutex_unlock(&mutex); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    static inline pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
};

// Starts a detached thread. All signals are blocked in it: the main thread handles them.
bool start_thread(void* (*run)(void*)) {
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const int failed = pthread_create(&thread, &detached, run, nullptr);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&detached);
    return failed == 0;
}

}  // namespace

// Shared by the thread that has taken it from the queue and by the Lookup; the last one deletes it.
struct NameLookup::Shared {
    std::string host;
    std::vector<std::string> addresses;
    std::atomic<bool> done{false};
    std::atomic<int> owners{2};
    bool queued = false;  // this and all members below: under the lock
    Shared* previous = nullptr;
    Shared* next = nullptr;

    static inline Shared* first = nullptr;  // of the queue
    static inline Shared* last = nullptr;
    static inline unsigned threads = 0;

    void let_go() {
        if (owners.fetch_sub(1) == 1) {
            delete this;
        }
    }

    void enqueue() {
        queued = true;
        previous = last;
        (last != nullptr ? last->next : first) = this;
        last = this;
    }

    void dequeue() {
        queued = false;
        (previous != nullptr ? previous->next : first) = next;
        (next != nullptr ? next->previous : last) = previous;
    }

    // Takes the first of the queue. If the queue is empty, returns null and counts the thread as ended.
    static Shared* take() {
        const Lock lock;
        Shared* shared = first;
        if (shared == nullptr) {
            threads--;
            return nullptr;
        }
        shared->queued = false;
        first = shared->next;
        (first != nullptr ? first->previous : last) = nullptr;
        return shared;
    }

    static void* run(void*) {
        while (Shared* shared = take()) {
            shared->addresses = resolve(shared->host);
            shared->done.store(true, std::memory_order_release);
            shared->let_go();
        }
        return nullptr;
    }
};

std::vector<std::string> resolve(const std::string& host) {
    std::vector<std::string> addresses;
    addrinfo hints = {};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) {
        return addresses;
    }
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
        char text[NI_MAXHOST];
        if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) ==
                0 &&
            std::find(addresses.begin(), addresses.end(), text) == addresses.end()) {
            addresses.emplace_back(text);
        }
    }
    freeaddrinfo(found);
    return addresses;
}

bool is_numeric(const std::string& host) {
    in6_addr address;
    return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
           inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &address) == 1;
}

bool is_host(std::string_view text) {
    constexpr std::size_t kLongestName = 253;
    const auto fits = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
               c == '-' || c == '_' || c == ':' || c == '%';
    };
    return !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), fits);
}

NameLookup* NameLookup::start(const std::string& host) {
    auto* shared = new Shared;
    auto* lookup = new NameLookup(shared);
    shared->host = host;
    const Lock lock;
    shared->enqueue();
    if (Shared::threads < kMostThreads && start_thread(Shared::run)) {
        Shared::threads++;
    }
    if (Shared::threads == 0) {
        shared->dequeue();
        delete shared;
        delete lookup;
        return nullptr;
    }
    return lookup;
}

bool NameLookup::done() const { return shared_->done.load(std::memory_order_acquire); }

const std::vector<std::string>& NameLookup::addresses() const { return shared_->addresses; }

void NameLookup::forget() {
    if (leave_queue()) {
        delete shared_;
    } else {
        shared_->let_go();
    }
    delete this;
}

// Removes it from the queue. False if it is not there: then a thread has it.
bool NameLookup::leave_queue() {
    const Lock lock;
    const bool queued = shared_->queued;
    if (queued) {
        shared_->dequeue();
    }
    return queued;
}

}  // namespace rate_limit::redis
