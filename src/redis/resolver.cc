// Looks names up by getaddrinfo, which follows the system's configuration but blocks: hence the thread.
#include "redis/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <new>

namespace rate_limit::redis {

// Belongs to the thread and to whoever asked; the last of them deletes it.
struct Lookup::Shared {
    std::string host;
    std::vector<std::string> addresses;
    std::atomic<bool> done{false};
    std::atomic<int> owners{2};

    void let_go() {
        if (owners.fetch_sub(1) == 1) {
            delete this;
        }
    }

    static void* run(void* self) {
        auto* shared = static_cast<Shared*>(self);
        shared->addresses = resolve(shared->host);
        shared->done.store(true, std::memory_order_release);
        shared->let_go();
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

Lookup* Lookup::start(const std::string& host) {
    auto* shared = new (std::nothrow) Shared;
    auto* lookup = shared != nullptr ? new (std::nothrow) Lookup(shared) : nullptr;
    if (lookup == nullptr) {
        delete shared;
        return nullptr;
    }
    shared->host = host;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    // Signals are for the process' own thread.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const int failed = pthread_create(&thread, &detached, Shared::run, shared);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&detached);
    if (failed != 0) {
        delete shared;
        delete lookup;
        return nullptr;
    }
    return lookup;
}

bool Lookup::done() const { return shared_->done.load(std::memory_order_acquire); }

const std::vector<std::string>& Lookup::addresses() const { return shared_->addresses; }

void Lookup::forget() {
    shared_->let_go();
    delete this;
}

}  // namespace rate_limit::redis
