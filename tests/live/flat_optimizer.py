#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP1's own pieces of an optimizer: what reshard cuts for other numbers of ranks and wrappings is what torch cuts. Prints TAP.

usage: flat_optimizer.py --bin PATH [--case GLOB]
torch wraps a model, trains a step, and takes a state that was made up for each parameter by FSDP.optim_state_dict_to_load; each rank saves
its optimizer.state_dict() as verl does. The same state is saved by several numbers of ranks, wrappings and kinds of FSDP1, and each becomes
the others byte by byte.
"""
import argparse
import datetime
import fnmatch
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
import zlib

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402

warnings.filterwarnings("ignore")
import torch
import torch._dynamo  # optimizers import it on their first step: once here, not in each fork
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel as FSDP, MixedPrecision,
                                    ShardedStateDictConfig, ShardingStrategy, StateDictType)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.o = nn.Linear(d, d + 2), nn.Linear(d + 2, d, bias=False)

    def forward(self, x):
        return self.o(self.q(x))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate = nn.Parameter(torch.ones(1))
        self.attn, self.norm = Attention(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 11), nn.Linear(11, d)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.gate * self.down(self.up(x))


class Net(nn.Module):
    def __init__(self, frozen, tied, rows, d=7):
        super().__init__()
        self.cube = nn.Parameter(torch.zeros(3, d, 5))
        self.embed = nn.Embedding(rows, d)
        self.layers = nn.ModuleList(Block(d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, rows, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            self.still = nn.Parameter(torch.ones(17, 3), requires_grad=False)
            self.layers[1].up.bias.requires_grad_(False)

    def forward(self, x):
        h = self.embed(x) + self.cube.sum()
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


WRAPS = {"blocks": (Block,), "hybrid": (Block,), "inner": (Block, Attention), "root": (), "leaves": (Attention, nn.Linear)}
CASES = {  # kind: arguments of every save, and the saves: ranks, wrapping and what else
    "orig": (dict(orig=True), [(2, "blocks"), (3, "blocks"), (5, "blocks"), (4, "inner"), (3, "root")]),
    "orig-mixed": (dict(orig=True, mixed=True), [(2, "blocks"), (4, "blocks"), (3, "inner")]),
    "orig-frozen": (dict(orig=True, frozen=True), [(2, "blocks"), (3, "blocks"), (4, "inner")]),
    "orig-tied": (dict(orig=True, tied=True), [(2, "blocks"), (3, "blocks")]),
    "orig-mesh": (dict(orig=True, mesh=True), [(2, "blocks"), (4, "blocks")]),
    "units": (dict(orig=False), [(2, "blocks"), (3, "blocks"), (5, "blocks"), (4, "inner"), (3, "root")]),
    "units-tied": (dict(orig=False, tied=True), [(2, "blocks"), (3, "blocks")]),
    "units-mesh": (dict(orig=False, mesh=True), [(2, "blocks"), (3, "inner")]),
    # Half of the embedding is on each rank, whether it is wrapped or not.
    "orig-hybrid": (dict(orig=True, mesh=True), [(2, "blocks"), (4, "hybrid"), (3, "blocks")]),
    "units-hybrid": (dict(orig=False, mesh=True), [(2, "blocks"), (4, "hybrid"), (3, "blocks")]),
    "open": (dict(orig=True, rows=13), [(2, "blocks"), (3, "blocks")]),
    "one": (dict(orig=True), [(2, "blocks"), (1, "blocks")]),
    "one-units": (dict(orig=False), [(3, "blocks"), (1, "blocks")]),
}


def made_up(name, like):
    made = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(like.shape, generator=made)


def mesh_of(world, is_hybrid):
    """Two replicas, or all ranks in a line."""
    shape, names = ((2, world // 2), ("ddp", "fsdp")) if is_hybrid else ((world,), ("fsdp",))
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def save(rank, world, folder, meeting, wrap, orig, mixed=False, frozen=False, tied=False, mesh=False, rows=17):
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
    torch.manual_seed(1)
    plain = Net(frozen, tied, rows)
    whole = {name: p.detach().clone() for name, p in plain.named_parameters() if p.requires_grad}
    policy = ModuleWrapPolicy(set(WRAPS[wrap])) if WRAPS[wrap] else None
    model = FSDP(plain, auto_wrap_policy=policy, use_orig_params=orig, device_id=torch.device("cpu"),
                 device_mesh=mesh_of(world, wrap == "hybrid") if mesh else None,
                 sharding_strategy=ShardingStrategy.HYBRID_SHARD if wrap == "hybrid" else None,
                 mixed_precision=MixedPrecision(param_dtype=torch.bfloat16) if mixed else None)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.5, foreach=False)
    model(torch.arange(13).reshape(1, 13) % 13).float().square().mean().backward()
    optimizer.step()
    named = {n: {"step": torch.tensor(7.0), **{s: made_up(n + s, p) for s in ("exp_avg", "exp_avg_sq")}} for n, p in whole.items()}
    group = {k: v for k, v in optimizer.state_dict()["param_groups"][0].items() if k != "params"}
    full = {"state": named, "param_groups": [{**group, "params": list(whole)}]}
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig()):
        pieces = FSDP.optim_state_dict_to_load(model, optimizer, full)["state"]
    state = optimizer.state_dict()
    for number, states in state["state"].items():
        for name in states:
            value = pieces[number][name]
            assert value.shape == states[name].shape, (number, name, value.shape, states[name].shape)
            states[name] = value.clone()
    torch.save(state, folder / f"optim_world_size_{world}_rank_{rank}.pt")
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
        torch.save(model.state_dict(), folder / f"model_world_size_{world}_rank_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def save_all(folder, world, wrap, options):
    folder.mkdir()
    with tempfile.TemporaryDirectory() as meeting:
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                try:
                    save(rank, world, folder, meeting + "/meet", wrap, **options)
                    os._exit(0)
                except BaseException as failure:
                    print(f"# rank {rank}: {type(failure).__name__}: {str(failure)[:400]}", flush=True)
                    os._exit(1)
            children.append(child)
        assert all([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children]), "torch did not save"


def raw(t):
    return t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def must_be_same(made, real, world):
    for rank in range(world):
        a, b = (torch.load(p / f"optim_world_size_{world}_rank_{rank}.pt", weights_only=False) for p in (made, real))
        assert a["param_groups"] == b["param_groups"], f"rank {rank}: groups {a['param_groups']}"
        assert list(a["state"]) == list(b["state"]), f"rank {rank}: numbers {list(a['state'])} instead of {list(b['state'])}"
        for number, states in b["state"].items():
            assert list(a["state"][number]) == list(states), f"rank {rank}: {number}: {list(a['state'][number])}"
            for name, want in states.items():
                got = a["state"][number][name]
                assert (got.dtype, got.shape) == (want.dtype, want.shape), f"rank {rank}: {number}.{name}: {got.dtype}{list(got.shape)}"
                assert raw(got) == raw(want), f"rank {rank}: {number}.{name} has other values"


def judge(binary, work, options, saves):
    count = 0
    for world, wrap in saves:
        save_all(work / f"{world}-{wrap}", world, wrap, options)
    for world, wrap in saves:
        if world == 1:
            continue
        for to, other in saves:
            target = work / f"{world}-{wrap}-{to}-{other}"
            rule = {"blocks": "layers.*", "hybrid": "layers.*", "inner": "layers.*|layers.*.attn", "root": "root"}[other]
            ways = [["--wrap", rule, "--layout", f"ranks={to}"]] if other != "hybrid" else []  # a layout has no word for replicas
            ways += [["--layout", f"ranks={to}"]] if wrap == other and ("rows" not in options or world != 2 or to == 2) else []
            ways += [["--like", str(work / f"{to}-{other}")]] if to > 1 else []
            for way in ways:
                command = [binary, "convert", str(work / f"{world}-{wrap}"), str(target), "--to", "fsdp-ranks", *way]
                command += ["--quiet", "--no-sync", "--overwrite", "--verify"]
                done = subprocess.run(command, capture_output=True, text=True)
                assert done.returncode == 0, f"{' '.join(command[2:])}: {done.stderr}"
                try:
                    must_be_same(target, work / f"{to}-{other}", to)
                except AssertionError as failure:
                    raise AssertionError(f"{world} {wrap} -> {to} {other} by {way[0]}: {failure}") from None
                count += 1
    return count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", default="*")
    draw.add_options(parser, 0.3)
    args = parser.parse_args()
    cases = draw.Draw(args).of(case for case in CASES if fnmatch.fnmatch(case, args.case))
    print(f"1..{len(cases)}")
    failed = 0
    for number, case in enumerate(cases, 1):
        try:
            with tempfile.TemporaryDirectory() as work:
                count = judge(args.bin, pathlib.Path(work), *CASES[case])
            print(f"ok {number} - {case}: {count} conversions", flush=True)
        except Exception as failure:
            failed += 1
            print(f"not ok {number} - {case}\n# {type(failure).__name__}: {str(failure)[:1500]}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
