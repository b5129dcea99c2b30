#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects that Paddle saves come back from a .pdparams of reshard as they were: containers, keys, order, what paddle.load makes of arrays.

usage: paddle_objects.py --bin RESHARD [--count N] [--seed N]
Needs paddlepaddle and numpy. Objects are random by the seed; each is saved by paddle.save with protocols 2 to 4.
"""
import argparse
import collections
import os
import pickle
import random
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("GLOG_minloglevel", "2")
import numpy as np  # noqa: E402
import paddle  # noqa: E402

TYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "int8"]


def make_tensor(rng):
    shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 3))]
    values = np.array(rng.choices(range(100), k=int(np.prod(shape, dtype=int)))).reshape(shape)
    return paddle.to_tensor(values.astype("float32")).astype(rng.choice(TYPES))


def make_array(rng):
    return np.arange(rng.randint(0, 6)).astype(rng.choice(["float32", "int16", "uint16", "uint32", ">f4"]))


def make_leaf(rng, arrays):
    kinds = [lambda: rng.randint(-2**40, 2**40), lambda: rng.random(), lambda: None, lambda: rng.random() < 0.5, lambda: "text é",
             lambda: 2**80, lambda: {rng.randint(0, 9), "s"}, lambda: np.float32(rng.random()), lambda: complex(1, 2), lambda: ""]
    return rng.choice(kinds)() if rng.random() < 0.5 else make_array(rng) if arrays and rng.random() < 0.3 else make_tensor(rng)


def make_key(rng, number, strange):
    if not strange or rng.random() < 0.6:
        return f"k{number}"
    return rng.choice([number, str(number), (number, "x"), None, number + 0.5, -number, 2**70 + number, frozenset([number]), ""])


def make_object(rng, depth, arrays, strange):
    if depth == 0 or rng.random() < 0.3:
        return make_leaf(rng, arrays)
    count = rng.choice([0, 1, 1, 2, 3, 4])
    members = [make_object(rng, depth - 1, arrays, strange) for _ in range(count)]
    kind = rng.choice([dict, dict, collections.OrderedDict, list, tuple])
    if kind in (list, tuple):
        return kind(members)
    return kind((make_key(rng, i, strange), member) for i, member in enumerate(members))


def make_root(rng, number):
    """Every third is a state dict, which is saved with a table of names."""
    if number % 3:
        return make_object(rng, rng.randint(1, 5), number % 2 == 0, rng.random() < 0.4)
    state = collections.OrderedDict() if number % 2 else {}
    for i in range(rng.randint(0, 5)):
        state[make_key(rng, i, number % 4 == 0)] = make_tensor(rng) if rng.random() < 0.7 else {"last_epoch": i, "a": [], "b": ((), {})}
    return state


def shown(value):
    """A text that tells everything: types of containers, their order, elements, who is a tensor."""
    if isinstance(value, paddle.Tensor):
        name = "" if value.name.startswith("generated_tensor_") else value.name
        return f"Tensor({name}, {value.dtype}, {value.shape}, {np.array(value).tobytes().hex()})"
    if isinstance(value, np.ndarray):
        plain = value.astype(value.dtype.newbyteorder("="))
        return f"array({plain.dtype.name}, {plain.shape}, {plain.tobytes().hex()})"
    if isinstance(value, dict):
        inner = ", ".join(f"{key!r}: {shown(member)}" for key, member in value.items())
        extra = f"{value.default_factory}, " if isinstance(value, collections.defaultdict) else ""
        more = vars(value) if hasattr(value, "__dict__") else {}
        return f"{type(value).__name__}({extra}{{{inner}}})" + (f" with {more}" if more else "")
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}([{', '.join(map(shown, value))}])"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({sorted(map(repr, value))})"
    return f"{type(value).__name__} {value!r}"


def read(path):
    """What pickle makes of it, and what paddle.load does, or why it does not."""
    with open(path, "rb") as file:
        plain = pickle.load(file, encoding="latin1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return shown(plain), shown(paddle.load(path))
    except Exception as error:  # pylint: disable=broad-except
        return shown(plain), type(error).__name__


def check(args, folder, saved, protocol):
    """What is wrong with a file that was saved, once it is written again; None: nothing."""
    source, target = os.path.join(folder, "a.pdparams"), os.path.join(folder, "b.pdparams")
    paddle.save(saved, source, protocol=protocol)
    done = subprocess.run([args.bin, "convert", source, target, "--to", "paddle", "--quiet", "--overwrite"], capture_output=True, text=True)
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr}"
    before, after = read(source), read(target)
    for what, old, new in zip(("pickle", "paddle.load"), before, after):
        if old != new:
            return f"{what}:\n{old}\n{new}"
    return None


def special():
    tensor = paddle.to_tensor([1.0, 2.0])
    counter = collections.Counter("aab")
    several = collections.defaultdict(list, {"a": [1.5], 3: []})
    yield "a list", [tensor, 1]
    yield "a tuple", (tensor, (), [], {})
    yield "an empty dict", {}
    yield "an empty list", []
    yield "a value", 5
    yield "a text", "text"
    yield "one tensor", tensor
    yield "a tensor under an empty key", {"": tensor}
    yield "an OrderedDict", collections.OrderedDict([("b", 1), ("a", [tensor])])
    yield "keys 0 and '0'", {0: tensor, "0": tensor + 1}
    yield "keys 0 and '0', nested", {"a": {0: tensor, "0": tensor + 1, "x": 1}}
    yield "keys None and 'None'", [{None: tensor, True: 1, "x": [tensor]}]
    yield "tied", {"a": [tensor, tensor], "b": tensor}
    yield "a state dict with other classes", {"t": tensor, "LR": {"c": counter, "d": several, "b": b"bytes", "q": collections.deque([1])}}
    yield "arrays only", {"a": np.arange(3), "b": (np.arange(4.0),)}
    yield "arrays beside tensors", {"a": np.arange(300000, dtype="uint16"), "b": tensor, "c": [tensor, np.arange(300000)]}
    yield "an array in a state dict", {"a": {"x": np.arange(300000, dtype="uint32")}, "b": tensor}
    yield "many", {f"k{i}": [tensor] if i % 2 else () for i in range(2500)}
    yield "long tuples", [tuple(range(3000)), tuple([tensor] * 1001)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    cases = list(special()) + [(f"object {i}", make_root(random.Random(args.seed * 10**6 + i), i)) for i in range(args.count)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, saved) in enumerate(cases, 1):
            wrong = next((w for w in (check(args, folder, saved, p) for p in (2, 3, 4)) if w), None)
            failed += bool(wrong)
            print(f"{'not ok' if wrong else 'ok'} {number} - {name}", flush=True)
            for line in (wrong or "").splitlines():
                print("# " + line[:1500])
    print(f"1..{len(cases)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
