# Builds, tries and tests the module. Each target sets up what it needs; `make help` lists them.

NGINX_SRC ?= /usr/share/nginx/src
NGINX ?= $(firstword $(wildcard $(NGINX_SRC)/objs/nginx) $(shell command -v nginx) /usr/sbin/nginx)
PORT ?= 8080
COVERAGE_MIN ?= 95
COVERAGE_MIN_REDIS ?= 95
COVERAGE_MIN_KEY ?= 95
FUZZ_SECONDS ?= 60
BENCH ?= .
SETUP ?= test
RUNS ?= 3
T ?= unit/*/*_test.cc t/*.t

tests = $(wildcard $(T))
units = $(filter unit/%,$(tests))
long = $(shell grep -l RL_LONG t/*.t unit/*/*_test.cc)

# Runs of make in one checkout may overlap: set-up and building take turns. What runs long is started with exec, so
# that a signal to make reaches it.
locked := mkdir -p build && flock -o build/.lock
costs = nginx=$$($(locked) scripts/nginx-symbols) && exec scripts/costs --nginx "$$nginx" --load build/bench/redis_load \
    --module $(CURDIR)/build/ngx_http_rate_limit_module.so --build build
run_tests = scripts/test --build build --unit build/unit --nginx "$(NGINX)" --module $(CURDIR)/build/ngx_http_rate_limit_module.so
build_units := $(MAKE) --no-print-directory -s -j$(shell nproc) -f scripts/unit.mk

.PHONY: all install setup run test test-long check-steady unit lint format sanitize coverage fuzz bench bench-core bench-check timelines simulate \
    accuracy screenshots compare-simulation check-builds matrix test-static test-clang clean help

all: ## build the module against the installed nginx, or against the source tree NGINX_SRC=
	@$(locked) scripts/setup build
	@$(locked) scripts/module "$(NGINX_SRC)"

install: all ## put the module where NGINX= looks for modules, below DESTDIR= if given
	@scripts/install "$(NGINX)" "$(DESTDIR)"

setup: ## install the packages that all targets need
	@$(locked) scripts/setup all

run: ## run a limited nginx on 127.0.0.1 port PORT= (8080) and say what to try with it
	@$(locked) scripts/setup run
	@$(locked) scripts/module "$(NGINX_SRC)"
	@exec scripts/run "$(NGINX)" "$(PORT)"

test: ## build without a warning and run unit/ and t/; T='t/020*.t' runs some, JOBS= so many at once
	@$(locked) scripts/setup $(SETUP)
	@$(locked) scripts/module "$(NGINX_SRC)"
	@exec $(run_tests) $(if $(units),--compile '$(locked) $(build_units) $(units:unit/%.cc=build/unit/%)') $(tests)

test-long: ## run the longer versions of those tests that have one
	@$(locked) scripts/setup test
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) $(patsubst unit/%.cc,build/unit/%,$(filter unit/%,$(long)))
	@RL_LONG=1 exec $(run_tests) $(long)

check-steady: ## run unit/ and t/ RUNS= (3) times beside busy loops and list what failed; T= as for test
	@$(locked) scripts/setup test
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(if $(units),$(locked) $(build_units) $(units:unit/%.cc=build/unit/%))
	@exec scripts/check-steady $(RUNS) $(run_tests) $(tests)

