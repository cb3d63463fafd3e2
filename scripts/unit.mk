# Builds the programs that are linked with the part of src/ that needs no nginx: unit/FOLDER/NAME_test.cc,
# unit/fuzz/NAME_fuzz.cc, bench/NAME_bench.cc, bench/simulate.cc, bench/accuracy.cc, bench/trace.cc,
# bench/redis_load.cc and bench/growth.cc; and bench/load.cc, which uses nothing of src/. The goal is `programs` (the
# tests), `fuzzers`, `benchmarks`, or the files of some programs.
#
# OUT is the folder of the programs. HIREDIS and LIBJWT are the folders of the two libraries; see scripts/libraries. CXX
# is the compiler. FLAGS are its flags for src/, and TEST_FLAGS those for the other files: with less optimization,
# because RapidCheck's templates are slow to compile.

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
script := build/generated/protocol/script_text.h
with_nginx := nginx request handlers configuration directives api endpoints module
# src/server/redis_module.cc is built by scripts/redis-module only.
sources := $(filter-out src/server/redis_module.cc $(foreach folder,$(with_nginx),src/$(folder)/%),$(wildcard src/*/*.cc))
objects := $(sources:%.cc=$(OUT)/%.o)
precompiled := $(OUT)/precompiled.h
support := $(patsubst %.cc,$(OUT)/%.o,$(wildcard unit/*.cc))
programs := $(patsubst unit/%.cc,$(OUT)/%,$(wildcard unit/*/*_test.cc))
fuzzers := $(patsubst unit/fuzz/%.cc,$(OUT)/%,$(wildcard unit/fuzz/*_fuzz.cc))
simulation := $(patsubst %.cc,$(OUT)/%.o,$(wildcard bench/simulation/*.cc))
benchmarks := $(patsubst bench/%.cc,$(OUT)/%,$(wildcard bench/*_bench.cc))

# A faster linker than the default one, if installed: every program is linked with all of src/.
linker := $(firstword $(foreach name,lld gold,$(if $(shell command -v ld.$(name)),-fuse-ld=$(name))))

# The time stamp of an object is the time when its compilation began, so that a header that changes during the
# compilation is newer.
define compile
	@mkdir -p $(@D)
	@touch $@.begun
	$(CXX) $(CXXFLAGS) $(1) -c -o $@ $<
	@touch -r $@.begun $@ && rm $@.begun
endef

# The objects of src/ come first: if an inline function is also in another object, the linker takes the copy that was
# compiled with FLAGS.
define link
	@mkdir -p $(@D)
	$(CXX) $(FLAGS) $(linker) $(LINK) -o $@ $^ $(filter-out %.a,$(linked)) $(1) -ljansson -lyajl -lssl -lcrypto -lpthread
endef

.PHONY: programs fuzzers benchmarks
.SECONDARY:
programs: $(programs)
fuzzers: $(fuzzers)
benchmarks: $(benchmarks)

# scripts/embed does not touch a header whose content would not change, so nothing is compiled anew then.
$(script): scripts/embed src/core/constants.h src/core/algorithm_table.h $(wildcard lua/*)
	scripts/embed lua $@

# Code that tests share, as an archive: each test is linked with the parts that it uses.
$(OUT)/support.a: $(support)
	rm -f $@
	$(AR) rcs $@ $^

$(OUT)/%_test: $(objects) $(OUT)/unit/%_test.o $(OUT)/support.a $(libraries)
	$(call link,-lrapidcheck -lcmocka)

# This test uses the simulation.
$(OUT)/fleet/overshoot_test: $(simulation)

$(OUT)/%_fuzz: $(objects) $(OUT)/unit/fuzz/%_fuzz.o $(libraries)
	$(call link)

$(OUT)/%_bench: $(objects) $(OUT)/bench/%_bench.o $(libraries)
	$(call link,-lbenchmark_main -lbenchmark)

# The load generator of bench/timelines, and of bench/run at a steady pace.
$(OUT)/load: $(OUT)/bench/load.o
	$(CXX) $(TEST_FLAGS) -o $@ $<

# The simulations of bench/simulate and bench/accuracy.
$(OUT)/simulate $(OUT)/accuracy: $(OUT)/%: $(objects) $(OUT)/bench/%.o $(simulation) $(libraries)
	$(call link)

# The trace that docs/algorithms.md draws.
$(OUT)/trace: $(filter $(OUT)/src/core/% $(OUT)/src/algorithms/%,$(objects)) $(OUT)/bench/trace.o
	$(CXX) $(TEST_FLAGS) -o $@ $^ -lcrypto

# The load generator of bench/redis-load, and a part of bench/growth.
$(OUT)/redis_load $(OUT)/growth: $(OUT)/%: $(objects) $(OUT)/bench/%.o $(libraries)
	$(call link)

# Exceptions are off only in src/, since RapidCheck throws them.
$(OUT)/src/%.o: src/%.cc scripts/unit.mk $(libraries) | $(script)
	$(call compile,$(FLAGS) -fno-exceptions)

$(OUT)/unit/%.o: unit/%.cc $(precompiled).gch scripts/unit.mk $(libraries) | $(script)
	$(call compile,$(TEST_FLAGS) -include $(precompiled))

$(OUT)/%.o: %.cc scripts/unit.mk $(libraries) | $(script)
	$(call compile,$(TEST_FLAGS))

# The copy of the header is for a compiler that cannot use the precompiled file.
$(precompiled).gch: unit/precompiled.h scripts/unit.mk
	@mkdir -p $(@D)
	@cp $< $(precompiled)
	$(CXX) $(CXXFLAGS) $(TEST_FLAGS) -x c++-header -o $@ $<

-include $(wildcard $(OUT)/src/*/*.d $(OUT)/unit/*.d $(OUT)/unit/*/*.d $(OUT)/bench/*.d $(OUT)/bench/*/*.d)
