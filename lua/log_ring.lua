-- The value of a large log: a header, then a ring of entries. A check reads the header and the few entries that it
-- needs. It writes the header and the entries that it adds.
--
-- Header:
--   64 bits  time until which a rate needs the value
--    8 bits  kLargeLogFlags, which no other value has in its ninth byte
--    8 bits  kLargeLogEntry + bytes of an entry
--   64 bits  time of the last admitted request, for min_interval
--   64 bits  time of the newest entry
--   48 bits  `shift`: entry = time + shift. When the clock is set back, `shift` changes and the entries stay.
--   32 bits  number of entries that the ring has room for
--   32 bits  position of the oldest entry
--   32 bits  number of entries
-- An entry has only the low bytes of its time: see sliding_log.lua.
--
-- In Lua, a ring is a table of these numbers. If it has a `body`, the body is the string of all entries, and the value
-- is written as a whole. Without a body, the entries are in Redis under `key`, which may not exist yet.
local new_ring, open_ring, part_of_ring, ring_age, ring_append
if makers[kSlidingLog] then
    -- Entries that are read at once; most entries that are written at once; the header.
    local RUN, MOST, FORMAT = 32, 4096, '<I6I2BBI6I2I6I2I6I4I4I4'

    new_ring = function(bytes, room, body)
        return {
            bytes = bytes, format = bytes == 4 and '<I4' or '<I6', wrap = 2 ^ (bytes * 8), room = room, body = body,
            head = 0, size = #body / bytes, newest = 0, shift = 0, expiry = 0, admitted = 0,
        }
    end

    -- Returns the ring of a value, or of a header if the entries stay in Redis under `key`. Nothing if it is no ring.
    open_ring = function(value, key)
        if #value < kLargeLogHeader or string.byte(value, 9) ~= kLargeLogFlags then
            return
        end
        local expiry, expiry_top, _, bytes, admitted, admitted_top, newest, newest_top, shift, room, head, size =
            from_bytes(FORMAT, value)
        bytes = bytes - kLargeLogEntry
        if (bytes ~= 4 and bytes ~= 6) or room > kMaxLogEntries or head >= room or size > room then
            return
        end
        local ring = new_ring(bytes, room, '')
        ring.key, ring.body = key, not key and string.sub(value, kLargeLogHeader + 1)
        ring.head, ring.size, ring.shift = head, size, shift
        ring.newest = newest + newest_top % 16 * 2 ^ 48
        ring.expiry, ring.admitted = expiry + expiry_top % 32 * 2 ^ 48, admitted + admitted_top % 32 * 2 ^ 48
        return ring
    end

    -- Returns the ring of the `size` entries after the `skipped` oldest ones.
    part_of_ring = function(ring, skipped, size)
        return {
            bytes = ring.bytes, format = ring.format, wrap = ring.wrap, room = ring.room, body = ring.body,
            key = ring.key, head = (ring.head + skipped) % ring.room, size = size, newest = ring.newest,
            shift = ring.shift, expiry = 0, admitted = 0, from = ring.from, run = ring.run,
        }
    end

    -- Returns the bytes of `count` entries from a position on. A value that is too short is filled up with zeros.
    local function piece(ring, position, count)
        local from, length = position * ring.bytes, count * ring.bytes
        local text
        if ring.body then
            text = string.sub(ring.body, from + 1, from + length)
        else
            text = read_part(ring.key, kLargeLogHeader + from, kLargeLogHeader + from + length - 1)
        end
        return #text < length and text .. string.rep('\0', length - #text) or text
    end

    -- Returns by how much the entry at `index`, counted from the oldest, is older than the newest. The parameters are
    -- those of age_of in sliding_log.lua. Reads a run of entries at once, because the next call often needs a near one.
    ring_age = function(ring, _, _, index)
        local position = ring.head + index
        position = position < ring.room and position or position - ring.room
        local from = position - position % RUN
        if ring.from ~= from then
            ring.from, ring.run = from, piece(ring, from, RUN)
        end
        local entry = from_bytes(ring.format, ring.run, (position - from) * ring.bytes + 1)
        return (ring.newest + ring.shift - entry) % ring.wrap
    end

    -- Returns `count` copies of `text`. string.rep would copy byte by byte.
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

    -- Adds `count` equal entries after the newest. `room` is enough for all entries; a smaller ring grows to it.
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
        local position = (ring.head + ring.size) % ring.room
        ring.size, ring.from = ring.size + count, nil
        if count > MOST and not ring.body then
            -- Redis allocates the memory once.
            write_part(ring.key, kLargeLogHeader + math.min(position + count, ring.room) * ring.bytes - 1, '\0')
        end
        local text
        while count > 0 do
            local part = math.min(count, ring.room - position, ring.body and count or MOST)
            local at = position * ring.bytes
            text = text and #text == part * ring.bytes and text or repeated(entry, part)
            if ring.body then
                ring.body = string.sub(ring.body, 1, at) .. text .. string.sub(ring.body, at + #text + 1)
            else
                write_part(ring.key, kLargeLogHeader + at, text)
            end
            position, count = (position + part) % ring.room, count - part
        end
    end

    if large then
        local save_value = save
        save = function(key, value, expires, same_expiry)
            if type(value) ~= 'table' then
                return save_value(key, value, expires, same_expiry)
            end
            local expiry, admitted, newest = value.expiry % 2 ^ 48, value.admitted % 2 ^ 48, value.newest % 2 ^ 48
            local header = to_bytes(FORMAT, expiry, (value.expiry - expiry) / 2 ^ 48, kLargeLogFlags,
                kLargeLogEntry + value.bytes, admitted, (value.admitted - admitted) / 2 ^ 48, newest,
                (value.newest - newest) / 2 ^ 48, value.shift, value.room, value.head, value.size)
            if value.body then
                return save_value(key, header .. value.body, expires)
            end
            write_part(key, 0, header)
            save_until(key, expires)
        end

        -- A smaller limit or an earlier release has left a value that is not a ring; such a value is read as a whole.
        -- If the Redis user may not call GETRANGE, all values are read as a whole.
        local opened = {}
        for i in pairs(large) do
            local key = keys[i]
            local value = opened[key] or read_part(key, 0, kLargeLogHeader - 1)
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
                value = open_ring(value, key) or #value < kLargeLogHeader and value or read_part(key, 0, -1)
            end
            opened[key], values[i] = value, value
        end
    end
end
