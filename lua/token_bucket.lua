-- token_bucket: `capacity` tokens, refilled at the rate. The level of the bucket is the number of missing tokens.
-- use bucket.lua
makers[kTokenBucket] = makers[kTokenBucket] and function(limit, count, seconds, most, _, _, ceiling, delay)
    return bucket(limit, limit, count, seconds, most, ceiling, delay)
end
