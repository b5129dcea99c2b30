#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Snapshots of torchsnapshot: manifests whose tensors lie in shards, chunks and slabs, and what ranks have for themselves. Prints TAP.

usage: torchsnapshot_test.py --bin PATH --root FIXTURES [--count N] [--seed N]
Real snapshots are among the fixtures; here a writer of the test's own draws others, and damages them.
"""
import argparse
import hashlib
import json
import pathlib
import random
import struct
import sys
import time

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import snapshot_stub as stub  # noqa: E402
import torch_stub  # noqa: E402

SIZES = {"F32": 4, "F64": 8, "I64": 8, "U8": 1, "BF16": 2, "C64": 8}


def volume(shape):
    out = 1
    for extent in shape:
        out *= extent
    return out


def digest(dtype, shape, data):
    return dtype, list(shape), hashlib.sha256(data).hexdigest()


def found(shell, path, *options):
    tensors = json.loads(shell("hash", "--json", path, *options))["tensors"]
    return {t["key"]: (t["dtype"], t["shape"], t["hash"]) for t in tensors}


def items(shell, path):
    """{key: value}; parts of values, which are listed too, left out."""
    listed = {item["key"]: item["value"] for item in json.loads(shell("ls", "--items", "--json", path))["items"]}
    return {key: value for key, value in listed.items() if not key.endswith((".object.rank", ".set.a"))}


def cut(chance, extent):
    """Borders of pieces: 0, …, extent."""
    return [0, *sorted(chance.sample(range(1, extent), chance.randint(0, min(3, extent - 1)))), extent]


def pieces(chance, dtype, shape, data):
    """(offsets, sizes, bytes) of a matrix cut along both axes."""
    rows, columns = cut(chance, shape[0]), cut(chance, shape[1])
    size = SIZES[dtype]
    for top, bottom in zip(rows, rows[1:]):
        for left, right in zip(columns, columns[1:]):
            lines = [data[(r * shape[1] + left) * size:(r * shape[1] + right) * size] for r in range(top, bottom)]
            yield (top, left), (bottom - top, right - left), b"".join(lines)


def put_tensor(chance, snapshot, path):
    """Adds one that all ranks have: its digest."""
    dtype, kind = chance.choice(list(SIZES)), chance.choice(["plain", "saved", "chunks", "ShardedTensor", "DTensor"])
    shape = [chance.randint(1, 6), chance.randint(1, 5)]
    if kind in ("plain", "saved"):
        shape = [chance.randint(0, 4) for _ in range(chance.randint(0, 3))]
    data = chance.randbytes(SIZES[dtype] * volume(shape))
    is_batched, slab = chance.random() < 0.7, f"batched/{chance.randrange(3)}"
    number = [0]

    def place(piece_shape, content, replicated, is_saved=False):
        number[0] += 1
        location = slab if is_batched else f"{path.replace('/', '_')}_{number[0]}"
        return snapshot.tensor(dtype, piece_shape, content, location, replicated, is_batched, is_saved)

    if kind in ("plain", "saved"):
        is_saved = kind == "saved" and dtype in stub.STORAGES
        entry = place(shape, data, True, is_saved)
        snapshot.add(path, entry, None if chance.random() < 0.5 else [0])
    elif kind == "chunks":
        chunks = [stub.shard(at, size, place(size, content, True)) for at, size, content in pieces(chance, dtype, shape, data)]
        snapshot.add(path, stub.chunked(dtype, shape, chunks, True), None if chance.random() < 0.5 else [0])
    else:
        of_ranks = [[] for _ in range(snapshot.world)]
        for at, size, content in pieces(chance, dtype, shape, data):
            copies = chance.choice([1, 1, 2]) if kind == "DTensor" else 1
            for rank in chance.sample(range(snapshot.world), min(copies, snapshot.world)):
                of_ranks[rank].append(stub.shard(at, size, place(size, content, False)))
        for rank, shards in enumerate(of_ranks):
            snapshot.add(path, stub.sharded(shards, kind), [rank])
    return digest(dtype, shape, data)


def drawn_snapshot(chance):
    """(the snapshot, {key: digest})"""
    snapshot = stub.Snapshot(chance.randint(1, 4))
    keys = [f"k{i}" for i in range(chance.randint(1, 8))]
    snapshot.add("app", stub.container("dict", keys))
    return snapshot, {f"app.{key}": put_tensor(chance, snapshot, f"app/{key}") for key in keys}


def drawn(chance, rounds):
    def test(shell):
        for number in range(rounds):
            snapshot, wanted = drawn_snapshot(chance)
            folder = snapshot.write(shell.work / f"s{number}")
            assert found(shell, folder) == wanted, number
            shell("verify", "--deep", folder)
            for to in ("torch-dcp", "safetensors"):
                shell("convert", folder, f"out{number}{to}", "--to", to, "--no-sync")
                assert found(shell, f"out{number}{to}") == wanted, (number, to)
    return test


def paths_snapshot():
    """What a part of a path is, its container says: a place in a list, a number or a text as a dict's key."""
    snapshot = stub.Snapshot()
    snapshot.add("app", stub.container("dict", ["a/b", "50%", "list", "ints", "both", "none"]))
    snapshot.add("app/a%2Fb", stub.told(1))
    snapshot.add("app/50%25", stub.told(2))
    snapshot.add("app/list/1", stub.told("second"))  # before its container
    snapshot.add("app/list", stub.container("list"))
    snapshot.add("app/list/0", stub.told("first"))
    snapshot.add("app/ints", stub.container("OrderedDict", [0, -3, 12]))
    for key in (0, -3, 12):
        snapshot.add(f"app/ints/{key}", stub.told(key))
    snapshot.add("app/both", stub.container("dict", [7, "8", "x"]))
    for key in (7, 8, "x"):
        snapshot.add(f"app/both/{key}", stub.told(str(key)))
    snapshot.add("app/none", stub.container("dict", []))
    snapshot.add("app/empty", stub.container("list"))
    snapshot.add("app/zz%ZZ%4", stub.told(True))  # no escapes
    return snapshot


