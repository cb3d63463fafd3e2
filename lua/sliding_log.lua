-- sliding_log: the time of every request. All rates of a limit share the log.
--
-- State: the bytes of an entry (8 bits), the time of the newest entry (64 bits), then the entries, the oldest first. An
-- entry is the low bytes of its time; they suffice, because no entry is older than the newest by more than they can
-- express. A request of cost n has n entries. A large log is a ring: see log_ring.lua and sliding_ring.lua. View:
-- `start` is the time of the newest entry, `a` the number of entries in the period, `b` that of all entries.
-- include log_ring.lua
makers[kSlidingLog] = makers[kSlidingLog] and function(limit, _, seconds, _, flags, capacity, _, _, longest)
    local period, varied = seconds * kSecond, flags % 8 >= kFlagVaried
    longest = longest * kSecond
    -- If rates differ between clients, an entry that is too old for this rate may be needed by the next one.
    local horizon = varied and kMaxPeriod or longest
    local width = (varied or longest >= 2 ^ 32) and 6 or 4
    local entry_format, wrap = '<I' .. width, 2 ^ (width * 8)

    local function header(newest)
        return to_bytes('<BI8', width, newest)
    end

    -- Returns by how much the entry at `index`, counted from the oldest, is older than the newest.
    local function age_of(state, bytes, newest, index)
        if bytes == 4 then
            return (newest - from_bytes('<I4', state, kLogHeader + 1 + index * 4)) % 2 ^ 32
        end
        return (newest - from_bytes('<I6', state, kLogHeader + 1 + index * 6)) % 2 ^ 48
    end

    -- Converts a ring, or a log with other entries or too many: keeps the newest entries whose age fits `width` bytes.
    local function convert(age, state, bytes, newest, size)
        local kept = math.min(size, capacity)
        while kept > 0 and age(state, bytes, newest, size - kept) >= wrap do
            kept = kept - 1
        end
        local entries = {}
        for i = 1, kept do
            local time = newest - age(state, bytes, newest, size - kept + i - 1)
            entries[i] = to_bytes(entry_format, time % wrap)
        end
        return header(newest) .. table.concat(entries), newest, kept
    end

    -- Returns the log in this policy's form, the time of its newest entry and its size. Caches the last log.
    local known, known_newest, known_size
    local function decode(state)
        if state == known then
            return known, known_newest, known_size
        end
        known, known_newest, known_size = '', 0, 0
        if type(state) == 'table' then
            known, known_newest, known_size = convert(ring_age, state, state.bytes, state.newest, state.size)
        elseif state and #state >= kLogHeader then
            local bytes, newest = from_bytes('<BI8', state)
            local size = (#state - kLogHeader) / bytes
            newest = newest % 2 ^ 52
            if bytes == width and size <= capacity and size % 1 == 0 then
                known, known_newest, known_size = state, newest, size
            elseif (bytes == 4 or bytes == 6) and size % 1 == 0 then
                known, known_newest, known_size = convert(age_of, state, bytes, newest, size)
            end
        end
        return known, known_newest, known_size
    end

    -- Returns how many entries are younger than `age` at a time `since` after the newest. Usually only a few are older,
    -- so the binary search begins near the oldest.
    local function younger_than(state, newest, size, since, age)
        local low, high, jump = 0, size, 0
        while low < high do
            local middle = (low + high) / 2
            middle = jump and low + jump < middle and low + jump or middle - middle % 1
            if age_of(state, width, newest, middle) + since < age then
                high = middle
                jump = nil
            else
                low = middle + 1
                jump = jump and jump * 2 + 1
            end
        end
        return size - low
    end

    local function evaluate(state, cost)
        local newest, size
        state, newest, size = decode(state)
        local time, start, moved = now, newest, false
        if newest > now then
            moved = newest - now > kClockSlack
            time = moved and now or newest
            start = time
        end
        local count = younger_than(state, newest, size, time - start, period)
        local reset = count > 0 and start + period - time or 0
        if count + cost <= limit then
            return true, limit - count - cost, cost > 0 and period or reset, 0, 0, 0, time, start, count, size, moved
        end
        local need, retry = count + cost - limit, -1
        if cost <= limit then
            -- The entries of garbage may be out of order, so the result may be below 1 without `max`.
            retry = math.max(start - age_of(state, width, newest, size - count + need - 1) + period - time, 1)
        end
        return false, count < limit and limit - count or 0, reset, retry, 0, need * 1000,
            time, start, count, size, moved
    end

    -- Returns the index of the first entry of a charge, and how many of its entries to remove, at most `amount`. While
    -- the clock is behind, entries get the time of the newest entry.
    local function find_charge(state, newest, size, time, start, charged_at, amount)
        if charged_at == kForever then
            return size - amount, amount
        end
        local first = size - younger_than(state, newest, size, time - start, time - charged_at + 1)
        local age = first < size and age_of(state, width, newest, first)
        if not age or time - charged_at >= horizon or start - age - charged_at > kClockSlack then
            return size, 0
        end
        local last = first
        while last < size and last - first < amount and age_of(state, width, newest, last) == age do
            last = last + 1
        end
        return first, last - first
    end

    if large and capacity > LARGE then
        -- include sliding_ring.lua
        return evaluate, write_ring, decode
    end

    -- Returns the newest `kept` entries with times reduced by `back`.
    local function entries_of(state, size, kept, back)
        local from = kLogHeader + 1 + (size - kept) * width
        if back == 0 then
            return string.sub(state, from)
        end
        local entries = {}
        for i = 1, kept do
            local entry = from_bytes(entry_format, state, from + (i - 1) * width)
            entries[i] = to_bytes(entry_format, (entry - back) % wrap)
        end
        return table.concat(entries)
    end

    -- Drops entries older than the horizon, then adds `cost` entries; drops the oldest ones if there is no room. If a
    -- charge is undone, drops its entries instead.
    local function write(state, time, start, count, _, cost, _, charged_at)
        local newest, size
        state, newest, size = decode(state)
        local kept = count
        if horizon ~= period then
            kept = younger_than(state, newest, size, time - start, horizon)
        end
        local before, undone = size, 0
        if cost < 0 then
            before, undone = find_charge(state, newest, size, time, start, charged_at, math.min(-cost, kept))
            cost = 0
        end
        if undone > 0 then
            if kept == undone then
                return false, 0
            end
            local entries = entries_of(state, size, kept, newest - start)
            local at = (before - size + kept) * width
            entries = string.sub(entries, 1, at) .. string.sub(entries, at + undone * width + 1)
            start = before + undone < size and start or start - age_of(state, width, newest, before - 1)
            return header(start) .. entries, start + longest
        end
        local entered = cost < capacity and cost or capacity
        if kept > capacity - entered then
            kept = capacity - entered
        end
        local entries = kept > 0 and entries_of(state, size, kept, newest - start) or ''
        if entered > 0 then
            local entry = to_bytes(entry_format, time % wrap)
            entries = entries .. (entered == 1 and entry or string.rep(entry, entered))
            start = time
        end
        return header(start) .. entries, entries ~= '' and start + longest or start
    end

    return evaluate, write, decode
end

-- part values
-- include large_logs.lua

-- part read_group
if algorithm == kSlidingLog and flags % 8 >= kFlagVaried then
    simple = false
end

-- part new_policy
if algorithm == kSlidingLog then
    -- All rates share one log. A rate of another policy may need an entry for longer.
    has_expiry, written = has_expiry or flags % 8 >= kFlagVaried, 1
end

-- part read_value
if policy.algorithm == kSlidingLog and value then
    local ring = type(value) == 'table' and value or open_ring(value)
    if ring then
        states[1], marks[1], check.expiry, check.admitted = ring, 0, ring.expiry, ring.admitted
        return
    end
end

-- part length_of
if policy.algorithm == kSlidingLog then
    -- The log extends to the end of the value.
    return #value, at
end

-- part valid
if policy.algorithm == kSlidingLog then
    return state
end

-- part extent
if algorithm == kSlidingLog then
    return count
end

-- part write_long
if policy.algorithm == kSlidingLog then
    text = state or ''
end

-- part write_value
if type(state) == 'table' then
    state.expiry = policy.has_expiry and check.expiry or 0
    state.admitted = policy.min_interval > 0 and check.admitted or 0
    return state
end

-- part keeps_others
if policy.algorithm == kSlidingLog then
    local log = check.states[1]
    return log and (log.size or #log - 9) > 0
end

-- part overdraw
if policy.algorithm == kSlidingLog then
    -- All rates share one log, which is charged as much as the rate with the most room.
    for j = 2, policy.rates do
        most = math.max(most, used + policy[j].most - check.a[j])
    end
end

-- part charge_client
if policy.algorithm == kSlidingLog then
    return overshoot, value, expires, ''
end
