# SPDX-License-Identifier: Apache-2.0
"""Snapshots of torchsnapshot without it: a manifest and the files that it names. What is wrong can be written as well."""
import base64
import io
import json
import struct

import torch_stub

TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "I64": "int64", "I32": "int32", "I8": "int8",
         "U8": "uint8", "BOOL": "bool", "C64": "complex64", "I16": "int16"}
STORAGES = {"F32": "FloatStorage", "C64": "ComplexFloatStorage", "I64": "LongStorage", "U8": "ByteStorage"}


def saved(value):
    out = io.BytesIO()
    torch_stub.write_zip(out, value)
    return out.getvalue()


class Snapshot:
    def __init__(self, world=1):
        self.world, self.files, self.manifest = world, {}, {}

    def put(self, location, data, is_batched):
        """Where the bytes are from now on: of a file of their own, or behind what it has."""
        if not is_batched:
            self.files[location] = data
            return {"location": location, "byte_range": None}
        before = self.files.setdefault(location, b"")
        self.files[location] = before + data
        return {"location": location, "byte_range": [len(before), len(before) + len(data)]}

    def tensor(self, dtype, shape, data, location="batched/0", replicated=False, is_batched=True, is_saved=False):
        """A Tensor entry."""
        data = saved(torch_stub.tensor(STORAGES[dtype], shape, data)) if is_saved else data
        return {"type": "Tensor", "serializer": "torch_save" if is_saved else "buffer_protocol", "dtype": f"torch.{TORCH[dtype]}",
                "shape": list(shape), "replicated": replicated, **self.put(location, data, is_batched)}

    def object(self, value, location):
        """An entry of what torch.save wrote."""
        return {"type": "object", "serializer": "torch_save", "obj_type": "x", "replicated": False,
                "location": self.put(location, saved(value), False)["location"]}

    def add(self, path, entry, ranks=None):
        for rank in range(self.world) if ranks is None else ranks:
            self.manifest[f"{rank}/{path}"] = entry

    def text(self):
        return json.dumps({"version": "0.1.0", "world_size": self.world, "manifest": self.manifest}, indent=2)

    def entries(self):
        """(name, bytes) of each file."""
        return [(".snapshot_metadata", self.text().encode()), *self.files.items()]

    def write(self, folder):
        for name, data in self.entries():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder


def shard(offsets, sizes, tensor):
    return {"offsets": list(offsets), "sizes": list(sizes), "tensor": tensor}


def sharded(shards, kind="ShardedTensor"):
    return {"type": kind, "shards": shards} | ({"mesh": [0, 1], "dim_map": [[0], [-1]]} if kind == "DTensor" else {})


def chunked(dtype, shape, chunks, replicated=False):
    return {"type": "ChunkedTensor", "dtype": f"torch.{TORCH[dtype]}", "shape": list(shape), "chunks": chunks, "replicated": replicated}


def told(value, replicated=False):
    """A value that the manifest spells out."""
    kind = type(value).__name__
    if kind in ("float", "bytes"):
        data = struct.pack("<d", value) if kind == "float" else value
        text = base64.b64encode(data).decode()
    else:
        text = str(value)
    return {"type": kind, "serialized_value": text, "replicated": replicated, "readable": str(value) if kind == "float" else None}


def container(kind, keys=None):
    return {"type": kind} | ({} if kind == "list" else {"keys": list(keys)})
