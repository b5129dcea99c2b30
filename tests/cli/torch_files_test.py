#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save: what a model's dict gets of other formats, and what torch writes there that a reader has to know. Prints TAP.

usage: torch_files_test.py --bin PATH
"""
import argparse
import collections
import json
import pathlib
import struct
import sys
import zipfile

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

Named, Call, Storage = torch_stub.Named, torch_stub.Call, torch_stub.Storage
FLOATS = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
OTHERS = ("torch", "fsdp-ranks", "torch-dcp", "paddle", "torch_dist")


def numbers(*values):
    return torch_stub.tensor("FloatStorage", (len(values),), struct.pack(f"<{len(values)}f", *values))


# ---- headers of safetensors ----

def weights(path, key, **metadata):
    text = json.dumps({"__metadata__": metadata, key: FLOATS}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<2f", 1.0, 2.0))


def folder(path, index=None, **metadata):
    path.mkdir()
    names = {key: f"model-0000{i}-of-00002.safetensors" for i, key in enumerate("ab", 1)}
    for key, name in names.items():
        weights(path / name, key, **metadata)
    index = {"total_size": 16, "total_parameters": 4, **(index or {})}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": index, "weight_map": names}))


def keys_of(shell, path):
    listed = json.loads(shell("ls", "--json", "--items", path))
    return {entry["key"] for entry in listed["tensors"]}, {entry["key"] for entry in listed["items"]}


def headers(shell):
    """What they say of the framework and of sizes is no part of a model: no key of it comes of them, and it is written again."""
    folder(shell.work / "hf", format="pt")
    for to in OTHERS:
        done = shell.any("convert", "hf", to, "--to", to)
        assert done.returncode == 0 and "dropped" not in done.stderr, (to, done.stderr)
        tensors, items = keys_of(shell, to)
        assert tensors == {"a", "b"} and not any("metadata__" in key for key in items), (to, tensors, items)
        shell("diff", "hf", to) if to != "torch_dist" and to != "paddle" else None
        shell("convert", to, f"{to}.back", "--to", "hf", "--items", "drop" if to in ("torch_dist", "paddle") else "keep")
        assert json.loads(shell("cat", f"{to}.back", "__metadata__")) == {"format": "pt"}, to
    assert set(torch_stub.load(shell.work / "torch")) == {"a", "b"}


def headers_that_say_more(shell):
    folder(shell.work / "hf", {"b2": "b"}, format="pt", author="me")
    for to in OTHERS:
        done = shell.any("convert", "hf", to, "--to", to)
        said = [line for line in done.stderr.splitlines() if "beside the tensors of safetensors" in line]
        assert [line.split(": ")[1] for line in said] == ["__metadata__.author", "__index_metadata__.b2"], (to, done.stderr)
        assert not any("metadata__" in key for key in keys_of(shell, to)[1]), to
        done = shell.any("convert", "hf", f"{to}.bare", "--to", to, "--items", "drop")
        assert done.returncode == 0 and "beside the tensors" not in done.stderr, done.stderr
    shell("convert", "hf", "again", "--to", "hf", "--max-shard-size", "8")
    shell("diff", "hf", "again")


def folders_without(shell):
    """Files that do not say for which framework they are hold the same."""
    weights(shell.work / "a.safetensors", "a", format="pt")
    weights(shell.work / "b.safetensors", "a")
    weights(shell.work / "c.safetensors", "a", format="pt", author="me")
    text = json.dumps({"a": FLOATS}).encode()
    (shell.work / "d.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<2f", 1.0, 2.0))
    shell("diff", "a.safetensors", "d.safetensors")
    shell("diff", "d.safetensors", "b.safetensors")
    assert b"item is only in the second" in shell("diff", "d.safetensors", "c.safetensors", exit_status=1)


def items_of_the_same_name(shell):
    """What a dict of torch has under that key is the model's own."""
    torch_stub.write_zip(shell.work / "a.pt", {"w": numbers(1.0), "__metadata__": {"format": "pt"}})
    shell("convert", "a.pt", "b.pt", "--to", "torch")
    assert torch_stub.load(shell.work / "b.pt")["__metadata__"] == {"format": "pt"}


