-- A check call: decides group by group, writes what has changed, and returns the decisions.

-- If a key occurs several times, all its limits use the value at its last position. Its writes wait for the end of the
-- call: `expiries` has the time until which each changed value is needed, and is nil if no key occurs twice.
local positions, expiries
if keys[2] then
    positions = { [keys[1]] = 1 }
    for i = 2, #keys do
        local key = keys[i]
        if positions[key] then
            expiries = expiries or {}
        end
        positions[key] = i
    end
end

-- The decisions of the reply, as numbers, until the last line packs them. `format` covers the numbers before the last
-- `run` decisions, which all have the format `form`.
local numbers, filled = { nil, nil, nil, nil, nil, nil, nil, nil }, 0
local format, form, run = kTimeFormat, kDecisionFormat, 0

-- The first two bytes of a group, its head and the index of its first policy, are its kind. For a group of one limit
-- whose policy has one rate and nothing special, which is the most common one, read_group.lua sets:
--   evaluate, write          the functions of the rate; otherwise nil
--   step                     see algorithms.lua
--   fixed_expiry             the same
-- `known_kinds` has the same for the kinds before, if there are several.
local kind, evaluate, write, step, fixed_expiry, known_kinds
local cost, usable_step

-- Decides any group: see group.lua.
local decide_group

local groups, at, index = ARGV[2], 1, 1
local length = #groups
-- Usually all groups have one limit, with the same policy and the same cost. They are then read only once.
local alike = length > 6 and string.byte(groups) == 1 and groups == string.rep(string.sub(groups, 1, 6), length / 6)
local read_until = 1
while at <= length do
    if at >= read_until then
        -- include read_group.lua
        read_until = alike and length + 1 or at + 6
    end
    -- include decide_group.lua
    -- include add_decisions.lua
end

if expiries then
    for position, expires in pairs(expiries) do
        save(keys[position], values[position], expires)
    end
end
return to_bytes(format .. string.rep(form, run), now, unpack(numbers, 1, filled))
