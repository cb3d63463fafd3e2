-- The policies of the call, decoded from ARGV[1], and the algorithms. src/protocol/wire.h describes the records.
--
-- `makers` has a function for each algorithm: makers[algorithm](limit, count, seconds, flags, size, ceiling, delay,
-- longest) returns the functions evaluate, write, decode and step of one rate. `longest` is the longest period of the
-- policy, in seconds; the other parameters are those that read_policy returns. In these functions, `state` is the state
-- of the rate as a string, or false for a new client:
--   evaluate(state, cost) returns
--     whether the request fits;
--     remaining, reset_after, retry_after (-1 for never), delay and excess_milli, after the charge if it fits;
--     the view: the time of the evaluation; `start`, `a` and `b`, whose meaning depends on the algorithm; and `moved`,
--     whether the state must be written even if nothing is charged.
--   write(state, time, start, a, b, cost) returns the state after `cost` is charged to this view, false for no state,
--     and the time until which the state is needed. A negative cost is a refund.
--   decode(state), for sliding_log only, returns the log.
--   step(state, cost), for some algorithms only, is evaluate and write for the most common requests. It returns the
--     state after the charge, remaining, reset_after and, if it changes, the time until which the state is needed. It
--     returns nothing for other requests. `state` has kShortState bytes.
-- The loop below sets a maker to true if the call needs it. The files of the algorithms then set the function.
local makers = { [0] = false, false, false, false, false, false, false }
do
    local text, at = ARGV[1], 1
    while at <= #text do
        local algorithm, _, rates = string.byte(text, at, at + 2)
        makers[algorithm] = true
        at = at + kPolicySize + rates * kRateSize
    end
end

-- Decodes the policy `index` records after the one at `at`, which is the first if not given. Returns the algorithm, the
-- flags, the number of rates, the number of rate slots, the size (buckets of sliding_buckets, largest number of entries
-- of sliding_log), ceiling, delay, min_interval; capacity, count and period of the first rate; and the position after
-- that rate. A table would be more readable, but costs 7 % of a call.
local function read_policy(index, at)
    at = at or 1
    for _ = 1, index do
        at = at + kPolicySize + string.byte(ARGV[1], at + 2) * kRateSize
    end
    return from_bytes(kPolicyFormat .. kRateFormat, ARGV[1], at)
end
