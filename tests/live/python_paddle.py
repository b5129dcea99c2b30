#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package for Python with Paddle: its tensors are saved and filled where they lie. Prints TAP.

usage: python_paddle.py --package DIR --bin PATH
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import built_package
import paddle
import small_models

TYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int8", "uint8", "bool", "complex64")


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


def every_type(work):
    """Tensors of Paddle of every type are saved in two formats, and come back into tensors of Paddle, transposed ones too"""
    whole = paddle.arange(24, dtype="float32").reshape([4, 6])
    state = {"types": {name: (whole % 2 == 0 if name == "bool" else whole).astype(name) for name in TYPES}, "t": whole.t(),
             "parameter": paddle.nn.Linear(3, 2).weight, "step": 3}
    for to in ("paddle-flex", "torch-dcp"):
        assert reshard.save(work / to, state, to=to).tensors == len(TYPES) + 2
        into = {"types": {name: paddle.zeros([4, 6], dtype=name) for name in TYPES}, "t": paddle.zeros([6, 4]),
                "parameter": paddle.zeros([3, 2])}
        loaded = reshard.load(work / to, into)
        for name in TYPES:
            assert same(into["types"][name], state["types"][name]), (to, name)
        assert same(into["t"], whole.t().contiguous()) and same(into["parameter"], state["parameter"].detach()), to
        assert loaded.items["step"] == 3


def main():
    global reshard
    args = built_package.arguments()
    import reshard
    return small_models.run(args.bin, [(function.__doc__, small_models.whatever_fails(function)) for function in (every_type,)])


if __name__ == "__main__":
    sys.exit(main())
