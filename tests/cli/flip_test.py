#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One flipped bit anywhere: verify --deep tells it, or said before that no checksum covers it, or it means nothing. Prints TAP, a test a
case.

usage: flip_test.py --bin PATH --fixtures DIR [--flips N] [--seed N] [--case NAME]

Each case is a checkpoint whose values are under checksums: the sidecar's, those of zip members, of zarr codecs and of zstd frames, of
integrity.json. Bits are flipped one at a time, half of them in files chosen by size and half in files chosen alike, so that small ones get
theirs. A flip that verify does not notice must leave all that can be read as it was (`hash`, `ls --items`), or change only what `verify
--json` lists as uncovered.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess

import small_models

TENSORS = {"a.weight": [16, 8], "b.weight": [8, 8], "c.weight": [24, 4]}
ITEMS = "torch-file/torch-file-training"
MEGATRON = "megatron/megatron-dense-legacy-tp1"
SEALED = ["--checksum", "crc32c"]

# Name, source (None: a small model), options of convert (None: the fixture itself).
CASES = [
    ("sidecar of safetensors", None, ["--to", "safetensors", *SEALED]),
    ("sidecar of hf", None, ["--to", "hf", "--max-shard-size", "200", *SEALED]),
    ("sidecar of torch", ITEMS, ["--to", "torch", *SEALED]),
    ("sidecar of torch-dcp", ITEMS, ["--to", "torch-dcp", "--layout", "ranks=2", *SEALED]),
    ("sidecar of torch_dist", None, ["--to", "torch_dist", *SEALED]),
    ("sidecar of torch_dcp", None, ["--to", "torch_dcp", *SEALED]),
    ("sidecar of zarr", None, ["--to", "zarr", *SEALED]),
    ("sidecar of zarr 3", None, ["--to", "zarr", "-o", "zarr-format=3", *SEALED]),
    ("sidecar of Megatron's zarr", None, ["--to", "zarr", "-o", "flavour=megatron", *SEALED]),
    ("sidecar of megatron", MEGATRON, ["--to", "megatron", "--layout", "tp=2", *SEALED]),
    ("zip of torch", ITEMS, ["--to", "torch"]),
    ("blobs of torch-dcp", ITEMS, ["--to", "torch-dcp", "--layout", "ranks=2"]),
    ("blobs of torch_dist", None, ["--to", "torch_dist"]),
    ("zstd frames of zarr", None, ["--to", "zarr", "-o", "codec=zstd"]),
    ("zstd frames of zarr 3", None, ["--to", "zarr", "-o", "zarr-format=3", "-o", "codec=zstd"]),
    ("gzip of zarr 3", None, ["--to", "zarr", "-o", "zarr-format=3", "-o", "codec=gzip"]),
    ("zlib of zarr", None, ["--to", "zarr", "-o", "codec=zlib"]),
    ("torch's own zip", "torch-file/torch-file-plain", None),
    ("a zip with holes", "torch-file/torch-file-skip-data", None),
    ("torch's own legacy stream", "torch-file/torch-file-adamw-legacy", None),
    ("torch's own DCP", "torch-dcp/dcp-fsdp2-4", None),
    ("compressed DCP", "torch-dcp/dcp-zstd", None),
    ("torch's DCP of safetensors", "torch-dcp/dcp-safetensors", None),
    ("Megatron's rank files", MEGATRON, None),
    ("Megatron's torch_dist", "megatron/megatron-sem-plain", None),
    ("Megatron's integrity.json", "megatron/megatron-sem-integrity", None),
    ("codecs of zarr 2", "zarr/zarr2-codecs", None),
    ("codecs of zarr 3", "zarr/zarr3-codecs", None),
    ("shards of zarr 3", "zarr/zarr3-sharding", None),
]


