-- Decides the most common call: one request against one limit that has one rate and nothing special, where the request
-- fits and only a number changes in the client's value. Other calls go on below, with the functions that they need.
if rewrite and KEYS[1] and #ARGV[2] == 6 then
    local kind, cost = from_bytes('<I2I4', ARGV[2])
    local algorithm, flags, rates, slots, _, ceiling, delay, min_interval, limit, count, seconds, most =
        from_bytes(kPolicyFormat .. kRateFormat, ARGV[1])
    -- Large logs are read in parts.
    if kind == 1 and cost > 0 and algorithm ~= kSlidingLog and rates == 1 and slots == 1 and min_interval == 0 and
        flags % 4 < kFlagCountAll then
        values = call('MGET', KEYS[1])
        local value, period, mark = values[1], seconds * kSecond, seconds % kPeriodMarks * 16
        local state, remaining, reset, expires
        if value and #value == kShortState then
            -- parts step
        end
        if state and remaining < 2 ^ 32 then
            if expires then
                save(KEYS[1], state, expires)
            else
                rewrite('SET', KEYS[1], state, 'KEEPTTL')
            end
            return to_bytes(kTimeFormat .. kDecisionFormat, now, kDecisionAllowed + remaining * 256, reset)
        end
    end
end
