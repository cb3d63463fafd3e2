// A hash table with chains, whose entries are linked in the order of use.
#include "identity/token_cache.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace rate_limit::identity {

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
            table_->entries[i].next = i + 1 < kMostTokens ? static_cast<Index>(i + 1) : kNone;
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
    const Entry& entry = table_->entries[index];
    (entry.newer != kNone ? table_->entries[entry.newer].older : table_->newest) = entry.older;
    (entry.older != kNone ? table_->entries[entry.older].newer : table_->oldest) = entry.newer;
}

void TokenCache::put_first(Index index) {
    Entry& entry = table_->entries[index];
    entry.newer = kNone;
    entry.older = table_->newest;
    (entry.older != kNone ? table_->entries[entry.older].newer : table_->oldest) = index;
    table_->newest = index;
}

void TokenCache::forget_oldest() {
    const Index index = table_->oldest;
    Entry& entry = table_->entries[index];
    take_out(index);
    Index* link = bucket_of(entry.digest);
    while (*link != index) {
        link = &table_->entries[*link].next;
    }
    *link = entry.next;
    bytes_ -= entry.token.memory;
    entry.token = {};
    entry.next = table_->free;
    table_->free = index;
}

const Token* TokenCache::find(const Digest& digest) {
    if (table_ == nullptr) {
        return nullptr;
    }
    for (Index index = *bucket_of(digest); index != kNone; index = table_->entries[index].next) {
        if (std::memcmp(&table_->entries[index].digest, &digest, sizeof(digest)) == 0) {
            take_out(index);
            put_first(index);
            return &table_->entries[index].token;
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
    Entry& entry = table_->entries[index];
    table_->free = entry.next;
    Index* bucket = bucket_of(digest);
    entry.digest = digest;
    entry.token = token;
    entry.next = *bucket;
    *bucket = index;
    put_first(index);
    bytes_ += token.memory;
}

}  // namespace rate_limit::identity
