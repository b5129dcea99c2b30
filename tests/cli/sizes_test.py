#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes that small fixtures cannot have, in bounded memory: 100,000 tensors, 1,000,000 chunks, files of more than 4 GiB and a tensor of
more than 2^31 elements. Prints TAP.

usage: sizes_test.py --bin RESHARD --work DIR [--share N] [--seed N]
DIR lies on a disk: 9 GiB are written there at most, and removed; with less room than 12 GiB the large files are skipped.
"""
import argparse
import io
import json
import multiprocessing
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import draw
import small_bombs as op

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


def many_tensors(run, _drawn):
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


class Parts:
    """Parts of a pickle as Python writes it: it would take long to make 7,000,000 objects for 1,000,000 chunks. What occurs again (classes
    and words) is written once, and referred to by its number from then on."""

    def __init__(self):
        self.places = {}

    def once(self, name, code):
        if name in self.places:
            return op.get(self.places[name])
        self.places[name] = len(self.places)
        return code + op.put(self.places[name])

    def word(self, text):
        return self.once(text, op.text(text))

    def name(self, module, name):
        return self.once((module, name), op.named(module, name))

    def begun(self, module, name):
        """An object; the members of its state, SETITEMS and BUILD are to follow."""
        return self.name(module, name) + op.EMPTY_TUPLE + op.NEWOBJ + op.EMPTY_DICT + op.MARK

    def built(self, name, module=op.META, **members):
        state = b"".join(self.word(key) + value for key, value in members.items())
        return self.begun(module, name) + state + op.SETITEMS + op.BUILD

    def size(self, number):
        return self.name("torch", "Size") + op.integer(number) + op.TUPLE1 + op.TUPLE1 + op.REDUCE

    def chunks(self):
        made = (self.built("ChunkStorageMetadata", offsets=self.size(4 * c), sizes=self.size(4)) for c in range(CHUNKS))
        return op.EMPTY_LIST + op.MARK + b"".join(made) + op.APPENDS

    def tensor(self):  # what is written first must be made first
        return self.built("TensorStorageMetadata", properties=self.built("TensorProperties", dtype=self.name("torch", "float32")),
                          size=self.size(4 * CHUNKS), chunks=self.chunks())

    def key(self, name):
        """Of a chunk; without its end, which a chunk of each tensor has."""
        return self.begun(op.META, "MetadataIndex") + self.word("fqn") + self.word(name)

    def key_end(self, chunk):
        return self.word("index") + op.integer(chunk) + self.word("offset") + self.size(4 * chunk) + op.SETITEMS + op.BUILD

    def place(self, number, length):
        return self.built("_StorageInfo", "torch.distributed.checkpoint.filesystem", relative_path=self.word("__0_0.distcp"),
                          offset=op.integer(number * length), length=op.integer(length))


def metadata_of(length):
    """.metadata of 1,000 tensors with 1,000 chunks each, in blobs of that length."""
    parts, names = Parts(), [f"layer.{i}.weight" for i in range(CHUNKED)]
    root = parts.begun(op.META, "Metadata") + parts.word("state_dict_metadata") + op.EMPTY_DICT + op.MARK
    state = [parts.word(names[0]) + parts.tensor()]
    tensor = parts.tensor()
    state += [parts.word(name) + tensor for name in names[1:]]
    root += b"".join(state) + op.SETITEMS + parts.word("planner_data") + op.NONE
    root += parts.word("storage_data") + op.EMPTY_DICT + op.MARK
    stored = [parts.key(names[0]) + parts.key_end(0) + parts.place(0, length)]
    ends, places = [parts.key_end(c) for c in range(CHUNKS)], [parts.place(number, length) for number in range(CHUNKS)]
    for i, name in enumerate(names):
        begin = parts.key(name)
        stored += [begin + ends[c] + places[blob_of(i, c)] for c in range(CHUNKS)][i == 0:]
    return op.PROTO + root + b"".join(stored) + op.SETITEMS + op.SETITEMS + op.BUILD + op.STOP


def write_chunked(folder):
    """A DCP of 1,000 tensors with 1,000 chunks each. Its 1,000 blobs serve all tensors, each in another order."""
    blobs = [blob(number) for number in range(CHUNKS)]
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"".join(stored for stored, _ in blobs))
    assert all(len(stored) == len(blobs[0][0]) for stored, _ in blobs)
    (folder / ".metadata").write_bytes(metadata_of(len(blobs[0][0])))


def many_chunks(run, _drawn):
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
    wanted, found = bytearray(BLOCK), bytearray(BLOCK)
    with open(path, "rb", buffering=0) as file:
        for key, (_, width, count) in LARGE.items():
            for begin in range(0, width * count, BLOCK):
                size = min(BLOCK, width * count - begin)
                marks = [element for element in MARKS[key] if begin <= element * width < begin + size]
                for element in marks:
                    wanted[element * width - begin:(element + 1) * width - begin] = marked(key, element)
                assert os.preadv(file.fileno(), [memoryview(found)[:size]], offsets[key] + begin) == size, f"{path}: {key} is short"
                assert found == wanted if size == BLOCK else found[:size] == wanted[:size], f"{path}: {key} differs behind byte {begin}"
                for element in marks:
                    wanted[element * width - begin:(element + 1) * width - begin] = bytes(width)


def check_slices(run, path):
    """Marks and their neighbours, by `cat`."""
    for key, elements in MARKS.items():
        for element in elements:
            begin, end = max(0, element - 2), min(element + 3, LARGE[key][2])
            found = run("cat", path, key, "--as", "raw", "--slice", f"{begin}:{end}", rss_kib_max=LARGE_RSS_KIB_MAX)
            assert found == b"".join(marked(key, i) for i in range(begin, end)), f"{path}: {key} at {element}: {found}"


def to_torch(run, source):
    run("convert", source, "large.pt", "--to", "torch", "--no-sync", "--memory", BUDGET, rss_kib_max=LARGE_RSS_KIB_MAX)
    check_slices(run, "large.pt")
    check_bytes(run.work / "large.pt", torch_offsets(run.work / "large.pt"))
    return "large.pt"


def to_hf(run, source):
    run("convert", source, "hf", "--to", "hf", "--max-shard-size", "8GB", "--no-sync", "--memory", BUDGET, rss_kib_max=LARGE_RSS_KIB_MAX)
    if source != "large.safetensors":
        os.remove(run.work / source)
    check_slices(run, "hf")
    written = run.work / "hf" / "model.safetensors"
    assert written.stat().st_size > 1 << 32
    check_bytes(written, safetensors_offsets(written))
    return "hf"


def large_files(run, drawn):
    """From safetensors to torch and from there to hf: either format is read and written beyond 4 GiB."""
    source = "large.safetensors"
    write_large(run.work / source)
    check_slices(run, source)
    for convert in drawn.of([to_torch, to_hf]):
        source = convert(run, source)


TESTS = [("100,000 tensors through three formats", 0, many_tensors), ("1,000,000 chunks of a DCP", 0, many_chunks),
         ("files of more than 4 GiB and a tensor of more than 2^31 elements", ROOM_BYTES, large_files)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    draw.add_options(parser, 0.3)
    args = parser.parse_args()
    drawn = draw.Draw(args)
    print(f"1..{len(TESTS)}")
    failed = 0
    for number, (name, room, test) in enumerate(TESTS, 1):
        free = shutil.disk_usage(args.work).free
        if free < room:
            print(f"ok {number} - {name} # SKIP {free >> 20} MiB are free in {args.work}, {room >> 20} are needed")
            continue
        with tempfile.TemporaryDirectory(prefix="sizes-", dir=args.work) as folder:
            try:
                test(Run(str(args.bin.resolve()), pathlib.Path(folder).resolve()), drawn)
                print(f"ok {number} - {name}", flush=True)
            except (AssertionError, OSError, KeyError) as problem:
                failed += 1
                print(f"not ok {number} - {name}\n# {str(problem)[:400]}", flush=True)
    return failed > 0


sys.exit(main())
