#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills conversions before and after each call that changes files: the old target or the new one is there. Prints TAP.

usage: kill_test.py --bin PATH --module PATH [--step N] [--only TEXT]
--step 3 kills at a third of the calls before the commit; those of the commit are all taken.
The call is chosen by its number (interpose.c), not by the clock. After each kill the target is the old one or the new one, nothing is left
but the folder of the unfinished run, and the same command ends with the very same bytes; with --resume some of the work is not done again.
"""
import argparse
import concurrent.futures
import dataclasses
import pathlib
import shutil
import sys
import tempfile

import disk_model
import shim as shims

CALLS = "change"  # a group of interpose_rules.c; those of its calls that stand in the log have the numbers of the log
CHANGING = {"fsync", "fdatasync", "renameat", "renameat2", "linkat", "unlinkat", "flock", "fallocate", "ftruncate",
            "copy_file_range", "pwrite", "write", "mkdirat", "openat", "fchmod"}
COMMIT_KILLS_MIN = 16


@dataclasses.dataclass
class Case:
    name: str
    options: list
    has_old: bool = False
    refused: str = None
    hurry: int = None
    may_be_missing: bool = False
    replaces_source: bool = False  # other values lie in the source when the command runs again


def cases():
    for name, options in {"safetensors": ["--to", "safetensors"], "torch": ["--to", "torch"],
                          "hf": ["--to", "hf", "--max-shard-size", "20kB"], "torch-dcp": ["--to", "torch-dcp", "--layout", "ranks=3"],
                          "zarr": ["--to", "zarr"]}.items():
        resume = [*options, "--resume", "--memory", "64KiB"]
        yield Case(f"convert to {name}", options)
        yield Case(f"convert --overwrite to {name}", [*options, "--overwrite"], has_old=True)
        yield Case(f"convert --overwrite to {name} without RENAME_EXCHANGE", [*options, "--overwrite"], True, shims.REFUSED,
                   may_be_missing=name not in ("safetensors", "torch"))
        yield Case(f"convert --resume to {name}", resume, hurry=5)
        yield Case(f"convert --resume --overwrite to {name}", [*resume, "--overwrite"], True, hurry=5)
    yield Case("convert --resume of a source that was replaced", ["--to", "torch-dcp", "--resume", "--memory", "64KiB"], hurry=5,
               replaces_source=True)


class Killer:
    def __init__(self, shim, case, work):
        self.shim, self.case = shim, case
        self.work = pathlib.Path(tempfile.mkdtemp(dir=work))
        self.arguments = ["convert", "source.safetensors", "target", *case.options, "--threads", "1", "--quiet"]
        self.source = shims.write_layers(self.work / "source.safetensors", 10, 2048, 1)
        (self.work / "other").mkdir()
        self.other, old = shims.write_layers(self.work / "other/source.safetensors", 10, 2048, 2), self.work / "other/target"
        options = [word for word in case.options if word != "--resume"]
        shim.plain(["convert", "source.safetensors", "target", *options, "--quiet"], self.work / "other")
        self.old = old if case.has_old else None
        self.old_content = shims.content_of(old) if case.has_old else {}
        self.new_content = shims.content_of(old) if case.replaces_source else None
        self.complaints, self.resumed, self.commit_kills = [], 0, 0
        self.look_at_whole_run()

    def prepare(self, directory):
        shutil.copy2(self.source, directory / "source.safetensors")
        if self.old:
            shims.link_tree(self.old, directory / "target")

    def look_at_whole_run(self):
        """What it writes, how many calls it makes, and where its commit begins: behind the last byte of the target. The last write of all
        retires the journal."""
        directory = self.work / "whole"
        directory.mkdir()
        self.prepare(directory)
        log = str(self.work / "log")
        done = self.shim.run(self.arguments, directory, log=log, refuse=self.case.refused, hurry=self.case.hurry)
        assert done.returncode == 0, done.stderr.decode()
        calls = [call.name for call in disk_model.read_log(log) if call.name in CHANGING]
        self.calls, self.pwrites = len(calls), calls.count("pwrite")
        self.commit = [i for i, name in enumerate(calls) if name in ("pwrite", "write", "copy_file_range")][-2] + 2
        self.whole_content = shims.content_of(directory / "target")
        self.new_content = self.new_content or self.whole_content

    def kill_all(self, step):
        """The number of kills."""
        numbers = [number for number in range(1, self.calls + 1) if number >= self.commit or number // 8 % step == 0]
        jobs = [(act, first, last) for act in ("kill-before", "kill-after") for first, last in shims.spans(numbers)]
        with concurrent.futures.ThreadPoolExecutor(shims.PROCESSES) as pool:
            return sum(pool.map(lambda job: self.kill_batch(*job), jobs))

    def kill_batch(self, act, first, last):
        directory = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        for number in range(first, last + 1):
            (directory / str(number)).mkdir()
            self.prepare(directory / str(number))
        settings = {"all": 1, "refuse": self.case.refused, "hurry": self.case.hurry}
        killed = self.shim.serve(self.arguments, directory, first, last, calls=CALLS, act=act, **settings)
        for run in killed:
            self.commit_kills += run.number >= self.commit
            self.note(act, run, self.check_killed(run))
            if self.case.replaces_source:
                self.replace_source(run)
        for run in self.shim.serve(self.arguments, directory, first, last, calls="pwrite", **settings):
            self.note(f"{act}, run again", run, self.check_again(run))
        shutil.rmtree(directory)
        return len(killed)

    def note(self, what, run, found):
        self.complaints += [f"{what} {run.number}: {run.what}: {text}" for text in found]

    def check_killed(self, run):
        if run.status != -9:
            return [f"not killed: exit {run.status}"]
        found = []
        content = shims.content_of(run.directory / "target")
        if content not in (self.old_content, self.whole_content):
            parked = shims.content_of(run.directory / shims.partial_of("target") / ".replaced")
            if not (self.case.may_be_missing and not content and parked == self.old_content):
                found.append("the target is neither the old one nor the new one")
        left = {path.name for path in run.directory.iterdir()} - {"source.safetensors", "target", shims.partial_of("target")}
        return found + ([f"it left {sorted(left)}"] if left else [])

    def replace_source(self, run):
        """As if it had not been killed after the rename: then there is nothing left to do."""
        shutil.rmtree(run.directory / "target", ignore_errors=True)
        shutil.copy(self.other, run.directory / "source.safetensors")

    def check_again(self, run):
        """The second run, which nothing kills."""
        is_there = run.status == 3 and "exists" in run.err and not self.case.has_old
        if run.status and not is_there:
            return [f"exit {run.status}: {run.err.strip()}"]
        self.resumed += not is_there and run.calls < self.pwrites
        content = shims.content_of(run.directory / "target")
        left = {path.name for path in run.directory.iterdir()} - {"source.safetensors",
                                                                  "target"} - ({shims.partial_of("target")} if is_there else set())
        return ([] if content == self.new_content
                else ["the target is not what a whole run writes"]) + ([f"it left {sorted(left)}"] if left else [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    shim, work = shims.Shim(args.bin, args.module), shims.work_directory()
    number = failed = kills = commit_kills = 0
    try:
        for case in cases():
            if args.only not in case.name:
                continue
            number += 1
            killer = Killer(shim, case, work)
            count = killer.kill_all(args.step)
            if killer.commit_kills < COMMIT_KILLS_MIN:
                killer.complaints.append(f"only {killer.commit_kills} kills in the commit")
            if "--resume" in case.options and not case.replaces_source and not killer.resumed:
                killer.complaints.append("no run took up what was done")
            kills, commit_kills, failed = kills + count, commit_kills + killer.commit_kills, failed + bool(killer.complaints)
            print(f"{'not ok' if killer.complaints else 'ok'} {number} - {case.name}: {count} kills, {killer.commit_kills} of them in the "
                  f"commit, "
                  f"{killer.resumed} runs resumed")
            print("".join(f"# {line}\n" for text in killer.complaints[:8] for line in text.splitlines()), end="", flush=True)
            shutil.rmtree(killer.work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"1..{number}\n# {kills} kills, {commit_kills} in the commit")
    return 1 if failed or not number else 0


if __name__ == "__main__":
    sys.exit(main())
