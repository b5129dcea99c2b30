#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: faults.sh BUILD [SEED]: every failure, every kill, and many crashes (tests/crash); inputs that ask for much,
# into every format, many flipped bits, and salvage of every fixture (tests/cli); all random layouts through files, by ranks of MPI and
# inside the process (tests/mpi, tests/api); ends with `N passed, N failed`.
set -u
cd "$(dirname "$0")/.."
build=$1 seed=${2:-1}
common=(--bin "$build/cli/reshard" --module "$build/tests/crash/libinterpose.so")
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
run() { # SCRIPT ARGUMENTS...: shown when it has ended, because another lane writes, too
    local output=$logs/output.$BASHPID began=$SECONDS
    python3 "$@" >"$output"
    # Status 1 is told by its 'not ok' lines, anything else is an end that nobody counted.
    [ "$?" -le 1 ] && [ "$(grep -c '^1\.\.' "$output")" = 1 ] || echo "not ok - $1 did not end well" >>"$output"
    echo "$1, $((SECONDS - began)) s"$'\n'"$(grep -vE '^ok |^1\.\.' "$output")"
    cat "$output" >>"$log"
}
# Two lanes: what spreads itself over the cores, and what does one thing after the other, and then two.
spread() {
    run tests/crash/faults_test.py "${common[@]}" --fixtures "$build/tests/fixtures" --seed "$seed"
    run tests/crash/kill_test.py "${common[@]}"
}
one_by_one() {
    run tests/crash/durability_test.py "${common[@]}" --fixtures "$build/tests/fixtures" --states 6 --reruns 60 --seed "$seed"
    run tests/cli/blowup_test.py --bin "$build/cli/reshard" --runs 8 --share 1
    run tests/cli/flip_test.py --bin "$build/cli/reshard" --fixtures "$build/tests/fixtures" --flips 200 --seed "$seed"
    run tests/cli/salvage_every_test.py --bin "$build/cli/reshard" --fixtures "$build/tests/fixtures" --damages 1 --seed "$seed"
    if [ -x "$build/tests/mpi/mpi_ranks" ] && command -v mpirun.openmpi >/dev/null; then
        run tests/mpi/mpi_test.py --mpirun mpirun.openmpi --ranks "$build/tests/mpi/mpi_ranks" --only random_layouts_through --share 1 --saved-cases 1667
    else
        echo "skipped: layouts by ranks of MPI (openmpi-bin, libopenmpi-dev)"
    fi
}
in_process() {
    RESHARD_EVERY_FAULT=1 RESHARD_MANY_FIXTURES=1 RESHARD_FAULT_SEED="$seed" meson test -C "$build" --no-rebuild --timeout-multiplier 10 --print-errorlogs dcp_faults faults format_faults fixture_failures \
        megatron_faults settings_faults map_faults saved_layouts && echo "ok in-process" >>"$log" || echo "not ok - faults inside the process" | tee -a "$log"
}
(log=$logs/spread && spread) &
(log=$logs/one_by_one && { one_by_one; in_process; })
wait
passed=$(cat "$logs"/{spread,one_by_one} | grep -c '^ok ') failed=$(cat "$logs"/{spread,one_by_one} | grep -c '^not ok ')
[ "$passed" -gt 0 ] || failed=$((failed + 1))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
