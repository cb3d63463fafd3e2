-- The clock of Redis, and functions that write keys.

-- Before Redis 7, a script that has read the clock may write only with effects replication, and SET has no PXAT.
local modern = redis.REDIS_VERSION_NUM
if not modern then
    redis.replicate_commands()
end

-- Microseconds since 1970.
local now = call('TIME')
now = now[1] * kSecond + now[2]

-- Calls a command that writes a key and leaves its expiry; false if Redis has no such command.
local rewrite = modern and call

-- Saves `value` until the time `expires`, rounded up to milliseconds; deletes the key if `value` is false. If
-- `same_expiry`, the key has this expiry already: Redis takes longer to set it again than to leave it.
--
-- Formatting the expiry takes longer than everything else here, and often several keys of a call expire at the same
-- time, so the last text is cached. Seconds and milliseconds are formatted apart, because each fits %d, which has 32
-- bits, until 2038.
local last_expiry, last_text
local function save(key, value, expires, same_expiry)
    if not value then
        call('DEL', key)
        return
    elseif same_expiry and modern then
        rewrite('SET', key, value, 'KEEPTTL')
        return
    end
    local expiry = expires + -expires % 1000
    if not modern then
        call('SET', key, value, 'PX', string.format('%.0f', (expiry - (now - now % 1000)) / 1000))
        return
    end
    if expiry ~= last_expiry then
        last_expiry = expiry
        local millis = expiry % kSecond
        last_text = string.format('%d%03d', (expiry - millis) / kSecond, millis / 1000)
    end
    call('SET', key, value, 'PXAT', last_text)
end

-- For keys in `large`: reads a part of a value, or returns the error of Redis as a table; writes a part; sets the
-- expiry.
local read_part, write_part, save_until
if large then
    read_part = function(key, first, last)
        return try('GETRANGE', key, first, last)
    end
    write_part = function(key, first, text)
        call('SETRANGE', key, first, text)
    end
    save_until = function(key, expires)
        call('PEXPIREAT', key, string.format('%.0f', (expires + -expires % 1000) / 1000))
    end
end
