#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package `gguf` writes files, and what reshard shows of them is what its reader and its dequantize give. Prints TAP; skips without it.

Drawn: files of every kind of blocks with any bytes in them, subnormal, infinite and undefined scales too, and of weights that the package
itself quantised; other types; metadata; alignments; byte orders; several files.
usage: gguf_live.py --bin PATH [--count N] [--seed N] [--fixtures FOLDER]
--fixtures makes the cases gguf-kinds, gguf-split and gguf-big of tests/fixtures below FOLDER/gguf, and nothing else.
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
    import gguf
    import numpy
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(0)

Kind = gguf.GGMLQuantizationType
# What dequantises without large tables, of which some are of kinds that files do not have.
BLOCKS = [Kind[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0",
                                  "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4")]
QUANTISED = [Kind[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")]  # by the package too
TURNED = {Kind.Q4_0: [0], Kind.Q8_0: [0], Kind.Q4_K: [0, 2], Kind.Q6_K: [208], Kind.MXFP4: [], Kind.NVFP4: []}  # gguf_convert_endian
PLAIN = {"F32": numpy.float32, "F16": numpy.float16, "F64": numpy.float64, "I8": numpy.int8, "I16": numpy.int16, "I32": numpy.int32,
         "I64": numpy.int64}


def digest(dtype, array):
    return dtype, list(array.shape), hashlib.sha256(numpy.ascontiguousarray(array).tobytes()).hexdigest()


def blocks_of(rng, kind, shape):
    """Blocks of such a tensor: any bytes, or what the package makes of weights."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in QUANTISED and rng.random() < 0.5:
        weights = numpy.random.default_rng(rng.randrange(1 << 30)).standard_normal(shape).astype(numpy.float32)
        return gguf.quants.quantize(weights, kind)
    raw = numpy.frombuffer(rng.randbytes(numpy.prod(shape) // elements * size), numpy.uint8)
    return raw.reshape(*shape[:-1], shape[-1] // elements * size)


def meaning(raw, kind):
    with numpy.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, kind)


def turn(raw, kind):
    """As a big-endian machine has them: its converter of byte orders swaps these."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    turned = raw.reshape(-1, size).copy()
    for half in TURNED[kind]:
        turned[:, [half, half + 1]] = turned[:, [half + 1, half]]
    return turned.reshape(raw.shape)


def add_blocks(rng, writer, name, kind, is_big):
    elements = gguf.GGML_QUANT_SIZES[kind][0]
    shape = [rng.randint(1, 4) for _ in range(rng.randint(0, 2))] + [elements * rng.randint(1, 4)]
    raw = blocks_of(rng, kind, shape)
    writer.add_tensor(name, turn(raw, kind) if is_big else raw, raw_dtype=kind)
    return digest("F32", meaning(raw, kind))


def add_plain(rng, writer, name, is_big):
    dtype = rng.choice([*PLAIN, "BF16"])
    shape = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
    if dtype == "BF16":
        raw = numpy.frombuffer(rng.randbytes(2 * int(numpy.prod(shape))), numpy.uint16).reshape(shape)
        writer.add_tensor(name, (raw.byteswap() if is_big else raw).view(numpy.uint8).reshape(*shape[:-1], -1), raw_dtype=Kind.BF16)
        return digest("BF16", raw)
    size = numpy.dtype(PLAIN[dtype]).itemsize * int(numpy.prod(shape))
    raw = numpy.frombuffer(rng.randbytes(size), PLAIN[dtype]).reshape(shape)
    writer.add_tensor(name, raw.copy())  # which it turns itself
    return digest(dtype, raw)


def add_items(rng, writer):
    """(items as JSON has them)"""
    items = {"general.architecture": "llama"}
    for number in range(rng.randint(0, 8)):
        key = f"x.{number}"
        kind, value = rng.choice([
            ("uint8", 255), ("int8", -128), ("uint16", 7), ("int16", -7), ("uint32", 2**32 - 1), ("int32", -2**31), ("uint64", 2**63 - 1),
            ("uint64", 2**64 - 1), ("int64", -2**63), ("float32", 0.5), ("float64", 1e300), ("bool", True), ("string", "caf\u00e9"),
            ("array", [1, 2, 3]), ("array", ["a", "", "\u00fc"]), ("array", [0.5, -1.0]), ("array", [True, False]),
            ("array", list(range(5000))), ("array", [str(n) for n in range(3000)])])
        getattr(writer, f"add_{kind}")(key, value)
        items[key] = value
    return items


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare(binary, path, wanted, items):
    done = subprocess.run([binary, "hash", "--json", path], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    found = {t["key"]: (t["dtype"], t["shape"], t["hash"]) for t in json.loads(done.stdout)["tensors"]}
    wrong = [f"{key!r}: {found.get(key)} instead of {wanted.get(key)}" for key in {*found, *wanted} if found.get(key) != wanted.get(key)]
    done = subprocess.run([binary, "ls", "--items", "--json", path], capture_output=True, text=True)
    seen = {item["key"]: item["value"] for item in json.loads(done.stdout)["items"]}
    wrong += [f"item {key!r}: {seen.get(key)!r} instead of {value!r}"[:300] for key, value in items.items() if seen.get(key) != value]
    return "; ".join(wrong[:3])


def draw(rng, folder, is_big=False, kinds=None):
    """(path, {name: digest}, items)"""
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG if is_big else gguf.GGUFEndian.LITTLE)
    alignment = rng.choice([8, 32, 32, 64, 1024])
    items = {}
    if alignment != 32:
        writer.add_custom_alignment(alignment)
        items["general.alignment"] = alignment
    items |= add_items(rng, writer)
    wanted = {}
    for number, kind in enumerate(kinds or [rng.choice([*(TURNED if is_big else BLOCKS), None]) for _ in range(rng.randint(0, 8))]):
        name = f"blk.{number}.{kind.name if kind else 'plain'}.weight"
        wanted[name] = add_blocks(rng, writer, name, kind, is_big) if kind else add_plain(rng, writer, name, is_big)
    write(writer)
    return path, wanted, items


def split(rng, folder):
    """A model of several files, as the package cuts one."""
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama", split_max_tensors=rng.randint(1, 3))
    items = add_items(rng, writer)
    wanted = {f"t.{number}.weight": add_plain(rng, writer, f"t.{number}.weight", False) for number in range(rng.randint(3, 9))}
    write(writer)
    return folder, wanted, items


def reads_back(path, wanted):
    """That the package itself reads what was drawn: its names and shapes."""
    tensors = gguf.GGUFReader(path).tensors
    found = {t.name: [int(n) for n in reversed(t.shape)] for t in tensors}
    return found == {name: shape for name, (_, shape, _) in wanted.items()}


def case(rng, number, binary, folder):
    if number % 5 == 4:
        path, wanted, items = split(rng, folder)
    else:
        path, wanted, items = draw(rng, folder, number % 5 == 3, BLOCKS if number % 5 == 0 else None)
        if not reads_back(path, wanted):
            return "the package does not read what it wrote"
    complaint = compare(binary, path, wanted, items)
    if complaint:
        return complaint
    done = subprocess.run([binary, "verify", "--deep", path], capture_output=True, text=True)
    return (done.stderr or done.stdout).strip() if done.returncode else None


def manifest(name, path, wanted, items, notes):
    kinds = {bool: "bool", int: "int", float: "float", str: "str", list: "list"}
    return {"case": name, "family": "gguf", "producer": {"gguf": "0.19.0"}, "command": "tests/live/gguf_live.py --fixtures", "path": path,
            "world": {"ranks": 1}, "notes": notes, "expect": {"error": None},
            "tensors": {key: {"dtype": dtype, "shape": shape, "sha256": sha256} for key, (dtype, shape, sha256) in wanted.items()},
            "items": {key: {"kind": kinds[type(value)], "value": value} for key, value in items.items()
                      if not isinstance(value, list) or len(value) < 100}}


def make_fixtures(top):
    for seed, name, notes in (
            (1, "gguf-kinds", ["all kinds of blocks, of random bytes and quantised; tensors: dequantised by gguf.quants"]),
            (2, "gguf-split", ["a model in several files, split by the package's writer"]),
            (3, "gguf-big", ["big-endian; blocks turned as the package's gguf_convert_endian does"])):
        rng, folder = random.Random(seed), top / "gguf" / name
        (folder / "ckpt").mkdir(parents=True)
        path, wanted, items = (split(rng, folder / "ckpt") if name == "gguf-split" else
                               draw(rng, folder / "ckpt", name == "gguf-big", list(TURNED) + [None] if name == "gguf-big" else BLOCKS))
        text = json.dumps(manifest(name, "ckpt" if path.is_dir() else "ckpt/model.gguf", wanted, items, notes), indent=1)
        (folder / "manifest.json").write_text(text + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fixtures", type=pathlib.Path)
    args = parser.parse_args()
    if args.fixtures:
        make_fixtures(args.fixtures)
        return
    print(f"1..{args.count}\n# seed {args.seed}")
    failed = 0
    for number in range(1, args.count + 1):
        with tempfile.TemporaryDirectory() as folder:
            complaint = case(random.Random(args.seed * 1000 + number), number, args.bin, pathlib.Path(folder))
        failed += complaint is not None
        print(f"ok {number}" if complaint is None else f"not ok {number} - {complaint[:500]}", flush=True)
    sys.exit(failed > 0)


main()
