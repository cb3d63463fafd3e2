-- sliding_window: the count of this window and what still overlaps of the one before.
--
-- State: the end of the window (52 bits), the mark of its period (12 bits), its count and the one before, of both the
-- low halves first (16 bits each). The high halves are left out if zero.
makers[4] = makers[4] and function(limit, _, seconds, flags)
    local period, mark = seconds * 1000000, seconds % 4093 * 16
    -- What was counted beyond the limit is believed only as far as someone may have counted it.
    local most = flags % 4 >= 2 and 2 ^ 32 or flags >= 8 and limit * 2 or limit

    -- The window at `now`: the moment, the end, the count and the one before, and whether the state has to follow.
    local function view(place)
        local low, high, count, before = 0, 0, 0, 0
        if #place == 12 then
            low, before = from_bytes('<I6I6', place)
            high, count = before % 65536, before % 2 ^ 32
            before, count = (before - count) / 2 ^ 32, (count - high) / 65536
        elseif #place == 16 then
            local count_high, before_high
            low, high, count, before, count_high, before_high = from_bytes('<I6I2I2I2I2I2', place)
            count, before = count + count_high * 65536, before + before_high * 65536
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
            moved = finish - period - now > 1000000
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

    local function evaluate(place, cost)
        local time, finish, count, before, moved = now, now - now % period + period, 0, 0, false
        if place then
            time, finish, count, before, moved = view(place)
        end
        local left = finish - time
        local used = before > 0 and count + wait_for(before, left, 0, period) or count
        if used + cost <= limit then
            local reset = (count > 0 or cost > 0) and left + period or before > 0 and left or 0
            return true, limit - used - cost, reset, 0, 0, 0, time, finish, count, before, moved
        end
        -- The request fits once the part of a count that still overlaps is small enough: of the one before while this
        -- window lasts, or of this one in the next.
        local room, retry = limit - cost, -1
        if room >= count then
            retry = left - muldiv(room - count, period, before)
        elseif room >= 0 then
            retry = left + period - muldiv(room, period, count)
        end
        return false, used < limit and limit - used or 0, count > 0 and left + period or before > 0 and left or 0,
            retry, 0, (count + cost - limit) * 1000 + wait_for(before * 1000, left, 0, period),
            time, finish, count, before, moved
    end

    local function write(_, _, finish, count, before, cost)
        count = count + cost
        if count > 2 ^ 32 - 1 then
            count = 2 ^ 32 - 1
        elseif count < 0 then
            -- What this window did not count is given back of the one before.
            before = before + count > 0 and before + count or 0
            count = 0
        end
        local low = finish % 2 ^ 48
        local high = (finish - low) / 2 ^ 48 + mark
        -- A window that a set-back has moved off the clock is followed by one that begins where it ends.
        local matters = finish + period
        if count == 0 and finish % period == 0 then
            matters = before > 0 and finish or finish - period
        end
        if count < 65536 and before < 65536 then
            return to_bytes('<I6I6', low, high + count * 65536 + before * 2 ^ 32), matters
        end
        local count_low, before_low = count % 65536, before % 65536
        return to_bytes('<I6I2I2I2I2I2', low, high, count_low, before_low, (count - count_low) / 65536,
            (before - before_low) / 65536), matters
    end

    -- Both at once, for a short state that has counted something in the present window, and a cost that fits.
    local function step(place, cost)
        local low, rest = from_bytes('<I6I6', place)
        local high, count = rest % 65536, rest % 2 ^ 32
        local top, before = high % 16, (rest - count) / 2 ^ 32
        local left = low + top * 2 ^ 48 - now
        count = (count - high) / 65536
        if left > 0 and left <= period and high - top == mark and count > 0 and before <= most then
            local overlap = before * left
            -- Rounded up, as wait_for does.
            local used = count + (overlap + -overlap % period) / period
            if overlap < 2 ^ 52 and used + cost <= limit and count + cost < 65536 then
                return to_bytes('<I6I6', low, rest + cost * 65536), limit - used - cost, left + period
            end
        end
    end

    return evaluate, write, nil, step
end
