-- leaky_bucket: a queue that drains at the rate. The excess is the length of the queue.
-- use bucket.lua
makers[kLeakyBucket] = makers[kLeakyBucket] and function(limit, count, seconds, most, _, _, ceiling, delay)
    return bucket(1, limit, count, seconds, most, ceiling, delay)
end
