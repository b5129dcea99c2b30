#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One flipped bit of payload is found: diff names the tensor and the flat index of the element, and exits 1. Prints TAP, a test a case.

usage: diff_test.py --bin PATH --root DIR [--root DIR]... [--share N] [--seed N]

Each good fixture that is drawn is compared with copies of it of which one bit differs: with its conversion to safetensors, where it has
one (so that each family is read against another), and with a copy of its own files, where the bytes of a tensor can be found in them.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import draw

FAMILIES = ("safetensors", "torch-dcp", "torch-file", "megatron")
COPIED_BYTES_MAX = 8 << 20
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "I16": 2,
         "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8, "C128": 16}


class Case:
    def __init__(self, binary, path, work):
        self.binary, self.path, self.work = binary, path, work

    def run(self, *arguments):
        return subprocess.run([self.binary, *map(str, arguments)], capture_output=True, timeout=120, cwd=self.work)

    def listing(self, path):
        done = self.run("ls", "--json", "--chunks", path)
        return json.loads(done.stdout)["tensors"] if done.returncode == 0 else []

    def must_find(self, other, key, index, tied=False):
        done = self.run("diff", "--json", "--items", "ignore", self.path, other)
        assert done.returncode == 1, f"{key!r}[{index}]: exit {done.returncode}: {done.stderr.decode(errors='replace')[:200]}"
        found = json.loads(done.stdout)["findings"]
        if tied and found and "megatron" in self.path.parts and not any(f["key"] == key for f in found):
            # State that is stored by bucket, and grouped experts, are compared by parameter, under names of their own.
            assert all(f["kind"] == "values" and f["count"] == 1 for f in found), f"{key!r}[{index}]: {found[:3]}"
            return
        values = [f for f in found if f["kind"] == "values" and f["key"] == key]
        assert values and values[0]["index"] == index and values[0]["count"] == 1, f"{key!r}[{index}]: {found[:3]}"
        assert tied or [f["kind"] for f in found if f["kind"] != "cause"] == ["values"], f"{key!r}[{index}]: also {found[:3]}"


def flip(path, offset, bit):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def bit_for(dtype, chance):
    return 0 if dtype == "BOOL" else chance.randrange(8)


def converted(case, chance):
    """One bit of the checkpoint's conversion to safetensors. None if there is no such conversion."""
    target = case.work / "target.safetensors"
    done = case.run("convert", case.path, target, "--to", "safetensors", "--items", "drop", "--quiet")
    if done.returncode:
        return None
    with open(target, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size).decode("utf-8"))
    tensors = [(key, t) for key, t in header.items() if key != "__metadata__" and t["data_offsets"][0] < t["data_offsets"][1]
               and t["dtype"] in SIZES]
    known = {t["key"] for t in case.listing(case.path)}
    tensors = [(key, t) for key, t in tensors if key in known]
    if not tensors:
        return None
    key, tensor = chance.choice(tensors)
    begin, end = tensor["data_offsets"]
    at = chance.randrange(end - begin)
    flip(target, 8 + size + begin + at, bit_for(tensor["dtype"], chance))
    case.must_find(target, key, at // SIZES[tensor["dtype"]])
    return f"{key!r}[{at // SIZES[tensor['dtype']]}] of the conversion"


def flat_index(shape, start, extent, element):
    """Index in the tensor of an element of the box."""
    index, stride = 0, 1
    for axis in reversed(range(len(shape))):
        index += (start[axis] + element % extent[axis]) * stride
        element //= extent[axis]
        stride *= shape[axis]
    return index


def can_be_typed(key):
    """As a word of a command."""
    return re.match("[^-\0\ud800-\udfff][^\0\ud800-\udfff]*$", key) is not None


def copied(case, chance):
    """One bit of a copy of the files, in the first chunk, by lot, whose bytes stand in its file exactly once."""
    size = sum(f.stat().st_size for f in case.path.rglob("*") if f.is_file()) if case.path.is_dir() else case.path.stat().st_size
    chunks = [(t, c) for t in case.listing(case.path) for c in t.get("chunks", ()) if t["dtype"] in SIZES and not c.get("encoding")
              and "flat" not in c]
    keys = [t["key"] for t, _ in chunks]
    if size > COPIED_BYTES_MAX:
        return None
    for tensor, chunk in chance.sample(chunks, min(len(chunks), 20)):
        key, start, extent = tensor["key"], chunk["start"], chunk["extent"]
        replicas = [c for t, c in chunks if t["key"] == key and c["replica"]]
        # What lies between the parameters of a bucket is nobody's state.
        if chunk["bytes"] == 0 or "optimizer.distributed." in key or replicas or "path" in tensor or not can_be_typed(key):
            continue
        words = ",".join(f"{s}:{s + e}" for s, e in zip(start, extent))
        value = case.run("cat", "--as", "raw", *(["--slice", words] if words else []), case.path, key).stdout
        file = case.path / chunk["file"] if case.path.is_dir() else case.path
        area = file.read_bytes()[chunk["offset"]:chunk["offset"] + chunk["bytes"]]
        if not value or area.count(value) != 1:
            continue
        target = case.work / "copy"
        (shutil.copytree if case.path.is_dir() else shutil.copy)(case.path, target)
        at = chance.randrange(len(value))
        flip(target / chunk["file"] if case.path.is_dir() else target, chunk["offset"] + area.index(value) + at,
             bit_for(tensor["dtype"], chance))
        index = flat_index(tensor["shape"], start, extent, at // SIZES[tensor["dtype"]])
        case.must_find(target, key, index, tied=True)
        return f"{key!r}[{index}] of a copy"
    return None


def load_cases(roots):
    seen = {}
    for root in roots:
        for manifest in sorted(pathlib.Path(root).glob("*/*/manifest.json")):
            case = json.loads(manifest.read_text())
            name = case["case"]
            if case.get("family") in FAMILIES and name not in seen and not name.startswith(("bad-", "odd-")):
                seen[name] = manifest.parent / case["path"]
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", action="append", required=True)
    draw.add_options(parser, 0.3)
    args = parser.parse_args()
    cases = draw.Draw(args).of(load_cases(args.root).items())
    print(f"1..{len(cases)}")
    for number, (name, path) in enumerate(cases, 1):
        chance = random.Random(f"{args.seed} {name}")
        with tempfile.TemporaryDirectory(prefix="reshard-diff-") as folder:
            case = Case(os.path.abspath(args.bin), path.resolve(), pathlib.Path(folder))
            try:
                done = [text for text in (converted(case, chance), copied(case, chance)) if text]
                verdict = "ok"
            except AssertionError as problem:
                done, verdict = [str(problem)], "not ok"
        print(f"{verdict} {number} - {name}{'' if done else ' # SKIP no payload that can be changed'}")
        for text in done:
            print(f"# {text}", flush=True)


main()