# ---- storages ----

def bytes_of_two_kinds(shell):
    """Tensors of uint8 and of types without a storage class, and storages as they are, may be one storage."""
    data = bytes(range(8))
    typed, untyped = Storage("ByteStorage", data, "0"), Storage("UntypedStorage", data, "0")
    plain = torch_stub.Tensor(typed, 0, (8,), (1,))
    floats = Call(Named("torch._utils", "_rebuild_tensor_v3"),
                  (untyped, 0, (8,), (1,), False, collections.OrderedDict(), Named("torch", "float8_e4m3fn")))
    for value in ({"x": plain, "y": floats}, {"y": floats, "x": plain}, {"x": plain, "y": untyped}, {"y": untyped, "x": plain}):
        torch_stub.write_zip(shell.work / "a.pt", value)
        assert shell.bytes_of("a.pt", "x") == data
        assert value["y"] is untyped or shell.bytes_of("a.pt", "y") == data
        shell("convert", "a.pt", "b.pt", "--to", "torch", "--overwrite")
        shell("diff", "a.pt", "b.pt")
    for other, text in (Storage("CharStorage", data, "0"), "declared with two types, U8 and I8"), \
                       (Storage("UntypedStorage", data[:4], "0"), "declared with two sizes, 8 and 4 bytes"):
        torch_stub.write_zip(shell.work / "a.pt", {"x": plain, "y": other})
        with zipfile.ZipFile(shell.work / "a.pt") as archive:
            members = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
        torch_stub.write_archive(shell.work / "a.pt", members | {"data/0": data})
        assert text in shell("ls", "a.pt", exit_status=4).decode()


# ---- dressed tensors ----

def dressed(data, requires_grad):
    """As torch.save writes a tensor with attributes, or of a subclass."""
    arguments = (data.storage, data.offset, data.size, data.stride, requires_grad, collections.OrderedDict())
    return Call(Named("torch._tensor", "_rebuild_from_type_v2"),
                (Named("torch._utils", "_rebuild_tensor_v2"), Named("torch", "Tensor"), arguments, {"foo": 1}))


def gradients(shell):
    torch_stub.write_zip(shell.work / "a.pt", {"yes": dressed(numbers(1.0), True), "no": dressed(numbers(2.0), False)})
    for more in [], ["--dtype", "f16"]:
        shell("convert", "a.pt", "b.pt", "--to", "torch", "--overwrite", *more)
        for key, made in torch_stub.load(shell.work / "b.pt").items():
            assert made.arguments[2][4] is (key == "yes") and made.arguments[3] == {"foo": 1}, (key, made)
    shell("convert", "a.pt", "b.pt", "--to", "torch", "--overwrite", "--dtype", "*=i32")
    assert torch_stub.load(shell.work / "b.pt")["yes"].arguments[2][4] is False  # integers have none


# ---- other archives ----

def programs(shell):
    torch_stub.write_archive(shell.work / "m.pt2", {"models/model.json": b"{}", "archive_format": b"pt2", "archive_version": b"0"})
    said = shell("ls", "m.pt2", exit_status=5).decode()
    assert "torch.export archive" in said and "hint: torch.save(torch.export.load(FILE).state_dict" in said, said
    torch_stub.write_archive(shell.work / "m.pt", {"version": b"3"})
    assert "no record data.pkl" in shell("ls", "m.pt", exit_status=4).decode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    tests = [("headers of safetensors", headers), ("headers that say more", headers_that_say_more),
             ("files that name no framework", folders_without), ("items of the same name", items_of_the_same_name),
             ("bytes of two kinds", bytes_of_two_kinds), ("gradients of dressed tensors", gradients),
             ("programs", programs)]
    sys.exit(small_models.run(args.bin, tests))


main()
