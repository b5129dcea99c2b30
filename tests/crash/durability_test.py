#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a crash at any moment of a conversion leaves: the old checkpoint or the new one, whole. Prints TAP.

usage: durability_test.py --bin PATH --module PATH --fixtures DIR [--states N] [--reruns N] [--seed N] [--only TEXT]
The calls of a run are logged in order (interpose.c). The log shows that what becomes visible was synced before, and its directory after;
then every crash that disk_model.py makes of it is looked at: --states random ones for each call. Of the distinct disks, --reruns are made
real, and the same command must finish its work there. With --resume a disk holds a journal and data that may be lost: what the journal says
must be true.
"""
import argparse
import dataclasses
import hashlib
import pathlib
import random
import shutil
import sys
import tempfile
import time

import disk_model
import shim as shims


@dataclasses.dataclass
class Case:
    name: str
    arguments: list
    old: pathlib.Path = None
    refused: str = None
    hurry: int = None
    may_be_missing: bool = False  # the old target has no name for a moment
    is_synced: bool = True


def cases(shim, fixtures, work):
    layers = shims.write_layers(work / "layers.safetensors", 10, 2048, 1)
    for name, options in shims.WRITERS.items():
        source, old = shims.source_for(fixtures, name), work / f"old-{name}"
        shim.plain(["convert", source, old, *options, "--dtype", "f64", "--quiet"], work)
        convert = ["convert", source, "target", *options, "--threads", "1", "--quiet"]
        yield Case(f"convert to {name}", convert)
        yield Case(f"convert --overwrite to {name}", [*convert, "--overwrite"], old)
        yield Case(f"convert --verify --checksum --overwrite to {name}", [*convert, "--overwrite", "--verify", "--checksum", "crc32c"], old)
        yield Case(f"convert to {name} without RENAME_NOREPLACE", convert, refused=shims.REFUSED)
        yield Case(f"convert --overwrite to {name} without RENAME_EXCHANGE", [*convert, "--overwrite"], old, shims.REFUSED,
                   may_be_missing=old.is_dir())
        yield Case(f"convert --no-sync to {name}", [*convert, "--no-sync"], is_synced=False)
        if name != "megatron":
            steps = ["convert", layers, "target", *options, "--threads", "1", "--quiet", "--memory", "64KiB", "--resume"]
            yield Case(f"convert --resume to {name}", steps, hurry=5)
            yield Case(f"convert --resume --overwrite to {name}", [*steps, "--overwrite"], old, hurry=5)


def tree_of(image, name):
    """What image() says about one name, as content_of() says it."""
    if name not in image:
        return {}
    inside = {path[len(name) + 1:]: content for path, content in image.items() if path.startswith(name + "/")}
    return {".": image[name]} | inside


def write_image(image, directory):
    for path, content in sorted(image.items()):
        if content is None:
            (directory / path).mkdir()
        else:
            (directory / path).write_bytes(content)


def digest_of(image):
    state = hashlib.sha256()
    for path, content in sorted(image.items()):
        state.update(f"{path}\0{-1 if content is None else len(content)}\0".encode() + (content or b""))
    return state.digest()


class Replay:
    """One case: its log, and the disks that crashes leave."""

    def __init__(self, shim, case, work):
        self.shim, self.case, self.work = shim, case, work
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=work))
        if case.old:
            shims.link_tree(case.old, self.directory / "target")
        self.disk = disk_model.Disk(self.directory)
        log = str(work / "log")
        done = shim.run(case.arguments, self.directory, log=log, refuse=case.refused, hurry=case.hurry)
        assert done.returncode == 0, f"exit {done.returncode}: {done.stderr.decode()[-400:]}"
        self.disk.replay(log)
        self.new = shims.content_of(self.directory / "target")
        self.sidecar = shims.content_of(self.directory / "target.reshard.json")
        self.old = shims.content_of(case.old) if case.old else {}
        self.states, self.complaints, self.opened = {}, [], 0

    def check_log(self):
        """The model must end where the run ended, or it proves nothing about the run."""
        last = self.disk.image(self.disk.before(disk_model.NEVER))
        real = {name: content for name, content in shims.content_of(self.directory).items() if name != "."}
        if last != real:
            self.complaints.append(f"the log does not tell what the run did: {sorted(set(last) ^ set(real))}")
        if self.case.is_synced:
            self.complaints += self.disk.order_complaints()

    def check_crashes(self, chance, random_states):
        count, seen = 0, set()
        for what, kept, torn in self.disk.crashes(chance, random_states):
            if not self.case.is_synced and not what.endswith("all kept"):
                continue
            count += 1
            if not torn:
                if kept in seen:
                    continue
                seen.add(kept)
            image = self.disk.image(kept, torn)
            digest = digest_of(image)
            if digest not in self.states:
                self.states[digest] = image
                found = self.verdict(image)
                self.complaints += [f"{what}: {found}"] if found else []
        return count

    def verdict(self, image):
        """None, or what is wrong with the target."""
        target = tree_of(image, "target")
        if target in (self.old, self.new):
            return None
        if not target:
            parked = tree_of(image, shims.partial_of("target") + "/.replaced")
            return None if self.case.may_be_missing and parked == self.old else "the old target has gone"
        self.opened += 1
        return self.opens_as_mixture(image)

    def opens_as_mixture(self, image):
        """Files that are neither: they may still hold what one of the two holds, or be refused."""
        with tempfile.TemporaryDirectory(dir=self.work) as place:
            write_image(image, pathlib.Path(place))
            done = self.shim.run(["hash", "target", "--digest", "xxh3"], place)
            for whole in (self.new, self.old):
                shutil.rmtree(pathlib.Path(place, "whole"), ignore_errors=True)
                write_image({"whole" if path == "." else f"whole/{path}": content for path, content in whole.items()}, pathlib.Path(place))
                if whole and done.stdout == self.shim.run(["hash", "whole", "--digest", "xxh3"], place).stdout:
                    return None
        return f"the target opens, and is neither the old one nor the new one: {done.stdout[:200]}" if done.returncode == 0 else None

    def check_reruns(self, chance, reruns):
        """The same command, on the disks that crashes left."""
        left = sorted(self.states)
        chosen = chance.sample(left, min(reruns, len(left)))

        def check(run):
            state = self.states[chosen[run.number - 1]]
            exists = bool(tree_of(state, "target")) and not self.case.old
            if run.status == 2 and exists or run.status == 3 and exists and "exists" in run.err:
                return []
            if run.status != 0:
                return [f"the next run ends with exit {run.status}: {run.err[-300:]}"]
            found = {path.name: shims.content_of(path) for path in run.directory.iterdir()}
            wanted = {"target": self.new} | ({"target.reshard.json": self.sidecar} if self.sidecar else {})
            return [] if found == wanted else [f"the next run leaves {sorted(found)}, "
                                               f"{'equal' if found.get('target') == self.new else 'other'} bytes"]

        def prepare(directory):
            write_image(self.states[chosen[int(directory.name) - 1]], directory)
        _, complaints = self.shim.each(self.case.arguments, self.work, range(1, len(chosen) + 1), prepare, check, refuse=self.case.refused)
        self.complaints += [f"disk {outcome.number}: {text}" for outcome, text in complaints]
        return len(chosen)

    def check_put_back(self):
        """Where the old target lost its name, whoever comes next gives it back, also one that may not replace it."""
        nameless = [state for state in self.states.values() if not tree_of(state, "target")]
        arguments = [word for word in self.case.arguments if word != "--overwrite"]

        def check(run):
            found = shims.content_of(run.directory / "target")
            is_back = run.status == 3 and "exists" in run.err and found == self.old
            return [] if is_back else [f"exit {run.status}, the old target is not put back: {run.err}"]

        def prepare(directory):
            write_image(nameless[int(directory.name) - 1], directory)
        _, complaints = self.shim.each(arguments, self.work, range(1, len(nameless) + 1), prepare, check, refuse=self.case.refused)
        self.complaints += [text for _, text in complaints] + ([] if nameless else ["no crash fell between the two renames"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--states", type=int, default=4, help="random states for each call")
    parser.add_argument("--reruns", type=int, default=100, help="disks of a case on which the command runs again")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    shim, work = shims.Shim(args.bin, args.module), shims.work_directory()
    print(f"# seed {args.seed}")
    number, total, distinct, again = 1, 0, 0, 0
    try:
        missing = shims.left_out(shim, work)
        failed = bool(missing)
        print(f"{'not ok' if missing else 'ok'} 1 - every format that is written{': all but ' if missing else ''}{', '.join(missing)}")
        for case in cases(shim, args.fixtures, work):
            if args.only not in case.name:
                continue
            number += 1
            replay = Replay(shim, case, work)
            replay.check_log()
            count = replay.check_crashes(chance, args.states)
            reruns = replay.check_reruns(chance, args.reruns)
            if case.may_be_missing:
                replay.check_put_back()
            total, distinct, again = total + count, distinct + len(replay.states), again + reruns
            failed += bool(replay.complaints) or len(replay.disk.calls) < 10
            print(f"{'not ok' if replay.complaints else 'ok'} {number} - {case.name}: {count} crashes of {len(replay.disk.calls)} calls, "
                  f"{len(replay.states)} disks, {reruns} runs on them")
            for text in replay.complaints[:8]:
                print("".join(f"# {line}\n" for line in str(text).splitlines()), end="", flush=True)
            shutil.rmtree(replay.directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"1..{number}\n# {total} crashes, {distinct} different disks, {again} runs on them")
    return 1 if failed or number < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
