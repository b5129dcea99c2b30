#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""convert --verify reads back what it wrote: a bit that flips on the way to the disk never becomes a target with other values. Prints TAP.

usage: read_back_test.py --bin PATH --module PATH --fixtures DIR [--only TEXT]
Each write of a conversion is flipped once (interpose.c). With --verify the run fails and publishes nothing, or the values are right all the
same (what was flipped is no value). Without --verify some of them are published and wrong, which shows that the flips are real.
"""
import argparse
import pathlib
import shutil
import sys

import shim as shims

FLIP = {"calls": "pwrite,copy_file_range", "act": "flip"}


class Judge:
    def __init__(self, shim, work, source):
        self.shim, self.work, self.refused, self.wrong = shim, work, 0, 0
        self.values = self.hash_of(source)

    def hash_of(self, path):
        done = self.shim_free(["hash", path])
        return sorted(done.stdout.splitlines()) if done.returncode == 0 else [done.stderr]

    def shim_free(self, arguments):
        return shims.subprocess.run([self.shim.binary, *map(str, arguments)], cwd=self.work, capture_output=True, timeout=120)

    def with_verify(self, run):
        target = run.directory / "target"
        if run.status == 0:
            return [] if self.hash_of(target) == self.values else [f"{run.what}: called good, and the values are others"]
        self.refused += 1
        left = [path.name for path in run.directory.iterdir()]
        return [f"{run.what}: exit {run.status}, and {left} is there"] if left or run.status not in (1, 4, 5, 6) else []

    def without(self, run):
        self.wrong += run.status == 0 and self.hash_of(run.directory / "target") != self.values
        return []


def check_writer(shim, fixtures, name, work):
    source = shims.source_for(fixtures, name)
    convert = ["convert", source, "target", *shims.WRITERS[name], "--threads", "1", "--quiet"]
    judge, nothing = Judge(shim, work, source), lambda directory: None
    numbers = range(1, shim.count(convert, work, nothing, calls=FLIP["calls"]) + 1)
    _, complaints = shim.each([*convert, "--verify"], work, numbers, nothing, judge.with_verify, **FLIP)
    shim.each(convert, work, numbers, nothing, judge.without, **FLIP)
    lines = [text for _, text in complaints]
    if not judge.refused or not judge.wrong:
        lines.append(f"{judge.refused} flips were noticed, {judge.wrong} give other values without --verify: nothing is tested")
    return lines, f"{len(numbers)} flips, {judge.refused} noticed, {judge.wrong} change values"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    shim, work, number, failed = shims.Shim(args.bin, args.module), shims.work_directory(), 0, 0
    try:
        for name in (name for name in shims.WRITERS if args.only in name):
            number += 1
            lines, text = check_writer(shim, args.fixtures, name, work)
            failed += bool(lines)
            print(f"{'not ok' if lines else 'ok'} {number} - {name}: {text}", flush=True)
            print("".join(f"# {line}\n" for line in lines[:6]), end="", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"1..{number}")
    return 1 if failed or not number else 0


if __name__ == "__main__":
    sys.exit(main())
