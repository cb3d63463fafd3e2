-- A request against several limits, or against one that takes more than a step: charged to all of them or to none.
--
-- `slots`, `moments` and `answer` are main.lua's: where keys are that stand several times, and where answers go.
local function group_decider(slots, moments, answer)
    -- Most calls need none of this.
    -- include places.lua state.lua check.lua
    local new_check, read_policy, evaluate, charge, refuse, give_back = checks()
    local policies, group, group_slots = {}, {}, {}

    -- All or nothing: the limits of a group are charged if all allow, else refused; or given back.
    local function settle_group(size, refund)
        local admitted = true
        for i = 1, size do
            admitted = admitted and group[i].allowed
        end
        local change = refund and give_back or admitted and charge or refuse
        for i = 1, size do
            local check, slot = group[i], group_slots[i]
            local value, matters = change(check)
            if matters and (value or values[slot]) then
                if moments then
                    values[slot], moments[slot] = value, matters
                else
                    keep(keys[slot], value, matters)
                end
            end
            if not refund then
                answer(check.allowed, check.rate, check.remaining, check.reset, check.retry, check.delay,
                    check.excess)
            end
        end
    end

    -- Decides a group of `kind`, whose first key is at `index` and whose limits begin at `at`.
    return function(kind, index, at)
        local size = kind % 128
        for i = 1, size do
            local number, cost = from_bytes('<BI4', ARGV[2], at + (i - 1) * 5)
            local slot = moments and slots[keys[index + i - 1]] or index + i - 1
            local check = group[i] or new_check()
            group[i], group_slots[i] = check, slot
            policies[number] = policies[number] or read_policy(number)
            evaluate(check, policies[number], values[slot], cost)
        end
        settle_group(size, kind >= 128)
    end
end
