-- A request that fits and is not delayed.
local last, high = from_bytes('<I6I6', value)
local top, beside = high % 16, high % 65536
local whole, part = (beside - top) / 16, (high - beside) / 65536
local elapsed = now - last - top * 2 ^ 48
local left, gone = whole * period + part, elapsed * count
if elapsed > 0 and (whole < most or whole < ceiling) and part < period and left < 2 ^ 52 and gone < 2 ^ 52 then
    left = left > gone and left - gone or 0
    part = left % period
    whole = (left - part) / period
    local used, after, total = part > 0 and whole + 1 or whole, whole + cost, left + cost * period
    local turn = after > delay + 1 or (after == delay + 1 and part > 0)
    if used + cost <= limit and not turn and after < 4096 and part < 2 ^ 32 and total < 2 ^ 52 then
        local low = now % 2 ^ 48
        state = to_bytes('<I6I6', low, (now - low) / 2 ^ 48 + after * 16 + part * 65536)
        remaining, reset = limit - used - cost, (total + -total % count) / count
        expires = now + reset
    end
end
