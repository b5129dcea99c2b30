#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--resume goes on with what a killed run has done if the source is still the same, and starts over if it was written to. What cannot be
renamed into place is kept for --resume, and for the next commit of its parts. Prints TAP.

usage: resume_test.py --bin PATH --module PATH
"""
import argparse
import errno
import os
import pathlib
import shutil
import sys

import shim as shims

CONVERT = ["convert", "layers.safetensors", "target", "--to", "hf", "--threads", "1", "--quiet", "--memory", "64KiB", "--resume"]


def values(shim, work, path):
    return sorted(shim.plain(["hash", path], work).decode().splitlines())


def killed(shim, work, nth):
    """A run that dies at its nth write; the looks at the clock make it note what is done at once."""
    shims.write_layers(work / "layers.safetensors", 10, 2048, 1)
    for name in ("target", shims.partial_of("target")):
        shutil.rmtree(work / name, ignore_errors=True)
    return shim.run(CONVERT, work, calls="pwrite,copy_file_range", act="kill-after", nth=nth, hurry=5).returncode == -9


def check(shim, work):
    killings, resumed = 0, 0
    for nth in range(1, 200):
        if not killed(shim, work, nth):
            break
        killings += 1
        partial = (work / shims.partial_of("target") / ".journal")
        resumed += partial.exists() and partial.stat().st_size > 100
        before = (work / "layers.safetensors").stat()
        shims.write_layers(work / "layers.safetensors", 10, 2048, 1 + nth)
        os.utime(work / "layers.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))  # as rsync --inplace --times does
        shim.plain(CONVERT, work)
        assert values(shim, work, "target") == values(shim, work,
                                                      "layers.safetensors"), f"killed at write {nth}: the target mixes two sources"
    assert killings > 5 and resumed > 2, f"{killings} runs were killed, {resumed} had noted something"
    return f"{killings} killed, {resumed} had noted something"


def unpublished(shim, work, arguments, old):
    """The command fails at its last rename: what it has written stays, and so does the old target."""
    failed = shim.run(arguments, work, calls="renameat,renameat2,linkat", path="target", act=f"fail-on:{errno.EACCES}", nth=1, hurry=5,
                      log=str(work / "log"))
    assert failed.returncode == 3 and b"into place" in failed.stderr, f"exit {failed.returncode}: {failed.stderr[-300:]}"
    assert shims.content_of(work / "target") == old, "the old target has changed"
    return writes(work)


def writes(work):
    """Calls of the last run that was logged."""
    lines = (work / "log").read_text().splitlines()
    return sum("pwrite" in line or "copy_file_range" in line for line in lines)


def check_publishing(shim, work, overwrites):
    """The next run of the same command moves no payload."""
    shims.write_layers(work / "layers.safetensors", 10, 2048, 1)
    shutil.rmtree(work / "target", ignore_errors=True)
    more = ["--overwrite"] if overwrites else []
    if overwrites:
        shim.plain(["convert", "layers.safetensors", "target", "--to", "torch-dcp", "--quiet"], work)
    old, wanted = shims.content_of(work / "target"), values(shim, work, "layers.safetensors")
    first = unpublished(shim, work, [*CONVERT, *more], old)
    again = shim.run([*CONVERT, *more], work, log=str(work / "log"))
    assert again.returncode == 0, again.stderr[-300:]
    assert writes(work) < first / 2, f"{first} writes, then {writes(work)}"
    assert values(shim, work, "target") == wanted
    shutil.rmtree(work / "target")
    if overwrites:
        shim.plain(["convert", "layers.safetensors", "target", "--to", "torch-dcp", "--quiet"], work)
    for i in range(2):
        shim.plain(["convert", "layers.safetensors", "target", "--to", "hf", "--quiet", "--part", f"{i}/2", *more], work)
    unpublished(shim, work, ["commit", "target", "--quiet"], old)
    shim.plain(["commit", "target", "--quiet"], work)
    assert values(shim, work, "target") == wanted
    assert not (work / shims.partial_of("target")).exists(), "something is left beside the target"
    return "over an old one" if overwrites else "where none was"


def nothing_beside(shim, work):
    """Where a file that is removed while it is open keeps its folder."""
    shims.write_layers(work / "layers.safetensors", 10, 2048, 1)
    shutil.rmtree(work / "target", ignore_errors=True)
    before = sorted(path.name for path in work.iterdir())
    convert = ["convert", "layers.safetensors", "target", "--threads", "1", "--quiet"]
    for form in ("hf", "safetensors"):
        for more, fault in (([], {}), (["--overwrite"], {}), (["--overwrite"], {"calls": "pwrite", "act": f"fail:{errno.EIO}", "nth": 3}),
                            (["--overwrite"], {"calls": "fsync", "act": f"fail:{errno.EIO}", "nth": 1})):
            done = shim.run([*convert, "--to", form, *more], work, silly=1, **fault)
            assert done.returncode == (3 if fault else 0), f"{form} {fault}: exit {done.returncode}: {done.stderr[-300:]}"
            left = sorted(path.name for path in work.iterdir() if path.name != "target")
            assert left == before, f"{form} {more} {fault}: {left} beside the target"
        shims.subprocess.run(["rm", "-rf", work / "target"], check=True)
    for i in range(2):
        shim.plain([*convert, "--to", "hf", "--part", f"{i}/2"], work)
    done = shim.run(["commit", "target", "--quiet"], work, silly=1)
    assert done.returncode == 0, f"commit: exit {done.returncode}: {done.stderr[-300:]}"
    assert not (work / shims.partial_of("target")).exists(), "commit left something beside the target"
    return "folders, files and parts"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--module", required=True)
    args = parser.parse_args()
    work = pathlib.Path(shims.work_directory())
    shim, bad = shims.Shim(args.bin, args.module), 0
    cases = {"a source that changed": lambda: check(shim, work), "a target without a place": lambda: check_publishing(shim, work, False),
             "an old target that stays": lambda: check_publishing(shim, work, True),
             "names that stay while a file is open": lambda: nothing_beside(shim, work)}
    print(f"1..{len(cases)}")
    try:
        for number, (name, case) in enumerate(cases.items(), 1):
            try:
                print(f"ok {number} - {name}: {case()}", flush=True)
            except AssertionError as problem:
                bad += 1
                print(f"not ok {number} - {name}\n# {problem}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
