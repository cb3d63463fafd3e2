// Reports a zone whose key is empty for all of its first requests: such a zone limits no request.
#pragma once

#include "nginx/zone.h"

namespace rate_limit {

// Records in the shared state of a zone that a request has a key.
void end_empty_keys(Zone* zone);

// Called for each request with a key. Costs a test once a request has had a key.
inline void note_key(Zone* zone) {
    if (!zone->keys_judged) {
        end_empty_keys(zone);
    }
}

// Called for each request with an empty key, unless zone->keys_judged. Logs a warning once, for the last of
// the first requests.
void note_empty_key(ngx_http_request_t* r, const AppliedLimit& applied);

}  // namespace rate_limit
