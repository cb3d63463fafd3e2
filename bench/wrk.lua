-- The requests of wrk for bench/run, GET /?k=CLIENT with uniformly random clients, and its report.
--
--   wrk ... -s bench/wrk.lua URL -- CLIENTS SEED
--
-- All requests are made before the first is sent, so that wrk's own work is the same whatever it measures.
local requests = {}
local count
local random = math.random

function init(arguments)
    count = tonumber(arguments[1])
    math.randomseed(tonumber(arguments[2]))
    for number = 1, count do
        requests[number] = wrk.format("GET", "/?k=" .. number)
    end
end

function request()
    return requests[random(count)]
end

-- Times are microseconds.
function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        'RESULT {"requests":%d,"duration":%d,"p50":%d,"p99":%d,"p999":%d,"statuses":%d,"failures":%d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
        errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
