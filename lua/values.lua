-- The clients' keys, in the order of the limits, and their values. A value is false if there is no key, or if the key
-- does not hold a string.
--
-- In a Cluster, a command may not have keys of several slots. A script may, one key after the other, if the call does
-- not declare the keys. Such keys follow the groups in ARGV. A slot may belong to another node or be migrating, so all
-- keys are read before the first one is written: if one cannot be read, the reply is empty and nothing has changed.
--
-- `large` is true at the index of each key whose value its algorithm reads and writes in parts. `large` is false if the
-- call has no such key.
local large = false
-- parts values

local declared = KEYS[1]

-- Calls a command that reads a key, and returns its error as a table. Tries twice as write_key does.
local function read_key(...)
    local value = try(...)
    if value and value.err and not declared then
        call('TIME')
        value = try(...)
    end
    return value
end

local keys = declared and KEYS or { unpack(ARGV, 3) }
values = values or (declared and not large and call('MGET', unpack(keys)) or {})
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
    local value = not (large and large[i]) and read_key('GET', keys[i])
    if value and value.err then
        if not string.find(value.err, '^WRONGTYPE') then
            return ''
        end
        value = false
    end
    values[i] = value
end
