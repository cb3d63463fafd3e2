# Looks for faults without running anything: layout, clang-tidy, scripts, layers. What passed is not looked at again
# until it changes.

out := build/lint
headers := $(wildcard src/*/*.h)
# The C shim, and the header that it shares with C++, follow nginx's own style.
shared := $(addprefix src/,$(shell sed -n 's/^\#include "\(.*\)"/\1/p' src/nginx/*.c))
formatted := $(filter-out $(shared),$(wildcard src/*/*.cc src/*/*.h unit/*.cc unit/*.h unit/*/*.cc unit/*/*.h bench/*.cc bench/*.h bench/*/*.cc bench/*/*.h))
shell := $(shell grep -lE '^\#!.*\b(ba)?sh$$' .ci/* scripts/*)
perl := $(shell grep -lE '^\#!.*\bperl$$' scripts/*) $(wildcard t/*.t t/lib/*.pm t/lib/*/*.pm bench/lib/*/*/*.pm)
lua := $(wildcard lua/*)

# Headers of nginx, hiredis and libjwt, and the one that scripts/embed wrote, as system headers: what clang-tidy thinks of them
# is not for us to mend. Our own must not be among them, or it would say nothing of those either.
includes := $(shell sed -n '/^ALL_INCS/,/[^\\]$$/ s,.*-I *\([^ ]*\).*,\1,p' build/nginx/objs/Makefile | \
    sed '\,^$(CURDIR)/src$$,d; s,^[^/],build/nginx/&,; s,^,-isystem ,')

.PHONY: lint format
lint: $(patsubst %,$(out)/%.tidy,$(wildcard src/*/*.cc)) $(out)/format $(out)/shell $(out)/perl $(out)/lua
	scripts/check-layers --self-test
	scripts/check-layers
	@echo "lint: nothing found"

format:
	clang-format -i $(formatted)

$(out)/%.tidy: % $(headers) .clang-tidy
	@mkdir -p $(@D)
	clang-tidy --quiet $< -- -std=c++17 -fno-exceptions -fno-rtti -Isrc $(includes) 2>$@.err || \
	    { cat $@.err; exit 1; }
	@mv $@.err $@

$(out)/format: $(formatted) .clang-format
	clang-format --dry-run -Werror $(formatted)
	@touch $@

$(out)/shell: $(shell)
	shellcheck $(shell)
	@touch $@

$(out)/perl: $(perl)
	perlcritic --gentle --quiet $(perl)
	@touch $@

# The files of lua/ are parts of two scripts, and see each other's names only there.
$(out)/lua: $(lua) .luacheckrc
	scripts/join-lua ORDER >$(out)/script.lua && scripts/join-lua ORDER.sync >$(out)/sync_script.lua
	luacheck --quiet --no-color $(out)/script.lua $(out)/sync_script.lua
	! ls lua | grep -vxF -f lua/ORDER -f lua/ORDER.sync -e ORDER -e ORDER.sync $$(sed -n 's/^ *-- include / /p' lua/*.lua | sed 's/ / -e /g')
	@touch $@
