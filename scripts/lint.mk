# Static checks: formatting, clang-tidy, shellcheck, perlcritic, luacheck, includes, and whether the programs of bench/
# compile. A file that passed is checked again only after a change.

# A program such as bench/accuracy must not be built from the bench/accuracy.cc beside it.
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

out := build/lint
headers := $(wildcard src/*/*.h)
# The C shim, and the header that it shares with C++, follow nginx's own style.
shared := $(addprefix src/,$(shell sed -n 's/^\#include "\(.*\)"/\1/p' src/module/*.c))
formatted := $(filter-out $(shared),$(wildcard \
    $(foreach folder,src/* unit unit/* bench bench/*,$(folder)/*.cc $(folder)/*.h)))
shell := $(shell grep -lE -d skip '^\#!.*\b(ba)?sh$$' .ci/* scripts/* bench/* debian/tests/*) debian/tests/nginx
perl := $(shell grep -lE -d skip '^\#!.*\bperl$$' scripts/* bench/*) \
    $(wildcard t/*.t t/lib/*.pm t/lib/*/*.pm bench/lib/*/*/*.pm)
lua := $(wildcard lua/*)

# The include folders of nginx, hiredis, libjwt and the generated headers. They are system headers for clang-tidy, which
# reports nothing in those. src/ is left out, because its headers are checked.
# redismodule.h, for src/server.
$(shell scripts/redis-module header >&2)
includes := -isystem $(CURDIR)/build/redis-module/include \
    $(shell sed -n '/^ALL_INCS/,/[^\\]$$/ s,.*-I *\([^ ]*\).*,\1,p' build/nginx/objs/Makefile | \
    sed '\,^$(CURDIR)/src$$,d; s,^[^/],build/nginx/&,; s,^,-isystem ,')

.PHONY: lint format
lint: $(patsubst %,$(out)/%.tidy,$(wildcard src/*/*.cc)) \
    $(patsubst %,$(out)/%.compiled,$(wildcard bench/*.cc bench/*/*.cc)) \
    $(out)/format $(out)/shell $(out)/perl $(out)/lua
	scripts/check-layers --self-test
	scripts/check-layers
	scripts/list-tests --check
	@echo "lint: nothing found"

format:
	clang-format -i $(formatted)

$(out)/%.tidy: % $(headers) .clang-tidy
	@mkdir -p $(@D)
	clang-tidy --quiet $< -- -std=c++17 -fno-exceptions -fno-rtti -Isrc $(includes) 2>$@.err || \
	    { cat $@.err; exit 1; }
	@mv $@.err $@

# No test uses these programs, so this check finds the ones that a change of src/ breaks. It generates no code.
$(out)/%.compiled: % scripts/lint.mk
	@mkdir -p $(@D)
	g++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only -Isrc -Iunit -Ibench $(includes) -MMD -MP -MF $@.d -MT $@ $<
	@touch $@

$(out)/format: $(formatted) .clang-format
	clang-format --dry-run -Werror $(formatted)
	@touch $@

$(out)/shell: $(shell)
	shellcheck $(shell)
	@touch $@

$(out)/perl: $(perl)
	perlcritic --gentle --quiet $(perl)
	@touch $@

# Most files of lua/ are parts of scripts and use names that other parts define, so luacheck reads each script as
# scripts/embed joins it: a name that is used before its definition, or never, is an error. The last check fails if a
# file of lua/, or a part of the file of an algorithm, is in no script.
$(out)/lua: $(lua) .luacheckrc scripts/embed src/core/constants.h src/core/algorithm_table.h
	@rm -rf $(out)/scripts && mkdir -p $(out)/scripts
	scripts/embed scripts | while read -r name constant; do \
	    scripts/embed join $$name >$(out)/scripts/$$constant.lua || exit 1; \
	done
	luacheck --quiet --no-color $(out)/scripts bench/minimal_check.lua
	! grep -nE '^.{121}' lua/*
	@cat $(out)/scripts/*.lua | sed -n 's/^-- \([a-z_]*\.lua\( part [a-z_]*\)\{0,1\}\)$$/\1/p' >$(out)/scripts/parts
	! (cd lua && ls *.lua && grep '^-- part [a-z_]*$$' *.lua | sed 's/:-- / /') | grep -vxF -f $(out)/scripts/parts
	@touch $@

-include $(wildcard $(out)/bench/*.d $(out)/bench/*/*.d)
