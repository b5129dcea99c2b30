#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the command with several threads and little memory, so that they meet in every queue. Built with -Db_sanitize=thread, a data race
ends it with status 66. Prints TAP.

usage: threads_test.py --bin PATH --fixtures DIR
"""
import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import draw

OPTIONS = ["--threads", "4", "--memory", "1MiB", "--quiet"]
FORMATS = {"hf": "directory", "torch": "file.pt", "torch-dcp": "dcp", "safetensors": "file.safetensors"}
CASES_MAX = min(6, round(2 * draw.times()))  # of a family


def write_large(path):
    """Tensors of many sizes, so that some are cut into slabs and others share a job."""
    header, offset = {}, 0
    for i in range(40):
        rows = 1 + i * i * 3 % 700
        size = rows * 64 * 4
        header[f"layers.{i}.weight"] = {"dtype": "F32", "shape": [rows, 64], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pattern = b"".join(struct.pack("<f", value) for value in range(4096))
    path.write_bytes(struct.pack("<Q", len(text)) + text + (pattern * (offset // len(pattern) + 1))[:offset])


def good_cases(fixtures):
    """The largest good checkpoints of each family."""
    for family in sorted(p for p in fixtures.iterdir() if p.is_dir()):
        found = []
        for manifest in sorted(family.glob("*/manifest.json")):
            case = json.loads(manifest.read_text())
            if (case.get("expect") or {}).get("error") or (case.get("also") or {}).get("may_refuse") or not case.get("tensors"):
                continue
            path = manifest.parent / case["path"]
            size = sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*")) if f.is_file())
            found.append((-size, path))
        yield from (path for _, path in sorted(found)[:CASES_MAX])


class Check:
    def __init__(self, binary):
        self.binary, self.count, self.failed = os.path.abspath(binary), 0, 0
        self.environment = dict(os.environ, TSAN_OPTIONS="halt_on_error=1:exitcode=66:second_deadlock_stack=1")

    def __call__(self, name, *arguments, allowed=(0,)):
        done = subprocess.run([self.binary, *map(str, arguments), *OPTIONS], capture_output=True, text=True, errors="replace",
                              env=self.environment, timeout=300)
        raced = "ThreadSanitizer" in done.stderr
        good = done.returncode in allowed and not raced
        self.count += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.count} - {name}")
        if not good:
            text = done.stderr if raced else done.stderr[-2000:]
            print("\n".join(f"# {line}" for line in [f"exit {done.returncode}", *text.splitlines()]))
        return done.returncode

    def same(self, name, *arguments):
        """With any number of threads and any memory the output is the same to the last digit."""
        outputs = set()
        for threads, memory in (("1", "256MiB"), ("4", "1MiB"), ("3", "3MiB")):
            done = subprocess.run([self.binary, *map(str, arguments), "--threads", threads, "--memory", memory], capture_output=True,
                                  env=self.environment, timeout=300)
            outputs.add((done.returncode, done.stdout))
        self.count += 1
        self.failed += len(outputs) != 1
        print(f"{'ok' if len(outputs) == 1 else 'not ok'} {self.count} - {name}")


def run(check, source, work):
    label = source.name if source.name not in ("ckpt", "checkpoint") else source.parent.name
    check(f"{label}: hash", "hash", source, "--digest", "xxh3")
    check.same(f"{label}: stats", "stats", source, "--json")
    check(f"{label}: verify --deep", "verify", source, "--deep", allowed=(0, 1))
    for name, target_name in FORMATS.items():
        target = work / target_name
        # A checkpoint may hold what a format cannot: that is refused, not raced.
        layout = ["--layout", "ranks=3"] if name == "torch-dcp" else ["--max-shard-size", "300KB"] if name == "hf" else []
        status = check(f"{label}: convert to {name}", "convert", source, target, "--to", name, "--verify", *layout, allowed=(0, 5))
        if status == 0:
            check(f"{label}: diff with {name}", "diff", source, target, "--items", "ignore", allowed=(0, 1))
        shutil.rmtree(target, ignore_errors=True)
        target.unlink(missing_ok=True)
    target = work / "half"
    check(f"{label}: convert to half, resumable", "convert", source, target, "--to", "torch-dcp", "--dtype", "f16", "--resume",
          "--checksum", "sha256", allowed=(0, 5))
    shutil.rmtree(target, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", type=pathlib.Path, required=True)
    args = parser.parse_args()
    check = Check(args.bin)
    with tempfile.TemporaryDirectory(prefix="reshard-threads-") as name:
        work = pathlib.Path(name)
        write_large(work / "large.safetensors")
        run(check, work / "large.safetensors", work)
        for source in good_cases(args.fixtures):
            run(check, source, work)
    print(f"1..{check.count}")
    return 1 if check.failed else 0


sys.exit(main())
