-- Exact arithmetic on Lua's numbers, which are doubles: whole numbers are exact below 2^53, and so is % on them.
--
-- A call pays for every function that it makes and for every local that one of them knows. So the files of this
-- script make only what the call's policies need, and these numbers stand as they are:
--   2 ^ 53      below it whole numbers are exact
--   2 ^ 52 - 1  no wait is told as longer (142 years); times have 52 bits
--   1000000     microseconds by which the clock may be behind the state: it then stands still until it has caught up.
--               One further behind has been set back, and the state follows it.
local from_bytes, to_bytes = struct.unpack, struct.pack

-- x * y / d as a quotient and a rest, for d up to 2^45. A quotient beyond 2^53 is not exact, but still beyond.
local function muldiv(x, y, d)
    local product = x * y
    if product < 2 ^ 53 then
        local rest = product % d
        return (product - rest) / d, rest
    end
    local rest = x % d
    local quotient = (x - rest) / d * y
    x = rest
    -- By digits of 7 bits, the highest first: what is divided stays below 2^8 * d.
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

-- (x * y + more) / d, rounded up, as a wait.
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
    if quotient < 2 ^ 52 - 1 then
        return quotient
    end
    return 2 ^ 52 - 1
end
