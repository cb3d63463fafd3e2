-- Reads the changed rates of zones and the clients that were reset.
--
-- KEYS: the hash of the rates, the sorted set of the resets. ARGV: the moment of the last reset that the caller knows,
-- in microseconds, or 0 to read no resets; then the names of zones. Returns strings, each after its length: the moment
-- of the last reset, the rate of each zone (empty if it was not changed), the resets.
local time = redis.call('TIME')
local now, since = time[1] * kSecond + time[2], tonumber(ARGV[1])
local resets = {}
if since > 0 then
    -- The clock was set back: moments of new resets may be below that of the caller.
    if since > now and redis.call('EXISTS', KEYS[2]) == 0 then
        since = now - 1
    end
    resets = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', since), '+inf', 'WITHSCORES')
end

local parts = { resets[#resets] or string.format('%.0f', math.max(since, now - 1)) }
for i, rate in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV, 2))) do
    parts[i + 1] = rate or ''
end
for i = 1, #resets, 2 do
    parts[#parts + 1] = resets[i]
end
for i, part in ipairs(parts) do
    parts[i] = struct.pack('<I4', #part) .. part
end
return table.concat(parts)
