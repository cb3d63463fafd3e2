-- The policies of the call, decoded from ARGV[1]. src/protocol/wire.h describes the records.

-- A function for each algorithm: see algorithms.lua. The loop below sets a maker to true if the call needs it. The
-- files of the algorithms then set the function.
local makers = { kFalseForEach }
do
    local text, at = ARGV[1], 1
    while at <= #text do
        local algorithm, _, rates = string.byte(text, at, at + 2)
        makers[algorithm] = true
        at = at + kPolicySize + rates * kRateSize
    end
end

-- Decodes the policy `index` records after the one at `at`, which is the first if not given. Returns the algorithm, the
-- flags, the number of rates, the number of rate slots, the size (buckets of sliding_buckets, largest number of entries
-- of sliding_log), ceiling, delay, min_interval; capacity, count, period and most of the first rate; and the position
-- after that rate. `most` is what a client may have used, more than the capacity if it may owe. A table would be more
-- readable, but costs 7 % of a call.
local function read_policy(index, at)
    at = at or 1
    for _ = 1, index do
        at = at + kPolicySize + string.byte(ARGV[1], at + 2) * kRateSize
    end
    return from_bytes(kPolicyFormat .. kRateFormat, ARGV[1], at)
end
