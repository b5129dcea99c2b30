#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each allocation and each call to the operating system fails once, for each verb over one checkpoint of each format. Prints TAP.

usage: faults_test.py --bin PATH --module PATH --fixtures DIR [--share N] [--seed N] [--only TEXT] [--show N]
--share 0.1 takes a tenth of the failures, chosen by the seed. A run that fails says so, with a sane exit status, leaves neither a crash, a
block of memory nor a file open behind, and makes nothing visible; a run that succeeds all the same prints and writes what it would have.
"""
import argparse
import collections
import dataclasses
import errno
import math
import pathlib
import random
import re
import shutil
import sys
import time

import shim as shims

# What fails, and how: the word of the interposer, the error, and the exit statuses that may follow.
READING = [("alloc", errno.ENOMEM), ("look", errno.EIO), ("thread", errno.EAGAIN), ("openat,openat2,close", errno.EIO)]
WRITING = [("alloc", errno.ENOMEM), ("look", errno.EIO), ("thread", errno.EAGAIN), ("disk", errno.EIO), ("space", errno.ENOSPC),
           ("disk", errno.EINTR)]


AGAIN = ("ls --json", "cat npy", "hash --io direct")  # beside ls, cat and hash
ALL_MIN = 100_000  # failures in all, of some 200,000
DIFFERING = 4  # tensors, or one more, of which `diff` looks for what explains it: 100 allocations each


@dataclasses.dataclass
class Verb:
    name: str
    arguments: list
    faults: list
    target: str = None   # what it writes
    old: pathlib.Path = None  # what lies there before, if anything
    keeps: bool = False  # a failed run may leave its unfinished folder for --resume
    refused: str = None
    again: bool = False  # another verb makes most of its allocations, too: a third of them fails
    hits_min: int = 20   # fewer hits than this, over all failures, mean that nothing is tested


class Judge:
    """Knows what a run without any failure prints and writes, and compares."""

    def __init__(self, shim, verb, work):
        self.verb = verb
        self.old = {verb.target: shims.content_of(verb.old)} if verb.old else {}
        clean, = shim.serve(verb.arguments, self.prepared(work), 1, 1, all=1, refuse=verb.refused)
        if clean.status not in (0, 1):
            raise AssertionError(f"the run without failures: exit {clean.status}: {clean.err[-400:]}")
        self.clean = clean
        self.whole = self.tree(clean.directory)
        shutil.rmtree(clean.directory.parent)
        self.leaked = [f"{clean.live_blocks} blocks at {clean.leak}, {clean.open_files} files are left by a run without failures"] \
            if clean.live_blocks or clean.open_files else []

    def prepared(self, work):
        directory = work / "clean"
        (directory / "1").mkdir(parents=True)
        self.prepare(directory / "1")
        return directory

    def prepare(self, directory):
        if self.verb.old:
            shims.link_tree(self.verb.old, directory / self.verb.target)

    @staticmethod
    def tree(directory):
        return {path.name: shims.content_of(path) for path in directory.iterdir()}

    def check(self, run):
        found = [f"died: {shims.SIGNALS.get(run.status, run.status)}"] if run.status < 0 else []
        if run.live_blocks or run.open_files:
            found.append(f"{run.live_blocks} blocks, {run.open_files} files are not given back; one from {run.leak}")
        if run.status == self.clean.status:
            found += [] if told(run.out) == told(self.clean.out) else ["it printed something else, and called it good"]
        elif run.status >= 0 and run.status != 3:
            found.append(f"exit {run.status}: {run.err[-300:].strip()}")
        elif run.status == 3 and not any(line.startswith(("reshard: ", '{"schema":"reshard-error/1"')) and len(line) > 12
                                         for line in run.err.splitlines()):
            found.append(f"exit 3 without a message: {run.err[-300:].strip()!r}")
        return found + (self.check_target(run) if self.verb.target else self.check_untouched(run))

    @staticmethod
    def check_untouched(run):
        left = [path.name for path in run.directory.iterdir()]
        return [f"it wrote {left}"] if left else []

    def check_target(self, run):
        tree = self.tree(run.directory)
        partials = [tree.pop(name) for name in list(tree) if name.endswith(".reshard-partial")]
        if run.status == self.clean.status:
            found = [] if tree == self.whole else [f"it says that it wrote, and there is {differences(tree, self.whole)}"]
        else:
            # After the rename a directory that cannot be synced makes a run fail, and a sidecar beside a file.
            bare = {self.verb.target: self.whole[self.verb.target]}
            found = [] if tree in (self.old, self.whole, bare) else [f"exit {run.status}, and there is {differences(tree, self.old)}"]
        if partials and not self.verb.keeps and not cleaning_failed(run):
            found.append("its unfinished folder stays")
        return found


def told(out):
    """What is printed, but for the memory that a run is going to take (a buffer that could not grow makes it less), and its time."""
    return re.sub(rb"peak[ _]memory.*|in less than a second|in [0-9]+ s\b|\"seconds\":[0-9.e-]+", b"", out)


def cleaning_failed(run):
    """The call that failed is one of those that remove the unfinished folder."""
    return run.what.split(" ")[0] in ("unlinkat", "openat", "fdopendir", "readdir", "renameat", "renameat2", "fstatat", "close", "fcntl")


def differences(found, wanted):
    names = sorted(found.keys() ^ wanted.keys())
    inside = sorted(name for top in found.keys() & wanted.keys() for name in set(found[top]) | set(wanted[top])
                    if found[top].get(name, 0) != wanted[top].get(name, 0))
    return f"more or less {names}, different {inside[:6]}"


# ---- what is run ----

def reading_verbs(shim, name, path, other, work):
    keys = [line.split("\t")[0] for line in shim.plain(["ls", path], work).decode().splitlines()]
    key, some = keys[0], keys[::max(1, len(keys) // DIFFERING)]
    for verb, arguments in {
            "inspect": ["inspect", path], "ls": ["ls", path, "--chunks", "--items"], "ls --json": ["ls", path, "--json"],
            "hash": ["hash", path, "--threads", "1", "--digest", "xxh3"], "cat": ["cat", path, key],
            "cat npy": ["cat", path, key, "--as", "npy"], "verify": ["verify", path],
            "verify --deep": ["verify", "--deep", "--threads", "1", path],
            "plan": ["plan", path, "--to", "safetensors"], "diff": ["diff", path, other, *some], "stats": ["stats", path, "--threads", "1"],
            "hash --io direct": ["hash", path, "--threads", "1", "--digest", "crc32c", "--io", "direct"]}.items():
        yield Verb(f"{verb} of {name}", arguments, READING, again=verb in AGAIN)
    # What cannot be looked at or opened is lost, and the run succeeds: those failures have a test of their own (bad_sectors_test.py).
    yield Verb(f"salvage of {name}", ["salvage", path, "target", "--to", "torch-dcp", "--threads", "1", "--quiet"],
               [WRITING[0], WRITING[4]], "target")


def writing_verbs(fixtures, name, old):
    """old: another checkpoint of the same format, which is replaced."""
    source, to = shims.source_for(fixtures, name), [*shims.WRITERS[name], "--threads", "1", "--quiet"]
    convert = ["convert", source, "target", *to]
    yield Verb(f"convert to {name}", convert, WRITING, "target")
    yield Verb(f"convert --overwrite to {name}", [*convert, "--overwrite"], WRITING[3:4], "target", old)
    yield Verb(f"convert --resume to {name}", [*convert, "--resume"], [WRITING[0], WRITING[3]], "target", keeps=True)
    yield Verb(f"convert --verify --checksum to {name}", [*convert, "--verify", "--checksum", "crc32c"], [WRITING[0], WRITING[3]], "target")
    yield Verb(f"convert to {name} with little from the kernel", convert, WRITING[3:4], "target", refused=shims.REFUSED)
    yield Verb(f"convert --like of {name}", ["convert", source, "target", "--like", old, "--threads", "1", "--quiet"],
               [WRITING[0], WRITING[3]], "target")
    yield Verb(f"convert --overwrite to {name} with little from the kernel", [*convert, "--overwrite"], WRITING[3:4], "target", old,
               refused=shims.REFUSED)


def mapping_verbs(shim, path, work):
    """A mapping over the checkpoint, tried and used: every key gets another name."""
    keys = [line.split("\t")[0] for line in shim.plain(["ls", path], work).decode().splitlines()]
    (work / "any.map").write_text("".join(f"{key} -> renamed.{key}\n" for key in keys))
    for verb in ("check", "expand", "invert"):
        yield Verb(f"map {verb}", ["map", verb, work / "any.map", "--source", path], READING)
    yield Verb("map parse", ["map", "parse", work / "any.map"], READING)
    yield Verb("convert --map", ["convert", path, "target", "--to", "hf", "--map", work / "any.map", "--threads", "1", "--quiet"],
               [WRITING[0], WRITING[3]], "target")


def verbs(shim, fixtures, work):
    small = shims.write_all(shim, fixtures, work)
    olds = {}
    for name in shims.WRITERS:
        olds[name] = work / f"old-{name}"
        shim.plain(["convert", shims.source_for(fixtures, name), olds[name], *shims.WRITERS[name], "--dtype", "f64", "--quiet"], work)
    small["fsdp-ranks"] = pathlib.Path(fixtures).resolve() / "torch-file/torch-file-fsdp2-ranks/ckpt"
    yield from mapping_verbs(shim, small["safetensors"], work)
    yield Verb("diff of equals", ["diff", small["safetensors"], small["torch-dcp"]], READING)
    for name, path in small.items():
        yield from reading_verbs(shim, name, path, olds.get(name, path), work)
        if name in shims.WRITERS:
            yield from writing_verbs(fixtures, name, olds[name])


# ---- running ----

def sampled(faults, share, chance):
    """(faults, share of each): a share of the failures is that of a part of the kinds, as a run for each kind costs more than its
    failures."""
    if share >= 1:
        return faults, 1
    return [fault for fault in faults if chance.random() < math.sqrt(share)], math.sqrt(share)


def fail_all(shim, verb, faults, work, share, chance):
    """(hits, calls, complaints) over a share of these failures of this verb."""
    judge = Judge(shim, verb, work)
    complaints, hits, calls = [(None, text) for text in judge.leaked], 0, 0
    for group, number in faults:
        count = shim.count(verb.arguments, work, judge.prepare, calls=group, refuse=verb.refused)
        numbers = shims.sample(count, share / 3 if verb.again and group == "alloc" else share, chance)
        settings = {"calls": group, "act": f"fail:{number}", "refuse": verb.refused}
        if number == errno.ENOSPC:
            settings["act"] = f"fail-on:{number}"
        found, bad = shim.each(verb.arguments, work, numbers, judge.prepare, judge.check, **settings)
        complaints += [(outcome, f"{group} {errno.errorcode[number]}: {text}") for outcome, text in bad]
        hits += found
        calls += len(numbers)
    return hits, calls, complaints


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--share", type=float, default=1)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=8, help="complaints printed of one verb")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    shim, work = shims.Shim(args.bin, args.module), shims.work_directory()
    print(f"# seed {args.seed}, share {args.share}")
    total, number, failed = collections.Counter(), 0, 0
    try:
        for verb in verbs(shim, args.fixtures, work):
            if args.only not in verb.name:
                continue
            faults, share = sampled(verb.faults, args.share, chance)
            if not faults:
                continue
            number += 1
            hits, calls, complaints = fail_all(shim, verb, faults, work, share, chance)
            total["hits"] += hits
            enough = hits >= 0.9 * calls and (args.share < 1 or hits >= verb.hits_min)
            failed += bool(complaints) or not enough
            print(f"{'not ok' if complaints or not enough else 'ok'} {number} - {verb.name}: {hits} failures of {calls}", flush=True)
            for outcome, text in complaints[:args.show]:
                place = f"{outcome.number}: {outcome.what}: " if outcome else ""
                print("".join(f"# {line}\n" for line in f"{place}{text}".splitlines()), end="", flush=True)
            if len(complaints) > args.show:
                print(f"# and {len(complaints) - args.show} more")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    has_all = total["hits"] >= args.share * ALL_MIN or bool(args.only)
    print(f"{'ok' if has_all else 'not ok'} {number + 1} - {total['hits']} failures")
    print(f"1..{number + 1}")
    return 1 if failed or not number or not has_all else 0


if __name__ == "__main__":
    sys.exit(main())
