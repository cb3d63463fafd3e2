// Counts empty keys in the shared state of a zone, and logs the warning.
#include "handlers/empty_key.h"

#include "store/shared_state.h"

namespace rate_limit {

void end_empty_keys(Zone* zone) {
    zone->keys_judged = true;
    zone->shared->empty_keys.end();
}

void note_empty_key(ngx_http_request_t* r, const AppliedLimit& applied) {
    Zone* zone = applied.zone;
    EmptyKeys& keys = zone->shared->empty_keys;
    const bool all_empty = keys.count();
    zone->keys_judged = keys.ended();
    if (!all_empty) {
        return;
    }
    const char* reason = applied.phase == NGX_HTTP_PRECONTENT_PHASE
                             ? "the key is empty even after authentication, in the precontent phase"
                             : "limits are checked before authentication unless they have "
                               "\"phase=precontent\", and a variable that authentication sets is still empty";
    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "the key \"%V\" of zone \"%V\" was empty for all of its first %uD requests, which were not "
                  "limited: %s",
                  &zone->key.value, &zone->name, EmptyKeys::kRequests, reason);
}

}  // namespace rate_limit
