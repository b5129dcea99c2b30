#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of conversions stays within --memory and what the program itself takes, for every format, written and read. Prints TAP.

usage: memory_test.py --bin PATH [--only NAME]

The tensors are 96 MiB, six times the budget: a tensor that is held as a whole, or a file, shows. Files are read and written, not mapped, so
that the peak of resident memory, which the system keeps (VmHWM), is what the command has allocated and touched.
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

MIB = 1 << 20
BUDGET, PROGRAM = 16 * MIB, 14 * MIB  # PROGRAM: code, libraries, catalogs, stacks; 11 MiB as measured
TENSORS, ROWS, COLUMNS = 6, 2048, 2048
ADDED = {"torch-dcp": ["--layout", "ranks=3"], "hf": ["--max-shard-size", "40MiB"]}
COMPRESSED = ["-o", "codec=zstd", "-o", "chunks=512"]


def write_model(path):
    """Parameters of a Megatron layer, whose names every format takes. Their bytes are a pattern that casts to anything."""
    size, entries = 4 * ROWS * COLUMNS, {}
    for i in range(TENSORS):
        entries[f"decoder.layers.{i}.mlp.linear_fc1.weight"] = {"dtype": "F32", "shape": [ROWS, COLUMNS],
                                                                "data_offsets": [i * size, (i + 1) * size]}
    header = json.dumps(entries).encode()
    block = struct.pack("<262144f", *(float(n % 1021) for n in range(262144)))
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        for _ in range(TENSORS * size // len(block)):
            out.write(block)


class Measure:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work

    def __call__(self, *words):
        """Peak of resident memory of a run, which must succeed."""
        with tempfile.TemporaryFile() as said:
            child = subprocess.Popen([self.binary, *map(str, words), "--threads", "6", "--io", "buffered", "--memory", str(BUDGET)],
                                     stdout=subprocess.DEVNULL, stderr=said, cwd=self.work)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            assert child.returncode == 0, f"{' '.join(map(str, words))}: {said.read(400).decode(errors='replace')}"
        return usage.ru_maxrss * 1024

    def convert(self, source, target, *more):
        path = self.work / target
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        return self("convert", source, target, *more, "--no-sync", "--quiet")


def peaks(measure, name, options):
    """What is run, and its peak."""
    yield f"to {name}", measure.convert("model.safetensors", "whole", "--to", name, *options)
    yield f"from {name}", measure.convert("whole", "back.safetensors", "--to", "safetensors")
    yield f"hash of {name}", measure("hash", "whole")
    yield f"from {name} as bf16", measure.convert("whole", "back.safetensors", "--to", "safetensors", "--dtype", "bf16")
    half = "f16" if name in ("npz", "npy") else "bf16"  # NumPy has no other
    yield f"to {name} as {half}", measure.convert("model.safetensors", "whole", "--to", name, "--dtype", half, *options)


def formats(binary):
    listed = json.loads(subprocess.run([binary, "formats", "--json"], capture_output=True, check=True).stdout)["formats"]
    for entry in listed:
        if entry["writes"]:
            yield entry["name"], entry["name"], ADDED.get(entry["name"], [])
    yield "zarr, compressed", "zarr", COMPRESSED


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    binary, number, failed = str(pathlib.Path(args.bin).resolve()), 0, 0
    with tempfile.TemporaryDirectory(prefix="reshard-memory-") as folder:
        measure = Measure(binary, pathlib.Path(folder))
        write_model(measure.work / "model.safetensors")
        for what, name, options in formats(binary):
            if args.only not in what:
                continue
            number += 1
            try:
                found = dict(peaks(measure, name, options))
                complaints = [f"{run}: {peak / MIB:.1f} MiB" for run, peak in found.items() if peak > BUDGET + PROGRAM]
                shown = f"{max(found.values()) / MIB:.1f} MiB at most"
            except AssertionError as problem:
                complaints, shown = [str(problem)], "fails"
            failed += bool(complaints)
            print(f"{'not ok' if complaints else 'ok'} {number} - {what}: {shown}", flush=True)
            for line in complaints:
                print(f"# {line}", flush=True)
    print(f"1..{number}")
    return 1 if failed or not number else 0


if __name__ == "__main__":
    sys.exit(main())
