-- Functions that write keys.

-- Calls a command that writes a key. If the call does not declare its keys, Redis 7.4 and later look up a key of a
-- migrating slot in the slot of the command before, and then refuse the command as if the key were on another node.
-- After a command without a key, the lookup is right. So a command on such a key is tried twice.
local write_key = KEYS[1] and call or function(...)
    local reply = try(...)
    if type(reply) == 'table' and reply.err then
        call('TIME')
        reply = call(...)
    end
    return reply
end

-- Calls a command that writes a key and leaves its expiry; false if Redis has no such command.
local rewrite = modern and write_key

-- Saves `value` until the time `expires`, rounded up to milliseconds; deletes the key if `value` is false. If
-- `same_expiry`, the key has this expiry already: Redis takes longer to set it again than to leave it.
--
-- Formatting the expiry takes longer than everything else here, and often several keys of a call expire at the same
-- time, so the last text is cached. Seconds and milliseconds are formatted apart, because each fits %d, which has 32
-- bits, until 2038.
local last_expiry, last_text
local function save(key, value, expires, same_expiry)
    if not value then
        write_key('DEL', key)
        return
    elseif same_expiry and modern then
        rewrite('SET', key, value, 'KEEPTTL')
        return
    end
    local expiry = expires + -expires % 1000
    if not modern then
        write_key('SET', key, value, 'PX', string.format('%.0f', (expiry - (now - now % 1000)) / 1000))
        return
    end
    if expiry ~= last_expiry then
        last_expiry = expiry
        local millis = expiry % kSecond
        last_text = string.format('%d%03d', (expiry - millis) / kSecond, millis / 1000)
    end
    write_key('SET', key, value, 'PXAT', last_text)
end
