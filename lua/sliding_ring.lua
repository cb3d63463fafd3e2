-- The part of sliding_log.lua for a large log, which is a ring.
age_of = ring_age

-- Returns the newest entries of a ring: at most `capacity`, and only those whose age fits `width` bytes.
local function cut(ring)
    local kept = math.min(ring.size, capacity)
    if ring.bytes > width and kept > 0 then
        kept = math.min(kept, younger_than(ring, ring.newest, ring.size, 0, wrap))
    end
    return kept < ring.size and part_of_ring(ring, ring.size - kept, kept) or ring
end

-- Returns a ring whose entries have at least `width` bytes.
local function widened(ring)
    if ring.bytes >= width then
        return ring
    end
    local entries = {}
    for i = 1, ring.size do
        entries[i] = to_bytes(entry_format, (ring.newest - ring_age(ring, nil, nil, i - 1)) % wrap)
    end
    local wide = new_ring(width, capacity, table.concat(entries))
    wide.newest = ring.newest
    if ring.size == 0 then
        wide.key, wide.body = ring.key, ring.body
    end
    return wide
end

local function ring_of(state)
    if type(state) == 'table' then
        return widened(cut(state))
    end
    local ring = new_ring(width, capacity, '')
    if state and #state >= kLogHeader then
        local bytes, newest = from_bytes('<BI8', state)
        local size = (#state - kLogHeader) / bytes
        if (bytes == 4 or bytes == 6) and size % 1 == 0 then
            local kept = math.min(size, capacity)
            ring = new_ring(bytes, capacity, string.sub(state, kLogHeader + 1 + (size - kept) * bytes))
            ring.newest = newest % 2 ^ 52
        end
    end
    return widened(cut(ring))
end

local known_state
decode = function(state)
    if not state or state ~= known_state then
        known, known_state = ring_of(state), state
    end
    return known, known.newest, known.size
end

-- See write in sliding_log.lua.
local function write_ring(state, time, start, count, _, cost, _, charged_at)
    local ring, newest, size = decode(state)
    local kept = count
    if horizon ~= period then
        kept = younger_than(ring, newest, size, time - start, horizon)
    end
    local before, undone = size, 0
    if cost < 0 then
        before, undone = find_charge(ring, newest, size, time, start, charged_at, math.min(-cost, kept))
        cost = 0
    end
    if undone > 0 and kept == undone then
        return false, 0
    end
    local entered = math.min(cost, capacity)
    kept = math.min(kept, capacity - entered)
    local left = part_of_ring(ring, size - kept, before - size + kept)
    left.shift = (ring.shift + newest - start) % 2 ^ 48
    left.newest = start
    if undone > 0 then
        -- The entries after the charge, usually few, move to its place.
        local after = {}
        for index = before + undone, size - 1 do
            after[#after + 1] = start - ring_age(ring, nil, nil, index)
        end
        if not after[1] then
            left.newest = start - ring_age(ring, nil, nil, before - 1)
        end
        for i = 1, #after do
            ring_append(left, to_bytes(left.format, (after[i] + left.shift) % left.wrap), 1, capacity)
        end
    elseif entered > 0 then
        left.newest = time
        ring_append(left, to_bytes(left.format, (time + left.shift) % left.wrap), entered, capacity)
    end
    return left, left.size > 0 and left.newest + longest or left.newest
end
