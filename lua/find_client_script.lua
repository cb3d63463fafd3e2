-- Looks for the state of a client. KEYS: the client's key. Returns '1', or '0' if there is no state.
return tostring(redis.call('EXISTS', KEYS[1]))
