#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO checkpoints: drawn ones of every stage, number of ranks, alignment and generation, laid out here by the rules of
DeepSpeed (docs/formats/deepspeed.md), read back exactly, with the optimizer's state; what is gone, and what is refused. Prints TAP.

usage: deepspeed_test.py --bin PATH --root DIR [--count N] [--seed N]
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

STATES = "exp_avg", "exp_avg_sq"
SIZE = torch_stub.Named("torch", "Size")


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def flat(values):
    return torch_stub.tensor("FloatStorage", (len(values),), floats(values))


def size_of(shape):
    return torch_stub.Call(SIZE, (tuple(shape),))


class Model:
    """Parameters in groups of the optimizer, with a value for each of their states and for the master; frozen ones, a buffer, a tie."""

    def __init__(self, chance):
        self.groups = [[(f"g{g}.p{p}", [chance.choice([1, 2, 3, 5, 7]) for _ in range(chance.randint(1, 3))])
                        for p in range(chance.randint(1, 4))] for g in range(chance.randint(1, 3))]
        self.values = {}  # (name of a state or "master", parameter): numbers
        for what in ("master", *STATES):
            for name, shape in self.parameters():
                self.values[what, name] = [chance.uniform(-4, 4) for _ in range(math.prod(shape))]
        self.frozen = {f"frozen{i}": [chance.randint(1, 9), chance.randint(1, 3)] for i in range(chance.randint(0, 2))}
        for name, shape in self.frozen.items():
            self.values["frozen", name] = [chance.uniform(-4, 4) for _ in range(math.prod(shape))]
        self.tied = {"head": chance.choice(list(self.parameters()))[0]} if chance.random() < 0.5 else {}

    def parameters(self):
        return [pair for group in self.groups for pair in group]

    def common(self, shapes):
        """What every model file says."""
        return {"buffer_names": ["count"], "optimizer": None, "param_shapes": shapes, "frozen_param_shapes":
                collections.OrderedDict((name, size_of(shape)) for name, shape in self.frozen.items()),
                "shared_params": dict(self.tied), "lr_scheduler": {"last_epoch": 2}, "global_steps": 7, "ds_version": "0.19.8"}

    def shapes(self, groups):
        return [collections.OrderedDict((name, size_of(shape)) for name, shape in group) for group in groups]

    def wanted(self):
        """{key: (shape, digest)}"""
        tensors = {name: (shape, self.values["master", name]) for name, shape in self.parameters()}
        tensors |= {name: (shape, self.values["frozen", name]) for name, shape in self.frozen.items()}
        tensors |= {name: tensors[other] for name, other in self.tied.items()}
        found = {key: (shape, hashlib.sha256(floats(values)).hexdigest()) for key, (shape, values) in tensors.items()}
        return found | {"count": ([], hashlib.sha256(struct.pack("<q", 5)).hexdigest())}

    def wanted_states(self):
        return {f"optimizer.state.{name}.{state}": (shape, hashlib.sha256(floats(self.values[state, name])).hexdigest())
                for name, shape in self.parameters() for state in STATES}


def count():
    return torch_stub.tensor("LongStorage", (), struct.pack("<q", 5))


def member_of_enum(stage):
    return torch_stub.Call(torch_stub.Named("deepspeed.runtime.zero.config", "ZeroStageEnum"), (stage,))


def scaler():
    return torch_stub.Object(torch_stub.Named("deepspeed.runtime.fp16.loss_scaler", "LossScaler"), {"cur_scale": 1.0, "dynamic": False})


def fragment(start, numel):
    return torch_stub.Object(torch_stub.Named("deepspeed.utils.tensor_fragment", "fragment_address"), {"numel": numel, "start": start})


