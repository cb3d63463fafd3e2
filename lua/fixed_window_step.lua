-- A window that has not ended and whose count is not 0, and a request that fits.
local low, high = from_bytes('<I6I6', value)
local top, beside = high % 16, high % 65536
local left, counted = low + top * 2 ^ 48 - now, (high - beside) / 65536
if left > 0 and left <= period and beside - top == mark and counted > 0 and
    counted + cost <= limit and counted + cost < 2 ^ 32 then
    state, remaining, reset = to_bytes('<I6I6', low, high + cost * 65536), limit - counted - cost, left
end
