#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the transcripts in cases/ and compares what the command prints. Prints TAP, a test a file.

A transcript is a shell session: a line `$ command`, then what it must print (both streams, as they come), then `[3]` if the exit status is
3. Blank lines and lines with `#` at the start separate commands. Commands run in an empty directory, one directory a file, with
`reshard` in PATH, FIXTURES set to the fixtures, and EXAMPLES to the built example programs.

usage: transcript_test.py --bin PATH --fixtures DIR [--examples DIR] [--bless] [GLOB...]
--bless writes what was printed into the files; read the difference before you keep it.
"""
import argparse
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CASES = pathlib.Path(__file__).resolve().parent / "cases"


def run(command, directory, environment):
    done = subprocess.run(["bash", "-c", command], cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, timeout=120)
    text = done.stdout.decode("utf-8", "backslashreplace")
    for value, name in ((environment["FIXTURES"], "$FIXTURES"), (str(directory), "$PWD")):
        text = text.replace(value, name)
    text = re.sub(r"in [0-9]+ s\b", "in less than a second", text)  # a machine may be slow
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        lines[-1] += "(no newline)"
    # A line that the transcript would take for its own syntax is shown with a leading backslash.
    lines = ["\\" + line if not line or line[0] in "#$[\\" else line for line in lines]
    if done.returncode:
        lines.append(f"[{done.returncode}]")
    return lines


def replay(text, directory, environment):
    """The transcript as it came out."""
    out, lines, at = [], text.splitlines(), 0
    while at < len(lines):
        line = lines[at]
        out.append(line)
        at += 1
        if line.startswith("$ "):
            while line.endswith("\\") and at < len(lines):
                line = line[:-1] + lines[at]
                out.append(lines[at])
                at += 1
            while at < len(lines) and lines[at] and not lines[at].startswith(("$ ", "#")):
                at += 1
            out += run(line[2:], directory, environment)
    return "\n".join(out) + "\n"


def check(path, args, environment):
    """The verdict, and the lines that differ."""
    text = path.read_text()
    with tempfile.TemporaryDirectory(prefix="reshard-cli-") as directory:
        got = replay(text, pathlib.Path(directory), environment)
    if got == text:
        return "ok", []
    if args.bless:
        path.write_text(got)
        return "ok", ["blessed"]
    import difflib
    return "not ok", list(difflib.unified_diff(text.splitlines(), got.splitlines(), "expected", "got", lineterm="", n=1))[2:42]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    parser.add_argument("--examples", type=pathlib.Path, default=pathlib.Path("/nonexistent"))
    parser.add_argument("--bless", action="store_true")
    parser.add_argument("globs", nargs="*")
    args = parser.parse_args()
    args.fixtures = args.fixtures.resolve()
    with tempfile.TemporaryDirectory(prefix="reshard-bin-") as folder:
        os.symlink(args.bin.resolve(), f"{folder}/reshard")
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "FIXTURES": str(args.fixtures), "EXAMPLES": str(args.examples.resolve()),
                       "LC_ALL": "C.UTF-8", "HOME": folder, "TERM": "dumb", "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "")}
        cases = [path for path in sorted(CASES.glob("*.txt")) if not args.globs or any(fnmatch.fnmatch(path.stem, g) for g in args.globs)]
        print(f"1..{len(cases)}")
        for number, path in enumerate(cases, 1):
            verdict, lines = check(path, args, environment)
            print(f"{verdict} {number} - {path.stem}")
            for line in lines:
                print(f"# {line}")
            sys.stdout.flush()


main()
