#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's universal checkpoints: drawn ones of every stage, of models in one part and in several (tensor-parallel, stages of a
pipeline), laid out here by the rules of ds_to_universal.py (docs/formats/deepspeed.md), read back exactly, with the optimizer's state; and
what is refused. Prints TAP.

usage: ucp_test.py --bin PATH --root DIR [--count N] [--seed N]
DIR/deepspeed has what DeepSpeed itself wrote: fixtures_test.py compares that.
"""
import argparse
import collections
import hashlib
import json
import math
import pathlib
import random
import shutil
import struct
import sys
import time

import small_models
from deepspeed_test import Model, STATES, copied, count, flat, floats, found, size_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402


def whole(shape, values):
    return torch_stub.tensor("FloatStorage", shape, floats(values))


def folder_of(top, name):
    folder = top / "zero" / name
    folder.mkdir(parents=True)
    return folder


class Universal:
    """What is written of a model, and how: the model lies in `parts` parts, of which each has rows of the parameters."""

    def __init__(self, chance, top, stage=None, parts=None):
        self.chance, self.top, self.model = chance, top, Model(chance)
        self.stage = stage or chance.choice([2, 3])
        self.parts = parts or chance.choice([1, 1, 2, 3])
        self.is_bare = self.stage == 3 and self.parts == 1
        self.step = None if self.stage == 3 else chance.choice([3, whole((), [3.0])])
        self.has_optimizer = chance.random() < 0.8
        self.is_pipeline = self.parts > 1 and self.stage == 2 and chance.random() < 0.5
        if self.stage == 3 and self.parts > 1:
            self.model.frozen = {}
        # Rows that pad a vocabulary, and experts that one rank has, are in param_shapes alone.
        names = [name for name, _ in self.model.parameters()]
        self.odd = {} if self.is_bare else {chance.choice(names): chance.choice(["vocab_tensor", "is_expert_param"])}
        self.unnamed = {"unnamed.w": [2, 3]} if not self.is_bare and chance.random() < 0.5 else {}

    def states_of(self, name, shape):
        folder = folder_of(self.top, name)
        for what in ("master", *STATES):
            values = self.model.values[what, name]
            file = flat(values) if self.is_bare else {"cat_dim": 0, "param": whole(shape, values)}
            if name in self.odd:
                file[self.odd[name]] = True
            torch_stub.write_zip(folder / f"{'fp32' if what == 'master' else what}.pt", file)
        if self.step is not None:
            torch_stub.write_zip(folder / "step.pt", self.step)

    def local(self, name, shape, part):
        """The shape of a part: the first has the rows that are over."""
        rows = shape[0] // self.parts + (shape[0] % self.parts if part == 0 else 0)
        rows = shape[0] if self.is_pipeline or self.parts == 1 else rows
        return [rows + (2 if name in self.odd else 0), *shape[1:]]

    def shapes(self, part):
        """Of a pipeline each stage has a part of the parameters, and the first of them all have."""
        return [collections.OrderedDict((name, size_of(self.local(name, shape, part))) for i, (name, shape) in enumerate(group)
                                        if not self.is_pipeline or i == 0 or i % self.parts == part) for group in self.model.groups]

    def module(self, part):
        if self.is_pipeline:
            return None
        empty = self.stage == 3
        made = collections.OrderedDict()
        for name, shape in [*self.model.parameters(), *((n, dict(self.model.parameters())[o]) for n, o in self.model.tied.items())]:
            made[name] = flat([]) if empty else whole(local := self.local(name, shape, part), [0.5] * math.prod(local))
        for name, shape in self.model.frozen.items():
            values = self.model.values["frozen", name]
            rows = self.local(name, shape, part)[0] * math.prod(shape[1:])
            made[name] = flat([]) if empty else whole(self.local(name, shape, part), values[:rows])
        return made | {"count": count()} | {f"only{part}": whole((2,), [part, 1.0])}

    def write(self, ranks=3):
        model, top = self.model, self.top
        for name, shape in model.parameters():
            self.states_of(name, shape)
        for name, shape in self.unnamed.items():
            for what in ("master", *STATES):
                model.values[what, name] = [self.chance.uniform(-4, 4) for _ in range(6)]
            self.states_of(name, shape)
        if self.stage == 2:  # what is not trained, cast; 9.0: nobody is to take that where a model file has it
            for name, shape in model.frozen.items():
                cut = self.parts > 1
                torch_stub.write_zip(folder_of(top, name) / "fp32.pt", {"param": whole(shape, model.values["frozen", name] if cut else
                                                                                       [9.0] * math.prod(shape))})
            torch_stub.write_zip(folder_of(top, "count") / "fp32.pt", {"param": whole((), [9.0])})
        if self.has_optimizer:
            groups = [{"lr": 0.1 * (g + 1), "params": [g]} for g in range(len(model.groups))]
            torch_stub.write_zip(top / "zero" / "optimizer_state.pt", {"clip_grad": 1.0, "zero_stage": self.stage, "partition_count": 3,
                                                                       "fp32_flat_groups": [flat([1.0])], "param_groups": groups})
        for part in range(self.parts):
            for rank in range(ranks if self.stage == 3 else 1):
                said = model.common(self.shapes(part)) | {"frozen_param_fragments": None, "dp_world_size": ranks}
                if part or rank:
                    said["shared_params"] = {}
                if self.stage == 3:
                    cut = {name: -(-len(model.values["frozen", name]) // ranks) for name in model.frozen}
                    said["frozen_param_fragments"] = collections.OrderedDict(
                        (name, flat((model.values["frozen", name] + [0.0] * ranks)[rank * size:(rank + 1) * size]))
                        for name, size in cut.items())
                name = f"zero_pp_rank_{rank}_" if self.stage == 3 else ""
                torch_stub.write_zip(top / f"{name}mp_rank_{part:02}_model_states.pt", {"module": self.module(part), **said})

    def wanted(self):
        keys = self.model.wanted()
        if self.is_pipeline:  # nobody but the converter has them, cast
            keys["count"] = ([], hashlib.sha256(floats([9.0])).hexdigest())
            for tied in self.model.tied:
                del keys[tied]
        else:
            for part in range(self.parts):
                keys[f"only{part}"] = ([2], hashlib.sha256(floats([part, 1.0])).hexdigest())
        for name, shape in self.unnamed.items():
            keys[name] = (shape, hashlib.sha256(floats(self.model.values["master", name])).hexdigest())
        return keys

    def wanted_states(self):
        named = [*self.model.parameters(), *self.unnamed.items()]
        return {f"optimizer.state.{name}.{state}": (shape, hashlib.sha256(floats(self.model.values[state, name])).hexdigest())
                for name, shape in named for state in STATES}


def drawn(chance, rounds):
    def test(shell):
        for number in range(rounds):
            top = shell.work / f"u{number}" / "any_name"
            made = Universal(chance, top)
            made.write()
            (top.parent / "latest_universal").write_text("any_name")
            about = number, made.stage, made.parts, made.is_pipeline
            got, wanted = found(shell, top.parent), made.wanted()
            assert got == wanted, (about, [(k, got.get(k), wanted.get(k)) for k in {*got, *wanted} if got.get(k) != wanted.get(k)])
            shell("verify", "--deep", top.parent)
            shell("convert", top.parent, "one.pt", "--to", "torch", "--quiet", "--overwrite")
            of_states = {key: value for key, value in found(shell, "one.pt").items() if key.startswith("optimizer.state.")}
            states = {key: value for key, value in of_states.items() if not key.endswith(".step")}
            wanted = made.wanted_states()
            assert states == wanted, (about, [k for k in {*states, *wanted} if states.get(k) != wanted.get(k)])
            steps = {value[1] for key, value in of_states.items() if key.endswith(".step")}
            is_tensor = made.step is not None and not isinstance(made.step, int)
            assert steps == ({hashlib.sha256(floats([3])).hexdigest()} if is_tensor else set()), (about, steps)
            optimizer = {i["key"]: i["value"] for i in json.loads(shell("ls", "--items", "--json", top.parent))["items"]}["optimizer"]
            names = [sorted(group["params"]) for group in optimizer.get("param_groups", [])]
            assert names == ([sorted(n for n, _ in g) for g in made.model.groups] if made.has_optimizer else []), (about, names)
            assert "partition_count" not in optimizer and "fp32_flat_groups" not in optimizer, optimizer
            if isinstance(made.step, int):
                assert all(state["step"] == 3 for state in optimizer["state"].values()), optimizer
            shutil.rmtree(top.parent)
    return test


def replicas(chance):
    """What several parts have of a tensor that is not cut is compared by verify."""
    def test(shell):
        top = shell.work / "replicas"
        made = Universal(chance, top, stage=2, parts=2)
        made.is_pipeline = False
        made.model.frozen, made.model.tied = {}, {}
        made.write()
        shell("verify", top)
        file = top / "mp_rank_01_model_states.pt"
        content = torch_stub.load(file)
        content["module"]["count"] = torch_stub.tensor("LongStorage", (), struct.pack("<q", 6))
        for name, shape in made.model.parameters():
            content["module"][name] = whole([1], [1.0])
        content["param_shapes"] = made.shapes(1)
        torch_stub.write_zip(file, content)
        assert "count" in shell("verify", top, exit_status=1).decode()
        shutil.rmtree(top / "zero" / "count")
        for other in torch_stub.tensor("LongStorage", (3,), bytes(24)), whole((), [1.0]):
            content["module"]["count"] = other
            torch_stub.write_zip(file, content)
            assert "'count' has another shape or type than in the first part" in shell("ls", top, exit_status=5).decode()
    return test


def refused(chance, root):
    """What lacks, or does not fit, is named with its file."""
    def test(shell):
        def try_one(case, change, why, exit_status=4):
            folder, tag, _ = copied(shell, root, case)
            change(tag)
            said = shell("ls", folder, exit_status=exit_status).decode()
            assert why in said, (why, said)
            shutil.rmtree(folder)

        def written(name, value):
            return lambda tag: torch_stub.write_zip(tag / name, value)
        first, third = "ds-uc-zero2-fp32", "ds-uc-zero3-fp32"
        try_one(first, lambda tag: (tag / "zero/mix/fp32.pt").unlink(), "zero/mix has no fp32.pt")
        try_one(first, lambda tag: shutil.rmtree(tag / "zero/mix"), "there is no folder zero/mix, and param_shapes has the parameter")
        try_one(first, lambda tag: (tag / "zero/mix/step.pt").unlink(), "files of other states than zero/mix")
        try_one(first, lambda tag: (tag / "zero/embed.weight/step.pt").unlink(),
                "zero/embed.weight has files of other states than zero/mix")
        try_one(first, lambda tag: (tag / "zero/embed.weight/step.pt").rename(tag / "zero/embed.weight/stop.pt"),
                "zero/embed.weight has files of other states than zero/mix")
        try_one(first, written("zero/mix/fp32.pt", {"param": 3}), "zero/mix/fp32.pt': there is no tensor in it")
        try_one(first, written("zero/mix/fp32.pt", {"param": whole([7, 7, 3], [1.0] * 147)}),
                "'mix' has the shape [3,7,7] in param_shapes, and [7,7,3] here")
        try_one(first, written("zero/mix/exp_avg.pt", {"param": flat([1.0] * 146)}),
                "there are 146 elements in it, and 147 in the parameter")
        try_one(first, written("zero/mix/step.pt", [flat([1.0])]), "zero/mix/step.pt': it is neither a tensor nor a number")
        try_one(third, written("zero/mix/fp32.pt", flat([1.0] * 146)), "'mix' has the shape [3,7,7] in param_shapes, and [146] here")
        try_one(third, lambda tag: shutil.copytree(tag / "zero/mix", tag / "zero/other"), "'other' is a bare tensor, and no param_shapes")
        try_one(third, lambda tag: (tag / "zero_pp_rank_2_mp_rank_00_model_states.pt").unlink(), "of so many ranks one is missing")
        try_one(first, lambda tag: shutil.copy(tag / "mp_rank_00_model_states.pt", tag / "mp_rank_02_model_states.pt"),
                "of so many ranks one is missing")
        try_one(third, lambda tag: shutil.copy(tag / "zero_pp_rank_0_mp_rank_00_model_states.pt",
                                               tag / "zero_pp_rank_0_mp_rank_01_model_states.pt"),
                "'mix' is a bare tensor, and no param_shapes")
        made = Universal(chance, shell.work / "frozen", stage=3, parts=2)
        made.model.frozen = {"frozen": [4]}
        made.model.values["frozen", "frozen"] = [1.0] * 4
        made.write()
        assert "'frozen' is frozen, and its fragments are of one" in shell("ls", made.top, exit_status=5).decode()

        def many(tag):
            for i in range(65):
                shutil.copy(tag / "zero/mix/exp_avg.pt", tag / f"zero/mix/s{i}.pt")
        try_one(first, many, "zero/mix has more than 64 states")
    return test


def told(root):
    """Which of both a root opens: `latest` comes first, the other by its folder."""
    def test(shell):
        folder, tag, manifest = copied(shell, root, "ds-uc-zero2-bf16")
        said = shell("inspect", folder).decode()
        assert "format\tucp\n" in said and "ZeRO stage\t2\n" in said and f"ranks\t{manifest['world']['ranks']}\n" in said, said
        other, origin, _ = copied(shell, root, "ds-zero2-bf16")
        shutil.copytree(origin, folder / origin.name)
        assert "format\tucp\n" in shell("inspect", folder).decode()
        shutil.copy(other / "latest", folder / "latest")
        assert "format\tdeepspeed\n" in shell("inspect", folder).decode()
        assert "format\tucp\n" in shell("inspect", tag).decode()
        (tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"left")  # none of it
        shell("ls", tag)
        shell("convert", tag, shell.work / "h", "--to", "hf", "--quiet")
        shell("diff", "--items", "ignore", shell.work / "h", tag)
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"# seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    return small_models.run(arguments.bin, [
        ("drawn checkpoints come back", drawn(chance, arguments.count)), ("parts that differ", replicas(chance)),
        ("what is told", told(arguments.root)), ("what is refused, and why", refused(chance, arguments.root))])


if __name__ == "__main__":
    sys.exit(main())
