# SPDX-License-Identifier: Apache-2.0
# The front door. Meson does the work; this installs what it needs and remembers the command lines.
#   make          build/reshard          make demo     the main job on a real checkpoint
#   make check    all tests              make asan     tests under AddressSanitizer and UBSan
#   make tsan     threads under TSan     make fuzz     fuzz targets with libFuzzer, replayed and run for FUZZ_SECONDS,
#                                                              or with FUZZ_RUNS=N until N runs are counted; make fuzz-coverage: what they reach
#   make bench    figures of the README  make docs     manual pages, HTML site
#   make tidy     layering and style     make coverage lines of src that the tests run
#   make faults   every call and allocation fails once, every crash is replayed
#   make mutants  sabotage of the source, which tests must notice (kept list); make mutants-sample: general operators
#   make install DESTDIR=… PREFIX=…; make uninstall    make deb Debian packages
#   make live-env environments with the real frameworks, which `check` then uses
SHELL := /bin/bash
BUILD ?= build
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 20
FUZZ_RUNS ?= 0
FUZZ_SEED ?= 0
MUTANTS ?= 300
SEED ?= 1
# Sanitizers need lines, and not the names of all variables: a third of the time to compile.
SANITIZED := --buildtype=plain -Dc_args=-g1 -Db_lundef=false

all: $(BUILD)/reshard

$(BUILD)/build.ninja:
	@tools/setup.sh build
	meson setup --buildtype=release -Db_lto=false $(BUILD) >$(BUILD).log 2>&1 || { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log

$(BUILD)/reshard: $(BUILD)/build.ninja FORCE
	@ninja -C $(BUILD) --quiet
	@ln -sf cli/reshard $(BUILD)/reshard

setup:
	@tools/setup.sh test

# A build for users has no tests, and needs nothing that only tests need.
$(BUILD)/.with-tests: | $(BUILD)/build.ninja setup
	@meson setup --reconfigure -Dtests=true $(BUILD) >/dev/null
	@touch $@

demo: $(BUILD)/reshard
	@tools/demo.sh $(BUILD)/reshard

tests: setup $(BUILD)/.with-tests
	@$(MAKE) --no-print-directory $(BUILD)/reshard

# CHECK_WITHOUT: suites to leave out: `sampled`, which takes a part of what `faults` takes all of, where both are made.
check: tests
	@python3 tools/run_tests.py $(BUILD) $(CHECK_WITHOUT:%=--no-suite %)

live-env:
	@tests/live/setup.sh

# Allocations and calls fail in a third of the places of `check`, as each takes five times as long.
asan:
	@tools/setup.sh test
	@test -f build-asan/build.ninja || meson setup -Dtests=true -Db_sanitize=address,undefined $(SANITIZED) -Doptimization=1 build-asan >/dev/null
	@ln -sf cli/reshard build-asan/reshard
	@RESHARD_FAULT_STEP=57 python3 tools/run_tests.py build-asan --suite unit --suite bytes

tsan:
	@tools/setup.sh test
	@test -f build-tsan/build.ninja || meson setup -Dtests=true -Db_sanitize=thread $(SANITIZED) -Doptimization=1 build-tsan >/dev/null
	@python3 tools/run_tests.py build-tsan --suite threads

coverage:
	@tools/setup.sh coverage
	@test -f build-coverage/build.ninja || meson setup -Dtests=true -Db_coverage=true --buildtype=debug -Doptimization=1 build-coverage >/dev/null
	@ninja -C build-coverage --quiet
	@ln -sf cli/reshard build-coverage/reshard
	@tools/coverage.py build-coverage

# All of what `check` takes a part of: each failure of each call, and more crashes. The seed of a run is printed, and SEED repeats it.
faults: tests
	@python3 tools/in_memory.py tools/faults.sh $(BUILD) $(SEED)

mutants:
	@tools/setup.sh test
	@tools/mutate.py --jobs 2

mutants-sample:
	@tools/setup.sh test
	@tools/mutate.py --sample $(MUTANTS) --seed $(SEED) --jobs 2

# Half of a target's time goes into tracing what is compared with what. A long run does without: words and mutators stand in for it. Half of the
# compiler's time goes into UBSan's checks of what a pointer points to. A short run does without: AddressSanitizer sees most of it, `make asan`
# and long runs have them.
COMMA := ,
FUZZ_LONG := $(filter-out 0,$(FUZZ_RUNS))
FUZZ_BUILD := build-fuzz$(if $(FUZZ_LONG),-long)
fuzz:
	@tools/setup.sh fuzz
	@test -f $(FUZZ_BUILD)/build.ninja || CC=clang meson setup -Dfuzz=true -Db_sanitize=address,undefined $(SANITIZED) -Doptimization=$(if $(FUZZ_LONG),2,1) \
	    '-Dc_args=-g1 $(if $(FUZZ_LONG),-fno-sanitize-coverage=trace-cmp,-fno-sanitize=null$(COMMA)object-size$(COMMA)alignment)' $(FUZZ_BUILD) >/dev/null
	@ninja -C $(FUZZ_BUILD) --quiet fuzz_targets
	@FUZZ_RUNS=$(FUZZ_RUNS) FUZZ_SEED=$(FUZZ_SEED) fuzz/run.sh $(FUZZ_BUILD) $(if $(FUZZ_LONG),0,$(FUZZ_SECONDS)) $(FUZZ_TARGETS)

fuzz-coverage:
	@tools/setup.sh fuzz-coverage
	@test -f build-fuzzcov/build.ninja || CC=clang meson setup -Dtests=true --buildtype=debug -Dc_args='-fprofile-instr-generate -fcoverage-mapping' \
	    -Dc_link_args=-fprofile-instr-generate build-fuzzcov >/dev/null
	@ninja -C build-fuzzcov --quiet fuzz_replays
	@python3 fuzz/coverage.py build-fuzzcov $(FUZZ_TARGETS)

bench: $(BUILD)/reshard
	@tools/setup.sh bench
	@bench/run.sh $(BUILD)/reshard

docs: $(BUILD)/build.ninja
	@tools/setup.sh docs
	@meson setup --reconfigure -Ddocs=enabled $(BUILD) >/dev/null
	@ninja -C $(BUILD) --quiet
	@tools/make_site.sh $(BUILD)

tidy:
	@python3 tools/tidy.py

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

# A library in a folder of the system is found once the loader's cache knows it.
install: $(BUILD)/reshard
	@meson setup --reconfigure -Dprefix=$(PREFIX) $(BUILD) >/dev/null
	DESTDIR=$(DESTDIR) meson install -C $(BUILD) --quiet
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

# Takes away what `install` with the same PREFIX and DESTDIR put there, and folders that are empty then.
uninstall: $(BUILD)/build.ninja
	@meson setup --reconfigure -Dprefix=$(PREFIX) $(BUILD) >/dev/null
	@python3 tools/uninstall.py $(BUILD) "$(DESTDIR)"
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

# Debian packages: reshard, libreshard0, libreshard-dev, in $(BUILD)/deb.
deb: 
	@tools/setup.sh deb
	@tools/make_deb.sh $(BUILD)/deb

clean:
	rm -rf build build-asan build-tsan build-fuzz build-fuzz-long build-fuzzcov build-coverage build-mutants

FORCE:
.PHONY: all setup demo tests check live-env asan tsan coverage faults mutants mutants-sample fuzz fuzz-coverage bench docs tidy format install uninstall deb clean FORCE
