-- fixed_window: a counter that starts at 0 in each window.
--
-- State: the end of the window (52 bits), the mark of its period (12 bits) and the count (32 bits). A large state has a
-- byte of 0, the count (56 bits) and 56 bits of 0 instead. View: `start` is the end of the window, `a` the count.
-- use window.lua
makers[kFixedWindow] = makers[kFixedWindow] and function(limit, _, seconds, _, flags)
    local period, mark, first = seconds * kSecond, seconds % kPeriodMarks * 16, flags % 2 >= kFlagAlignFirst
    local max_counter = flags >= kFlagLarge and kMaxCount or kMaxSmallCounter

    -- Returns the view of the window at `now`: time, end, count, moved.
    local function view(state)
        local low, high = 0, 0
        if state and #state == kShortState then
            low, high = from_bytes('<I6I6', state)
        end
        local top, beside = high % 16, high % 65536
        local finish, count = low + top * 2 ^ 48, (high - beside) / 65536
        if state and #state == kLargeState then
            local _
            low, beside, _, count = from_bytes('<I6I2BI7', state)
            top = beside % 16
            finish, count = low + top * 2 ^ 48, count < max_counter and count or max_counter
        end
        local changed = beside - top ~= mark
        if now >= finish then
            -- After the clock was set back, windows are not aligned to it. The next window has a whole period too.
            if first then
                return now, now + period, 0, false
            elseif not changed and now < finish + period then
                return now, finish + period, 0, false
            end
            return now, now - now % period + period, 0, false
        elseif changed then
            local start = first and now or now - now % period
            return now, first and finish < start + period and finish or start + period, count, true
        elseif finish - period <= now then
            return now, finish, count, false
        elseif finish - period - now <= kClockSlack then
            return finish - period, finish, count, false
        end
        return now, now + period, count, true
    end

    local function evaluate(state, cost)
        local time, finish, count, moved = view(state)
        local left = finish - time
        if count + cost <= limit then
            local remaining = limit - count - cost
            return true, remaining, remaining < limit and left or 0, 0, 0, 0, time, finish, count, 0, moved
        end
        local remaining = count < limit and limit - count or 0
        return false, remaining, remaining < limit and left or 0, cost > limit and -1 or left, 0,
            (count - limit + cost) * 1000, time, finish, count, 0, moved
    end

    local function write(_, _, finish, count, _, cost)
        count = count + cost
        if count > max_counter then
            count = max_counter
        elseif count < 0 then
            count = 0
        end
        if count == 0 and first then
            -- A window that starts with its first request does not exist without one.
            return false, 0
        end
        local low = finish % 2 ^ 48
        local high = (finish - low) / 2 ^ 48 + mark
        local state = count < 2 ^ 32 and to_bytes('<I6I6', low, high + count * 65536) or
            to_bytes('<I6I2BI7I7', low, high, 0, count, 0)
        if not first and finish % period ~= 0 then
            return state, finish + period
        end
        return state, count > 0 and finish or finish - period
    end

    return evaluate, write, nil, true
end

-- part step
if kOwn(algorithm) then
    -- include fixed_window_step.lua
end

-- part make_step
if kOwn(algorithm) then
    step = function(value)
        local state, remaining, reset
        -- include fixed_window_step.lua
        return state, remaining, reset
    end
end

-- part undo
if policy.algorithm == kFixedWindow and charged_at < check.start[i] - policy[i].seconds * kSecond then
    amount = 0
end
