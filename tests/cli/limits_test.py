#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reaches every named limit of `reshard formats --limits` by a crafted input or by lowering it, and wants: exit 6, the limit's name in
the message, a hint that raises it, little memory and little CPU time. A limit without a case fails. Prints TAP.

usage: limits_test.py --bin PATH --fixtures DIR

A case is a function NAME or NAME_of_something that returns arguments of the command; NAME is a limit, or starts with one.
Where a second check would stop the input too, what lies behind the first one is malformed: only the first ends with exit 6.
"""
import argparse
import json
import pathlib
import pickle
import re
import resource
import struct
import subprocess
import sys
import tempfile
import zlib
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import gguf_stub
import small_bombs
import torch_stub

MEMORY_BYTES = 1 << 30  # of address space
CPU_SECONDS = 5
MIB = 1 << 20


def lower_resources():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


# ---- inputs ----


def safetensors(work, entries, name="model.safetensors"):
    text = json.dumps(entries).encode() if isinstance(entries, dict) else entries
    (work / name).write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    return work / name


def safetensors_of(work, count):
    return safetensors(work, {f"t{i}": {"dtype": "U8", "shape": [64 // count], "data_offsets": [i * (64 // count), (i + 1) * (64 // count)]}
                              for i in range(count)})


def gguf_of(work, pairs):
    (work / "model.gguf").write_bytes(gguf_stub.File(pairs, []).bytes())
    return work / "model.gguf"


def torch_pickle(work, body, method=zipfile.ZIP_STORED):
    torch_stub.write_archive(work / "model.pt", {"data.pkl": body, "byteorder": b"little", "version": b"3\n"}, method)
    return work / "model.pt"


def torch_of(work, value):
    torch_stub.write_zip(work / "model.pt", value)
    return work / "model.pt"


def weight(count=4):
    return torch_stub.tensor("FloatStorage", [count], bytes(4 * count))


def deflated_garbage(work, declared_bytes):
    """A deflated data.pkl that says how large it is, and is no deflate stream: only a check before decoding sees the size."""
    path = torch_pickle(work, b"\xff" * 100)
    data = path.read_bytes()
    crc = zlib.crc32(b"\xff" * 100)
    stored = struct.pack("<III", crc, 100, 100)
    data = data.replace(stored, struct.pack("<III", crc, 100, declared_bytes))
    local, central = data.index(b"PK\3\4"), data.index(b"PK\1\2")
    data = bytearray(data)
    data[local + 8 : local + 10] = data[central + 10 : central + 12] = struct.pack("<H", 8)
    path.write_bytes(data)
    return path


def zarr2(work, shape, chunks, files, compressor=None, attributes=None):
    folder = work / "group.zarr"
    (folder / "w").mkdir(parents=True)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    (folder / "w/.zarray").write_text(json.dumps({"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<f4", "order": "C",
                                                  "fill_value": 0.0, "filters": None, "compressor": compressor}))
    if attributes:
        (folder / "w/.zattrs").write_text(attributes)
    for name, data in files.items():
        (folder / "w" / name).write_bytes(data)
    return folder


def zlib_zarr(work):
    """Chunks of 64 KiB that are 90 bytes as stored."""
    packed = zlib.compress(bytes(65536))
    return zarr2(work, [32768], [16384], {"0": packed, "1": packed}, {"id": "zlib", "level": 1})


def zarr_shard(work):
    folder = work / "group.zarr"
    (folder / "w/c").mkdir(parents=True)
    (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    little = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": little,
                                                             "index_codecs": little + [{"name": "crc32c"}], "index_location": "end"}}]
    (folder / "w/zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "array", "shape": [1024], "data_type": "float32",
                                                    "fill_value": 0, "attributes": {}, "codecs": codecs,
                                                    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1024]}},
                                                    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}}))
    (folder / "w/c/0").write_bytes(bytes(1024 * 20 + 4))
    return folder


def hf(work, files):
    folder = work / "hf"
    folder.mkdir()
    index = {}
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors"
        safetensors(folder, {f"t{i}": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}, name)
        index[f"t{i}"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 64 * files}, "weight_map": index}))
    return folder


class Cases:
    """NAME or NAME_of_something: what to type. `limit` has the form NAME=VALUE where a value is lowered."""

    def __init__(self, fixtures):
        self.dcp = fixtures / "torch-dcp/dcp-small/ckpt"
        self.dist = fixtures / "megatron/megatron-dense-dist-tp2/ckpt"
        self.fixtures = fixtures

    def work_of_shared_lists(self, work):
        return ["ls", small_bombs.deep_lists(work / "model.pt")], "work=1000"

    def work_of_dcp(self, work):
        return ["ls", small_bombs.wide_state(work / "dcp")], "work=1000"

    def metadata_bytes_of_dcp(self, work):
        return ["ls", self.dcp], "metadata_bytes=100"

    def metadata_bytes_of_data_pkl(self, work):
        return ["ls", torch_of(work, {"a": [1] * 100, "w": weight()})], "metadata_bytes=300"

    def metadata_bytes_of_zip_directory(self, work):
        return ["ls", torch_of(work, {f"{i}": weight() for i in range(40)})], "metadata_bytes=2000"

    def metadata_bytes_of_zarr_shard_index(self, work):
        return ["ls", zarr_shard(work)], "metadata_bytes=16383"

    def json_bytes_of_safetensors(self, work):
        return ["ls", safetensors_of(work, 2)], "json_bytes=20"

    def json_bytes_of_hf_header(self, work):
        return ["ls", hf(work, 3)], "json_bytes=20"

    def json_bytes_of_hf_index(self, work):
        return ["ls", hf(work, 3)], "json_bytes=100"

    def json_bytes_of_zarr(self, work):
        return ["ls", zlib_zarr(work)], "json_bytes=100"

    def json_bytes_of_sidecar(self, work):
        folder = hf(work, 1)
        (folder / "reshard.json").write_text(" " * 2000 + "{}")
        return ["verify", folder], "json_bytes=1000"

    def json_depth_of_safetensors(self, work):
        return ["ls", safetensors(work, b'{"a": {"more": ' + b"[" * 200 + b"]" * 200 + b"}}")], None

    def json_depth_of_zarr(self, work):
        return ["ls", zarr2(work, [1], [1], {"0": bytes(4)}, attributes="[" * 200 + "]" * 200)], None

    def gguf_depth(self, work):
        nested = gguf_stub.ARRAY, [(gguf_stub.ARRAY, [(gguf_stub.U8, [1])])]
        return ["ls", gguf_of(work, [("k", gguf_stub.ARRAY, nested)])], "gguf_depth=2"

    def pickle_values(self, work):
        return ["ls", torch_of(work, {"list": list(range(300, 1000)), "w": weight()})], "pickle_values=500"

    def pickle_bytes(self, work):
        return ["ls", torch_of(work, {"list": list(range(300, 30000)), "w": weight()})], "pickle_bytes=500000"

    def pickle_depth_of_marks(self, work):
        return ["ls", torch_pickle(work, b"\x80\x02" + b"(" * 100001 + b"N" + b"t" * 100001 + b".")], None

    def pickle_depth_of_dcp(self, work):
        return ["ls", self.dcp], "pickle_depth=1"

    def pickle_string_bytes(self, work):
        return ["ls", torch_of(work, {"text": "x" * 1000})], "pickle_string_bytes=999"

    def pickle_string_bytes_of_dcp(self, work):
        return ["ls", self.dcp], "pickle_string_bytes=5"

    def bigint_bytes(self, work):
        return ["ls", torch_pickle(work, b"\x80\x02\x8b" + struct.pack("<i", 1025) + b"\x01" * 1025 + b".")], None

    def bigint_bytes_of_json(self, work):
        return ["ls", zarr2(work, [1], [1], {"0": bytes(4)}, attributes='{"a": ' + "9" * 4000 + "}")], None

    def memo_gap(self, work):
        return ["ls", torch_pickle(work, b"\x80\x02]r" + struct.pack("<I", 1000001) + b".")], None

    def zip_entries(self, work):
        return ["ls", torch_of(work, {"w": weight()})], "zip_entries=3"

    def inflate_ratio_of_what_is_declared(self, work):
        return ["ls", deflated_garbage(work, 100 * 201 + MIB)], None

    def inflate_ratio_of_pickle(self, work):
        return ["ls", torch_pickle(work, pickle.dumps("x" * (8 * MIB), protocol=2), zipfile.ZIP_DEFLATED)], None

    def inflate_ratio_of_payload(self, work):
        torch_stub.write_zip(work / "model.pt", {"w": weight(2 * MIB)}, method=zipfile.ZIP_DEFLATED)
        return ["hash", work / "model.pt"], None

    def inflate_bytes_of_what_is_declared(self, work):
        return ["ls", deflated_garbage(work, 10001)], "inflate_bytes=10000"

    def inflate_bytes_of_payload(self, work):
        torch_stub.write_zip(work / "model.pt", {"w": weight(4096)}, method=zipfile.ZIP_DEFLATED)
        return ["hash", work / "model.pt"], "inflate_bytes=10000"

    def chunk_bytes_of_zarr(self, work):
        return ["ls", zlib_zarr(work)], "chunk_bytes=65535"

    def chunk_bytes_of_zarr_as_stored(self, work):
        # Decoded it is small enough; what is stored is not.
        return ["ls", zarr2(work, [2], [2], {"0": bytes(5000)}, {"id": "zlib", "level": 1})], "chunk_bytes=4000"

    def chunk_bytes_of_a_zarr_target(self, work):
        return ["convert", safetensors_of(work, 1), work / "out", "--to", "zarr", "-o", "codec=zlib"], "chunk_bytes=10"

    def tensors_of_safetensors(self, work):
        entry = b'{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
        return ["ls", safetensors(work, b'{"a":' + entry % (0, 1) + b',"b":' + entry % (1, 2) + b',"c":' + entry % (2, 3) + b',"d":'
                                  + entry % (9, 3) + b"}")], "tensors=2"

    def tensors_of_dcp(self, work):
        return ["ls", self.dcp], "tensors=1"

    def tensors_of_torch(self, work):
        return ["ls", torch_of(work, {"a": weight(), "b": weight()})], "tensors=1"

    def chunks_of_torch(self, work):
        return ["ls", torch_of(work, {"a": weight(), "b": weight()})], "chunks=1"

    def chunks_of_dcp(self, work):
        return ["ls", self.dcp], "chunks=1"

    def chunks_of_a_dcp_target(self, work):
        return ["convert", safetensors_of(work, 1), work / "out", "--to", "torch-dcp", "--layout", "ranks=8"], "chunks=3"

    def objects_of_dcp(self, work):
        return ["ls", self.dcp], "objects=1"

    def objects_of_hf(self, work):
        return ["ls", hf(work, 3)], "objects=2"

    def objects_of_zarr(self, work):
        return ["ls", zlib_zarr(work)], "objects=3"

    def objects_of_a_zarr_target(self, work):
        return ["convert", safetensors_of(work, 1), work / "out", "--to", "zarr", "-o", "chunks=4"], "objects=10"

    def tensor_expansion_of_a_view(self, work):
        return ["ls", torch_of(work, {"w": torch_stub.Tensor(torch_stub.Storage("FloatStorage", bytes(4)), 0, (1 << 20, 1 << 20),
                                                             (0, 0))})], None

    def tensor_expansion_of_zarr(self, work):
        return ["ls", zarr2(work, [1 << 35], [1 << 30], {})], None

    def tensor_expansion_of_lz4(self, work):
        """The most that LZ4 packs, 255 to one: 33 MB that would be 8 GiB."""
        folder = zarr2(work, [1 << 31], [1 << 29], {}, {"id": "lz4", "acceleration": 1})
        for i in range(4):
            with open(folder / "w" / str(i), "wb") as file:
                file.truncate((1 << 31) // 255)
        return ["ls", folder], None

    def box_checks_of_a_plan(self, work):
        return ["plan", self.fixtures / "torch-dcp/dcp-tp-fsdp-2d-uneven/ckpt", "--to", "torch-dcp", "--layout", "ranks=3"], "box_checks=0"

    def item_bytes_of_a_blob(self, work):
        return ["cat", self.dcp, "rank0"], "item_bytes=1000"

    def item_bytes_of_a_target(self, work):
        return ["convert", torch_of(work, {"w": weight(), "text": "x" * 5000}), work / "out", "--to", "torch-dcp"], "item_bytes=4000"

    def item_bytes_of_metadata(self, work):
        return ["cat", gguf_of(work, [("k", gguf_stub.ARRAY, (gguf_stub.U8, bytes(6000)))]), "k"], "item_bytes=20000"

    def metadata_bytes_of_gguf(self, work):
        return ["ls", gguf_of(work, [("k", gguf_stub.STRING, "x" * 6000)])], "metadata_bytes=6000"

    def item_bytes_of_a_side_file(self, work):
        folder = hf(work, 1)
        (folder / "config.json").write_text("{}" + " " * 2000)
        return ["cat", folder, "config.json"], "item_bytes=1000"

    def item_bytes_of_numbers(self, work):
        (work / "s.json").write_text(json.dumps({"tensors": {"a": {"dtype": "F32", "shape": [100], "data": [0] * 100}}}))
        (work / "m.map").write_text("a -> b\n")
        return ["map", "eval", work / "m.map", "--source", work / "s.json"], "item_bytes=399"

    def shown_bytes(self, work):
        return ["cat", torch_of(work, {"w": weight(), "text": "x" * 5000}), "text"], "shown_bytes=4000"

    def map_text_bytes(self, work):
        return ["convert", safetensors_of(work, 1), work / "out", "--to", "hf", "-m", "t0 -> u0"], "map_text_bytes=5"

    def map_bytes(self, work):
        return ["plan", safetensors_of(work, 1), "--to", "hf", "-m", "t0 -> u[0:1000], axis=0"], "map_bytes=65536"

    def map_names(self, work):
        return ["plan", safetensors_of(work, 1), "--to", "hf", "-m", "t0 -> u0, v0, w0, axis=0"], "map_names=3"

    def map_names_of_a_huge_range(self, work):
        return ["plan", safetensors_of(work, 1), "--to", "hf", "-m", "a -> b[0:2000000000], axis=0"], None

    def map_pieces(self, work):
        return ["plan", safetensors_of(work, 2), "--to", "hf", "-m", "t0, t1 -> u0, axis=0"], "map_pieces=1"


# ---- the table ----


def check(binary, work, name, arguments, limit):
    """What is wrong, or nothing."""
    given = ["--limit", limit] if limit else []
    done = subprocess.run([binary, *map(str, arguments), *given, "--threads",
                           "2"][: None if arguments[0] in ("hash", "cat", "convert", "plan", "verify") else -2],
                          capture_output=True, text=True, errors="replace", cwd=work, preexec_fn=lower_resources)
    shown = f"exit {done.returncode}: {done.stderr.strip()[:500]}"
    hint = re.search(rf"hint: raise it with --limit {name}=(\d+)", done.stderr)
    if done.returncode != 6:
        return shown + " instead of exit 6"
    if name not in done.stderr.split("\nhint:")[0]:
        return shown + f" does not name {name}"
    if not hint:
        return shown + " does not say how to raise it"
    if limit and int(hint[1]) <= int(limit.split("=")[1]):
        return shown + " raises nothing"
    if (work / "out").exists():
        return "a target is left"
    return None


def limits_of(binary):
    done = subprocess.run([binary, "formats", "--limits", "--json"], capture_output=True, text=True, check=True)
    return [limit["name"] for limit in json.loads(done.stdout)["limits"]]


def raised_limits_hold_when_read_back(binary, work):
    """What a source needs a raised limit for, the target holds too: --verify opens it under the same limits."""
    source = torch_pickle(work, b"\x80\x02}(X\x01\x00\x00\x00n\x8b" + struct.pack("<i", 1025) + b"\x01" * 1025 + b"u.")
    for words in (["--verify"], ["--checksum", "crc32c"]):
        command = [binary, "convert", str(source), "out.pt", "--to", "torch", "--limit", "bigint_bytes=4096", "--overwrite", *words]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=60)
        if done.returncode:
            return f"{words}: exit {done.returncode}: {done.stderr}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    parser.add_argument("--case", default="")
    args = parser.parse_args()
    binary, cases = str(args.bin.resolve()), Cases(args.fixtures.resolve())
    number = 0
    for limit in limits_of(binary):
        rows = [row for row in dir(cases) if row == limit or row.startswith(limit + "_of_")]
        if not rows:
            number += 1
            print(f"not ok {number} - {limit} has no case")
        for row in rows:
            if args.case and not row.startswith(args.case):
                continue
            with tempfile.TemporaryDirectory(prefix="reshard-limits-") as folder:
                work = pathlib.Path(folder)
                problem = check(binary, work, limit, *getattr(cases, row)(work))
            number += 1
            print(f"{'not ok' if problem else 'ok'} {number} - {row}" + (f"\n# {problem}" if problem else ""), flush=True)
    if not args.case:
        number += 1
        with tempfile.TemporaryDirectory(prefix="reshard-limits-") as folder:
            problem = raised_limits_hold_when_read_back(binary, pathlib.Path(folder))
        print(f"{'not ok' if problem else 'ok'} {number} - raised limits hold when the result is read back"
              + (f"\n# {problem}" if problem else ""))
    print(f"1..{number}")


main()
