#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Carries the counts of long runs (run.sh, FUZZ_RUNS) into the table of docs/TESTING.md, and from there to another machine.

usage: reached.py BUILD             writes what BUILD/grown/counts.txt has counted, and what corpora reach, into the page
       reached.py BUILD --restore   writes BUILD/grown/counts.txt as the page has it, for a run to go on from

What corpora reach is read from standard input, as `make fuzz-coverage` prints it; targets that it does not name stay as they are.
"""
import argparse
import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "TESTING.md"
HEADING = "| target | executions | minutes of a core | lines reached |"
AIM = re.compile(r"\*\*\d+ of \d+ targets have it\*\*")
AIM_EXECUTIONS, AIM_MINUTES = 10_000_000, 120
ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+|not counted yet) \| (\d+|-) \| ([\d.]+ %|-) \|$", re.M)


def rows_of(text):
    """Where the table begins, and {target: (executions, minutes, share)}."""
    start = text.index(HEADING)
    found = {m[1]: (int(m[2].replace(",", "")) if m[2][0].isdigit() else 0, int(m[3]) if m[3] != "-" else 0, m[4])
             for m in ROW.finditer(text, start)}
    return start, found


def counts_in(path):
    """{target: (executions, seconds)}"""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {name: (int(executions), int(seconds)) for name, executions, seconds in lines}


def restore(path):
    _, rows = rows_of(PAGE.read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name} {executions} {minutes * 60}\n" for name, (executions, minutes, _) in sorted(rows.items())))


def publish(path, printed):
    text = PAGE.read_text()
    start, rows = rows_of(text)
    reached = dict(re.findall(r"^ok: (\w+): ([\d.]+ %)", printed, re.M))
    counts = {name: (executions, minutes * 60) for name, (executions, minutes, _) in rows.items()} | counts_in(path)
    for name, (executions, seconds) in counts.items():
        rows[name] = (executions, round(seconds / 60), rows[name][2])

    def row(name):
        executions, minutes, share = rows[name]
        return (f"| `{name}` | {executions:,} |" if executions else f"| `{name}` | not counted yet |") + (
            f" {minutes or '-'} | {reached.get(name, share)} |")

    have = sum(executions >= AIM_EXECUTIONS or seconds >= AIM_MINUTES * 60 for executions, seconds in counts.values())
    before = AIM.sub(f"**{have} of {len(rows)} targets have it**", text[:start])
    PAGE.write_text(before + ROW.sub(lambda m: row(m[1]), text[start:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--restore", action="store_true")
    args = parser.parse_args()
    path = args.build / "grown" / "counts.txt"
    if args.restore:
        restore(path)
    else:
        publish(path, "" if sys.stdin.isatty() else sys.stdin.read())


if __name__ == "__main__":
    main()
