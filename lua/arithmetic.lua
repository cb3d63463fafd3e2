-- Exact arithmetic. Lua's numbers are doubles: integers are exact below 2^53, and so is % on them.
--
-- Each call of a script pays for every function that it creates, and for every local that such a function uses. So a
-- script creates only the functions that the policies of the call need. Constants stand in the text: scripts/embed
-- replaces names such as kForever by the values in src/core/constants.h.

-- Returns the quotient and the remainder of x * y / d, for numbers below 2^53. A quotient above 2^53 is not exact, but
-- still above 2^53.
local function muldiv(x, y, d)
    local product = x * y
    if product < 2 ^ 53 then
        local rest = product % d
        return (product - rest) / d, rest
    end
    local rest = x % d
    local quotient = (x - rest) / d * y
    x = rest
    -- Long division by digits of 7 bits, the highest first: each dividend is below 2^8 * d. For a larger `d`, by single
    -- bits, and without a sum above `d`.
    local digit = d <= 2 ^ 45 and 128 or 2
    local scale = 1
    while scale * digit <= y do
        scale = scale * digit
    end
    local part = 0
    rest = 0
    while scale >= 1 do
        local lower = y % scale
        if digit == 128 then
            local value = rest * 128 + (y - lower) / scale * x
            rest = value % d
            part = part * 128 + (value - rest) / d
        else
            local gone = rest >= d - rest and 1 or 0
            rest = gone == 1 and rest - (d - rest) or rest * 2
            part = part * 2 + gone
            if y > lower then
                gone = rest >= d - x and 1 or 0
                rest = gone == 1 and rest - (d - x) or rest + x
                part = part + gone
            end
        end
        y = lower
        scale = scale / digit
    end
    return quotient + part, rest
end

-- Returns (x * y + more) / d, rounded up, and at most kForever.
local function wait_for(x, y, more, d)
    local total = x * y + more
    local quotient, rest = 0, total
    if total >= 2 ^ 53 then
        quotient, rest = muldiv(x, y, d)
        if rest >= d - more then
            -- Their sum may be above 2^53.
            quotient, rest, more = quotient + 1, rest - (d - more), 0
        end
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
