#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package for Python, with nothing but Python: over every fixture against its digests and the command, and call by call. Prints TAP.

usage: package_test.py --bin PATH --fixtures DIR --package DIR [--only GLOB] [--share N] [--seed N]
"""
import argparse
import array
import concurrent.futures
import ctypes
import doctest
import fnmatch
import functools
import gc
import hashlib
import inspect
import json
import math
import multiprocessing
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent), str(pathlib.Path(__file__).resolve().parent.parent / "cli")]
import built_package
import draw
import object_server
import small_models

TESTS = []


def test(function):
    """Its docstring's first line is its name."""
    TESTS.append((inspect.getdoc(function).split("\n", 1)[0], function))
    return function


def raises(kind, call, *words):
    """The exception, whose text and notes have the words."""
    try:
        call()
    except kind as error:
        said = str(error) + "\n" + "\n".join(getattr(error, "__notes__", []))
        for word in words:
            assert word in said, f"'{word}' is not said: {said}"
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def floats(*values):
    return array.array("f", values)


def matrix(rows, columns, start=0):
    """A float array as a two-dimensional memoryview."""
    values = floats(*range(start, start + rows * columns))
    return memoryview(values).cast("B").cast("f", (rows, columns))


def small_state():
    return {"model": {"w": matrix(4, 6), "b": floats(1.5, -2, 3), "ids": array.array("q", [7, -8])}, "step": 12,
            "args": {"lr": 0.25, "name": "é"}}


def saved(work, to="torch-dcp", name="saved", **options):
    path = work / name
    reshard.save(path, small_state(), to=to, **options)
    return path


# ---- fixtures ----

@functools.cache
def cases():
    """[(folder, manifest)] of those that were drawn."""
    return [(manifest.parent, json.loads(manifest.read_text())) for manifest in DRAWN.of(sorted(FIXTURES.glob("*/*/manifest.json")))]


def least(count):
    """What must have been met of what all fixtures have so many of."""
    return count if DRAWN.share >= 1 else count * DRAWN.share / 2


def command(*words):
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, errors="surrogateescape")


@functools.cache
def hash_of(path):
    return command("hash", "--json", path)


@test
def every_fixture_reads(work):
    """Keys, types, shapes and values of every fixture are those of the command, and of the fixture's digests"""
    read = compared = 0
    for folder, case in cases():
        path = folder / case["path"]
        said = hash_of(path)
        if said.returncode:
            continue
        expected = {(t["key"], t["dtype"], tuple(t["shape"])): t["hash"] for t in json.loads(said.stdout)["tensors"]}
        with reshard.open(path) as checkpoint:
            arrays = checkpoint.read()
            found = {(key, checkpoint.tensors[key].dtype, checkpoint.tensors[key].shape): hashlib.sha256(array.raw).hexdigest()
                     for key, array in arrays.items()}
            assert found.items() <= expected.items() and {key for key, *_ in found} == {key for key, *_ in expected}, case["case"]
            for key, tensor in case["tensors"].items():
                if key in arrays and "sha256" in tensor and (key, tensor["dtype"], tuple(tensor["shape"])) in found:
                    compared += found[key, tensor["dtype"], tuple(tensor["shape"])] == tensor["sha256"]
        read += 1
    assert read > least(150) and compared > least(3000), f"{read} read, {compared} tensors have the digest that their framework gave them"
    return f"{read} checkpoints, {compared} tensors"


@test
def every_item_reads(work):
    """Items of every fixture are those of the command, and values of plain types are Python's own"""
    seen = plain = deep = 0
    for folder, case in cases():
        path = folder / case["path"]
        said = command("ls", "--items", "--json", path)
        if said.returncode or "bad" in case["case"]:
            continue
        with reshard.open(path, skip_unsupported=True) as checkpoint:
            assert set(checkpoint.items) == {item["key"] for item in json.loads(said.stdout)["items"] if "in" not in item}, case["case"]
            for key in checkpoint.items:
                try:
                    value = checkpoint.items[key]
                except RecursionError:
                    deep += 1
                    continue
                try:
                    text = checkpoint.items.json(key)
                except reshard.LimitError as error:
                    assert "limits={'shown_bytes':" in error.hint, error.hint
                    continue
                seen += 1
                try:
                    same = json.loads(json.dumps(value, allow_nan=False))
                except (TypeError, ValueError):
                    continue
                if checkpoint.items.kind(key) != "file" and not isinstance(value, float) and not re.search('__|"-?inf"|"nan"', text):
                    assert same == json.loads(text), (case["case"], key)
                    plain += 1
    assert seen > least(1500) and plain > least(800) and deep < 4, f"{seen} items, {plain} compared, {deep} too deep for Python"
    return f"{seen} items, {plain} compared by value"


@test
def every_bad_fixture_raises(work):
    """What the command refuses raises the exception of that status, and nothing else"""
    kinds = {1: (reshard.DiffersError,), 3: (reshard.StorageError, reshard.OutOfMemoryError), 4: (reshard.FormatError,),
             5: (reshard.UnsupportedError,), 6: (reshard.LimitError,), 2: (reshard.UsageError,)}
    count = 0
    for folder, case in cases():
        path = folder / case["path"]
        status = hash_of(path).returncode
        if status == 0:
            continue
        count += 1
        try:
            with reshard.open(path) as checkpoint:
                checkpoint.read()
                reshard.hash(checkpoint)
        except reshard.Error as error:
            assert isinstance(error, kinds[status]), f"{case['case']}: {type(error).__name__} for {status}"
            assert str(error) and error.code in (status, 7), case["case"]
        else:
            raise AssertionError(f"{case['case']} was read")
    assert count > least(80), count
    return f"{count} cases"


# ---- arrays and reading ----

@test
def arrays(work):
    """Arrays: buffer protocol, DLPack, shape, bytes, types without a name in the buffer protocol"""
    a = reshard.Array("F32", (2, 3))
    view = memoryview(a)
    assert (view.shape, view.strides, view.format, view.nbytes, view.readonly) == ((2, 3), (12, 4), "f", 24, False)
    view[1, 2] = 5.5
    assert memoryview(a).tolist()[1][2] == 5.5 and struct.unpack("<6f", bytes(a.raw))[5] == 5.5
    assert len(a) == 2 and a.nbytes == 24 and a.address % 64 == 0 and a.dtype == "F32" and a.shape == (2, 3)
    assert a.__dlpack_device__() == (1, 0)
    capsule = a.__dlpack__()
    assert "dltensor" in repr(capsule)
    del capsule
    b = reshard.Array("bfloat16", (4,))
    raises(BufferError, lambda: memoryview(b), "Array.raw")
    assert len(bytes(b.raw)) == 8
    raw = b.raw
    del b
    gc.collect()
    memoryview(raw)[0] = 1  # keeps the memory
    number = memoryview(reshard.Array("I64", ()))
    number[()] = -9
    assert (number.shape, number.tolist()) == ((), -9)
    assert reshard.Array("F32", (0, 5)).nbytes == 0
    raises(ValueError, lambda: reshard.Array("F32", (2**40, 2**40)))
    raises(ValueError, lambda: reshard.Array("F32", (-1,)))
    raises(reshard.UsageError, lambda: reshard.Array("F33", (1,)), "F33")
    raises(ValueError, lambda: reshard.Array("F32", (1,) * 65), "64")
    raises(TypeError, lambda: len(reshard.Array("F32", ())))


@test
def dlpack(work):
    """The DLPack capsule has the memory, the type and the shape, and keeps the array"""
    class Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32), ("rank", ctypes.c_int32),
                    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                    ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    kinds = {"F32": (2, 32), "BF16": (4, 16), "BOOL": (6, 8), "U8": (1, 8), "I64": (0, 64), "C64": (5, 64), "F8_E4M3": (10, 8),
             "F8_E5M2": (12, 8)}
    for dtype, (code, bits) in kinds.items():
        a = reshard.Array(dtype, (3, 2))
        address = a.address
        capsule = a.__dlpack__()
        del a
        gc.collect()
        seen = Tensor.from_address(pointer_of(capsule, b"dltensor"))
        assert (seen.data, seen.device, seen.rank, seen.code, seen.bits, seen.lanes) == (address, 1, 2, code, bits, 1), dtype
        assert list(seen.shape[:2]) == [3, 2] and not seen.strides


