# Builds programs with all of src/ that needs no nginx: unit/FOLDER/NAME_test.cc, unit/fuzz/NAME_fuzz.cc,
# bench/NAME_bench.cc, bench/simulate.cc, bench/accuracy.cc and bench/redis_load.cc; and bench/load.cc without it. The
# goal is `programs` (the tests), `fuzzers`, `benchmarks`, or some programs.
# OUT is where to; HIREDIS and LIBJWT may name the folders of the two libraries, see scripts/libraries; CXX is the compiler, FLAGS are its for src/,
# and TEST_FLAGS those for the rest: RapidCheck's templates are slow to compile.

CXX := g++
OUT ?= build/unit
HIREDIS ?=
LIBJWT ?=
FLAGS ?= -O2 -g
TEST_FLAGS ?= -Og -g1

find_libraries := HIREDIS='$(HIREDIS)' LIBJWT='$(LIBJWT)' scripts/libraries
CXXFLAGS := -std=c++17 -Wall -Wextra -Werror -Isrc -Iunit -Ibench -Ibuild/generated \
    $(addprefix -isystem ,$(shell $(find_libraries) incs)) -MMD -MP
linked := $(shell $(find_libraries) libs)
libraries := $(filter %.a,$(linked))
script := build/generated/store/script_text.h
sources := $(filter-out src/nginx/%,$(wildcard src/*/*.cc))
objects := $(sources:%.cc=$(OUT)/%.o)
precompiled := $(OUT)/precompiled.h
support := $(patsubst %.cc,$(OUT)/%.o,$(wildcard unit/*.cc))
programs := $(patsubst unit/%.cc,$(OUT)/%,$(wildcard unit/*/*_test.cc))
fuzzers := $(patsubst unit/fuzz/%.cc,$(OUT)/%,$(wildcard unit/fuzz/*_fuzz.cc))
simulation := $(patsubst %.cc,$(OUT)/%.o,$(wildcard bench/simulation/*.cc))
benchmarks := $(patsubst bench/%.cc,$(OUT)/%,$(wildcard bench/*_bench.cc))

# Each program is linked with all of src/: with a faster linker than the usual one, if the machine has it.
linker := $(firstword $(foreach name,lld gold,$(if $(shell command -v ld.$(name)),-fuse-ld=$(name))))

# An object is as old as the moment at which its compilation began: a header that is changed meanwhile is newer.
define compile
	@mkdir -p $(@D)
	@touch $@.begun
	$(CXX) $(CXXFLAGS) $(1) -c -o $@ $<
	@touch -r $@.begun $@ && rm $@.begun
endef

# src/ comes first, so that of an inline function in both the copy with src/'s flags is taken.
define link
	@mkdir -p $(@D)
	$(CXX) $(FLAGS) $(linker) $(LINK) -o $@ $^ $(filter-out %.a,$(linked)) $(1) -ljansson -lssl -lcrypto -lpthread
endef

.PHONY: programs fuzzers benchmarks
.SECONDARY:
programs: $(programs)
fuzzers: $(fuzzers)
benchmarks: $(benchmarks)

# embed leaves a header alone that would not change, and then nothing is compiled anew.
$(script): scripts/embed scripts/join-lua scripts/literals.awk $(wildcard lua/*)
	scripts/embed $@

# What tests share. Of an archive, each takes what it needs.
$(OUT)/support.a: $(support)
	rm -f $@
	$(AR) rcs $@ $^

$(OUT)/%_test: $(objects) $(OUT)/unit/%_test.o $(OUT)/support.a $(libraries)
	$(call link,-lrapidcheck -lcmocka)

# It measures by the simulations.
$(OUT)/store/overshoot_test: $(simulation)

$(OUT)/%_fuzz: $(objects) $(OUT)/unit/fuzz/%_fuzz.o $(libraries)
	$(call link)

$(OUT)/%_bench: $(objects) $(OUT)/bench/%_bench.o $(libraries)
	$(call link,-lbenchmark_main -lbenchmark)

# The traffic of scripts/timelines: a program by itself.
$(OUT)/load: $(OUT)/bench/load.o
	$(CXX) $(TEST_FLAGS) -o $@ $<

# The simulations of scripts/simulate and scripts/accuracy.
$(OUT)/simulate $(OUT)/accuracy: $(OUT)/%: $(objects) $(OUT)/bench/%.o $(simulation) $(libraries)
	$(call link)

# The checks of scripts/redis-load.
$(OUT)/redis_load: $(objects) $(OUT)/bench/redis_load.o $(libraries)
	$(call link)

# The tests' own code may throw: RapidCheck does.
$(OUT)/src/%.o: src/%.cc scripts/unit.mk $(libraries) | $(script)
	$(call compile,$(FLAGS) -fno-exceptions)

$(OUT)/unit/%.o: unit/%.cc $(precompiled).gch scripts/unit.mk $(libraries) | $(script)
	$(call compile,$(TEST_FLAGS) -include $(precompiled))

$(OUT)/%.o: %.cc scripts/unit.mk $(libraries) | $(script)
	$(call compile,$(TEST_FLAGS))

# The compiler takes the copy if it does not like what was compiled.
$(precompiled).gch: unit/precompiled.h scripts/unit.mk
	@mkdir -p $(@D)
	@cp $< $(precompiled)
	$(CXX) $(CXXFLAGS) $(TEST_FLAGS) -x c++-header -o $@ $<

-include $(wildcard $(OUT)/src/*/*.d $(OUT)/unit/*.d $(OUT)/unit/*/*.d $(OUT)/bench/*.d $(OUT)/bench/*/*.d)