def paths(shell):
    paths_snapshot().write(shell.work / "s")
    shell("convert", "s", "s.pt", "--to", "torch", "--no-sync")
    state = torch_stub.load(shell.work / "s.pt")
    assert state == {"app": {"a/b": 1, "50%": 2, "list": ["first", "second"], "ints": {0: 0, -3: -3, 12: 12},
                             "both": {7: "7", "8": "8", "x": "x"}, "none": {}, "empty": [], "zz%ZZ%4": True}}, state
    assert items(shell, "s")["app.ints.12"] == 12 and items(shell, "s")["app.list.1"] == "second"


GIVEN = {"int": -5, "big": 2 ** 70, "str": "caf\u00e9\n", "true": True, "false": False, "float": 0.1, "small": 5e-324, "minus": -0.0}


def values_snapshot():
    snapshot = stub.Snapshot()
    for key, value in GIVEN.items():
        snapshot.add(f"app/{key}", stub.told(value))
    snapshot.add("app/inf", stub.told(float("inf")))
    for size in range(6):
        snapshot.add(f"app/bytes{size}", stub.told(bytes(range(250, 250 + size))))
    for key, value in (("none", None), ("set", {"a": [1, 2]})):
        snapshot.add(f"app/{key}", snapshot.object(value, f"0/app/{key}"))
    return snapshot


def values(shell):
    values_snapshot().write(shell.work / "s")
    wanted = {f"app.{key}": value for key, value in GIVEN.items()} | {"app.inf": "inf", "app.none": None, "app.set": {"a": [1, 2]}}
    wanted |= {f"app.bytes{size}": {"__bytes__": bytes(range(250, 250 + size)).hex()} for size in range(6)}
    assert items(shell, "s") == wanted, items(shell, "s")


