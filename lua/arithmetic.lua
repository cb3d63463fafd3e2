-- Exact arithmetic. Lua's numbers are doubles: integers are exact below 2^53, and so is % on them.
--
-- Each call of a script pays for every function that it creates, and for every local that such a function uses. So a
-- script creates only the functions that the policies of the call need. Constants stand in the text: scripts/embed
-- replaces names such as kForever by the values in src/core/constants.h.
local from_bytes, to_bytes = struct.unpack, struct.pack

-- Returns the quotient and the remainder of x * y / d, for d up to 2^45. A quotient above 2^53 is not exact, but still
-- above 2^53.
local function muldiv(x, y, d)
    local product = x * y
    if product < 2 ^ 53 then
        local rest = product % d
        return (product - rest) / d, rest
    end
    local rest = x % d
    local quotient = (x - rest) / d * y
    x = rest
    -- Long division by digits of 7 bits, the highest first: each dividend is below 2^8 * d.
    local scale = 1
    while scale * 128 <= y do
        scale = scale * 128
    end
    local part = 0
    rest = 0
    while scale >= 1 do
        local lower = y % scale
        local value = rest * 128 + (y - lower) / scale * x
        rest = value % d
        part = part * 128 + (value - rest) / d
        y = lower
        scale = scale / 128
    end
    return quotient + part, rest
end

-- Returns (x * y + more) / d, rounded up, and at most kForever.
local function wait_for(x, y, more, d)
    local total = x * y + more
    local quotient, rest = 0, total
    if total >= 2 ^ 53 then
        quotient, rest = muldiv(x, y, d)
        rest = rest + more
    end
    local over = rest % d
    quotient = quotient + (rest - over) / d
    if over > 0 then
        quotient = quotient + 1
    end
    if quotient < kForever then
        return quotient
    end
    return kForever
end
