-- Reads and writes the value of a client's key. src/protocol/redis_value.h describes values.
--
-- value_codec returns two functions: read_value(check, value) sets check.states, check.marks, check.expiry and
-- check.admitted; write_value(check) returns the value.
local function value_codec(convert_rate_slots)
    local byte, sub = string.byte, string.sub
    local UNUSED = string.rep('\0', kWideState)

    local function is_long(value)
        local size = #value
        return size ~= kShortState and size ~= kWideState and size > 8 and byte(value, 9) >= kValueIsLong
    end

    local function read_time(value, at)
        local low, high = from_bytes('<I6I2', value, at)
        return low + high % 32 * 2 ^ 48
    end

    -- Returns the bytes of the state at `at`, and where the state begins.
    local function length_of(policy, value, at, flags)
        -- parts length_of
        if flags % (2 * kValueIsLarge) >= kValueIsLarge then
            return byte(value, at), at + 1
        end
        return flags % (2 * kValueIsWide) >= kValueIsWide and kWideState or kShortState, at
    end

    -- Returns the state, or false if `policy` cannot have written it.
    local function valid(policy, state)
        -- parts valid
        local size = #state
        if size == kWideState and sub(state, kShortState + 1) == sub(UNUSED, kShortState + 1) then
            state = sub(state, 1, kShortState)
        end
        if size == kLargeState then
            return byte(state, 9) == 0 and state
        end
        return (size == kShortState or size == kWideState) and state ~= sub(UNUSED, 1, kShortState) and state
    end

    -- Sets `check` from a long value. Returns the number of its rate slots.
    local function read_long(check, value)
        local policy = check.policy
        local flags = byte(value, 9) - kValueIsLong
        local count = flags % kMaxRates + 1
        local at = 10
        check.expiry, check.admitted = 0, 0
        if flags % (2 * kValueHasExpiry) >= kValueHasExpiry then
            check.expiry = read_time(value, 1)
            if flags % (2 * kValueHasInterval) >= kValueHasInterval then
                check.admitted = read_time(value, at)
                at = at + 8
            end
        else
            check.admitted = read_time(value, 1)
        end
        for i = 1, count do
            local state, mark = false, 0
            if at <= #value then
                if count > 1 then
                    mark = byte(value, at)
                    at = at + 1
                end
                local length
                length, at = length_of(policy, value, at, flags)
                state = valid(policy, sub(value, at, at + length - 1))
                at = at + length
                -- parts read_long
            end
            check.states[i], check.marks[i] = state, mark
        end
        return count
    end

    -- Returns the mark of the rate that a state was used with; 0 if the state does not tell.
    local function mark_of(policy, state)
        -- parts mark_of
        return 0
    end

    -- Sets `check` from any value that the policy's algorithm may have written.
    local function read_value(check, value)
        local policy = check.policy
        local states, marks = check.states, check.marks
        -- parts read_value
        local count = 0
        local long = value and is_long(value)
        if long then
            local ok, found = pcall(read_long, check, value)
            count = ok and found or 0
        elseif value and valid(policy, value) then
            count = 1
            states[1], marks[1] = value, 0
        end
        if count == 0 then
            for i = 1, policy.slots do
                states[i], marks[i] = false, 0
            end
        elseif count ~= policy.slots then
            if count == 1 and states[1] then
                marks[1] = mark_of(policy, states[1])
            end
            convert_rate_slots(policy, count, states, marks)
        end
        if count == 0 or not long then
            check.expiry, check.admitted = 0, 0
        end
    end

    local function time_bytes(time)
        local low = time % 2 ^ 48
        return to_bytes('<I6I2', low, (time - low) / 2 ^ 48)
    end

    -- Returns the number of rate slots without trailing unused ones, and the bytes of a state if all have the same.
    local function extent(check, count)
        local algorithm, states, marks = check.policy.algorithm, check.states, check.marks
        while count > 0 and not states[count] and marks[count] == 0 do
            count = count - 1
        end
        -- parts extent
        local length = kShortState
        for i = 1, count do
            length = math.max(length, states[i] and #states[i] or 0)
        end
        return count, length
    end

    local parts = {}

    local function write_long(check)
        local policy, states = check.policy, check.states
        local count, length = extent(check, policy.slots)
        local flags = kValueIsLong + policy.slots - 1 + (policy.min_interval > 0 and kValueHasInterval or 0) +
            (policy.has_expiry and kValueHasExpiry or 0) +
            (length == kWideState and kValueIsWide or length == kLargeState and kValueIsLarge or 0)
        parts[1] = time_bytes(policy.has_expiry and check.expiry or check.admitted)
        parts[2] = to_bytes('B', flags)
        parts[3] = policy.has_expiry and policy.min_interval > 0 and time_bytes(check.admitted) or ''
        local size = 3
        for i = 1, count do
            local state, text = states[i], nil
            -- parts write_long
            if length == kLargeState then
                text = to_bytes('B', state and #state or 0) .. (state or '')
            end
            if policy.slots > 1 then
                size = size + 1
                parts[size] = to_bytes('B', check.marks[i])
            end
            size = size + 1
            parts[size] = text or (state or '') .. sub(UNUSED, 1, length - (state and #state or 0))
        end
        return table.concat(parts, '', 1, size)
    end

    local function write_value(check)
        local policy, state = check.policy, check.states[1]
        -- parts write_value
        if policy.is_long then
            return write_long(check)
        end
        return state
    end

    return read_value, write_value
end
