#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NumPy's npz and npy: drawn archives and folders, laid out here by the description of the format, read back exactly; what is written of
them, byte by byte; what is no tensor; which folders are taken for arrays; and everything that can be wrong. Prints TAP.

usage: numpy_test.py --bin PATH --root DIR [--count N] [--seed N]
DIR/numpy has what NumPy wrote: fixtures_test.py compares that. tests/live/npz_test.py lets NumPy write and load.
"""
import argparse
import hashlib
import json
import pathlib
import pickle
import random
import shutil
import struct
import sys
import time
import zipfile
import zlib

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import npy_stub as stub  # noqa: E402

HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n"
DATA = struct.pack("<3f", 1, 2, 3)


def drawn_array(chance):
    dtype = chance.choice(list(stub.KINDS))
    shape = [chance.choice([0, 1, 2, 3, 5]) if chance.random() < 0.1 else chance.randint(1, 5) for _ in range(chance.randint(0, 4))]
    count = 1
    for extent in shape:
        count *= extent
    values = [chance.random() < 0.5 if dtype == "BOOL" else chance.randint(0, 100) for _ in range(count)]
    data, plain = stub.numbers(dtype, shape, values, chance.random() < 0.3, chance.random() < 0.3, chance.choice([1, 1, 2, 3]))
    return data, (dtype, shape, hashlib.sha256(plain).hexdigest())


def drawn_arrays(chance, count):
    arrays, wanted = {}, {}
    for number in range(count):
        key = chance.choice(["w", "W", "layer/weight.", "a b/c/", "ü", "x.npy."]) + str(number // 2 if number % 2 else number)
        if key not in arrays:
            arrays[key], wanted[key] = drawn_array(chance)
    return arrays, wanted


def found(shell, path):
    return {key: (t["dtype"], t["shape"], t["hash"]) for key, t in shell.tensors(path).items()}


def put(folder, arrays):
    for key, data in arrays.items():
        (folder / f"{key}.npy").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{key}.npy").write_bytes(data)


def drawn(chance, rounds):
    def test(shell):
        for number in range(rounds):
            arrays, wanted = drawn_arrays(chance, chance.choice([1, 3, 20]))
            archive, folder = shell.work / f"{number}.npz", shell.work / f"f{number}"
            deflated = {f"{key}.npy" for key in arrays if chance.random() < 0.4}
            archive.write_bytes(stub.npz([(f"{key}.npy", data) for key, data in arrays.items()], deflated))
            put(folder, arrays)
            for path in archive, folder:
                got = found(shell, path)
                assert got == wanted, (number, path.name, [k for k in {*got, *wanted} if got.get(k) != wanted.get(k)])
                shell("verify", "--deep", path)
                for to, name in ("npz", "copy.npz"), ("npy", "copy"), ("safetensors", "copy.safetensors"):
                    shell("convert", path, name, "--to", to, "--quiet", "--overwrite", "--verify")
                    assert found(shell, name) == wanted, (number, to)
            shutil.rmtree(folder)
    return test


def written(shell):
    """Bytes that anybody can lay out by the description: one array a file, and the same as stored members whose elements are aligned."""
    arrays = {"a": stub.numbers("F32", [2, 3], [1, 2, 3, 4, 5, 6])[0], "deep/er/b": stub.numbers("I64", [], [7])[0],
              "c": stub.numbers("U8", [0, 4], [])[0], "W": stub.numbers("BOOL", [2], [True, False])[0],
              "w": stub.numbers("F16", [1], [0.5])[0]}
    put(shell.work / "in", {key: data for key, data in arrays.items()})
    shell("convert", "in", "out", "--to", "npy", "--quiet")
    files = {str(path.relative_to(shell.work / "out"))[:-4]: path.read_bytes() for path in (shell.work / "out").rglob("*.npy")}
    assert files == arrays, [key for key in {*files, *arrays} if files.get(key) != arrays.get(key)]
    for name in "one.npz", "two.npz":
        shell("convert", "out", name, "--quiet", "--to", "npz", "--threads", "1" if name == "one.npz" else "4")
    assert (shell.work / "one.npz").read_bytes() == (shell.work / "two.npz").read_bytes()
    with zipfile.ZipFile(shell.work / "one.npz") as archive:
        assert archive.testzip() is None
        assert {name[:-4]: archive.read(name) for name in archive.namelist()} == arrays, archive.namelist()
        for member in archive.infolist():
            raw = (shell.work / "one.npz").read_bytes()
            name, extra = struct.unpack("<HH", raw[member.header_offset + 26:member.header_offset + 30])
            assert member.compress_type == 0 and (member.header_offset + 30 + name + extra) % 64 == 0, member
    (shell.work / "none.npz").write_bytes(b"PK\5\6" + bytes(18))  # as numpy.savez without arrays
    assert json.loads(shell("ls", "--json", "none.npz"))["tensors"] == []
    shell("convert", "none.npz", "again.npz", "--to", "npz", "--quiet")
    shell("convert", "none.npz", "none", "--to", "npy", exit_status=5)
    assert (shell.work / "again.npz").read_bytes() == (shell.work / "none.npz").read_bytes()


def not_held(shell):
    """What NumPy has no type or no name for is refused, and items are told as dropped."""
    kept = json.dumps({"schema": "reshard-items/1", "items": [{"key": "step", "value": 3}]})
    header = {"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}, "__metadata__": {"by": "me", "reshard_items": kept}}
    text = json.dumps(header).encode()
    (shell.work / "b.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    for to in "npz", "npy":
        said = shell("convert", "b.safetensors", "o", "--to", to, exit_status=5).decode()
        assert "tensor 'w': NumPy has no type BF16" in said and "--dtype 'KEY=f32'" in said, said
        assert not (shell.work / "o").exists()
        done = json.loads(shell("convert", "b.safetensors", "o", "--to", to, "--dtype", "f32", "--json", "--overwrite"))
        dropped = dict(note.split(": ", 1) for note in done["dropped"])
        assert list(dropped) == ["__metadata__.by", "step"] and "arrays alone" in dropped["step"], done
        assert found(shell, "o")["w"][:2] == ("F32", [2])
        shutil.rmtree(shell.work / "o") if to == "npy" else (shell.work / "o").unlink()
    small_models.write(shell.work / "n.safetensors", {"a": [2], "b": [2]})
    shell("convert", "n.safetensors", "f.safetensors", "--to", "safetensors", "--dtype", "f32", "--quiet")
    for new, other, to, why in (("../x", None, "npz", "cannot be a member of that name"),
                                ("/x", None, "npy", "cannot be a file of that name"),
                                ("x" * 300, None, "npy", "it has a part of 304 bytes, file systems take 255"),
                                ("x//y", None, "npz", "cannot be a member"),
                                ("a.npy", "a", "npz", "tensor 'a.npy' cannot be told from the file of 'a'"),
                                ("a.npy/x", "a", "npy", "tensor 'a.npy/x' cannot be told from the file of 'a'")):
        said = shell("convert", "f.safetensors", "o", "--to", to, "--rename", f"s|^{'b' if other else 'a'}$|{new}|", exit_status=5).decode()
        assert why in said and not (shell.work / "o").exists(), (why, said)
    shell("convert", "f.safetensors", "long.npz", "--to", "npz", "--rename", f"s|^a$|{'x' * 300}|", "--quiet")
    assert set(found(shell, "long.npz")) == {"x" * 300, "b"}


def text_array(texts, width, shape, order="<"):
    data = b"".join(text.encode("utf-32-le" if order == "<" else "utf-32-be", "surrogatepass").ljust(4 * width, b"\0") for text in texts)
    return stub.npy(f"{order}U{width}", shape, data)


def items(shell):
    """Texts, bytes, objects and bytes that are no array are items; times are numbers, and that is told."""
    objects = stub.npy("|O", [], pickle.dumps({"lr": 0.5, "steps": [1, 2]}, 4))
    members = {"t": text_array(["häßlich"], 7, []), "tt": text_array(["a", "bc", "", "\U0001F600"], 3, [2, 2], ">"),
               "s": stub.npy("|S3", [2], b"ab\0c\0d"), "o": objects, "w": stub.numbers("F32", [1], [1])[0],
               "when": stub.npy("<M8[ns]", [2], struct.pack("<2q", 1, 2)), "took": stub.npy(">m8[25us]", [1], struct.pack(">q", 3)),
               "none": stub.npy("<U0", [2], b""), "half": text_array(["\ud800"], 1, []),
               "columns": stub.npy("|S1", [2, 3], b"adbecf", True)}
    folder = shell.work / "f"
    put(folder, members)
    pairs = [(f"{key}.npy", data) for key, data in members.items()]
    (shell.work / "a.npz").write_bytes(stub.npz([*pairs, ("note", b"\0raw"), ("plain", members["w"])], {"tt.npy", "o.npy"}))
    for path in folder, shell.work / "a.npz":
        said = json.loads(shell("ls", "--items", "--json", path))
        values = {item["key"]: item["value"] for item in said["items"] if "." not in item["key"]}
        raw = values.pop("note", {"__bytes__": "00726177"})
        assert raw == {"__bytes__": "00726177"}, raw
        assert values.pop("half") == "\ud800", values
        assert bytes.fromhex("".join(part["__bytes__"] for row in values.pop("columns") for part in row)) == b"abcdef"
        assert values == {"t": "häßlich", "tt": [["a", "bc"], ["", "\U0001F600"]], "s": [{"__bytes__": "6162"}, {"__bytes__": "630064"}],
                          "o": {"lr": 0.5, "steps": [1, 2]}, "none": ["", ""]}, values
        tensors = {t["key"]: (t["dtype"], t["shape"]) for t in said["tensors"]}
        assert tensors.pop("plain", ("F32", [1])) == ("F32", [1])
        assert tensors == {"w": ("F32", [1]), "when": ("I64", [2]), "took": ("I64", [1])}, tensors
        warned = json.dumps(said["warnings"])
        assert "'when' is of type <M8[ns]" in warned and "'took' is of type >m8[25us]" in warned, warned
        assert shell.bytes_of(path, "took") == struct.pack("<q", 3)
        shell("verify", path)
    # The files of what is no tensor are the checkpoint's too, and go where it is replaced.
    shell("convert", shell.work / "a.npz", folder, "--to", "npy", "--quiet", "--overwrite", "--exclude", "w")
    assert {path.name for path in folder.rglob("*")} == {"when.npy", "took.npy", "plain.npy"}
    # Nothing of a pickle is called, and what is damaged is refused.
    for data, why in ((text_array(["a"], 1, [])[:-4] + b"\0\0\x11\0", "has a code point above U+10FFFF"),
                      (stub.npy("|O", [], b"cos\nsystem\n(S'touch called'\ntR."), None), (stub.npy("|O", [], b"\x80\4"), "'x.npy'"),
                      (stub.npy("|O", [], b"\x80\2X\1\0\0\0aQ."), "a persistent id"),
                      (stub.npy("|O", [], pickle.dumps(1) + b"x"), "1 bytes follow the pickle")):
        (shell.work / "x.npy").write_bytes(data)
        said = shell("cat", "x.npy", "x", exit_status=4 if why else 0).decode()
        assert why is None or why in said, (why, said)
    assert not (shell.work / "called").exists()


def recognised(shell):
    """Folders of arrays and nothing else; arrays beside what another format knows, or nobody, are none."""
    data = stub.framed(HEADER, DATA)
    folder = shell.work / "f"
    put(folder, {"a": data, "1/b": data})
    (folder / "README.md").write_text("x")
    (folder / "reshard.json").write_text("{}")
    said = json.loads(shell("inspect", "--json", folder))
    warned = json.dumps(said["warnings"])
    assert said["format"] == "npy" and "README.md" in warned and "reshard.json" not in warned, said
    (folder / "c.bin").write_text("x")
    assert "no known checkpoint format" in shell("ls", folder, exit_status=5).decode()
    assert set(found_of(shell, folder, "--format", "npy")) == {"a", "1/b"}
    hf = shell.work / "hf"
    small_models.write(shell.work / "m.safetensors", {"w": [2]})
    shell("convert", "m.safetensors", hf, "--to", "hf", "--quiet")
    (hf / "loss.npy").write_bytes(data)
    assert json.loads(shell("ls", "--json", hf))["format"] == "hf"
    assert "loss.npy" in shell("convert", "m.safetensors", hf, "--to", "hf", "--overwrite", exit_status=2).decode(), "it would be gone"
    run = shell.work / "run"
    shutil.copytree(hf, run / "checkpoint-5")
    (run / "loss.npy").write_bytes(data)
    assert json.loads(shell("ls", "--json", run))["format"] == "hf"
    # By content, whatever they are called; and a name that promises what the content is not.
    (shell.work / "array.data").write_bytes(data)
    assert set(found(shell, "array.data")) == {"array.data"}
    for key in "w", "layer/" * 40 + "w":
        (shell.work / "arrays.ckpt").write_bytes(stub.npz([(f"{key}.npy", data)]))
        assert set(found(shell, "arrays.ckpt")) == {key}
    for name in "x.npz", "x.npy":
        (shell.work / name).write_bytes(b"nothing of the kind, and long enough")
        shell("ls", name, exit_status=4)


def found_of(shell, path, *options):
    return [t["key"] for t in json.loads(shell("ls", "--json", path, *options))["tensors"]]


def wrong_headers(shell):
    """A header is parsed, and nothing in it evaluated."""
    def change(old, new):
        assert old in HEADER
        return stub.framed(HEADER.replace(old, new), DATA)

    for data, why, status in (
            (change("(3,)", "(3,, )"), "shape holds something else than integers", 4), (change("(3,)", "((3,),)"), "something else", 4),
            (change("(3,)", "[3]"), "shape is no tuple", 4), (change("(3,)", "(-3,)"), "something else", 4),
            (change("(3,)", "(1+2,)"), "not closed", 4),
            (change("(3,)", "(9223372036854775807, 2)"), "overflows", 4),
            (change("(3,)", "(4611686018427387904,)"), "the size of its shape overflows", 4),
            (change("(3,)", f"({'1,' * 65})"), "more than 64 axes", 6), (change("False", "0"), "fortran_order is neither", 4),
            (change("False", "not True"), "neither", 4), (change("'<f4'", "('<f4', (2,))"), "descr is no plain type", 5),
            (change("'<f4'", "[('a', '<f4')]"), "descr is no plain type", 5), (change("'<f4'", "'<f' + '4'"), "type '<f'", 5),
            (change("'<f4'", "'<f4' + ''"), "expected ',' or '}'", 4),
            (change("'<f4'", "'|V2'"), "type '|V2' is not one of", 5), (change("'<f4'", "'<f1'"), "type '<f1'", 5),
            (change("'<f4'", "'<f16'"), "type '<f16'", 5), (change("'<f4'", "'<U99999999999'"), "type '<U99999999999'", 5),
            (change("'<f4'", "'<M8[ns'"), "type '<M8[ns'", 5),
            (change("'<f4'", "__import__('os').system('touch called')"), "no plain type", 4),
            (change("'shape'", "'shapes'"), "unknown key 'shapes'", 4), (change("}", "'more': 1}"), "unknown key 'more'", 4),
            (change("'shape': (3,), ", ""), "is missing", 4), (change("{", "{'descr': '<f4', "), "twice", 4),
            (stub.framed("__import__('os').system('touch called')", DATA), "the header is no dict", 4),
            (stub.framed(HEADER, DATA)[:40], "ends inside the header", 4), (stub.framed(HEADER, DATA, version=4), "version 4.0", 5),
            (stub.framed(HEADER, DATA)[:9], "ends inside the header", 4), (b"\x93NUMPY", "version", 5), (b"", "signature", 4),
            (b"\x93NUMPY\2\0\xff\xff\xff\xff" + bytes(50), "ends inside the header of 4294967295 bytes", 4),
            (stub.framed(HEADER, DATA, magic=b"\x93NUMPX"), "signature", 4),
            (stub.framed(HEADER, DATA[:-1]), "11 bytes of elements, its shape needs 12", 4),
            (stub.framed(HEADER, DATA + b"\0"), "13 bytes of elements, its shape needs 12", 4)):
        (shell.work / "x.npy").write_bytes(data)
        (shell.work / "x.npz").write_bytes(stub.npz([("x.npy", data)], {"x.npy"} if len(data) % 2 else ()))
        for name in "x.npy", "x.npz":
            said = shell("hash", name, exit_status=status).decode()
            assert why in said and "'x.npy'" in said, (why, said)
    assert not (shell.work / "called").exists()
    (shell.work / "x.npy").write_bytes(stub.framed(HEADER, DATA + b"\0"))
    assert found_of(shell, "x.npy", "--lenient") == ["x"]
    (shell.work / "x.npz").write_bytes(stub.npz([("r.npy", change("'<f4'", "[('a', '<f4')]")), ("w.npy", stub.framed(HEADER, DATA))]))
    assert found_of(shell, "x.npz", "--lenient") == ["w"]


def wrong_archives(shell):
    data = stub.framed(HEADER, DATA)
    good = stub.npz([("a.npy", data), ("b.npy", data)])

    def refuse(content, why, status=4, verb="hash"):
        (shell.work / "x.npz").write_bytes(content)
        said = shell(verb, "x.npz", exit_status=status).decode()
        assert why in said, (why, said)

    refuse(stub.npz([("a.npy", data), ("a.npy", data)]), "the name occurs twice")
    refuse(stub.npz([("a.npy", data), ("a", data)]), "a second array is called 'a'")
    refuse(stub.npz([("../a.npy", data)]), "leaves the archive")
    refuse(stub.npz([("/a.npy", data)]), "has an empty part")
    refuse(stub.npz([("a.npy", b"no array")]), "'a.npy': npy: does not start with the npy signature")
    refuse(good[:-30], "no end record")
    at = good.rindex(b"PK\1\2")
    refuse(good[:at + 8] + b"\1" + good[at + 9:], "'b.npy': is encrypted", 5)
    refuse(good[:at + 10] + b"\x0c" + good[at + 11:], "'b.npy': compression method 12", 5)
    changed = bytearray(good)
    changed[good.index(DATA) + 1] ^= 1
    (shell.work / "c.npz").write_bytes(bytes(changed))
    shell("ls", "c.npz")
    assert "CRC-32 of the content" in shell("verify", "c.npz", exit_status=1).decode()
    # More is inflated than the directory says, or less; and zeros that are more than anybody packs.
    packed = stub.npz([("a.npy", stub.npy("<f4", [64], bytes(256)))], {"a.npy"})
    for size in 383, 385:
        refuse(packed.replace(struct.pack("<I", 384), struct.pack("<I", size)), "bytes of elements, its shape needs")
    shape = 600 << 20
    zeros = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = zeros.compress(stub.npy("|u1", [shape], b"")) + b"".join(zeros.compress(bytes(1 << 20)) for _ in range(600)) + zeros.flush()
    head = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 1, len(body), shape + 128, 5, 0)
    archive = b"PK\3\4" + head + b"a.npy" + body
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, 51, len(archive), 0)
    directory = b"PK\1\2" + struct.pack("<H", 20) + head + struct.pack("<HHHII", 0, 0, 0, 0, 0) + b"a.npy"
    refuse(archive + directory + b"PK\5\6" + end, "inflate_ratio", 6)
    # An item larger than what is rewritten, and texts without number.
    (shell.work / "t.npz").write_bytes(stub.npz([("t.npy", stub.npy("<U0", [1 << 60], b""))]))
    assert "work" in shell("ls", "t.npz", exit_status=6).decode()


def many(shell):
    """Twenty thousand members cost what their number says, and no more reads than that."""
    data, plain = stub.numbers("F32", [2], [1, 2])
    (shell.work / "m.npz").write_bytes(stub.npz([(f"layers/{i}/w.npy", data) for i in range(20000)]))
    began = time.process_time()
    assert len(found(shell, "m.npz")) == 20000
    shell("convert", "m.npz", "copy.npz", "--to", "npz", "--quiet", "--verify")
    with zipfile.ZipFile(shell.work / "copy.npz") as archive:
        assert len(archive.namelist()) == 20000 and archive.read("layers/7/w.npy") == data
    assert time.process_time() - began < 60


def salvaged(shell):
    """What is good of an archive without its end, and of a folder with a file that is cut off."""
    arrays = {key: stub.numbers("F32", [50], range(50))[0] for key in "abcd"}
    for with_zip64 in False, True:
        whole = stub.npz([(f"{key}.npy", data) for key, data in arrays.items()], (), with_zip64)
        (shell.work / "cut.npz").write_bytes(whole[:len(whole) * 3 // 5])
        shell.any("salvage", "cut.npz", f"good{with_zip64}.npz", "--to", "npz")
        assert set(found(shell, f"good{with_zip64}.npz")) == {"a", "b"}, with_zip64
        out = shell.any("salvage", "cut.npz", f"again{with_zip64}.npz").stdout
        assert "unproved-names" in out and "what it would name is lost" in out, out  # a name has no CRC, and stood there twice
        other = whole.replace(b"b.npy", b"x.npy", 1)  # in the member itself, not in the directory
        (shell.work / "renamed.npz").write_bytes(other)
        out = shell.any("salvage", "renamed.npz", f"renamed{with_zip64}.npz", "--to", "npz").stdout
        assert "unproved-names" in out, out
    with zipfile.ZipFile(shell.work / "flipped.npz", "w", zipfile.ZIP_STORED) as archive:
        for key, data in arrays.items():
            archive.writestr(f"{key}.npy", data)
    flipped = bytearray((shell.work / "flipped.npz").read_bytes())
    flipped[flipped.index(b"'descr'") + 2] ^= 1  # the header of one
    (shell.work / "flipped.npz").write_bytes(flipped)
    out = shell.any("salvage", "flipped.npz", "others.npz", "--to", "npz").stdout
    assert "3 of 4 tensors written: 3 proved by checksums, 0 unproved; 1 lost" in out and "unproved" not in out.split("3 of 4")[0], out
    put(shell.work / "f", arrays)
    (shell.work / "f" / "c.npy").write_bytes(arrays["c"][:200])
    shell.any("salvage", "f", "good", "--to", "npy")
    assert set(found(shell, "good")) == {"a", "b", "d"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"# seed {arguments.seed}")
    return small_models.run(arguments.bin, [
        ("drawn arrays come back", drawn(random.Random(arguments.seed), arguments.count)), ("what is written", written),
        ("what NumPy does not hold", not_held), ("what is no tensor", items), ("which files and folders", recognised),
        ("headers that are wrong", wrong_headers), ("archives that are wrong", wrong_archives),
        ("many members", many), ("salvage", salvaged)])


if __name__ == "__main__":
    sys.exit(main())