def ranks_snapshot():
    """What the manifest says otherwise of another rank is an item of its own; tensors of ranks are items, in rows."""
    snapshot, data = stub.Snapshot(3), [bytes(range(8 * n, 8 * n + 24)) for n in range(3)]
    for rank in range(3):
        snapshot.add("app/step", stub.told(5), [rank])
        snapshot.add("app/rank", stub.told(rank // 2), [rank])
        snapshot.add("app/own", snapshot.tensor("U8", [6, 4], data[rank], f"{rank}/app/own", is_batched=False), [rank])
        rows = [stub.shard((at, 0), (2, 4), snapshot.tensor("U8", [2, 4], data[rank][4 * at:4 * at + 8])) for at in (0, 2, 4)]
        snapshot.add("app/rows", stub.chunked("U8", [6, 4], rows), [rank])
        saved = snapshot.tensor("C64", [3], data[rank], f"{rank}/app/saved", is_batched=False, is_saved=True)
        snapshot.add("app/saved", saved, [rank])
        snapshot.add("app/same", snapshot.tensor("U8", [2], b"ab", "0/app/same", is_batched=False), [rank])  # of one file
        snapshot.add("app/object", snapshot.object({"rank": rank}, f"{rank}/app/object"), [rank])
    snapshot.add("app/last", stub.told(9), [2])
    snapshot.add("app/list", stub.container("list"), [0, 2])
    snapshot.add("app/list/0", stub.told(1), [0, 2])
    snapshot.add("app/list", stub.told(8), [1])  # which has a value where others have a list
    snapshot.add("app/all", stub.told(4, True), [1])
    snapshot.add("app/w", snapshot.tensor("U8", [3], b"xyz", replicated=True))
    return snapshot, data


def of_ranks(shell):
    snapshot, data = ranks_snapshot()
    snapshot.write(shell.work / "s")
    assert found(shell, "s") == {"app.w": digest("U8", [3], b"xyz")}
    keys = set(items(shell, "s"))
    own = {f"app.{key}" for key in ("rank", "own", "rows", "saved", "object")}
    assert keys == own | {"app.step", "app.same", "app.all", "app.list.0", "rank_1.app.list", "rank_2.app.last"} | \
        {f"rank_{rank}.{key}" for rank in (1, 2) for key in own} - {"rank_1.app.rank"}, keys
    shell("convert", "s", "s.pt", "--to", "torch", "--no-sync")
    state = torch_stub.load(shell.work / "s.pt")
    for rank in range(3):
        app = (state[f"rank_{rank}"] if rank else state)["app"]
        for key, size in (("own", (6, 4)), ("rows", (6, 4)), ("saved", (3,))):
            assert app[key].size == size and app[key].storage.data == data[rank], (rank, key)
        assert app["object"] == {"rank": rank}
    assert state["app"]["same"].storage.data == b"ab" and state["rank_2"]["app"]["last"] == 9
    shell("verify", "--deep", "s")


def one_of(entry, world=1, files=None):
    snapshot = stub.Snapshot(world)
    snapshot.files |= files or {"f": bytes(64)}
    snapshot.add("app/w", entry, [0])
    return snapshot


def tensor(**changes):
    return {"type": "Tensor", "serializer": "buffer_protocol", "dtype": "torch.float32", "shape": [2, 3], "replicated": True,
            "location": "f", "byte_range": [4, 28]} | changes


def wrong():
    """(an entry, exit status, what is said of it)"""
    part = tensor(shape=[1, 3], byte_range=[0, 12])
    return [
        (tensor(byte_range=[4, 27]), 4, "there are 23 bytes for a shape that takes 24"),
        (tensor(byte_range=[4, 29]), 4, "there are 25 bytes for a shape that takes 24"),
        (tensor(byte_range=None), 4, "there are 64 bytes for a shape that takes 24"),
        (tensor(byte_range=[48, 72]), 4, "24 bytes from here on are wanted, 'f' has 64"),
        (tensor(byte_range=[28, 4]), 4, "\"byte_range\" is not where bytes begin and where they end"),
        (tensor(byte_range=[-4, 20]), 4, "\"byte_range\" is not where"),
        (tensor(byte_range=[4]), 4, "\"byte_range\" is not where"),
        (tensor(byte_range="all"), 4, "\"byte_range\" is not where"),
        (tensor(location=5), 4, "there is no \"location\""),
        (tensor(location="gone"), 4, "'gone', where the manifest has it, is not there"),
        (tensor(location="../f"), 4, "'..'"),
        (tensor(location="/f"), 4, "starts with '/'"),
        (tensor(shape=[2, -3]), 4, "its shape is too large"),
        (tensor(shape=[1 << 40, 1 << 40]), 4, "its shape is too large"),
        (tensor(shape="6"), 4, "\"shape\" is no list of at most"),
        (tensor(shape=[1] * 65), 4, "\"shape\" is no list of at most"),
        (tensor(dtype="torch.float33"), 5, "type 'torch.float33' is not known"),
        (tensor(dtype="float32"), 5, "type 'float32' is not known"),
        (tensor(dtype="torch.qint8"), 5, "type 'torch.qint8': quantised tensors of torch are not read"),
        (tensor(serializer="per_tensor_qtensor"), 5, "serializer 'per_tensor_qtensor' is not known"),
        ({"type": "Odd"}, 5, "entries of type 'Odd' are not known"),
        ({"kind": "Tensor"}, 4, "'0/app/w' has no \"type\""),
        (stub.sharded(5), 4, "there is no list \"shards\""),
        (stub.sharded([]), 4, "no rank has a piece of it"),
        (stub.sharded([stub.shard([0], [1, 3], part)]), 4, "\"offsets\" has 1 numbers for 2 axes"),
        (stub.sharded([stub.shard([0, 0], [2, 3], part)]), 4, "a shard's \"sizes\" are not the shape of its tensor"),
        (stub.sharded([stub.shard([-1, 0], [1, 3], part)]), 4, "a piece of it begins nowhere"),
        (stub.sharded([stub.shard([2 ** 63 - 1, 0], [1, 3], part)]), 4, "a piece of it begins nowhere"),
        (stub.sharded([stub.shard([1, 0], [1, 3], part)]), 4, "app.w"),  # a gap
        (stub.sharded([stub.shard([0, 0], [1, 3], part), stub.shard([1, 0], [1, 3], part | {"dtype": "torch.int32"})]), 4,
         "of different types"),
        (stub.chunked("F32", [2], [stub.shard([0, 0], [1, 3], part)], True), 4, "another number of axes than its pieces"),
        ({"type": "int", "serialized_value": "five"}, 4, "its \"serialized_value\" is no int"),
        ({"type": "int", "serialized_value": "5.0"}, 4, "its \"serialized_value\" is no int"),
        ({"type": "bool", "serialized_value": "yes"}, 4, "its \"serialized_value\" is no bool"),
        ({"type": "float", "serialized_value": "AAAA"}, 4, "its \"serialized_value\" is no float"),
        ({"type": "float", "serialized_value": "AAAAAAAABEA"}, 4, "its \"serialized_value\" is no float"),
        ({"type": "bytes", "serialized_value": "A*=="}, 4, "its \"serialized_value\" is no bytes"),
        ({"type": "str"}, 4, "its \"serialized_value\" is no str"),
    ]


def refused(shell):
    for number, (entry, status, why) in enumerate(wrong()):
        one_of(entry).write(shell.work / "s")
        said = shell("hash", "s", exit_status=status).decode()
        assert why in said and ("app/w" in said or "app.w" in said), (number, why, said)
    part = tensor(shape=[1, 3], byte_range=[0, 12])
    private = stub.chunked("F32", [2, 3], [stub.shard([1, 0], [1, 3], part), stub.shard([0, 0], [1, 3], part)])
    one_of(private, 2).write(shell.work / "s")
    assert b"the tensor of one rank is no run of rows" in shell("hash", "s", exit_status=5)
    both = one_of(tensor(), 2)
    both.add("app/w", stub.sharded([]), [1])
    both.write(shell.work / "s")
    assert b"it is sharded for one rank, and whole for another" in shell("hash", "s", exit_status=4)
    for text, status, why in (
            ("{", 4, "'.snapshot_metadata'"), ("version: 0.0.1\nmanifest: {}\n", 5, "torchsnapshot before 0.1.0 wrote YAML"),
            ("{}", 4, "there is no \"world_size\" of 1 or more"), ('{"world_size": 0}', 4, "of 1 or more"),
            ('{"world_size": 1}', 4, "there is no object \"manifest\""),
            ('{"world_size": 1, "manifest": {"1/a": {"type": "list"}}}', 4, "'1/a' does not begin with a rank below the world's size, 1"),
            ('{"world_size": 1, "manifest": {"a/0": {"type": "list"}}}', 4, "does not begin with a rank")):
        (shell.work / "s" / ".snapshot_metadata").write_text(text)
        said = shell("hash", "s", exit_status=status).decode()
        assert why in said, (why, said)


def left_out(shell):
    """What is not read is left out where that is wanted."""
    snapshot = one_of(tensor(dtype="torch.qint8"))
    snapshot.add("app/v", tensor())
    snapshot.write(shell.work / "s")
    assert set(found(shell, "s", "--lenient")) == {"app.v"}
    assert b"app.w" in shell("inspect", "s", "--lenient")


def damaged(shell):
    """Checksums of what torch.save wrote are compared; a file that is gone is told, and the rest is saved."""
    snapshot = stub.Snapshot()
    snapshot.add("app/c", snapshot.tensor("C64", [4], bytes(range(32)), "0/app/c", is_batched=False, is_saved=True))
    snapshot.add("app/o", snapshot.object({"text": "x" * 50}, "0/app/o"))
    snapshot.add("app/w", snapshot.tensor("F32", [2], struct.pack("<2f", 1, 2), "batched/a"))
    snapshot.add("app/v", snapshot.tensor("F32", [2], struct.pack("<2f", 3, 4), "batched/b"))
    folder = snapshot.write(shell.work / "s")
    said = shell("verify", "s").decode()
    assert "uncovered" in said and "2 of 3 tensors" in said, said
    for name, inside in (("0/app/c", bytes(range(32))), ("0/app/o", b"x" * 50)):
        good = (folder / name).read_bytes()
        at = good.index(inside)
        (folder / name).write_bytes(good[:at + 1] + bytes([good[at + 1] ^ 1]) + good[at + 2:])
        said = shell("verify", "s", exit_status=1).decode()
        assert name in said and "CRC-32" in said, said
        done = shell.any("salvage", "s", f"rest-{name[-1]}", "--to", "torch-dcp", "--no-sync")
        assert done.returncode == 1 and f"app.{name[-1]}" in done.stdout, done.stdout
        (folder / name).write_bytes(good)
    (folder / "stray").write_bytes(b"?")
    assert b"'stray': nothing refers to it" in shell("verify", "s")
    (folder / "batched" / "b").unlink()
    assert b"app/v" in shell("hash", "s", exit_status=4)
    said = shell("verify", "s", exit_status=1).decode()
    assert "app.v" in said, said
    done = shell.any("salvage", "s", "rest2", "--to", "torch-dcp", "--no-sync")
    assert done.returncode == 1 and "app.v" in done.stdout, (done.stdout, done.stderr)
    assert set(found(shell, "rest2")) == {"app.c", "app.w"}
    (folder / "0" / "app" / "o").unlink()
    said = shell("verify", "s", exit_status=1).decode()
    assert "item 'app.o' is lost: it lies in '0/app/o', which is gone or cut off" in said, said
    done = shell.any("salvage", "s", "rest3", "--to", "torch-dcp", "--no-sync")
    assert done.returncode == 1 and "app.o" in done.stdout, (done.stdout, done.stderr)


def replicas(shell):
    """Ranks may list copies of what is replicated: each is compared; the same bytes, listed again, are none."""
    for second, status in (b"abcd", 0), (b"abce", 1):
        snapshot = stub.Snapshot(3)
        for rank, data in enumerate((b"abcd", second)):
            snapshot.add("app/w", snapshot.tensor("U8", [4], data, f"replicated/{rank}", True), [rank])
        snapshot.add("app/w", snapshot.manifest["0/app/w"], [2])
        snapshot.write(shell.work / "s")
        said = shell("verify", "s", exit_status=status).decode()
        assert "1 replicas" in said and ("differ" in said) == (status == 1), said


def recognised(shell):
    folder = one_of(tensor()).write(shell.work / "s")
    for path in ("s", "s/.snapshot_metadata"):
        assert json.loads(shell("inspect", "--json", path))["format"] == "torchsnapshot", path
        assert set(found(shell, path)) == {"app.w"}
    step = shell.work / "runs" / "global_step_3"
    step.parent.mkdir()
    one_of(tensor()).write(step)
    (step / "stray").write_bytes(b"?")
    (step.parent / "latest_checkpointed_iteration.txt").write_text("3")
    assert found(shell, "runs") == found(shell, "s")
    assert b"'stray': nothing refers to it" in shell("verify", "runs")
    (folder / ".snapshot_metadata").unlink()
    assert b"no known checkpoint format" in shell("inspect", "s", exit_status=5)
    said = shell("convert", one_of(tensor()).write(shell.work / "t"), "out", "--to", "torchsnapshot", exit_status=5).decode()
    assert "read only" in said, said


def real(root):
    """What torchsnapshot wrote of ranks: each one's tensor."""
    def test(shell):
        manifests = [json.loads(p.read_text()) | {"folder": p.parent} for p in sorted((root / "torchsnapshot").glob("*/manifest.json"))]
        cases = [case for case in manifests if case.get("also", {}).get("private")]
        assert len(cases) == 2, cases
        for case in cases:
            shell("convert", case["folder"] / case["path"], "out.pt", "--to", "torch", "--no-sync", "--overwrite")
            state = torch_stub.load(shell.work / "out.pt")
            for rank, wanted in enumerate(case["also"]["private"]):
                app = (state[f"rank_{rank}"] if rank else state)["app"]
                data = (app.get("own") or app["private"]).storage.data
                found_of_rank = data.hex() if isinstance(wanted, str) else digest("I64", (app.get("own") or app["private"]).size, data)
                assert found_of_rank == (wanted if isinstance(wanted, str) else (wanted["dtype"], wanted["shape"], wanted["sha256"])), case
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"# seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    return small_models.run(arguments.bin, [
        ("drawn snapshots come back", drawn(chance, arguments.count)), ("parts of paths", paths), ("values", values),
        ("what ranks have for themselves", of_ranks), ("what is wrong", refused), ("what is left out", left_out), ("damage", damaged),
        ("replicas", replicas), ("which folders", recognised), ("what torchsnapshot wrote", real(arguments.root))])


if __name__ == "__main__":
    sys.exit(main())
