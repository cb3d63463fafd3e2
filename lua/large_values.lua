-- For keys in `large`: reads a part of a value, or returns the error of Redis as a table; writes a part; sets the
-- expiry.
local read_part, write_part, save_until
if large then
    read_part = function(key, first, last)
        return read_key('GETRANGE', key, first, last)
    end
    write_part = function(key, first, text)
        write_key('SETRANGE', key, first, text)
    end
    save_until = function(key, expires)
        write_key('PEXPIREAT', key, string.format('%.0f', (expires + -expires % 1000) / 1000))
    end
end
