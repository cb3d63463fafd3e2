-- sliding_window: the count of this window, and the part of the previous window's count that still overlaps.
--
-- State: the end of the window (52 bits), the mark of its period (12 bits), the low halves of its count and of the
-- previous window's count (16 bits each), then their high halves. The high halves are omitted if both are zero. A large
-- state has a byte of 0 and both counts (56 bits each) instead. View: `start` is the end of the window, `a` its count,
-- `b` the previous count.
-- use window.lua
makers[kSlidingWindow] = makers[kSlidingWindow] and function(limit, _, seconds, most, flags)
    local period, mark = seconds * kSecond, seconds % kPeriodMarks * 16
    local max_counter = flags >= kFlagLarge and kMaxCount or kMaxSmallCounter
    -- The largest count that a request or an instance can have left.
    most = flags % 4 >= kFlagCountAll and max_counter or most

    -- Returns the view of the window at `now`: time, end, count, previous count, moved.
    local function view(state)
        local low, high, count, before = 0, 0, 0, 0
        if #state == kShortState then
            low, before = from_bytes('<I6I6', state)
            high, count = before % 65536, before % 2 ^ 32
            before, count = (before - count) / 2 ^ 32, (count - high) / 65536
        elseif #state == kWideState then
            local count_high, before_high
            low, high, count, before, count_high, before_high = from_bytes('<I6I2I2I2I2I2', state)
            count, before = count + count_high * 65536, before + before_high * 65536
        elseif #state == kLargeState then
            local _
            low, high, _, count, before = from_bytes('<I6I2BI7I7', state)
        end
        local top = high % 16
        local finish = low + top * 2 ^ 48
        local changed = high - top ~= mark
        local time, moved = now, false
        if now >= finish then
            local follows = now < finish + period
            local after = follows and not changed and finish + period or now - now % period + period
            if not changed or finish <= after - period then
                before = follows and count or 0
                count = 0
            end
            finish = after
            moved = changed and (count > 0 or before > 0)
        elseif changed then
            finish = now - now % period + period
            moved = true
        elseif finish - period > now then
            moved = finish - period - now > kClockSlack
            time = moved and now or finish - period
            finish = time + period
        end
        if count > most then
            count = most
        end
        if before > most then
            before = most
        end
        return time, finish, count, before, moved
    end

    -- Returns the excess in 1/1000 requests, rounded up: `over` and the part of the previous count that overlaps.
    local function excess_of(over, before, left)
        local whole, rest = muldiv(before, left, period)
        return (over + whole) * 1000 + wait_for(rest, 1000, 0, period)
    end

    local function evaluate(state, cost)
        local time, finish, count, before, moved = now, now - now % period + period, 0, 0, false
        if state then
            time, finish, count, before, moved = view(state)
        end
        local left = finish - time
        local used = before > 0 and count + wait_for(before, left, 0, period) or count
        if before > kForever then
            -- wait_for returns at most kForever.
            local whole, rest = muldiv(before, left, period)
            used = count + whole + (rest > 0 and 1 or 0)
        end
        if used + cost <= limit then
            local reset = (count > 0 or cost > 0) and left + period or before > 0 and left or 0
            return true, limit - used - cost, reset, 0, 0, 0, time, finish, count, before, moved
        end
        -- The request fits once the overlapping part of a count is small enough: of the previous count during this
        -- window, or of this window's count during the next one.
        local room, retry = limit - cost, -1
        if room >= count then
            retry = left - muldiv(room - count, period, before)
        elseif room >= 0 then
            retry = left + period - muldiv(room, period, count)
        end
        return false, used < limit and limit - used or 0, count > 0 and left + period or before > 0 and left or 0,
            retry, 0, excess_of(count - limit + cost, before, left), time, finish, count, before, moved
    end

    local function write(_, _, finish, count, before, cost)
        count = count + cost
        if count > max_counter then
            count = max_counter
        end
        local low = finish % 2 ^ 48
        local high = (finish - low) / 2 ^ 48 + mark
        -- After the clock was set back, windows are not aligned to it. The next window then begins at the end of this
        -- one, so an empty state is needed too.
        local expires = finish + period
        if count == 0 and finish % period == 0 then
            expires = before > 0 and finish or finish - period
        end
        if count < 65536 and before < 65536 then
            return to_bytes('<I6I6', low, high + count * 65536 + before * 2 ^ 32), expires
        end
        if count >= 2 ^ 32 or before >= 2 ^ 32 then
            return to_bytes('<I6I2BI7I7', low, high, 0, count, before), expires
        end
        local count_low, before_low = count % 65536, before % 65536
        return to_bytes('<I6I2I2I2I2I2', low, high, count_low, before_low, (count - count_low) / 65536,
            (before - before_low) / 65536), expires
    end

    return evaluate, write, nil, true
end

-- part step
if kOwn(algorithm) then
    -- include sliding_window_step.lua
end

-- part make_step
if kOwn(algorithm) then
    step = function(value)
        local state, remaining, reset
        -- include sliding_window_step.lua
        return state, remaining, reset
    end
end

-- part undo
if policy.algorithm == kSlidingWindow then
    local period = policy[i].seconds * kSecond
    local begin = check.start[i] - period
    if charged_at >= begin then
        if charged_at == kForever then
            check.b[i] = math.max(check.b[i] - math.max(amount - check.a[i], 0), 0)
        end
        amount = math.min(amount, check.a[i])
    else
        check.b[i] = charged_at >= begin - period and math.max(check.b[i] - amount, 0) or check.b[i]
        amount = 0
    end
end
