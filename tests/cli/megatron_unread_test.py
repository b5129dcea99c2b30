#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What legacy Megatron files hold and nobody here puts together: it is said, never lost without a word. Prints TAP.

usage: megatron_unread_test.py --bin PATH
"""
import argparse
import collections
import math
import random
import shutil
import sys
import types

import moe_layouts_test
import optimizer_cases
import small_models

MODEL = dict(layers=2, experts=0, frequency=[0, 0], hidden=2, kv=1, groups=1, heads=2, ffn=2, gated=True, vocabulary=4, shared=0,
             spelling="modules", router_bias=False, optimizer="none")
QUANTISED = "transformer_engine.pytorch.tensor.float8_tensor"


class Float8Tensor:
    """As Transformer Engine pickles its own: a call of a class' method, with the bytes and their scale."""
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def _make_in_reduce_ex(cls, *_):
        raise NotImplementedError

    def __reduce__(self):
        return Float8Tensor._make_in_reduce_ex, (self.tensor, "e4m3", self.tensor.shape)


def name_class():
    parts = QUANTISED.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))
    sys.modules[QUANTISED].Float8Tensor = Float8Tensor
    Float8Tensor.__module__ = QUANTISED


def weights_that_are_objects(shell):
    """A parameter that is no tensor is refused by its name and class; extra state, which is one by its nature, and names that nobody knows
    are not."""
    names = {"decoder.layers.0.self_attention.linear_proj.weight": 5, "decoder.layers.1.mlp.linear_fc2.weight": 5,
             "decoder.final_layernorm.weight": 5, "decoder.layers.0.mlp.linear_fc1._extra_state": 0, "of_our_own": 0}
    for number, (name, status) in enumerate(names.items()):
        chance = random.Random(1)
        model = dict(moe_layouts_test.make_parameters(MODEL, chance))
        model[name] = Float8Tensor(model.get(name) or moe_layouts_test.weight(chance, 2))
        said = moe_layouts_test.arguments(MODEL)
        said.num_experts = None
        content = {"args": said, "checkpoint_version": 3.0, "iteration": 10, "model": collections.OrderedDict(model)}
        root = shell.work / str(number)
        moe_layouts_test.write(root / "iter_0000010" / "mp_rank_00" / "model_optim_rng.pt", "model_optim_rng", content)
        (root / "latest_checkpointed_iteration.txt").write_text("10")
        text = f"'{name}' is no tensor but an object of {QUANTISED}.Float8Tensor"
        for words in (["ls", root], ["verify", root], ["convert", root, shell.work / f"out{number}", "--to", "megatron"]):
            done = shell.any(*words)
            assert done.returncode == status and (text in done.stderr) == bool(status), (name, words[0], done.returncode, done.stderr)
            assert not status or "--fp8-param-gather" in done.stderr, done.stderr
        done = shell.any("ls", "--lenient", root)
        assert done.returncode == 0 and (f"mp_rank_00/{name}' is no tensor" in done.stderr) == bool(status), (name, done.stderr)


def state_of_nobody(shell):
    """State that cannot be related to parameters is listed as it is stored, with the reason, and written nowhere as if it were theirs. What
    breaks the form of the files is an error."""
    for case in optimizer_cases.CASES:
        shell.work.joinpath("source").mkdir()
        source, out = shell.work / "source" / case.kind, shell.work / "out"
        optimizer_cases.write(source, case)
        done = shell.any("ls", source)
        state = [line for line in done.stdout.splitlines() if line.startswith("optimizer.mp_rank_00.")]
        weights = [line for line in done.stdout.splitlines() if not line.startswith("optimizer.")]
        is_open, is_unrelated = case.status != optimizer_cases.FORMAT, case.status == optimizer_cases.UNSUPPORTED
        about = (case.kind, case.name, done.stdout, done.stderr)
        assert done.returncode == (0 if is_open else 4) and (case.text in done.stderr), about
        assert bool(weights) == is_open and (bool(state) == is_unrelated or case.name == "no buffer"), about
        assert ("is listed as it is stored" in done.stderr) == is_unrelated, about
        if is_unrelated:
            done = shell.any("verify", source)
            assert done.returncode == 0 and case.text in done.stderr + done.stdout, done.stderr
            for target in ("torch_dist", "megatron"):
                done = shell.any("convert", source, out, "--to", target)
                assert done.returncode == 5 and case.text in done.stderr and not out.exists(), (case.name, done.stderr)
                assert not state or "--exclude 'optimizer*'" in done.stderr, done.stderr
            before = shell.tensors(source)
            if state:
                shell("convert", source, out, "--to", "megatron", "--exclude", "optimizer*", "--quiet")
                after = shell.tensors(out)
                assert after == {key: said for key, said in before.items() if not key.startswith("optimizer.")}, case.name
                shutil.rmtree(out)
            shell("convert", source, out, "--to", "torch-dcp", "--quiet")
            after = shell.tensors(out)
            assert after == before, (case.name, sorted(after), sorted(before))
            shutil.rmtree(out)
        shutil.rmtree(source.parent)


def versions_that_are_none(shell):
    """What a version decides is how rows are ordered, and it is told: one that cannot be is an error."""
    versions = {0: 0, 3.0: 0, 2: 0, 999.5: 0, 1000: 4, 2.4e74: 4, -1.0: 4, math.inf: 4, math.nan: 4}
    for number, (version, status) in enumerate(versions.items()):
        said = moe_layouts_test.arguments(MODEL)
        said.num_experts = None
        content = {"args": said, "checkpoint_version": version, "iteration": 10,
                   "model": collections.OrderedDict(moe_layouts_test.make_parameters(MODEL, random.Random(1)))}
        root = shell.work / str(number)
        moe_layouts_test.write(root / "mp_rank_00" / "model_optim_rng.pt", "model_optim_rng", content)
        done = shell.any("inspect", root)
        text = "'mp_rank_00/model_optim_rng.pt': its checkpoint_version is none that there is"
        assert done.returncode == status and (text in done.stderr) == bool(status), (version, done)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    options = parser.parse_args()
    name_class()
    tests = [("state of nobody", state_of_nobody), ("weights that are objects", weights_that_are_objects),
             ("versions that are none", versions_that_are_none)]
    return small_models.run(options.bin, tests)


if __name__ == "__main__":
    raise SystemExit(main())
