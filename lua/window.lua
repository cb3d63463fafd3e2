-- What the windows of fixed_window and sliding_window share: the mark of the period is beside the end of the window.

-- part mark_of
if kOwn(policy.algorithm) then
    local high = from_bytes('<I2', state, 7)
    for i = 1, policy.rates do
        if policy[i].seconds % kPeriodMarks == (high - high % 16) / 16 then
            return policy[i].slot_mark
        end
    end
end

-- part simple_policies
simple = simple or kOwn(algorithm)
