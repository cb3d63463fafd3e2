-- token_bucket, leaky_bucket and gcra: a bucket whose level each request raises and time lowers. The level counts
-- requests, not time, so that it stays when the rate changes.
--
-- State: the time of the last charge (52 bits) and the level then, in whole requests (31 bits, of which 12 are beside
-- the time) and a fraction in units of 1/period (45 bits). The last 4 bytes are omitted if zero. A large state has the
-- time (64 bits), a byte of 0, whole requests and fraction (56 bits each). View: `a` is the whole requests, `b` the
-- fraction.
--
-- `base`: the excess of a rejected request is the level above `base`.
local bucket = kNeeded and function(base, limit, count, seconds, most, ceiling, delay)
    local period = seconds * kSecond
    most = most > ceiling and most or ceiling
    local free = delay < kNoDelay and delay + 1

    -- Returns the view of the bucket at `now`: time, whole requests, fraction, moved.
    local function view(state)
        local last, whole, part, high
        if #state == kShortState then
            last, high = from_bytes('<I6I6', state)
            local top, beside = high % 16, high % 65536
            last, whole, part = last + top * 2 ^ 48, (beside - top) / 16, (high - beside) / 65536
        elseif #state == kWideState then
            last, high, part, whole = from_bytes('<I6I2I6I2', state)
            local top, above = high % 16, part
            part = part % 2 ^ 45
            last, whole = last + top * 2 ^ 48, (high - top) / 16 + 4096 * ((above - part) / 2 ^ 45 + 8 * whole)
        elseif #state == kLargeState then
            local _
            last, high, _, whole, part = from_bytes('<I6I2BI7I7', state)
            last = last + high % 16 * 2 ^ 48
        else
            return now, 0, 0, false
        end
        if whole >= most then
            whole, part = most, 0
        elseif part >= period then
            part = period - 1
        end
        local elapsed = now - last
        if elapsed <= 0 then
            local moved = elapsed < -kClockSlack
            return moved and now or last, whole, part, moved
        end
        local left, gone = whole * period + part, elapsed * count
        if left < 2 ^ 53 and gone < 2 ^ 53 then
            if gone >= left then
                return now, 0, 0, false
            end
            left = left - gone
            part = left % period
            return now, (left - part) / period, part, false
        end
        local gone_whole, gone_part = muldiv(elapsed, count, period)
        whole, part = whole - gone_whole, part - gone_part
        if part < 0 then
            whole, part = whole - 1, part + period
        end
        if whole < 0 then
            whole, part = 0, 0
        end
        return now, whole, part, false
    end

    local function evaluate(state, cost)
        local time, whole, part, moved = now, 0, 0, false
        if state then
            time, whole, part, moved = view(state)
        end
        local used = part > 0 and whole + 1 or whole
        local after = whole + cost
        if used + cost <= limit then
            local turn, excess = 0, 0
            -- As in a queue, a request leaves when all but `delay` of the requests before it have left. A request of
            -- cost n leaves with the last of n.
            if free and cost > 0 and (after > free or (after == free and part > 0)) then
                turn = wait_for(after - free, period, part, count)
                excess = (after - 1) * 1000 + muldiv(part, 1000, period)
            end
            return true, limit - used - cost, wait_for(after, period, part, count), 0, turn, excess,
                time, 0, whole, part, moved
        end
        -- In this order the sums are exact.
        local retry = cost > limit and -1 or wait_for(whole - limit + cost, period, part, count)
        return false, used < limit and limit - used or 0, wait_for(whole, period, part, count), retry, 0,
            (whole - base + cost) * 1000 + muldiv(part, 1000, period), time, 0, whole, part, moved
    end

    -- Raises the level, at most to the limit: count=all also charges rejected requests. `reset` is how long the bucket
    -- then needs to drain, if the caller knows it.
    local function write(_, time, _, whole, part, cost, reset)
        local after = whole + cost
        if after < 0 then
            whole, part = 0, 0
        elseif after < limit or cost < 0 or (after == limit and part == 0) then
            whole = after
        elseif whole < limit then
            whole, part = limit, 0
        end
        local low = time % 2 ^ 48
        local beside = whole % 4096
        local high = (time - low) / 2 ^ 48 + beside * 16
        local expires = time + (reset or wait_for(whole, period, part, count))
        if whole < 4096 and part < 2 ^ 32 then
            return to_bytes('<I6I6', low, high + part * 65536), expires
        end
        if whole >= 2 ^ 31 then
            return to_bytes('<I6I2BI7I7', low, (time - low) / 2 ^ 48, 0, whole, part), expires
        end
        local above = (whole - beside) / 4096
        local bits = above % 8
        return to_bytes('<I6I2I6I2', low, high, part + bits * 2 ^ 45, (above - bits) / 8), expires
    end

    return evaluate, write
end

-- part step
if kOwn(algorithm) then
    -- include bucket_step.lua
end

-- part make_step
if kOwn(algorithm) then
    step = function(value)
        local state, remaining, reset, expires
        -- include bucket_step.lua
        return state, remaining, reset, expires
    end
end

-- part believed
if kOwn(policy.algorithm) then
    -- A level may be needed for longer, but is dropped three years after its last request.
    return last
end

-- part evaluate_at_admission
drains = drains or kOwn(policy.algorithm)

-- part last_charge
if kOwn(policy.algorithm) then
    local last = 0
    for i = 1, policy.rates do
        local state = check.states[check.from[i]]
        if state then
            local low, high = from_bytes('<I6I2', state)
            last = math.max(last, low + high % 16 * 2 ^ 48)
        end
    end
    return last
end

-- part overshoot_of
if kOwn(policy.algorithm) and cost > 0 and since < now then
    local most = 0
    for i = 1, policy.rates do
        local rate = policy[i]
        local drained = math.max(now - check.time[i], 0) * rate.count
        local filled = check.a[i] + (check.b[i] - drained) / (rate.seconds * kSecond)
        most = math.max(most, filled < rate.limit and math.ceil(filled + cost - rate.limit) or cost)
    end
    return most
end

-- part charge_beyond_limit
if kOwn(policy.algorithm) and cost > 0 then
    -- Raises the level, at most to `most`.
    for i = 1, policy.rates do
        local after, most = check.a[i] + cost, policy[i].most
        if after < most then
            check.a[i] = after
        elseif check.a[i] < most then
            check.a[i], check.b[i] = most, 0
        end
    end
    return charge(check, 0)
end

-- part undo
if kOwn(policy.algorithm) then
    -- What may have drained since the charge is not given back. `left` and `part` is what cannot have drained.
    local period = policy[i].seconds * kSecond
    local drained, part = muldiv(math.max(check.time[i] - charged_at, 0), policy[i].count, period)
    local left = charged - drained
    if part > 0 then
        left, part = left - 1, period - part
    end
    if left < 0 then
        left, part = 0, 0
    elseif left >= amount or (whole and left + part > 0) then
        -- A request that is undone before its whole charge may have drained costs nothing.
        left, part = amount, 0
    end
    local level, rest = check.a[i] - left, check.b[i] - part
    if rest < 0 then
        level, rest = level - 1, rest + period
    end
    check.a[i], check.b[i] = math.max(level, 0), level < 0 and 0 or rest
    amount = 0
end

-- part overdraw
if kOwn(policy.algorithm) then
    local after = check.a[i] + cost
    if after < most then
        check.a[i] = after
    elseif check.a[i] < most then
        check.a[i], check.b[i] = most, 0
    end
    return 0
end
