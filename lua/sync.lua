-- A sync call: charges requests that an instance has admitted, even beyond the limit. Evaluates all clients, then
-- writes what has changed. src/protocol/wire.h describes the arguments.
--
-- The last key is the guard of the sender: the sequence number of its last call that was applied. A sender that gets no
-- reply repeats its call; a call that was applied before only reads.
--
-- The requests were admitted between `since` and `now`.
local clients, entries, sequence, since = #KEYS - 1, ARGV[2], ARGV[3], math.max(now - ARGV[4], 1)
assert(#entries == clients * kLargeLimitSize and string.find(sequence, '^%d+$'))

-- Sequence numbers are compared as text, because they may exceed 2^53.
local guard = values[#KEYS]
local applied = guard and string.find(guard, '^%d+$') and
    (#guard > #sequence or (#guard == #sequence and guard >= sequence))

-- Only some calls need these files.
local function make_checks()
    -- include rate_slots.lua state.lua check.lua
    return checks()
end

local new_check, new_policy, evaluate, charge, check
local policies = {}

-- Most policies have one rate and nothing special, and an algorithm with a fixed expiry whose `write` charges beyond
-- the limit. The main loop charges them without check.lua.
local simple_evaluate, simple_write = {}, {}
do
    local at, number = 1, 0
    while at <= #ARGV[1] do
        local algorithm, flags, rates, slots, size, ceiling, delay, min_interval, limit, count, seconds, most,
            next_rate =
            read_policy(0, at)
        local simple = false
        -- parts simple_policies
        if simple and rates == 1 and slots == 1 and min_interval == 0 then
            simple_evaluate[number], simple_write[number] =
                makers[algorithm](limit, count, seconds, most, flags, size, ceiling, delay, seconds)
        end
        at, number = next_rate + (rates - 1) * kRateSize, number + 1
    end
end

-- Returns the time of the last charge of a state that drains with time; nothing for other states.
local function last_charge()
    local policy = check.policy
    -- parts last_charge
end

-- Evaluates a client at `now`. A state that drains and is to be charged is evaluated at the time when the requests were
-- admitted, or of its last charge if that is later: from then on the state has drained for all instances. Other
-- instances may send requests of the same age, so the value is kept for longer by this age.
local function evaluate_at_admission(policy, value, cost)
    local real, drains = now, false
    -- parts evaluate_at_admission
    local back = drains and cost > 0 and since < now
    check.extra = back and now - since or 0
    now = back and since or now
    evaluate(check, policy, value, 0)
    if back then
        local last = last_charge()
        if last - since > kClockSlack then
            now = math.min(last, real)
            evaluate(check, policy, value, 0)
        end
        now = real
        check.admitted_at = check.admitted - now > kClockSlack and now or math.max(check.admitted, now)
    end
end

-- Returns how many of `cost` requests exceed the limit.
local function overshoot_of(cost)
    local policy = check.policy
    -- parts overshoot_of
    return math.max(cost - check.remaining, 0)
end

-- Charges `cost` even beyond the limit.
local function charge_beyond_limit(cost)
    local policy = check.policy
    check.cost = cost
    -- parts charge_beyond_limit
    return charge(check)
end

-- Charges a client under any policy. Returns how many requests exceed the limit, the new value, the time until which it
-- is needed (nil if the key does not change), and the value for the reply.
local function charge_client(number, value, cost)
    if not check then
        new_check, new_policy, evaluate, charge = make_checks()
        check = new_check()
    end
    local policy = policies[number] or new_policy(number)
    policies[number] = policy
    evaluate_at_admission(policy, value, cost)
    local overshoot = overshoot_of(cost)
    local written, expires = charge_beyond_limit(cost)
    value = expires and written or not expires and value
    -- parts charge_client
    return overshoot, value, expires, value and #value <= kMostReported and value or ''
end

-- `expiries` has the times until which changed values are needed, `same_expiry` is true where the key has this expiry
-- already.
local expiries, same_expiry, answers = {}, {}, { to_bytes(kTimeFormat, now) }
for i = 1, clients do
    local number, cost = from_bytes(kLargeLimitFormat, entries, (i - 1) * kLargeLimitSize + 1)
    local value, simple = values[i], simple_evaluate[number]
    local overshoot, reported
    -- A value of one of these sizes may be long: see is_long in state.lua.
    if applied or cost == 0 or not simple or
        (value and (#value > kWideState or #value == 9) and string.byte(value, 9) >= kValueIsLong) then
        overshoot, values[i], expiries[i], reported = charge_client(number, value, applied and 0 or cost)
    else
        local _, remaining, _, _, _, _, time, start, a, b, moved = simple(value, 0)
        local expires
        reported, expires = simple_write[number](value, time, start, a, b, cost)
        overshoot = cost > remaining and cost - remaining or 0
        -- The expiry of a window with a count above 0 does not depend on the count.
        values[i], expiries[i], same_expiry[i] = reported, expires, a > 0 and not moved
    end
    answers[i * 2] = to_bytes(kEntryFormat, overshoot, #reported)
    answers[i * 2 + 1] = reported
end

for i = 1, clients do
    if expiries[i] then
        save(KEYS[i], values[i], expiries[i], same_expiry[i])
    end
end
if not applied then
    local last = now + 86400 * kSecond
    -- A guard whose name ends with "}" belongs to one client. It is not needed longer than the client's key: requests
    -- that have left the window are not sent again.
    if string.byte(KEYS[#KEYS], -1) == 125 then
        last = math.min(last, math.max(expiries[1] or 0, now + 60 * kSecond))
    end
    save(KEYS[#KEYS], sequence, last)
end
return table.concat(answers)
