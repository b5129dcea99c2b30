#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Replays the corpus with every libFuzzer target and then, if SECONDS > 0, fuzzes each for that long. Ends with `N passed, N failed`.
# usage: fuzz/run.sh BUILD [SECONDS [TARGET]...]
#
# What is found (and, with FUZZ_KEEP=DIR, the grown corpus) is kept; the place is printed. With AFL++ the same targets build unchanged:
#   CC=afl-clang-fast meson setup -Dfuzz=true build-afl && ninja -C build-afl fuzz_targets    # its -fsanitize=fuzzer links AFL's driver
#   afl-fuzz -i fuzz/corpus/zip -o out -- build-afl/fuzz/fuzz_zip
set -u
build=${1:?usage: fuzz/run.sh BUILD [SECONDS [TARGET]...]}
seconds=${2:-0}
[ $# -gt 2 ] && shift 2 || set -- convert dcp_metadata json mapping pickle safetensors torch_save zarr zip
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
passed=0
failed=0
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# step NAME ARGUMENT...: one run of a target; what it leaves under artifacts/ is a finding.
step() {
    local name=$1 program=$build/fuzz/fuzz_$target
    shift
    if "$program" -rss_limit_mb=1024 -timeout=10 -artifact_prefix="$work/artifacts/$target-" "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok: $target: $name$(sed -n 's/^Done \([0-9]*\) runs.*/, \1 runs/p' "$work/log")"
    else
        failed=$((failed + 1))
        cp "$work/log" "$work/artifacts/$target-$name.log"
        echo "FAILED: $target: $name: $(grep -m1 -E 'ERROR|runtime error|SUMMARY' "$work/log")"
    fi
}

mkdir -p "$work/artifacts"
for target in "$@"; do
    corpus=$here/corpus/$target
    grown=${FUZZ_KEEP:-$work}/$target
    mkdir -p "$grown"
    case $target in json | safetensors | zarr) words=$here/json.dict ;; mapping) words=$here/mapping.dict ;; *) words=$here/pickle.dict ;; esac
    step replay -runs=0 "$corpus"
    [ "$seconds" -gt 0 ] && step fuzz -max_total_time="$seconds" -max_len=32768 -entropic=0 -dict="$words" "$grown" "$corpus"
done
if [ "$failed" -gt 0 ]; then
    echo "findings: $work/artifacts"
else
    rm -rf "$work"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
