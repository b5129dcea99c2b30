#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random AOA programs: Paddle's own load_state_dict and `reshard map eval` give the same values, as TAP.

usage: paddle_aoa.py --bin RESHARD [--seed N] [--count N]
Needs paddlepaddle 3.3 or later. Every tensor is used once: of a region that is wanted twice Paddle's loader leaves one copy unwritten. A
program that differs is shrunk before it is shown.
"""
import argparse
import json
import logging
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as loader
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

warnings.filterwarnings("ignore")
logging.disable(logging.INFO)
paddle.set_device("cpu")
INITIAL = -7


class Program:
    """Statements over tensors of which only names, shapes and whether they are cast are known."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.source, self.steps, self.counter = {}, [], 0
        for i in range(self.random.randint(2, 5)):
            rank = self.random.choice([1, 2, 2, 2, 3])
            self.source[f"s.{i}.w"] = [self.random.choice([2, 4, 6, 8, 12]) for _ in range(rank)]
        self.make()

    def name(self):
        self.counter += 1
        return f"v{self.counter}.w"

    def make(self):
        live = {k: (shape, None) for k, shape in self.source.items()}
        for _ in range(self.random.randint(1, 6)):
            step = self.step(live)
            if step:
                inputs, outputs, text = step
                for name in inputs:
                    del live[name]
                live.update(outputs)
                self.steps.append((inputs, outputs, text))

    def step(self, live):
        kind = self.random.choice(["rename", "transpose", "split", "join", "permute", "cast", "ffn", "qkv", "split_qkv", "delete", "array"])
        if not live:
            return None
        name = self.random.choice(sorted(live))
        shape, cast = live[name]
        axis = self.random.randrange(len(shape))
        out = self.name()
        if kind == "rename":
            return [name], {out: (shape, cast)}, f"{name} -> {out}"
        if kind == "transpose":
            return [name], {out: (shape[::-1], cast)}, f"{name}^T -> {out}"
        if kind == "delete":
            return ([name], {}, f"{name} -> _") if name in self.source and len(live) > 1 else None
        if kind == "permute":
            axes = self.random.sample(range(len(shape)), len(shape))
            return [name], {out: ([shape[a] for a in axes], cast)}, f'{name} -> {out}, permute="{axes}"'
        if kind == "cast":
            dtype = self.random.choice(["float16", "bfloat16"])
            return ([name], {out: (shape, dtype)}, f"{name} -> {out}, dtype='{dtype}'") if cast is None else None
        if kind in ("split", "array"):
            parts = self.random.choice([2, 3])
            if shape[axis] % parts:
                return None
            part = shape[:axis] + [shape[axis] // parts] + shape[axis + 1 :]
            names = [f"{out}_{i}" for i in range(parts)] if kind == "array" else [out] + [self.name() for _ in range(parts - 1)]
            right = f"{out}[0:{parts}]" if kind == "array" else ", ".join(names)
            return [name], {n: (part, cast) for n in names}, f"{name} -> {right}, axis={axis}"
        same = [n for n in sorted(live) if n != name and len(live[n][0]) == len(shape) and live[n][1] == cast]
        if kind == "join":
            others = [n for n in same if all(k == axis or a == b for k, (a, b) in enumerate(zip(live[n][0], shape)))][:2]
            total = shape[:axis] + [shape[axis] + sum(live[n][0][axis] for n in others)] + shape[axis + 1 :]
            return ([name, *others], {out: (total, cast)}, f"{', '.join([name, *others])} -> {out}, axis={axis}") if others else None
        if kind == "ffn":
            others = [n for n in same if live[n][0] == shape][:1]
            total = shape[:axis] + [2 * shape[axis]] + shape[axis + 1 :]
            return ([name, *others], {out: (total, cast)}, f"{name}, {others[0]} -> {out}, fused_ffn, axis={axis}") if others else None
        heads, groups = self.random.choice([(2, 1), (2, 2), (4, 2)])
        if kind == "split_qkv":
            if shape[axis] % (heads + 2 * groups):
                return None
            width = shape[axis] // (heads + 2 * groups)
            names, counts = [out, self.name(), self.name()], [heads, groups, groups]
            parts = {n: (shape[:axis] + [c * width] + shape[axis + 1 :], cast) for n, c in zip(names, counts)}
            return [name], parts, f"{name} -> {', '.join(names)}, fused_qkv, num_heads={heads}, num_key_value_groups={groups}, axis={axis}"
        others = [n for n in same if live[n][0] == shape[:axis] + [shape[axis] * groups // heads] + shape[axis + 1 :]][:2]
        if shape[axis] % heads or len(others) < 2:
            return None
        total = shape[:axis] + [shape[axis] // heads * (heads + 2 * groups)] + shape[axis + 1 :]
        text = f"{name}, {others[0]}, {others[1]} -> {out}, fused_qkv, num_heads={heads}, num_key_value_groups={groups}, axis={axis}"
        return [name, *others], {out: (total, cast)}, text


def run(program, steps):
    """(statements, source, target) of the steps whose inputs are there."""
    live = {k: (shape, None) for k, shape in program.source.items()}
    statements = []
    for inputs, outputs, text in steps:
        if all(n in live for n in inputs):
            for n in inputs:
                del live[n]
            live.update(outputs)
            statements.append(text)
    statements.append("_ -> added.w")
    target = {k: {"dtype": cast or "float32", "shape": shape} for k, (shape, cast) in live.items()}
    target["added.w"] = {"dtype": "float32", "shape": [3]}
    source = {}
    for i, (key, shape) in enumerate(sorted(program.source.items())):
        count = int(np.prod(shape))
        source[key] = {"dtype": "float32", "shape": shape, "data": [float(200 * i + k % 200) + 0.25 * (k // 200 % 4) for k in range(count)]}
    return statements, source, target


def with_paddle(statements, source, target, folder):
    whole = lambda key, tensor: ShardedWeight(key, tensor, tuple(tensor.shape), tuple(tensor.shape), (0,) * len(tensor.shape))
    loader._metadata_manager.clear()
    dist.save_state_dict({k: whole(k, paddle.to_tensor(np.array(t["data"], dtype="float32").reshape(t["shape"]))) for k,
                          t in source.items()}, str(folder))
    out = {k: whole(k, paddle.full(t["shape"], float(INITIAL), t["dtype"])) for k, t in target.items()}
    dist.load_state_dict(out, str(folder), aoa_config={"aoa_statements": statements, "enable_traceback": False})
    return {k: w.local_tensor.cast("float32").numpy().reshape(-1).tolist() for k, w in out.items()}


def with_reshard(binary, statements, source, target, folder):
    (folder / "m.json").write_text(json.dumps({"aoa_config": {"aoa_statements": statements}}))
    (folder / "s.json").write_text(json.dumps({"tensors": source}))
    (folder / "t.json").write_text(json.dumps({"tensors": target, "initial": INITIAL}))
    done = subprocess.run([binary, "map", "eval", str(folder / "m.json"), "--source", str(folder / "s.json"), "--target",
                           str(folder / "t.json"), "--json", "--strict-aoa"],
                          capture_output=True, text=True)
    if done.returncode:
        return {"refused": done.stderr}
    return {k: t["data"] for k, t in json.loads(done.stdout)["tensors"].items()}


def differs(binary, program, steps):
    statements, source, target = run(program, steps)
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        try:
            theirs = with_paddle(statements, source, target, a)
        except Exception as error:
            theirs = {"refused": f"{type(error).__name__} {error}"}
        ours = with_reshard(binary, statements, source, target, pathlib.Path(b))
    if "refused" in theirs and "refused" in ours:
        return None
    bad = sorted(set(theirs) ^ set(ours)) + [k for k in theirs if k in ours and theirs[k] != ours[k]]
    return (statements, bad, theirs.get("refused") or ours.get("refused")) if bad else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    failed = 0
    for i in range(args.count):
        program = Program(args.seed * 100003 + i)
        steps = program.steps
        found = differs(args.bin, program, steps)
        for k in reversed(range(len(steps))) if found else []:
            fewer = steps[:k] + steps[k + 1 :]
            smaller = differs(args.bin, program, fewer)
            steps, found = (fewer, smaller) if smaller else (steps, found)
        failed += bool(found)
        print(f"{'not ok' if found else 'ok'} {i + 1} - seed {args.seed}, program {i}" + (f"\n# {found}" if found else ""))
    print(f"1..{args.count}")
    return 1 if failed else 0


sys.exit(main())
