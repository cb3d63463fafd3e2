-- Records that an instance is alive, and counts the instances.
--
-- KEYS: the sorted set of the instances, whose scores are the milliseconds of their last heartbeats. ARGV: the id of
-- the instance, the number of instances that it knows, its rank among them. Returns the number and the rank.
--
-- An instance without a heartbeat for five seconds is removed. Ranks follow ids, so they are stable while the set is.
-- To find a rank takes a look at all members, so an instance keeps the rank that it knows while the number is the same.
if not redis.REDIS_VERSION_NUM then
    redis.replicate_commands()
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 5000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + 5000, '+inf')
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], 5000)
local count = redis.call('ZCARD', KEYS[1])
if ARGV[2] == tostring(count) then
    return ARGV[2] .. ' ' .. ARGV[3]
end

local members, rank = redis.call('ZRANGE', KEYS[1], 0, -1), 0
for _, member in ipairs(members) do
    if member < ARGV[1] then
        rank = rank + 1
    end
end
return count .. ' ' .. rank
