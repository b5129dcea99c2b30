#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mapping texts of model families against what their rules say in words (families.py). Prints TAP, a test a case and a target.

usage: models_test.py --bin PATH --models DIR [--case GLOB]

Every element of a model is another number. `map eval` must give exactly the tensors, shapes and numbers of the rules; the same text read
backwards, and the text that `map invert` derives, must give the first model again; `map check` must find the mapping bijective. Where a
mapping leaves tensors behind, all of this holds for the rest.
"""
import argparse
import fnmatch
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import families  # noqa: E402


class Trial:
    def __init__(self, binary, work, c):
        self.binary, self.work, self.c, self.count = binary, work, c, 0
        self.config = self.put({key: value for key, value in c.items() if key != "copies"})

    def put(self, value):
        self.count += 1
        path = self.work / f"{self.count}.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def describe(self, model):
        return self.put({"tensors": {key: {"dtype": "F32", "shape": families.shape_of(tensor), "data": families.flat(tensor)} for key, tensor in model.items()}})

    def map(self, verb, text, source, *more):
        done = subprocess.run([self.binary, "map", verb, text, "--source", source, "--config", self.config, "--json", *more], capture_output=True, timeout=300)
        assert done.returncode == 0, f"map {verb} {text} {' '.join(map(str, more))}: exit {done.returncode}: {done.stderr.decode()[:1500]}"
        assert not done.stderr, f"map {verb} {text} {' '.join(map(str, more))}: {done.stderr.decode()[:1500]}"
        return json.loads(done.stdout)

    def evaluate(self, text, source, *more):
        found = self.map("eval", text, source, *more)["tensors"]
        return {key: families.fill(t["shape"], iter(t["data"])) for key, t in found.items()}


def must_be(what, found, expected):
    assert set(found) == set(expected), f"{what}: lacks {sorted(set(expected) - set(found))[:3]}, has {sorted(set(found) - set(expected))[:3]}"
    for key, tensor in expected.items():
        assert families.shape_of(found[key]) == families.shape_of(tensor), f"{what}: {key}: shape {families.shape_of(found[key])}, expected {families.shape_of(tensor)}"
        assert found[key] == tensor, f"{what}: {key}: {families.flat(found[key])[:8]}, expected {families.flat(tensor)[:8]}"


def try_text(trial, text, source, expected, whole):
    """source: the model to start with; whole: nothing of it is left behind."""
    start, rest = trial.describe(source), {key: t for key, t in source.items() if not whole(key)}
    must_be("forwards", trial.evaluate(text, start), expected)
    end = trial.describe(expected)
    must_be("backwards", trial.evaluate(text, end, "--reverse"), rest)
    must_be("backwards, knowing the target", trial.evaluate(text, end, "--reverse", "--target", trial.describe(rest)), rest)
    if len(rest) < len(source):
        return
    checked = trial.map("check", text, start)
    assert checked["bijective"] is True, f"check: {json.dumps(checked)[:500]}"
    inverse = trial.put("\n".join(trial.map("invert", text, start)["statements"]))
    must_be("by the inverse text", trial.evaluate(inverse, end), source)


def tests_of(name, models):
    """Name of the test, text, name of the model to start with, and the function that makes the model to end with."""
    c, megatron, paddle, unfused = families.CASES[name]
    yield "megatron", models / f"{megatron}.hf-megatron.map", None, lambda hf: families.megatron_model(c, hf)
    yield "megatron's local modules", models / "megatron.te-local.map", families.megatron_model, lambda hf: families.megatron_model(c, hf, te=False)
    if paddle:
        yield "paddle", models / f"{paddle}.hf-paddle.map", None, lambda hf: families.paddle_model(c, hf)
    if unfused:
        yield "paddle, not fused", models / f"{unfused}.hf-paddle-unfused.map", None, lambda hf: families.paddle_model(c, hf, fused=False)


def run(binary, name, text, start, make):
    c = families.CASES[name][0]
    hf = families.hf_model(c, families.counted())
    with tempfile.TemporaryDirectory() as work:
        trial = Trial(binary, pathlib.Path(work), c)
        source = start(c, hf) if start else hf
        to_megatron = text.name.endswith("-megatron.map")
        try_text(trial, text, source, make(hf), lambda key: families.is_left_behind(c, key) or (to_megatron and "mtp_" in key))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--case", default="*")
    options = parser.parse_args()
    tests = [(name, *test) for name in families.CASES if fnmatch.fnmatch(name, options.case) for test in tests_of(name, options.models)]
    print(f"1..{len(tests)}")
    failed = 0
    for number, (name, what, text, start, make) in enumerate(tests, 1):
        try:
            run(options.bin, name, text, start, make)
            print(f"ok {number} - {name}: {what}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"not ok {number} - {name}: {what}")
            print("".join(f"# {line}\n" for line in str(error).splitlines()), end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
