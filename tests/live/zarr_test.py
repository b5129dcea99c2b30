#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zarr-python and reshard read and write each other's stores. Prints TAP; skips without zarr (2 or 3) and numpy.

Arrays of random shapes, chunks, types and codecs are written by zarr-python, hashed by reshard, converted into other layouts, and read back
by zarr-python. usage: zarr_test.py --bin PATH [--count N] [--share N] [--seed N]
"""
import argparse
import hashlib
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy
    import zarr
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(0)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402

V3 = int(zarr.__version__.split(".")[0]) >= 3
TYPES = ["bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def content(rng, shape, dtype):
    generator = numpy.random.default_rng(rng.randrange(1 << 30))
    array = generator.integers(0, 100, shape) if rng.random() < 0.7 else generator.standard_normal(shape)
    return numpy.asarray(array).astype(dtype)


def make_v2(rng, root, key, array, chunks):
    import numcodecs
    codec = rng.choice([None, numcodecs.Zlib(1), numcodecs.GZip(1), numcodecs.Zstd(3), numcodecs.LZ4(), numcodecs.BZ2(1),
                        *[numcodecs.Blosc(name, 5, shuffle) for name in ("lz4", "zstd", "blosclz", "zlib") for shuffle in (0, 1, 2)]])
    filters = [numcodecs.Delta(array.dtype)] if array.dtype.kind in "iu" and array.dtype.byteorder != ">" and rng.random() < 0.3 else []
    while len(filters) < 4 and rng.random() < 0.6:  # bytes that are looked into, and bytes that are made
        whole = all(isinstance(f, (numcodecs.Delta, numcodecs.Shuffle)) for f in filters)  # elements, which Shuffle takes alone
        filters.append(rng.choice([numcodecs.CRC32(), numcodecs.Adler32(), numcodecs.Zlib(1),
                                   *[numcodecs.Shuffle(array.dtype.itemsize)] * 2 * whole]))
    filters = filters or None
    more = {"dimension_separator": rng.choice("./")}
    if V3:
        more = {"chunk_key_encoding": {"name": "v2", "separator": rng.choice("./")}, "compressors": codec, "filters": filters}
    else:
        more.update(compressor=codec, filters=filters)
    target = root.create_array(key, shape=array.shape, chunks=chunks, dtype=array.dtype, order=rng.choice("CF"), **more) if V3 else \
        root.create_dataset(key, shape=array.shape, chunks=chunks, dtype=array.dtype, order=rng.choice("CF"), **more)
    target[...] = array


def make_v3(rng, root, key, array, chunks):
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
    codecs = [ZstdCodec(level=1), GzipCodec(level=1), BloscCodec(cname="zstd"), Crc32cCodec()]
    packed = [tuple(rng.choice(codecs) for _ in range(rng.choice([0, 1, 1, 2, 3]))) for _ in range(2)]
    shards = tuple(c * rng.randint(1, 3) for c in chunks) if rng.random() < 0.4 and array.ndim else None
    if shards and rng.random() < 0.5:  # whole shards are compressed, too
        inner = ShardingCodec(chunk_shape=chunks, codecs=[BytesCodec(), *packed[0]])
        root.create_array(key, shape=array.shape, chunks=shards, dtype=array.dtype, serializer=inner, compressors=packed[1])[...] = array
    else:
        root.create_array(key, shape=array.shape, chunks=chunks, shards=shards, dtype=array.dtype, compressors=packed[0])[...] = array


def digests(binary, path, *more):
    done = subprocess.run([binary, "hash", "--json", path, *more], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    return {tensor["key"]: tensor["hash"] for tensor in json.loads(done.stdout)["tensors"]}


def read(path, keys):
    root = zarr.open_group(str(path), mode="r")
    found = {}
    for key in keys:
        array = numpy.asarray(root[key][...])
        found[key] = hashlib.sha256(numpy.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()).hexdigest()
    return found


def case(rng, binary, folder, format_):
    store, wanted = folder / "store", {}
    root = zarr.open_group(str(store), mode="w", **({"zarr_format": format_} if V3 else {}))
    for number in range(rng.randint(1, 6)):
        shape = tuple(rng.randint(1, 40) for _ in range(rng.randint(0, 3)))
        chunks = tuple(rng.randint(1, n + 3) for n in shape)
        dtype = numpy.dtype(rng.choice(TYPES))
        dtype = dtype.newbyteorder(">") if format_ == 2 and rng.random() < 0.3 else dtype
        array, key = content(rng, shape, dtype), rng.choice(["a", "g/b", "g/h/w.x"]) + str(number)
        (make_v3 if format_ == 3 else make_v2)(rng, root, key, array, chunks)
        wanted[key] = hashlib.sha256(numpy.ascontiguousarray(array.astype(dtype.newbyteorder("<"))).tobytes()).hexdigest()
    if digests(binary, store) != wanted:
        return f"reshard reads {digests(binary, store)}, expected {wanted}"
    for options in (["-o", "chunks=7,3"], ["-o", "codec=blosc:zstd", "-o", "chunks=5"],
                    ["-o", "zarr-format=3", "-o", "codec=zstd", "-o", "chunks=9,2,2"]):
        if "zarr-format=3" in options and not V3:
            continue
        target = folder / "target"
        done = subprocess.run([binary, "convert", store, target, "--to", "zarr", "--overwrite", "--verify", "--quiet", *options],
                              capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip()
        if read(target, wanted) != wanted:
            return f"zarr-python reads other bytes after {options}"
    return None


def appended(rng, binary, folder, format_):
    """A zip file in which attributes and chunks were written again: zarr-python appends members, and reads the last of each name."""
    warnings.simplefilter("ignore", UserWarning)  # zipfile says of each name that it is there twice
    path = folder / "store.zip"
    with zarr.storage.ZipStore(str(path), mode="w") as store:
        root = zarr.open_group(store, mode="w", **({"zarr_format": format_} if V3 else {}))
        for key in ("w", "W"):
            array = root.create_array(key, shape=(4, 4), chunks=(2, 4), dtype="f4")
            array[:] = 1
            array.attrs["step"] = 1
            array[:] = content(rng, (4, 4), "f4")
        root.attrs["x"] = 1
        root.attrs["x"] = 2
    with zarr.storage.ZipStore(str(path), mode="r") as store:
        root = zarr.open_group(store, mode="r")
        wanted = {key: hashlib.sha256(numpy.ascontiguousarray(root[key][...]).tobytes()).hexdigest() for key in "wW"}
    if digests(binary, path) != wanted:
        return f"reshard reads {digests(binary, path)}, expected {wanted}"
    done = subprocess.run([binary, "convert", path, folder / "target", "--to", "zarr", "--verify"], capture_output=True, text=True)
    if done.returncode or "were written anew" not in subprocess.run([binary, "inspect", path], capture_output=True, text=True).stdout:
        return done.stderr.strip() or "nothing says that members were written anew"
    if zarr.open_group(str(folder / "target"), mode="r").attrs["x"] != 2 or read(folder / "target", wanted) != wanted:
        return "what was written last did not come over"
    return None


def null_fill(rng, binary, folder, format_):
    """Format 2 without a fill value: chunks of zeros are not stored, which one that was lost looks like. --lenient takes them for zeros."""
    root = zarr.open_group(str(folder / "store"), mode="w", zarr_format=2)
    for dtype in ("f4", "<i8", "bool", ">f2"):
        array = root.create_array(dtype.strip("<>"), shape=(4, 4), chunks=(1, 4), dtype=dtype, fill_value=None)
        array[:] = 0
        array[0] = 1
        assert len(list((folder / "store" / dtype.strip("<>")).glob("[0-9]*"))) == 1
    wanted = read(folder / "store", ("f4", "i8", "bool", "f2"))
    strict = subprocess.run([binary, "hash", folder / "store"], capture_output=True, text=True)
    if strict.returncode != 4 or "--lenient takes it for one" not in strict.stderr:
        return f"exit {strict.returncode}: {strict.stderr}"
    found = digests(binary, folder / "store", "--lenient")
    return None if found == wanted else f"reshard reads {found}, expected {wanted}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    draw.add_share(parser, 0.4)
    args = parser.parse_args()
    count = math.ceil(args.count * args.share)
    more = [(appended, 2), (appended, 3), (null_fill, 2)] if V3 else []
    print(f"1..{count + len(more)}\n# zarr {zarr.__version__}, seed {args.seed}")
    failed = 0
    drawn = [(case, 3 if V3 and number % 2 else 2) for number in range(1, count + 1)]
    for number, (what, format_) in enumerate(drawn + more, 1):
        with tempfile.TemporaryDirectory() as folder:
            complaint = what(random.Random(args.seed * 1000 + number), args.bin, pathlib.Path(folder), format_)
        failed += complaint is not None
        print(f"ok {number}" if complaint is None else f"not ok {number} - {complaint[:300]}", flush=True)
    sys.exit(failed > 0)


main()
