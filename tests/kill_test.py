#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills conversions at random moments: the target is absent or complete, and --resume finishes it. Prints TAP.

usage: kill_test.py --bin PATH [--times N] [--seed N]
The source is blown up first (a converted copy of a generated safetensors file), so that a run lasts long enough to be killed inside.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time


def write_source(path, tensors, elements, seed):
    """A safetensors file of F32 tensors, written without any library."""
    header, offset = {}, 0
    for i in range(tensors):
        header[f"layers.{i}.weight"] = {"dtype": "F32", "shape": [elements // 64, 64], "data_offsets": [offset, offset + 4 * elements]}
        offset += 4 * elements
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise = random.Random(seed).randbytes(4 * elements)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i in range(tensors):
            file.write(noise[i:] + noise[:i])


def replaced_source_is_seen(command, source, target, length, chance):
    """Kills runs, each time writes other values of the same layout into the source, and resumes: only the new values may come out."""
    seen = True
    for attempt in range(30):
        shutil.rmtree(target, ignore_errors=True)
        process = subprocess.Popen([*command, "--resume"])
        time.sleep((0.3 + 0.6 * chance.random()) * length)
        process.kill()
        process.wait()
        if target.exists():
            continue
        write_source(source, 48, 1 << 17, attempt)
        subprocess.run([*command, "--resume"], check=True)
        seen &= subprocess.run([command[0], "diff", str(source), str(target), "--quiet"]).returncode == 0
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    chance = random.Random(args.seed)
    work = pathlib.Path(tempfile.mkdtemp(prefix="reshard-kill-"))
    source, target = work / "source.safetensors", work / "target"
    binary = os.path.abspath(args.bin)
    try:
        write_source(source, 48, 1 << 17, args.seed)
        command = [binary, "convert", str(source), str(target), "--to", "torch-dcp", "--layout", "ranks=3", "--quiet", "--memory", "1MiB", "--threads", "2"]
        wanted = subprocess.run([binary, "hash", str(source), "--digest", "xxh3"], capture_output=True, check=True).stdout
        started = time.monotonic()
        subprocess.run([*command, "--no-sync"], check=True)
        length = time.monotonic() - started
        whole = {file.name: file.read_bytes() for file in sorted(target.iterdir())}
        shutil.rmtree(target)
        print(f"# seed {args.seed}, a whole run takes {length:.3f} s")
        torn = wrong = finished = resumed = 0
        for _ in range(args.times):
            process = subprocess.Popen([*command, "--resume"])
            time.sleep(chance.random() * length * 1.2)
            process.kill()
            process.wait()
            finished += process.returncode == 0
            if target.exists():
                found = {file.name: file.read_bytes() for file in sorted(target.iterdir())}
                torn += found != whole
            if chance.random() < 0.5 or target.exists():
                if not target.exists():
                    subprocess.run([*command, "--resume"], check=True)
                    resumed += 1
                found = {file.name: file.read_bytes() for file in sorted(target.iterdir())}
                digests = subprocess.run([binary, "hash", str(target), "--digest", "xxh3"], capture_output=True).stdout
                wrong += found != whole or digests != wanted
                shutil.rmtree(target)
        print(f"# {args.times} kills, {finished} runs were done before it, {resumed} resumed")
        print(f"{'not ok' if torn else 'ok'} 1 - a killed run leaves the target absent or complete ({torn} torn)")
        print(f"{'not ok' if wrong else 'ok'} 2 - a resumed run ends with the very same bytes ({wrong} wrong)")
        subprocess.run([*command, "--overwrite"], check=True)
        left = [path.name for path in work.iterdir() if path.name not in ("source.safetensors", "target")]
        print(f"{'not ok' if left else 'ok'} 3 - nothing is left beside the target {left}")
        seen = replaced_source_is_seen(command, source, target, length, chance)
        print(f"{'ok' if seen else 'not ok'} 4 - a source that was replaced after the kill is read anew")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("1..4")


sys.exit(main())
