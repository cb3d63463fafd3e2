-- token_bucket: `capacity` tokens, refilled at the rate; the level is what is missing of them.
makers[0] = makers[0] and function(limit, count, seconds, flags, _, ceiling, delay)
    return level(limit, limit, count, seconds, flags, ceiling, delay)
end
