-- The scripts run inside Redis: Lua 5.1, and what Redis adds to it.
std = "lua51"
read_globals = { "ARGV", "KEYS", "bit", "cjson", "cmsgpack", "redis", "struct" }
max_line_length = 120
