-- The scripts run inside Redis: Lua 5.1, and what Redis adds to it.
std = "lua51"
read_globals = { "ARGV", "KEYS", "redis", "struct" }
max_line_length = 118

-- The files of lua/ are parts of two scripts, in the order of lua/ORDER or lua/ORDER.sync: what one makes at its
-- outermost level, those after it know. Each name here is for them to read, and not unused where it is made.
local shared = {
    "from_bytes", "to_bytes", "uses", "muldiv", "wait_for", "call", "keys", "now", "keep", "level", "token_bucket",
    "leaky_bucket", "gcra", "fixed_window", "sliding_window", "sliding_buckets", "sliding_log", "places_of_rates",
    "maker_of", "state", "checks", "group_decider",
}
-- Of these the fields change as well.
globals = { "values" }
local made = { "2[14]1/values" }
for _, name in ipairs(shared) do
    read_globals[#read_globals + 1] = name
    made[#made + 1] = "2[14]1/" .. name
end
files["lua/*.lua"].ignore = made
