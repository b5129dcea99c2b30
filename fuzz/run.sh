#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Replays the corpus with every libFuzzer target and then, if SECONDS > 0, fuzzes each for that long. Ends with `N passed, N failed`. A finding
# fails, and so does a target that has no corpus or executes nothing.
# usage: fuzz/run.sh BUILD [SECONDS [TARGET]...]
#
# FUZZ_RUNS=N is the long mode: each target goes on until N executions are counted, or FUZZ_CORE_SECONDS (7200) of a core's time.
# Counts and grown corpora are kept in FUZZ_KEEP (BUILD/grown) after every slice of SECONDS (default 300 here), so that a later run goes on from there:
# FUZZ_KEEP/counts.txt has a line `TARGET EXECUTIONS CORE-SECONDS` for each target. make_corpus.py --from FUZZ_KEEP takes what was found into fuzz/corpus.
#
# FUZZ_SEED=N makes runs that do the same again, as far as their time goes; without it each looks elsewhere.
#
# Findings are kept; the place is printed. With AFL++ targets that have no mutator in meson.build build unchanged (others call LLVMFuzzerMutate):
#   CC=afl-clang-fast meson setup -Dfuzz=true build-afl && ninja -C build-afl fuzz/fuzz_json    # its -fsanitize=fuzzer links AFL's driver
#   afl-fuzz -i fuzz/corpus/json -o out -- build-afl/fuzz/fuzz_json
set -u
build=${1:?usage: fuzz/run.sh BUILD [SECONDS [TARGET]...]}
runs=${FUZZ_RUNS:-0}
seconds=${2:-0}
[ "$runs" -gt 0 ] && [ "$seconds" -eq 0 ] && seconds=300
core_seconds=${FUZZ_CORE_SECONDS:-7200}
timeout=10
[ "$runs" -gt 0 ] && timeout=60 # by the clock, and others may have the machine
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 2 ] && shift 2 || set -- $(sed -n 's/^\([a-z][a-z_]*\) .*/\1/p' "$here/targets.txt")
if [ "$runs" -eq 0 ] && [ $# -gt 1 ]; then # a target a core
    printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 "$here/run.sh" "$build" "$seconds" | awk '
        /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3; ends++; next }
        { print; fflush() }
        END { failed += wanted - ends; print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 }' wanted=$#
    exit
fi
work=$(mktemp -d)
keep=${FUZZ_KEEP:-$work}
[ "$runs" -gt 0 ] && keep=${FUZZ_KEEP:-$build/grown}
passed=0
failed=0
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# What was given back stays out of use for the time of a run, not of hundreds, and is not given to the kernel: memory stays in the caches. Nor does
# each allocation note its stack and get filled, which a finding that is tried again without these options has. gguf: 1.7 times as many runs.
[ "$runs" -eq 0 ] || ASAN_OPTIONS+=:quarantine_size_mb=1:allocator_release_to_os_interval_ms=-1:malloc_context_size=1:max_malloc_fill_size=0

# step NAME ARGUMENT...: one run of a target; what it leaves under artifacts/ is a finding. Sets executed.
# Without -entropic=0 libFuzzer spends nine tenths of its time on weights of inputs that reach much, already while it loads them.
step() {
    local name=$1 program=$build/fuzz/fuzz_$target why=
    shift
    "$program" -rss_limit_mb=1024 -timeout=$timeout -entropic=0 -print_final_stats=1 -artifact_prefix="$work/artifacts/$target-" "$@" >"$work/log" 2>&1 ||
        why=$(grep -m1 -E 'ERROR|runtime error|SUMMARY' "$work/log" || echo "exit status $?")
    executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
    executed=${executed:-0}
    [ -z "$why" ] && [ "$executed" -eq 0 ] && why="nothing was executed"
    if [ -z "$why" ]; then
        passed=$((passed + 1))
        echo "ok: $target: $name, $executed runs"
    else
        failed=$((failed + 1))
        cp "$work/log" "$work/artifacts/$target-$name.log"
        echo "FAILED: $target: $name: $why"
        return 1
    fi
}

# count TARGET COLUMN: executions (2) or seconds of a core (3) so far.
count() {
    awk -v target="$1" -v column="$2" '$1 == target { found = $column } END { print found + 0 }' "$keep/counts.txt" 2>/dev/null || echo 0
}

# add TARGET EXECUTIONS SECONDS. Runs of other targets may count in the same file.
add() {
    local executions spent
    exec 9>"$keep/counts.lock"
    flock 9
    executions=$(($(count "$1" 2) + $2)) spent=$(($(count "$1" 3) + $3))
    { grep -v "^$1 " "$keep/counts.txt" 2>/dev/null; echo "$1 $executions $spent"; } | sort >"$keep/counts.new" && mv "$keep/counts.new" "$keep/counts.txt"
    exec 9>&-
}

# Seconds of processor that the programs so far have taken.
core_time() {
    local -a stat
    read -r -a stat <"/proc/$$/stat"
    echo $(((stat[15] + stat[16]) / $(getconf CLK_TCK)))
}

is_done() {
    [ "$(count "$target" 2)" -ge "$runs" ] || [ "$(count "$target" 3)" -ge "$core_seconds" ]
}

# Sets corpus, grown, words, length, longest of $target.
look_up() {
    corpus=$here/corpus/$target
    grown=$keep/$target
    read -r _ words length <<<"$(grep "^$target " "$here/targets.txt")"
    [ "${length:-short}" = long ] && longest=65536 || longest=32768
}

fuzz() {
    mkdir -p "$grown"
    step fuzz -max_total_time="$seconds" -runs="$1" -seed="${FUZZ_SEED:-0}" -max_len="$longest" -dict="$here/$words.dict" "$grown" "$corpus"
}

mkdir -p "$work/artifacts"
good=()
for target in "$@"; do
    look_up
    if [ -z "$(ls "$corpus" 2>/dev/null)" ]; then
        failed=$((failed + 1))
        echo "FAILED: $target: no corpus in $corpus"
        continue
    fi
    step replay -runs=0 "$corpus" || continue
    good+=("$target")
    [ "$seconds" -eq 0 ] || [ "$runs" -gt 0 ] || fuzz -1
done
# The long mode: a slice of each in turn. What has a finding stops there.
while [ "$runs" -gt 0 ] && [ ${#good[@]} -gt 0 ]; do
    left=()
    for target in "${good[@]}"; do
        look_up
        is_done && continue
        started=$(core_time)
        fuzz $((runs - $(count "$target" 2))) && left+=("$target")
        add "$target" "$executed" $(($(core_time) - started))
    done
    good=("${left[@]}")
done
if [ "$failed" -gt 0 ]; then
    echo "findings: $work/artifacts"
else
    rm -rf "$work"
fi
[ "$runs" -gt 0 ] && cat "$keep/counts.txt"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
