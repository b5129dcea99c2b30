#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Orbax: drawn OCDBT stores of every height, laid out here by the description of the format, read back exactly; folders of steps; what
_METADATA says of numbers and texts; and everything that can be wrong in a store. Prints TAP.

usage: orbax_test.py --bin PATH --root DIR [--count N] [--seed N]
DIR/orbax has what Orbax wrote: fixtures_test.py compares that. tests/live/ocdbt_test.py lets tensorstore write stores.
"""
import argparse
import hashlib
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import time
import zlib

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import ocdbt_stub as ocdbt  # noqa: E402


def array(values, dtype="<f4", code="f", shape=None):
    """Keys of an array of one chunk, and its digest."""
    shape = [len(values)] if shape is None else shape
    data = struct.pack(f"<{len(values)}{code}", *values)
    text = json.dumps({"zarr_format": 2, "shape": shape, "chunks": [max(1, n) for n in shape], "dtype": dtype, "compressor": None,
                       "fill_value": None, "order": "C", "filters": None}).encode()
    return {".zarray": text, ".".join("0" for _ in shape) or "0": data}, (shape, hashlib.sha256(data).hexdigest())


def drawn_values(chance, count):
    values, wanted = {}, {}
    for number in range(count):
        name = chance.choice(["a", "params.dense.kernel", "b.c", "odd/key ", "ü"]) + str(number)
        keys, wanted[name] = array([chance.uniform(-4, 4) for _ in range(chance.choice([1, 3, 40, 300]))])
        values |= {f"{name}/{key}".encode(): value for key, value in keys.items()}
    return values, wanted


def found(shell, path):
    return {key: (t["shape"], t["hash"]) for key, t in shell.tensors(path).items()}


def drawn(chance, rounds):
    def test(shell):
        for number in range(rounds):
            folder = shell.work / f"o{number}"
            values, wanted = drawn_values(chance, chance.choice([1, 2, 7, 60]))
            store = ocdbt.Store(folder, chance.choice([b"", b"ocdbt.process_0/"]))
            how = dict(per_node=chance.choice([2, 3, 10, 1000]), inline=chance.choice([0, 50, 200, 100000]), numbered=chance.random() < 0.3,
                       versions=chance.choice([1, 3]), older=chance.choice([0, 2]))
            store.write(values, **how)
            got = found(shell, folder)
            assert got == wanted, (number, how, [k for k in {*got, *wanted} if got.get(k) != wanted.get(k)])
            shell("verify", "--deep", folder)
            shell("convert", folder, "copy", "--to", "hf", "--quiet", "--overwrite")
            assert found(shell, "copy") == wanted
            shutil.rmtree(folder)
    return test


def metadata(**leaves):
    """_METADATA of leaves: name (dots separate keys) to the type of the value."""
    return json.dumps({"tree_metadata": {str(tuple(name.split("."))): {
        "key_metadata": [{"key": key, "key_type": 2} for key in name.split(".")], "value_metadata": {"value_type": kind}}
        for name, kind in leaves.items()}})


def numbers(shell):
    """Numbers of Python are items, whatever lies around them: nodes, data files, folders, other byte orders."""
    folder = shell.work / "n"
    values, wanted = {}, {}
    cases = {"i": ("<i8", "q", 2**40), "i4": ("<i4", "i", -5), "f": ("<f8", "d", 0.1), "f4": ("<f4", "f", 0.5), "t": ("|b1", "?", True),
             "half": ("<f2", "e", 1.5)}
    for name, (dtype, code, value) in cases.items():
        keys, wanted[name] = array([value], dtype, code, shape=[])
        values |= {f"{name}/{key}".encode(): content for key, content in keys.items()}
    keys, _ = array([3.0], "<f4", "f", shape=[])
    values |= {f"array/{key}".encode(): content for key, content in keys.items()}
    ocdbt.Store(folder).write(values)
    (folder / "_METADATA").write_text(metadata(**{name: "scalar" for name in cases}, array="np.ndarray", text="string", none="None",
                                               empty="Dict", row="List", gone="string", absent="scalar"))
    (folder / "_strings.json").write_text('{"text": "caf\\u00e9", "other": 1}')
    plain = shell.work / "p"
    for key, content in values.items():
        (plain / key.decode()).parent.mkdir(parents=True, exist_ok=True)
        (plain / key.decode()).write_bytes(content)
    big = json.loads((plain / "i/.zarray").read_text()) | {"dtype": ">i8"}
    (plain / "i/.zarray").write_text(json.dumps(big))
    (plain / "i/0").write_bytes(struct.pack(">q", 2**40))
    fill = json.loads((plain / "f/.zarray").read_text()) | {"fill_value": 0.1}
    (plain / "f/.zarray").write_text(json.dumps(fill))
    (plain / "f/0").unlink()
    for name in "_METADATA", "_strings.json":
        shutil.copy(folder / name, plain)
    for path in folder, plain:
        said = json.loads(shell("ls", "--items", "--json", path))
        items = {item["key"]: item["value"] for item in said["items"]}
        assert items == {"i": 2**40, "i4": -5, "f": 0.1, "f4": 0.5, "t": True, "text": "café", "none": None, "empty": {}, "row": []}, items
        assert [t["key"] for t in said["tensors"]] == ["array", "half"] and said["format"] == "orbax", said
    assert b"belong to nothing" not in shell("inspect", plain)


def damaged_chunks(shell):
    """Each that cannot be decoded is told, wherever in the store it lies; the store itself is whole."""
    folder, values = shell.work / "d", {}
    for number in range(4):
        keys, _ = array([number + i / 7 for i in range(300)])
        about = json.loads(keys[".zarray"]) | {"compressor": {"id": "zlib", "level": 1}}
        values |= {f"w{number}/.zarray".encode(): json.dumps(about).encode(), f"w{number}/0".encode(): zlib.compress(keys["0"])}
    ocdbt.Store(folder).write(values, inline=0)
    shell("verify", "--deep", folder)
    listed = {t["key"]: t["chunks"][0] for t in json.loads(shell("ls", "--json", "--chunks", folder))["tensors"]}
    for key in "w1", "w3":
        path, chunk = folder / listed[key]["file"], listed[key]
        data = bytearray(path.read_bytes())
        data[chunk["offset"] + chunk["bytes"] - 2] ^= 1
        path.write_bytes(data)
    for words in [], ["--deep"]:
        done = shell.any("verify", "--json", *words, folder)
        told = sorted((f["kind"], f["key"]) for f in json.loads(done.stdout)["findings"] if f["severity"] == "failure")
        assert done.returncode == 1 and told == [("damage", "w1"), ("damage", "w3")], (words, done.returncode, told)


def steps(root):
    """A root of steps, and of each the state in it."""
    def test(shell):
        case = root / "orbax" / "orbax-ocdbt"
        top = shell.work / "run"
        for number, item in (("5", "default"), ("100", "state"), ("20", "params")):
            shutil.copytree(case / "ckpt", top / number / item)
            shutil.copy(case / "ckpt" / "_CHECKPOINT_METADATA", top / number)
        (top / "999").mkdir()  # a number alone is no step
        assert "sub-directory\t100/state\n" in shell("inspect", top).decode()
        assert "sub-directory\t20/params\n" in shell("inspect", top, "--iteration", "20").decode()
        assert "sub-directory\tdefault\n" in shell("inspect", top / "5").decode()
        assert "iterations here: 100, 20, 5" in shell("inspect", top, "--iteration", "7", exit_status=2).decode()
        (top / "100" / "state" / "_METADATA").unlink()
        shell("diff", "--items", "ignore", "--exclude", "count", "--exclude", "lr", top / "100" / "state", top / "5")
    return test


def named_steps(root):
    """Steps under every name that Orbax and flax give them, without the marker, as of older versions; and folders that are none."""
    state = root / "orbax" / "orbax-ocdbt" / "ckpt"

    def test(shell):
        forms = {"fixed": ("00000099", "00000100", "00000200", "default"), "bare": ("99", "100", "2000", "params"),
                 "prefix": ("checkpoint_99", "checkpoint_100", "checkpoint_200", "items"),
                 "both": ("train_state_0099", "train_state_0100", "train_state_0200", "state"),
                 "flax": ("checkpoint_99", "checkpoint_100", "checkpoint_200", "")}
        for form, (first, middle, last, item) in forms.items():
            top = shell.work / form
            for step in (first, middle, last):
                shutil.copytree(state, top / step / item)
                (top / step / item / "_CHECKPOINT_METADATA").unlink()
            for other in ("checkpoint_900", "00000900", "logs_9", "300.orbax-checkpoint-tmp-1700000000"):
                (top / other / "default").mkdir(parents=True)  # that has no tree in it
                (top / other / "default" / "notes.txt").write_text("no checkpoint")
            below = f"/{item}" if item else ""
            assert f"sub-directory\t{last}{below}\n" in shell("inspect", top).decode(), form
            assert f"sub-directory\t{middle}{below}\n" in shell("inspect", top, "--iteration", "100").decode(), form
            said = shell("inspect", top, "--iteration", "7", exit_status=2).decode()
            assert "iterations here: " in said and "900" not in said, said
        top = shell.work / "v1"  # the newer interface: one item
        shutil.copytree(state, top / "pytree")
        shutil.move(top / "pytree" / "_CHECKPOINT_METADATA", top / "_CHECKPOINT_METADATA")
        assert "sub-directory\tpytree\n" in shell("inspect", top).decode()
        (shell.work / "none" / "checkpoint_5").mkdir(parents=True)
        shell("inspect", shell.work / "none", exit_status=5)
    return test


def refused(shell):
    """What is wrong is named with the file and the place in it."""
    values = {b"a/.zarray": array([1.0] * 3)[0][".zarray"], b"a/0": struct.pack("<3f", 1, 2, 3)}
    files = [(b"", b"d/data")]
    folder = shell.work / "r"

    def say(exit_status=4):
        return shell("ls", folder, exit_status=exit_status).decode()

    def manifest(**changes):
        said = dict(root=(0, 0, 1), files=files, height=0) | changes
        (folder / "manifest.ocdbt").write_bytes(ocdbt.framed(ocdbt.MANIFEST, ocdbt.manifest_body(**said)))

    def nodes(*bodies):
        """The last one is the root."""
        store = ocdbt.Store(folder)
        places = [store.put(ocdbt.framed(ocdbt.NODE, body)) for body in bodies]
        store.write_data()
        manifest(root=(0, *places[-1]), height=bodies[-1][0])
        return places

    ocdbt.Store(folder).write(values)
    shell("ls", folder)
    good = (folder / "manifest.ocdbt").read_bytes()
    for change, why, status in (
            (lambda b: b"\0" + b[1:], "it does not begin as a manifest of OCDBT does", 4), (lambda b: b[:-1], "it says that it has", 4),
            (lambda b: b[:20] + b"\1" + b[21:], "its CRC-32C is", 4), (lambda b: b[:10], "it does not begin", 4),
            (lambda b: ocdbt.framed(ocdbt.MANIFEST, b[14:-4], version=1), "version 1 with compression 0 of OCDBT is not known", 5),
            (lambda b: ocdbt.framed(ocdbt.MANIFEST, b[14:-4], compression=2), "version 0 with compression 2 of OCDBT is not known", 5),
            (lambda b: ocdbt.framed(ocdbt.MANIFEST, b[14:-4], compression=1), "zstd", 4),
            (lambda b: ocdbt.framed(ocdbt.MANIFEST, b[14:-4] + b"\0"), "1 bytes are left behind its body", 4),
            (lambda b: ocdbt.framed(ocdbt.MANIFEST, b[14:-5]), "of its body", 4),
            (lambda b: ocdbt.framed(ocdbt.MANIFEST, b[14:40]), "its compression level is cut off, at byte", 4)):
        (folder / "manifest.ocdbt").write_bytes(change(good))
        said = say(status)
        assert why in said and "manifest.ocdbt" in said, (why, said)
    manifest(kind=2)
    assert "neither a single manifest nor a numbered one" in say()
    manifest(kind=1, with_versions=False)
    assert "the manifest is numbered, and there is no manifest.ocdbt with a number" in say()
    manifest(root=(3, 0, 9))
    assert "the root is in a file that the table lacks" in say()
    manifest(files=[(b"", b"d/none")])
    assert "'d/none' is not there, and the OCDBT store has data in it" in say()
    manifest(files=[(b"", b"../data")])
    say()
    manifest(root=(0, 0, 10**9))
    assert "a node of 1000000000 bytes from 0 on lies behind the end of 'd/data'" in say()
    manifest(keys=0)
    assert json.loads(shell("ls", "--json", folder))["tensors"] == []

    entry = (b"a/0", b"x")
    for body, why in (
            (ocdbt.leaf_body([], files), "a node has no keys"),
            (ocdbt.leaf_body([(b"b", b""), (b"a", b"")], files), "keys do not ascend"),
            (ocdbt.leaf_body([(b"b", (1, 0, 1))], files), "a place is in a file that the table lacks"),
            (ocdbt.leaf_body([(b"b", (0, 10**6, 1))], files), "a value of 1 bytes from 1000000 on lies behind the end of 'd/data'"),
            (ocdbt.leaf_body([(b"b", (0, 2**64 - 1, 2))], files), "lies behind the end of 'd/data'"),
            (ocdbt.leaf_body([entry], files)[:-1], "a value is cut off"),
            (ocdbt.leaf_body([entry], files).replace(b"\0x", b"\2x"), "a value is neither inline nor in a file"),
            (b"\0" + ocdbt.varint(10**6), "a table is longer than what is left"),
            (b"\0\0" + b"\xff" * 11, "a number is cut off or has more than 64 bits"),
            (b"\0\0" + ocdbt.varint(2) + ocdbt.column([9, 1, 1]) + b"abcdefgh", "a text shares more with the one before than that has"),
            (b"\0\1" + ocdbt.column([3, 5]) + b"d/d\1", "the base of a path is longer than the path"),
            (ocdbt.interior_body(1, [(b"a", 2, 0, 0, 1)], files), "keys below begin with more than their key"),
            (ocdbt.interior_body(3, [(b"a", 0, 0, 0, 1)], files), "d/data")):
        nodes(body)
        said = say()
        assert why in said, (why, said)
    # Trees: another height than was said, keys that go back from one child to the next, and one that is its own child.
    leaf = ocdbt.leaf_body([entry], files)
    size = len(ocdbt.framed(ocdbt.NODE, leaf))
    nodes(leaf, ocdbt.interior_body(2, [(b"a", 0, 0, 0, size)], files))
    assert "a node of height 0 lies where one of 1 should be" in say()
    nodes(leaf, ocdbt.interior_body(1, [(b"a", 0, 0, 0, size), (b"b", 0, 0, 0, size)], files))
    assert "keys do not ascend: 'a/0' comes behind 'a/0'" in say()
    nodes(leaf, ocdbt.leaf_body([(b"b/0", b"x")], files), ocdbt.interior_body(1, [(b"b", 0, 0, 0, size), (b"a", 0, 0, size, size)], files))
    assert "keys do not ascend, at byte" in say()
    nodes(leaf, ocdbt.interior_body(1, [(b"a", 0, 0, size, 75)], files))
    say()
    (folder / "_METADATA").write_text("[]")
    ocdbt.Store(folder).write(values)
    assert "'_METADATA' has no object 'tree_metadata'" in say()
    (folder / "_METADATA").write_text("{")
    assert "_METADATA" in say()


def shared_nodes(shell):
    """Nodes that are met under very many beginnings: a small file of keys without end, of one value that each of them brings again, or
    of bytes that are read and skipped, spends the work that one input has."""
    files = [(b"", b"d/data")]
    leaf, value, many = ocdbt.leaf_body([(b"0", b"")], files), [(b"0", bytes(1 << 20))], [(b"%03d" % i, b"") for i in range(1000)]
    skipped = struct.pack("<II", 0x184D2A50, 1 << 20) + bytes(1 << 20)
    plain_frame = struct.pack("<IBI", 0xFD2FB528, 0xA0, len(leaf)) + (1 | len(leaf) << 3).to_bytes(3, "little") + leaf
    nodes = {"s": (ocdbt.framed(ocdbt.NODE, ocdbt.leaf_body(many, files)), (1, 2, 3)),
             "v": (ocdbt.framed(ocdbt.NODE, ocdbt.leaf_body(value, files)), (1,)),
             "z": (ocdbt.framed(ocdbt.NODE, skipped + plain_frame, compression=1), (1,))}
    for name, (node, heights) in nodes.items():
        folder = shell.work / name
        store = ocdbt.Store(folder)
        place = store.put(node)
        for height in heights:
            entries = [(b"%03d" % i, 3, 0, *place) for i in range(1000)]
            place = store.put(ocdbt.framed(ocdbt.NODE, ocdbt.interior_body(height, entries, files)))
        store.write_data()
        manifest = ocdbt.manifest_body((0, *place), files, heights[-1])
        (folder / "manifest.ocdbt").write_bytes(ocdbt.framed(ocdbt.MANIFEST, manifest))
        assert "work" in shell("ls", folder, exit_status=6).decode()


def long_keys(shell):
    """Keys that begin alike for long, and such with a NUL, are whole: nothing is read behind them, and none is taken for another."""
    stem = "n" * 3000
    wanted, entries, files = {}, [], [(b"", b"d/data")]
    folder = shell.work / "long"
    store = ocdbt.Store(folder)
    for number, (begin, end) in enumerate([(stem, ".a"), (stem, ".b"), ("x\0", "y"), ("x\0", "z")]):
        keys, (_, wanted[begin + end]) = array([float(number)])
        leaf = ocdbt.leaf_body(sorted((f"{end}/{name}".encode(), value) for name, value in keys.items()), files)
        entries.append((f"{begin}{end}/.zarray".encode(), len(begin), 0, *store.put(ocdbt.framed(ocdbt.NODE, leaf))))
    root = store.put(ocdbt.framed(ocdbt.NODE, ocdbt.interior_body(1, entries, files)))
    store.write_data()
    (folder / "manifest.ocdbt").write_bytes(ocdbt.framed(ocdbt.MANIFEST, ocdbt.manifest_body((0, *root), files, 1)))
    assert {tensor["key"]: tensor["hash"] for tensor in json.loads(shell("hash", "--json", folder))["tensors"]} == wanted


def frames_without_a_size(shell):
    """A compressed node that does not say how long it is takes the memory that its bytes may expand to, not that of the longest."""
    values = {b"a/.zarray": array([1.0] * 3)[0][".zarray"], b"a/0": struct.pack("<3f", 1, 2, 3)}
    folder = shell.work / "f"
    store = ocdbt.Store(folder)
    body = ocdbt.leaf_body(sorted(values.items()), [(b"", b"d/data")])
    frame = b"\x28\xb5\x2f\xfd\0\0" + struct.pack("<I", len(body) << 3 | 1)[:3] + body  # one block as it is, in a window of 1 KiB
    place = store.put(ocdbt.framed(ocdbt.NODE, frame, compression=1))
    store.write_data()
    (folder / "manifest.ocdbt").write_bytes(ocdbt.framed(ocdbt.MANIFEST, ocdbt.manifest_body((0, *place), [(b"", b"d/data")], 0)))
    limit = "unlimited" if small_models.is_sanitized(shell.binary) else 1000000
    done = subprocess.run(["bash", "-c", f"ulimit -v {limit}; exec \"$@\"", "-", shell.binary, "cat", folder, "a", "--as", "raw"],
                          capture_output=True, timeout=120)
    assert done.stdout == values[b"a/0"], done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"# seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    return small_models.run(arguments.bin, [
        ("drawn stores come back", drawn(chance, arguments.count)), ("numbers and texts", numbers), ("steps", steps(arguments.root)),
        ("steps by their names", named_steps(arguments.root)),
        ("what is wrong in a store", refused), ("nodes that are shared", shared_nodes),
        ("long keys", long_keys), ("frames without a size", frames_without_a_size), ("damaged chunks are all told", damaged_chunks)])


if __name__ == "__main__":
    sys.exit(main())
