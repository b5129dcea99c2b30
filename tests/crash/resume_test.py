#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--resume goes on with what a killed run has done if the source is still the same, and starts over if it was written to. Prints TAP.

usage: resume_test.py --bin PATH --module PATH
"""
import argparse
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
        shims.write_layers(work / "layers.safetensors", 10, 2048, 1 + nth)
        shim.plain(CONVERT, work)
        assert values(shim, work, "target") == values(shim, work,
                                                      "layers.safetensors"), f"killed at write {nth}: the target mixes two sources"
    assert killings > 5 and resumed > 2, f"{killings} runs were killed, {resumed} had noted something"
    return f"{killings} killed, {resumed} had noted something"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--module", required=True)
    args = parser.parse_args()
    work = pathlib.Path(shims.work_directory())
    try:
        print(f"1..1\nok 1 - a source that changed: {check(shims.Shim(args.bin, args.module), work)}")
    except AssertionError as problem:
        print(f"1..1\nnot ok 1 - a source that changed\n# {problem}")
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
