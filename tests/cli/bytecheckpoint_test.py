#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ByteCheckpoint's folders: DCP whose blobs are bare storages, and a file of extra state for each rank. Prints TAP.

usage: bytecheckpoint_test.py --bin PATH --root FIXTURES [--count N] [--seed N]
Real folders are among the fixtures; here a writer of the test's own draws others, with views, gaps and ranks as they come, and damages
them.
"""
import argparse
import hashlib
import io
import json
import pathlib
import pickle
import random
import shutil
import struct
import sys
import time

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub as torch  # noqa: E402

METADATA, STORAGE = "torch.distributed.checkpoint.metadata", "bytecheckpoint.checkpointer.meta_type"
KINDS = {"F32": ("FloatStorage", "float32", 4), "I64": ("LongStorage", "int64", 8), "U8": ("ByteStorage", "uint8", 1),
         "BF16": ("BFloat16Storage", "bfloat16", 2)}


def named(module, name, **state):
    return torch.Object(torch.Named(module, name), state)


def size(values):
    return torch.Call(torch.Named("torch", "Size"), (tuple(values),))


class Raw(bytes):
    """Bytes as protocol 3 writes them."""


class Pickler(torch.Pickler):
    def save(self, value, save_persistent_id=True):
        if isinstance(value, Raw):
            return self.write(pickle.BINBYTES + struct.pack("<I", len(value)) + value)
        return super().save(value, save_persistent_id)


def pickled(value, kind=Pickler):
    out = io.BytesIO()
    kind(out).dump(value)
    return out.getvalue()


def chunk(offsets, sizes):
    return named(METADATA, "ChunkStorageMetadata", offsets=size(offsets), sizes=size(sizes))


def index(name, offset):
    return named(METADATA, "MetadataIndex", fqn=name, offset=None if offset is None else size(offset), index=None)


class Folder:
    """A folder of DCP as ByteCheckpoint writes it."""

    def __init__(self):
        self.files, self.entries, self.storage, self.said = {}, {}, [], []

    def blob(self, name, offset, rank, data, said, gap=0):
        file = self.files.setdefault(f"__{rank}_0.distcp", bytearray())
        file += bytes(gap)
        self.storage.append((index(name, offset), named(STORAGE, "_StorageInfo", relative_path=f"__{rank}_0.distcp", offset=len(file),
                                                        length=len(data))))
        self.said.append((index(name, offset), said))
        file += data

    def tensor(self, name, dtype, shape, chunks):
        state = torch.Named("torch", KINDS[dtype][1]), None, False, None, False
        properties = torch.Object(torch.Named(METADATA, "TensorProperties"), state)
        self.entries[name] = named(METADATA, "TensorStorageMetadata", properties=properties, size=size(shape), chunks=chunks)

    def item(self, name, value, folder):
        folder.mkdir(parents=True, exist_ok=True)
        torch.write_zip(folder / "item", value)
        self.blob(name, None, 0, (folder / "item").read_bytes(), None)
        (folder / "item").unlink()
        self.entries[name] = torch.Object(torch.Named(METADATA, "BytesStorageMetadata"), {})

    def write(self, folder, pickler=None, **changes):
        folder.mkdir(parents=True, exist_ok=True)
        state = dict(state_dict_metadata=self.entries, planner_data=None, storage_data=Pairs(self.storage),
                     all_tensor_metadata=Pairs(self.said), bytecheckpoint_version="0.0.2", user_defined_dict={}) | changes
        (folder / ".metadata").write_bytes(pickled(named(STORAGE, "Metadata", **state), pickler or MappingPickler))
        for name, content in self.files.items():
            (folder / name).write_bytes(bytes(content))


class Pairs(list):
    """A dict whose keys need no hash."""


class MappingPickler(Pickler):
    def save(self, value, save_persistent_id=True):
        if not isinstance(value, Pairs):
            return super().save(value, save_persistent_id)
        self.write(pickle.EMPTY_DICT + pickle.MARK)
        for key, content in value:
            self.save(key)
            self.save(content)
        return self.write(pickle.SETITEMS)


def said_of(dtype, shape, stride, data, offset=0):
    return Raw(pickled(torch.Tensor(torch.Storage(KINDS[dtype][0], data, "0"), offset, tuple(shape), tuple(stride))))


def row_major(shape):
    stride, step = [], 1
    for extent in reversed(shape):
        stride.insert(0, step)
        step *= max(extent, 1)
    return stride


def elements(data, bytes_each, shape, stride, offset):
    """Of a view, in order of its rows."""
    out, places = b"", [offset]
    for extent, step in zip(shape, stride):
        places = [place + i * step for place in places for i in range(extent)]
    for place in places:
        out += data[place * bytes_each:(place + 1) * bytes_each]
    return out


def drawn_piece(chance, dtype, shape):
    """(bytes of a storage, the pickle of the view in it, its elements): plain, by columns, or a part of more."""
    each = KINDS[dtype][2]
    count = 1
    for extent in shape:
        count *= extent
    stride, offset, room = row_major(shape), 0, count
    if len(shape) == 2 and chance.random() < 0.3:
        stride = [1, max(shape[0], 1)]
    if chance.random() < 0.3:
        offset, room = 2, count + 5
    data = chance.randbytes(room * each)
    return data, said_of(dtype, shape, stride, data, offset), elements(data, each, shape, stride, offset)


def drawn_model(chance, folder):
    """{key: (dtype, shape, digest)} of what was written."""
    model, wanted, ranks = Folder(), {}, chance.choice([1, 2, 4])
    for number in range(chance.randrange(1, 6)):
        dtype, shape = chance.choice(list(KINDS)), [chance.randrange(0, 6) for _ in range(chance.choice([0, 1, 2, 2, 3]))]
        name, chunks, whole = f"layer.{number}.weight", [], b""
        rows = shape[0] if shape else 1
        each = -(-rows // ranks) if shape else 1
        is_ended = False
        for rank in range(ranks if shape else 1):
            first = min(rank * each, rows)
            part = min(each, rows - first)
            if part == 0 and (is_ended or chance.random() < 0.5):
                continue  # of ranks beyond the end one may have an empty piece
            is_ended = is_ended or part == 0
            piece_shape = [part, *shape[1:]] if shape else []
            start = [first] + [0] * (len(shape) - 1) if shape else []
            data, said, content = drawn_piece(chance, dtype, piece_shape)
            model.blob(name, start, rank, data, said, gap=chance.choice([0, 0, 3]))
            chunks.append(chunk(start, piece_shape))
            whole += content
        model.tensor(name, dtype, shape, chunks)
        wanted[name] = (dtype, shape, hashlib.sha256(whole).hexdigest())
    if chance.random() < 0.5:
        model.item("param_groups", [{"lr": 0.5}], folder)
    model.said = chance.sample(model.said, len(model.said))
    model.write(folder)
    return wanted


def found(shell, path):
    return {t["key"]: (t["dtype"], t["shape"], t["hash"]) for t in json.loads(shell("hash", "--json", path))["tensors"]}


def drawn(chance, count):
    def test(shell):
        for _ in range(count):
            top = shell.work / "run"
            wanted = drawn_model(chance, top / "model")
            state = drawn_model(chance, top / "optimizer")
            assert found(shell, top) == wanted, top
            assert found(shell, top / "model") == wanted
            assert found(shell, top / "optimizer") == state
            shell("verify", top)
            shell("convert", top, "copy", "--to", "torch-dcp", "--verify", "--quiet")
            assert found(shell, "copy") == wanted
            shutil.rmtree(top)
            shutil.rmtree(shell.work / "copy")
    return test


def small(shell, name, extra=()):
    """A model of one tensor, and extra state of ranks."""
    top, model, data = shell.work / name, Folder(), struct.pack("<6f", *range(6))
    model.blob("w", [0, 0], 0, data, said_of("F32", [2, 3], [3, 1], data))
    model.tensor("w", "F32", [2, 3], [chunk([0, 0], [2, 3])])
    model.write(top / "model")
    for rank, state in enumerate(extra):
        (top / "extra_state").mkdir(exist_ok=True)
        torch.write_zip(top / "extra_state" / f"extra_state_rank_{rank}.pt", state)
    return top


def extra_state(shell):
    """Items of the first rank, and of further ranks what differs; tensors in them are compared as numbers of a file, so never the same."""
    def rng(value):
        return torch.tensor("ByteStorage", [3], bytes([value] * 3))
    top = small(shell, "e", [{"step": 7, "sched": {"lr": 0.5}, "rng": rng(1), 3: "three"},
                             {"step": 7, "sched": {"lr": 0.25}, "rng": rng(2), 3: "three"}, {"step": 7, "own": 1}])
    for extra in "extra_state_rank_x.pt", "extra_state_rank_.pt", "notes.txt":
        (top / "extra_state" / extra).write_text("not of a rank")
    items = {item["key"]: item.get("value") for item in json.loads(shell("ls", "--items", "--json", top))["items"]}
    assert list(items) == ["extra_state.step", "extra_state.sched", "extra_state.sched.lr", "extra_state.rng", "extra_state.3",
                           "rank_1.extra_state.sched", "rank_1.extra_state.sched.lr", "rank_1.extra_state.rng",
                           "rank_2.extra_state.own"], items
    assert items["extra_state.step"] == 7 and items["rank_1.extra_state.sched"] == {"lr": 0.25}, items
    shell("verify", top)
    # Files of ranks have the same names for it.
    shell("convert", top, "ranks", "--to", "fsdp-ranks", "--layout", "ranks=3", "--quiet")
    assert torch.load(shell.work / "ranks" / "extra_state_world_size_3_rank_1.pt")["sched"] == {"lr": 0.25}
    shell("convert", top, "copy", "--to", "torch-dcp", "--verify", "--quiet")
    shell("diff", top, "copy")
    # One bit of a rank's file.
    path = top / "extra_state" / "extra_state_rank_1.pt"
    content = bytearray(path.read_bytes())
    content[content.index(bytes([2] * 3))] ^= 1
    path.write_bytes(content)
    assert b"extra_state_rank_1.pt" in shell("verify", top, exit_status=1)
    torch.write_zip(path, [1, 2])
    said = shell("ls", top, exit_status=4).decode()
    assert "extra_state/extra_state_rank_1.pt': a rank's extra state is a dict, and this is none" in said, said
    path.write_bytes(b"nothing of torch")
    assert b"extra_state_rank_1.pt" in shell("ls", top, exit_status=4)


def parts(shell):
    """The folder is its model; what is beside it is told."""
    top = small(shell, "p", [{"step": 1}])
    said = shell("inspect", top).decode()
    assert "optimizer" not in said, said
    shutil.copytree(top / "model", top / "optimizer")
    said = shell("inspect", top).decode()
    assert "the model alone is read; the optimizer's state opens by its own path, 'optimizer/'" in said, said
    assert json.loads(shell("ls", "--items", "--json", top / "model"))["items"] == []
    shutil.rmtree(top / "extra_state")
    assert json.loads(shell("ls", "--items", "--json", top))["items"] == []
    step = shell.work / "runs" / "global_step_20"
    step.parent.mkdir()
    top.rename(step)
    (step.parent / "latest_checkpointed_iteration.txt").write_text("20")
    assert found(shell, step.parent) == found(shell, step)


def refused(shell):
    data = struct.pack("<6f", *range(6))
    good = said_of("F32", [2, 3], [3, 1], data)

    def say(said, exit_status=4, blob=data, keep_said=True, **changes):
        model = Folder()
        model.blob("w", [0, 0], 0, blob, said)
        model.tensor("w", "F32", [2, 3], [chunk([0, 0], [2, 3])])
        if not keep_said:
            model.said = [(index("v", [0, 0]), said)]
        model.write(shell.work / "r", **changes)
        return shell("hash", shell.work / "r", exit_status=exit_status).decode()

    say(good, 0)
    for said, why, status, blob in (
            (said_of("F32", [3, 2], [2, 1], data), "chunk at [0, 0] has shape [2, 3] in .metadata, its blob has shape [3, 2]", 4, data),
            (said_of("I64", [2, 3], [3, 1], data * 2), ".metadata says F32, its blob holds I64", 4, data * 2),
            (good, "its storage has 24 bytes in all_tensor_metadata, its blob 23", 4, data[:-1]),
            (said_of("F32", [2, 3], [3, 1], data, 1), "something else than the pickle of one dense tensor", 5, data),
            (said_of("F32", [2, 3], [9, 1], data), "something else than the pickle of one dense tensor", 5, data),
            (Raw(good[:-1]), "something else than the pickle of one dense tensor", 5, data),
            (Raw(pickled({"a": 1})), "something else than the pickle of one dense tensor", 5, data),
            ("text", "something else than the pickle of one dense tensor", 5, data)):
        text = say(said, status, blob)
        assert why in text and "tensor 'w'" in text and ".metadata" in text, (why, text)
    assert "all_tensor_metadata is no dict" in say(good, all_tensor_metadata=5)
    assert "all_tensor_metadata: key: byte" in say(good, all_tensor_metadata=Pairs([("w", good)]))
    # Of blobs of which nothing is said the first byte tells what they are.
    for text in (say(None), say(good, keep_said=False), say(good, all_tensor_metadata=None), say(good, all_tensor_metadata={})):
        assert "neither a zip archive, nor a legacy stream, nor a tar" in text, text
    # Bytes of a storage that look like the end of an archive are numbers.
    ends = b"PK\5\6" + bytes(18)
    tail = struct.pack("<I", 7) * 10 + ends
    model = Folder()
    model.blob("w", [0], 0, tail, said_of("U8", [len(tail)], [1], tail))
    model.tensor("w", "U8", [len(tail)], [chunk([0], [len(tail)])])
    model.write(shell.work / "z")
    shell("verify", shell.work / "z")


def real(root):
    """What ByteCheckpoint wrote: the optimizer's tensors, which manifests tell by name. Of DDP they are called by number."""
    def test(shell):
        cases = sorted((root / "bytecheckpoint").glob("*/manifest.json"))
        assert len(cases) == 2, cases
        for manifest in cases:
            case = json.loads(manifest.read_text())
            state = shell.tensors(manifest.parent / case["path"] / "optimizer")
            wanted = {f"state.{name}.{kind}": t["sha256"] for name, kinds in case["also"]["optimizer_tensors"].items()
                      for kind, t in kinds.items()}
            names = {key: t["hash"] for key, t in state.items()}
            assert names == wanted or ("ddp" in case["case"] and sorted(names.values()) == sorted(wanted.values())), case["case"]
            items = json.loads(shell("ls", "--items", "--json", manifest.parent / case["path"] / "optimizer"))["items"]
            assert items[0]["key"] == "param_groups" and items[1]["key"] == "param_groups.0.lr", items
    return test


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
        ("drawn folders come back", drawn(chance, arguments.count)), ("extra state of ranks", extra_state), ("parts", parts),
        ("what is wrong in all_tensor_metadata", refused), ("what ByteCheckpoint wrote", real(arguments.root))])


if __name__ == "__main__":
    sys.exit(main())
