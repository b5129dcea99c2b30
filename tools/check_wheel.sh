#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `pip install .` into a fresh environment, from a copy of the tracked files, as a reader of docs/python.md would; what is installed runs alone.
# usage: tools/check_wheel.sh          ends with `N passed, N failed`
set -u
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
holds() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1)) && echo "ok: $name"
    else
        failed=$((failed + 1)) && echo "FAILED: $name" && tail -n 40 "$work/log"
    fi
}
mkdir "$work/tree"
git ls-files -z -- . ':!tests/fixtures' ':!fuzz/corpus' | tar --null -T - -cf - | tar -xf - -C "$work/tree"
fixture=$PWD/tests/fixtures/torch-dcp/dcp-small/ckpt
python3 -m venv "$work/env" || { tools/setup.sh venv && python3 -m venv "$work/env"; }
holds "pip install ." "$work/env/bin/pip" install -q "$work/tree"
cd "$work" || exit 1 # so that nothing of the tree is found
holds "it needs nothing of the system's library" sh -c "! readelf -d env/lib/python3*/site-packages/reshard/_reshard.abi3.so | grep libreshard"
holds "it reads and writes" env/bin/python -c "
import reshard
reshard.convert('$fixture', 'out', to='hf', verify=True)
assert reshard.diff('$fixture', 'out', items=False), 'it differs'"
holds "pip uninstall" env/bin/pip uninstall -q -y reshard
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
