#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes that small fixtures cannot have, in bounded memory: 100,000 tensors, 1,000,000 chunks, files of more than 4 GiB and a tensor of
more than 2^31 elements. Prints TAP.

usage: sizes_test.py --bin RESHARD --work DIR
DIR lies on a disk: 9 GiB are written there at most, and removed; with less room than 12 GiB the large files are skipped.
"""
import argparse
import io
import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

import small_bombs as op
from blowup_inputs import fill, stand_in

RSS_KIB_MAX = 384 << 10  # the value graph of a torch pickle takes most of it
MANY = 100_000
CHUNKED, CHUNKS, CHUNKS_RSS_KIB_MAX = 1_000, 1_000, 600 << 10  # tensors, and chunks of each

BUDGET, LARGE_RSS_KIB_MAX = "64MiB", 128 << 10
ROOM_BYTES = 12 << 30
# Together they pass 4 GiB: "b" crosses that offset of its file, and "c" lies behind it, in whatever order of these that a format has.
LARGE = {"a": ("U8", 1, (1 << 31) + 4097), "b": ("BF16", 2, (1 << 30) + (1 << 16)), "c": ("I32", 4, 4)}
MARKS = {"a": (0, (1 << 31) - 1, 1 << 31, (1 << 31) + 4096),
         "b": (0, (1 << 30) - 4096, (1 << 30) - 2049, 1 << 30, (1 << 30) + (1 << 16) - 1), "c": (0, 3)}
BLOCK = 4 << 20


class Run:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work

    def __call__(self, *words, rss_kib_max=RSS_KIB_MAX):
        """Standard output. The memory of the command must stay in bounds."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen([self.binary, *map(str, words)], cwd=self.work, stdout=out, stderr=errors)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            assert process.returncode == 0, f"{words}: exit {process.returncode}: {errors.read()[:300]}"
            assert used.ru_maxrss <= rss_kib_max, f"{words}: {used.ru_maxrss} KiB of memory, at most {rss_kib_max}"
            out.seek(0)
            return out.read()


def many_tensors(run):
    header = {f"layer.{i}.weight": {"dtype": "U8", "shape": [2], "data_offsets": [2 * i, 2 * i + 2]} for i in range(MANY)}
    text = json.dumps(header).encode()
    data = b"".join(struct.pack("<H", i % 65521) for i in range(MANY))
    (run.work / "many.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    wanted = run("hash", "many.safetensors", "--digest", "xxh3")
    for number, (to, *options) in enumerate((("torch",), ("torch-dcp", "--layout", "ranks=4"), ("hf", "--max-shard-size", "50KB"))):
        run("convert", "many.safetensors" if number == 0 else f"many{number - 1}", f"many{number}", "--to", to, "--no-sync", *options)
        assert run("hash", f"many{number}", "--digest", "xxh3") == wanted, f"{to}: digests"


def blob(number):
    """What torch.save writes for the four floats of a chunk, and their bytes."""
    out, data = io.BytesIO(), struct.pack("<4f", number, number + 0.25, -number, number + 0.5)
    op.torch_zip(out, op.small_tensor(), [("0", data)], zipfile.ZIP_STORED)
    return out.getvalue(), data


def blob_of(tensor, chunk):
    return (tensor * 7 + chunk) % CHUNKS


def write_chunked(folder):
    """A DCP of 1,000 tensors with 1,000 chunks each, pickled by Python from classes that have torch's names. Its 1,000 blobs serve all
    tensors, each in another order."""
    metadata, tensor, chunk, properties, index = (stand_in(op.META, name) for name in (
        "Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "MetadataIndex"))
    info, size = stand_in("torch.distributed.checkpoint.filesystem", "_StorageInfo"), stand_in("torch", "Size", tuple)
    size.__reduce__ = lambda self: (size, (tuple(self),))
    of_floats = fill(properties, dtype=stand_in("torch", "float32"))
    blobs = [blob(number) for number in range(CHUNKS)]
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"".join(stored for stored, _ in blobs))
    length = len(blobs[0][0])
    assert all(len(stored) == length for stored, _ in blobs)
    state, stored = {}, {}
    for i in range(CHUNKED):
        name = f"layer.{i}.weight"
        chunks = [fill(chunk, offsets=size((4 * c,)), sizes=size((4,))) for c in range(CHUNKS)]
        state[name] = fill(tensor, properties=of_floats, size=size((4 * CHUNKS,)), chunks=chunks)
        for c in range(CHUNKS):
            place = fill(info, relative_path="__0_0.distcp", offset=blob_of(i, c) * length, length=length)
            stored[fill(index, fqn=name, index=c, offset=size((4 * c,)))] = place
    with open(folder / ".metadata", "wb") as out:
        pickle.dump(fill(metadata, state_dict_metadata=state, planner_data=None, storage_data=stored), out, 4)


def many_chunks(run):
    """Listed, verified and converted to hf, whose bytes Python compares."""
    writer = multiprocessing.get_context("fork").Process(target=write_chunked, args=(run.work / "chunked",))
    writer.start()  # a process of its own: the memory of whoever starts a command counts as that command's
    writer.join()
    assert writer.exitcode == 0, "the checkpoint was not written"
    values = [blob(number)[1] for number in range(CHUNKS)]
    listed = json.loads(run("inspect", "chunked", "--json", rss_kib_max=CHUNKS_RSS_KIB_MAX))
    assert listed["tensors"] == CHUNKED and listed["chunks"] == CHUNKED * CHUNKS, str(listed)[:300]
    run("verify", "chunked", rss_kib_max=CHUNKS_RSS_KIB_MAX)
    run("convert", "chunked", "whole", "--to", "hf", "--no-sync", rss_kib_max=CHUNKS_RSS_KIB_MAX)
    content = (run.work / "whole" / "model.safetensors").read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:start])
    for i in range(CHUNKED):
        begin, end = header[f"layer.{i}.weight"]["data_offsets"]
        assert content[start + begin:start + end] == b"".join(values[blob_of(i, c)] for c in range(CHUNKS)), f"layer.{i}.weight differs"


