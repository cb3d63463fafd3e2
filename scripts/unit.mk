# Builds the programs of unit/: each unit/FOLDER/NAME_test.cc with all of src/ that needs no nginx.
# OUT is where to; HIREDIS is the folder of the Redis client's library; FLAGS are the compiler's for src/, and TEST_FLAGS
# those for unit/, which RapidCheck's templates make slow to compile. The goal is `programs` or some of them.

OUT ?= build/unit
HIREDIS ?= build/hiredis
FLAGS ?= -O2 -g
TEST_FLAGS ?= -O1 -g1

CXXFLAGS := -std=c++17 -Wall -Wextra -Werror -Isrc -Iunit -Ibuild/generated -isystem $(HIREDIS)/include -MMD -MP
libraries := $(HIREDIS)/lib/libhiredis_ssl.a $(HIREDIS)/lib/libhiredis.a
script := build/generated/store/script_text.h
sources := $(filter-out src/nginx/%,$(wildcard src/*/*.cc))
tests := $(wildcard unit/*/*_test.cc)
objects := $(sources:%.cc=$(OUT)/%.o)
programs := $(tests:unit/%.cc=$(OUT)/%)

# An object is as old as the moment at which its compilation began: a header that is changed meanwhile is newer.
define compile
	@mkdir -p $(@D)
	@touch $@.begun
	g++ $(CXXFLAGS) $(1) -c -o $@ $<
	@touch -r $@.begun $@ && rm $@.begun
endef

.PHONY: programs
.SECONDARY:
programs: $(programs)

# embed leaves a header alone that would not change, and then nothing is compiled anew.
$(script): scripts/embed $(wildcard lua/*)
	scripts/embed $@

# src/ comes first, so that of an inline function in both the copy with src/'s flags is taken.
$(OUT)/%_test: $(objects) $(OUT)/unit/%_test.o $(libraries)
	@mkdir -p $(@D)
	g++ $(FLAGS) $(LINK) -o $@ $^ -lrapidcheck -lcmocka -lssl -lcrypto -lpthread

# The tests' own code may throw: RapidCheck does.
$(OUT)/src/%.o: src/%.cc scripts/unit.mk $(libraries) | $(script)
	$(call compile,$(FLAGS) -fno-exceptions)

$(OUT)/unit/%.o: unit/%.cc scripts/unit.mk $(libraries) | $(script)
	$(call compile,$(TEST_FLAGS))

-include $(wildcard $(OUT)/src/*/*.d $(OUT)/unit/*/*.d)
