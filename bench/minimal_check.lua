-- The least script that decides requests by a sliding window: no option, no other algorithm, no exact arithmetic, no
-- clock that is set back, and of all numbers only the remaining requests, -1 for a rejected request. script-costs
-- compares the module's script with this one.
--
--   EVALSHA sha N key1 ... keyN LIMIT SECONDS
local limit, period = tonumber(ARGV[1]), ARGV[2] * 1000000
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local left = period - now % period
local finish = now + left
local expires = string.format('%d%03d', (finish + period) / 1000000, 0)
local values, answers = redis.call('MGET', unpack(KEYS)), {}
for i = 1, #KEYS do
    local count, before = 0, 0
    if values[i] then
        local ends
        ends, count, before = struct.unpack('<I7I4I4', values[i])
        if ends ~= finish then
            count, before = 0, ends == finish - period and count or 0
        end
    end
    local used = count + before * left / period
    if used + 1 <= limit then
        redis.call('SET', KEYS[i], struct.pack('<I7I4I4', finish, count + 1, before), 'PXAT', expires)
        answers[i] = limit - used - 1
    else
        answers[i] = -1
    end
end
return answers