class Lender:
    """An array that has nothing but DLPack."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack__(self):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device, 0


@test
def arrays_of_dlpack(work):
    """Arrays of packages that have DLPack are saved and filled where they lie"""
    arrays = {dtype: reshard.Array(dtype, (2, 3)) for dtype in ("F32", "BF16", "I64", "BOOL", "F8_E4M3", "C64")}
    for number, array in enumerate(arrays.values()):
        memoryview(array.raw)[:] = bytes((number + i) % 2 for i in range(array.nbytes))
    reshard.save(work / "d", {"net": {dtype: Lender(array) for dtype, array in arrays.items()}}, to="torch-dcp")
    with reshard.open(work / "d") as checkpoint:
        for dtype, array in arrays.items():
            read, filled = checkpoint.tensors["net." + dtype].read(), reshard.Array(dtype, (2, 3))
            checkpoint.load_into({"net." + dtype: Lender(filled)})
            assert read.dtype == dtype and bytes(read.raw) == bytes(array.raw) == bytes(filled.raw), dtype
    raises(reshard.UsageError, lambda: reshard.save(work / "e", {"w": Lender(arrays["F32"], device=2)}, to="hf"), "device")
    from reshard import _reshard
    raises(ValueError, lambda: _reshard.dlpack_layout(3))


@test
def boxes(work):
    """Boxes of tensors: slices, ints, negative ones, '...', empty ones; what is no box"""
    with reshard.open(saved(work)) as checkpoint:
        w = checkpoint.tensors["model.w"]
        whole = [[float(row * 6 + column) for column in range(6)] for row in range(4)]
        assert (w.key, w.dtype, w.shape, w.nbytes) == ("model.w", "F32", (4, 6), 96)
        assert memoryview(w.read()).tolist() == whole == memoryview(w[...]).tolist() == memoryview(w[:]).tolist()
        assert memoryview(w[1:3, 2:]).tolist() == [row[2:] for row in whole[1:3]]
        assert memoryview(w[-1]).tolist() == whole[3] and memoryview(w[..., 0]).tolist() == [row[0] for row in whole]
        assert w[2, 5].shape == () and memoryview(w[2, 5])[()] == 17
        assert w[3:1].shape == (0, 6) and w[9:].shape == (0, 6)
        assert memoryview(w.read((1, 1), (2, 2), dtype="F64")).tolist() == [[7, 8], [13, 14]]
        for index in ((4,), (0, 6), (0, 0, 0), (..., ...), (slice(0, 4, 2),), (-5,)):
            raises(IndexError, lambda: w[index])
        raises(TypeError, lambda: w["a"])
        raises(reshard.UsageError, lambda: w.read((0, 0), (5, 6)), "model.w")
        for start, extent in (((0,), (1,)), ((0,), None), ((0, 0, 0), (1, 1, 1))):
            raises(reshard.UsageError, lambda: w.read(start, extent), "start", "2 axes")
        raises(KeyError, lambda: checkpoint.tensors["nope"])


@test
def memory_of_others(work):
    """Into memory of others: strided, cast, of the wrong shape or type, read-only"""
    with reshard.open(saved(work)) as checkpoint:
        w = checkpoint.tensors["model.w"]
        own = bytearray(4 * 6 * 8)
        wide = memoryview(own).cast("d", (4, 6))
        assert w.read(out=wide) is wide and wide[3, 5] == 23
        flat = memoryview(bytearray(4 * 12)).cast("f")
        checkpoint.tensors["model.b"].read(out=flat[::4])
        assert flat.tolist() == [1.5, 0, 0, 0, -2, 0, 0, 0, 3, 0, 0, 0]
        raises(reshard.UsageError, lambda: w.read(out=flat), "model.w", "[4, 6]", "[12]")
        raises(reshard.UsageError, lambda: w.read(dtype="F16", out=wide), "F64")
        raises(BufferError, lambda: w.read(out=memoryview(bytes(96)).cast("f", (4, 6))))
        reshard.save(work / "read-only", {"w": memoryview(b"abcd")}, to="hf")  # but saved
        with reshard.open(work / "read-only") as other:
            assert bytes(other.tensors["w"].read()) == b"abcd"
        raises(reshard.UsageError, lambda: checkpoint.tensors["model.b"].read(out=flat[8::-4]), "negative")
        raises(TypeError, lambda: w.read(out=[1]), "list")
        into = {"model.w": wide, "model.ids": memoryview(bytearray(4)).cast("h")}
        for i in range(len(own)):
            own[i] = 0
        checkpoint.load_into(into)
        assert wide[3, 5] == 23 and into["model.ids"].tolist() == [7, -8]
        raises(reshard.UsageError, lambda: checkpoint.load_into({"nope": floats(1)}), "nope")
        part = reshard.Shard(matrix(2, 3, 100), (4, 6), (1, 2))
        checkpoint.load_into({"model.w": part})
        assert part.data.tolist() == [[8, 9, 10], [14, 15, 16]]


@test
def looking(work):
    """What a checkpoint tells: facts, files, chunks, paths, warnings, ties, a selection under other names"""
    with reshard.open(saved(work)) as checkpoint:
        assert checkpoint.format == "torch-dcp" and checkpoint.facts["ranks"] == "1" and checkpoint.nbytes == 96 + 12 + 16
        assert set(checkpoint.files) == {".metadata", "__0_0.distcp"} and checkpoint.warnings == []
        chunk, = checkpoint.tensors["model.w"].chunks
        assert (chunk.start, chunk.extent, chunk.file, chunk.flat, chunk.writer) == ((0, 0), (4, 6), "__0_0.distcp", None, 0)
        assert checkpoint.tensors["model.w"].tied_to is None and len(checkpoint.tensors) == 3 and "model.b" in checkpoint.tensors
        assert list(checkpoint.items) == ["step", "args"] and checkpoint.items["args"] == {"lr": 0.25, "name": "é"}
        assert checkpoint.items.path("args") == ("args",) and "3 tensors" in repr(checkpoint)
    with reshard.open(work / "saved").select(include=["net.*"], renames=["s/model/net/"]) as checkpoint:
        assert set(checkpoint.tensors) == {"net.w", "net.b", "net.ids"} and len(checkpoint.items) == 0
        assert memoryview(checkpoint.tensors["net.b"].read()).tolist() == [1.5, -2, 3]
    raises(reshard.UsageError, lambda: checkpoint.tensors["net.w"].read(), "closed")
    raises(reshard.UsageError, lambda: reshard.open(work / "saved").select(include=["nope*"]), "nope*")


@test
def behind_urls(work):
    """Checkpoints behind URLs are opened, loaded and converted as others are"""
    state = {"w": matrix(4, 6), "step": 3}
    (work / "site").mkdir()
    reshard.save(work / "site" / "c", state, to="torch-dcp")
    with object_server.Server(work / "site") as server:
        with reshard.open(server.url + "/c/") as checkpoint:
            assert memoryview(checkpoint.tensors["w"][1:3, 2:4]).tolist() == [row[2:4] for row in state["w"].tolist()[1:3]]
        into = matrix(4, 6, 100)
        assert reshard.load(server.url + "/c", {"w": into}).items["step"] == 3 and into.tolist() == state["w"].tolist()
        reshard.convert(server.url + "/c", work / "out", to="hf", drop_items=True)
        assert reshard.diff(work / "out", server.url + "/c", items=False)
        raises(reshard.StorageError, lambda: reshard.open(server.url + "/nothing"), "nothing")
        raises(reshard.UnsupportedError, lambda: reshard.convert(work / "out", server.url + "/d", to="hf"), "nothing is written there")


def of_types(value):
    """The value with the types of all that it holds; NaN is like itself."""
    if isinstance(value, dict):
        return "dict", [(of_types(key), of_types(member)) for key, member in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [of_types(member) for member in value]
    return type(value).__name__, repr(value)


@test
def typed_values(work):
    """Items keep their types: saved alone, in the background, by ranks and as cells; looked at, and loaded"""
    items = {"inf": math.inf, "low": -math.inf, "nan": math.nan, "zero": -0.0, "pair": (1, (2.5, "x"), []), "bytes": b"\0\xff", "set": {1},
             "deep": {"betas": (0.9, 0.999), "best": [math.inf, {"raw": b""}], "none": None}, "big": -(2**200),
             "plain": {"a": [1, "b", True]}}
    expected = {key: of_types(value) for key, value in items.items()}
    cells = {"cell": reshard.Cell((math.nan, b"x"))}

    def alone(path):
        reshard.save(path, {"w": floats(1), **items}, cells=cells, to="torch-dcp")

    def behind(by):
        def call(path):
            with reshard.Saver(by) as saver:
                saver.save(path, {"w": floats(1), **items}, cells=cells, to="torch-dcp")
        return call

    def by_ranks(path):
        def one(comm):
            own = {"cell": reshard.Cell((math.nan, b"x"), replica=comm.rank)}
            return reshard.save(path, {"w": floats(1), **items}, comm=comm, cells=own, to="torch-dcp")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert list(pool.map(one, reshard.Comm.threads(2))) == [[], []]
    for number, call in enumerate((alone, behind("thread"), behind("process"), by_ranks)):
        path = work / f"{number}"
        call(path)
        loaded = reshard.load(path, {"w": floats(0)}, cells={"cell": reshard.Cell()})
        assert of_types(loaded.cells["cell", (0,)]) == of_types((math.nan, b"x")), loaded.cells
        with reshard.open(path) as checkpoint:
            for found in (checkpoint.items, loaded.items):
                assert {key: of_types(found[key]) for key in items} == expected, (number, dict(found))
    reshard.save(work / "hf", {"w": floats(1), **items}, to="hf", drop_items=False)
    assert {key: of_types(value) for key, value in reshard.open(work / "hf").items.items() if key in items} == {
        key: value for key, value in expected.items() if key != "set"}
    assert set(reshard.load(work / "hf", {"w": floats(0)}).items) == set(reshard.open(work / "hf").items)


@test
def items_of_ranks(work):
    """Items that only some ranks have are saved, and what a format does not hold is told; options that saves in the background lack, too"""
    def state(comm):
        return {"w": floats(1), "step": 3, f"loader.{comm.rank}": {"at": comm.rank}, **({"late": (comm.rank,)} if comm.rank else {})}

    def together(comm):
        said = reshard.save(work / "now", state(comm), comm=comm, to="torch-dcp")
        dropped = reshard.save(work / "zarr", state(comm), comm=comm, to="zarr")
        with reshard.Saver(comm=comm) as saver:
            saver.save(work / "then", state(comm), to="torch-dcp")
        return said, dropped
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        said = list(pool.map(together, reshard.Comm.threads(3)))
    for name in ("now", "then"):
        found = dict(reshard.open(work / name).items)
        assert found == {"step": 3, "late": (1,), **{f"loader.{rank}": {"at": rank} for rank in range(3)}}, found
    assert said[1:] == [([], [])] * 2 and said[0][0] == [], said
    assert sorted(text.split(": ")[1] for text in said[0][1]) == ["late", "loader.0", "loader.1", "loader.2", "step"], said[0][1]
    assert all(text.startswith("dropped: ") and "zarr" in text for text in said[0][1])
    for by in ("thread", "process"):
        with warnings.catch_warnings(record=True) as caught, reshard.Saver(by) as saver:
            warnings.simplefilter("always")
            saver.save(work / f"{by}.zarr", {"w": floats(1), "step": 3}, to="zarr", check=True)
            saver.save(work / f"{by}.npz", {"w": floats(1), "late": 3})  # its name says the format
            saver.save(work / f"{by}2.zarr", {"w": floats(1), "step": 3}, to="zarr", drop_items=True, progress=None)
            saver.save(work / f"{by}.hf", {"w": floats(1), "step": 3}, to="hf")
            saver.wait()
            for options in ({"check": False}, {"spread": False}, {"progress": print}, {"comm": 1}):
                raises(reshard.UsageError, lambda: saver.save(work / "x", {"w": floats(1)}, to="hf", **options), "background", *options)
        assert [(one.category, one.filename) for one in caught] == [(reshard.DroppedWarning, __file__)] * 2, [str(one) for one in caught]
        assert "step" in str(caught[0].message) and "zarr" in str(caught[0].message) and "late" in str(caught[1].message)
    assert not (work / "x").exists()


@test
def values(work):
    """Values of items come back as they were: big integers, floats, bytes, nesting, text that is no UTF-8"""
    items = {"none": None, "yes": True, "small": -5, "big": 2**100 + 1, "negative": -(2**77), "edge": 2**63 - 1, "under": -(2**63),
             "over": 2**63, "real": 0.1, "inf": math.inf, "bytes": b"\0\xff", "text": "ä\U0001f600", "list": [1, [2, [3, {"a": None}]]],
             "empty": {}, "nothing": [], "dict": {"x": {"y": [True, 1.5]}}}
    reshard.save(work / "v", {"w": floats(1), **items}, to="torch-dcp")
    with reshard.open(work / "v") as checkpoint:
        found = dict(checkpoint.items)
    assert found == items, {key: (found.get(key), value) for key, value in items.items() if found.get(key) != value}
    assert all(type(found[key]) is type(value) for key, value in items.items())
    circle = []
    circle.append(circle)
    for value, kind in ((object(), TypeError), ({"a": {1, 2, object()}}, TypeError), ({1: 2}, TypeError), (circle, RecursionError)):
        raises(kind, lambda: reshard.save(work / "w", {"w": floats(1), "item": value}, to="torch-dcp"))
        assert not (work / "w").exists()
    raises(TypeError, lambda: reshard.flatten({"w": floats(1), "lr": {"steps": [{30: 1}]}}), "'lr.steps.0'", "30")
    raises(TypeError, lambda: reshard.flatten({"w": floats(1), "x": {"y": (1, object())}}), "'x.y.1'", "object")


# ---- conversions and checks ----

@test
def conversions(work):
    """convert: format, layout, types, options, notes, files; what is refused leaves nothing"""
    source = saved(work)
    report = reshard.convert(source, work / "hf", to="hf", dtype={"*": "bf16", "*.ids": "i64"}, verify=True, checksum="sha256")
    assert (report.source_format, report.target_format, report.tensors, report.verified_tensors) == ("torch-dcp", "hf", 3, 3)
    assert {file.name for file in report.files} >= {"model.safetensors"} and (work / "hf" / "reshard.json").exists()
    with reshard.open(work / "hf") as checkpoint:
        assert checkpoint.tensors["model.w"].dtype == "BF16" and checkpoint.tensors["model.ids"].dtype == "I64"
        assert memoryview(checkpoint.tensors["model.w"].read(dtype="F32")).tolist()[3][5] == 23
        assert reshard.convert(checkpoint, work / "again.safetensors", to="safetensors", include=["*.b"]).tensors == 1
    dropped = reshard.plan(source, to="zarr").dropped
    assert {note.key for note in dropped} == {"step", "args"} and all(note.reason and note.kind == "no-place" for note in dropped)
    assert not reshard.plan(source, to="torch").notes
    reshard.convert(source, work / "two", to="torch-dcp", layout="ranks=2", sync=False)
    assert len([name for name in os.listdir(work / "two") if name.endswith(".distcp")]) == 2
    sharded = reshard.convert(source, work / "shards", to="hf", max_shard_bytes="50B", strip_prefix="model.", add_prefix="net.",
                              renames=["s/b$/bias/"])
    assert len(sharded.files) > 2
    with reshard.open(work / "shards") as checkpoint:
        assert set(checkpoint.tensors) == {"net.w", "net.bias", "net.ids"}
    reshard.convert(source, work / "z", to="zarr", options={"zarr-format": 3})
    assert (work / "z" / "model.w" / "zarr.json").exists()
    raises(reshard.UsageError, lambda: reshard.convert(source, work / "x", to="zarr", options={"nope": True}), "nope")
    before = set(os.listdir(work))
    raises(reshard.StorageError, lambda: reshard.convert(source, work / "hf", to="hf"), "overwrite=True")
    raises(reshard.UsageError, lambda: reshard.convert(source, work / "x", to="nope"), "nope", "reshard.formats()")
    raises(reshard.UsageError, lambda: reshard.convert(source, work / "x", to="hf", include=["zzz"]), "zzz")
    raises(TypeError, lambda: reshard.convert(source, work / "x", too="hf"), "convert() takes no argument 'too': did you mean 'to'?")
    for said, meant in (("rename", "renames"), ("items", "drop_items"), ("max_shard_size", "max_shard_bytes"), ("ovrwrite", "overwrite")):
        raises(TypeError, lambda: reshard.plan(source, to="hf", **{said: None}), f"'{said}': did you mean '{meant}'?")
    raises(TypeError, lambda: reshard.diff(source, source, rename=[]), "diff() takes no argument", "'renames'")
    raises(TypeError, lambda: reshard.hash(source, rename=[]), "hash() takes no argument 'rename'")
    raises(TypeError, lambda: reshard.load(source, {}, strict_maps=True), "'strict_map'")
    raises(TypeError, lambda: reshard._reshard.open(str(source), {"lenent": True}, {}), "lenent")
    raises(reshard.UsageError, lambda: reshard.convert(source, work / "x", to="hf", max_shard_bytes="five"), "five")
    raises(reshard.UsageError, lambda: reshard.convert(source, work / "x"), "say to=FORMAT or like=REFERENCE")
    raises(reshard.UsageError, lambda: reshard.convert(source, work / "x.pt", dtype="int8"), "dtype={'GLOB': 'int8'}")
    raises(reshard.UsageError, lambda: reshard.convert(source, work / "x", to="torch", wrap="root"), "to='atorch' does")
    raises(reshard.StorageError, lambda: reshard.convert(work / "gone", work / "x", to="hf"), "gone")
    assert set(os.listdir(work)) == before
    assert reshard.convert(source, work / "hf", to="hf", overwrite=True).tensors == 3
    assert reshard.save(work / "saved.npz", {"w": floats(1)}).target_format == "npz"
    for suffix, name in ((".safetensors", "safetensors"), (".pt", "torch"), (".npz", "npz"), (".pdopt", "paddle")):
        assert reshard.convert(source, work / ("suffix" + suffix), include=["*.b"]).target_format == name
    (work / "hf" / "config.json").write_text("{}")
    for config in ("{}", work / "hf" / "config.json"):
        reshard.convert(source, work / "with", to="hf", config=config, overwrite=True)
        assert (work / "with" / "config.json").read_text() == "{}"
    assert reshard.plan(work / "hf", to="torch", drop_items=True).dropped[0].reason.endswith("which drop_items=True leaves out")


@test
def stored_items(work):
    """Items of classes go from one checkpoint into another, which Python's objects do not hold"""
    source = FIXTURES / "megatron/megatron-dense-legacy-tp1/ckpt"
    with reshard.open(source) as checkpoint:
        args = checkpoint.items["args"]
        assert isinstance(args, reshard.Object) and "Namespace" in args.class_name and args.members["num_layers"] > 0
        raises(TypeError, lambda: reshard.save(work / "x.pt", {"w": floats(1), "args": args}, to="torch"), "'args'", "Object")
        stored = checkpoint.items.stored("args")
        state = {"w": floats(1), "args": stored, "deep": {"w": floats(2), "again": stored, "n": 1}}
        reshard.save(work / "y.pt", state, to="torch")
        expected = checkpoint.items.json("args")
        for by in ("thread", "process"):
            with reshard.Saver(by) as saver:
                saver.save(work / by, state, to="torch")
    for name in ("y.pt", "thread", "process"):
        with reshard.open(work / name) as checkpoint:
            assert checkpoint.items.json("args") == checkpoint.items.json("deep.again") == expected and checkpoint.items["deep.n"] == 1
    raises(reshard.UsageError, lambda: reshard.from_memory(state), "closed")


