-- token_bucket: `capacity` tokens, refilled at the rate; the level is what is missing of them.
local token_bucket = uses[0] and function(limit, count, seconds, _, _, ceiling, delay)
    return level(limit, limit, count, seconds, ceiling, delay)
end