unit: ## run unit/ only
	@$(locked) scripts/setup unit
	@$(locked) $(build_units) programs
	@exec scripts/test --build build --unit build/unit $(wildcard unit/*/*_test.cc)

lint: ## look for faults in C++, shell, Perl and Lua, and in what includes what
	@$(locked) scripts/setup lint
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(MAKE) --no-print-directory -s -k -j$(shell nproc) -f scripts/lint.mk

format: ## lay out C++ as `make lint` wants it
	@$(locked) scripts/setup lint
	@$(MAKE) --no-print-directory -s -f scripts/lint.mk format

sanitize: ## run unit/ and t/ under AddressSanitizer and UndefinedBehaviorSanitizer; T= as for test, SUITE= whose nginx
	@$(locked) scripts/setup sanitize
	@exec scripts/sanitize $(tests)

coverage: ## say how much of src/ unit/ runs; fail below COVERAGE_MIN= (95) % of lines, and _REDIS=, _KEY= for those
	@$(locked) scripts/setup coverage
	@exec scripts/coverage $(COVERAGE_MIN) $(COVERAGE_MIN_REDIS) $(COVERAGE_MIN_KEY)

fuzz: ## feed each program of unit/fuzz/ for FUZZ_SECONDS= (60) with what libFuzzer makes up; fail if one fails
	@$(locked) scripts/setup fuzz
	@exec scripts/fuzz $(FUZZ_SECONDS)

# Of `make bench` alone, BENCH is the word "quick" or nothing. A quick run counts instructions only if the nginx for that
# has been built before.
bench: ## hold the module against other limiters in 14 minutes, or two with BENCH=quick; see docs/benchmarks.md
	@$(locked) scripts/setup compare
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/redis_load build/bench/accuracy
	@symbols=$(if $(filter quick,$(BENCH)),$(wildcard build/callgrind/nginx/objs/nginx),$$($(locked) scripts/nginx-symbols)) && \
	    exec scripts/bench --build build --nginx "$(NGINX)" --module $(CURDIR)/build/ngx_http_rate_limit_module.so \
	    --driver build/bench/redis_load --accuracy build/bench/accuracy $${symbols:+--symbols "$$symbols"} \
	    $(if $(filter quick,$(BENCH)),--quick) $(BENCH_OPTIONS)

bench-core: ## measure parts of it; BENCH= is a pattern of what to measure: names in bench/, redis_load, instructions
	@$(locked) scripts/setup bench-core
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' benchmarks build/bench/redis_load
	@for program in $(patsubst %.cc,build/%,$(wildcard bench/*_bench.cc)); do \
	    $$program --benchmark_filter='$(BENCH)' || exit 1; \
	done
	@! echo redis_load | grep -qE -- '$(BENCH)' || scripts/redis-load --program build/bench/redis_load --build build
	@! echo instructions | grep -qE -- '$(BENCH)' || $(costs) tables

bench-check: ## fail if instructions, system calls or bytes are 5 % above bench/expected.json; UPDATE=1 writes that
	@$(locked) scripts/setup bench-core
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/redis_load
	@$(costs) $(if $(UPDATE),update,check) bench/expected.json

timelines: ## draw what clients see while a Redis primary fails, a node dies, slots move; TIMELINES= are some of them
	@$(locked) scripts/setup timelines
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) OUT=build/bench build/bench/load
	@exec scripts/timelines --build build --load build/bench/load --nginx "$(NGINX)" \
	    --module $(CURDIR)/build/ngx_http_rate_limit_module.so --copy docs/timelines $(TIMELINES)

simulate: ## draw how far fleets with sync= are from an exact limit, by simulation
	@$(locked) scripts/setup simulate
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/simulate
	@exec scripts/simulate --program build/bench/simulate --build build --copy docs/simulation

accuracy: ## say how often each algorithm, and sync=, decides otherwise than an exact limiter; QUICK=1 in less time
	@$(locked) scripts/setup simulate
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/accuracy
	@exec scripts/accuracy --program build/bench/accuracy --build build \
	    $(if $(QUICK),--quick,--copy docs/benchmarks --fill docs/accuracy.md)

compare-simulation: ## hold the simulation against three nginx and a Redis; SYNC= are times of sync= (100ms 1s)
	@$(locked) scripts/setup timelines
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/simulate
	@exec scripts/compare-simulation --program build/bench/simulate --build build --nginx "$(NGINX)" \
	    --module $(CURDIR)/build/ngx_http_rate_limit_module.so $(SYNC)

screenshots: ## take pictures of the dashboard in docs/ while some traffic runs
	@$(locked) scripts/setup screenshots
	@$(locked) scripts/module "$(NGINX_SRC)"
	@exec scripts/screenshots --build build --nginx "$(NGINX)" \
	    --module $(CURDIR)/build/ngx_http_rate_limit_module.so --copy docs/dashboard

check-builds: ## build against this Debian's nginx and the newest, as a shared object and compiled in
	@$(locked) scripts/setup sanitize
	@$(locked) scripts/check-builds

matrix: ## try the last commit in bare Debians 12, 13 and testing, as docs/releases.md says; MATRIX= are some; needs root
	@$(locked) scripts/setup matrix
	@exec scripts/matrix $(if $(MATRIX),$(MATRIX),--fill docs/releases.md)

test-static: ## run t/ with the module compiled into nginx; T= as for test
	@$(locked) scripts/setup static
	@exec scripts/variant static $(tests)

test-clang: ## run unit/ and t/ built by clang; T= as for test
	@$(locked) scripts/setup clang
	@exec scripts/variant clang $(tests)

clean: ## remove everything that was built
	rm -rf build

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
