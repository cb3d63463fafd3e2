// Limits whose state is in this machine's memory: a request's limits are decided together, all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "store/host.h"
#include "store/table.h"

namespace rate_limit {

constexpr std::size_t kMaxLimits = 16;  // that one request may be under

// One of a request's limits.
struct Limit {
    Table* table;
    const Policy* policy;  // has rates, and the table's shape holds it
    std::uint64_t client;  // Table::hash of the client's name
    std::uint32_t cost;    // 0 looks
    Decision decision;     // the answer
};

enum class Verdict : std::uint8_t {
    kAdmitted,  // and charged to every limit
    kRejected,  // by at least one; the decisions of the others say what they would have answered
    kBusy,      // nothing was decided or charged: a limit found no slot for its client
};

// Decides and charges. The limits must be of different tables, and no more than kMaxLimits.
Verdict check(Limit* limits, std::size_t count, Micros now, const Host& host);

// Decides as check does, but charges nothing if it admits: the request has to ask elsewhere too.
Verdict precheck(Limit* limits, std::size_t count, Micros now, const Host& host);

// Decides and notes a request that was rejected elsewhere, where rejected requests count.
Verdict note_refusal(Limit* limits, std::size_t count, Micros now, const Host& host);

}  // namespace rate_limit
