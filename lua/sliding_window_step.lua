-- A window that has not ended and whose count is not 0, and a request that fits.
local low, rest = from_bytes('<I6I6', value)
local high, counted = rest % 65536, rest % 2 ^ 32
local top, before = high % 16, (rest - counted) / 2 ^ 32
local left = low + top * 2 ^ 48 - now
counted = (counted - high) / 65536
if left > 0 and left <= period and high - top == mark and counted > 0 and before <= most then
    local overlap = before * left
    -- Rounded up, as by wait_for.
    local used = counted + (overlap + -overlap % period) / period
    if overlap < 2 ^ 52 and used + cost <= limit and counted + cost < 65536 then
        state, remaining, reset = to_bytes('<I6I6', low, rest + cost * 65536), limit - used - cost, left + period
    end
end
