# Looks for faults without running anything: layout, clang-tidy, scripts, layers. What passed is not looked at again
# until it changes.

out := build/lint
headers := $(wildcard src/*/*.h)
# The C shim, and the header that it shares with C++, follow nginx's own style.
shared := $(addprefix src/,$(shell sed -n 's/^\#include "\(.*\)"/\1/p' src/nginx/*.c))
formatted := $(filter-out $(shared),$(wildcard src/*/*.cc src/*/*.h unit/*.h unit/*/*.cc unit/*/*.h))
shell := $(shell grep -lE '^\#!.*\b(ba)?sh$$' .ci/* scripts/*)
perl := $(shell grep -lE '^\#!.*\bperl$$' scripts/*) $(wildcard t/*.t t/lib/*.pm t/lib/*/*.pm)
lua := $(wildcard lua/*.lua)

# nginx's headers as system headers: what clang-tidy thinks of them is not for us to mend.
includes := $(shell sed -n '/^ALL_INCS/,/[^\\]$$/ s,.*-I *\([^ ]*\).*,\1,p' build/nginx/objs/Makefile | \
    sed 's,^[^/],build/nginx/&,; s,^,-isystem ,')

.PHONY: lint format
lint: $(patsubst %,$(out)/%.tidy,$(wildcard src/*/*.cc)) $(out)/format $(out)/shell $(out)/perl $(if $(lua),$(out)/lua)
	scripts/check-layers --self-test
	scripts/check-layers
	@echo "lint: nothing found"

format:
	clang-format -i $(formatted)

$(out)/%.tidy: % $(headers) .clang-tidy
	@mkdir -p $(@D)
	clang-tidy --quiet $< -- -std=c++17 -fno-exceptions -fno-rtti -Isrc $(includes) 2>$@.err || { cat $@.err; exit 1; }
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

$(out)/lua: $(lua) .luacheckrc
	luacheck --quiet $(lua)
	@touch $@