@test
def parts(work):
    """Parts of a conversion, and commit"""
    source = saved(work)
    for part in (1, 0):
        reshard.convert(source, work / "out", to="torch-dcp", layout={"ranks": 2}, part=(part, 2))
        assert not (work / "out").exists()
    reshard.commit(source, work / "out", to="torch-dcp", layout={"ranks": 2})
    assert reshard.diff(source, work / "out")
    raises(reshard.DiffersError, lambda: reshard.commit(source, work / "none", to="torch-dcp", layout={"ranks": 2}))


@test
def mappings(work):
    """Mappings: as text, as a file, with constants, in load_into; one that does not fit says where"""
    source = saved(work)
    reshard.convert(source, work / "m", to="safetensors", map="model.w^T -> w")
    with reshard.open(work / "m") as checkpoint:
        assert checkpoint.tensors["w"].shape == (6, 4)
    (work / "file.map").write_text("model.w -> w0, w1, axis=0\n")
    reshard.convert(source, work / "n", to="safetensors", map=[pathlib.Path(work / "file.map"), "w1 -> second"])
    with reshard.open(work / "n") as checkpoint:
        assert checkpoint.tensors["second"].shape == (2, 6) and memoryview(checkpoint.tensors["second"].read()).tolist()[0][0] == 12
    error = raises(reshard.UsageError, lambda: reshard.convert(source, work / "o", to="safetensors", map="model.w ->"))
    assert error.line == 1 and error.column > 0
    target = {"turned": memoryview(bytearray(96)).cast("f", (6, 4))}
    with reshard.open(source) as checkpoint:
        checkpoint.load_into(target, map="model.w^T -> turned")
    assert target["turned"][5, 3] == 23


