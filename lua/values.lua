-- The names of the clients' keys, in the order of their limits, and their values: false where there is no key, or
-- something else than a string.
--
-- A node of a cluster lets no command have keys of several slots, but a script may read and write one after the
-- other, if it does not declare them: then they follow the groups. All are read before any is written, so that a
-- call leaves everything as it was if one of them cannot be read: its slot is another node's, or on its way there.
-- The answer is then empty.
--
-- Values of large logs are not read here: see log_ring.lua.
local call, try = redis.call, redis.pcall

local declared = KEYS[1]
local keys = declared and KEYS or { unpack(ARGV, 3) }
local values = declared and not large and call('MGET', unpack(keys)) or {}
if declared and large then
    local others, at = {}, {}
    for i = 1, #keys do
        if not large[i] then
            others[#others + 1] = keys[i]
            at[#others] = i
        end
    end
    local found = others[1] and call('MGET', unpack(others))
    for i = 1, #others do
        values[at[i]] = found[i]
    end
end
for i = 1, declared and 0 or #keys do
    local value = not (large and large[i]) and try('GET', keys[i])
    if value and value.err then
        if not string.find(value.err, '^WRONGTYPE') then
            return ''
        end
        value = false
    end
    values[i] = value
end
