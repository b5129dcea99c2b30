#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NumPy writes archives and folders, which reshard reads, and loads what reshard makes of them. Prints TAP; skips without NumPy.

Drawn: types (bfloat16 of ml_dtypes where that is there), shapes, orders, byte orders, header versions, texts, objects, deflated or not.
usage: npz_test.py --bin PATH [--count N] [--seed N]
"""
import argparse
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import numpy
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(0)
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

TYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def array_of(rng):
    generator = numpy.random.default_rng(rng.randrange(1 << 30))
    shape = [rng.randint(0 if rng.random() < 0.1 else 1, 7) for _ in range(rng.randint(0, 4))]
    kind = rng.choice(TYPES + ["bfloat16"] * bool(ml_dtypes))
    array = numpy.asarray(generator.standard_normal(shape) * 50)
    array = array.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind, order=rng.choice("CF"))
    return array.astype(array.dtype.newbyteorder(">")) if rng.random() < 0.3 and kind != "bfloat16" else array


def digest(array):
    order = array.dtype.newbyteorder("<") if array.dtype.kind != "V" else array.dtype
    return hashlib.sha256(numpy.ascontiguousarray(array).astype(order).tobytes()).hexdigest()


def said(binary, *words):
    done = subprocess.run([binary, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return json.loads(done.stdout) if "--json" in words else done.stdout


def case(rng, binary, folder):
    names = ["a", "A", "layer/weight.", "odd key ", "ü", "x.npy."]
    arrays = {rng.choice(names) + str(number): array_of(rng) for number in range(rng.choice([1, 3, 30]))}
    values = {"text": numpy.array(["é", "\U0001F600x"]), "object": numpy.array({"lr": 0.1, "n": [1, None]}, dtype=object),
              "bytes": numpy.array(b"xy")}
    paths = [folder / "a.npz", folder / "arrays"]
    rng.choice([numpy.savez, numpy.savez_compressed])(paths[0], **arrays, **values)
    for key, array in {**arrays, **values}.items():
        path = paths[1] / f"{key}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            numpy.lib.format.write_array(file, array, version=rng.choice([(1, 0), (2, 0), (3, 0)]))
    wanted = {key: digest(array) for key, array in arrays.items()}
    for path in paths:
        found = {tensor["key"]: tensor["hash"] for tensor in said(binary, "hash", "--json", path)["tensors"]}
        if found != wanted:
            return f"{path.name}: {[key for key in {*found, *wanted} if found.get(key) != wanted.get(key)][:3]} differ"
        items = {item["key"]: item["value"] for item in said(binary, "ls", "--items", "--json", path)["items"] if item["key"] in values}
        if items != {"text": ["é", "\U0001F600x"], "object": {"lr": 0.1, "n": [1, None]}, "bytes": {"__bytes__": "7879"}}:
            return f"{path.name}: items are {items}"
    plain = {key: array for key, array in arrays.items() if array.dtype.kind != "V"}
    if not plain:
        return None
    words = [word for key in arrays if key not in plain for word in ("--exclude", key)]
    said(binary, "convert", paths[1], folder / "b.npz", "--to", "npz", "--verify", "--quiet", *words)
    said(binary, "convert", paths[0], folder / "b", "--to", "npy", "--verify", "--quiet", *words)
    with numpy.load(folder / "b.npz", allow_pickle=False) as archive:
        loaded = {key: archive[key] for key in archive.files}
    one_by_one = {key: numpy.load(folder / "b" / f"{key}.npy", allow_pickle=False) for key in plain}
    for back in loaded, one_by_one:
        if back.keys() != plain.keys():
            return f"keys: {sorted(back)} for {sorted(plain)}"
        for key, array in plain.items():
            if back[key].dtype != array.dtype.newbyteorder("<") or back[key].shape != array.shape or digest(back[key]) != wanted[key]:
                return f"'{key}' comes back as {back[key].dtype} {back[key].shape}, was {array.dtype} {array.shape}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"1..{args.count}\n# seed {args.seed}")
    failed = 0
    for number in range(1, args.count + 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                complaint = case(random.Random(args.seed * 1000 + number), args.bin, pathlib.Path(folder))
            except ValueError as problem:
                complaint = str(problem)
        failed += complaint is not None
        print(f"ok {number}" if complaint is None else f"not ok {number} - {complaint[:500]}", flush=True)
    sys.exit(failed > 0)


main()
