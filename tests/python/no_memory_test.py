#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each function of the extension module with one of Python's allocations failing, one after the other: MemoryError, or the result; nothing
else. Prints TAP.

usage: no_memory_test.py --package DIR
Without CPython's own _testcapi it is skipped. Calls have one thread: that a callback's thread needs memory to begin is CPython's matter.
"""
import argparse
import array
import contextlib
import pathlib
import sys
import tempfile

ONE = {"threads": 1}


def calls(work):
    """{name: call}, over a small checkpoint."""
    from reshard import _reshard
    from reshard._options import convert_options
    from reshard._shards import shard_tuples, sharded_tuples
    from reshard._states import flatten
    state = {"m": {"w": array.array("f", [1, 2, 3]), "b": array.array("d", [1.5])}, "step": 3,
             "args": {"a": [1, {"b": 2.5}], "s": "x", "big": 2**90, "by": b"zz"}}
    path, together = str(work / "s"), str(work / "t")
    reshard.save(path, state, to="torch-dcp")
    opened, other = (reshard.open(path)._handle for _ in range(2))
    tensors, items = flatten(state)
    shards, owners = shard_tuples(tensors)
    ranks, _ = sharded_tuples(tensors)
    file = opened.item_file(0)
    whole = (ranks, [("rng", (1,), (0,), (0,), "3"), ("file", (1,), (0,), (0,), file)], [(0, "a", "1"), (0, "b", file)])
    _reshard.save(None, lambda: (together, whole, {"to": "torch_dist"}, False, False, {}))
    described = '{"tensors": {"x": {"dtype": "F32", "shape": [1], "data": [1]}}}'
    warning = {"texts": [("m", "none -> _")]}
    out = array.array("f", [0, 0, 0])
    address = out.buffer_info()[0]
    options = convert_options(to="hf", dtype={"*": "f32"}, include=["*"], limits={"tensors": 100}, overwrite=True)
    comm, = _reshard.comm_threads(1, 0.0)
    transfers = _reshard.transfers_new(comm, lambda: (shards, [("m.w", "F32", (3,), (0,), (3,), None, address, None, None)], None, 0))
    wanted = [("m.w", "F32", (3,), (0,), (3,), None, (0,), address, None, False, None)]
    place = [("m.w", "F32", (3,), (0,), (3,), None, address, None, None)]
    far = reshard.Values("F32", (3,), read=lambda offset, memory: memory.__setitem__(slice(None), bytes(len(memory))),
                         write=lambda offset, memory: None)
    given = [("m.w", "F32", (3,), (0,), (3,), None, 0, None, far)]
    parts = convert_options(to="torch-dcp", layout="ranks=2", part=(0, 2), overwrite=True)
    declared = [("m.w", "F32", (3,)), ("m.b", "F64", (1,))]

    def written(target, options):
        copies = [("copied", opened, 1), ("file", file, 0)]
        _, writer = _reshard.writer_open(declared, items, copies, "memory", str(work / target), options, ONE)
        writer.put(0, 1, (0,), (3,), None, "F32", None, 0, 0, far)
        writer.put(1, 1, (0,), (1,), (0, 1), "F32", None, address, 4, None)
        writer.finish()
        writer.close()
    return {
        "open": lambda: _reshard.open(path, {"limits": {"tensors": 50}}, ONE),
        "tensors": opened.tensors, "items": opened.items, "facts": opened.facts, "files": opened.files, "warnings": opened.warnings,
        "chunks": lambda: opened.chunks(0), "tensor_path": lambda: opened.tensor_path(0), "item_path": lambda: opened.item_path(1),
        "item_value": lambda: [opened.item_value(item) for item in range(2)], "item_json": lambda: opened.item_json(1),
        "item_file": lambda: opened.item_file(1),
        "map": lambda: _reshard.map("check", {"text": "x -> y", "constants": {"a": 1}}, described, opened),
        "a mapping's mistakes": lambda: _reshard.map("eval", {"text": "x - y"}, described, None),
        "a mapping's warnings": lambda: _reshard.plan(opened, None, {"to": "hf", "map": warning}, ONE),
        "preview": lambda: _reshard.preview(opened, None, options, ONE),
        "read": lambda: opened.read([(0, 1, (0,), (3,), (1,), "F32", address, 12)], {"memory_bytes": 1 << 20, **ONE}),
        "load": lambda: opened.load(place, None, ONE),
        "load through functions": lambda: opened.load(given, None, ONE),
        "save through functions": lambda: _reshard.convert(_reshard.open_state(given, {}, [], "memory", {}, [far]), str(work / "f"),
                                                           options, ONE),
        "writer": lambda: written("w", options), "a part of writers": lambda: written("p", parts),
        "writer_commit": lambda: _reshard.writer_commit(str(work / "p"), ONE),
        "load with a mapping": lambda: opened.load([("x", *place[0][1:])], {"texts": [("m", "m.w -> x")], "constants": {"a": 1}}, ONE),
        "open_state": lambda: _reshard.open_state(shards, items, [("copied", opened, 1), ("file", file, 0)], "memory", {}, owners),
        "convert": lambda: _reshard.convert(opened, str(work / "o"), options, ONE),
        "plan": lambda: _reshard.plan(opened, None, options, ONE),
        "verify": lambda: _reshard.verify(comm, lambda: (opened, {"deep": True}, ONE)),
        "diff": lambda: _reshard.diff(None, lambda: (opened, other, {}, ONE)),
        "hash": lambda: _reshard.hash(comm, lambda: (opened, "sha256", ONE)),
        "stats": lambda: _reshard.stats(opened, {"include": ["*"]}, ONE),
        "salvage": lambda: _reshard.salvage(path, str(work / "salvaged"), {"overwrite": True}, ONE),
        "latest_good": lambda: _reshard.latest_good(str(work), {}, {}, ONE),
        "formats": _reshard.formats, "dtypes": _reshard.dtypes, "limits": _reshard.limits,
        "arrays": lambda: memoryview(reshard.Array("F32", (2, 3)).raw), "dlpack": lambda: reshard.Array("F32", (2, 3)).__dlpack__(),
        "Buffer": lambda: _reshard.Buffer(out, False).layout(), "an error": lambda: _reshard.open("/nope", {}, ONE),
        "save": lambda: _reshard.save(comm, lambda: (str(work / "u"), whole, {"to": "torch_dist", "overwrite": True}, False, False, ONE)),
        "load together": lambda: _reshard.load(comm, lambda: (together, (wanted, [], []), {}, None, "return_all", False, False, True, ONE)),
        "redistribute": lambda: _reshard.redistribute(comm, lambda: (shards, place, None, 0)),
        "transfers_new": lambda: _reshard.transfers_new(comm, lambda: (shards, place, None, 0)),
        "transfers_run": lambda: _reshard.transfers_run(transfers, comm, lambda: (shards, place, None, 0)),
        "all_gather": lambda: comm.all_gather(b"xx"), "agree": lambda: _reshard.agree(comm, lambda: 1),
        "comm_threads": lambda: _reshard.comm_threads(2, 0.0), "Saver": lambda: _reshard.Saver(0, None, 1, None).close(),
    }


def failures(call):
    """How many allocations have failed, until three calls in a row had none to fail."""
    failed = clean = number = 0
    while clean < 3:
        try:
            _testcapi.set_nomemory(number, number + 1)
            try:
                call()
            finally:
                _testcapi.remove_mem_hooks()
            clean += 1
        except MemoryError:
            failed, clean = failed + 1, 0
        except reshard.Error:
            clean += 1
        number += 1
        assert number < 2000, "there is no end"
    return failed


def main():
    global reshard, _testcapi
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", required=True)
    args = parser.parse_args()
    try:
        import _testcapi
        assert list(pathlib.Path(args.package, "reshard").glob("_reshard*.so")), "the package was not built"
    except (ImportError, AssertionError) as reason:
        print(f"1..0 # SKIP {reason}")
        return 0
    sys.path.insert(0, args.package)
    import reshard
    total, failed = 0, 0
    with tempfile.TemporaryDirectory() as work:
        tests = calls(pathlib.Path(work))
        print(f"1..{len(tests) + 1}")
        for number, (name, call) in enumerate(tests.items(), 1):
            with contextlib.suppress(reshard.Error):
                call()
            try:
                count = failures(call)
                total += count
                print(f"ok {number} - {name}: {count} failures", flush=True)
            except BaseException as problem:
                failed += 1
                print(f"not ok {number} - {name}: {type(problem).__name__}: {problem}", flush=True)
    print(f"{'ok' if total > 600 else 'not ok'} {len(tests) + 1} - enough of them: {total}")
    return failed > 0 or total <= 600


if __name__ == "__main__":
    sys.exit(main())
