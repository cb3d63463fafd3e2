#!/usr/bin/env bash
# What scripts/hiredis and scripts/libjwt share, each of which sources it to build the library of its name. The compiler
# is CC of the environment, or cc.
#
# shellcheck disable=SC2034

# Takes the arguments [OUT [FLAG…]], sets `out`, `flags` and `state`, and ends the script if OUT was built so before.
begin() {
    name=$(basename "$0")
    out=${1:-build/$name}
    flags="${*:2}"
    state="${CC:=cc} ${flags:=-O2 -g} $(cat scripts/library.sh "scripts/$name" | sha1sum)"
    [ "$state" != "$(cat "$out/state" 2>/dev/null)" ] || exit 0
}

# Leaves a copy of a Debian source package in OUT.new, from the first of the suites that has it.
#
#   unpack PACKAGE SUITE…
unpack() {
    local package=$1 suite source=build/$name-source
    shift
    if [ ! -e "$source/fetched" ]; then
        echo "$name: fetching its source"
        for suite in "$@"; do
            rm -rf "$source"
            scripts/fetch source "$suite" "$package" "$source" && touch "$source/fetched" && break
        done
        [ -e "$source/fetched" ] || exit 1
    fi
    rm -rf "$out" "$out.new"
    mkdir -p "$out/include" "$out/lib"
    cp -r "$source/$package"-*/ "$out.new"
}

finish() {
    rm -rf "$out.new"
    echo "$state" >"$out/state"
}
