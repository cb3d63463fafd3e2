-- Decides any group: several limits that are charged together or not at all, or one limit of any kind.
--
-- `positions` and `expiries` are those of main.lua.
local function group_decider(positions, expiries)
    -- Most calls need none of these files.
    -- include rate_slots.lua state.lua check.lua
    local new_check, new_policy, evaluate, charge, refuse, undo, overdraw = checks()
    local policies, group, group_positions = {}, {}, {}

    -- Charges all limits of the group if all allow the request, otherwise refuses it; or undoes or overdraws it.
    local function apply_group(head, size)
        local admitted = true
        for i = 1, size do
            admitted = admitted and group[i].allowed
        end
        local change = head >= kOverdraw and overdraw or admitted and charge or refuse
        for i = 1, size do
            local check, position = group[i], group_positions[i]
            local value, expires
            if head >= kUndo then
                value, expires = undo(check, head >= kUndoRequest)
            else
                value, expires = change(check)
            end
            if expires and (value or values[position]) then
                if expiries then
                    values[position], expiries[position] = value, expires
                else
                    save(keys[position], value, expires)
                end
            end
        end
    end

    -- Decides a group with this head, whose first key is at `index` and whose limits begin at `at` in ARGV[2]. Returns
    -- its checks, which the next call reuses.
    return function(head, index, at)
        local size = head % kLargeCosts
        local format = head % kOverdraw >= kLargeCosts and kLargeLimitFormat or kLimitFormat
        for i = 1, size do
            local number, cost
            number, cost, at = from_bytes(format, ARGV[2], at)
            local position = expiries and positions[keys[index + i - 1]] or index + i - 1
            local check = group[i] or new_check()
            group[i], group_positions[i] = check, position
            policies[number] = policies[number] or new_policy(number)
            if head >= kUndo then
                check.charged, check.charged_at, at = from_bytes(kChargeFormat, ARGV[2], at)
            end
            evaluate(check, policies[number], values[position], cost)
        end
        apply_group(head, size)
        return group
    end
end
