-- One call that charges what was admitted elsewhere, whether it fits or not: reads the policies and the entries, then
-- the clients one by one, and only then writes what has changed.
--
-- The last key is the sender's guard: the number of its call that was applied last. One that comes again, since its
-- answer was lost, only looks.
--
-- What was admitted is at most so many microseconds old as ARGV[4] says.
local clients, entries, sequence, since = #KEYS - 1, ARGV[2], ARGV[3], math.max(now - ARGV[4], 1)
assert(#entries == clients * 5 and string.find(sequence, '^%d+$'))

-- The numbers are compared as text, since they may be beyond what Lua can count.
local guard = values[#KEYS]
local applied = guard and string.find(guard, '^%d+$') and
    (#guard > #sequence or (#guard == #sequence and guard >= sequence))

-- What any policy may need is made only for a call that has one which needs it.
local function make_checks()
    -- include places.lua state.lua check.lua
    return checks()
end

local new_check, read_policy, evaluate, charge, check
local policies = {}

-- Most have one rate and one state that counts in windows, and nothing else: what check.lua does for these is done in
-- one step.
local simple_evaluate, simple_write = {}, {}
do
    local text, at, number = ARGV[1], 1, 0
    while at <= #text do
        local algorithm, flags, rates, places, size, ceiling, delay, min_interval, rate =
            from_bytes('<BBBBI4I4I4I8', text, at)
        if (algorithm == 3 or algorithm == 4) and rates == 1 and places == 1 and min_interval == 0 then
            local limit, count, seconds = from_bytes('<I4I4I4', text, rate)
            simple_evaluate[number], simple_write[number] =
                makers[algorithm](limit, count, seconds, flags, size, ceiling, delay, seconds)
        end
        at, number = rate + rates * 12, number + 1
    end
end

-- When a level was last charged.
local function last_charge()
    local last = 0
    for i = 1, check.policy.rates do
        local place = check.places[check.from[i]]
        if place then
            local low, high = from_bytes('<I6I2', place)
            last = math.max(last, low + high % 16 * 2 ^ 48)
        end
    end
    return last
end

-- Looks at a client as it is now or, at a level to be charged, as it was when that was admitted, or when it was
-- last charged: since then it has drained, once for all who have charged it. Others may have to be charged as long
-- ago, so it is kept for so much longer.
local function look(policy, value, cost)
    local real = now
    local back = cost > 0 and policy.algorithm < 3 and since < now
    check.longer = back and now - since or 0
    now = back and since or now
    evaluate(check, policy, value, 0)
    if back then
        local last = last_charge()
        if last - since > 1000000 then
            now = math.min(last, real)
            evaluate(check, policy, value, 0)
        end
        now = real
        check.admitted_at = check.admitted - now > 1000000 and now or math.max(check.admitted, now)
    end
end

-- By how much `cost` will have raised what is beyond the limit.
local function overshoot_of(cost)
    local policy, most = check.policy, 0
    if cost == 0 or policy.algorithm > 2 or since >= now then
        return math.max(cost - check.remaining, 0)
    end
    for i = 1, policy.rates do
        local rate = policy[i]
        local drained = math.max(now - check.time[i], 0) * rate.count
        local filled = check.a[i] + (check.b[i] - drained) / (rate.seconds * 1000000)
        most = math.max(most, filled < rate.limit and math.ceil(filled + cost - rate.limit) or cost)
    end
    return most
end

-- A level is raised to what may be owed, beyond the limit; what counts in windows is written as it is.
local function impose(cost)
    local policy = check.policy
    check.cost = cost
    if cost == 0 or policy.algorithm > 2 then
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

-- Charges a client under any policy: by how much this exceeds a limit, its value, until when that matters if it is to
-- be written, and what is told of it.
local function settle(number, value, cost)
    if not check then
        new_check, read_policy, evaluate, charge = make_checks()
        check = new_check()
    end
    local policy = policies[number] or read_policy(number)
    policies[number] = policy
    look(policy, value, cost)
    local overshoot = overshoot_of(cost)
    local written, matters = impose(cost)
    value = matters and written or not matters and value
    return overshoot, value, matters, policy.algorithm < 6 and value and #value < 65536 and value or ''
end

-- Which keys expire when they would have anyway.
local moments, same, answers = {}, {}, { to_bytes('<I8', now) }
for i = 1, clients do
    local number, cost = from_bytes('<BI4', entries, i * 5 - 4)
    local value, simple = values[i], simple_evaluate[number]
    local overshoot, told
    -- What has any of these lengths may be a long value: see state.lua.
    if applied or cost == 0 or not simple or
        (value and (#value > 16 or #value == 9) and string.byte(value, 9) >= 128) then
        overshoot, values[i], moments[i], told = settle(number, value, applied and 0 or cost)
    else
        local _, remaining, _, _, _, _, time, start, a, b, moved = simple(value, 0)
        local matters
        told, matters = simple_write[number](value, time, start, a, b, cost)
        overshoot = cost > remaining and cost - remaining or 0
        -- A state that has counted anything ends with its window, whatever it counts.
        values[i], moments[i], same[i] = told, matters, a > 0 and not moved
    end
    answers[i * 2] = to_bytes('<I4I2', overshoot, #told)
    answers[i * 2 + 1] = told
end

for i = 1, clients do
    if moments[i] then
        keep(KEYS[i], values[i], moments[i], same[i])
    end
end
if not applied then
    local last = now + 86400 * 1000000
    -- A guard that stands beside its one client, as its braces tell, guards nothing once the client's key no longer
    -- matters: what has left its window is not sent again.
    if string.byte(KEYS[#KEYS], -1) == 125 then
        last = math.min(last, math.max(moments[1] or 0, now + 60 * 1000000))
    end
    keep(KEYS[#KEYS], sequence, last)
end
return table.concat(answers)