def write_shared_partitions(folder, model, chance, ranks):
    """ZeRO 1 and 2: each group flattened, padded and cut among the ranks. Returns how: for the tests that change it."""
    keeps_padding, is_elastic, has_gaps = chance.random() < 0.3, chance.random() < 0.3, chance.random() < 0.5
    is_elastic = is_elastic and not keeps_padding
    rank_files = [{"base_optimizer_state": [], "single_partition_of_fp32_groups": [], "group_paddings": [], "param_slice_mappings": [],
                   "partition_count": [ranks] * len(model.groups), "clip_grad": 1.0} for _ in range(ranks)]
    gaps, states = [], [{} for _ in range(ranks)]
    for number, group in enumerate(model.groups):
        gaps.append([chance.choice([0, 0, 3, 7]) if has_gaps and i + 1 < len(group) else 0 for i in range(len(group))])
        whole = {what: [v for i, (name, _) in enumerate(group) for v in model.values[what, name] + [9.0] * gaps[-1][i]]
                 for what in ("master", *STATES)}
        length = len(whole["master"])
        partition = -(-length // (2 * ranks)) * 2
        for rank, file in enumerate(rank_files):
            real = max(0, min(length - rank * partition, partition))
            cut = {what: (values + [0.0] * (ranks * partition))[rank * partition:(rank + 1) * partition] for what, values in whole.items()}
            kept = partition if keeps_padding else real
            file["single_partition_of_fp32_groups"].append(flat(cut["master"][:kept]))
            file["group_paddings"].append(partition - real)
            state = {what: flat(cut[what][:kept if is_elastic else partition]) for what in STATES}
            states[rank][number] = {"step": torch_stub.tensor("FloatStorage", (), floats([3])), **state}
            fragments, at = collections.OrderedDict(), 0
            for i, (name, shape) in enumerate(group):
                begin, end = max(at, rank * partition), min(at + math.prod(shape), (rank + 1) * partition)
                if begin < end:
                    fragments[name] = fragment(begin - rank * partition, end - begin)
                at += math.prod(shape) + gaps[-1][i]
            file["param_slice_mappings"].append(fragments)
    for rank, file in enumerate(rank_files):
        groups = [{"lr": 0.1 * (g + 1), "params": [g]} for g in range(len(model.groups))]
        file["base_optimizer_state"] = list(states[rank].values()) if is_elastic else {"state": states[rank], "param_groups": groups}
        if not keeps_padding:
            file |= {"zero_stage": member_of_enum(2), "loss_scaler": scaler()}
        if has_gaps:
            file["param_alignment_paddings"] = gaps
        torch_stub.write_zip(folder / f"{'bf16_' if keeps_padding else ''}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
                             {"optimizer_state_dict": file, "ds_config": {}, "ds_version": "0.19.8"})
    halves = {name: torch_stub.tensor("FloatStorage", shape, bytes(4 * math.prod(shape))) for name, shape in model.parameters()}
    frozen = {name: torch_stub.tensor("FloatStorage", shape, floats(model.values["frozen", name])) for name, shape in model.frozen.items()}
    tied = {name: halves[other] for name, other in model.tied.items()}
    module = collections.OrderedDict(halves | frozen | {"count": count()} | tied)
    said = model.common(model.shapes(model.groups)) | {"frozen_param_fragments": None, "dp_world_size": ranks}
    torch_stub.write_zip(folder / "mp_rank_00_model_states.pt", {"module": module, **said})
    return is_elastic


def write_shares(folder, model, chance, ranks):
    """ZeRO 3: each parameter cut among the ranks; a group of the optimizer is one sub-group or several."""
    sub_groups, owners = [], []
    for number, group in enumerate(model.groups):
        at = chance.randint(1, len(group))
        for part in (group[:at], group[at:]):
            if part:
                sub_groups.append(part)
                owners.append(number)

    def share(values, rank):
        size = -(-len(values) // ranks)
        return (values + [0.0] * (size * ranks))[rank * size:(rank + 1) * size]

    for rank in range(ranks):
        def group_of(what, group):
            return flat([v for name, _ in group for v in share(model.values[what, name], rank)])
        state = {k: {"step": torch_stub.tensor("FloatStorage", (), floats([3])), **{what: group_of(what, group) for what in STATES}}
                 for k, group in enumerate(sub_groups)}
        groups = [{"lr": 0.1 * (g + 1), "params": [k for k, owner in enumerate(owners) if owner == g]} for g in range(len(model.groups))]
        torch_stub.write_zip(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": {
            "zero_stage": member_of_enum(3), "loss_scaler": scaler(), "partition_count": ranks,
            "optimizer_state_dict": {"state": state, "param_groups": groups},
            "fp32_flat_groups": [group_of("master", group) for group in sub_groups]}, "ds_config": {}, "ds_version": "0.19.8"})
        module = {name: flat([]) for name, _ in [*model.parameters(), *model.frozen.items()]} | {"count": count()}
        module |= {name: flat([]) for name in model.tied}
        fragments = collections.OrderedDict((name, flat(share(model.values["frozen", name], rank))) for name in model.frozen)
        said = model.common(model.shapes(sub_groups)) | {"frozen_param_fragments": fragments, "dp_world_size": ranks}
        if rank:
            said["shared_params"] = {}
        module = collections.OrderedDict(module)
        torch_stub.write_zip(folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", {"module": module, **said})
    return False


def found(shell, path):
    return {key: (t["shape"], t["hash"]) for key, t in shell.tensors(path).items()}


def drawn(chance, rounds):
    def test(shell):
        for number in range(rounds):
            model, ranks = Model(chance), chance.choice([1, 2, 3, 4, 11])
            folder = shell.work / f"d{number}"
            (folder / "global_step7").mkdir(parents=True)
            (folder / "latest").write_text("global_step7")
            write = chance.choice([write_shared_partitions, write_shares])
            is_elastic = write(folder / "global_step7", model, chance, ranks)
            got, wanted = found(shell, folder), model.wanted()
            assert got == wanted, (number, write.__name__, ranks, [k for k in {*got, *wanted} if got.get(k) != wanted.get(k)])
            shell("verify", "--deep", folder)
            shell("convert", folder, "one.pt", "--to", "torch", "--quiet", "--overwrite")
            states = {key: value for key, value in found(shell, "one.pt").items()
                      if key.startswith("optimizer.state.") and not key.endswith(".step")}
            wanted = model.wanted_states()
            assert states == wanted, (number, write.__name__, ranks, [k for k in {*states, *wanted} if states.get(k) != wanted.get(k)])
            items = {item["key"]: item["value"] for item in json.loads(shell("ls", "--items", "--json", folder))["items"]}
            optimizer = items["optimizer"]
            assert items["global_steps"] == 7 and optimizer.get("loss_scaler", {}).get("cur_scale", 1.0) == 1.0
            assert optimizer.get("zero_stage") in (None, 2, 3) and "partition_count" not in optimizer, optimizer
            names = [group["params"] for group in optimizer.get("param_groups", [])]
            assert names == ([] if is_elastic else [[name for name, _ in group] for group in model.groups]), names
            shutil.rmtree(folder)
    return test


def copied(shell, root, case):
    manifest = json.loads((root / "deepspeed" / case / "manifest.json").read_text())
    folder = shell.work / case
    shutil.copytree(root / "deepspeed" / case / manifest["path"], folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder, folder / manifest["also"]["tag"], manifest


def lost_optimizer(root):
    """Without the optimizer's files the model file's own weights are left, at ZeRO 3 nothing is."""
    def test(shell):
        folder, tag, manifest = copied(shell, root, "ds-zero2-bf16")
        for path in tag.glob("*optim_states.pt"):
            path.unlink()
        module = manifest["also"]["module_tensors"]
        got = {key: (t["dtype"], t["shape"], t["hash"]) for key, t in shell.tensors(folder).items()}
        assert got == {key: (t["dtype"], t["shape"], t["sha256"]) for key, t in module.items()}
        assert "the optimizer's state is lost" in shell("inspect", folder).decode()
        folder, tag, _ = copied(shell, root, "ds-zero3-bf16")
        for path in tag.glob("*optim_states.pt"):
            path.unlink()
        assert "at ZeRO 3 each rank has one of both" in shell("ls", folder, exit_status=4).decode()
    return test


def told(root):
    """What inspect says of what DeepSpeed wrote: stage, ranks, and that one file has another order than the others."""
    def test(shell):
        for case, stage in (("ds-zero2-roundrobin", 2), ("ds-zero3-fp32", 3), ("ds-zero2-fp32", 2), ("ds-zero0-fp32", 0)):
            folder, _, manifest = copied(shell, root, case)
            said = shell("inspect", folder).decode()
            assert (f"ZeRO stage\t{stage}\n" in said) == (stage > 0) and f"ranks\t{manifest['world']['ranks']}\n" in said, said
            assert ("param_slice_mappings are of another order" in said) == (case == "ds-zero2-roundrobin"), said
            assert "tied tensors\t1\n" in said, said
    return test


def for_serving(root):
    """What Transformers keeps beside `latest` comes along, DeepSpeed's own scripts do not."""
    def test(shell):
        for case in ("ds-zero2-bf16", "ds-uc-zero3-bf16"):
            folder, tag, _ = copied(shell, root, case)
            for name in ("config.json", "tokenizer.json", "zero_to_fp32.py"):
                (folder / name).write_text(f"{{\"of\": \"{name}\"}}")
            shell("convert", folder, f"{case}.hf", "--to", "hf", "--exclude", "optimizer*", "--no-sync")
            made = {path.name for path in (shell.work / f"{case}.hf").iterdir()}
            assert {"config.json", "tokenizer.json"} < made and "zero_to_fp32.py" not in made, made
            assert json.loads((shell.work / f"{case}.hf" / "config.json").read_text()) == {"of": "config.json"}
            assert "config.json" not in {i["key"] for i in json.loads(shell("ls", "--items", "--json", tag))["items"]}
    return test


def refused(root):
    """Files of what is not read are named, also where the rest would read."""
    def test(shell):
        folder, tag, _ = copied(shell, root, "ds-zero1-fp32")
        model = tag / "mp_rank_00_model_states.pt"
        for name, why in (("mp_rank_01_model_states.pt", "one of several tensor-parallel parts"),
                          ("zero_pp_rank_0_mp_rank_01_optim_states.pt", "one of several tensor-parallel parts"),
                          ("layer_00-model_00-model_states.pt", "a layer of a pipeline"),
                          ("layer_1_expert_0_mp_rank_00_model_states.pt", "of experts"),
                          ("expp_rank_0_mp_rank_00_optim_states.pt", "of experts")):
            shutil.copy(model, tag / name)
            said = shell("ls", folder, exit_status=5).decode()
            assert f"'{name}' is {why}: such checkpoints of DeepSpeed are not read" in said, said
            (tag / name).unlink()
        shutil.copy(tag / "zero_pp_rank_1_mp_rank_00_optim_states.pt", tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")
        assert "another file is of the same rank" in shell("ls", folder, exit_status=4).decode()
        (tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
        shutil.copy(model, tag / "zero_pp_rank_0_mp_rank_00_model_states.pt")
        assert "two checkpoints lie in this folder" in shell("ls", folder, exit_status=4).decode()
        (tag / "zero_pp_rank_0_mp_rank_00_model_states.pt").unlink()
        shell("ls", folder)
        model.unlink()
        assert "there is no file *_model_states.pt" in shell("ls", folder, exit_status=4).decode()
    return test


def damaged(chance):
    """What the files of ranks say of each other must fit."""
    def change(shell, path, key, value):
        file = torch_stub.load(path)
        state = file["optimizer_state_dict"]
        state[key] = value(state[key])
        for name in "loss_scaler", "zero_stage", "param_slice_mappings":  # objects that were not made again
            state.pop(name, None)
        if key != "zero_stage":
            state["zero_stage"] = 2
        torch_stub.write_zip(path, file)

    def test(shell):
        model = Model(chance)
        model.groups, model.frozen, model.tied = [[("a", [5]), ("b", [3])]], {}, {}
        for what in ("master", *STATES):
            model.values |= {(what, "a"): [1.0] * 5, (what, "b"): [2.0] * 3}
        for key, value, why, *rank in (
                ("group_paddings", lambda v: [v[0] + 2], "by param_shapes"),
                ("group_paddings", lambda v: [v[0] + 2], "group_paddings[0] is 2, and by param_shapes 0 of the 4 elements", 1),
                ("param_alignment_paddings", lambda v: [[-1, 0]], "has no number for parameter 0"),
                ("param_alignment_paddings", lambda v: [[0]], "has no number for parameter 1"),
                ("param_alignment_paddings", lambda v: [[2**61, 0]], "has no number for parameter 0"),
                ("group_paddings", lambda v: [v[0] - 1], "by param_shapes"),
                ("partition_count", lambda v: [7], "partition_count says 7 ranks, there are *_optim_states.pt of 2"),
                ("single_partition_of_fp32_groups", lambda v: [], "an fp32 group is no tensor of one dimension"),
                ("single_partition_of_fp32_groups", lambda v: [torch_stub.tensor("FloatStorage", (2, 2), bytes(16))],
                 "no tensor of one dimension"),
                ("base_optimizer_state", lambda v: {"state": {0: {"exp_avg": flat([1.0] * 3)}}}, "and not 4 of type F32"),
                ("base_optimizer_state", lambda v: {"state": {0: {f"s{i}": 1 for i in range(65)}}}, "has more than 64 members")):
            folder = shell.work / "damaged"
            folder.mkdir()
            plain = random.Random(0)
            plain.random = lambda: 0.9 if key != "param_alignment_paddings" else 0.4  # as it is by default, with gaps where these change
            write_shared_partitions(folder, model, plain, 2)
            change(shell, folder / f"zero_pp_rank_{rank[0] if rank else 0}_mp_rank_00_optim_states.pt", key, value)
            said = shell("ls", folder, exit_status=4).decode()
            assert why in said, (key, said)
            shutil.rmtree(folder)
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"# seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    return small_models.run(arguments.bin, [
        ("drawn checkpoints come back", drawn(chance, arguments.count)), ("the optimizer's files are lost", lost_optimizer(arguments.root)),
        ("what is told", told(arguments.root)), ("files for serving", for_serving(arguments.root)),
        ("what is refused, and why", refused(arguments.root)), ("files that do not fit each other", damaged(chance))])


if __name__ == "__main__":
    raise SystemExit(main())
