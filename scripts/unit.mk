# Builds the programs of unit/: each unit/FOLDER/NAME_test.cc with all of src/ that needs no nginx.
# OUT is where to; FLAGS are the compiler's for src/, and TEST_FLAGS those for unit/, which RapidCheck's templates make
# slow to compile. The goal is `programs` or some of them.

OUT ?= build/unit
FLAGS ?= -O2 -g
TEST_FLAGS ?= -O1 -g1

CXXFLAGS := -std=c++17 -Wall -Wextra -Werror -Isrc -Iunit -MMD -MP
sources := $(filter-out src/nginx/%,$(wildcard src/*/*.cc))
tests := $(wildcard unit/*/*_test.cc)
objects := $(sources:%.cc=$(OUT)/%.o)
programs := $(tests:unit/%.cc=$(OUT)/%)

.PHONY: programs
.SECONDARY:
programs: $(programs)

# src/ comes first, so that of an inline function in both the copy with src/'s flags is taken.
$(OUT)/%_test: $(objects) $(OUT)/unit/%_test.o
	@mkdir -p $(@D)
	g++ $(FLAGS) $(LINK) -o $@ $^ -lrapidcheck -lcmocka

# The tests' own code may throw: RapidCheck does.
$(OUT)/src/%.o: src/%.cc scripts/unit.mk
	@mkdir -p $(@D)
	g++ $(CXXFLAGS) $(FLAGS) -fno-exceptions -c -o $@ $<

$(OUT)/unit/%.o: unit/%.cc scripts/unit.mk
	@mkdir -p $(@D)
	g++ $(CXXFLAGS) $(TEST_FLAGS) -c -o $@ $<

-include $(wildcard $(OUT)/src/*/*.d $(OUT)/unit/*/*.d)
