# Builds the programs of unit/: each unit/FOLDER/NAME_test.cc with all of src/ that needs no nginx.
# OUT is where to, FLAGS are added to the compiler's; the goal is `programs` or some of them.

OUT ?= build/unit
FLAGS ?= -O2 -g

CXXFLAGS := -std=c++17 -Wall -Wextra -Werror $(FLAGS) -Isrc -Iunit -MMD -MP
sources := $(filter-out src/nginx/%,$(wildcard src/*/*.cc))
tests := $(wildcard unit/*/*_test.cc)
objects := $(sources:%.cc=$(OUT)/%.o)
programs := $(tests:unit/%.cc=$(OUT)/%)

.PHONY: programs
.SECONDARY:
programs: $(programs)

$(OUT)/%_test: $(OUT)/unit/%_test.o $(objects)
	@mkdir -p $(@D)
	g++ $(FLAGS) $(LINK) -o $@ $^ -lrapidcheck -lcmocka

# The tests' own code may throw: RapidCheck does.
$(OUT)/src/%.o: src/%.cc scripts/unit.mk
	@mkdir -p $(@D)
	g++ $(CXXFLAGS) -fno-exceptions -c -o $@ $<

$(OUT)/unit/%.o: unit/%.cc scripts/unit.mk
	@mkdir -p $(@D)
	g++ $(CXXFLAGS) -c -o $@ $<

-include $(wildcard $(OUT)/src/*/*.d $(OUT)/unit/*/*.d)
