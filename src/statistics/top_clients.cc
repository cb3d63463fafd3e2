// The lists of the minutes, and their sum.
#include "statistics/top_clients.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "memory/siphash.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kLookEvery = 64;  // missed rejections between checks whether the lock holder lives

// No secret key is needed: clients with equal hashes differ in their names.
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

// Counts a client that is on the list; false if it is not on the list. The hash is read again after the name,
// because another process may replace the entry.
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

// A free index, or that of the client with the lowest count.
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

// Requires the lock. A process that dies here leaves an entry with hash 0, which no client has.
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

// A process takes the lock once at a time, so a lock with its own id was left by a dead process with that id.
bool TopClients::try_lock(const Process& process) {
    std::uint32_t owner = 0;
    return lock_.compare_exchange_strong(owner, process.self, std::memory_order_acquire) ||
           owner == process.self;
}

// Waits for the lock for a short time. False if another process still holds it.
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
    // A process with an older time adds to the list of a newer minute.
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

// Sums the counts of each client over all minutes.
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
        // One minute at a time, so that few rejections are missed. If the holder of the lock is stopped, the
        // list is read without the lock.
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
