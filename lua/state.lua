-- A client's state as its key holds it.
--
-- Short, for a policy that needs no more: the state of its one place. Long: one or two times of 64 bits, of which the
-- first is there always, with a byte of bits between them, then the places.
--   bits 0-2  number of places - 1           bit 3  the time of the last admitted request is there, for min_interval
--   bit 4     the moment is there, and first, until which some rate needs what is kept
--   bit 5     places have 16 bytes, not 12    bit 7  always set: a short value never has it in its 9th byte
-- A place has its mark before it, if there are several, and the state of a sliding_buckets its length; places at the
-- end that were never used are left out. A large log is a ring, whose header has both times: see log_ring.lua.
local function state(convert_places)
    local byte, sub = string.byte, string.sub
    local UNUSED = string.rep('\0', 16)

    local function is_long(value)
        local size = #value
        return size ~= 12 and size ~= 16 and size > 8 and byte(value, 9) >= 128
    end

    local function read_time(value, at)
        local low, high = from_bytes('<I6I2', value, at)
        return low + high % 32 * 2 ^ 48
    end

    -- Bytes of one place; none for a log, which is all that follows.
    local function length_of(policy, value, at, wide)
        if policy.algorithm == 5 then
            return from_bytes('<I2', value, at), at + 2
        elseif policy.algorithm == 6 then
            return #value, at
        end
        return wide and 16 or 12, at
    end

    -- What is kept in `place`; nothing if that is not what `policy` could have left.
    local function valid(policy, place)
        if policy.algorithm == 5 then
            return #place >= 13 + policy.size and byte(place, 9) == policy.size and place
        elseif policy.algorithm == 6 then
            return place
        end
        local size = #place
        if size == 16 and sub(place, 13) == sub(UNUSED, 1, 4) then
            place = sub(place, 1, 12)
        end
        return (size == 12 or size == 16) and place ~= sub(UNUSED, 1, 12) and place
    end

    -- Fills in `check` from a long value; tells how many places it has.
    local function read_long(check, value)
        local policy = check.policy
        local bits = byte(value, 9) - 128
        local count = bits % 8 + 1
        local at = 10
        check.lives, check.admitted = 0, 0
        if bits % 32 >= 16 then
            check.lives = read_time(value, 1)
            if bits % 16 >= 8 then
                check.admitted = read_time(value, at)
                at = at + 8
            end
        else
            check.admitted = read_time(value, 1)
        end
        for i = 1, count do
            local place, mark = false, 0
            if at <= #value then
                if count > 1 then
                    mark = byte(value, at)
                    at = at + 1
                end
                local length
                length, at = length_of(policy, value, at, bits >= 32)
                place = valid(policy, sub(value, at, at + length - 1))
                at = at + length
                if not place and policy.algorithm == 5 and length > 0 then
                    mark = 0
                end
            end
            check.places[i], check.marks[i] = place, mark
        end
        return count
    end

    -- The mark of the rate that a place was used with, as far as the state itself tells; 0 if it does not.
    local function mark_of(policy, place)
        if policy.algorithm == 5 then
            return 1 + from_bytes('<I4', place, 10) % 251
        elseif policy.algorithm < 3 then
            return 0
        end
        local high = from_bytes('<I2', place, 7)
        for i = 1, policy.rates do
            if policy[i].seconds % 4093 == (high - high % 16) / 16 then
                return policy[i].place_mark
            end
        end
        return 0
    end

    -- Fills in `check` from a value of any form that the policy's algorithm may have left.
    local function read(check, value)
        local policy = check.policy
        local places, marks = check.places, check.marks
        local ring = policy.algorithm == 6 and value
        ring = ring and (type(ring) == 'table' and ring or open_ring(ring))
        if ring then
            places[1], marks[1], check.lives, check.admitted = ring, 0, ring.lives, ring.admitted
            return
        end
        local count = 0
        local long = value and is_long(value)
        if long then
            local ok, found = pcall(read_long, check, value)
            count = ok and found or 0
        elseif value and valid(policy, value) then
            count = 1
            places[1], marks[1] = value, 0
        end
        if count == 0 then
            for i = 1, policy.places do
                places[i], marks[i] = false, 0
            end
        elseif count ~= policy.places then
            if count == 1 and places[1] then
                marks[1] = mark_of(policy, places[1])
            end
            convert_places(policy, count, places, marks)
        end
        if count == 0 or not long then
            check.lives, check.admitted = 0, 0
        end
    end

    local function time_bytes(time)
        local low = time % 2 ^ 48
        return to_bytes('<I6I2', low, (time - low) / 2 ^ 48)
    end

    -- The length that all places of `check` get, and how many are in use.
    local function extent(check, count)
        local places, marks = check.places, check.marks
        while count > 0 and not places[count] and marks[count] == 0 do
            count = count - 1
        end
        local length = 12
        for i = 1, count do
            if places[i] and #places[i] == 16 then
                length = 16
            end
        end
        return count, length
    end

    local parts = {}

    local function write_long(check)
        local policy, places = check.policy, check.places
        local count, length = extent(check, policy.places)
        local wide = length == 16 and policy.algorithm < 5
        local bits = 128 + policy.places - 1 + (policy.min_interval > 0 and 8 or 0) + (policy.lives and 16 or 0) +
            (wide and 32 or 0)
        parts[1] = time_bytes(policy.lives and check.lives or check.admitted)
        parts[2] = to_bytes('B', bits)
        parts[3] = policy.lives and policy.min_interval > 0 and time_bytes(check.admitted) or ''
        local size = 3
        for i = 1, count do
            local place = places[i]
            if policy.algorithm < 5 then
                place = (place or '') .. sub(UNUSED, 1, length - (place and #place or 0))
            elseif policy.algorithm == 5 then
                place = to_bytes('<I2', place and #place or 0) .. (place or '')
            end
            if policy.places > 1 then
                size = size + 1
                parts[size] = to_bytes('B', check.marks[i])
            end
            size = size + 1
            parts[size] = place or ''
        end
        return table.concat(parts, '', 1, size)
    end

    local function write(check)
        local policy, place = check.policy, check.places[1]
        if type(place) == 'table' then
            place.lives = policy.lives and check.lives or 0
            place.admitted = policy.min_interval > 0 and check.admitted or 0
            return place
        elseif policy.long then
            return write_long(check)
        end
        return place
    end

    return read, write
end
