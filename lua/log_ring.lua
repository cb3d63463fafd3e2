-- A large log as its key holds it: a header of fixed size, then a ring of times. A check reads the header and the few
-- times that it needs. It writes the header and the times that it adds.
--
-- Header:
--   64 bits  the moment until which some rate needs what is kept
--    8 bits  192, which no other value has there
--    8 bits  16 + the bytes of an entry
--   64 bits  the time of the last admitted request, for min_interval
--   64 bits  the time of the newest entry
--   48 bits  `shift`: a time + this is its entry. It changes when the clock is set back, and no entry has to.
--   32 bits  each: room for how many entries, the place of the oldest, and how many there are
-- An entry has only the low bytes of its time, as sliding_log.lua says.
--
-- Here a ring is a table of these numbers. If it has a `body`, that is the text of all entries, and all of it is
-- written. Without one the entries are in Redis, under `key`; there may be none yet.
local new_ring, open_ring, part_of_ring, ring_age, ring_append
if makers[6] then
    local HEADER, RUN, MOST, FORMAT = 44, 32, 4096, '<I6I2BBI6I2I6I2I6I4I4I4'

    new_ring = function(bytes, room, body)
        return {
            bytes = bytes, format = bytes == 4 and '<I4' or '<I6', wrap = 2 ^ (bytes * 8), room = room, body = body,
            head = 0, size = #body / bytes, newest = 0, shift = 0, lives = 0, admitted = 0,
        }
    end

    -- The ring of a value, or of its header if the rest is to stay in Redis under `key`. Nothing if it is no ring.
    open_ring = function(value, key)
        if #value < HEADER or string.byte(value, 9) ~= 192 then
            return
        end
        local lives, lives_top, _, bytes, admitted, admitted_top, newest, newest_top, shift, room, head, size =
            from_bytes(FORMAT, value)
        bytes = bytes - 16
        if (bytes ~= 4 and bytes ~= 6) or room > 2 ^ 20 or head >= room or size > room then
            return
        end
        local ring = new_ring(bytes, room, '')
        ring.key, ring.body = key, not key and string.sub(value, HEADER + 1)
        ring.head, ring.size, ring.shift = head, size, shift
        ring.newest = newest + newest_top % 16 * 2 ^ 48
        ring.lives, ring.admitted = lives + lives_top % 32 * 2 ^ 48, admitted + admitted_top % 32 * 2 ^ 48
        return ring
    end

    -- The same ring without its `skipped` oldest entries, and with `size` of those after them.
    part_of_ring = function(ring, skipped, size)
        return {
            bytes = ring.bytes, format = ring.format, wrap = ring.wrap, room = ring.room, body = ring.body,
            key = ring.key, head = (ring.head + skipped) % ring.room, size = size, newest = ring.newest,
            shift = ring.shift, lives = 0, admitted = 0, from = ring.from, run = ring.run,
        }
    end

    -- The bytes of `count` entries from a place on; zeros where the value is too short, as garbage may be.
    local function piece(ring, place, count)
        local from, length = place * ring.bytes, count * ring.bytes
        local text
        if ring.body then
            text = string.sub(ring.body, from + 1, from + length)
        else
            text = read_part(ring.key, HEADER + from, HEADER + from + length - 1)
        end
        return #text < length and text .. string.rep('\0', length - #text) or text
    end

    -- How long before the newest the entry was that `index` others precede; called as age_of in sliding_log.lua is.
    -- Entries near it, which are often asked for next, are read with it.
    ring_age = function(ring, _, _, index)
        local place = ring.head + index
        place = place < ring.room and place or place - ring.room
        local from = place - place % RUN
        if ring.from ~= from then
            ring.from, ring.run = from, piece(ring, from, RUN)
        end
        local entry = from_bytes(ring.format, ring.run, (place - from) * ring.bytes + 1)
        return (ring.newest + ring.shift - entry) % ring.wrap
    end

    -- So many times the same text. string.rep would copy it byte by byte.
    local function repeated(text, count)
        local all = ''
        while count > 1 do
            if count % 2 == 1 then
                all = all .. text
                count = count - 1
            end
            text, count = text .. text, count / 2
        end
        return all .. text
    end

    -- Adds the same entry so many times, which fit into `room`, after the newest. A ring that has less room gets it.
    ring_append = function(ring, entry, count, room)
        if ring.size + count > ring.room then
            local first = ring.room - ring.head
            if ring.size > first then
                ring.body = piece(ring, ring.head, first) .. piece(ring, 0, ring.size - first)
                ring.head = 0
            end
            ring.room = room
        end
        if ring.size == 0 and count <= MOST then
            ring.body, ring.head = '', 0
        end
        local place = (ring.head + ring.size) % ring.room
        ring.size, ring.from = ring.size + count, nil
        if count > MOST and not ring.body then
            -- Memory for all of them at once.
            write_part(ring.key, HEADER + math.min(place + count, ring.room) * ring.bytes - 1, '\0')
        end
        local text
        while count > 0 do
            local part = math.min(count, ring.room - place, ring.body and count or MOST)
            local at = place * ring.bytes
            text = text and #text == part * ring.bytes and text or repeated(entry, part)
            if ring.body then
                ring.body = string.sub(ring.body, 1, at) .. text .. string.sub(ring.body, at + #text + 1)
            else
                write_part(ring.key, HEADER + at, text)
            end
            place, count = (place + part) % ring.room, count - part
        end
    end

    if large then
        local keep_value = keep
        keep = function(key, value, moment, same)
            if type(value) ~= 'table' then
                return keep_value(key, value, moment, same)
            end
            local lives, admitted, newest = value.lives % 2 ^ 48, value.admitted % 2 ^ 48, value.newest % 2 ^ 48
            local header = to_bytes(FORMAT, lives, (value.lives - lives) / 2 ^ 48, 192, 16 + value.bytes,
                admitted, (value.admitted - admitted) / 2 ^ 48, newest, (value.newest - newest) / 2 ^ 48,
                value.shift, value.room, value.head, value.size)
            if value.body then
                return keep_value(key, header .. value.body, moment)
            end
            write_part(key, 0, header)
            keep_until(key, moment)
        end

        -- A value that is no ring was left by a smaller limit or by an earlier release, and is read whole. All are
        -- read whole if the user may not read parts.
        local opened = {}
        for i in pairs(large) do
            local key = keys[i]
            local value = opened[key] or read_part(key, 0, HEADER - 1)
            if value.err and string.find(value.err, '^WRONGTYPE') then
                value = false
            elseif value.err and not declared then
                return ''
            elseif value.err then
                value = call('MGET', key)[1]
            elseif value == '' then
                value = new_ring(4, 1, '')
                value.key, value.body = key, false
            elseif not opened[key] then
                value = open_ring(value, key) or #value < HEADER and value or read_part(key, 0, -1)
            end
            opened[key], values[i] = value, value
        end
    end
end
