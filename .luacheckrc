-- The scripts run inside Redis: Lua 5.1 and what Redis adds to it. scripts/lint.mk passes whole scripts, so that every
-- other name must be a local that is defined above its use.
std = "lua51"
read_globals = { "ARGV", "KEYS", "redis", "struct" }
-- scripts/lint.mk checks the lines before scripts/embed replaces names.
max_line_length = false
