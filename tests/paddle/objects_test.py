#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects of Python in .pdparams files: containers, keys, their order and what paddle.load makes of arrays stay as they were, or a note
says what changed. Prints TAP.

Files are pickled here as paddle.save does it: with a table of names for a state dict, with pairs (name, array) for any other object.
tests/live/paddle_objects.py does the same with Paddle itself.

usage: objects_test.py --bin PATH
"""
import argparse
import collections
import importlib
import pathlib
import pickle
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import strategies as S  # noqa: E402
import torch_stub  # noqa: E402
from matrix_test import Tap  # noqa: E402

TABLE = "StructuredToParameterName@@"
Ordered = collections.OrderedDict


class Pair:
    """A tensor in an object that is no state dict."""
    def __init__(self, array, name="generated_tensor_0"):
        self.pair = (name, array)

    def __reduce__(self):
        return tuple, (self.pair,)


class Read:
    """What a pickle makes of a class that is not here."""
    def __new__(cls, *_):
        made = super().__new__(cls)
        made.state = None
        return made

    def __init__(self, *_):
        pass

    def __setstate__(self, state):
        self.state = state


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if module in ("builtins", "collections", "_codecs"):
            return getattr(importlib.import_module(module), name)
        return Read if name == "_reconstruct" else type(name, (Read,), {})


def array(numpy_type="<f4", shape=(2,), first=0):
    count = S.math.prod(shape) * int(numpy_type[2:])
    return S.Array(numpy_type[1:], shape, bytes((first + i) % 251 for i in range(count)))


def tensor(first=0):
    return Pair(array(first=first))


def shown(value):
    """A text that tells everything."""
    if isinstance(value, Pair):
        return shown(value.pair)
    if isinstance(value, S.Array):
        return f"array {value.shape} {hash(value.value)}"
    if isinstance(value, Read):
        return f"array {value.state[1]} {hash(bytes(value.state[4]))}"
    if isinstance(value, dict):
        more = f"{value.default_factory} " if isinstance(value, collections.defaultdict) else ""
        more += f"{vars(value)} " if hasattr(value, "__dict__") and vars(value) else ""
        return f"{type(value).__name__} {more}{{{', '.join(f'{key!r}: {shown(member)}' for key, member in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({sorted(map(repr, value))})"
    return f"{type(value).__name__} {value!r}"


def objects():
    """Name, object; what is written must be the same."""
    big = array("<u2", (300000,)), array("<u4", (300000,))
    yield "a list", [tensor(), 1]
    yield "a tuple", (tensor(), (), [], {}, Ordered())
    yield "an empty state dict", {TABLE: {}}
    yield "an empty dict", {}
    yield "an empty list", []
    yield "an empty tuple", ()
    yield "a number", 5
    yield "a text", "text"
    yield "a tensor", tensor()
    yield "a tensor under an empty key", {"": tensor()}
    yield "a value under an empty key", {"": 5}
    yield "an OrderedDict", Ordered([("b", 1), ("a", [tensor()])])
    yield "a state dict", {"w": array(), "b": array(first=3), "LR_Scheduler": {"milestones": (1, 2), "x": []},
                           TABLE: {"w": "l.w_0", "b": "l.b_0"}}
    yield "keys 0 and '0' of a state dict", {0: array(), "0": array(first=1), TABLE: {0: "l.w_0", "0": "l.b_0"}}
    yield "keys 0 and '0' further in", {"a": {0: tensor(), "0": tensor(1)}, "b": [{"1": 1, 1: 2}]}
    yield "keys that are no texts", [{None: tensor(), True: 1, "x": 2, (1, "y"): 3, 0.5: [tensor(1)], 2**70: 4, b"k": 5}]
    yield "keys None and True of the outermost dict", {None: {"x": tensor()}, True: [tensor(1)]}
    yield "an array that stays with NumPy", {"a": big[0], "t": tensor(), "l": [big[1]]}
    yield "an array in a state dict", {"n": {"x": big[1]}, "w": array(), TABLE: {"w": "l.w_0"}}
    yield "arrays alone", {"a": array("<f8"), "l": (array("<i8"),)}
    yield "other classes beside tensors", {"w": array(), "x": {"c": collections.Counter("aab"), "b": b"bytes", "s": {1, 2},
                                           "d": collections.defaultdict(list, a=[1], e=())}, TABLE: {"w": "l.w_0"}}
    yield "thousands", {f"k{i}": [tensor(i % 7)] if i % 2 else () for i in range(2100)}
    yield "long tuples", [tuple(range(3000)), tuple(tensor(i % 5) for i in range(1001))]
    deep = tensor()
    for i in range(90):
        deep = [deep] if i % 2 else (deep, i)
    yield "deep", deep


def floats(number):
    return torch_stub.tensor("FloatStorage", (2,), bytes([number]) * 8)


def torch_objects():
    """Name, what is in a .pt, and what pickle reads of the .pdparams, each tensor as its bytes; words of the notes."""
    state = Ordered([("b", floats(1)), ("a", floats(2))])
    state._metadata = Ordered([("", {"version": 1})])
    after = Ordered(state)
    after._metadata = state._metadata
    after[TABLE] = {"b": "b", "a": "a"}
    yield "a state dict of torch", state, after, []
    optimizer = {"state": {0: {"m": floats(3)}}, "groups": [{"b": (0.9, 0.95)}]}
    nested = Ordered([("model", (floats(1), [floats(2), ()])), ("epoch", 3), ("opt", optimizer)])
    yield "a training state of torch", nested, nested, ["1 tensors of optimizer state keep the names that other frameworks give them"]
    made = lambda: collections.defaultdict(list, t=[floats(1)])
    yield ("a class that paddle.load refuses", {"d": made(), "b": b"b"}, {"d": {"t": [floats(1)]}},
           ["'d' becomes a dict", "dropped: b:"])
    yield ("a class behind another dict", {"x": {"y": {"z": floats(2)}}, "d": made()},
           {"x": {"y": {"z": floats(2)}}, "d": {"t": [floats(1)]}},
           ["'d' becomes a dict"])
    yield ("a class further in", {"x": {"y": floats(2), "d": made()}}, {"x": {"y": floats(2), "d": {"t": [floats(1)]}}},
           ["'x.d' becomes a dict"])
    marked = Ordered(a=floats(5))
    marked.kind = torch_stub.Named("torch", "float32")
    yield ("an attribute that paddle.load does not make", {"x": {"y": floats(2)}, "m": marked},
           {"x": {"y": floats(2)}, "m": Ordered(a=floats(5))},
           ["'m' loses its attributes"])
    odd = {"o": {torch_stub.Named("torch", "float32"): floats(1)}}
    yield "a key that paddle.load does not make", odd, {"o": {"torch.float32": floats(1)}}, ["o.torch.float32: a key that"]


def bare(value):
    """Pairs are their arrays, as names of tensors are not what is asked for; what a .pt holds is bytes."""
    if isinstance(value, torch_stub.Tensor):
        return value.storage.data
    if isinstance(value, Read):
        return bytes(value.state[4])
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Read):
        return bytes(value[1].state[4])
    if isinstance(value, (list, tuple)):
        return type(value)(map(bare, value))
    if isinstance(value, dict):
        copy = type(value)() if not isinstance(value, collections.defaultdict) else collections.defaultdict(value.default_factory)
        copy.update({key: bare(member) for key, member in value.items()})
        if hasattr(value, "__dict__"):
            vars(copy).update(vars(value))
        return copy
    return value


def convert(binary, source, target, *options):
    to = [] if "--to" in options else ["--to", "paddle"]
    done = subprocess.run([binary, "convert", source, target, "--no-sync", *to, *options], capture_output=True, text=True)
    return done.stderr if done.returncode == 0 else f"exit {done.returncode}: {done.stderr}"


def read(path):
    with open(path, "rb") as file:
        return Reader(file).load()


def compare(path, wanted, said, words=()):
    if not path.exists():
        return [said.strip()]
    found, wanted = shown(read(path)), shown(wanted)
    problems = [] if found == wanted else [f"read    {found[:700]}", f"instead {wanted[:700]}"]
    problems += [f"no note says '{word}': {said!r}" for word in words if word not in said]
    return problems + ([f"an unexpected note: {said!r}"] if said.strip() and not words else [])


def check_objects(tap, binary, work):
    for number, (name, value) in enumerate(objects()):
        for protocol in (2, 3, 4):
            source, target = work / f"{number}-{protocol}.pdparams", work / f"{number}-{protocol}-again.pdparams"
            with S.Pickles():
                source.write_bytes(pickle.dumps(value, protocol))
            said = convert(binary, source, target)
            tap(f"{name}, protocol {protocol}", compare(target, value, said))


def check_torch(tap, binary, work):
    for number, (name, value, wanted, words) in enumerate(torch_objects()):
        source, target = work / f"{number}.pt", work / f"{number}-torch.pdparams"
        torch_stub.write_zip(source, value)
        said = convert(binary, source, target)
        problems = [said] if not target.exists() else []
        if not problems and shown(bare(read(target))) != shown(bare(wanted)):
            problems = [f"read    {shown(bare(read(target)))[:700]}", f"instead {shown(bare(wanted))[:700]}"]
        problems += [f"no note says '{word}': {said!r}" for word in words if word not in said]
        tap(name, problems + ([f"an unexpected note: {said!r}"] if said.strip() and not words else []))


def check_back(tap, binary, work):
    """From .pt to .pdparams and back: the lists, tuples and dicts of the first."""
    values = [Ordered([("b", (floats(1), ((), [floats(2)]))), ("a", {None: floats(3), (1, 2): [3]})]), (floats(1), [2, {}]), floats(4)]
    for number, value in enumerate(values):
        first, between, last = (work / f"back-{number}{end}" for end in (".pt", ".pdparams", "-last.pt"))
        torch_stub.write_zip(first, value)
        problems = [said for said in (convert(binary, first, between), convert(binary, between, last, "--to", "torch")) if "exit" in said]
        if not problems:
            found = torch_stub.load(last)
            if isinstance(found, dict):
                found.pop(TABLE, None)
            found, wanted = shown(bare(found)), shown(bare(value))
            problems = [] if found == wanted else [f"read    {found[:700]}", f"instead {wanted[:700]}"]
        tap(f"a {type(value).__name__} of torch, and back", problems)


def check_parts(tap, binary, work):
    source = work / "parts.pdparams"
    with S.Pickles():
        source.write_bytes(pickle.dumps(Ordered([("z", (tensor(1), [tensor(2)], tensor(3))), ("a", {"t": tensor(4), "u": (1, 2)})]), 4))
    cases = [("members of a tuple that are left out", ["--exclude", "z.0"], Ordered([("z", {1: [tensor(2)], 2: tensor(3)}),
              ("a", {"t": tensor(4), "u": (1, 2)})]), ["z: a list of which members are left out"]),
             ("what is left keeps its form", ["--exclude", "z.2", "--exclude", "a.u*"],
              Ordered([("z", (tensor(1), [tensor(2)])), ("a", {"t": tensor(4)})]), [])]
    for number, (name, options, wanted, words) in enumerate(cases):
        target = work / f"part-{number}.pdparams"
        tap(name, compare(target, wanted, convert(binary, source, target, *options), words))


def folders():
    """Name, files of a folder, the one object that they become, words of the notes."""
    scheduler = {"milestones": (1, 2), "x": [], "e": ()}
    yield ("files of a folder", {"a.pdparams": {"w": array(), "sched": scheduler, TABLE: {"w": "l.w_0"}},
                                 "b.pdopt": [tensor(3), (1, (2, 3)), {}, Ordered(z=1, a=(2,))]},
           {"a.pdparams": {"w": Pair(array(), "l.w_0"), "sched": scheduler},
            "b.pdopt": [tensor(3), (1, (2, 3)), {}, Ordered(z=1, a=(2,))]}, ["stand beside their arrays"])
    files = {f"model_state.shard{rank:02}.pdparams": {"w": array(), TABLE: {"w": "l.w_0"}} for rank in (0, 1)}
    for rank in (0, 1):
        files[f"optimizer.shard{rank:02}.pdopt"] = {"l.w_0_moment1_0": array(first=3), "master_weights": {"l.w_0": array(first=5)},
                                                    "LR": {**scheduler, "mine": [(rank, {})]}, "lone": (5,)}
    yield ("files of ranks", files,
           {"LR": {**scheduler, "mine": [(0, {})]}, "lone": (5,), "optimizer.shard01.pdopt": {"LR": {"mine": [(1,)]}}, "w": array(),
            "w.moment1_0": array(first=3), "w.w_0": array(first=5),
            TABLE: {"w": "l.w_0", "w.moment1_0": "w.moment1_0", "w.w_0": "w.w_0"}}, [])


def check_folders(tap, binary, work):
    for number, (name, files, wanted, words) in enumerate(folders()):
        source, target = work / f"folder{number}", work / f"folder{number}.pdparams"
        source.mkdir()
        with S.Pickles():
            for file, value in files.items():
                (source / file).write_bytes(pickle.dumps(value, 4))
        tap(name, compare(target, wanted, convert(binary, source, target), words))


def check_refusal(tap, binary, work):
    """Two keys that are one name for a catalog: both are there, or nothing is written."""
    source, target = work / "twice.pdparams", work / "twice-again.pdparams"
    with S.Pickles():
        source.write_bytes(pickle.dumps([{None: tensor(), "None": tensor(1)}], 4))
    said = convert(binary, source, target)
    tap("keys None and 'None' in one dict", [] if "'0.None' is there twice" in said and not target.exists() else [said])


def check_arrays(tap, binary, work):
    """NumPy's calls in a .pt are values of any kind; in a .pdparams they are arrays: what makes none would make the file unreadable."""
    source, target = work / "arrays.pt", work / "arrays.pdparams"
    broken = {"short": S.Array("f4", (3,), bytes(8)), "shapeless": S.Array("f4", 2, bytes(8)), "negative": S.Array("f4", (-2,), bytes(8)),
              "no bytes": S.Array("u1", (1,), chr(0x100)), "inside": [1, S.Array("u1", (2,), b"b")]}
    with S.Pickles():
        torch_stub.write_zip(source, {"w": floats(1), "good": array(), "empty": S.Array("f4", (0, 3), b""), **broken})
    said = convert(binary, source, target)
    for name in broken:
        tap(f"an array that NumPy did not write: {name}",
            [] if f"dropped: {name}" in said and "with a state that NumPy does not write" in said else [said])
    tap("arrays beside those are kept", [] if target.exists() and {"w", "good", "empty"} <= set(read(target)) else [said])
    tap("and the file opens", [line for line in [convert(binary, target, work / "arrays-again.pdparams")] if line.strip()])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    options = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        for check in (check_objects, check_torch, check_back, check_parts, check_folders, check_refusal, check_arrays):
            check(tap, options.bin, work)
    print(f"1..{tap.count}")
    return tap.failed > 0


if __name__ == "__main__":
    sys.exit(main())
