#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""100,000 tensors end to end, in bounded memory: every digest is that of the source after each of three formats. Prints TAP.

usage: sizes_test.py --bin RESHARD
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

RSS_KIB_MAX = 384 << 10  # the value graph of a torch pickle takes most of it
MANY = 100_000


class Run:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work

    def __call__(self, *words):
        """Standard output. The memory of the command must stay in bounds."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen([self.binary, *map(str, words)], cwd=self.work, stdout=out, stderr=errors)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            assert process.returncode == 0, f"{words}: exit {process.returncode}: {errors.read()[:300]}"
            assert used.ru_maxrss <= RSS_KIB_MAX, f"{words}: {used.ru_maxrss} KiB of memory, at most {RSS_KIB_MAX}"
            out.seek(0)
            return out.read()


def many_tensors(run):
    header = {f"layer.{i}.weight": {"dtype": "U8", "shape": [2], "data_offsets": [2 * i, 2 * i + 2]} for i in range(MANY)}
    text = json.dumps(header).encode()
    data = b"".join(struct.pack("<H", i % 65521) for i in range(MANY))
    (run.work / "many.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    wanted = run("hash", "many.safetensors", "--digest", "xxh3")
    for number, (to, *options) in enumerate((("torch",), ("torch-dcp", "--layout", "ranks=4"), ("hf", "--max-shard-size", "50KB"))):
        run("convert", "many.safetensors" if number == 0 else f"many{number - 1}", f"many{number}", "--to", to, "--no-sync", *options)
        assert run("hash", f"many{number}", "--digest", "xxh3") == wanted, f"{to}: digests"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reshard-sizes-") as folder:
        try:
            many_tensors(Run(str(args.bin.resolve()), pathlib.Path(folder)))
            print("ok 1 - 100,000 tensors through three formats\n1..1")
            return 0
        except AssertionError as problem:
            print(f"not ok 1 - 100,000 tensors through three formats\n# {str(problem)[:400]}\n1..1")
            return 1


sys.exit(main())
