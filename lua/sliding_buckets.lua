-- sliding_buckets: the sum of the last sub-windows.
--
-- State: the start of the newest sub-window (52 bits) and which counter is its (12 bits), the number of sub-windows
-- (8 bits), the period in seconds (32 bits) and the counters in a ring, all in as few bytes as the largest needs.
makers[5] = makers[5] and function(limit, _, seconds, _, buckets)
    local byte = string.byte
    local HEADER = 13
    local width = (seconds * 1000000 + -seconds * 1000000 % buckets) / buckets

    -- The bytes of a counter, the start of the newest sub-window, its index, and the period; an index of -1 for a
    -- client never seen.
    local function decode(place)
        local bytes = place and (#place - HEADER) / buckets
        if bytes == 1 or bytes == 2 or bytes == 4 then
            local low, high = from_bytes('<I6I7', place)
            local top, beside, number = high % 16, high % 65536, high % 2 ^ 24
            if number - beside == buckets * 65536 and beside < buckets * 16 then
                return bytes, low + top * 2 ^ 48, (beside - top) / 16, (high - number) / 2 ^ 24
            end
        end
        return 0, 0, -1, 0
    end

    local function counter(place, bytes, index)
        if bytes == 1 then
            return (byte(place, HEADER + 1 + index))
        elseif bytes == 2 then
            return (from_bytes('<I2', place, HEADER + 1 + index * 2))
        end
        return bytes == 4 and from_bytes('<I4', place, HEADER + 1 + index * 4) or 0
    end

    local function add(a, b, c, d, e, f, g, h, i, j, k, l)
        return a + (b or 0) + (c or 0) + (d or 0) + (e or 0) + (f or 0) + (g or 0) + (h or 0) + (i or 0) + (j or 0) +
            (k or 0) + (l or 0)
    end

    -- What was counted in all sub-windows but the oldest `gone`.
    local function sum_of(place, bytes, head, gone)
        if bytes == 0 or gone == buckets then
            return 0
        end
        local sum = 0
        if bytes == 1 then
            local last = HEADER + buckets
            for from = HEADER + 1, last, 12 do
                sum = sum + add(byte(place, from, from + 11 < last and from + 11 or last))
            end
        else
            for index = 0, buckets - 1 do
                sum = sum + counter(place, bytes, index)
            end
        end
        for next = 1, gone do
            sum = sum - counter(place, bytes, (head + next) % buckets)
        end
        return sum
    end

    -- The ring at `now`: the moment, the start of the newest sub-window, by how many that is newer than the ring's
    -- newest, and whether the state has to follow.
    local function view(newest, period)
        if newest - now > 1000000 then
            return now, now, 0, true
        end
        local changed = period ~= 0 and period ~= seconds
        local old_width = width
        if changed then
            old_width = (period * 1000000 + -period * 1000000 % buckets) / buckets
        end
        local time = newest > now and newest or now
        local beyond = (time - newest) % old_width
        local newer = (time - newest - beyond) / old_width
        if newer >= buckets then
            return time, time - time % width, buckets, false
        elseif changed then
            return time, time - time % width, newer, true
        end
        return time, time - beyond, newer, false
    end

    -- Until so many of the oldest sub-windows no longer count that what they counted is at least `need`.
    local function retry_after(place, bytes, head, left, newer, need)
        local age = buckets - newer
        local freed = 0
        while freed < need and age > 0 do
            age = age - 1
            freed = freed + counter(place, bytes, (head - age) % buckets)
        end
        return left + (buckets - age - newer) * width
    end

    -- Until the newest sub-window that counted anything no longer counts.
    local function reset_after(place, bytes, head, left, newer)
        local age = 0
        while age + newer + 1 < buckets and counter(place, bytes, (head - age) % buckets) == 0 do
            age = age + 1
        end
        return left + (buckets - age - newer) * width
    end

    local function evaluate(place, cost)
        local bytes, newest, head, period = decode(place)
        local time, start, newer, moved = view(newest, period)
        local sum = sum_of(place, bytes, head, newer)
        local reset = 0
        if sum + cost <= limit then
            if cost > 0 then
                reset = start + buckets * width - time
            elseif sum > 0 then
                reset = reset_after(place, bytes, head, start - time, newer)
            end
            return true, limit - sum - cost, reset, 0, 0, 0, time, start, newer, head, moved
        end
        local excess, retry = sum + cost - limit, -1
        if cost <= limit then
            retry = retry_after(place, bytes, head, start - time, newer, excess)
        end
        if sum > 0 then
            reset = reset_after(place, bytes, head, start - time, newer)
        end
        return false, sum < limit and limit - sum or 0, reset, retry, 0, excess * 1000,
            time, start, newer, head, moved
    end

    local function header(start, head)
        local low = start % 2 ^ 48
        return to_bytes('<I6I7', low, (start - low) / 2 ^ 48 + head * 16 + buckets * 65536 + seconds * 2 ^ 24)
    end

    -- The counters from 1 on and which is the newest, once the sub-windows have been opened that have come since.
    local function open(place, newer, head)
        local bytes = head >= 0 and (#place - HEADER) / buckets or 0
        local ring = {}
        for index = 0, buckets - 1 do
            ring[index + 1] = counter(place, bytes, index)
        end
        head = head >= 0 and head or 0
        for _ = 1, newer do
            head = (head + 1) % buckets
            ring[head + 1] = 0
        end
        return ring, head
    end

    -- The ring as state, and until when it matters.
    local function close(ring, head, start)
        local most = math.max(unpack(ring))
        local age = 0
        -- Sub-windows that a set-back has moved off the clock stay so until all have passed.
        if start % width == 0 then
            while age < buckets and ring[(head - age) % buckets + 1] == 0 do
                age = age + 1
            end
        end
        local format = '<' .. string.rep(most < 256 and 'B' or most < 65536 and 'I2' or 'I4', buckets)
        return header(start, head) .. to_bytes(format, unpack(ring)),
            age < buckets and start + (buckets - age) * width or start
    end

    -- What `write` does in the most common cases, with text alone; nothing in others.
    local function write_text(place, start, newer, head, cost)
        local text, index
        if head < 0 or newer == buckets then
            index = head < 0 and newer % buckets or head
            text = string.rep('\0', buckets)
        elseif #place == HEADER + buckets and head + newer < buckets then
            index = head + newer
            text = string.sub(place, HEADER + 1)
            if newer == 0 then
                cost = cost + byte(text, index + 1)
            elseif newer > 1 then
                text = string.sub(text, 1, head + 1) .. string.rep('\0', newer - 1) .. string.sub(text, index + 1)
            end
        end
        if text and cost > 0 and cost < 256 then
            return header(start, index) .. string.sub(text, 1, index) .. string.char(cost) ..
                string.sub(text, index + 2), start + buckets * width
        end
    end

    local function write(place, _, start, newer, head, cost)
        local text, matters = write_text(place, start, newer, head, cost)
        if text then
            return text, matters
        end
        local ring
        ring, head = open(place, newer, head)
        local index = head + 1
        ring[index] = math.min(ring[index] + cost, 2 ^ 32 - 1)
        -- What the newest sub-window did not count is given back of those before.
        for age = 1, buckets - 1 do
            if ring[index] >= 0 then
                break
            end
            local before = (head - age) % buckets + 1
            ring[index], ring[before] = 0, ring[before] + ring[index]
            index = before
        end
        ring[index] = math.max(ring[index], 0)
        return close(ring, head, start)
    end

    return evaluate, write
end
