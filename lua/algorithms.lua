-- The algorithms by their numbers, and what each promises.
--
-- Each makes the functions of one rate, out of its limit, count and seconds, and the policy's flags, size, ceiling,
-- delay and longest period:
--   evaluate(place, cost): what the rate says of a request, by the state in `place`, or of a client never seen if
--     there is none. Whether it fits; remaining, reset_after, retry_after (-1 for never), delay and excess_milli, as
--     after it was charged if it fits; then the view: the moment, `start`, `a`, `b`, and whether the state has to be
--     written even if nothing is charged.
--   write(place, moment, start, a, b, cost): the state of that view after a cost, or after it was given back if it is
--     below 0; false for none. And the moment until which that matters.
-- A log has a third, which reads it.
local function maker_of(algorithm)
    return algorithm == 0 and token_bucket or algorithm == 1 and leaky_bucket or algorithm == 2 and gcra or
        algorithm == 3 and fixed_window or algorithm == 4 and sliding_window or algorithm == 5 and sliding_buckets or
        sliding_log
end
