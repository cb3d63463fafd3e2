// The lists of the minutes: who is put on them, and what they say together.
#include "memory/top_clients.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "memory/siphash.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kLookEvery = 64;  // rejections missed: so often is seen whether the holder is alive

// No secret is needed: whoever finds names of equal hashes is still told from them by name.
std::uint64_t hash_of(std::string_view name) {
    const std::uint64_t hash = siphash({0, 0}, name);
    return hash != 0 ? hash : 1;
}

}  // namespace

struct TopClients::Found {
    std::uint64_t hash;
    TopClient top_client;

    std::uint64_t certain() const { return top_client.rejected - top_client.error; }
};

std::string_view TopClients::name_of(const Entry& entry) {
    return {entry.name, std::min<std::size_t>(entry.size, kLongestName)};
}

// Counts a client that is on the list; false if it is not. The hash is read again after the name, which
// another process may be writing.
bool TopClients::count(Minute* minute, std::uint64_t hash, std::string_view name) {
    const unsigned used = std::min(minute->used.load(std::memory_order_acquire), kClients);
    for (unsigned index = 0; index < used; index++) {
        if (minute->hashes[index].load(std::memory_order_acquire) == hash &&
            name_of(minute->entries[index]) == name) {
            std::atomic_thread_fence(std::memory_order_acquire);
            if (minute->hashes[index].load(std::memory_order_relaxed) == hash) {
                minute->counts[index].fetch_add(1, std::memory_order_relaxed);
                return true;
            }
        }
    }
    return false;
}

// One that is free, or that of the client with the least count.
unsigned TopClients::index_for_new(const Minute& minute) {
    const unsigned used = minute.used.load(std::memory_order_relaxed);
    if (used < kClients) {
        return used;
    }
    const auto* least =
        std::min_element(minute.counts, minute.counts + kClients, [](const auto& a, const auto& b) {
            return a.load(std::memory_order_relaxed) < b.load(std::memory_order_relaxed);
        });
    return static_cast<unsigned>(least - minute.counts);
}

// Only for who has the lock. A process that dies on the way leaves an entry that is nobody's.
void TopClients::put(Minute* minute, std::uint64_t hash, std::string_view name) {
    const unsigned index = index_for_new(*minute);
    const bool replaces = index < minute->used.load(std::memory_order_relaxed);
    const std::uint64_t count = replaces ? minute->counts[index].load(std::memory_order_relaxed) : 0;
    minute->hashes[index].store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    Entry& entry = minute->entries[index];
    minute->counts[index].store(count + 1, std::memory_order_relaxed);
    entry.error = count;
    entry.size = static_cast<std::uint8_t>(std::min(name.size(), kLongestName));
    std::memcpy(entry.name, name.data(), entry.size);
    minute->hashes[index].store(hash, std::memory_order_release);
    if (!replaces) {
        minute->used.store(index + 1, std::memory_order_release);
    }
}

// A process does one thing at a time, so a lock with its own id was left by another that has died.
bool TopClients::try_lock(const Process& process) {
    std::uint32_t owner = 0;
    return lock_.compare_exchange_strong(owner, process.self, std::memory_order_acquire) ||
           owner == process.self;
}

// Waits a little for whoever has it. False if it goes on to be held.
bool TopClients::lock(const Process& process) {
    constexpr unsigned kRounds = 100;
    for (unsigned round = 0; round < kRounds; round++) {
        if (try_lock(process)) {
            return true;
        }
        process.yield();
    }
    free_from_dead(process);
    return try_lock(process);
}

void TopClients::free_from_dead(const Process& process) {
    std::uint32_t owner = lock_.load(std::memory_order_relaxed);
    if (owner != 0 && !process.alive(owner)) {
        lock_.compare_exchange_strong(owner, 0, std::memory_order_acq_rel);
    }
}

void TopClients::add(std::string_view client, Micros now, const Process& process) {
    const std::int64_t number = minute_of(now);
    Minute* minute = &minutes_[number % kMinutes];
    const std::uint64_t hash = hash_of(client);
    // Who is late adds to the list of a newer minute.
    const auto is_old = [&] { return minute->number.load(std::memory_order_acquire) < number; };
    if (!is_old() && count(minute, hash, client)) {
        return;
    }
    if (!try_lock(process)) {
        if (missed_.fetch_add(1, std::memory_order_relaxed) % kLookEvery == kLookEvery - 1) {
            free_from_dead(process);
        }
        return;
    }
    if (is_old()) {
        minute->used.store(0, std::memory_order_relaxed);
        minute->number.store(number, std::memory_order_release);
    }
    if (!count(minute, hash, client)) {
        put(minute, hash, client);
    }
    unlock();
}

void TopClients::copy(const Minute& minute, std::vector<Found>* found) {
    const unsigned used = std::min(minute.used.load(std::memory_order_acquire), kClients);
    for (unsigned index = 0; index < used; index++) {
        const std::uint64_t hash = minute.hashes[index].load(std::memory_order_acquire);
        const Entry& entry = minute.entries[index];
        if (hash != 0) {
            found->push_back({hash,
                              {std::string(name_of(entry)),
                               minute.counts[index].load(std::memory_order_relaxed), entry.error}});
        }
    }
}

// What each client has in all minutes.
std::vector<TopClients::Found> TopClients::merge(std::vector<Found> found) {
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
        return std::tie(a.hash, a.top_client.name) < std::tie(b.hash, b.top_client.name);
    });
    std::vector<Found> merged;
    for (Found& one : found) {
        if (!merged.empty() && merged.back().hash == one.hash &&
            merged.back().top_client.name == one.top_client.name) {
            merged.back().top_client.rejected += one.top_client.rejected;
            merged.back().top_client.error += one.top_client.error;
        } else {
            merged.push_back(std::move(one));
        }
    }
    return merged;
}

std::vector<TopClient> TopClients::read(std::size_t most, Micros now, const Process& process) {
    const std::int64_t oldest = minute_of(now) - kMinutes;
    std::vector<Found> found;
    for (const Minute& minute : minutes_) {
        // One minute at a time, so that few rejections are missed. Whoever holds it for long has been
        // stopped: then it is read as it is.
        const bool locked = lock(process);
        if (minute.number.load(std::memory_order_acquire) > oldest) {
            copy(minute, &found);
        }
        if (locked) {
            unlock();
        }
    }
    found = merge(std::move(found));
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
        return std::make_tuple(b.certain(), b.top_client.rejected, std::string_view(a.top_client.name)) <
               std::make_tuple(a.certain(), a.top_client.rejected, std::string_view(b.top_client.name));
    });
    std::vector<TopClient> top_clients;
    for (std::size_t i = 0; i < std::min(most, found.size()); i++) {
        top_clients.push_back(std::move(found[i].top_client));
    }
    return top_clients;
}

}  // namespace rate_limit
