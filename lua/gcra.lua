-- gcra: the next theoretical arrival time, kept as the level that it stands for.
local gcra = uses[2] and function(limit, count, seconds, flags, _, ceiling, delay)
    return level(limit, limit, count, seconds, flags, ceiling, delay)
end
