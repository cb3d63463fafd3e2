-- gcra: the theoretical arrival time, stored as the level of a bucket.
-- use bucket.lua
makers[kGcra] = makers[kGcra] and function(limit, count, seconds, most, _, _, ceiling, delay)
    return bucket(limit, limit, count, seconds, most, ceiling, delay)
end
