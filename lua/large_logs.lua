-- Which keys belong to a sliding_log that may have more than LARGE entries. To read and write such a value whole
-- would block Redis for milliseconds, so it is read and written in parts: see log_ring.lua.
--
-- `large` is true at the index of each such key. It is false in a call that has none.
local LARGE = 300
local large = false
if makers[6] then
    local policies, number, at = {}, 0, 1
    while at <= #ARGV[1] do
        local algorithm, _, rates = string.byte(ARGV[1], at, at + 2)
        if algorithm == 6 and from_bytes('<I4', ARGV[1], at + 4) > LARGE then
            policies[number] = true
            large = large or {}
        end
        at, number = at + 24 + rates * 12, number + 1
    end
    -- Limits to decide come in groups, each behind its size. Those to charge come one after the other.
    local limits, index = ARGV[2], 0
    local left = #limits > #KEYS * 5 and 0 or -1
    at = 1
    while large and at <= #limits do
        if left == 0 then
            left = string.byte(limits, at) % 128
            at = at + 1
        end
        index = index + 1
        large[index] = policies[string.byte(limits, at)]
        at, left = at + 5, left - 1
    end
end
