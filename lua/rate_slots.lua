-- Assigns the rates of a policy to the rate slots of a client's value. A slot has the state of one rate, and a mark of
-- the period that it was last used for. Slots are numbered from 1; 0 is no slot.
local function rate_slots()
    -- Returns the first slot that is not taken and has this mark; without `mark`, the first one that has any mark.
    local function first_slot(slots, marks, taken, mark)
        for slot = 1, slots do
            local found = marks[slot]
            if not taken[slot] and (found == mark or (not mark and found ~= 0)) then
                return slot
            end
        end
        return 0
    end

    -- Rates with equal marks get their slots in ascending order, so that each finds its own again.
    local function sort_equals(policy, to, from)
        for i = 1, policy.rates do
            for j = i + 1, policy.rates do
                if policy[i].slot_mark == policy[j].slot_mark and to[i] > to[j] then
                    to[i], to[j] = to[j], to[i]
                    from[i], from[j] = from[j], from[i]
                end
            end
        end
    end

    -- Sets for each rate the slot to write to and the slot to read from. They differ only if the former is free. A rate
    -- with a new period starts from the state of a period that is no longer among the rates. It is written to a free
    -- slot, if there is one, so that the old period finds its own state if it is configured again.
    local function find_rate_slots(policy, slots, marks, to, from)
        local written, read = {}, {}
        for i = 1, policy.rates do
            local slot = first_slot(slots, marks, written, policy[i].slot_mark)
            to[i], from[i] = slot, slot
            written[slot], read[slot] = true, true
        end
        for i = 1, policy.rates do
            if to[i] == 0 then
                local left = first_slot(slots, marks, read)
                local slot = first_slot(slots, marks, written, 0)
                if slot == 0 then
                    slot = left ~= 0 and left or first_slot(slots, marks, written)
                    left = slot
                end
                to[i], from[i] = slot, left ~= 0 and left or slot
                written[slot], read[slot], read[from[i]] = true, true, true
            end
        end
        sort_equals(policy, to, from)
    end

    -- Moves `count` states and marks to the slots that `policy` has: first the states that its rates need, then the
    -- others while there is room.
    local function convert_rate_slots(policy, count, states, marks)
        local old, old_marks = {}, {}
        for slot = 1, kMaxRates do
            old[slot] = slot <= count and states[slot]
            old_marks[slot] = slot <= count and marks[slot] or 0
        end
        local from = {}
        find_rate_slots(policy, kMaxRates, old_marks, {}, from)
        local copied = {}
        local used = 0
        local function copy(slot)
            if slot <= count and used < policy.slots and not copied[slot] then
                used = used + 1
                states[used], marks[used] = old[slot], old_marks[slot]
                copied[slot] = true
            end
        end
        for i = 1, policy.rates do
            copy(from[i])
        end
        for slot = 1, count do
            copy(slot)
        end
        for slot = used + 1, policy.slots do
            states[slot], marks[slot] = false, 0
        end
    end

    return find_rate_slots, convert_rate_slots
end