@test
def tried_mappings(work):
    """Mappings are tried: all five ways say what the command says; sources are checkpoints, paths and descriptions"""
    source = {"tensors": {"a": {"dtype": "float32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}}}
    target = {"tensors": {"b": {"dtype": "float32", "shape": [3, 2]}, "c": {"dtype": "float32", "shape": [1]}}, "initial": 7}
    text = "a^T -> b\n_ -> c\n"
    (work / "t.map").write_text(text)
    for name, description in ("s.json", source), ("t.json", target):
        (work / name).write_text(json.dumps(description))
    words = [work / "t.map", "--source", work / "s.json", "--target", work / "t.json"]
    for verb in ("expand", "check", "eval", "invert"):
        outcome = getattr(reshard.mapping, verb)(text, source, target)
        assert str(outcome) == outcome.text == command("map", verb, *words).stdout.rstrip("\n"), verb
        assert outcome.data == json.loads(command("map", verb, *words, "--json").stdout) and outcome.warnings == ""
    assert reshard.mapping.eval(text, source, target).data["tensors"]["b"]["data"] == [1, 4, 2, 5, 3, 6]
    assert reshard.mapping.eval(text, source, target).data["tensors"]["c"]["data"] == [7]
    assert reshard.mapping.parse(work / "t.map").data == json.loads(command("map", "parse", work / "t.map", "--json").stdout)
    back = reshard.mapping.invert("a^T -> b", source)
    assert reshard.mapping.eval(back, {"tensors": {"b": {"dtype": "float32", "shape": [3, 2], "data": [1, 4, 2, 5, 3, 6]}}}).data[
        "tensors"]["a"]["data"] == [1, 2, 3, 4, 5, 6]
    saved_at = saved(work)
    with reshard.open(saved_at) as checkpoint:
        both = reshard.mapping.check("model.w^T -> w", checkpoint), reshard.mapping.check("model.w^T -> w", saved_at)
    assert both[0].data == both[1].data and [t["shape"] for t in both[0].data["targets"] if t["key"] == "w"] == [[6, 4]]
    assert reshard.mapping.expand("a -> b, c, axis=0, when=\"n == 2\"", source, constants={"n": 2}).text == "a -> b, c, axis=0"
    assert reshard.mapping.expand("a -> b, c, axis=0, when=\"n == 2\"", source, config='{"n": 3}').text == ""
    assert [t["key"] for t in reshard.mapping.check("b -> a", source, reverse=True).data["targets"]] == ["b"]
    raises(reshard.UsageError, lambda: reshard.mapping.check("a -> b, when=\"1 > 0\"", source, strict=True))
    raises(reshard.LimitError, lambda: reshard.mapping.expand("a -> b\na -> c", source, limits={"map_names": 1}), "map_names")
    raises(TypeError, lambda: reshard.mapping.parse("a -> b", verbose=True))


@test
def mistakes_in_mappings(work):
    """All mistakes of a mapping are diagnoses of the error, and what fits but may not be meant is a warning where the call stands"""
    source = saved(work)
    text = "nothing -> y\nmodel.ww -> z\n"
    for call in (lambda: reshard.mapping.check(text, source), lambda: reshard.convert(source, work / "o", to="safetensors", map=text),
                 lambda: reshard.load(source, {"y": floats(1)}, map=text)):
        error = raises(reshard.UsageError, call)
        assert "mapping:1:1: error: 'nothing'" in error.diagnoses and "mapping:2:1: error: 'model.ww'" in error.diagnoses
        assert "hint: did you mean 'model.w'?" in error.diagnoses and "    1 | nothing -> y\n      | ^^^^^^^\n" in error.diagnoses
    raises(ZeroDivisionError, lambda: reshard.convert(source, work / "o", to="hf", map="none -> _", progress=lambda _: 1 // 0))
    assert raises(reshard.StorageError, lambda: reshard.open(work / "none")).diagnoses == ""
    (comm,) = reshard.Comm.threads(1)
    state = {"a": floats(1, 2)}
    error = raises(reshard.UsageError, lambda: comm.redistribute(state, {"b": floats(0, 0)}, map=["a -> c", "x -> b\ny -> c"]))
    assert error.diagnoses.count("error:") == 2 and "'y'" in error.diagnoses
    text = "none -> _\n"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reshard.plan(source, to="hf", map=text)
        comm.redistribute(state, {"a": floats(0, 0)}, map=text)
        comm.plan(state, {"a": floats(0, 0)}, map=text)
        with reshard.open(source) as checkpoint:
            checkpoint.load_into({"model.b": floats(0, 0, 0)}, map=text)
        assert reshard.mapping.check(text, source).warnings.startswith("mapping:1:1: warning: 'none' is not in the source")
    assert [(w.category, w.filename) for w in caught] == [(reshard.MappingWarning, __file__)] * 4, [str(w) for w in caught]
    assert all(str(w.message).startswith("mapping:1:1: warning: 'none'") for w in caught)
    with warnings.catch_warnings():
        warnings.simplefilter("error", reshard.MappingWarning)
        raises(reshard.MappingWarning, lambda: reshard.plan(source, to="hf", map=text))
        raises(reshard.MappingWarning, lambda: comm.plan(state, {"a": floats(0, 0)}, map=text))
    comm.close()


@test
def previews(work):
    """preview: the target's tensors, chunks and files, and what moves between files, before anything is written"""
    source = saved(work)
    report, seen = reshard.preview(source, work / "p", to="torch-dcp", layout={"ranks": 2})
    assert not (work / "p").exists() and report.tensors == len(seen.tensor_list)
    reshard.convert(source, work / "p", to="torch-dcp", layout={"ranks": 2})
    with seen, reshard.open(work / "p") as made:
        assert seen.format == made.format and seen.files == made.files
        assert [(t.key, t.shape, [(c.start, c.extent, c.file, c.writer) for c in t.chunks]) for t in seen.tensor_list] == \
            [(t.key, t.shape, [(c.start, c.extent, c.file, c.writer) for c in t.chunks]) for t in made.tensor_list]
    assert sum(move.nbytes for move in report.moves) == report.write_bytes and {m.target_rank for m in report.moves} == {0, 1}
    assert {move.source for move in report.moves} <= set(reshard.open(source).files)
    assert reshard.plan(source, to="hf").moves == []


@test
def item_files(work):
    """Items as files of torch.save: those of every fixture come back as they were, classes and tensors too, alone and by ranks"""
    read = tensors = 0
    for folder, case in cases():
        try:
            checkpoint = reshard.open(folder / case["path"])
        except reshard.Error:
            continue
        with checkpoint:
            texts, files, is_one_file = {}, {}, checkpoint.format == "torch" and len(checkpoint.files) == 1
            for index, key in enumerate(checkpoint.items):
                name = f"{index}" if index % 2 else f"{index}/shard_0_1"
                try:
                    texts[name] = checkpoint.items.json(key)
                    files[name] = reshard.TorchFile(checkpoint.items.file(key))
                except (reshard.UnsupportedError, reshard.LimitError) as error:  # tensors whose bytes are not there, texts of 32 MiB
                    assert "storage" in str(error) or "tensor" in str(error) or "limit" in str(error), (case["case"], key, str(error))
                    texts.pop(name, None)
                if checkpoint.items.kind(key) == "file":
                    texts.pop(name, None)
        if not files:
            continue
        values = {"t": floats(1), **{name: file for name, file in files.items() if "/" not in name}}
        cells = {name.split("/")[0]: reshard.Cell(file) for name, file in files.items() if "/" in name}
        for target, options in (("alone", {}), ("ranks", {"cells": cells})):
            reshard.save(work / target, values, to="torch-dcp", sync=False, overwrite=True, **options)
            with reshard.open(work / target) as copied:
                for name in copied.items:
                    respelled = "__kwargs__", "<persistent id ('module'"  # by protocol 2, and by what is no legacy stream
                    if name in texts and not any(word in texts[name] for word in respelled):
                        found, expected = (persistent(text, is_one_file) for text in (copied.items.json(name), texts[name]))
                        assert found == expected, (case["case"], name)
                        read += 1
                        tensors += "__persistent_id__" in texts[name]
    assert read > least(5000) and tensors > least(100), (read, tensors)
    with reshard.open(saved(work)) as checkpoint:
        raises(KeyError, lambda: checkpoint.items.file("none"))
    raises(reshard.FormatError, lambda: reshard.from_memory({"t": floats(1), "x": reshard.TorchFile(b"PK\3\4")}))
    raises(reshard.UsageError, lambda: reshard._reshard.open_state([], {"x": 1}, [("x", b"", 0)], "memory", {}, None), "twice")
    return f"{read} items, {tensors} with tensors"


@test
def loads_bring_items(work):
    """load brings the items of every fixture, as looking at them shows them"""
    seen = 0
    for folder, case in cases():
        try:
            checkpoint = reshard.open(folder / case["path"])
            loaded = reshard.load(folder / case["path"], {})
        except (reshard.FormatError, reshard.UnsupportedError, reshard.LimitError, reshard.StorageError, reshard.UsageError):
            continue
        with checkpoint:
            common = [key for key in checkpoint.items if not re.search(r"/shard_[\d.]*_[\d.]*$", key)]
            assert list(loaded.items) == common, (case["case"], set(loaded.items) ^ set(common))
            for key in common:
                try:
                    checkpoint.items.json(key)  # of a list that doubles thirty times there is no text, nor a repr
                    expected = checkpoint.items[key]
                    if "reshard.Object" in repr(expected) or checkpoint.items.kind(key) == "file":
                        continue
                    assert of_types(loaded.items[key]) == of_types(expected), (case["case"], key)
                    seen += 1
                except (RecursionError, reshard.LimitError):  # of lists within lists within lists
                    continue
    assert seen > least(1500), seen
    return f"{seen} items"


def persistent(text, tells_apart):
    """JSON of an item, whose storages are numbered as they come: they have other names in a file of its own. An item that was put together
    of several files does not tell storages of one name apart."""
    numbers = {}
    return re.sub(r'(\["storage", (?:"[^"]*"|\{[^{}]*\}), ")([^"]*)(", ")[^"]*(")',
                  lambda found: f"{found[1]}{numbers.setdefault(found[2], len(numbers)) if tells_apart else ''}{found[3]}{found[4]}", text)


@test
def checks(work):
    """verify, diff, hash, stats: results, and what a damaged byte makes of them"""
    source = saved(work)
    reshard.convert(source, work / "c.safetensors", to="safetensors", checksum="crc32c")
    good = reshard.verify(work / "c.safetensors", deep=True)
    assert good and good.coverage["checked_tensors"] == 3 and not good.uncovered
    reshard.convert(source, work / "p.safetensors", to="safetensors")
    assert set(reshard.verify(work / "p.safetensors").uncovered) == {"model.w", "model.b", "model.ids"}
    data = bytearray((work / "c.safetensors").read_bytes())
    data[-1] ^= 64
    (work / "c.safetensors").write_bytes(data)
    bad = reshard.verify(work / "c.safetensors")
    assert not bad and any(finding.severity == "failure" for finding in bad.findings), bad
    differs = reshard.diff(source, work / "c.safetensors", items=False)
    changed = [found for found in differs.tensors.values() if found.outcome == "values"]
    assert not differs and len(changed) == 1 and changed[0].changed_elements == 1 and differs.summary["changed_tensors"] == 1
    assert reshard.diff(source, work / "c.safetensors", items=False, exclude=[changed[0].key])
    assert reshard.hash(source)["model.w"] == hashlib.sha256(matrix(4, 6)).hexdigest()
    assert reshard.hash(source, "md5")["model.b"] == hashlib.md5(floats(1.5, -2, 3)).hexdigest()
    assert list(reshard.hash(source)) == sorted(reshard.hash(source))
    found = reshard.stats(source, include=["*.b"])["model.b"]
    assert (found.min, found.max, found.count, sum(found.positive), sum(found.negative)) == (-2, 3, 3, 2, 1)
    reshard.save(work / "nan", {"w": floats(math.nan)}, to="safetensors")
    assert reshard.verify(work / "nan") and not reshard.verify(work / "nan", fail_on="nan")
    raises(reshard.UsageError, lambda: reshard.verify(work / "nan", fail_on="zeros"), "zeros")
    assert not reshard.verify(work / "nan", against=source)
    gap = FIXTURES / "torch-dcp/bad-dcp-gap/ckpt"  # damage is a finding, as for the command, unless it is asked to be none
    assert [finding.kind for finding in reshard.verify(gap).findings if finding.severity == "failure"] == ["damage"]
    raises(reshard.FormatError, lambda: reshard.verify(gap, opening={"shows_damage": False}), "aa.weight")
    loaded = reshard.load(source, {"model.nowhere": floats(0)}, strict=False)
    assert loaded.unexpected == ["model.nowhere"] and "model.b" in loaded.missing, loaded
    raises(reshard.Error, lambda: reshard.load(source, {"model.b": floats(0, 0, 0)}, strict=True), "model.w")
    with reshard.open(source) as a:
        raises(TypeError, lambda: reshard.diff(a, a))


@test
def salvaging(work):
    """salvage and latest_good"""
    first, second = saved(work, name="iter_0000001"), saved(work, name="iter_0000002")
    assert reshard.latest_good(work).endswith("iter_0000002")
    (second / "__0_0.distcp").write_bytes((second / "__0_0.distcp").read_bytes()[:-2500])
    assert reshard.latest_good(work).endswith("iter_0000001")
    result = reshard.salvage(second, work / "rest", to="torch-dcp")
    assert not result and result.counts["lost_tensors"] + result.counts["lost_items"] > 0 and result.findings
    first = saved(work, name="plain")
    whole = reshard.salvage(first, work / "whole")
    assert whole and whole.counts["proved_tensors"] == 3, whole
    same = reshard.diff(first, work / "whole")
    assert same, same.findings


@test
def what_there_is(work):
    """Formats, types and limits; a limit that is met, and raised"""
    formats = reshard.formats()
    assert formats["torch_dist"].reads and formats["torch_dist"].writes and any(word == "tp" for word, _ in formats["torch_dist"].words)
    assert list(formats) == [made["name"] for made in json.loads(command("formats", "--json").stdout)["formats"]]
    assert reshard.dtypes()["BF16"] == ("bfloat16", 16) and reshard.dtype_name("torch.float8_e4m3fn") == "F8_E4M3"
    assert reshard.limits()["tensors"][1] > 1000 and reshard.__version__ == command("--version").stdout.split()[1]
    source = saved(work)
    raises(reshard.LimitError, lambda: reshard.open(source, limits={"tensors": 2}), "tensors", "limits=")
    assert reshard.open(source, limits={"tensors": 100}).format == "torch-dcp"
    raises(reshard.UsageError, lambda: reshard.open(source, limits={"nope": 2}), "nope")


# ---- how calls run ----

@test
def interrupts(work):
    """Progress is told; what it raises, and Ctrl-C, stop a call, and leave nothing"""
    reshard.save(work / "big", {"w": reshard.Array("U8", (64 << 20,)).raw}, to="torch-dcp", sync=False)
    told = []
    reshard.convert(work / "big", work / "a", to="safetensors", progress=told.append, sync=False)
    assert told and told[-1].done == told[-1].total == 64 << 20 and told[0].done == 0

    def stop(progress):
        raise LookupError("enough")
    raises(LookupError, lambda: reshard.convert(work / "big", work / "b", to="safetensors", progress=stop), "enough")

    def press(progress):
        signal.raise_signal(signal.SIGINT)
    raises(KeyboardInterrupt, lambda: reshard.convert(work / "big", work / "b", to="safetensors", progress=press))
    assert not (work / "b").exists()
    callers = set()
    reshard.verify(work / "big", deep=True, threads=1, progress=lambda progress: callers.add(threading.get_ident()))
    assert callers == {threading.get_ident()}, "a thread of its own asks, which hears of no signal"
    with reshard.from_memory({"w": reshard.Array("U8", (400 << 20,))}) as large:
        begun = time.monotonic()
        reshard.hash(large, "md5", threads=1)
        whole = time.monotonic() - begun

        def interrupted():
            timer = threading.Timer(whole / 8, lambda: os.kill(os.getpid(), signal.SIGINT))
            timer.start()
            begun = time.monotonic()
            raises(KeyboardInterrupt, lambda: reshard.hash(large, "md5", threads=1))
            return time.monotonic() - begun
        took = min(interrupted() for _ in range(3))
        assert took < whole / 2, f"Ctrl-C was heard after {took:.2f} s of {whole:.2f}"


@test
def threads_share(work):
    """Threads read from one checkpoint at once; what needs it alone says so"""
    path = saved(work)
    with reshard.open(path) as checkpoint:
        expected = bytes(checkpoint.tensors["model.w"].read())
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: bytes(checkpoint.tensors["model.w"].read()), range(200))) == {expected}
        seen, told = [], []

        def other(progress):
            told.append(progress)
            for call in (lambda: reshard.verify(checkpoint), checkpoint.close, lambda: checkpoint.tensors["model.w"].read()):
                try:
                    call()
                except reshard.UsageError as error:
                    seen.append(str(error))
        reshard.convert(checkpoint, work / "x", to="hf", progress=other)
        assert told and len(seen) == 3 * len(told) and all("another thread" in text for text in seen), (seen, told)
        assert bytes(checkpoint.tensors["model.w"].read()) == expected
    raises(reshard.UsageError, lambda: reshard.verify(checkpoint), "closed")
    checkpoint.close()


@test
def memory_stays(work):
    """Nothing is leaked: 300 rounds of everything, failures too, take no memory"""
    path = saved(work)
    items = {"list": [1, {"a": [2.5, "x"]}], "big": 2**90}

    def round_trip():
        with reshard.open(path) as checkpoint:
            checkpoint.read()
            dict(checkpoint.items)
            checkpoint.tensors["model.w"].chunks
            checkpoint.tensors["model.w"][0].__dlpack__()
            reshard.verify(checkpoint)
            reshard.stats(checkpoint)
        with reshard.from_memory({"w": matrix(100, 100), **items}) as memory:
            reshard.hash(memory)
        for call in (lambda: reshard.open(work / "nope"), lambda: reshard.convert(path, path, to="hf"), lambda: reshard.plan(path, to="x"),
                     lambda: reshard.from_memory({"w": floats(1), "o": object()}), lambda: reshard.open(path, limits={"a": -1})):
            try:
                call()
            except Exception:
                pass

    def used():
        gc.collect()
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    for _ in range(60):
        round_trip()
    before = used()
    for _ in range(300):
        round_trip()
    grown = used() - before
    assert grown < 3 << 20, f"{grown} bytes more after 300 rounds"
    return f"{grown} bytes more"


# ---- running jobs ----

@test
def states_in_memory(work):
    """Arrays in memory as a checkpoint: shards make wholes, holes are named, values are seen as they are"""
    left, right = matrix(2, 3), matrix(2, 3, 50)
    state = {"w": [reshard.Shard(left, (2, 6), (0, 0)), reshard.Shard(right, (2, 6), (0, 3))]}
    with reshard.from_memory(state, name="mine") as checkpoint:
        assert memoryview(checkpoint.tensors["w"].read()).tolist() == [[0, 1, 2, 50, 51, 52], [3, 4, 5, 53, 54, 55]]
        left[0, 0] = 99
        assert memoryview(checkpoint.tensors["w"].read())[0, 0] == 99
    raises(reshard.FormatError, lambda: reshard.from_memory({"w": state["w"][:1]}), "w")
    raises(reshard.UsageError, lambda: reshard.Shard(None, (2,), (0,)), "shape")
    raises(reshard.UsageError, lambda: reshard.from_memory({"w": reshard.Shard(left, (2, 6), (0, 4))}))
    for offset in ((0,), (0, 0, 0)):
        raises(reshard.UsageError, lambda: reshard.from_memory({"w": reshard.Shard(left, (2, 6), offset)}), "offset", "2 axes")
    raises(reshard.UsageError, lambda: reshard.from_memory({"w": reshard.Shard(left, (6,), (0,))}), "shape", "1 axes")
    flat = reshard.Shard(floats(1, 2, 3), (2, 3), (0, 0), shape=(2, 3), flat=(0, 3))
    rest = reshard.Shard(floats(4, 5, 6), (2, 3), (0, 0), shape=(2, 3), flat=(3, 6))
    with reshard.from_memory({"w": [flat, rest]}) as checkpoint:
        assert memoryview(checkpoint.tensors["w"].read()).tolist() == [[1, 2, 3], [4, 5, 6]]


@test
def keys_that_meet(work):
    """Two places of a state that have one key are refused, with both: one of them would be lost"""
    one, two = floats(1), floats(2, 3)
    for state, first, second in (({"model": {"w": one}, "model.w": two}, "['model']['w']", "['model.w']"),
                                 ({"s": {0: one, "0": two}}, "['s'][0]", "['s']['0']"), ({"s": [one], "s.0": 5}, "['s'][0]", "['s.0']"),
                                 ({"w": one, "n.a": 1, "n": {"a": 1, "b": two}}, "['n.a']", "['n']['a']")):
        for call in (lambda: reshard.save(work / "x", state, to="torch-dcp"), lambda: reshard.load(work / "x", state),
                     lambda: reshard.from_memory(state), lambda: reshard.Comm.threads(1)[0].plan(reshard.flatten(state)[0], {})):
            raises(reshard.UsageError, call, first, second, "one of the two would be lost")
    assert not (work / "x").exists()
    with reshard.from_memory({"model": {"w": one}, "model.v": two, "model.n": 1, "": 2}) as live:
        assert set(live.tensors) == {"model.w", "model.v"} and dict(live.items) == {"model.n": 1, "": 2}


@test
def pieces(work):
    """Writer: pieces in any order, strided, cast, flat, from functions; what does not fit is said; nothing appears before the end"""
    tensors = {"w": ("F32", (4, 6)), "b": ("bf16", (3,)), "none": ("I64", (0, 2)), "one": ("F64", ())}
    items = {"step": 7, "args": {"lr": 0.5}, "file": reshard.TorchFile(b"no file")}
    raises(reshard.FormatError, lambda: reshard.Writer(work / "w", tensors, items, to="torch-dcp"))
    del items["file"]
    with reshard.Writer(work / "w", tensors, items, to="torch-dcp", layout={"ranks": 2}) as writer:
        assert writer.report.tensors == 4 and writer.report.target_format == "torch-dcp", writer.report
        writer.put("b", array.array("d", [1.5, -2, 3]))
        writer.put("w", reshard.Shard(floats(13, 14, 15, 16), (4, 6), (2, 0), shape=(1, 6), flat=(1, 5)))
        raises(reshard.UsageError, lambda: writer.put("w", matrix(3, 6), (0, 0)), "written")
        raises(reshard.UsageError, lambda: writer.put("w", matrix(2, 6), (3, 0)), "'w'")
        raises(reshard.UsageError, lambda: writer.put("w", matrix(3, 6)), "[4, 6]", "[3, 6]", "offset")
        raises(reshard.UsageError, lambda: writer.put("w", matrix(3, 6), (1,)), "offset", "2 axes")
        raises(reshard.UsageError, lambda: writer.put("w", reshard.Shard(matrix(3, 6), (3, 6), (0, 0))), "[3, 6]")
        raises(reshard.UsageError, lambda: writer.put("w", reshard.Shard(None, (4, 6), (0, 0), shape=(1, 6), dtype="F32")), "no data")
        raises(KeyError, lambda: writer.put("x", matrix(3, 6)))
        raises(reshard.UsageError, writer.finish, "'w'", "0")
        apart = memoryview(floats(*range(6), *range(6), *range(6, 12))).cast("B").cast("f", (3, 6))
        writer.put("w", apart[::2], (0, 0))
        writer.put("w", matrix(1, 1, 17), (2, 5))
        writer.put("w", matrix(1, 1, 12), (2, 0))
        writer.put("w", reshard.Values("F32", (1, 6), read=Far(1, 6, 18).read), (3, 0))
        writer.put("one", memoryview(bytearray(8)).cast("d", ()))
        assert not (work / "w").exists()
    raises(reshard.UsageError, lambda: writer.put("b", floats(1, 2, 3)), "closed")
    with reshard.open(work / "w") as checkpoint:
        assert memoryview(checkpoint.tensors["w"].read()).tolist() == matrix(4, 6).tolist()
        assert memoryview(checkpoint.tensors["b"].read(dtype="F32")).tolist() == [1.5, -2, 3] and checkpoint.tensors["b"].dtype == "BF16"
        assert checkpoint.items["step"] == 7 and checkpoint.items["args"] == {"lr": 0.5} and checkpoint.tensors["none"].shape == (0, 2)
        # Those of a checkpoint are declarations, too.
        with reshard.Writer(work / "copy", checkpoint.tensors, {key: checkpoint.items.stored(key) for key in checkpoint.items},
                            to="safetensors", dtype="f32") as writer:
            for key, tensor in checkpoint.tensors.items():
                writer.put(key, tensor.read())
    told = reshard.diff(work / "w", work / "copy", items=False)
    assert {key: one.outcome for key, one in told.tensors.items()} == {"w": "same", "b": "dtype", "none": "same", "one": "dtype"}, told


@test
def pieces_together(work):
    """Writers: threads put at once, and none closes it meanwhile; parts; what fails or raises leaves nothing"""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        with reshard.Writer(work / "many", {"w": ("F32", (256, 1000))}, to="hf", memory="1MiB", threads=1) as writer:
            list(pool.map(lambda row: writer.put("w", matrix(1, 1000, 1000 * row), (row, 0)), range(256)))
    with reshard.open(work / "many") as checkpoint:
        assert memoryview(checkpoint.tensors["w"].read()).tolist() == matrix(256, 1000).tolist()

    begun, may_end = threading.Event(), threading.Event()

    def slow(offset, memory):
        begun.set()
        may_end.wait(20)
        memory[:] = bytes(len(memory))
    with reshard.Writer(work / "slow", {"w": ("F32", (4,))}, to="hf") as writer:
        other = threading.Thread(target=lambda: writer.put("w", reshard.Values("F32", (4,), read=slow)))
        other.start()
        assert begun.wait(20)
        raises(reshard.UsageError, writer.finish, "another thread")
        raises(reshard.UsageError, writer.close, "another thread")
        may_end.set()
        other.join()

    halves = {"w": ("F32", (4, 6))}
    with reshard.open(saved(work)) as checkpoint:
        key = next(iter(checkpoint.items))
        items = {"step": 2, "raw": b"\xff", "file": reshard.TorchFile(checkpoint.items.file(key)), "stored": checkpoint.items.stored(key)}
        expected = {"step": 2, "raw": b"\xff", "file": checkpoint.items[key], "stored": checkpoint.items[key]}
        for part in (1, 0):
            with reshard.Writer(work / "parts", halves, items, to="torch-dcp", layout="ranks=2", part=(part, 2)) as writer:
                writer.put("w", matrix(2, 6, 12 * part), (2 * part, 0))
            if part:
                raises(reshard.DiffersError, lambda: reshard.Writer.commit(work / "parts"), "part 0")
    assert not (work / "parts").exists() and reshard.Writer.commit(work / "parts").tensors == 1
    with reshard.open(work / "parts") as checkpoint:
        assert memoryview(checkpoint.tensors["w"].read()).tolist() == matrix(4, 6).tolist() and dict(checkpoint.items) == expected

    def fails():
        with reshard.Writer(work / "failed", halves, to="hf") as writer:
            writer.put("w", reshard.Values("F32", (4, 6), read=Far(4, 6, fails=ValueError("the cable is out")).read))
    raises(ValueError, fails, "the cable is out")

    def raises_inside():
        with reshard.Writer(work / "failed", halves, to="hf") as writer:
            writer.put("w", matrix(4, 6))
            raise ZeroDivisionError

    def forgets():
        with reshard.Writer(work / "failed", halves, to="hf") as writer:
            writer.put("w", matrix(1, 6), (0, 0))
    with reshard.Writer(work / "early", halves, to="hf") as writer:
        writer.put("w", matrix(4, 6))
        writer.finish()
        assert (work / "early").exists()
        raises(reshard.UsageError, lambda: writer.put("w", matrix(4, 6)))
    with reshard.Writer(work / "failed", halves, to="hf") as writer:
        writer.close()
    raises(ZeroDivisionError, raises_inside)
    raises(reshard.UsageError, forgets, "'w'")
    reshard.Writer(work / "failed", halves, to="hf")  # is forgotten
    gc.collect()
    assert not [path.name for path in work.iterdir() if "failed" in path.name]
    raises(TypeError, lambda: reshard.Writer(work / "x", halves, to="hf", comm=None), "comm")
    raises(reshard.UsageError, lambda: reshard.Writer(work / "x", halves, to="hf", verify=True), "verify")
    raises(reshard.UsageError, lambda: reshard.Writer(work / "x", {"w": ("F99", (1,))}, to="hf"), "F99")
    raises(reshard.UsageError, lambda: reshard.Writer(work / "x", halves, {"a": floats(1)}, to="hf"), "'a'", "array")
    raises(reshard.UsageError, lambda: reshard.Writer(work / "x", halves), "format")
    raises(TypeError, lambda: reshard.Writer(work / "x", ["w"], to="hf"))


class Far:
    """Memory that only functions reach."""

    def __init__(self, rows, columns, start=0, fails=None):
        self.bytes, self.fails, self.reads, self.writes = bytearray(matrix(rows, columns, start).tobytes()), fails, 0, []
        self.values = reshard.Values("F32", (rows, columns), read=self.read, write=self.write)

    def read(self, offset, memory):
        self.reads += 1
        if self.fails:
            raise self.fails
        memory[:] = self.bytes[offset : offset + len(memory)]

    def write(self, offset, memory):
        self.writes.append(memory)
        if self.fails:
            raise self.fails
        assert memory.readonly
        self.bytes[offset : offset + len(memory)] = memory


@test
def values_of_functions(work):
    """Values that functions give and take: saved, compared, filled, in the background, by ranks; what they raise is raised"""
    far, other = Far(4, 6), Far(4, 6, 100)
    state = {"net": {"w": far.values}, "half": reshard.Shard(Far(2, 6).values, (2, 6), (0, 0)), "step": 3}
    assert reshard.save(work / "s", state, to="torch-dcp").tensors == 2
    with reshard.open(work / "s") as checkpoint, reshard.from_memory(state) as live:
        assert memoryview(checkpoint.tensors["net.w"].read()).tolist() == matrix(4, 6).tolist() and checkpoint.items["step"] == 3
        assert reshard.diff(live, checkpoint) and reshard.hash(live) == reshard.hash(checkpoint)
        checkpoint.load_into({"net.w": other.values})
        assert other.bytes == far.bytes and other.reads == 0 and len(other.writes) == 1
        raises(ValueError, lambda: other.writes[0][0], "released")  # the memory is the library's again
        part = Far(2, 3)
        assert checkpoint.tensors["net.w"].read((1, 2), (2, 3), out=part.values) is part.values
        assert memoryview(part.bytes).cast("f", (2, 3)).tolist() == [[8, 9, 10], [14, 15, 16]]
        raises(reshard.UsageError, lambda: checkpoint.tensors["net.w"].read(out=part.values), "shape")
        failing = Far(4, 6, fails=KeyError("gone"))
        raises(KeyError, lambda: checkpoint.load_into({"net.w": failing.values}), "gone")
        raises(ValueError, lambda: failing.writes[0][0], "released")
        only = reshard.Values("F32", (4, 6), read=far.read)
        for call in (lambda: checkpoint.load_into({"net.w": only}), lambda: checkpoint.tensors["net.w"].read(out=only),
                     lambda: reshard.load(work / "s", {"net.w": only}), lambda: reshard.Values("F32", (4, 6))):
            raises(reshard.UsageError, call, "write")
        with reshard.from_memory({"w": failing.values}) as broken, reshard.from_memory({"w": far.values}) as whole:
            for call in (reshard.hash, reshard.stats, lambda c: reshard.convert(c, work / "t", to="hf"), lambda c: reshard.diff(c, whole),
                         lambda c: c.read()):
                raises(KeyError, lambda: call(broken), "gone")
                failing.fails = None
                call(broken)
                failing.fails = KeyError("gone again")
                shutil.rmtree(work / "t", ignore_errors=True)
        checkpoint.tensors["net.w"].read()
    rows = [Far(2, 6), Far(2, 6)]
    halves = [reshard.Shard(one.values, (4, 6), (2 * i, 0)) for i, one in enumerate(rows)]
    loaded = reshard.load(work / "s", {"net": {"w": halves}}, memory=1)
    assert rows[0].bytes + rows[1].bytes == far.bytes and loaded.items["step"] == 3
    for call in (lambda: reshard.save(work / "t", {"w": Far(2, 2, fails=OSError("unplugged")).values}, to="hf"),
                 lambda: reshard.load(work / "s", {"net.w": Far(4, 6, fails=OSError("unplugged")).values})):
        raises(OSError, call, "unplugged")
        raises(reshard.UsageError, lambda: reshard.save(work / "t", state, to="nope"), "nope")  # and it is forgotten
    assert not (work / "t").exists()
    only = reshard.Values("F32", (4, 6), write=far.write)
    raises(reshard.UsageError, lambda: reshard.save(work / "t", {"w": only}, to="hf"), "no values")
    for by in ("thread", "process"):
        with reshard.Saver(by) as saver:
            saver.save(work / by, state, to="torch-dcp")
            far.bytes[:4] = b"abcd"  # may change at once
        far.bytes[:4] = bytes(4)
        assert reshard.diff(work / by, work / "s"), by

    def as_one_of_three(comm):
        own, whole = Far(2, 6, 100 * comm.rank), Far(6, 6)
        reshard.save(work / "r", {"w": reshard.Shard(own.values, (6, 6), (2 * comm.rank, 0))}, comm=comm, to="torch_dist")
        reshard.load(work / "r", {"w": whole.values}, comm=comm)
        assert whole.bytes == b"".join(Far(2, 6, 100 * rank).bytes for rank in range(3)), comm.rank
        raises(reshard.UsageError, lambda: comm.redistribute({"w": whole.values}, {}), "not redistributed")
        failing = Far(6, 6, fails=LookupError("rank 1") if comm.rank == 1 else None)
        kind = LookupError if comm.rank == 1 else reshard.CancelledError
        raises(kind, lambda: reshard.load(work / "r", {"w": failing.values}, comm=comm), "rank 1")
    comms = reshard.Comm.threads(3)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(as_one_of_three, comms))


def as_rank(comm, path):
    rank, size = comm.rank, comm.size
    own = {"w": reshard.Shard(matrix(2, 3, 10 * rank), (2 * size, 3), (2 * rank, 0)), "same": floats(7, 8), "step": 5}
    if rank:
        own["late"] = floats(9)  # of a later stage of a pipeline: not every rank has it
    half = int(rank == 1)
    own["halves"] = reshard.Shard(floats(half), (2,), (half,), replica=None)  # who else has it is not known
    cells = {"rng": reshard.Cell({"seed": rank}, (size,), (rank,))}
    reshard.save(path, own, comm=comm, cells=cells, to="torch_dist")
    columns = reshard.Shard(memoryview(bytearray(8 * size)).cast("f", (2 * size, 1)), (2 * size, 3), (0, rank % 3), replica=None)
    whole, late, halves = floats(0, 0), floats(0), floats(7, 7)
    wanted = {"w": columns, "same": whole, "halves": halves, **({"late": late} if rank != 1 else {})}
    loaded = reshard.load(path, wanted, comm=comm, cells={"rng": reshard.Cell(None, (size,), (rank,))}, check=True)
    assert halves.tolist() == [0, 1]
    assert columns.data.tolist() == [[10.0 * other + row * 3 + rank % 3] for other in range(size) for row in range(2)]
    assert late[0] == (9 if rank != 1 else 0)
    assert whole.tolist() == [7, 8] and loaded.items["step"] == 5 and loaded.cells["rng", (rank,)] == {"seed": rank}, loaded
    raises(reshard.Error, lambda: reshard.load(path, {"nope": floats(1)}, comm=comm), "nope")
    found = reshard.load(path, {"nope": floats(1)}, comm=comm, strict="return_all")
    assert found.unexpected == ["nope"] and "w" in found.missing, found
    everything = memoryview(bytearray(4 * 6 * size)).cast("f", (2 * size, 3))
    numbers = comm.redistribute({"w": own["w"]}, {"w": everything})
    assert everything.tolist() == [[10.0 * other + row * 3 + c for c in range(3)] for other in range(size) for row in range(2)]
    assert numbers["bytes_kept"] == 24 and numbers["bytes_received"] == 24 * (size - 1)
    plan = comm.plan({"w": own["w"]}, {"w": everything})
    for step in range(3):
        own["w"].data[0, 0] = 1000 * step + rank
        assert plan.run() == numbers
        assert [everything[2 * other, 0] for other in range(size)] == [1000 * step + other for other in range(size)]
    elsewhere = memoryview(bytearray(4 * 6 * size)).cast("f", (2 * size, 3))
    plan.run({"w": reshard.Shard(matrix(2, 3, 50 * rank), (2 * size, 3), (2 * rank, 0))}, {"w": elsewhere})
    assert [elsewhere[2 * other, 1] for other in range(size)] == [50 * other + 1 for other in range(size)]
    raises(reshard.UsageError, lambda: plan.run({"w": reshard.Shard(matrix(1, 3), (2 * size, 3), (2 * rank, 0))}), "layout has changed")
    plan.run()
    assert comm.all_gather(bytes([rank])) == [bytes([other]) for other in range(size)]
    comm.barrier()
    return rank


@test
def ranks_of_threads(work):
    """Threads as ranks: saving, loading under another layout, cells, items, redistributing; a failure reaches all"""
    comms = reshard.Comm.threads(3)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda comm: as_rank(comm, work / "t"), comms)) == [0, 1, 2]
        with reshard.open(work / "t") as checkpoint:
            assert checkpoint.format == "torch_dist" and checkpoint.tensors["w"].shape == (6, 3)

        def fails(comm):
            state = {"w": reshard.Shard(matrix(1, 3), (3, 3), (comm.rank if comm.rank < 2 else 0, 0))}
            return raises(reshard.UsageError, lambda: reshard.save(work / "u", state, comm=comm, to="torch_dist"), "w").code
        assert list(pool.map(fails, comms)) == [2, 2, 2] and not (work / "u").exists()

        def lacks(comm):
            corner = {"w": reshard.Shard(matrix(1, 1), (2, 3), (0, 0), replica=None)}
            return raises(reshard.UsageError, lambda: reshard.save(work / "u", corner, comm=comm, to="torch_dist"),
                          "hint: missing on axis 0: [1, 2)\nhint: missing on axis 1: [0, 3)").code
        assert list(pool.map(lacks, comms)) == [2, 2, 2]
    for comm in comms:
        comm.close()
    raises(reshard.UsageError, lambda: comms[0].barrier(), "left")


