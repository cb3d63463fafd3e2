-- Tells all instances to forget a client.
--
-- KEYS: the sorted set of the resets, whose scores are moments in microseconds. ARGV: the reset. No two resets have the
-- same moment, so that an instance that has read one of them does not miss the other.
if not redis.REDIS_VERSION_NUM then
    redis.replicate_commands()
end
local time = redis.call('TIME')
local now = time[1] * kSecond + time[2]
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local moment = math.max(now, (tonumber(last) or 0) + 1)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - 60 * kSecond))
redis.call('ZADD', KEYS[1], string.format('%.0f', moment), ARGV[1])
redis.call('PEXPIRE', KEYS[1], 60000)
return 'OK'
