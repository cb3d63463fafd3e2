-- Changes the rate of a zone, or with an empty rate sets it back to the configuration.
--
-- KEYS: the hash of the rates. ARGV: the zone, the rate. Returns the rate before.
local old = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if ARGV[2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
return old
