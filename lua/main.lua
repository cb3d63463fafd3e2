-- One call: decides group by group, and writes what has changed.

-- Where a key stands several times, all go by the last: its value, and the moment until which that matters if it is
-- to be written, which then waits for the end of the call.
local slots, moments
if keys[2] then
    slots = { [keys[1]] = 1 }
    for i = 2, #keys do
        local key = keys[i]
        if slots[key] then
            moments = moments or {}
        end
        slots[key] = i
    end
end

-- Answers are numbers until the end, and then one string. Of its format the part is done that is before a run of
-- answers of one form.
local numbers, filled = { nil, nil, nil, nil, nil, nil, nil, nil }, 0
local format, form, run = '<I8', 'I5I7', 0

local function answer(allowed, rate, remaining, reset, retry, delay, excess)
    local short = allowed and delay == 0
    local other = short and 'I5I7' or 'I5I7I7I8'
    if other ~= form then
        format = format .. string.rep(form, run)
        form, run = other, 0
    end
    run = run + 1
    numbers[filled + 2] = reset
    if short then
        numbers[filled + 1] = rate + 8 + remaining * 256
        filled = filled + 2
        return
    end
    numbers[filled + 1] = rate + (allowed and 24 or retry == -1 and 48 or 16) + remaining * 256
    numbers[filled + 3] = allowed and delay or retry == -1 and 0 or retry
    numbers[filled + 4] = excess
    filled = filled + 4
end

-- The kind of a group is in its first two bytes: how many limits, and the policy of the first. If there is one, whose
-- policy has one rate and one state, as most have, what follows from it: its functions, and whether a state that has
-- counted anything ends with its window, whatever it counts. `known` has this of other kinds, once there are several.
local kind, evaluate, write, step, ends, known

-- Decides any group: see group.lua.
local decide_group

local groups, at, index = ARGV[2], 1, 1
local length = #groups
-- Most often all groups have one limit, with the same policy and the same cost.
local alike = length > 6 and string.byte(groups) == 1 and groups == string.rep(string.sub(groups, 1, 6), length / 6)
local cost, stepping
local read_until = 1
while at <= length do
    if at >= read_until then
        local word = from_bytes('<I6', groups, at)
        local other = word % 65536
        cost = (word - other) / 65536
        if other ~= kind then
            if kind then
                known = known or {}
                known[kind] = { evaluate, write, step, ends }
            end
            kind = other
            local made = known and known[kind]
            if made then
                evaluate, write, step, ends = made[1], made[2], made[3], made[4]
            else
                evaluate, step = nil, nil
            end
            if not made and kind % 256 == 1 then
                local text, place = ARGV[1], 1
                for _ = 1, (kind - 1) / 256 do
                    place = place + 24 + string.byte(text, place + 2) * 12
                end
                local algorithm, flags, rates, places, size, ceiling, delay, interval, limit, count, seconds =
                    from_bytes('<BBBBI4I4I4I8I4I4I4', text, place)
                local plain = flags % 4 < 2 and (algorithm ~= 6 or flags % 8 < 4)
                if rates == 1 and places == 1 and interval == 0 and plain then
                    local _
                    evaluate, write, _, step =
                        makers[algorithm](limit, count, seconds, flags, size, ceiling, delay, seconds)
                    step = rewrite and not moments and step
                    ends = algorithm == 3 or algorithm == 4
                end
            end
        end
        stepping = cost > 0 and step
        read_until = alike and length + 1 or at + 6
    end
    local slot = moments and slots[keys[index]] or index
    local value = values[slot]
    local place, remaining, reset, matters, long, fits, retry, delay, excess
    if stepping and value and #value == 12 then
        place, remaining, reset, matters = stepping(value, cost)
    end
    if matters then
        keep(keys[index], place, matters)
    elseif place then
        rewrite('SET', keys[index], place, 'KEEPTTL')
    -- What has any of these lengths may be a long value: see state.lua.
    elseif not evaluate or (value and (#value > 16 or #value == 9) and string.byte(value, 9) >= 128) then
        decide_group = decide_group or group_decider(slots, moments, answer)
        local size = kind % 128
        decide_group(kind % 256, index, at + 1)
        at, index = at + 1 + size * 5, index + size
    else
        -- What check.lua does for one limit with one rate, without its tables.
        local time, start, a, b, moved
        fits, remaining, reset, retry, delay, excess, time, start, a, b, moved = evaluate(value, cost)
        if fits and cost > 0 then
            if moments then
                values[slot], moments[slot] = write(value, time, start, a, b, cost, reset)
            else
                place, matters = write(value, time, start, a, b, cost, reset)
                keep(keys[index], place, matters, ends and a > 0 and not moved)
            end
        elseif moved then
            place, matters = write(value, time, start, a, b, 0)
            place = matters > now and place
            if moments then
                values[slot], moments[slot] = place, matters
            else
                keep(keys[index], place, matters)
            end
        end
        if cost == 0 then
            fits, retry = true, 0
        end
        if time > now then
            reset = reset > 0 and reset + time - now or 0
            retry = retry > 0 and retry + time - now or retry
        end
        long = not fits or delay > 0
    end
    if remaining then
        if long or form ~= 'I5I7' then
            answer(fits or not long, 0, remaining, reset, retry, delay or 0, excess)
        else
            numbers[filled + 1], numbers[filled + 2] = 8 + remaining * 256, reset
            run, filled = run + 1, filled + 2
        end
        at, index = at + 6, index + 1
    end
end

if moments then
    for slot, moment in pairs(moments) do
        keep(keys[slot], values[slot], moment)
    end
end
return to_bytes(format .. string.rep(form, run), now, unpack(numbers, 1, filled))
