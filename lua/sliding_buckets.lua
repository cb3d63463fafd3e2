-- sliding_buckets: the sum of the last sub-windows ("buckets").
--
-- State: the start of the newest sub-window (52 bits), the index of its counter (12 bits), the number of sub-windows
-- (8 bits), the period in seconds (32 bits) and the counters in a ring. All counters have 1, 2, 4 or 7 bytes, as the
-- largest needs. View: `start` is the start of the newest sub-window at `now`, `a` by how many sub-windows it is newer
-- than the newest of the state, `b` the index of the latter's counter, -1 for a new client.
makers[kSlidingBuckets] = makers[kSlidingBuckets] and function(limit, _, seconds, _, flags, buckets)
    local byte = string.byte
    local max_counter = flags >= kFlagLarge and kMaxCount or kMaxSmallCounter
    local width = (seconds * kSecond + -seconds * kSecond % buckets) / buckets

    -- Returns the bytes of a counter, the start of the newest sub-window, its index (-1 for a new client), the period.
    local function decode(state)
        local bytes = state and (#state - kRingHeader) / buckets
        if bytes == 1 or bytes == 2 or bytes == 4 or bytes == 7 then
            local low, high = from_bytes('<I6I7', state)
            local top, beside, number = high % 16, high % 65536, high % 2 ^ 24
            if number - beside == buckets * 65536 and beside < buckets * 16 then
                return bytes, low + top * 2 ^ 48, (beside - top) / 16, (high - number) / 2 ^ 24
            end
        end
        return 0, 0, -1, 0
    end

    local function counter(state, bytes, index)
        if bytes == 1 then
            return (byte(state, kRingHeader + 1 + index))
        elseif bytes == 2 then
            return (from_bytes('<I2', state, kRingHeader + 1 + index * 2))
        end
        if bytes == 7 then
            local count = from_bytes('<I7', state, kRingHeader + 1 + index * 7)
            return count < max_counter and count or max_counter
        end
        return bytes == 4 and from_bytes('<I4', state, kRingHeader + 1 + index * 4) or 0
    end

    local function add(a, b, c, d, e, f, g, h, i, j, k, l)
        return a + (b or 0) + (c or 0) + (d or 0) + (e or 0) + (f or 0) + (g or 0) + (h or 0) + (i or 0) + (j or 0) +
            (k or 0) + (l or 0)
    end

    -- Returns the sum of all counters but the oldest `gone`, and at most kMaxCount.
    local function sum_of(state, bytes, head, gone)
        if bytes == 0 or gone == buckets then
            return 0
        end
        local sum = 0
        if bytes == 7 then
            for age = 0, buckets - gone - 1 do
                sum = sum + counter(state, bytes, (head - age) % buckets)
            end
            return sum < kMaxCount and sum or kMaxCount
        end
        if bytes == 1 then
            local last = kRingHeader + buckets
            for from = kRingHeader + 1, last, 12 do
                sum = sum + add(byte(state, from, from + 11 < last and from + 11 or last))
            end
        else
            for index = 0, buckets - 1 do
                sum = sum + counter(state, bytes, index)
            end
        end
        for next = 1, gone do
            sum = sum - counter(state, bytes, (head + next) % buckets)
        end
        return sum
    end

    -- Returns the view of the ring at `now`: time, start, newer, moved.
    local function view(newest, period)
        if newest - now > kClockSlack then
            return now, now, 0, true
        end
        local changed = period ~= 0 and period ~= seconds
        local old_width = width
        if changed then
            old_width = (period * kSecond + -period * kSecond % buckets) / buckets
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

    -- Returns the time until the sub-windows that leave the period free at least `need`.
    local function retry_after(state, bytes, head, left, newer, need)
        local age = buckets - newer
        local freed = 0
        while freed < need and age > 0 do
            age = age - 1
            freed = freed + counter(state, bytes, (head - age) % buckets)
        end
        return left + (buckets - age - newer) * width
    end

    -- Returns the time until the newest sub-window with a count above 0 leaves the period.
    local function reset_after(state, bytes, head, left, newer)
        local age = 0
        while age + newer + 1 < buckets and counter(state, bytes, (head - age) % buckets) == 0 do
            age = age + 1
        end
        return left + (buckets - age - newer) * width
    end

    local function evaluate(state, cost)
        local bytes, newest, head, period = decode(state)
        local time, start, newer, moved = view(newest, period)
        local sum = sum_of(state, bytes, head, newer)
        local reset = 0
        if sum + cost <= limit then
            if cost > 0 then
                reset = start + buckets * width - time
            elseif sum > 0 then
                reset = reset_after(state, bytes, head, start - time, newer)
            end
            return true, limit - sum - cost, reset, 0, 0, 0, time, start, newer, head, moved
        end
        local excess, retry = sum - limit + cost, -1
        if cost <= limit then
            retry = retry_after(state, bytes, head, start - time, newer, excess)
        end
        if sum > 0 then
            reset = reset_after(state, bytes, head, start - time, newer)
        end
        return false, sum < limit and limit - sum or 0, reset, retry, 0, excess * 1000,
            time, start, newer, head, moved
    end

    local function header(start, head)
        local low = start % 2 ^ 48
        return to_bytes('<I6I7', low, (start - low) / 2 ^ 48 + head * 16 + buckets * 65536 + seconds * 2 ^ 24)
    end

    -- Returns a table of the counters, after adding `newer` empty sub-windows, and the index of the newest, from 0.
    local function open(state, newer, head)
        local bytes = head >= 0 and (#state - kRingHeader) / buckets or 0
        local ring = {}
        for index = 0, buckets - 1 do
            ring[index + 1] = counter(state, bytes, index)
        end
        head = head >= 0 and head or 0
        for _ = 1, newer do
            head = (head + 1) % buckets
            ring[head + 1] = 0
        end
        return ring, head
    end

    -- Returns the state of a table of counters, and the time until which it is needed.
    local function close(ring, head, start)
        local most = math.max(unpack(ring))
        local age = 0
        -- After the clock was set back, sub-windows are not aligned to it, until all of them have left the period.
        if start % width == 0 then
            while age < buckets and ring[(head - age) % buckets + 1] == 0 do
                age = age + 1
            end
        end
        local item = most < 256 and 'B' or most < 65536 and 'I2' or most < 2 ^ 32 and 'I4' or 'I7'
        local format = '<' .. string.rep(item, buckets)
        return header(start, head) .. to_bytes(format, unpack(ring)),
            age < buckets and start + (buckets - age) * width or start
    end

    -- Does what `write` does in the most common cases, without a table. Returns nothing in other cases.
    local function write_text(state, start, newer, head, cost)
        local text, index
        if head < 0 or newer == buckets then
            index = head < 0 and newer % buckets or head
            text = string.rep('\0', buckets)
        elseif #state == kRingHeader + buckets and head + newer < buckets then
            index = head + newer
            text = string.sub(state, kRingHeader + 1)
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

    local function write(state, _, start, newer, head, cost, _, charged_at)
        local text, expires
        if cost > 0 and flags >= kFlagLarge then
            -- The sum of all counters saturates too.
            cost = math.min(cost, kMaxCount - sum_of(state, (decode(state)), head, newer))
        end
        if cost >= 0 then
            text, expires = write_text(state, start, newer, head, cost)
        end
        if text then
            return text, expires
        end
        local ring
        ring, head = open(state, newer, head)
        -- By how many sub-windows the charge is older than the newest.
        local behind = cost < 0 and charged_at < start and start - charged_at or 0
        local age = (behind + -behind % width) / width
        local oldest = charged_at == kForever and buckets - 1 or age
        while age <= oldest and age < buckets do
            local index = (head - age) % buckets + 1
            local count = ring[index] + cost
            ring[index] = math.max(math.min(count, max_counter), 0)
            cost, age = math.min(count, 0), age + 1
        end
        return close(ring, head, start)
    end

    local function used(state)
        local bytes, newest, head, period = decode(state)
        local _, _, newer = view(newest, period)
        return sum_of(state, bytes, head, newer)
    end

    return evaluate, write, nil, nil, used
end

-- part length_of
if policy.algorithm == kSlidingBuckets then
    return from_bytes('<I2', value, at), at + 2
end

-- part valid
if policy.algorithm == kSlidingBuckets then
    return #state >= kRingHeader + policy.size and byte(state, 9) == policy.size and state
end

-- part read_long
if not state and policy.algorithm == kSlidingBuckets and length > 0 then
    mark = 0
end

-- part mark_of
if policy.algorithm == kSlidingBuckets then
    return 1 + from_bytes('<I4', state, 10) % kRateSlotMarks
end

-- part extent
if algorithm == kSlidingBuckets then
    return count
end

-- part write_long
if policy.algorithm == kSlidingBuckets then
    text = to_bytes('<I2', state and #state or 0) .. (state or '')
end

-- part overdraw
if policy.algorithm == kSlidingBuckets then
    used = policy[i].used(check.states[check.from[i]])
end
