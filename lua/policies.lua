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
--   decode: of a log alone, reads it.
--   step(place, cost): both at once, for what is most common: the state after a request, remaining, reset_after, and
--     the moment until which that matters if that is not the one before. Nothing if `place`, of 12 bytes, or the
--     request is of another kind. Not every algorithm has it.
--
-- A call makes only those that its policies are of; until then there is told which.
local makers = { [0] = false, false, false, false, false, false, false }
do
    local at = 1
    while at <= #ARGV[1] do
        local algorithm, _, rates = string.byte(ARGV[1], at, at + 2)
        makers[algorithm] = true
        at = at + 24 + rates * 12
    end
end
