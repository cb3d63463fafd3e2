-- One call: reads the policies and the groups, decides group by group, and writes what has changed.

-- What most policies need, with one rate and one state, by the first two bytes of a group of one limit: `evaluate`,
-- by their negative `write`, and whether a state that has counted anything ends with its window, whatever it counts.
local simple, ends = {}, {}
do
    local text, at, number = ARGV[1], 1, 0
    while at <= #text do
        local algorithm, flags, rates, places, size, ceiling, delay, min_interval, rate =
            from_bytes('<BBBBI4I4I4I8', text, at)
        local plain = flags % 4 < 2 and (algorithm ~= 6 or flags % 8 < 4)
        if rates == 1 and places == 1 and min_interval == 0 and plain then
            local limit, count, seconds = from_bytes('<I4I4I4', text, rate)
            simple[1 + number * 256], simple[-1 - number * 256] =
                maker_of(algorithm)(limit, count, seconds, flags, size, ceiling, delay, seconds)
            ends[1 + number * 256] = algorithm == 3 or algorithm == 4
        end
        at, number = rate + rates * 12, number + 1
    end
end

-- Where a key stands several times, all go by the last: its value, and the moment until which that matters if it is
-- to be written, which then waits for the end of the call.
local slots, moments
for i = 2, #keys do
    if not slots then
        slots = { [keys[1]] = 1 }
    end
    moments = moments or slots[keys[i]] and {}
    slots[keys[i]] = i
end

-- Answers are numbers until the end, and then one string. Of its format the part is done that is before a run of
-- answers of one form.
local numbers, filled = {}, 0
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

local decide_group

local groups, at, index = ARGV[2], 1, 1
local length = #groups
while at <= length do
    local word = from_bytes('<I6', groups, at)
    local kind = word % 65536
    local slot = moments and slots[keys[index]] or index
    local evaluate, value = simple[kind], values[slot]
    -- What has any of these lengths may be a long value: see state.lua.
    if not evaluate or (value and (#value > 16 or #value == 9) and string.byte(value, 9) >= 128) then
        decide_group = decide_group or group_decider(slots, moments, answer)
        local size = kind % 128
        decide_group(kind % 256, index, at + 1)
        at, index = at + 1 + size * 5, index + size
    else
        -- One limit with one rate and nothing else, as most are: what check.lua does, in one step.
        local cost = (word - kind) / 65536
        local fits, remaining, reset, retry, delay, excess, time, start, a, b, moved = evaluate(value, cost)
        if fits and cost > 0 then
            if moments then
                values[slot], moments[slot] = simple[-kind](value, time, start, a, b, cost, reset)
            else
                local place, matters = simple[-kind](value, time, start, a, b, cost, reset)
                keep(keys[index], place, matters, ends[kind] and a > 0 and not moved)
            end
        elseif moved then
            local place, matters = simple[-kind](value, time, start, a, b, 0)
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
        if fits and delay == 0 and form == 'I5I7' then
            numbers[filled + 1], numbers[filled + 2] = 8 + remaining * 256, reset
            run, filled = run + 1, filled + 2
        else
            answer(fits, 0, remaining, reset, retry, delay, excess)
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
