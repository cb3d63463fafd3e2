-- A request against one limit, over all its rates: decided first, then charged or refused.
--
-- A check is a table that is used again and again. Of each rate it has the view: the moment at which it is judged,
-- and what the algorithm calls `start`, `a`, `b` and `moved`. Whoever writes gets the new value of the key, false for
-- none, and the moment until which it matters; nothing at all if the key stays as it is.
local function checks()
    local find_places, convert_places = places_of_rates()
    local read_state, write_state = state(convert_places)

    local function new_check()
        return {
            places = {}, marks = {}, to = {}, from = {}, fresh = {},
            time = {}, start = {}, a = {}, b = {}, moved = {},
        }
    end

    -- Most often the rates are those that the places are marked for, in order.
    local function place_rates(check)
        local policy, marks, to, from = check.policy, check.marks, check.to, check.from
        local own, free = true, true
        for i = 1, policy.rates do
            to[i], from[i] = i, i
            own = own and marks[i] == policy[i].place_mark
        end
        for i = 1, policy.places do
            free = free and marks[i] == 0
        end
        if policy.places == 1 then
            for i = 1, policy.rates do
                to[i], from[i] = 1, 1
            end
        elseif not own and not free then
            find_places(policy, policy.places, marks, to, from)
        end
    end

    local function longer(a, b)
        return b ~= -1 and (a == -1 or a > b)
    end

    -- The answer is in the numbers of the rate that binds: of those that reject, the one that will do so for longest;
    -- if none does, the one that leaves least.
    local function evaluate_rates(check, cost)
        local policy, places, from = check.policy, check.places, check.from
        local delay, delayed = 0, 0
        for i = 1, policy.rates do
            local fits, remaining, reset, retry, turn, excess, time, start, a, b, moved =
                policy[i].evaluate(places[from[i]], cost)
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
        check.interval_moved = last - now > 1000000
        check.admitted_at = (check.interval_moved or last < now) and now or last
        local wait = (check.interval_moved and now or last) + check.policy.min_interval - now
        if cost == 0 or last == 0 or wait <= 0 then
            return
        end
        if check.allowed then
            -- Nothing will be charged: tell what is left as it is.
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
        place_rates(check)
        evaluate_rates(check, cost)
        check.interval_moved = false
        if check.policy.min_interval > 0 then
            evaluate_interval(check, cost)
        end
    end

    -- Decides what a request of `cost` may do by what the client's key holds. A cost of 0 is a look.
    local function evaluate(check, policy, value, cost)
        check.policy, check.cost = policy, cost
        read_state(check, value)
        decide(check, cost)
    end

    -- The states of all rates after `cost`, each in its place; tells until when they matter.
    local function write_rates(check, cost)
        local policy, places, fresh = check.policy, check.places, check.fresh
        local matters = 0
        for i = 1, policy.written do
            local moment
            fresh[i], moment = policy[i].write(places[check.from[i]], check.time[i], check.start[i], check.a[i],
                check.b[i], cost)
            matters = math.max(matters, moment)
        end
        for i = 1, policy.written do
            places[check.to[i]] = fresh[i]
            if policy.places > 1 then
                check.marks[check.to[i]] = policy[i].place_mark
            end
        end
        return matters
    end

    -- Whether something is kept that these rates do not tell the end of.
    local function keeps_others(check)
        local policy, to = check.policy, check.to
        if policy.algorithm == 6 then
            local place = check.places[1]
            return place and (place.size or #place - 9) > 0
        end
        local others = 0
        for place = 1, policy.places > policy.rates and policy.places or 0 do
            others = others + (check.marks[place] ~= 0 and 1 or 0)
            for i = 1, policy.rates do
                others = others - (check.marks[place] ~= 0 and to[i] == place and 1 or 0)
            end
        end
        return others > 0
    end

    -- As much of what a value says of its own end as its rates may have left. No window and no log matters for more
    -- than three of the longest periods, so that a later end is nobody's. A level may, but three years after its last
    -- request nobody asks for it.
    local function believed(policy, lives)
        local last = now + 3 * 366 * 86400 * 1000000
        if lives <= last then
            return lives
        end
        return policy.algorithm < 3 and last or 0
    end

    local function sealed(check, matters)
        local policy = check.policy
        matters = matters + (check.longer or 0)
        if policy.min_interval > 0 and check.admitted > 0 then
            matters = math.max(matters, check.admitted + policy.min_interval)
        end
        if policy.lives then
            if keeps_others(check) then
                matters = math.max(matters, believed(policy, check.lives))
            end
            check.lives = matters
        end
        return matters > now and write_state(check), matters
    end

    -- Until when the states of all rates matter if none is written.
    local function matters_until(check)
        local policy, places = check.policy, check.places
        local matters = 0
        for i = 1, policy.written do
            local _, moment = policy[i].write(places[check.from[i]], check.time[i], check.start[i], check.a[i],
                check.b[i], 0)
            matters = math.max(matters, moment)
        end
        if policy.algorithm == 6 and places[1] then
            places[1] = policy[1].decode(places[1])
        end
        return matters
    end

    -- State under which the clock was set back or the period shortened must follow even if nothing is charged: it
    -- would stand still otherwise.
    local function write_uncharged(check, cost)
        local policy = check.policy
        local moved = cost > 0
        for i = 1, policy.rates do
            moved = moved or check.moved[i]
        end
        if not moved and not check.interval_moved then
            return
        end
        local matters
        if moved then
            matters = write_rates(check, cost)
        else
            matters = matters_until(check)
        end
        if check.interval_moved then
            check.admitted = check.admitted_at
        end
        return sealed(check, matters)
    end

    -- Of its cost only `part` is still to be written, if one is given: the views have the rest.
    local function charge(check, part)
        if check.cost == 0 then
            return write_uncharged(check, 0)
        end
        local matters = write_rates(check, part or check.cost)
        if check.policy.min_interval > 0 then
            check.admitted = check.admitted_at
        end
        return sealed(check, matters)
    end

    -- What a request leaves behind that is not admitted, here or by another limit.
    local function refuse(check)
        local cost = check.cost
        if not check.policy.count_all or cost == 0 then
            return write_uncharged(check, 0)
        end
        local value, matters = write_uncharged(check, cost)
        -- The numbers are those after the request was counted.
        local excess = check.excess
        decide(check, check.allowed and 0 or cost)
        check.excess = excess
        return value, matters
    end

    -- Takes an admitted request back.
    local function give_back(check)
        if check.cost == 0 then
            return
        end
        -- Whoever was admitted before has waited for long enough.
        check.admitted = 0
        return sealed(check, write_rates(check, -check.cost))
    end

    -- A policy in full.
    local function read_policy(number)
        local text, at = ARGV[1], 1
        for _ = 1, number do
            at = at + 24 + string.byte(text, at + 2) * 12
        end
        local algorithm, flags, rates, places, size, ceiling, delay, min_interval, rate =
            from_bytes('<BBBBI4I4I4I8', text, at)
        -- Whether state may have to outlive what the rates of one request tell.
        local lives = places > 1 or (algorithm == 6 and flags % 8 >= 4)
        local policy = {
            algorithm = algorithm, rates = rates, places = places, size = size, min_interval = min_interval,
            count_all = flags % 4 >= 2, lives = lives, long = lives or min_interval > 0,
            -- Of the rates of a log, the first writes for all.
            written = algorithm == 6 and 1 or rates,
        }
        local longest = 0
        for i = 0, rates - 1 do
            longest = math.max(longest, (from_bytes('<I4', text, rate + i * 12 + 8)))
        end
        for i = 1, rates do
            local limit, count, seconds = from_bytes('<I4I4I4', text, rate + (i - 1) * 12)
            local made = {
                limit = limit, count = count, seconds = seconds, place_mark = 1 + seconds % 251,
                owed = flags >= 8 and limit + math.max(limit, count) or limit,
            }
            made.evaluate, made.write, made.decode =
                makers[algorithm](limit, count, seconds, flags, size, ceiling, delay, longest)
            policy[i] = made
        end
        return policy
    end

    return new_check, read_policy, evaluate, charge, refuse, give_back
end
