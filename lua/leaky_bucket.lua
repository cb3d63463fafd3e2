-- leaky_bucket: a queue that drains at the rate; what is too many is told as its length.
makers[1] = makers[1] and function(limit, count, seconds, flags, _, ceiling, delay)
    return level(1, limit, count, seconds, flags, ceiling, delay)
end
