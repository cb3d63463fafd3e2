-- What a call asks of Redis besides values: its clock, and to keep what has changed for as long as it matters.

-- Before Redis 7 a script that has read the clock may write only if its writes, not itself, are what replicas get,
-- and here a key then expires after a time that counts from now.
local modern = redis.REDIS_VERSION_NUM
if not modern then
    redis.replicate_commands()
end

-- Microseconds since 1970.
local now = call('TIME')
now = now[1] * 1000000 + now[2]

-- What changes a key that expires when it would have anyway: called as Redis is, if that can.
local rewrite = modern and call

-- Keeps `value` until a moment, rounded up to what Redis can tell; without a value, forgets the key. To make text of
-- a number takes longer than all else that is done for a key, and Redis would take even longer, so that of the last
-- one is used again: many keys expire together. Neither part of it is beyond 32 bits before 2038.
local last_expiry, last_text
local function keep(key, value, moment, same)
    if not value then
        call('DEL', key)
        return
    elseif same and modern then
        -- The key has this moment already, and Redis takes long to forget it and set it anew.
        rewrite('SET', key, value, 'KEEPTTL')
        return
    end
    local expiry = moment + -moment % 1000
    if not modern then
        call('SET', key, value, 'PX', string.format('%.0f', (expiry - (now - now % 1000)) / 1000))
        return
    end
    if expiry ~= last_expiry then
        last_expiry = expiry
        local millis = expiry % 1000000
        last_text = string.format('%d%03d', (expiry - millis) / 1000000, millis / 1000)
    end
    call('SET', key, value, 'PXAT', last_text)
end

-- What a large log needs besides: to read part of a value, or the error that Redis answers; to write a part; and to
-- keep the key until a moment.
local read_part, write_part, keep_until
if large then
    read_part = function(key, first, last)
        return try('GETRANGE', key, first, last)
    end
    write_part = function(key, first, text)
        call('SETRANGE', key, first, text)
    end
    keep_until = function(key, moment)
        call('PEXPIREAT', key, string.format('%.0f', (moment + -moment % 1000) / 1000))
    end
end
