#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tensorstore writes arrays into OCDBT stores, as Orbax does, and reshard reads them. Prints TAP; skips without tensorstore and numpy.

Drawn: types, shapes, chunks, formats 2 and 3, sharded or not, how much of a value lies in nodes, how large nodes are (trees of several
heights), compression, single and numbered manifests, several commits, and arrays that are overwritten or deleted again.
usage: ocdbt_test.py --bin PATH [--count N] [--seed N]
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
    import ml_dtypes
    import numpy
    import tensorstore
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(0)

TYPES = {"bool": "|b1", "int8": "|i1", "uint8": "|u1", "int32": "<i4", "int64": "<i8", "float16": "<f2", "float32": "<f4", "float64":
         "<f8", "bfloat16": "bfloat16"}


def content(rng, shape, dtype):
    generator = numpy.random.default_rng(rng.randrange(1 << 30))
    array = generator.integers(0, 100, shape) if rng.random() < 0.7 else generator.standard_normal(shape)
    return numpy.asarray(array).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def kvstore_of(rng, folder):
    config = {"max_inline_value_bytes": rng.choice([0, 30, 100, 1024]), "max_decoded_node_bytes": rng.choice([200, 500, 3000, 100_000_000]),
              "compression": rng.choice([None, {"id": "zstd", "level": 0}, {"id": "zstd", "level": 9}]),
              "version_tree_arity_log2": rng.choice([1, 4]), "manifest_kind": rng.choice(["single", "single", "numbered"])}
    return {"driver": "ocdbt", "base": {"driver": "file", "path": str(folder) + "/"}, "config": config}


def spec_of(rng, kvstore, key, shape, dtype, chunks):
    store = {**kvstore, "path": key + "/"}
    if rng.random() < 0.5:
        metadata = {"shape": shape, "chunks": chunks, "dtype": TYPES[dtype],
                    "order": rng.choice("CF") if len(shape) > 1 else "C",
                    "compressor": rng.choice([None, {"id": "zstd", "level": 1}, {"id": "zlib", "level": 1}])}
        return {"driver": "zarr", "kvstore": store, "metadata": metadata}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}} if dtype not in ("bool", "int8", "uint8") else {"name": "bytes"}]
    codecs += rng.choice([[], [{"name": "zstd", "configuration": {"level": 3}}]])
    if rng.random() < 0.6 and shape:
        codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": chunks, "codecs": codecs}}]
        chunks = [c * rng.randint(1, 2) for c in chunks]
    return {"driver": "zarr3", "kvstore": store, "metadata": {
        "shape": shape, "data_type": dtype, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}}, "codecs": codecs}}


def case(rng, binary, folder):
    kvstore = kvstore_of(rng, folder)
    wanted = {}
    for number in range(rng.choice([1, 3, 10, 40])):
        shape = [rng.randint(1, 12) for _ in range(rng.randint(0, 3))]
        chunks = [rng.randint(1, n + 2) for n in shape]
        dtype = rng.choice(list(TYPES))
        key = rng.choice(["a", "params.dense.kernel", "odd.key/with slash", "ü"]) + str(number)
        array = content(rng, shape, dtype)
        store = tensorstore.open(spec_of(rng, kvstore, key, shape, dtype, chunks), create=True).result()
        if array.size:
            store.write(numpy.zeros_like(array)).result() if rng.random() < 0.2 else None
            store.write(array).result()
        if rng.random() < 0.1:
            bare = tensorstore.KvStore.open(kvstore).result()
            bare.delete_range(tensorstore.KvStore.KeyRange(key + "/", key + "0")).result()
            continue
        wanted[key] = hashlib.sha256(numpy.ascontiguousarray(array).tobytes()).hexdigest()
    done = subprocess.run([binary, "hash", "--json", folder], capture_output=True, text=True)
    if done.returncode:
        return f"{kvstore['config']}: {done.stderr.strip()}"
    found = {tensor["key"]: tensor["hash"] for tensor in json.loads(done.stdout)["tensors"]}
    if found != wanted:
        keys = [key for key in {*found, *wanted} if found.get(key) != wanted.get(key)]
        return f"{kvstore['config']}: {len(keys)} of {len(wanted)} arrays differ, such as {keys[:3]}"
    done = subprocess.run([binary, "verify", folder], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"1..{args.count}\n# seed {args.seed}")
    failed = 0
    for number in range(1, args.count + 1):
        with tempfile.TemporaryDirectory() as folder:
            complaint = case(random.Random(args.seed * 1000 + number), args.bin, pathlib.Path(folder))
        failed += complaint is not None
        print(f"ok {number}" if complaint is None else f"not ok {number} - {complaint[:500]}", flush=True)
    sys.exit(failed > 0)


main()
