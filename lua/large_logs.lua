-- Which keys hold a sliding_log of more than LARGE entries. Reading or writing such a value as a whole would block
-- Redis for milliseconds, so log_ring.lua reads and writes it in parts.
local LARGE = kMostWholeEntries
if makers[kSlidingLog] then
    local has_large_log, number, at = {}, 0, 1
    while at <= #ARGV[1] do
        local algorithm, _, rates, _, size, _, _, _, _, _, _, _, next_rate = read_policy(0, at)
        if algorithm == kSlidingLog and size > LARGE then
            has_large_log[number] = true
            large = large or {}
        end
        at, number = next_rate + (rates - 1) * kRateSize, number + 1
    end
    -- main.lua gets groups, each with a head. sync.lua gets entries without heads, and two more arguments.
    local limits, index = ARGV[2], 0
    local left = KEYS[1] and ARGV[4] and -1 or 0
    local record = kLargeLimitSize
    at = 1
    while large and at <= #limits do
        if left == 0 then
            local head = string.byte(limits, at)
            left = head % kLargeCosts
            record = head % kOverdraw >= kLargeCosts and kLargeLimitSize or kLimitSize
            record = head >= kUndo and record + kChargeSize or record
            at = at + kGroupSize
        end
        index = index + 1
        large[index] = has_large_log[string.byte(limits, at)]
        at, left = at + record, left - 1
    end
end
