-- Reads the group at `at` in main.lua: sets its kind, its cost, and the functions that decide it.
local head_and_limit = from_bytes('<I6', groups, at)
local other_kind = head_and_limit % 65536
cost = (head_and_limit - other_kind) / 65536
if other_kind ~= kind then
    if kind then
        known_kinds = known_kinds or {}
        known_kinds[kind] = { evaluate, write, step, fixed_expiry }
    end
    kind = other_kind
    local known = known_kinds and known_kinds[kind]
    if known then
        evaluate, write, step, fixed_expiry = known[1], known[2], known[3], known[4]
    else
        evaluate, step = nil, nil
    end
    if not known and kind % 256 == 1 then
        local algorithm, flags, rates, slots, size, ceiling, delay, min_interval, limit, count, seconds, most =
            read_policy((kind - 1) / 256)
        local simple = rates == 1 and slots == 1 and min_interval == 0 and flags % 4 < kFlagCountAll
        -- parts read_group
        if simple then
            local _
            evaluate, write, _, fixed_expiry =
                makers[algorithm](limit, count, seconds, most, flags, size, ceiling, delay, seconds)
            if rewrite and not expiries then
                local period, mark = seconds * kSecond, seconds % kPeriodMarks * 16
                -- parts make_step
            end
        end
    end
end
usable_step = cost > 0 and step
