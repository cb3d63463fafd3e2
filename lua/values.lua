-- The names of the clients' keys, in the order of their limits, and their values: false where there is no key, or
-- something else than a string.
--
-- A node of a cluster lets no command have keys of several slots, but a script may read and write one after the
-- other, if it does not declare them: then they follow the groups. All are read before any is written, so that a
-- call leaves everything as it was if one of them cannot be read: its slot is another node's, or on its way there.
-- The answer is then empty.
local call, try = redis.call, redis.pcall

local declared = KEYS[1]
local keys = declared and KEYS or { unpack(ARGV, 3) }
local values = declared and call('MGET', unpack(keys)) or {}
for i = 1, declared and 0 or #keys do
    local value = try('GET', keys[i])
    if value and value.err then
        if not string.find(value.err, '^WRONGTYPE') then
            return ''
        end
        value = false
    end
    values[i] = value
end