class Flips:
    def __init__(self, binary, path, draw):
        self.binary, self.path, self.draw = binary, path, draw
        inside = sorted(p for p in path.rglob("*") if p.is_file() and p.stat().st_size) if path.is_dir() else [path]
        beside = path.with_name(path.name + ".reshard.json")
        self.files = inside + ([beside] if beside.exists() else [])
        self.sizes = [p.stat().st_size for p in self.files]
        done = self.run("verify", "--json", "--deep")
        assert done.returncode == 0, f"the whole one: exit {done.returncode}: {done.stdout[:300]}{done.stderr[:300]}"
        self.uncovered, self.findings = json.loads(done.stdout)["uncovered"], self.told(done)
        self.readable = self.read()
        self.noticed = self.meaningless = self.said = 0

    def run(self, verb, *options):
        return subprocess.run([self.binary, verb, *options, self.path], capture_output=True, text=True, errors="replace", timeout=60)

    def told(self, done):
        return [f for f in json.loads(done.stdout)["findings"] if f["severity"] != "note"]

    def read(self):
        """({key: dtype, shape and digest}, {item: what it shows})"""
        tensors, items = self.run("hash", "--json", "--digest", "xxh3"), self.run("ls", "--json", "--items")
        if tensors.returncode or items.returncode:
            return None
        found = json.loads(tensors.stdout)["tensors"]
        return ({t["key"]: (t["dtype"], tuple(t["shape"]), t["hash"]) for t in found},
                {i["key"]: {name: value for name, value in i.items() if name not in ("bytes",)} for i in json.loads(items.stdout)["items"]})

    def flip(self, file, offset, bit):
        with open(file, "r+b") as stream:
            stream.seek(offset)
            byte = stream.read(1)[0]
            stream.seek(offset)
            stream.write(bytes([byte ^ 1 << bit]))

    def one(self):
        number = self.draw.choices(range(len(self.files)), self.sizes if self.draw.random() < 0.5 else None)[0]
        file, offset, bit = self.files[number], self.draw.randrange(self.sizes[number]), self.draw.randrange(8)
        self.flip(file, offset, bit)
        try:
            done = self.run("verify", "--deep", "--json", "--threads", "1")
            assert 0 <= done.returncode <= 6, (f"{file.name}: byte {offset}, bit {bit}: verify ends with {done.returncode}: "
                                               f"{done.stderr[:300]}")
            if done.returncode or self.told(done) != self.findings:
                self.noticed += 1
                return
            complaint = self.judge(self.read())
            assert not complaint, f"{file.name}: byte {offset}, bit {bit}: verify says ok, and {complaint}"
        finally:
            self.flip(file, offset, bit)

    def judge(self, found):
        """What verify should have noticed; None if it need not."""
        if found is None:
            return "it cannot be read"
        if found == self.readable:
            self.meaningless += 1
            return None
        self.said += 1
        (tensors, items), (old_tensors, old_items) = found, self.readable
        listed = {key: value[:2] for key,
                  value in tensors.items()} != {key: value[:2] for key, value in old_tensors.items()} or items.keys() != old_items.keys()
        if listed and not self.uncovered["names"]:
            return "names, shapes or types differ"
        values = {key for key in tensors.keys() & old_tensors.keys() if tensors[key] != old_tensors[key]}
        if values - set(self.uncovered["keys"]) and not self.uncovered["names"]:
            return f"the values of {sorted(values)[:3]} differ"
        if values - set(self.uncovered["keys"]) and not any(tensors[key][:2] != old_tensors[key][:2] for key in values):
            return f"the values of {sorted(values)[:3]} differ"
        if items != old_items and not self.uncovered["items"] and not listed:
            return f"items differ: {[key for key in items if items[key] != old_items.get(key)][:3]}"
        return None


def fixture_path(fixtures, name):
    manifest = fixtures / name / "manifest.json"
    return fixtures / name / json.loads(manifest.read_text())["path"]


def run_case(shell, fixtures, case, count, seed):
    name, source, options = case
    target = shell.work / "target"
    if source is None:
        small_models.write(shell.work / "source.safetensors", TENSORS)
        source = shell.work / "source.safetensors"
    else:
        source = fixture_path(fixtures, source)
    if options is not None:
        shell("convert", source, target, *options, "--quiet")
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(source, target)
    flips = Flips(shell.binary, target, random.Random(f"{seed} {name}"))
    for _ in range(count):
        flips.one()
    if options is not None and "--checksum" in options:
        assert flips.said == 0 and flips.uncovered == {"tensors": 0, "bytes": 0, "items": 0, "names": False, "keys": []}, flips.uncovered
    assert flips.noticed + flips.meaningless + flips.said == count and flips.noticed
    return f"{flips.noticed} noticed, {flips.meaningless} change nothing, {flips.said} in what is said to be uncovered"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case")
    args = parser.parse_args()
    fixtures = pathlib.Path(args.fixtures).resolve()
    print(f"# seed {args.seed}, {args.flips} flips a case")
    wanted = [case for case in CASES if args.case in (None, case[0])]
    raise SystemExit(small_models.run(args.bin, [(case[0], lambda shell, case=case: run_case(shell, fixtures, case, args.flips, args.seed))
                                                 for case in wanted]))


main()
