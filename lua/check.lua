-- Decides a request against one limit with all its rates, then charges or refuses it.
--
-- A check is a table that is reused for other requests. Its fields:
--   policy, cost
--   states, marks                of each rate slot, from the value
--   expiry, admitted             the times in the value
--   to, from                     for each rate, the slot to write to and the slot to read from
--   time, start, a, b, moved     for each rate, the view: see policies.lua
--   allowed, rate, remaining, reset, retry, delay, excess: the decision
--   admitted_at                  the new time of the last admitted request, for min_interval
--   interval_moved               whether that time must be written even if nothing is charged
--   extra                        microseconds for which the value is kept beyond the need of its rates; may be nil
--   fresh                        used by write_rates only
--   charged, charged_at          the charge that is undone; used by group.lua only
--
-- charge, refuse, undo and overdraw return the new value of the key, false for none, and the time until which the value
-- is needed; they return nothing if the key does not change.
local function checks()
    local find_rate_slots, convert_rate_slots = rate_slots()
    local read_value, write_value = value_codec(convert_rate_slots)

    local function new_check()
        return {
            states = {}, marks = {}, to = {}, from = {}, fresh = {},
            time = {}, start = {}, a = {}, b = {}, moved = {},
        }
    end

    -- Usually the slots have the marks of the rates, in order.
    local function assign_slots(check)
        local policy, marks, to, from = check.policy, check.marks, check.to, check.from
        local own, free = true, true
        for i = 1, policy.rates do
            to[i], from[i] = i, i
            own = own and marks[i] == policy[i].slot_mark
        end
        for i = 1, policy.slots do
            free = free and marks[i] == 0
        end
        if policy.slots == 1 then
            for i = 1, policy.rates do
                to[i], from[i] = 1, 1
            end
        elseif not own and not free then
            find_rate_slots(policy, policy.slots, marks, to, from)
        end
    end

    local function longer(a, b)
        return b ~= -1 and (a == -1 or a > b)
    end

    -- The decision has the numbers of one rate: of the rates that reject, the one with the longest wait; if none
    -- rejects, the one with the least remaining requests.
    local function evaluate_rates(check, cost)
        local policy, states, from = check.policy, check.states, check.from
        local delay, delayed = 0, 0
        for i = 1, policy.rates do
            local fits, remaining, reset, retry, turn, excess, time, start, a, b, moved =
                policy[i].evaluate(states[from[i]], cost)
            check.time[i], check.start[i], check.a[i], check.b[i], check.moved[i] = time, start, a, b, moved
            if cost == 0 then
                fits, retry = true, 0
            end
            if turn > delay then
                delay, delayed = turn, excess
            end
            if reset > 0 then
                reset = reset + time - now
            end
            if retry > 0 then
                retry = retry + time - now
            end
            local binds
            if i == 1 then
                binds = true
            elseif fits then
                binds = check.allowed and remaining < check.remaining
            else
                binds = check.allowed or longer(retry, check.retry)
            end
            if binds then
                check.allowed, check.rate, check.remaining = fits, i - 1, remaining
                check.reset, check.retry, check.excess = reset, retry, excess
            end
        end
        check.delay = 0
        if check.allowed then
            check.delay, check.excess = delay, delayed
        end
    end

    local function evaluate_interval(check, cost)
        local last = check.admitted
        check.interval_moved = last - now > kClockSlack
        check.admitted_at = (check.interval_moved or last < now) and now or last
        local wait = (check.interval_moved and now or last) + check.policy.min_interval - now
        if cost == 0 or last == 0 or wait <= 0 then
            return
        end
        if check.allowed then
            -- Nothing will be charged: the numbers are those without the cost.
            evaluate_rates(check, 0)
        end
        if check.allowed or longer(wait, check.retry) then
            check.retry = wait
            check.reset = math.max(check.reset, wait)
            check.excess = cost * 1000
        end
        check.allowed, check.remaining, check.delay = false, 0, 0
    end

    local function decide(check, cost)
        assign_slots(check)
        evaluate_rates(check, cost)
        check.interval_moved = false
        if check.policy.min_interval > 0 then
            evaluate_interval(check, cost)
        end
    end

    -- Decides a request of `cost` by the value of the client's key. A cost of 0 only reads.
    local function evaluate(check, policy, value, cost)
        check.policy, check.cost = policy, cost
        read_value(check, value)
        decide(check, cost)
    end

    -- Writes the states of all rates after `cost` to their slots. Returns the time until which they are needed.
    --
    -- If not nil, cost_of(i) returns the cost for the rate `i`, and `charged_at` is the time of the charge that is
    -- undone.
    local function write_rates(check, cost, cost_of, charged_at)
        local policy, states, fresh = check.policy, check.states, check.fresh
        local expires = 0
        for i = 1, policy.written do
            local needed
            cost = cost_of and cost_of(i) or cost
            fresh[i], needed = policy[i].write(states[check.from[i]], check.time[i], check.start[i], check.a[i],
                check.b[i], cost, nil, charged_at)
            expires = math.max(expires, needed)
        end
        for i = 1, policy.written do
            states[check.to[i]] = fresh[i]
            if policy.slots > 1 then
                check.marks[check.to[i]] = policy[i].slot_mark
            end
        end
        return expires
    end

    -- Returns whether the value has states that the rates of this policy do not use.
    local function keeps_others(check)
        local policy, to = check.policy, check.to
        -- parts keeps_others
        local others = 0
        for slot = 1, policy.slots > policy.rates and policy.slots or 0 do
            others = others + (check.marks[slot] ~= 0 and 1 or 0)
            for i = 1, policy.rates do
                others = others - (check.marks[slot] ~= 0 and to[i] == slot and 1 or 0)
            end
        end
        return others > 0
    end

    -- Returns the expiry in a value if its rates may have written it. Most states are not needed for longer than three
    -- of the longest periods, so a later expiry is garbage.
    local function believed(policy, expiry)
        local last = now + 3 * kMaxPeriod
        if expiry <= last then
            return expiry
        end
        -- parts believed
        return 0
    end

    -- Returns the value of the check, false if it is not needed, and the time until which it is needed.
    local function finish(check, expires)
        local policy = check.policy
        expires = expires + (check.extra or 0)
        if policy.min_interval > 0 and check.admitted > 0 then
            expires = math.max(expires, check.admitted + policy.min_interval)
        end
        if policy.has_expiry then
            if keeps_others(check) then
                expires = math.max(expires, believed(policy, check.expiry))
            end
            check.expiry = expires
        end
        return expires > now and write_value(check), expires
    end

    -- Returns the time until which the states of all rates are needed if none is written.
    local function needed_until(check)
        local policy, states = check.policy, check.states
        local expires = 0
        for i = 1, policy.written do
            local _, needed = policy[i].write(states[check.from[i]], check.time[i], check.start[i], check.a[i],
                check.b[i], 0)
            expires = math.max(expires, needed)
        end
        if policy[1].decode and states[1] then
            states[1] = policy[1].decode(states[1])
        end
        return expires
    end

    -- After the clock was set back or a period was shortened, the state is written even if nothing is charged:
    -- otherwise it would stay in the future.
    local function write_uncharged(check, cost)
        local policy = check.policy
        local moved = cost > 0
        for i = 1, policy.rates do
            moved = moved or check.moved[i]
        end
        if not moved and not check.interval_moved then
            return
        end
        local expires
        if moved then
            expires = write_rates(check, cost)
        else
            expires = needed_until(check)
        end
        if check.interval_moved then
            check.admitted = check.admitted_at
        end
        return finish(check, expires)
    end

    -- Charges the cost, or only `part` of it: the views then include the rest.
    local function charge(check, part)
        if check.cost == 0 then
            return write_uncharged(check, 0)
        end
        local expires = write_rates(check, part or check.cost)
        if check.policy.min_interval > 0 then
            check.admitted = check.admitted_at
        end
        return finish(check, expires)
    end

    -- Writes what remains of a request that this limit or another one of the group rejects.
    local function refuse(check)
        local cost = check.cost
        if not check.policy.count_all or cost == 0 then
            return write_uncharged(check, 0)
        end
        local value, expires = write_uncharged(check, cost)
        -- The decision has the numbers after the charge.
        local excess = check.excess
        decide(check, check.allowed and 0 or cost)
        check.excess = excess
        return value, expires
    end

    -- Undoes a part of the charge of the check: gives back the cost, as far as the charge still counts.
    local function undo(check, whole)
        if check.cost == 0 then
            return
        end
        if whole then
            -- The time of the admitted request before is unknown, so min_interval starts anew.
            check.admitted = 0
        end
        local policy, charged, charged_at = check.policy, check.charged, check.charged_at
        return finish(check, write_rates(check, 0, function(i)
            local amount = check.cost
            -- parts undo
            return -amount
        end, charged_at))
    end

    -- Charges the cost even if it does not fit, as far as a client may owe.
    local function overdraw(check)
        if check.cost == 0 then
            return
        end
        local policy = check.policy
        return finish(check, write_rates(check, 0, function(i)
            local cost, used, most = check.cost, check.a[i], policy[i].most
            -- parts overdraw
            return math.max(math.min(cost, most - used), 0)
        end))
    end

    -- Returns a policy as a table, with its rates at 1, 2, ….
    local function new_policy(index)
        local algorithm, flags, rates, slots, size, ceiling, delay, min_interval, limit, count, seconds, most,
            next_rate = read_policy(index)
        -- Whether the value may be needed for longer than the rates of one request tell, and how many rates have states
        -- of their own.
        local has_expiry, written = slots > 1, rates
        -- parts new_policy
        local policy = {
            algorithm = algorithm, rates = rates, slots = slots, size = size, min_interval = min_interval,
            count_all = flags % 4 >= kFlagCountAll, has_expiry = has_expiry, is_long = has_expiry or min_interval > 0,
            written = written,
        }
        local longest = 0
        for i = 1, rates do
            policy[i] = {
                limit = limit, count = count, seconds = seconds, slot_mark = 1 + seconds % kRateSlotMarks,
                most = most,
            }
            longest = math.max(longest, seconds)
            if i < rates then
                limit, count, seconds, most, next_rate = from_bytes(kRateFormat, ARGV[1], next_rate)
            end
        end
        for i = 1, rates do
            local rate = policy[i]
            local _
            rate.evaluate, rate.write, rate.decode, _, rate.used =
                makers[algorithm](rate.limit, rate.count, rate.seconds, rate.most, flags, size, ceiling, delay, longest)
        end
        return policy
    end

    return new_check, new_policy, evaluate, charge, refuse, undo, overdraw
end
