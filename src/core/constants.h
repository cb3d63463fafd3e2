// The constants that C++ and the scripts of lua/ share: limits, record formats. The numbers of algorithms are
// in algorithm_table.h.
//
// scripts/embed reads this file and replaces these names in lua/ by their values. A definition therefore
// stands on one line, and its value is a decimal number or a string. A string is a format of Lua's
// struct.pack: "<" is little-endian, "B" one byte, "I4" an unsigned number of four bytes. src/protocol/wire.h
// describes the records.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rate_limit {

// Times, in microseconds.
constexpr std::int64_t kSecond = 1'000'000;
constexpr std::int64_t kMaxPeriod = 31'622'400'000'000;  // 366 days

// 2^52 - 1, 142 years: the longest wait that is reported. Stored times have 52 bits.
constexpr std::int64_t kForever = 4'503'599'627'370'495;

// A process may be suspended between reading the clock and using the time. A clock that is behind the state
// by at most this stands still until it has caught up. A clock further behind was set back, and the state
// follows it.
constexpr std::int64_t kClockSlack = 1'000'000;

// Limits.
constexpr std::size_t kMaxRates = 8;                 // of a policy
constexpr std::uint32_t kMaxLogEntries = 1'048'576;  // of sliding_log

// Counts, costs and counters, in requests. Lua's numbers are exact up to kMaxCount, 2^53 - 1. A zone whose
// counts are at most kMaxSmallCount has small states, whose counters saturate at kMaxSmallCounter.
constexpr std::uint64_t kMaxCount = 9'007'199'254'740'991;
constexpr std::uint64_t kMaxSmallCount = 1'000'000'000;
constexpr std::uint64_t kMaxSmallCounter = 4'294'967'295;
constexpr std::uint64_t kNoDelay = 9'007'199'254'740'991;  // a `delay` that delays no request

// Marks of a period in seconds: the remainder by these primes.
constexpr std::uint64_t kPeriodMarks = 4093;  // beside the end of a window; fits the 12 bits above the time
constexpr std::int64_t kRateSlotMarks = 251;  // plus 1, beside a rate slot; fits a byte

// A policy record: a head, then a record for each rate.
inline constexpr char kPolicyFormat[] = "<BBBBI4I7I7I8";
constexpr std::size_t kPolicySize = 30;
inline constexpr char kRateFormat[] = "<I7I7I4I7";
constexpr std::size_t kRateSize = 25;
enum PolicyFlag : unsigned {
    kFlagAlignFirst = 1,
    kFlagCountAll = 2,
    kFlagVaried = 4,
    kFlagLarge = 8,
};

// A group record: a head, then a record for each limit. A sync entry is a large limit record without a group.
constexpr std::size_t kGroupSize = 1;
constexpr unsigned kLargeCosts = 32;
enum GroupKind : unsigned {
    kDecide = 0,
    kOverdraw = 64,
    kUndo = 128,
    kUndoRequest = 192,
};
inline constexpr char kLimitFormat[] = "<BI4";
constexpr std::size_t kLimitSize = 5;
inline constexpr char kLargeLimitFormat[] = "<BI7";
constexpr std::size_t kLargeLimitSize = 8;
inline constexpr char kChargeFormat[] = "<I7I8";
constexpr std::size_t kChargeSize = 15;

// A reply: the time, then a record for each limit or sync entry.
inline constexpr char kTimeFormat[] = "<I8";
inline constexpr char kDecisionFormat[] = "I5I7";
inline constexpr char kMoreFormat[] = "I7I8";
inline constexpr char kHighFormat[] = "I4";
inline constexpr char kEntryFormat[] = "<I7I2";
enum DecisionFlag : unsigned {
    kDecisionAllowed = 8,
    kDecisionMore = 16,
    kDecisionNever = 32,
    kDecisionHigh = 64,
};

// A client's value. The state of a rate has one of these sizes; that of sliding_buckets is a ring. A long
// value has flags in its ninth byte.
constexpr std::size_t kShortState = 12;
constexpr std::size_t kWideState = 16;
constexpr std::size_t kLargeState = 23;
constexpr std::size_t kRingHeader = 13;
constexpr std::size_t kMostReported = 8192;  // bytes in the reply to a sync call; a longer value is no state
enum ValueFlag : unsigned {
    kValueHasInterval = 8,
    kValueHasExpiry = 16,
    kValueIsWide = 32,
    kValueIsLarge = 64,
    kValueIsLong = 128,
};

// A log has a header, then its entries. A large log, of more than kMostWholeEntries entries, is stored as a
// ring: lua/log_ring.lua describes its header. kLargeLogFlags is its ninth byte, which no other value has.
// The tenth byte is kLargeLogEntry plus the bytes of an entry.
constexpr std::size_t kLogHeader = 9;
constexpr std::uint32_t kMostWholeEntries = 300;
constexpr std::size_t kLargeLogHeader = 44;
constexpr unsigned kLargeLogFlags = 192;
constexpr std::size_t kLargeLogEntry = 16;

}  // namespace rate_limit
