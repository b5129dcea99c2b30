#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs all tests of a build made with -Db_coverage=true, and says which lines of src/ they ran. Ends with 1 if that is too few.

usage: coverage.py BUILD [--lines PERCENT] [--file PERCENT] [--no-run] [--missed FILE]
Prints a line a file, the worst first, and the total. --missed lists the lines of the files whose path contains FILE that no test ran.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def lines_of(build):
    """{file of src: {line: times run}}; a header's line counts once, however many files include it."""
    report = subprocess.run(["gcovr", "--root", str(ROOT), "--filter", "src/", "--json", "-", "--object-directory", str(build),
                             "--exclude-unreachable-branches", "--gcov-ignore-parse-errors", str(build)], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return {file["file"]: {line["line_number"]: line["count"] for line in file["lines"] if not line.get("gcovr/noncode")}
            for file in json.loads(report)["files"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--lines", type=float, default=92)
    parser.add_argument("--file", type=float, default=75)
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--missed")
    args = parser.parse_args()
    build, status = args.build.resolve(), 0
    if not args.no_run:
        for counts in build.rglob("*.gcda"):
            counts.unlink()
        status = subprocess.run([sys.executable, str(ROOT / "tools/run_tests.py"), str(build)]).returncode
    files = {name: lines for name, lines in lines_of(build).items() if lines}
    share = {name: 100 * sum(n > 0 for n in lines.values()) / len(lines) for name, lines in files.items()}
    for name in sorted(files, key=lambda name: (share[name], name)):
        print(f"{share[name]:5.1f} %  {len(files[name]):5} lines  {name}")
        if args.missed and args.missed in name:
            print("         missed:", *(line for line, count in sorted(files[name].items()) if not count))
    every = [count for lines in files.values() for count in lines.values()]
    total = 100 * sum(n > 0 for n in every) / len(every) if every else 0
    poor = [name for name in files if share[name] < args.file]
    print(f"coverage: {total:.1f} % of {len(every)} lines (at least {args.lines:g}), {len(poor)} of {len(files)} files under {args.file:g} "
          f"%: {' '.join(poor)}")
    return 1 if status or total < args.lines or poor else 0


if __name__ == "__main__":
    sys.exit(main())
