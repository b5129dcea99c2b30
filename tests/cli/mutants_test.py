#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kept list of mutations fits the source: the text of each occurs once in its file, and meson knows the tests that should notice.
Prints TAP, a test a file. tools/mutate.py tries them; this only finds those that were left behind when code moved.

usage: mutants_test.py ROOT BUILD
"""
import itertools
import json
import pathlib
import subprocess
import sys


def problems(root, mutation, tests):
    path = root / mutation["file"]
    count = path.read_text().count(mutation["old"]) if path.exists() else 0
    if count != 1:
        yield f"its text occurs {count} times" if path.exists() else "there is no such file"
    if mutation["old"] == mutation["new"]:
        yield "it changes nothing"
    yield from (f"no test '{spec}'" for spec in mutation["tests"] if not any(spec == name or spec.startswith(name + " ") for name in tests))


def main():
    root, build = map(pathlib.Path, sys.argv[1:])
    listed = subprocess.run(["meson", "introspect", build, "--tests"], check=True, capture_output=True, text=True).stdout
    tests = [test["name"] for test in json.loads(listed)]
    kept = sorted(json.loads((root / "tests/mutants.json").read_text()), key=lambda mutation: mutation["file"])
    files = [(name, list(group)) for name, group in itertools.groupby(kept, lambda mutation: mutation["file"])]
    print(f"1..{len(files)}")
    failed = 0
    for number, (name, mutations) in enumerate(files, 1):
        found = [f"{m['what']}: {problem}" for m in mutations for problem in problems(root, m, tests)]
        failed += bool(found)
        print(f"{'not ok' if found else 'ok'} {number} - {name}", *(f"# {line}" for line in found), sep="\n")
    return 1 if failed or not files else 0


sys.exit(main())