@test
def progress_of_ranks(work):
    """Each rank's progress is asked before it writes and while it does, in files of its own and of several, and may stop the save"""
    comms = reshard.Comm.threads(2, timeout=60)
    values = [matrix(500, 200, comm.rank) for comm in comms]

    def saves(comm, to, stops):
        told = []

        def progress(now):
            told.append((now.done, now.total))
            if stops and comm.rank == 1 and now.done:
                raise KeyboardInterrupt
        state = {f"{key}{n}": reshard.Shard(values[comm.rank], (1000, 200), (500 * comm.rank, 0)) for n in range(3) for key in "ab"}
        state[f"own{comm.rank}"] = values[comm.rank]
        try:
            reshard.save(work / f"{to}-{stops}", state, comm=comm, to=to, progress=progress, max_shard_bytes=None, sync=False)
        except BaseException as error:
            return told, error
        return told, None
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for to in ("hf", "torch", "torch-dcp"):
            for told, error in pool.map(lambda comm: saves(comm, to, False), comms):
                share = 7 * 500 * 200 * 4
                assert error is None and told[0] == (0, share), (to, told, error)
                own = [done for done, total in told if total == share]
                assert own == sorted(own) and own[-1] == share, (to, told)
            (_, other), (_, stopped) = pool.map(lambda comm: saves(comm, to, True), comms)
            assert isinstance(stopped, KeyboardInterrupt) and isinstance(other, reshard.CancelledError), (to, stopped, other)
            assert "rank 1" in str(other) and not (work / f"{to}-True").exists(), other
    for comm in comms:
        comm.close()


