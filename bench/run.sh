#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: bench/run.sh PATH_OF_RESHARD [options of bench.py]
set -eu
cd "$(dirname "$0")/.."
reshard=$1
shift
if [ -z "${RESHARD_TEST_PYTHON:-}" ] && [ -x .venv/bin/python ]; then
    export RESHARD_TEST_PYTHON="$PWD/.venv/bin/python"
fi
exec python3 bench/bench.py --reshard "$reshard" "$@"
