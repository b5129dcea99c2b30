# SPDX-License-Identifier: Apache-2.0
# The front door. Meson does the work; this installs what it needs and remembers the command lines.
#   make          build/reshard          make demo     the main job on a real checkpoint
#   make check    all tests              make asan     tests under AddressSanitizer and UBSan
#   make tsan     engine under ThreadSanitizer         make fuzz     fuzz targets with libFuzzer, replayed and run briefly
#   make bench    figures of the README  make docs     manual pages    make tidy     layering and style checks
#   make install DESTDIR=… PREFIX=…
SHELL := /bin/bash
BUILD ?= build
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 20

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

demo: $(BUILD)/reshard
	@tools/demo.sh $(BUILD)/reshard

check: setup $(BUILD)/reshard
	@python3 tools/run_tests.py $(BUILD)

asan:
	@tools/setup.sh test
	@test -f build-asan/build.ninja || meson setup -Db_sanitize=address,undefined -Db_lundef=false --buildtype=debugoptimized build-asan >/dev/null
	@ninja -C build-asan --quiet
	@ln -sf cli/reshard build-asan/reshard
	@python3 tools/run_tests.py build-asan --suite unit

tsan:
	@tools/setup.sh test
	@test -f build-tsan/build.ninja || meson setup -Db_sanitize=thread -Db_lundef=false --buildtype=debugoptimized build-tsan >/dev/null
	@ninja -C build-tsan --quiet
	@python3 tools/run_tests.py build-tsan --suite threads

fuzz:
	@tools/setup.sh fuzz
	@test -f build-fuzz/build.ninja || CC=clang meson setup -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false --buildtype=debugoptimized build-fuzz >/dev/null
	@ninja -C build-fuzz --quiet fuzz_targets
	@fuzz/run.sh build-fuzz $(FUZZ_SECONDS)

bench: $(BUILD)/reshard
	@tools/setup.sh bench
	@bench/run.sh $(BUILD)/reshard

docs: $(BUILD)/build.ninja
	@tools/setup.sh docs
	@meson setup --reconfigure $(BUILD) >/dev/null
	@ninja -C $(BUILD) --quiet

tidy:
	@python3 tools/tidy.py

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

install: $(BUILD)/reshard
	@meson configure $(BUILD) -Dprefix=$(PREFIX) >/dev/null
	DESTDIR=$(DESTDIR) meson install -C $(BUILD) --quiet

clean:
	rm -rf build build-asan build-tsan build-fuzz

FORCE:
.PHONY: all setup demo check asan tsan fuzz bench docs tidy format install clean FORCE
