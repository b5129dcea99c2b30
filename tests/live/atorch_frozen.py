#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""atorch's folders of a model that is trained in part: frozen units, which atorch does not save, and units with frozen parameters, which
have no optimizer state. atorch saves it for two numbers of ranks and two wrappings; each is made of another, byte by byte. Prints TAP.

usage: atorch_frozen.py --bin RESHARD
Needs atorch, torch and safetensors below 0.8.
"""
import argparse
import filecmp
import multiprocessing
import pathlib
import subprocess
import sys
import tempfile
import types

import torch
import torch._dynamo  # noqa: F401  that optimizers import; once, before ranks are forked
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

sys.modules.setdefault("pynvml", types.ModuleType("pynvml"))
from atorch.utils import fsdp_save_util as util  # noqa: E402

torch.cuda.current_device = torch.cuda.synchronize = lambda *a: None  # atorch calls them for CPU too
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.a, self.b = nn.Linear(7, 5), nn.Linear(5, 7)
        {"none": nn.Module(), "all": self, "one": self.a.weight}[frozen].requires_grad_(False)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Linear(3, 7, bias=False)
        self.layers = nn.ModuleList(Block(frozen) for frozen in ("one", "all", "none"))
        self.head = nn.Linear(7, 2)
        self.emb.weight.requires_grad_(False)

    def forward(self, x):
        x = self.emb(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def save(rank, world, folder, wrap, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    torch.manual_seed(1)
    policy = ModuleWrapPolicy({Block}) if wrap == "blocks" else None
    model = FSDP(Net(), use_orig_params=True, device_id=torch.device("cpu"), auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    model(torch.randn(4, 3)).sum().backward()  # the same on each rank: gradients of two and four are equal
    optimizer.step()
    util.save_fsdp_flat_param(model, str(folder))
    util.save_fsdp_optim_param(model, optimizer, str(folder))
    with FSDP.summon_full_params(model, writeback=False):
        whole = {k.replace("_fsdp_wrapped_module.", ""): v.detach().clone() for k, v in model.named_parameters()}
    if rank == 0:
        torch.save(whole, f"{folder}.pt")
    dist.barrier()
    dist.destroy_process_group()


def saved(work, wrap, world):
    folder = work / f"{wrap}-{world}"
    with tempfile.TemporaryDirectory() as meeting:
        start = multiprocessing.get_context("fork").Process
        ranks = [start(target=save, args=(rank, world, folder, wrap, f"{meeting}/meet")) for rank in range(world)]
        [rank.start() for rank in ranks]
        [rank.join(120) for rank in ranks]
    assert not any(rank.exitcode for rank in ranks), f"atorch does not save {folder.name}: {[rank.exitcode for rank in ranks]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    binary = pathlib.Path(parser.parse_args().bin).resolve()
    # Source, wanted, files in which they differ, options. Classes of modules have no rule; what a reference has no unit for is a buffer.
    runs = [
        ("blocks-2", "blocks-4", [], ["--to", "atorch", "--layout", "ranks=4"]),
        ("blocks-4", "blocks-2", [], ["--to", "atorch", "--layout", "ranks=2"]),
        ("root-2", "root-4", [], ["--to", "atorch", "--layout", "ranks=4"]),
        ("blocks-2", "root-4", [], ["--like", "root-4", "--missing", "root-2.pt"]),
        ("root-2", "blocks-4", ["buffers"], ["--like", "blocks-4"]),
        ("root-4", "blocks-2", ["ckpt_meta"], ["--to", "atorch", "--layout", "ranks=2", "--wrap", "layers.*", "--exclude", "layers.1.*"]),
        ("root-2.dcp", "root-4", ["optim_meta"], ["--like", "root-4"]),
    ]
    print(f"1..{len(runs)}")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for wrap in "blocks", "root":
            for world in 2, 4:
                saved(work, wrap, world)
        convert = lambda *words: subprocess.run([binary, "convert", *words, "--json"], cwd=work, capture_output=True, text=True)
        convert("root-2", "root-2.dcp", "--to", "torch-dcp")
        for number, (source, wanted, without, options) in enumerate(runs, 1):
            done = convert(source, "out", "--overwrite", *options)
            names = sorted(p.name for p in (work / wanted).iterdir())
            bad = [done.stderr] if done.returncode else filecmp.cmpfiles(work / wanted, work / "out", names, shallow=False)
            bad = [name for name in sum(bad[1:], []) if name not in without] if not done.returncode else bad
            is_told = "buffers" not in without or "in no unit" in done.stdout
            bad += [] if is_told or done.returncode else ["nothing is said"]
            print(f"{'not ' * bool(bad)}ok {number} - {source} becomes {wanted}" + "".join(f"\n# {text}" for text in bad), flush=True)


if __name__ == "__main__":
    main()
