-- Adds the decisions of the group at `at` to the reply in main.lua, and moves `at` and `index` to the next group.
if remaining and remaining < 2 ^ 32 and not rejected_or_delayed and form == kDecisionFormat then
    -- The most common decision, after others of the same form.
    numbers[filled + 1], numbers[filled + 2] = kDecisionAllowed + remaining * 256, reset
    run, filled = run + 1, filled + 2
    at, index = at + 6, index + 1
else
    local head, rate = kind % 256, 0
    local size = head % kLargeCosts
    for i = 1, head < kOverdraw and size or 0 do
        if checks then
            local check = checks[i]
            fits, rate, remaining, reset = check.allowed, check.rate, check.remaining, check.reset
            retry, delay, excess = check.retry, check.delay, check.excess
            rejected_or_delayed = not fits or delay > 0
        end
        local other_form = rejected_or_delayed and kDecisionFormat .. kMoreFormat or kDecisionFormat
        local low = remaining % 2 ^ 32
        if remaining > low then
            other_form, rate = other_form .. kHighFormat, rate + kDecisionHigh
        end
        if other_form ~= form then
            format = format .. string.rep(form, run)
            form, run = other_form, 0
        end
        run = run + 1
        if rejected_or_delayed then
            local flags = kDecisionMore + (fits and kDecisionAllowed or retry == -1 and kDecisionNever or 0)
            numbers[filled + 1], numbers[filled + 2] = rate + flags + low * 256, reset
            numbers[filled + 3] = fits and delay or retry == -1 and 0 or retry
            numbers[filled + 4] = excess < kMaxCount and excess or kMaxCount
            filled = filled + 4
        else
            numbers[filled + 1], numbers[filled + 2] = rate + kDecisionAllowed + low * 256, reset
            filled = filled + 2
        end
        if remaining > low then
            filled = filled + 1
            numbers[filled] = (remaining - low) / 2 ^ 32
        end
    end
    local record = head % kOverdraw >= kLargeCosts and kLargeLimitSize or kLimitSize
    at = at + kGroupSize + size * (head >= kUndo and record + kChargeSize or record)
    index = index + size
end
