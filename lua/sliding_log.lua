-- sliding_log: the time of every request. All rates of a limit share the log.
--
-- State: how many bytes an entry has (8 bits), the time of the newest (64 bits), then the times, the oldest first, of
-- which only the low bytes are kept, since none is further from the newest than they can tell. A request that costs n
-- has n entries. A log that may have many is a ring, with the same numbers: see log_ring.lua and sliding_ring.lua.
makers[6] = makers[6] and function(limit, _, seconds, flags, capacity, _, _, longest)
    local HEADER = 9
    local period, varied = seconds * 1000000, flags % 8 >= 4
    longest = longest * 1000000
    -- Where rates differ, what is too old for this one may matter to the next.
    local horizon = varied and 366 * 86400 * 1000000 or longest
    local width = (varied or longest >= 2 ^ 32) and 6 or 4
    local entry_format, wrap = '<I' .. width, 2 ^ (width * 8)

    local function header(newest)
        return to_bytes('<BI8', width, newest)
    end

    -- How long before the newest the entry was that `index` others precede.
    local function age_of(place, bytes, newest, index)
        if bytes == 4 then
            return (newest - from_bytes('<I4', place, HEADER + 1 + index * 4)) % 2 ^ 32
        end
        return (newest - from_bytes('<I6', place, HEADER + 1 + index * 6)) % 2 ^ 48
    end

    -- A log of other entries, or of too many, or a ring: the newest are kept, as far back as our entries can tell.
    local function convert(age, place, bytes, newest, size)
        local kept = math.min(size, capacity)
        while kept > 0 and age(place, bytes, newest, size - kept) >= wrap do
            kept = kept - 1
        end
        local entries = {}
        for i = 1, kept do
            local time = newest - age(place, bytes, newest, size - kept + i - 1)
            entries[i] = to_bytes(entry_format, time % wrap)
        end
        return header(newest) .. table.concat(entries), newest, kept
    end

    -- The log as ours, its newest time and its number of entries. One that was just read is still at hand.
    local known, known_newest, known_size
    local function decode(place)
        if place == known then
            return known, known_newest, known_size
        end
        known, known_newest, known_size = '', 0, 0
        if type(place) == 'table' then
            known, known_newest, known_size = convert(ring_age, place, place.bytes, place.newest, place.size)
        elseif place and #place >= HEADER then
            local bytes, newest = from_bytes('<BI8', place)
            local size = (#place - HEADER) / bytes
            newest = newest % 2 ^ 52
            if bytes == width and size <= capacity and size % 1 == 0 then
                known, known_newest, known_size = place, newest, size
            elseif (bytes == 4 or bytes == 6) and size % 1 == 0 then
                known, known_newest, known_size = convert(age_of, place, bytes, newest, size)
            end
        end
        return known, known_newest, known_size
    end

    -- How many entries are younger than `age` at a moment that is `since` after the newest. Most often few are not,
    -- so the oldest are tried first.
    local function younger_than(place, newest, size, since, age)
        local low, high, jump = 0, size, 0
        while low < high do
            local middle = (low + high) / 2
            middle = jump and low + jump < middle and low + jump or middle - middle % 1
            if age_of(place, width, newest, middle) + since < age then
                high = middle
                jump = nil
            else
                low = middle + 1
                jump = jump and jump * 2 + 1
            end
        end
        return size - low
    end

    local function evaluate(place, cost)
        local newest, size
        place, newest, size = decode(place)
        local time, start, moved = now, newest, false
        if newest > now then
            moved = newest - now > 1000000
            time = moved and now or newest
            start = time
        end
        local count = younger_than(place, newest, size, time - start, period)
        local reset = count > 0 and start + period - time or 0
        if count + cost <= limit then
            return true, limit - count - cost, cost > 0 and period or reset, 0, 0, 0, time, start, count, size, moved
        end
        local need, retry = count + cost - limit, -1
        if cost <= limit then
            -- Of times that are not in order, which only garbage has, one that does not count may be found here.
            retry = math.max(start - age_of(place, width, newest, size - count + need - 1) + period - time, 1)
        end
        return false, count < limit and limit - count or 0, reset, retry, 0, need * 1000,
            time, start, count, size, moved
    end

    if large and capacity > LARGE then
        -- include sliding_ring.lua
        return evaluate, write_ring, decode
    end

    -- The newest `kept` entries, `back` earlier.
    local function entries_of(place, size, kept, back)
        local from = HEADER + 1 + (size - kept) * width
        if back == 0 then
            return string.sub(place, from)
        end
        local entries = {}
        for i = 1, kept do
            local entry = from_bytes(entry_format, place, from + (i - 1) * width)
            entries[i] = to_bytes(entry_format, (entry - back) % wrap)
        end
        return table.concat(entries)
    end

    -- Forgets what is older than the horizon, then enters `cost` times; the oldest give way if there is no room. If
    -- something is given back, forgets the newest instead, and one before them is then the newest.
    local function write(place, time, start, count, _, cost)
        local newest, size
        place, newest, size = decode(place)
        local kept = count
        if horizon ~= period then
            kept = younger_than(place, newest, size, time - start, horizon)
        end
        if cost < 0 then
            if kept + cost <= 0 then
                return false, 0
            end
            local entries = entries_of(place, size, kept, newest - start)
            start = start - age_of(place, width, newest, size + cost - 1)
            return header(start) .. string.sub(entries, 1, (kept + cost) * width), start + longest
        end
        local entered = cost < capacity and cost or capacity
        if kept > capacity - entered then
            kept = capacity - entered
        end
        local entries = kept > 0 and entries_of(place, size, kept, newest - start) or ''
        if entered > 0 then
            local entry = to_bytes(entry_format, time % wrap)
            entries = entries .. (entered == 1 and entry or string.rep(entry, entered))
            start = time
        end
        return header(start) .. entries, entries ~= '' and start + longest or start
    end

    return evaluate, write, decode
end