class Interrupts:
    """Values at which a handler of signals raises, while they are looked at."""
    def __array_interface__(self):
        raise KeyboardInterrupt
    __array_interface__ = property(__array_interface__)

    def __setitem__(self, index, value):
        raise NotImplementedError


@test
def a_rank_with_a_bad_argument_fails_on_all(work):
    """Whatever a rank cannot make of its arguments is told to the others at once, with its number, and the group goes on"""
    comms = reshard.Comm.threads(2, timeout=20)
    good, path = {"w": reshard.Shard(matrix(1, 3), (2, 3), (0, 0), replica=None)}, str(work / "c")
    reshard.save(path, {"w": matrix(2, 3)}, to="torch_dist")
    room = memoryview(bytearray(24)).cast("f", (2, 3))
    corner, frozen = {"w": reshard.Shard(matrix(1, 3), (2, 3), (9, 0))}, {"w": memoryview(bytes(24)).cast("f", (2, 3))}
    corner["w"].offset = (0,)
    interrupting = {"w": Interrupts()}
    save = lambda comm, state=good, **options: reshard.save(work / "u", state, comm=comm, check=False, **{"to": "torch_dist", **options})
    load = lambda comm, state=None, **options: reshard.load(path, state or {"w": room}, comm=comm, **options)
    move = lambda comm, target, **options: comm.redistribute({"w": room} if comm.rank else None, target, **options)
    plans = [comm.plan for comm in comms]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        kept = list(pool.map(lambda comm: comm.plan({"w": matrix(2, 3)}, {"w": room}), comms))
    verify, diff = reshard.verify, reshard.diff
    calls = {  # what all do, what the bad rank does instead, and what of it the others hear
        "a shard in save": (save, lambda comm: save(comm, corner), "offset"),
        "a cell": (save, lambda comm: save(comm, cells={"rng": reshard.Cell(1, (2,), (5,))}), "rng"),
        "an option of save": (save, lambda comm: save(comm, nonsense=1), "nonsense"),
        "memory": (save, lambda comm: save(comm, memory="nonsense"), "no size: 'nonsense'"),
        "a type in save": (save, lambda comm: save(comm, threads="two"), "TypeError"),
        "a state": (save, lambda comm: save(comm, lambda: 1 // 0), "ZeroDivisionError"),
        "Ctrl-C": (save, lambda comm: save(comm, interrupting), "KeyboardInterrupt"),
        "a shard in load": (load, lambda comm: load(comm, corner), "offset"),
        "strict": (load, lambda comm: load(comm, strict="so so"), "so so"),
        "an option of load": (load, lambda comm: load(comm, io="nonsense"), "nonsense"),
        "a target": (lambda comm: move(comm, {"w": room}), lambda comm: move(comm, frozen), "w"),
        "a mapping": (lambda comm: move(comm, {"w": room}), lambda comm: move(comm, {"w": room}, map=7), "mapping"),
        "scratch": (lambda comm: move(comm, {"w": room}), lambda comm: move(comm, {"w": room}, scratch="much"), "TypeError"),
        "plan": (lambda comm: plans[comm.rank]({"w": room}, {"w": room}), lambda comm: plans[comm.rank]({"w": room}, frozen), "w"),
        "run": (lambda comm: kept[comm.rank].run(), lambda comm: kept[comm.rank].run(target=frozen), "w"),
        "a path in verify": (lambda comm: verify(path, comm=comm), lambda comm: verify("/nowhere", comm=comm), "/nowhere"),
        "fail_on": (lambda comm: verify(path, comm=comm), lambda comm: verify(path, comm=comm, fail_on="x"), "fail_on"),
        "io in verify": (lambda comm: verify(path, comm=comm), lambda comm: verify(path, comm=comm, io="x"), "unknown io"),
        "a path in diff": (lambda comm: diff(path, path, comm=comm), lambda comm: diff(path, "/nowhere", comm=comm), "/nowhere"),
        "io in diff": (lambda comm: diff(path, path, comm=comm), lambda comm: diff(path, path, comm=comm, io="x"), "unknown io"),
        "a digest": (lambda comm: reshard.hash(path, comm=comm), lambda comm: reshard.hash(path, "x", comm=comm), "unknown digest"),
        "io in hash": (lambda comm: reshard.hash(path, comm=comm), lambda comm: reshard.hash(path, comm=comm, io="x"), "unknown io"),
    }

    def outcome(call, comm):
        try:
            return call(comm)
        except BaseException as error:
            return error
    for name, (all_do, bad, words) in calls.items():
        for culprit in range(2):
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                found = list(pool.map(lambda comm: outcome(bad if comm.rank == culprit else all_do, comm), comms))
            own, other = found[culprit], found[1 - culprit]
            assert isinstance(own, BaseException), (name, culprit, own)
            assert isinstance(other, reshard.Error) and f"rank {culprit}: " in str(other), (name, culprit, own, other)
            assert words in str(other) and "did not come" not in str(other), (name, culprit, own, other)
            assert name != "Ctrl-C" or isinstance(own, KeyboardInterrupt), own
    for comm in comms:
        comm.close()


def process_rank(package, name, rank, size, path):
    sys.path.insert(0, package)
    global reshard
    import reshard
    with reshard.Comm.processes(name, rank, size, timeout=60) as comm:
        as_rank(comm, path)


@test
def ranks_of_processes(work):
    """Processes as ranks, over shared memory"""
    context = multiprocessing.get_context("spawn")
    name = f"reshard-test-{os.getpid()}"
    ranks = [context.Process(target=process_rank, args=(PACKAGE, name, rank, 3, work / "p")) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0], [rank.exitcode for rank in ranks]


class Mailbox:
    """A transport for threads, made of nothing: what Comm.host needs."""
    def __init__(self, rank, size, shared):
        self.rank, self.size, self.shared, self.pending = rank, size, shared, []

    def all_gather(self, data):
        self.shared["parts"][self.rank] = data
        self.shared["barrier"].wait(60)
        parts = list(self.shared["parts"])
        self.shared["barrier"].wait(60)
        return parts

    def submit_send(self, to, memory):
        self.shared["boxes"][self.rank, to].append(bytes(memory))

    def submit_recv(self, from_, memory):
        self.pending.append((from_, memory))

    def run(self):
        self.shared["barrier"].wait(60)
        for from_, memory in self.pending:
            memory[:] = self.shared["boxes"][from_, self.rank].pop(0)
        self.pending = []
        self.shared["barrier"].wait(60)


@test
def ranks_of_a_host(work):
    """A transport written in Python; one that raises says so on every rank"""
    size = 3
    shared = {"parts": [b""] * size, "barrier": threading.Barrier(size), "boxes": {(a, b): [] for a in range(size) for b in range(size)}}
    comms = [reshard.Comm.host(Mailbox(rank, size, shared)) for rank in range(size)]
    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        assert list(pool.map(lambda comm: as_rank(comm, work / "h"), comms)) == [0, 1, 2]

    class Broken(Mailbox):
        def all_gather(self, data):
            raise RuntimeError("the cable is out")
    alone = reshard.Comm.host(Broken(0, 1, shared))
    raises(reshard.StorageError, alone.barrier, "the cable is out")
    raises(AttributeError, lambda: reshard.Comm.host(object()))


@test
def silent_servers(work):
    """Ctrl-C ends what waits for a server that says nothing, while it opens, reads, compares, verifies and salvages"""
    (work / "site/folder").mkdir(parents=True)
    state = {name: matrix(500, 500) for name in "abc"}
    reshard.save(work / "site/folder/c.safetensors", state, to="safetensors")
    with object_server.Server(work / "site") as server:
        url = server.url + "/folder/c.safetensors"

        def silent(call):
            server.always = "hang"
            try:
                soon_interrupted(call)
            finally:
                server.always = None

        with reshard.open(url) as checkpoint, reshard.open(work / "site/folder/c.safetensors") as own:
            calls = {
                "open": lambda: reshard.open(url), "open a folder": lambda: reshard.open(server.url + "/folder/"),
                "read": lambda: checkpoint.tensors["b"][1:3].tolist(), "hash": lambda: reshard.hash(checkpoint),
                "verify": lambda: reshard.verify(checkpoint, deep=True), "diff": lambda: reshard.diff(own, checkpoint),
                "stats": lambda: reshard.stats(checkpoint), "load": lambda: reshard.load(url, {"c": matrix(500, 500, 1)}),
                "convert": lambda: reshard.convert(checkpoint, work / "never", to="hf"),
                "salvage": lambda: reshard.salvage(url, work / "never", to="hf"),
                "latest_good": lambda: reshard.latest_good(server.url + "/folder/")}
            for call in calls.values():
                silent(call)
        first = server.counts["requests"] + 1
        server.before = lambda number: number > first and setattr(server, "always", "hang")  # once it has been found
        soon_interrupted(lambda: reshard.open(url))
        server.before = server.always = None
        assert not (work / "never").exists()


class Board:
    """What ranks of threads tell each other once: gather of Comm.sockets."""
    def __init__(self, size, between=None):
        self.told, self.barrier, self.between = [None] * size, threading.Barrier(size), between

    def __call__(self, rank):
        def gather(data):
            self.told[rank] = data
            self.barrier.wait(60)
            if self.between and rank == 0:
                self.between(self.told)
            self.barrier.wait(60)
            return list(self.told)
        return gather


def ranks_over_sockets(size, function, host="127.0.0.1", between=None, **options):
    """function(comm) of each rank; what the ranks return or raise. between(told) when all have said where they are and none has
    connected."""
    board = Board(size, between)

    def as_one(rank):
        try:
            with reshard.Comm.sockets(rank, size, board(rank), host=host, **options) as comm:
                return function(comm)
        except Exception as error:
            return error
    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        return list(pool.map(as_one, range(size)))


@test
def ranks_of_sockets(work):
    """Ranks over TCP: all that ranks do together; parts of any size; both kinds of addresses"""
    for size, host in ((3, "127.0.0.1"), (5, "localhost"), (3, "::1")):
        assert ranks_over_sockets(size, lambda comm: as_rank(comm, work / f"s{size}{host[0]}"), host) == list(range(size))
    assert ranks_over_sockets(1, lambda comm: comm.all_gather(b"x")) == [[b"x"]]

    def gathers(comm):
        for length in (0, 1, 70000, 3 << 20):
            own = bytes([comm.rank]) * (length * comm.rank)
            assert comm.all_gather(own) == [bytes([rank]) * (length * rank) for rank in range(comm.size)]
        return True
    assert ranks_over_sockets(6, gathers) == [True] * 6


@test
def sockets_that_fail(work):
    """A rank that leaves or is late breaks the group, and is named; strangers are not let in, and do not disturb"""
    def leaves(comm):
        if comm.rank == 1:
            return "left"
        return str(raises(reshard.StorageError, comm.barrier))
    said = ranks_over_sockets(2, leaves, timeout=30)
    assert said[1] == "left" and "rank 1" in said[0], said

    def is_late(comm):
        if comm.rank == 2:
            time.sleep(2)
            return "late"
        return str(raises(reshard.StorageError, lambda: comm.all_gather(b"x")))
    said = ranks_over_sockets(3, is_late, timeout=0.5)
    assert said[2] == "late" and all("rank" in text for text in said[:2]), said
    assert any("has waited 0.5 seconds for rank" in text for text in said[:2]), said

    def strangers_come(told):
        addresses = [reshard._sockets._ADDRESS.unpack_from(one) for one in told]
        for _, _, port in addresses:
            for first in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(16) + (0).to_bytes(4, "little"),
                          addresses[0][1] + (2).to_bytes(4, "little"), addresses[0][1] + (9).to_bytes(4, "little")):
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                strangers[-1].sendall(first)
    strangers = []
    assert ranks_over_sockets(3, lambda comm: as_rank(comm, work / "strangers"), between=strangers_come) == [0, 1, 2]

    def many_say_nothing(told):
        port = reshard._sockets._ADDRESS.unpack_from(told[1])[2]
        strangers.extend(socket.create_connection(("127.0.0.1", port)) for _ in range(64))
    found = ranks_over_sockets(2, lambda comm: comm.all_gather(bytes([comm.rank])), between=many_say_nothing, timeout=20)
    assert found == [[b"\0", b"\1"]] * 2, found
    for stranger in strangers:
        stranger.close()


@test
def sockets_that_break(work):
    """abort, a rank that fails and a machine without an address end the calls of all ranks at once; Ctrl-C is Ctrl-C"""
    def aborts(comm):
        comm.barrier()
        if comm.rank == 2:
            time.sleep(0.2)
            comm.abort("cannot go on")
        begun = time.monotonic()
        raises(reshard.StorageError, comm.barrier)
        return time.monotonic() - begun < 10
    assert ranks_over_sockets(4, aborts, timeout=60) == [True] * 4

    def aborts_first(comm):
        if comm.rank == 0:
            comm.abort("cannot begin")
        begun = time.monotonic()
        raises(reshard.StorageError, comm.barrier)
        return time.monotonic() - begun < 10
    assert ranks_over_sockets(5, aborts_first, timeout=60) == [True] * 5

    # Of eight, two do not speak with the last one.
    all_know = threading.Barrier(7)

    def leaves(comm):
        comm.barrier()
        if comm.rank == 7:
            return "left"
        raises(reshard.StorageError, lambda: [comm.all_gather(b"x") for _ in range(3)])
        all_know.wait(15)  # none closes its group before
        return "knows"
    assert ranks_over_sockets(8, leaves, timeout=60) == ["knows"] * 7 + ["left"]

    def address(rank):
        if rank == 1:
            raise OSError("no such machine")
        return "127.0.0.1"
    board = Board(3)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda rank: str(raises(ConnectionError, lambda: reshard.Comm.sockets(
            rank, 3, board(rank), host=lambda: address(rank)), "rank 1: no such machine", "RESHARD_HOST")), range(3)))
    assert len(said) == 3
    raises(reshard.UsageError, lambda: reshard.Comm.sockets(3, 3, board(0), host="127.0.0.1"), "rank 3 of 3")

    def waits(comm):
        time.sleep(1.5 if comm.rank else 0)
        return True
    board = Board(2)
    other = threading.Thread(target=lambda: waits(reshard.Comm.sockets(1, 2, board(1), host="127.0.0.1")))
    other.start()
    comm = reshard.Comm.sockets(0, 2, board(0), host="127.0.0.1", timeout=20)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        try:
            comm.barrier()
        except reshard.StorageError:
            time.sleep(1)
        raise AssertionError("Ctrl-C was not heard")
    except KeyboardInterrupt:
        pass
    other.join()
    comm.close()


