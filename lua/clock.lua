-- What every script uses: its commands, the packing of bytes, and the clock of Redis.
local call, try = redis.call, redis.pcall
local from_bytes, to_bytes = struct.unpack, struct.pack

-- Before Redis 7, a script that has read the clock may write only with effects replication, and SET has no PXAT and no
-- KEEPTTL.
local modern = redis.REDIS_VERSION_NUM
if not modern then
    redis.replicate_commands()
end

-- Microseconds since 1970.
local now = call('TIME')
now = now[1] * kSecond + now[2]

-- The values of the keys in KEYS; false unless lone.lua has read them.
local values = false
