#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF: drawn files of either version and byte order, laid out here by the description of the format, read back exactly; blocks against
Python's own arithmetic; large tensors in pieces; metadata of every kind, late values and hostile ones; models in several files; and
everything that can be wrong in one. Prints TAP.

usage: gguf_test.py --bin PATH [--count N] [--seed N]
fixtures_test.py compares what the package `gguf` wrote, of every kind of blocks; tests/live/gguf_test.py asks the package itself.
"""
import argparse
import hashlib
import json
import math
import os
import pathlib
import random
import resource
import shutil
import struct
import subprocess
import sys
import time

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import gguf_stub as gguf  # noqa: E402

NAMES = ["blk.0.attn_q.weight", "token_embd.weight", "ü", "a b", "with\nnewline\x1b[1m", "x" * 100, "é" * 40]


def turned_plain(data, width):
    return b"".join(data[at:at + width][::-1] for at in range(0, len(data), width))


def drawn_tensor(chance, name, is_big):
    """(tensor of gguf_stub.File, what hash must say)"""
    shape = [chance.choice([1, 2, 3, 7]) for _ in range(chance.randint(0, 4))]
    kinds = [kind for kind, (_, _, _, halves) in gguf.BLOCKS.items() if not is_big or halves is not None]
    kind = chance.choice([*gguf.PLAIN, *kinds])
    if kind in gguf.PLAIN:
        number, width = gguf.PLAIN[kind]
        shown = chance.randbytes(math.prod(shape) * width)
        stored = turned_plain(shown, width) if is_big else shown
    else:
        number, elements = gguf.BLOCKS[kind][:2]
        shape = [*shape[:3], elements * chance.randint(1, 3)]
        stored = b"".join(gguf.drawn_block(chance, kind) for _ in range(math.prod(shape) // elements))
        shown = gguf.meaning(kind, stored)
        stored = gguf.turned(kind, stored) if is_big else stored
    dtype = kind if kind in gguf.PLAIN else "F32"
    return (name, shape, number, stored), (dtype, shape, hashlib.sha256(shown).hexdigest())


def drawn_value(chance, depth=3):
    kind = chance.choice([k for k in (*gguf.CODES, gguf.STRING, gguf.ARRAY) if depth or k != gguf.ARRAY])
    if kind == gguf.STRING:
        return kind, chance.choice(["", "café", "a\nb", "x" * 5000])
    if kind == gguf.ARRAY:
        of = drawn_value(chance, depth - 1)[0]
        count = chance.choice([0, 1, 5, 2000]) if of in gguf.CODES else chance.choice([0, 1, 3])
        return kind, (of, [drawn_of(chance, of, depth - 1) for _ in range(count)])
    return kind, drawn_of(chance, kind, depth)


def drawn_of(chance, kind, depth):
    while kind in (gguf.STRING, gguf.ARRAY):
        found, value = drawn_value(chance, max(depth, kind == gguf.ARRAY))
        if found == kind:
            return value
    if kind in (gguf.F32, gguf.F64):
        return chance.choice([0.0, -0.5, 1.0, 1e10, 2.0**-126])
    if kind == gguf.BOOL:
        return chance.randint(0, 1)
    bits = 8 * struct.calcsize("<" + gguf.CODES[kind])
    low = -(1 << bits - 1) if gguf.CODES[kind].islower() else 0
    return chance.choice([low, 0, 1, low + (1 << bits) - 1])


def as_json(kind, value):
    if kind == gguf.BOOL:
        return bool(value)
    if kind == gguf.ARRAY:
        return [as_json(value[0], v) for v in value[1]]
    if kind == gguf.F32:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return value


def found(shell, path):
    return {key: (t["dtype"], t["shape"], t["hash"]) for key, t in shell.tensors(path).items()}


def items(shell, path):
    return {item["key"]: item["value"] for item in json.loads(shell("ls", "--items", "--json", path))["items"]}


def drawn(chance, rounds):
    def test(shell):
        for number in range(rounds):
            is_big, alignment = chance.random() < 0.3, chance.choice([1, 8, 32, 32, 64, 4096])
            tensors, wanted = [], {}
            for name in chance.sample(NAMES, chance.randint(0, len(NAMES))):
                tensor, wanted[name] = drawn_tensor(chance, name, is_big)
                tensors.append(tensor)
            pairs = [(f"x.{i}", *drawn_value(chance)) for i in range(chance.randint(0, 12))]
            pairs += [("general.alignment", gguf.U32, alignment)] if alignment != 32 or chance.random() < 0.2 else []
            path = shell.work / f"m{number}.gguf"
            path.write_bytes(gguf.File(pairs, tensors, chance.choice([2, 3]), is_big, alignment).bytes())
            got = found(shell, path)
            assert got == wanted, (number, is_big, [(k, got.get(k), wanted.get(k)) for k in {*got, *wanted} if got.get(k) != wanted.get(k)])
            assert items(shell, path) == {key: as_json(kind, value) for key, kind, value in pairs}, number
            shell("verify", "--deep", path)
            if wanted:
                shell("convert", path, "copy", "--to", "hf", "--items", "drop", "--quiet", "--overwrite")
                assert found(shell, "copy") == wanted, number
                shell("diff", "--items", "ignore", path, "copy")
    return test


def pieces(shell):
    """Tensors of more than a million numbers are decoded piece by piece, rows that are longer than that among them."""
    chance = random.Random(1)
    blocks = {kind: gguf.drawn_block(chance, kind) for kind in ("Q8_0", "Q4_K")}
    shapes = {"rows": ("Q8_0", [3, 700, 1024]), "row": ("Q4_K", [1, 2, 1 << 21]), "many": ("Q4_K", [5, 3, 1 << 18])}
    tensors, wanted = [], {}
    for name, (kind, shape) in shapes.items():
        number, elements = gguf.BLOCKS[kind][:2]
        other = gguf.drawn_block(chance, kind)
        count = math.prod(shape) // elements
        tensors.append((name, shape, number, blocks[kind] * (count - 1) + other))
        wanted[name] = gguf.meaning(kind, blocks[kind]) * (count - 1) + gguf.meaning(kind, other)
    path = shell.work / "large.gguf"
    path.write_bytes(gguf.File([], tensors).bytes())
    got = found(shell, path)
    assert got == {name: ("F32", shapes[name][1], hashlib.sha256(data).hexdigest()) for name, data in wanted.items()}
    listed = {t["key"]: t["chunks"] for t in json.loads(shell("ls", "--chunks", "--json", path))["tensors"]}
    assert {name: len(chunks) for name, chunks in listed.items()} == {"rows": 3, "row": 4, "many": 5}, listed
    assert all(chunk["encoding"] == shapes[name][0] for name, chunks in listed.items() for chunk in chunks), listed
    some = shell("cat", path, "row", "--slice", ":,1,2097150:", "--as", "raw")
    assert some == wanted["row"][-8:]
    some = shell("cat", path, "rows", "--slice", "2,699:,1023", "--as", "raw")
    assert some == wanted["rows"][-4:]
    shell("convert", path, "out.safetensors", "--to", "safetensors", "--memory", "16MiB", "--quiet")
    assert found(shell, "out.safetensors") == got
    said = shell("inspect", path).decode()
    assert "quantised\t1 Q8_0, 2 Q4_K (shown as F32)" in said.replace("  ", "\t").replace("\t\t", "\t"), said


def metadata(shell):
    words = [f"<word {i}>" for i in range(150_000)]
    pairs = [("general.architecture", gguf.STRING, "llama"), ("tokenizer.ggml.tokens", gguf.ARRAY, (gguf.STRING, words)),
             ("big", gguf.U64, 2**64 - 1), ("least", gguf.I64, -2**63), ("true", gguf.BOOL, 2), ("raw", gguf.STRING, b"\xff\xfe"),
             ("single", gguf.F32, 0.1), ("nan", gguf.F64, math.nan), ("deep", gguf.ARRAY, (gguf.ARRAY, [(gguf.ARRAY, []), (gguf.U8, [7])]))]
    path = shell.work / "m.gguf"
    path.write_bytes(gguf.File(pairs, []).bytes())
    seen = items(shell, path)
    assert seen["tokenizer.ggml.tokens"] == words
    del seen["tokenizer.ggml.tokens"]
    assert seen == {"general.architecture": "llama", "big": 2**64 - 1, "least": -2**63, "true": True, "raw": {"__bytes__": "fffe"},
                    "single": 0.10000000149011612, "nan": "nan", "deep": [[], [7]]}, seen
    assert json.loads(shell("cat", path, "tokenizer.ggml.tokens"))[149_999] == "<word 149999>"
    shutil.copy(path, shell.work / "sha256-0123")  # as Ollama calls them
    assert "format\tgguf" in shell("inspect", "sha256-0123").decode()
    said = shell("inspect", path).decode()
    assert "llama" in said and "GGUF version" in said, said


def parts_of(many, tensors, count=None, total=None):
    """Files of a split model, with a tensor each."""
    out = []
    for number in range(many):
        pairs = [("general.name", gguf.STRING, "m")] if number == 0 else []
        pairs += [("split.no", gguf.U16, number), ("split.count", gguf.U16, count or many),
                  ("split.tensors.count", gguf.I32, total or len(tensors))]
        out.append(gguf.File(pairs, tensors[number::many]).bytes())
    return out


def split(shell):
    tensors = [(f"t{i}", [i + 1], 0, struct.pack(f"<{i + 1}f", *range(i + 1))) for i in range(7)]
    wanted = {name: ("F32", shape, hashlib.sha256(data).hexdigest()) for name, shape, _, data in tensors}
    folder = shell.work / "model"

    def write(contents, total=None):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for number, content in contents.items():
            (folder / f"m-{number:05d}-of-{total or len(contents):05d}.gguf").write_bytes(content)

    parts = dict(enumerate(parts_of(3, tensors), 1))
    write(parts)
    for path in folder, *sorted(folder.iterdir()):
        assert found(shell, path) == wanted, path
        assert items(shell, path) == {"general.name": "m"}
    shell("convert", folder, "out.safetensors", "--to", "safetensors", "--items", "drop", "--verify", "--quiet")
    assert found(shell, "out.safetensors") == wanted
    (folder / "mmproj-m.gguf").write_bytes(gguf.File([], [tensors[0]]).bytes())
    assert found(shell, folder) == wanted
    assert "'mmproj-m.gguf' is another model and is left alone" in shell("inspect", folder).decode()
    assert len(found(shell, folder / "mmproj-m.gguf")) == 1
    (folder / "other.gguf").write_bytes(parts[1])
    assert "several models, such as" in shell("ls", folder, exit_status=5).decode()

    write({1: parts[1], 3: parts[3]}, 3)
    said = shell("hash", folder, exit_status=4).decode()
    assert "'m-00002-of-00003.gguf', one of 3 parts, is not there" in said, said
    said = shell("hash", folder / "m-00003-of-00003.gguf", exit_status=4).decode()
    assert "'m-00002-of-00003.gguf', one of 3 parts, is not there" in said, said
    shell("verify", folder, exit_status=1)
    shell("salvage", folder, "saved", "--to", "hf", exit_status=1)
    assert set(found(shell, "saved")) == {f"t{i}" for i in (0, 2, 3, 5, 6)}
    write({2: parts[2]}, 5)
    assert "'m-00001-of-00005.gguf', one of 5 parts, is not there, nor are 3 more" in shell("hash", folder, exit_status=4).decode()
    for contents, why in (
            (dict(enumerate(parts_of(3, tensors, count=4), 1)), "'split.count' is 4, its name says 3"),
            (dict(enumerate(parts_of(3, tensors, total=8), 1)), "7 tensors in all parts, 'split.tensors.count' is 8"),
            ({**parts, 3: parts[2]}, "tensor 't1' is in a part before it too"),
            ({**parts, 2: gguf.File([], [], is_big=True).bytes()}, "in another byte order than the parts before it"),
            ({**parts, 2: parts[2][:40]}, "m-00002-of-00003.gguf")):
        write(contents)
        done = shell.any("hash", folder)
        assert done.returncode == 4 and why in done.stderr, (why, done.returncode, done.stderr)
    alone = shell.work / "alone.gguf"
    alone.write_bytes(parts[1])
    assert "is one part of 3 ('split.count'), and its name does not tell the others" in shell("hash", alone, exit_status=4).decode()


def patched(content, at, code, value):
    return content[:at] + struct.pack(code, value) + content[at + struct.calcsize(code):]


def refused(shell):
    """What is wrong is named with the tensor or the key, and the place."""
    path = shell.work / "r.gguf"
    one = ("w", [2], 0, bytes(8))
    good = gguf.File([("k", gguf.U8, 1)], [one]).bytes()
    path.write_bytes(good)
    shell("ls", path)
    file = lambda pairs=(), tensors=(one,), **how: gguf.File(list(pairs), list(tensors), **how).bytes()  # noqa: E731
    start = file([("k", gguf.STRING, "")])[:33]
    array = lambda of, count, rest=b"": start + struct.pack("<IIQ", gguf.ARRAY, of, count) + rest  # noqa: E731
    for content, why, status in (
            (b"", "file of 0 bytes ends inside its first bytes", 4), (b"GGUF", "ends inside its version", 4),
            (b"GGUE" + good[4:], "it does not start with 'GGUF'", 4),
            (patched(good, 4, "<I", 1), "GGUF version 1, versions 2 and 3 are read", 5),
            (patched(good, 4, "<I", 4), "GGUF version 4, versions 2 and 3 are read", 5),
            (patched(good, 4, "<I", 0), "GGUF version 0", 4),
            (patched(good, 8, "<Q", 2**63), "9223372036854775808 tensors in a file of", 4),
            (patched(good, 16, "<Q", 2**63), "9223372036854775808 keys in a file of", 4),
            (patched(good, 8, "<Q", 3), "tensor '' is there twice", 4),
            (patched(good, 24, "<Q", 2**64 - 1), "key of 18446744073709551615 bytes", 4),
            (good[:30], "ends inside", 4), (good[:50], "ends inside", 4),
            (file([("k", gguf.U8, 1), ("k", gguf.U8, 2)]), "key 'k' is there twice", 4),
            (file(tensors=[one, one]), "tensor 'w' is there twice", 4),
            (file([(b"\xff", gguf.U8, 1)]), "is no UTF-8", 4), (file(tensors=[(b"\xff\xff", [2], 0, bytes(8))]), "is no UTF-8", 4),
            (file([("k" * 70000, gguf.U8, 1)]), "key of 70000 bytes, at most 65535", 4),
            (patched(good, 33, "<I", 13), "key 'k': a value of type 13, which GGUF does not have", 4),
            (array(13, 0), "an array of values of type 13, which GGUF does not have", 4),
            (array(gguf.STRING, 2**60), "an array of 1152921504606846976 values of 8 bytes at least", 4),
            (array(gguf.U64, 2**61), "an array of 2305843009213693952 values", 4),
            (array(gguf.STRING, 1, struct.pack("<Q", 2**62)), "a string of 4611686018427387904 bytes", 4),
            (file([("k", gguf.ARRAY, (gguf.ARRAY, []))])[:33] + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1_000_000,
             "gguf_depth: found 65, the limit is 64", 6),
            (file([("general.alignment", gguf.U32, 24)]), "'general.alignment' is 24 (type 4), expected a power of two", 4),
            (file([("general.alignment", gguf.U32, 0)]), "'general.alignment' is 0", 4),
            (file([("general.alignment", gguf.U64, 32)]), "(type 10), expected a power of two of type 4", 4),
            (file(tensors=[("w", [1] * 5, 0, bytes(4))]), "tensor 'w': 5 axes, GGUF has at most 4", 4),
            (file(tensors=[("w", [2**63], 0, b"")]), "an axis of 9223372036854775808 elements", 4),
            (file(tensors=[("w", [2**40, 2**40], 0, b"")]), "its shape has more than 2^63 elements", 4),
            (file(tensors=[("w", [2**61], 0, b"")]), "tensor 'w'", 4),
            (file(tensors=[("w", [64], 0, bytes(8))]), "ends inside its 256 bytes", 4),
            (file(tensors=[("w", [2], 0, bytes(8), 8)]), "offset 8 is no multiple of 32", 4),
            (file(tensors=[("w", [2], 0, bytes(8), 2**64 - 32)]), "lies beyond all files", 4),
            (file(tensors=[("w", [2], 0, bytes(8), 2**20)]), "ends inside its 8 bytes at byte", 4),
            (file(tensors=[("v", [16], 0, bytes(64)), ("w", [2], 0, bytes(8), 32)]), "tensor 'w' at byte", 4),
            (file(tensors=[("w", [33], 2, bytes(36))]), "rows of 33 elements, blocks of Q4_0 have 32", 4),
            (file(tensors=[("w", [], 8, bytes(34))]), "rows of 1 elements, blocks of Q8_0 have 32", 4),
            (file(tensors=[("w", [256], 16, bytes(66))]), "tensor 'w': quantised as IQ2_XXS, which is not read", 5),
            (file(tensors=[("w", [32], 9, bytes(36))]), "quantised as Q8_1, which is not read", 5),
            (file(tensors=[("w", [32], 4, bytes(32))]), "type number 4, which no release", 5),
            (file(tensors=[("w", [32], 7, bytes(24))], is_big=True), "quantised as Q5_1, which is not read from big-endian files", 5)):
        path.write_bytes(content)
        done = shell.any("hash", path)
        assert done.returncode == status and why in done.stderr and "r.gguf" in done.stderr, (why, done.returncode, done.stderr[:600])
    path.write_bytes(file(tensors=[("w", [256], 16, bytes(66)), ("v", [2], 0, bytes(8))]))
    said = shell("hash", path, exit_status=5).decode()
    assert "llama-quantize --allow-requantize" in said, said
    assert "v\tF32" in shell("ls", "--lenient", path).decode()


def hostile(shell):
    """A megabyte may not cost more than five seconds of processor time or a gigabyte of memory."""
    def limits():
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))

    libraries = subprocess.run(["ldd", shell.binary], capture_output=True, text=True).stdout
    is_sanitized = "libasan" in libraries or "libtsan" in libraries
    empty = gguf.File([], []).bytes()
    count = 1 << 20
    inputs = {
        "arrays": gguf.File([("k", gguf.ARRAY, (gguf.ARRAY, [(gguf.U8, [])] * (count // 12)))], []).bytes(),
        "strings": gguf.File([("k", gguf.ARRAY, (gguf.STRING, [""] * (count // 8)))], []).bytes(),
        "bytes": gguf.File([("k", gguf.ARRAY, (gguf.U8, bytes(count)))], []).bytes(),
        "keys": gguf.File([(f"{i:05x}", gguf.U8, 1) for i in range(count // 18)], []).bytes(),
        "names": gguf.File([], [(f"{i:05x}", [0], 0, b"") for i in range(count // 37)]).bytes(),
        "blocks": gguf.File([], [("w", [count // 54 * 256], 34, bytes(count // 54 * 54))]).bytes(),
        "nothing": empty,
    }
    for name, content in inputs.items():
        path = shell.work / f"{name}.gguf"
        path.write_bytes(content)
        for words in (["ls", "--items", "--json", path], ["verify", "--deep", path],
                      ["convert", path, "out", "--to", "torch", "--overwrite"]):
            child = subprocess.Popen([shell.binary, *map(str, words)], cwd=shell.work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                     preexec_fn=limits)
            said = child.stderr.read().decode(errors="replace")
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = 0
            assert status in (0, 6 << 8), (name, words[0], status, said[:300])
            assert is_sanitized or usage.ru_maxrss < 1 << 20, (name, words[0], usage.ru_maxrss)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"# seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    return small_models.run(arguments.bin, [
        ("drawn files come back", drawn(chance, arguments.count)), ("tensors in pieces", pieces), ("metadata", metadata),
        ("models in several files", split), ("what is wrong in a file", refused), ("small files that ask for much", hostile)])


if __name__ == "__main__":
    sys.exit(main())
