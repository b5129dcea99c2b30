#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`reshard stats` against numpy, in float64: every type that safetensors and numpy share, bfloat16, special values; prints TAP.

usage: stats_test.py --bin PATH
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

NAMES = {"f4": "F32", "f8": "F64", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u1": "U8", "bf": "BF16"}
COUNT = 70001  # no whole number of blocks


def values_of(kind, level, generator):
    if kind[0] in "iu":
        return generator.integers(0, 100, COUNT).astype(kind)
    values = (generator.standard_normal(COUNT) * 2.0**level).astype("f4")
    values[generator.integers(0, COUNT, 30)] = 0
    if level:
        values[generator.integers(0, COUNT, 4)] = [np.nan, np.inf, -np.inf, 1e-6]
    if kind == "bf":
        return (values.view("u4") >> 16).astype("u2")
    return values.astype(kind)


def as_doubles(kind, stored):
    return (stored.astype("u4") << 16).view("f4").astype("f8") if kind == "bf" else stored.astype("f8")


def write(path, tensors):
    header, offset = {}, 0
    for key, (kind, stored) in tensors.items():
        header[key] = {"dtype": NAMES[kind], "shape": [len(stored)], "data_offsets": [offset, offset + stored.nbytes]}
        offset += stored.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(stored.tobytes() for _, stored in tensors.values()))


def wrong(found, kind, stored):
    values = as_doubles(kind, stored)
    finite = values[np.isfinite(values)]
    smallest = {"f4": 2.0**-126, "bf": 2.0**-126, "f8": 2.0**-1022, "f2": 2.0**-14}.get(kind, 0)
    exact = {"nan": int(np.isnan(values).sum()), "inf": int(np.isinf(values).sum()), "zeros": int((values == 0).sum()), "min": finite.min(),
             "max": finite.max(), "subnormal": int(((np.abs(finite) < smallest) & (finite != 0)).sum()), "numbers": values.size}
    near = {"mean": (finite.mean(), finite.std()), "std": (finite.std(), finite.std()),
            "norm": (np.sqrt((finite**2).sum()), np.sqrt((finite**2).sum()))}
    bad = [f"{name}: {found[name]} instead of {value}" for name, value in exact.items() if found[name] != value]
    bad += [f"{name}: {found[name]} instead of {value}" for name, (value, scale) in near.items() if abs(found[name] - value) > 1e-6 * scale]
    exponents = np.floor(np.log2(np.abs(finite[finite != 0]))).astype(int)
    for sign in ("negative", "positive"):
        chosen = exponents[(finite[finite != 0] > 0) == (sign == "positive")]
        first = found["histogram"]["exponent"]
        counted = {first + i: n for i, n in enumerate(found["histogram"][sign]) if n}
        if kind != "f8" and counted != {int(e): int((chosen == e).sum()) for e in np.unique(chosen)}:
            bad.append(f"histogram of {sign} numbers")
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    generator = np.random.default_rng(7)
    tensors = {f"{kind}.{level}": (kind, values_of(kind, level, generator)) for kind in NAMES for level in (0, -9, 5)}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a.safetensors"
        write(path, tensors)
        printed = subprocess.run([args.bin, "stats", "--json", path], check=True, capture_output=True).stdout
        found = {t["key"]: t for t in json.loads(printed)["tensors"]}
    for number, (key, (kind, stored)) in enumerate(tensors.items(), 1):
        bad = wrong(found[key], kind, stored)
        failed += bool(bad)
        print(f"{'not ok' if bad else 'ok'} {number} - {key}", *[f"# {line}" for line in bad], sep="\n")
    print(f"1..{len(tensors)}")
    return 1 if failed else 0


sys.exit(main())
