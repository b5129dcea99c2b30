#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Records what comes of every input of the corpora as fuzz/outcomes/TARGET.txt, which `make check` compares: after a change that means to
# change it, or with new inputs. Look at the difference before it is kept: each line that changes is an input that is read otherwise.
# usage: fuzz/outcomes.sh BUILD [TARGET]...    BUILD is without sanitizers, and with tests
set -eu
build=${1:?usage: fuzz/outcomes.sh BUILD [TARGET]...}
shift
cd "$(dirname "$0")/.."
ninja -C "$build" --quiet fuzz_replays
meson introspect --tests "$build" | python3 -c '
import json, shlex, sys
for test in json.load(sys.stdin):
    command = test["cmd"]
    if "--outcomes" in command and (len(sys.argv) < 2 or test["name"].split()[-1] in sys.argv[1:]):
        print(shlex.join(["--record" if word == "--outcomes" else word for word in command]))' "$@" |
    while read -r command; do
        if eval "$command" | grep '^not ok'; then exit 1; fi
    done
git diff --stat -- fuzz/outcomes
