// Names of reasons.
#include "store/reason.h"

namespace rate_limit {

const char* reason_name(Reason reason) {
    switch (reason) {
        case kNoSlot:
            return "slots";  // "busy" is the name of an error of Redis
        case kNoRate:
            return "rate";
        default:
            return redis::error_name(static_cast<redis::Error>(reason));
    }
}

}  // namespace rate_limit