@test
def background(work):
    """Saving in the background, by a thread and by a program: what is saved is what was there; failures are told once"""
    for by in ("thread", "process"):
        values = matrix(4, 6)
        with reshard.Saver(by, depth=2) as saver:
            assert saver.save(work / f"{by}0", {"w": values, "step": 1}, to="torch-dcp") == 0
            values[0, 0] = 77
            assert saver.save(work / f"{by}1", {"w": values, "step": {"n": [2]}}, to="hf") == 1
            saver.wait(0)
            saver.wait()
            assert saver.unfinished() == 0
            saver.save(work / "no" / "such" / "folder", {"w": values}, to="torch-dcp")
            raises(reshard.StorageError, saver.wait)
            with reshard.open(work / f"{by}0") as first:
                file = reshard.TorchFile(first.items.file("step"))
                kinds = {"raw": b"\xff\0", "big": 2**90, "stored": first.items.stored("step"), "file": file}
                saver.save(work / f"{by}2", {"w": values, **kinds}, to="torch-dcp")
        with reshard.open(work / f"{by}2") as third:
            assert dict(third.items) == {"raw": b"\xff\0", "big": 2**90, "stored": 1, "file": 1}, dict(third.items)
        with reshard.open(work / f"{by}0") as first, reshard.open(work / f"{by}1") as second:
            assert (memoryview(first.tensors["w"].read())[0, 0], memoryview(second.tensors["w"].read())[0, 0]) == (0, 77)
            assert first.items["step"] == 1 and second.items["step"] == {"n": [2]}
        raises(reshard.UsageError, saver.unfinished, "closed")
    raises(reshard.StorageError, lambda: reshard.Saver("process", program="/nope"), "/nope")
    raises(ValueError, lambda: reshard.Saver("fork"))


