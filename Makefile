# Builds, tests and measures the module. Each target installs its own dependencies; `make help` lists the targets.

NGINX_SRC ?= /usr/share/nginx/src
NGINX ?= $(firstword $(wildcard $(NGINX_SRC)/objs/nginx) $(shell command -v nginx) /usr/sbin/nginx)
PORT ?= 8080
COVERAGE_MIN ?= 95
COVERAGE_MIN_REDIS ?= 95
COVERAGE_MIN_IDENTITY ?= 95
FUZZ_SECONDS ?= 60
BENCH ?= .
SETUP ?= test
RUNS ?= 3
T ?= unit/*/*_test.cc t/*.t

tests = $(wildcard $(T))
units = $(filter unit/%,$(tests))
redis_tests = $(shell grep -lE 'start_(redis|cluster|sentinels)' t/*.t)
long = $(shell grep -l RL_LONG t/*.t unit/*/*_test.cc)

# Several runs of make may use one checkout: set-up and builds take a lock. Long-running programs are started with exec,
# so that a signal to make reaches them.
symbols := build/callgrind/nginx/objs/nginx
locked := mkdir -p build && flock -o build/.lock
costs = nginx=$$($(locked) scripts/nginx-symbols) && exec bench/costs --nginx "$$nginx" --load build/bench/redis_load \
    --module $(CURDIR)/build/ngx_http_rate_limit_module.so --build build
run_tests = scripts/test --build build --unit build/unit --nginx "$(NGINX)" \
    --module $(CURDIR)/build/ngx_http_rate_limit_module.so
build_units := $(MAKE) --no-print-directory -s -j$(shell nproc) -f scripts/unit.mk

.PHONY: all redis-module install uninstall dist deb test-package apt-repository setup run test test-long \
    test-native tests check-steady unit lint format sanitize coverage fuzz bench bench-core bench-check timelines \
    simulate accuracy algorithms screenshots compare-simulation check-builds matrix test-static test-clang \
    clean help

all: ## build the module for the installed nginx, or for the source tree NGINX_SRC=
	@$(locked) scripts/setup build
	@$(locked) scripts/module "$(NGINX_SRC)"

redis-module: ## build build/rate_limit.so, the module for Redis and Valkey
	@$(locked) scripts/setup redis-module
	@$(locked) scripts/redis-module

install: all ## install the module into the modules folder of NGINX=, below DESTDIR= if specified
	@scripts/install "$(NGINX)" "$(DESTDIR)"

uninstall: ## remove what `make install` has installed
	@scripts/install --uninstall "$(NGINX)" "$(DESTDIR)"

dist: ## write the source archive of the last commit to build/dist
	@scripts/dist

deb: ## build the Debian packages of the last commit for this machine's release, in build/deb
	@$(locked) scripts/setup deb
	@$(locked) scripts/package

test-package: ## build and test the Debian packages in bare Debians; SUITE='trixie bookworm testing'; requires root
	@$(locked) scripts/setup matrix
	@exec scripts/test-package $(SUITE)

apt-repository: ## sign the packages in build/deb with KEY=, as repositories for apt in build/apt-repository
	@$(locked) scripts/setup apt-repository
	@exec scripts/apt-repository "$(KEY)"

setup: ## install the packages that all targets need
	@$(locked) scripts/setup all

run: ## run nginx with some limits on 127.0.0.1, PORT= (8080), and print commands to try
	@$(locked) scripts/setup run
	@$(locked) scripts/module "$(NGINX_SRC)"
	@exec scripts/run "$(NGINX)" "$(PORT)"

test: ## build without warnings, run unit/ and t/; T='t/020*.t' selects tests, JOBS= is how many run concurrently
	@$(locked) scripts/setup $(SETUP)
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) scripts/redis-module
	@exec $(run_tests) $(if $(units),--compile '$(locked) $(build_units) $(units:unit/%.cc=build/unit/%)') $(tests)

test-long: ## run the longer versions of the tests that have one
	@$(locked) scripts/setup test
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) scripts/redis-module
	@$(locked) $(build_units) $(patsubst unit/%.cc,build/unit/%,$(filter unit/%,$(long)))
	@RL_LONG=1 exec $(run_tests) $(long)

test-native: ## run the tests of t/ that start a Redis, with the native module loaded in each; T= as for test
	@$(locked) scripts/setup test
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) scripts/redis-module
	@RL_NATIVE=1 exec $(run_tests) $(if $(filter file,$(origin T)),$(redis_tests),$(tests))

tests: ## list the test files, each with what it shows; WRITE=1 writes the lists of t/README.md and unit/README.md
	@scripts/list-tests $(if $(WRITE),--write)

check-steady: ## run unit/ and t/ RUNS= (3) times under CPU load and list failures; T= as for test
	@$(locked) scripts/setup test
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) scripts/redis-module
	@$(if $(units),$(locked) $(build_units) $(units:unit/%.cc=build/unit/%))
	@exec scripts/check-steady $(RUNS) $(run_tests) $(tests)

