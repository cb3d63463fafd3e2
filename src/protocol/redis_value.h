// The value of a client's key in Redis, and its conversion to the state in shared memory.
//
// All numbers are unsigned and little-endian. core/constants.h has the sizes and flags that are named here.
//
// A short value is the state of one rate. The policy has one rate slot and needs nothing else. A long value
// has more:
//
//     bytes  field
//     8      with kValueHasExpiry, the time until which a rate needs the value; without, the time of the
//            last admitted request, 0 if unknown
//     1      flags: bits 0 to 2         number of rate slots minus 1
//                   kValueHasInterval   the time of the last admitted request is present
//                   kValueHasExpiry     the first field is the expiry
//                   kValueIsWide        states of rates have kWideState bytes, not kShortState
//                   kValueIsLarge       a state has kLargeState bytes; the length of each state precedes it
//                   kValueIsLong        always set. A short value of more than 8 bytes has kShortState or
//                                       kWideState bytes, or this bit is clear in its ninth byte.
//     8      time of the last admitted request, for min_interval; only if kValueHasInterval and
//            kValueHasExpiry are both set
//
// and for each rate slot, without trailing slots that were never used:
//
//     1      mark of the period that the slot was last used for, 0 for none; only if there are several slots
//     2      sliding_buckets: length of the state
//     1      any other algorithm with kValueIsLarge: length of the state
//     ...    state
//
// The state of a rate. Times are in microseconds since 1970:
//
//     algorithm        bits  field
//     token_bucket,    52    time of the last charge
//     leaky_bucket,    12    low bits of the whole requests in the bucket
//     gcra             45    fraction of a request, in units of 1/period
//                      19    high bits of the whole requests
//     fixed_window     52    end of the window
//                      12    period in seconds modulo kPeriodMarks
//                      32    count
//     sliding_window   52    end of the window
//                      12    period in seconds modulo kPeriodMarks
//                      16    low half of the count
//                      16    low half of the count of the previous window
//                      16    high half of the count
//                      16    high half of the count of the previous window
//     sliding_buckets  52    start of the newest bucket
//                      12    index of the newest bucket's counter
//                      8     number of buckets
//                      32    period in seconds
//                      ...   counters, of 8, 16, 32 or 56 bits, as the largest needs
//     sliding_log            see lua/sliding_log.lua and lua/log_ring.lua; C++ does not read logs
//
// A state of kWideState bytes whose last four bytes are zero is written with kShortState bytes. A state with
// a number that does not fit kWideState bytes has kLargeState bytes:
//
//     algorithm        bits  field
//     all              64    the first two fields above; the second one is 0 for a bucket
//                      8     0, so that a value with one state is not taken for a long one
//     token_bucket,    56    whole requests
//     leaky_bucket,    56    fraction of a request, in units of 1/period
//     gcra
//     fixed_window,    56    count
//     sliding_window   56    count of the previous window; 0 for fixed_window
#pragma once

#include <cstdint>
#include <string_view>

#include "algorithms/state_layout.h"

namespace rate_limit {

// Decodes a value into `state`: the words_of(layout) words that a zone of `policy` and `layout` keeps for a
// client. The word of the weight is 0. The value may have been written for another number of rates; it is
// converted as lua/state.lua does. False, with all words zero, if the policy's algorithm cannot have written
// the value, and for sliding_log.
bool decode_value(const Policy& policy, const StateLayout& layout, std::string_view value,
                  std::uint64_t* state);

}  // namespace rate_limit
