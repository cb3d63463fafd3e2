// Names of sources and reasons.
#include "store/source.h"

namespace rate_limit {

const char* source_name(Source source) {
    static constexpr const char* kNames[kSources] = {"", "memory", "redis", "cache", "fallback"};
    return kNames[static_cast<unsigned>(source)];
}

const char* reason_name(Reason reason) {
    switch (reason) {
        case kNoSlot:
            return "slots";  // Redis has a "busy" of its own
        case kNoRate:
            return "rate";
        default:
            return redis::error_name(static_cast<redis::Error>(reason));
    }
}

const char* bypass_name(Bypass bypass) { return bypass == Bypass::kEmptyKey ? "empty_key" : "rate_off"; }

}  // namespace rate_limit
