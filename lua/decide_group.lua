-- Decides the group at `at` in main.lua, whose first key is at `index`. Sets for add_decisions.lua either the decision
-- of the group's only limit, or `checks`, with the decisions of all its limits.
local position = expiries and positions[keys[index]] or index
local value = values[position]
local state, expires, checks, fits, remaining, reset, retry, delay, excess, rejected_or_delayed
if usable_step and value and #value == kShortState then
    state, remaining, reset, expires = usable_step(value)
end
if expires then
    save(keys[index], state, expires)
elseif state then
    rewrite('SET', keys[index], state, 'KEEPTTL')
-- A value of one of these sizes may be long: see is_long in state.lua.
elseif not evaluate or (value and (#value > kWideState or #value == 9) and string.byte(value, 9) >= kValueIsLong) then
    decide_group = decide_group or group_decider(positions, expiries)
    checks = decide_group(kind % 256, index, at + kGroupSize)
else
    -- The same as in check.lua, for one limit with one rate, without tables.
    local time, start, a, b, moved
    fits, remaining, reset, retry, delay, excess, time, start, a, b, moved = evaluate(value, cost)
    if fits and cost > 0 then
        if expiries then
            values[position], expiries[position] = write(value, time, start, a, b, cost, reset)
        else
            state, expires = write(value, time, start, a, b, cost, reset)
            save(keys[index], state, expires, fixed_expiry and a > 0 and not moved)
        end
    elseif moved then
        state, expires = write(value, time, start, a, b, 0)
        state = expires > now and state
        if expiries then
            values[position], expiries[position] = state, expires
        else
            save(keys[index], state, expires)
        end
    end
    if cost == 0 then
        fits, retry = true, 0
    end
    if time > now then
        reset = reset > 0 and reset + time - now or 0
        retry = retry > 0 and retry + time - now or retry
    end
    rejected_or_delayed = not fits or delay > 0
end
