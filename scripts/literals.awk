# Prints a text as C++ has it between the = and the ; of a constant: one literal for each line, since a compiler may
# limit the length of one. Octal escapes are three digits long and cannot run into what follows.
BEGIN {
    for (byte = 1; byte < 256; byte++) {
        plain = byte >= 32 && byte < 127
        escaped[sprintf("%c", byte)] = plain ? sprintf("%c", byte) : sprintf("\\%03o", byte)
    }
    escaped["\""] = "\\\""
    escaped["\\"] = "\\\\"
}
{
    literal = ""
    for (i = 1; i <= length($0); i++) literal = literal escaped[substr($0, i, 1)]
    print "    \"" literal "\\n\""
}
