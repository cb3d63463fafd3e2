-- fixed_window: a counter that starts at 0 in each window.
--
-- State: the end of the window (52 bits), the mark of its period (12 bits) and the count (32 bits). View: `start` is
-- the end of the window, `a` the count.
-- use window.lua
makers[kFixedWindow] = makers[kFixedWindow] and function(limit, _, seconds, _, flags)
    local period, mark, first = seconds * kSecond, seconds % kPeriodMarks * 16, flags % 2 >= kFlagAlignFirst

    -- Returns the view of the window at `now`: time, end, count, moved.
    local function view(state)
        local low, high = 0, 0
        if state and #state == kShortState then
            low, high = from_bytes('<I6I6', state)
        end
        local top, beside = high % 16, high % 65536
        local finish, count = low + top * 2 ^ 48, (high - beside) / 65536
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
            (count + cost - limit) * 1000, time, finish, count, 0, moved
    end

    local function write(_, _, finish, count, _, cost)
        count = count + cost
        if count > kMaxCounter then
            count = kMaxCounter
        elseif count < 0 then
            count = 0
        end
        if count == 0 and first then
            -- A window that starts with its first request does not exist without one.
            return false, 0
        end
        local low = finish % 2 ^ 48
        local state = to_bytes('<I6I6', low, (finish - low) / 2 ^ 48 + mark + count * 65536)
        if not first and finish % period ~= 0 then
            return state, finish + period
        end
        return state, count > 0 and finish or finish - period
    end

    -- For a window that has not ended and whose count is not 0.
    local function step(state, cost)
        local low, high = from_bytes('<I6I6', state)
        local top, beside = high % 16, high % 65536
        local left, count = low + top * 2 ^ 48 - now, (high - beside) / 65536
        if left > 0 and left <= period and beside - top == mark and count > 0 and count + cost <= limit then
            return to_bytes('<I6I6', low, high + cost * 65536), limit - count - cost, left
        end
    end

    return evaluate, write, nil, step, true
end

-- part undo
if policy.algorithm == kFixedWindow and charged_at < check.start[i] - policy[i].seconds * kSecond then
    amount = 0
end
