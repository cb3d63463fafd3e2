-- gcra: the next theoretical arrival time, kept as the level that it stands for.
makers[2] = makers[2] and function(limit, count, seconds, flags, _, ceiling, delay)
    return level(limit, limit, count, seconds, flags, ceiling, delay)
end
