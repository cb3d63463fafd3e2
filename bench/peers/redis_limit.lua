-- A typical limiter with nginx's Lua module and Redis: a sliding window of two counters, with one script call over
-- pooled connections. bench/run compares the module with it.
--
--   access_by_lua_block { require("redis_limit").check(PORT, LIMIT) }
local redis = require "nginx.redis"

local window = 60    -- seconds

-- The count of the last window is weighted by its overlap. One read, and one write if the request is admitted.
local script = [[
local counts = redis.call('MGET', KEYS[1], KEYS[2])
local used = (tonumber(counts[2]) or 0) * tonumber(ARGV[2]) + (tonumber(counts[1]) or 0)
local limit = tonumber(ARGV[1])
if used + 1 > limit then
    return {0, 0}
end
if redis.call('INCR', KEYS[1]) == 1 then
    redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return {1, math.floor(limit - used - 1)}
]]

local digest    -- SHA-1 of the script, once a worker has loaded it

local function ask(server, ...)
    if digest then
        local reply, problem = server:evalsha(digest, ...)
        if reply or not problem or not problem:find("NOSCRIPT", 1, true) then
            return reply, problem
        end
    end
    local loaded, problem = server:script("LOAD", script)
    if not loaded then
        return nil, problem
    end
    digest = loaded
    return server:evalsha(digest, ...)
end

local limiter = {}

-- After an error of Redis the request is admitted.
function limiter.check(port, limit)
    local client = ngx.var.arg_k
    if not client then
        return
    end
    local server = redis:new()
    server:set_timeout(1000)
    local connected, problem = server:connect("127.0.0.1", port)
    if not connected then
        ngx.log(ngx.CRIT, "redis: ", problem)
        return
    end
    local now = ngx.now()
    local number = math.floor(now / window)
    local prefix = "limit:{" .. client .. "}:"
    local reply
    reply, problem = ask(server, 2, prefix .. number, prefix .. number - 1, limit, 1 - now % window / window, 2 * window)
    if not reply then
        ngx.log(ngx.CRIT, "redis: ", problem)
        return
    end
    server:set_keepalive(10000, 512)

    local headers = ngx.header
    headers["X-RateLimit-Limit"] = limit
    headers["X-RateLimit-Remaining"] = reply[2]
    headers["X-RateLimit-Reset"] = (number + 1) * window
    if reply[1] == 0 then
        headers["Retry-After"] = math.ceil(window - now % window)
        return ngx.exit(429)
    end
end

return limiter