unit: ## run unit/ only
	@$(locked) scripts/setup unit
	@$(locked) scripts/redis-module
	@$(locked) $(build_units) programs
	@exec scripts/test --build build --unit build/unit $(wildcard unit/*/*_test.cc)

lint: ## check C++, shell, Perl and Lua statically, the dependencies between folders of src/, and the lists of tests
	@$(locked) scripts/setup lint
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(MAKE) --no-print-directory -s -k -j$(shell nproc) -f scripts/lint.mk

format: ## format C++ as `make lint` requires
	@$(locked) scripts/setup lint
	@$(MAKE) --no-print-directory -s -f scripts/lint.mk format

sanitize: ## run unit/ and t/ under ASan and UBSan; T= as for test, SUITE= is the Debian suite of nginx
	@$(locked) scripts/setup sanitize
	@exec scripts/sanitize $(tests)

coverage: ## measure how unit/ covers src/; fail below COVERAGE_MIN=, COVERAGE_MIN_REDIS=, COVERAGE_MIN_IDENTITY= (95) %
	@$(locked) scripts/setup coverage
	@exec scripts/coverage $(COVERAGE_MIN) $(COVERAGE_MIN_REDIS) $(COVERAGE_MIN_IDENTITY)

fuzz: ## run each program of unit/fuzz/ with libFuzzer for FUZZ_SECONDS= (60)
	@$(locked) scripts/setup fuzz
	@exec scripts/fuzz $(FUZZ_SECONDS)

# BENCH is "quick" or not specified in `make bench`, and a pattern in `make bench-core`. A quick run counts instructions
# only if the nginx with symbols has already been built.
bench: ## compare the module with other limiters: 25 minutes, or 2 with BENCH=quick; see docs/benchmarks.md
	@$(locked) scripts/setup compare
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) scripts/redis-module
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' \
	    $(addprefix build/bench/,redis_load accuracy load growth)
	@symbols=$(if $(filter quick,$(BENCH)),$(wildcard $(symbols)),$$($(locked) scripts/nginx-symbols)) && \
	    exec bench/run --build build --nginx "$(NGINX)" --module $(CURDIR)/build/ngx_http_rate_limit_module.so \
	    --driver build/bench/redis_load --accuracy build/bench/accuracy --load build/bench/load \
	    --growth build/bench/growth $${symbols:+--symbols "$$symbols"} \
	    $(if $(filter quick,$(BENCH)),--quick) $(BENCH_OPTIONS)

bench-core: ## measure parts of the module; BENCH= is a pattern: names in bench/, redis_load, scripts, instructions
	@$(locked) scripts/setup bench-core
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) scripts/redis-module
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' benchmarks build/bench/redis_load
	@for program in $(patsubst %.cc,build/%,$(wildcard bench/*_bench.cc)); do \
	    $$program --benchmark_filter='$(BENCH)' || exit 1; \
	done
	@! echo redis_load | grep -qE -- '$(BENCH)' || bench/redis-load --program build/bench/redis_load --build build
	@! echo scripts | grep -qE -- '$(BENCH)' || bench/script-costs --build build
	@! echo instructions | grep -qE -- '$(BENCH)' || $(costs) tables

bench-check: ## fail if instructions, system calls or bytes exceed bench/expected.json by 5 %; UPDATE=1 writes it
	@$(locked) scripts/setup bench-core
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/redis_load
	@$(costs) $(if $(UPDATE),update,check) bench/expected.json

timelines: ## chart a Redis failover, a failed cluster node and moving slots; TIMELINES= selects charts
	@$(locked) scripts/setup timelines
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) OUT=build/bench build/bench/load
	@exec bench/timelines --build build --load build/bench/load --nginx "$(NGINX)" \
	    --module $(CURDIR)/build/ngx_http_rate_limit_module.so --copy docs/timelines $(TIMELINES)

simulate: ## simulate fleets with sync= and lease=, and show how far they are from an exact limit
	@$(locked) scripts/setup simulate
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/simulate
	@exec bench/simulate --program build/bench/simulate --build build --copy docs/simulation \
	    --fill docs/scaling.md

accuracy: ## count wrong decisions of each algorithm and of sync=, against an exact limiter; QUICK=1 takes less time
	@$(locked) scripts/setup simulate
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/accuracy
	@exec bench/accuracy --program build/bench/accuracy --build build \
	    $(if $(QUICK),--quick,--copy docs/benchmarks --fill docs/accuracy.md)

algorithms: ## decide one bursty trace by each algorithm, and draw it for docs/algorithms.md
	@$(locked) scripts/setup simulate
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/trace
	@exec bench/trace --program build/bench/trace --build build --copy docs/algorithms --fill docs/algorithms.md

compare-simulation: ## compare the simulation with three nginx and a Redis; SYNC= are values of sync= (100ms 1s)
	@$(locked) scripts/setup timelines
	@$(locked) scripts/module "$(NGINX_SRC)"
	@$(locked) $(build_units) OUT=build/bench TEST_FLAGS='-O2 -g' build/bench/simulate
	@exec bench/compare-simulation --program build/bench/simulate --build build --nginx "$(NGINX)" \
	    --module $(CURDIR)/build/ngx_http_rate_limit_module.so $(SYNC)

screenshots: ## take the screenshots of the dashboard in docs/, under traffic
	@$(locked) scripts/setup screenshots
	@$(locked) scripts/module "$(NGINX_SRC)"
	@exec bench/screenshots --build build --nginx "$(NGINX)" \
	    --module $(CURDIR)/build/ngx_http_rate_limit_module.so --copy docs/dashboard

check-builds: ## build for the nginx of this and of later Debians, as a shared object and compiled in
	@$(locked) scripts/setup sanitize
	@$(locked) scripts/check-builds

matrix: ## test the last commit in bare Debian 12, 13, testing, for docs/releases.md; MATRIX= selects; requires root
	@$(locked) scripts/setup matrix
	@exec scripts/matrix $(if $(MATRIX),$(MATRIX),--fill docs/releases.md)

test-static: ## run t/ with the module compiled into nginx; T= as for test
	@$(locked) scripts/setup static
	@exec scripts/variant static $(tests)

test-clang: ## run unit/ and t/ built by clang; T= as for test
	@$(locked) scripts/setup clang
	@exec scripts/variant clang $(tests)

clean: ## remove all that was built
	rm -rf build

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
