#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints how much of the files that each fuzz target is for (targets.txt) its corpus reaches, and fails where it is less than 80 % of the
lines.

usage: coverage.py BUILD [--files] [TARGET]...
BUILD has been configured by clang with c_args '-fprofile-instr-generate -fcoverage-mapping' and without -Dfuzz: its replay programs run
here.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
WANTED = 80.0


def tool(name):
    for candidate in (f"{name}-14", name):
        if shutil.which(candidate):
            return candidate
    sys.exit(f"{name} is missing: Debian has it in llvm-14")


def table():
    """{target: patterns of files}."""
    targets, current = {}, None
    for line in (HERE / "targets.txt").read_text().splitlines():
        if line[:1] == " ":
            targets[current] += line.split()
        elif line and line[0] != "#":
            current = line.split()[0]
            targets[current] = []
    return targets


def lines_of(functions, left_out):
    """{file as it is compiled: lines of the functions that are left out}. Those are not reached, or they need not be left out."""
    lines = {}
    for function in functions:
        if function["name"].split(":")[-1] in left_out and function["count"] == 0:
            regions = [region for region in function["regions"] if region[5] == 0]
            name = function["filenames"][0]
            lines[name] = lines.get(name, 0) + max(r[2] for r in regions) - min(r[0] for r in regions) + 1
    return lines


def line_counts(build, target, left_out, work):
    """{file of the tree: (lines, lines reached)}."""
    program = build / "fuzz" / f"replay_{target}"
    environment = dict(os.environ, LLVM_PROFILE_FILE=str(work / "%p.profraw"))
    run = subprocess.run([program, HERE / "corpus" / target], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode:
        sys.exit(f"{target}: the corpus does not replay:\n{run.stdout}")
    merged = work / "merged"
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", "-o", merged, *work.glob("*.profraw")], check=True)
    report = subprocess.run([tool("llvm-cov"), "export", f"-instr-profile={merged}", program], check=True, stdout=subprocess.PIPE)
    counts = {}
    data = json.loads(report.stdout)["data"][0]
    uncounted = lines_of(data["functions"], left_out)
    for entry in data["files"]:
        name = os.path.relpath(build / entry["filename"],
                               HERE.parent) if not os.path.isabs(entry["filename"]) else os.path.relpath(entry["filename"], HERE.parent)
        lines = entry["summary"]["lines"]
        counts[name] = (lines["count"] - uncounted.get(entry["filename"], 0), lines["covered"])
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--files", action="store_true", help="a line for each file too")
    parser.add_argument("targets", nargs="*")
    args = parser.parse_intermixed_args()
    targets, passed, failed = table(), 0, 0
    for target in args.targets or targets:
        patterns = [word for word in targets[target] if word[0] != "!"]
        with tempfile.TemporaryDirectory() as work:
            counts = line_counts(args.build.resolve(), target, {word[1:] for word in targets[target] if word[0] == "!"}, pathlib.Path(work))
        chosen = {name: lines for name, lines in counts.items() if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}
        unmatched = [pattern for pattern in patterns if not fnmatch.filter(counts, pattern)]
        count, covered = (sum(lines[i] for lines in chosen.values()) for i in (0, 1))
        share = 100 * covered / count if count else 0.0
        good = share >= WANTED and not unmatched
        passed, failed = passed + good, failed + (not good)
        print(f"{'ok' if good else 'FAILED'}: {target}: {share:.1f} % of {count} lines in {len(chosen)} files",
              *(f"no file {pattern}" for pattern in unmatched), flush=True)
        for name, (lines, reached) in sorted(chosen.items()) if args.files else []:
            print(f"    {100 * reached / lines if lines else 100:5.1f} %  {lines:5d}  {name}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
