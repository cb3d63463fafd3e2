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

# Leaves a copy of a Debian source package in OUT.new, from the first of the suites that has exactly this version. The
# standard input lists its files with their SHA-256, as sha256sum prints them.
#
#   unpack PACKAGE VERSION SUITE…
unpack() {
    local package=$1 version=$2 suite source=build/$name-source hashes
    shift 2
    hashes=$(cat)
    if [ "$version" != "$(cat "$source/fetched" 2>/dev/null)" ]; then
        echo "$name: fetching its source"
        rm -rf "$source"
        for suite in "$@"; do
            if scripts/fetch source "$suite" "$package=$version" "$source" 2>build/"$name"-fetch.log; then
                break
            fi
        done
        if ! compgen -G "$source/$package-*/" >/dev/null; then
            cat build/"$name"-fetch.log >&2
            echo "$name: version $version of Debian's $package cannot be fetched from $*: $name ${version%-*} or later, built" \
                "elsewhere, may be named as ${name^^}=DIR, a folder with include/ and lib/; see docs/releases.md" >&2
            exit 1
        fi
        if ! (cd "$source" && sha256sum --quiet --check --strict) <<<"$hashes"; then
            rm -rf "$source"
            echo "$name: the source of $package $version is not what scripts/$name expects; nothing was built" >&2
            exit 1
        fi
        echo "$version" >"$source/fetched"
    fi
    rm -rf "$out" "$out.new"
    mkdir -p "$out/include" "$out/lib"
    cp -r "$source/$package"-*/ "$out.new"
}

finish() {
    rm -rf "$out.new"
    echo "$state" >"$out/state"
}
