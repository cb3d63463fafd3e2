-- Deletes the state of a client. KEYS: the client's key. Returns '1', or '0' if there was no state.
return tostring(redis.call('DEL', KEYS[1]))
