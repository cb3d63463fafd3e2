-- fixed_window: a counter that starts anew with each window.
--
-- State: the end of the window (52 bits), the mark of its period (12 bits) and what was counted in it (32 bits).
makers[3] = makers[3] and function(limit, _, seconds, flags)
    local period, mark, first = seconds * 1000000, seconds % 4093 * 16, flags % 2 == 1

    -- The window at `now`: the moment, the end, the count, and whether the state has to follow.
    local function view(place)
        local low, high = 0, 0
        if place and #place == 12 then
            low, high = from_bytes('<I6I6', place)
        end
        local top, beside = high % 16, high % 65536
        local finish, count = low + top * 2 ^ 48, (high - beside) / 65536
        local changed = beside - top ~= mark
        if now >= finish then
            -- A window that a set-back has moved off the clock is followed by a whole one.
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
        elseif finish - period - now <= 1000000 then
            return finish - period, finish, count, false
        end
        return now, now + period, count, true
    end

    local function evaluate(place, cost)
        local time, finish, count, moved = view(place)
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
        if count > 2 ^ 32 - 1 then
            count = 2 ^ 32 - 1
        elseif count < 0 then
            count = 0
        end
        if count == 0 and first then
            -- A window that starts with the first request has not started before it.
            return false, 0
        end
        local low = finish % 2 ^ 48
        local place = to_bytes('<I6I6', low, (finish - low) / 2 ^ 48 + mark + count * 65536)
        if not first and finish % period ~= 0 then
            return place, finish + period
        end
        return place, count > 0 and finish or finish - period
    end

    -- Both at once, in the present window, if that has counted something.
    local function step(place, cost)
        local low, high = from_bytes('<I6I6', place)
        local top, beside = high % 16, high % 65536
        local left, count = low + top * 2 ^ 48 - now, (high - beside) / 65536
        if left > 0 and left <= period and beside - top == mark and count > 0 and count + cost <= limit then
            return to_bytes('<I6I6', low, high + cost * 65536), limit - count - cost, left
        end
    end

    return evaluate, write, nil, step
end