@test
def background_together(work):
    """Ranks save together in the background: what each had when it began; the group is the saver's until it is closed"""
    def together(comm):
        own = floats(comm.rank, comm.rank)
        state = {"w": reshard.Shard(own, (6,), (2 * comm.rank,)), "same": floats(5), "step": 8}
        if comm.rank:
            state["late"] = floats(6)
        with reshard.Saver(comm=comm, depth=2) as saver:
            for step in range(2):
                saver.save(work / f"{step}", state, to="torch_dist", cells={"rng": reshard.Cell(comm.rank, (3,), (comm.rank,))})
                own[0] = 10 + comm.rank
            raises(reshard.UsageError, comm.barrier, "saver")
            raises(reshard.UsageError, lambda: reshard.Saver(comm=comm), "saver")
        comm.barrier()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(together, reshard.Comm.threads(3)))
    for step, expected in enumerate(([0, 0, 1, 1, 2, 2], [10, 0, 11, 1, 12, 2])):
        with reshard.open(work / f"{step}") as checkpoint:
            assert memoryview(checkpoint.tensors["w"].read()).tolist() == expected and checkpoint.items["step"] == 8
            assert checkpoint.tensors["same"].shape == (1,) and memoryview(checkpoint.tensors["late"].read()).tolist() == [6]


class Preempted(Exception):
    """What a handler of signals raises."""


def soon_interrupted(call, kind=KeyboardInterrupt, number=signal.SIGINT):
    """The exception comes long before any timeout of a group."""
    begun = time.monotonic()
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), number))
    timer.start()
    raised = raises(kind, call)
    assert time.monotonic() - begun < 20, "a signal was heard late"
    timer.join()
    return raised


@test
def interrupted_ranks(work):
    """Ctrl-C, and what handlers of signals raise, end the calls of a group and the waiting for a saver, and come out of them as they are"""
    def preempt(number, frame):
        raise Preempted("now")
    before = signal.signal(signal.SIGUSR1, preempt)
    saved(work)
    state = {"w": memoryview(bytearray(64))}
    calls = {"barrier": lambda comm: comm.barrier(), "gather": lambda comm: comm.all_gather(b"x"),
             "save": lambda comm: reshard.save(work / "never", state, comm=comm, to="torch-dcp"),
             "load": lambda comm: reshard.load(work / "saved", {"model": {"b": floats(0, 0, 0)}}, comm=comm),
             "redistribute": lambda comm: comm.redistribute(state, None), "plan": lambda comm: comm.plan(state, None)}
    for name, call in calls.items():
        comm, other = reshard.Comm.threads(2, timeout=60)
        soon_interrupted(lambda: call(comm))
        raises(reshard.StorageError, other.barrier, "rank 0 waits no longer")
    soon_interrupted(lambda: reshard.Comm.processes(f"reshard-test-{os.getpid()}", 0, 2, timeout=60))
    soon_interrupted(lambda: reshard.Comm.processes(f"reshard-test-{os.getpid()}", 1, 2, timeout=60), Preempted, signal.SIGUSR1)

    board = Board(2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: reshard.Comm.sockets(1, 2, board(1), host="127.0.0.1", timeout=60))
        comm = reshard.Comm.sockets(0, 2, board(0), host="127.0.0.1", timeout=60)
        assert str(soon_interrupted(lambda: calls["save"](comm), Preempted, signal.SIGUSR1)) == "now"
        raises(reshard.StorageError, other.result().barrier)
        raises(reshard.StorageError, comm.barrier, "now")

    comm, other = reshard.Comm.threads(2, timeout=60)
    with comm, other:
        saver = reshard.Saver(comm=comm)
        saver.save(work / "never", state, to="torch-dcp")
        soon_interrupted(saver.wait)
        assert saver.unfinished() == 1
        soon_interrupted(lambda: saver.save(work / "never", state, to="torch-dcp"))
        soon_interrupted(saver.close, Preempted, signal.SIGUSR1)
        raises(reshard.UsageError, saver.wait, "closed")
    signal.signal(signal.SIGUSR1, before)


FORKED_WRITER = """
import array, os, pathlib, sys
import reshard
writer = reshard.Writer(sys.argv[1], {"w": ("F32", (4,))}, to="hf")
writer.put("w", array.array("f", [1, 2]), (0,))
child = os.fork()
if child == 0:
    for call in (lambda: writer.put("w", array.array("f", [9, 9]), (2,)), writer.finish, writer.close):
        try:
            call()
            os._exit(5)
        except reshard.UsageError as error:
            assert "forked" in str(error), error
    sys.exit(0)  # as a child does that ends by itself: what it holds is released
assert os.waitpid(child, 0)[1] == 0
try:
    reshard.Writer(sys.argv[1], {"w": ("F32", (4,))}, to="hf").close()
    sys.exit("the child has given the lock back")
except reshard.Error:
    writer.put("w", array.array("f", [3, 4]), (2,))
writer.finish()
"""


@test
def writers_and_forks(work):
    """A process that was forked while a Writer is open has no part in it, and leaves it alone when it ends"""
    done = subprocess.run([sys.executable, "-c", FORKED_WRITER, work / "w"], env={**os.environ, "PYTHONPATH": str(PACKAGE)},
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    with reshard.open(work / "w") as saved:
        assert memoryview(saved.tensors["w"].read()).tolist() == [1, 2, 3, 4]


ENDS = """
import array, os, pathlib, sys, time
import reshard
rank, how, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])

def gather(data):
    (folder / f"{rank}.new").write_bytes(data)
    (folder / f"{rank}.new").rename(folder / f"told{rank}")
    while not all((folder / f"told{other}").exists() for other in range(2)):
        time.sleep(0.01)
    return [(folder / f"told{other}").read_bytes() for other in range(2)]

comm = reshard.Comm.sockets(rank, 2, gather, host="127.0.0.1", timeout=30)
if how == "forks":
    child = os.fork()
    if child == 0:
        try:
            comm.close()
        except reshard.UsageError as error:
            os._exit(0 if "forked" in str(error) else 5)
    assert os.waitpid(child, 0)[1] == 0
saver = reshard.Saver(comm=comm)
saver.save(folder / "saved", {"w": reshard.Shard(array.array("f", [rank] * 4), (8,), (4 * rank,))}, to="torch-dcp")
if how == "forks":
    child = os.fork()
    if child == 0:
        try:
            saver.wait()
        except reshard.UsageError as error:
            sys.exit(0 if "forked" in str(error) else 5)
    assert os.waitpid(child, 0)[1] == 0
if how == "raises":
    raise SystemExit(3)
if how == "is stranded":  # as one that nobody has closed when the interpreter ends
    reshard._online.atexit._clear()
"""


@test
def programs_that_end(work):
    """A program that ends, or raises, while ranks save in the background ends when they have saved; one that cannot wait for it ends too"""
    for how, code in (("ends", 0), ("raises", 3), ("forks", 0), ("is stranded", 0)):
        folder = work / how
        folder.mkdir()
        ranks = [subprocess.Popen([sys.executable, "-c", ENDS, str(rank), how, folder], env={**os.environ, "PYTHONPATH": str(PACKAGE)},
                                  stderr=subprocess.PIPE) for rank in range(2)]
        try:
            said = [rank.communicate(timeout=100)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [code] * 2 and said == [b""] * 2, (how, [rank.returncode for rank in ranks], said)
        if how != "is stranded":
            with reshard.open(folder / "saved") as saved:
                assert memoryview(saved.tensors["w"].read()).tolist() == [0] * 4 + [1] * 4


@test
def documented(work):
    """Everything public has a docstring, and every option of the library is an argument of Python"""
    bare = [name for name in reshard.__all__ if not inspect.getdoc(getattr(reshard, name))]
    assert not bare, bare
    header = (pathlib.Path(__file__).resolve().parents[2] / "include/reshard/reshard.h").read_text()
    source = (pathlib.Path(__file__).resolve().parents[2] / "python/module/module_options.c").read_text()
    callbacks = {"progress", "context", "rename", "choose_missing", "diagnose", "uncovered", "tensor", "sink"}
    other = {"struct_size", "limit_stride", "text_stride", "constant_stride", "config_size", "part_words", "store", "coverage", "summary",
             "comm", "limit_count", "text_count", "constant_count"} | callbacks
    for struct_name in ("open", "convert", "map", "verify", "diff", "salvage", "stats", "run"):
        body = header.split(f"typedef struct reshard_{struct_name}_options {{")[1].split("\n}")[0]
        body = re.sub(r"/\*.*?\*/|\([^()]*\);", ";", body, flags=re.S)
        members = set(re.findall(r"(\w+)\s*(?=[;,])", body)) - other
        table = source.split(f"const struct option {struct_name}_members[]")[1].split("END")[0]
        lost = {m for m in members if not re.search(rf'\b{m}\b', table)}
        assert not lost, f"reshard_{struct_name}_options: {sorted(lost)} cannot be given"
    assert all(inspect.getdoc(getattr(reshard.mapping, name)) for name in reshard.mapping.__all__)


@test
def the_page(work):
    """docs/python.md: what its examples print"""
    root = pathlib.Path(__file__).resolve().parents[2]
    before = os.getcwd()
    os.chdir(root)
    try:
        text = re.sub("^```.*$", "", (root / "docs/python.md").read_text(), flags=re.M)
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        said = []
        failed, tried = runner.run(doctest.DocTestParser().get_doctest(text, {}, "python.md", "docs/python.md", 0), out=said.append)
    finally:
        os.chdir(before)
        for name in ("hf", "dcp"):
            shutil.rmtree(f"/tmp/reshard-python-{name}", ignore_errors=True)
    assert failed == 0 and tried > 20, f"{failed} of {tried} examples print something else:\n{''.join(said)}"


def main():
    global reshard, BINARY, FIXTURES, PACKAGE, DRAWN
    parser = argparse.ArgumentParser()
    draw.add_options(parser, 0.3)
    parser.add_argument("--fixtures", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--only", default="*", metavar="GLOB", help="of functions' names")
    args = built_package.arguments(parser)
    BINARY, FIXTURES, PACKAGE, DRAWN = args.bin, args.fixtures, args.package, draw.Draw(args)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    import reshard
    return small_models.run(BINARY, [(name, small_models.whatever_fails(function)) for name, function in TESTS
                                     if fnmatch.fnmatch(function.__name__, args.only)])


if __name__ == "__main__":
    sys.exit(main())
