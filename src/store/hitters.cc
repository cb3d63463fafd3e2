// The lists of the minutes: who is put on them, and what they say together.
#include "store/hitters.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "store/siphash.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kLookEvery = 64;  // rejections missed: so often is seen whether the holder is alive

// No secret is needed: whoever finds names of equal hashes is still told from them by name.
std::uint64_t hash_of(std::string_view name) {
    const std::uint64_t hash = siphash({0, 0}, name);
    return hash != 0 ? hash : 1;
}

}  // namespace

struct Hitters::Found {
    std::uint64_t hash;
    Hitter hitter;

    std::uint64_t certain() const { return hitter.rejected - hitter.error; }
};

std::string_view Hitters::name_of(const Entry& entry) {
    return {entry.name, std::min<std::size_t>(entry.size, kLongestName)};
}

// Counts a client that is on the list; false if it is not. The hash is read again after the name, which
// another process may be writing.
bool Hitters::count(Minute* minute, std::uint64_t hash, std::string_view name) {
    const unsigned used = std::min(minute->used.load(std::memory_order_acquire), kClients);
    for (unsigned place = 0; place < used; place++) {
        if (minute->hashes[place].load(std::memory_order_acquire) == hash &&
            name_of(minute->entries[place]) == name) {
            std::atomic_thread_fence(std::memory_order_acquire);
            if (minute->hashes[place].load(std::memory_order_relaxed) == hash) {
                minute->counts[place].fetch_add(1, std::memory_order_relaxed);
                return true;
            }
        }
    }
    return false;
}

// One that is free, or that of the client with the least count.
unsigned Hitters::place_for_new(const Minute& minute) {
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
void Hitters::put(Minute* minute, std::uint64_t hash, std::string_view name) {
    const unsigned place = place_for_new(*minute);
    const bool replaces = place < minute->used.load(std::memory_order_relaxed);
    const std::uint64_t count = replaces ? minute->counts[place].load(std::memory_order_relaxed) : 0;
    minute->hashes[place].store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    Entry& entry = minute->entries[place];
    minute->counts[place].store(count + 1, std::memory_order_relaxed);
    entry.error = count;
    entry.size = static_cast<std::uint8_t>(std::min(name.size(), kLongestName));
    std::memcpy(entry.name, name.data(), entry.size);
    minute->hashes[place].store(hash, std::memory_order_release);
    if (!replaces) {
        minute->used.store(place + 1, std::memory_order_release);
    }
}

// A process does one thing at a time, so a lock with its own id was left by another that has died.
bool Hitters::try_lock(const Host& host) {
    std::uint32_t owner = 0;
    return lock_.compare_exchange_strong(owner, host.self, std::memory_order_acquire) || owner == host.self;
}

// Waits a little for whoever has it. False if it goes on to be held.
bool Hitters::lock(const Host& host) {
    constexpr unsigned kRounds = 100;
    for (unsigned round = 0; round < kRounds; round++) {
        if (try_lock(host)) {
            return true;
        }
        host.yield();
    }
    free_from_dead(host);
    return try_lock(host);
}

void Hitters::free_from_dead(const Host& host) {
    std::uint32_t owner = lock_.load(std::memory_order_relaxed);
    if (owner != 0 && !host.alive(owner)) {
        lock_.compare_exchange_strong(owner, 0, std::memory_order_acq_rel);
    }
}

void Hitters::add(std::string_view client, Micros now, const Host& host) {
    const std::int64_t number = minute_of(now);
    Minute* minute = &minutes_[number % kMinutes];
    const std::uint64_t hash = hash_of(client);
    // Who is late adds to the list of a newer minute.
    const auto is_old = [&] { return minute->number.load(std::memory_order_acquire) < number; };
    if (!is_old() && count(minute, hash, client)) {
        return;
    }
    if (!try_lock(host)) {
        if (missed_.fetch_add(1, std::memory_order_relaxed) % kLookEvery == kLookEvery - 1) {
            free_from_dead(host);
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

void Hitters::copy(const Minute& minute, std::vector<Found>* found) {
    const unsigned used = std::min(minute.used.load(std::memory_order_acquire), kClients);
    for (unsigned place = 0; place < used; place++) {
        const std::uint64_t hash = minute.hashes[place].load(std::memory_order_acquire);
        const Entry& entry = minute.entries[place];
        if (hash != 0) {
            found->push_back({hash,
                              {std::string(name_of(entry)),
                               minute.counts[place].load(std::memory_order_relaxed), entry.error}});
        }
    }
}

// What each client has in all minutes.
std::vector<Hitters::Found> Hitters::merge(std::vector<Found> found) {
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
        return std::tie(a.hash, a.hitter.name) < std::tie(b.hash, b.hitter.name);
    });
    std::vector<Found> merged;
    for (Found& one : found) {
        if (!merged.empty() && merged.back().hash == one.hash &&
            merged.back().hitter.name == one.hitter.name) {
            merged.back().hitter.rejected += one.hitter.rejected;
            merged.back().hitter.error += one.hitter.error;
        } else {
            merged.push_back(std::move(one));
        }
    }
    return merged;
}

std::vector<Hitter> Hitters::read(std::size_t most, Micros now, const Host& host) {
    const std::int64_t oldest = minute_of(now) - kMinutes;
    std::vector<Found> found;
    for (const Minute& minute : minutes_) {
        // One minute at a time, so that few rejections are missed. Whoever holds it for long has been
        // stopped: then it is read as it is.
        const bool locked = lock(host);
        if (minute.number.load(std::memory_order_acquire) > oldest) {
            copy(minute, &found);
        }
        if (locked) {
            unlock();
        }
    }
    found = merge(std::move(found));
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
        return std::make_tuple(b.certain(), b.hitter.rejected, std::string_view(a.hitter.name)) <
               std::make_tuple(a.certain(), a.hitter.rejected, std::string_view(b.hitter.name));
    });
    std::vector<Hitter> hitters;
    for (std::size_t i = 0; i < std::min(most, found.size()); i++) {
        hitters.push_back(std::move(found[i].hitter));
    }
    return hitters;
}

}  // namespace rate_limit
