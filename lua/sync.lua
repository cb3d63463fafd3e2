-- A sync call: charges requests that an instance has admitted, even beyond the limit. Evaluates all clients, then
-- writes what has changed. src/protocol/wire.h describes the arguments.
--
-- The last key is the guard of the sender: the sequence number of its last call that was applied. A sender that gets no
-- reply repeats its call; a call that was applied before only reads.
--
-- The requests were admitted between `since` and `now`.
local clients, entries, sequence, since = #KEYS - 1, ARGV[2], ARGV[3], math.max(now - ARGV[4], 1)
assert(#entries == clients * kLimitSize and string.find(sequence, '^%d+$'))

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

-- Most policies count in windows and have one rate and nothing special. The main loop charges them without check.lua.
local simple_evaluate, simple_write = {}, {}
do
    local at, number = 1, 0
    while at <= #ARGV[1] do
        local algorithm, flags, rates, slots, size, ceiling, delay, min_interval, limit, count, seconds, next_rate =
            read_policy(0, at)
        if (algorithm == kFixedWindow or algorithm == kSlidingWindow) and rates == 1 and slots == 1 and
            min_interval == 0 then
            simple_evaluate[number], simple_write[number] =
                makers[algorithm](limit, count, seconds, flags, size, ceiling, delay, seconds)
        end
        at, number = next_rate + (rates - 1) * kRateSize, number + 1
    end
end

-- Returns the time of the last charge of a bucket.
local function last_charge()
    local last = 0
    for i = 1, check.policy.rates do
        local state = check.states[check.from[i]]
        if state then
            local low, high = from_bytes('<I6I2', state)
            last = math.max(last, low + high % 16 * 2 ^ 48)
        end
    end
    return last
end

-- Evaluates a client at `now`. A bucket that is to be charged is evaluated at the time when the requests were admitted,
-- or of its last charge if that is later: from then on the bucket has drained for all instances. Other instances may
-- send requests of the same age, so the value is kept for longer by this age.
local function evaluate_at_admission(policy, value, cost)
    local real = now
    local back = cost > 0 and policy.algorithm < kFixedWindow and since < now
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
    local policy, most = check.policy, 0
    if cost == 0 or policy.algorithm >= kFixedWindow or since >= now then
        return math.max(cost - check.remaining, 0)
    end
    for i = 1, policy.rates do
        local rate = policy[i]
        local drained = math.max(now - check.time[i], 0) * rate.count
        local filled = check.a[i] + (check.b[i] - drained) / (rate.seconds * kSecond)
        most = math.max(most, filled < rate.limit and math.ceil(filled + cost - rate.limit) or cost)
    end
    return most
end

-- Charges `cost` even beyond the limit: a bucket at most up to `owed`, a window as it is.
local function charge_beyond_limit(cost)
    local policy = check.policy
    check.cost = cost
    if cost == 0 or policy.algorithm >= kFixedWindow then
        return charge(check)
    end
    for i = 1, policy.rates do
        local after, owed = check.a[i] + cost, policy[i].owed
        if after < owed then
            check.a[i] = after
        elseif check.a[i] < owed then
            check.a[i], check.b[i] = owed, 0
        end
    end
    return charge(check, 0)
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
    return overshoot, value, expires, policy.algorithm ~= kSlidingLog and value and #value < 65536 and value or ''
end

-- `expiries` has the times until which changed values are needed, `same_expiry` is true where the key has this expiry
-- already.
local expiries, same_expiry, answers = {}, {}, { to_bytes(kTimeFormat, now) }
for i = 1, clients do
    local number, cost = from_bytes(kLimitFormat, entries, (i - 1) * kLimitSize + 1)
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
