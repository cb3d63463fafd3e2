// Counters of bodies that numbers are read out of, in memory that all processes share.
#pragma once

#include "statistics/statistics.h"

namespace rate_limit {

enum class BodyKind : std::uint8_t { kRequest, kResponse };
constexpr unsigned kBodyKinds = 2;

// What became of reading a body.
enum class BodyResult : std::uint8_t {
    kRead,        // at least one number was found
    kMissing,     // no number was found
    kMalformed,   // the body is not well-formed JSON
    kTooLarge,    // the body or its nesting exceeds a limit
    kCompressed,  // the body has a Content-Encoding
    kNotJson,     // the body has another Content-Type
};
constexpr unsigned kBodyResults = 6;

const char* body_kind_name(BodyKind kind);
const char* body_result_name(BodyResult result);

struct BodyTotals {
    std::uint64_t counts[kBodyKinds][kBodyResults];  // by BodyKind and BodyResult
};

// Created in memory that is all zero.
class BodyStatistics {
  public:
    void count(unsigned stripe, BodyKind kind, BodyResult result) {
        Stripe& own = stripes_[stripe % kStripes];
        add(&own.counts[static_cast<unsigned>(kind)][static_cast<unsigned>(result)]);
    }

    BodyTotals read() const;

  private:
    struct alignas(64) Stripe {
        Counter counts[kBodyKinds][kBodyResults] = {};
    };

    Stripe stripes_[kStripes];
};

}  // namespace rate_limit