def marked(key, element):
    """The bytes of an element: zeros, and at marks what no other mark has."""
    width = LARGE[key][1]
    if element not in MARKS[key]:
        return bytes(width)
    return struct.pack("<H", 0x4000 + 16 * ord(key) + MARKS[key].index(element))[:width].ljust(width, b"\x3c")


def write_large(path):
    """All holes but for the marks."""
    header, end = {}, 0
    for key, (dtype, width, count) in LARGE.items():
        header[key] = {"dtype": dtype, "shape": [count], "data_offsets": [end, end + width * count]}
        end += width * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for key, elements in MARKS.items():
            for element in elements:
                out.seek(8 + len(text) + header[key]["data_offsets"][0] + element * LARGE[key][1])
                out.write(marked(key, element))
        out.truncate(8 + len(text) + end)
    assert os.path.getsize(path) > 1 << 32


def safetensors_offsets(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
    return {key: 8 + size + header[key]["data_offsets"][0] for key in LARGE}


def torch_offsets(path):
    """Where Python's zipfile says that records lie, told apart by their sizes."""
    sizes = {width * count: key for key, (_, width, count) in LARGE.items()}
    found = {}
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            name, extra = struct.unpack("<HH", file.read(4))
            if "/data/" in info.filename and info.file_size in sizes:
                found[sizes[info.file_size]] = info.header_offset + 30 + name + extra
    return found


def check_bytes(path, offsets):
    """Every byte of every tensor, without us: the marks, and zeros elsewhere."""
    zeros = bytes(BLOCK)
    with open(path, "rb", buffering=0) as file:
        for key, (_, width, count) in LARGE.items():
            for begin in range(0, width * count, BLOCK):
                size = min(BLOCK, width * count - begin)
                wanted = bytearray(zeros[:size])
                for element in MARKS[key]:
                    if begin <= element * width < begin + size:
                        wanted[element * width - begin:(element + 1) * width - begin] = marked(key, element)
                assert os.pread(file.fileno(), size, offsets[key] + begin) == wanted, f"{path}: {key} differs behind byte {begin}"


def check_slices(run, path):
    """Marks and their neighbours, by `cat`."""
    for key, elements in MARKS.items():
        for element in elements:
            begin, end = max(0, element - 2), min(element + 3, LARGE[key][2])
            found = run("cat", path, key, "--as", "raw", "--slice", f"{begin}:{end}", rss_kib_max=LARGE_RSS_KIB_MAX)
            assert found == b"".join(marked(key, i) for i in range(begin, end)), f"{path}: {key} at {element}: {found}"


def large_files(run):
    """From safetensors to torch and from there to hf: either format is read and written beyond 4 GiB."""
    write_large(run.work / "large.safetensors")
    check_slices(run, "large.safetensors")
    run("convert", "large.safetensors", "large.pt", "--to", "torch", "--no-sync", "--memory", BUDGET, rss_kib_max=LARGE_RSS_KIB_MAX)
    check_slices(run, "large.pt")
    check_bytes(run.work / "large.pt", torch_offsets(run.work / "large.pt"))
    run("convert", "large.pt", "hf", "--to", "hf", "--max-shard-size", "8GB", "--no-sync", "--memory", BUDGET,
        rss_kib_max=LARGE_RSS_KIB_MAX)
    os.remove(run.work / "large.pt")
    check_slices(run, "hf")
    written = run.work / "hf" / "model.safetensors"
    assert written.stat().st_size > 1 << 32
    check_bytes(written, safetensors_offsets(written))


TESTS = [("100,000 tensors through three formats", 0, many_tensors), ("1,000,000 chunks of a DCP", 0, many_chunks),
         ("files of more than 4 GiB and a tensor of more than 2^31 elements", ROOM_BYTES, large_files)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    args = parser.parse_args()
    print(f"1..{len(TESTS)}")
    failed = 0
    for number, (name, room, test) in enumerate(TESTS, 1):
        free = shutil.disk_usage(args.work).free
        if free < room:
            print(f"ok {number} - {name} # SKIP {free >> 20} MiB are free in {args.work}, {room >> 20} are needed")
            continue
        with tempfile.TemporaryDirectory(prefix="sizes-", dir=args.work) as folder:
            try:
                test(Run(str(args.bin.resolve()), pathlib.Path(folder).resolve()))
                print(f"ok {number} - {name}", flush=True)
            except (AssertionError, OSError, KeyError) as problem:
                failed += 1
                print(f"not ok {number} - {name}\n# {str(problem)[:400]}", flush=True)
    return failed > 0


sys.exit(main())
