// Names of stores and of reasons for a bypass.
#include "statistics/decided_by.h"

namespace rate_limit {

const char* decided_by_name(DecidedBy decided_by) {
    static constexpr const char* kNames[kDeciders] = {"", "memory", "redis", "cache", "fallback", "lease"};
    return kNames[static_cast<unsigned>(decided_by)];
}

const char* bypass_name(Bypass bypass) { return bypass == Bypass::kEmptyKey ? "empty_key" : "rate_off"; }

const char* settled_name(unsigned settled) {
    static constexpr const char* kNames[kSettledResults] = {"same", "more", "less", "kept"};
    return kNames[settled];
}

}  // namespace rate_limit
