// A hash table with chains, whose places are linked in the order of their use.
#include "key/token_cache.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace rate_limit::key {

bool TokenCache::make_table() {
    if (table_ == nullptr) {
        table_.reset(new (std::nothrow) Table());
        if (table_ == nullptr) {
            return false;
        }
        std::fill(std::begin(table_->buckets), std::end(table_->buckets), kNone);
        table_->newest = table_->oldest = kNone;
        table_->free = 0;
        for (std::size_t i = 0; i < kMostTokens; i++) {
            table_->places[i].next = i + 1 < kMostTokens ? static_cast<Index>(i + 1) : kNone;
        }
    }
    return true;
}

TokenCache::Index* TokenCache::bucket_of(const Digest& digest) const {
    std::uint32_t number = 0;
    std::memcpy(&number, digest.bytes, sizeof(number));
    return &table_->buckets[number % kBuckets];
}

void TokenCache::take_out(Index index) {
    const Place& place = table_->places[index];
    (place.newer != kNone ? table_->places[place.newer].older : table_->newest) = place.older;
    (place.older != kNone ? table_->places[place.older].newer : table_->oldest) = place.newer;
}

void TokenCache::put_first(Index index) {
    Place& place = table_->places[index];
    place.newer = kNone;
    place.older = table_->newest;
    (place.older != kNone ? table_->places[place.older].newer : table_->oldest) = index;
    table_->newest = index;
}

void TokenCache::forget_oldest() {
    const Index index = table_->oldest;
    Place& place = table_->places[index];
    take_out(index);
    Index* link = bucket_of(place.digest);
    while (*link != index) {
        link = &table_->places[*link].next;
    }
    *link = place.next;
    bytes_ -= place.token.memory;
    place.token = {};
    place.next = table_->free;
    table_->free = index;
}

const Token* TokenCache::find(const Digest& digest) {
    if (table_ == nullptr) {
        return nullptr;
    }
    for (Index index = *bucket_of(digest); index != kNone; index = table_->places[index].next) {
        if (std::memcmp(&table_->places[index].digest, &digest, sizeof(digest)) == 0) {
            take_out(index);
            put_first(index);
            return &table_->places[index].token;
        }
    }
    return nullptr;
}

void TokenCache::remember(const Digest& digest, const Token& token) {
    if (token.memory > kMostBytesOfOne || !make_table()) {
        return;
    }
    while (table_->free == kNone || bytes_ + token.memory > kMostBytes) {
        forget_oldest();
    }
    const Index index = table_->free;
    Place& place = table_->places[index];
    table_->free = place.next;
    Index* bucket = bucket_of(digest);
    place.digest = digest;
    place.token = token;
    place.next = *bucket;
    *bucket = index;
    put_first(index);
    bytes_ += token.memory;
}

}  // namespace rate_limit::key
