#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch reads files of ranks that reshard wrote: each rank's in a process of its own, as the job that goes on from them would.

usage: ranks_live.py --bin PATH [--case GLOB]        (fixtures: RESHARD_FIXTURES)
Trees of verl and accelerate are written for two other numbers of ranks, and as they lie. Every rank loads its files, gathers each DTensor
or ShardedTensor, and compares with the manifest; a model under fully_shard or FSDP1 takes the state dict, AdamW the optimizer's, and
verl's own merger the folder (flat_and_ranks.py). And what torch itself saves of a model with a tied weight has that tie here, and back in
torch. Prints TAP.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
import torch._dynamo  # optimizers import it on their first step: once here, not in each fork  # noqa: F401

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402
import flat_and_ranks  # noqa: E402
import forks  # noqa: E402


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.norm, self.head = nn.Embedding(10, 4), nn.LayerNorm(4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


def save_tied(rank, meeting, folder):
    """As a rank of verl does: the state dict of a model under fully_shard, whose head is its embedding."""
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = Tied()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    torch.save(model.state_dict(), f"{folder}/model_world_size_2_rank_{rank}.pt")


def tied_model(reshard):
    """What is wrong with the files of a model with a tied weight, read and written as one file."""
    with tempfile.TemporaryDirectory() as work:
        meeting, out = f"{work}/meeting", f"{work}/whole.pt"
        os.mkdir(f"{work}/ranks")
        is_good, said = forks.in_forks(120, *[(save_tied, rank, meeting, f"{work}/ranks") for rank in (0, 1)])
        if not is_good:
            return [said[-1000:]]
        listed = subprocess.run([reshard, "ls", "--json", f"{work}/ranks"], capture_output=True, text=True)
        ties = {t["key"]: t["tied_to"] for t in json.loads(listed.stdout or '{"tensors": []}')["tensors"] if "tied_to" in t}
        done = subprocess.run([reshard, "convert", f"{work}/ranks", out, "--to", "torch", "--quiet"], capture_output=True, text=True)
        if ties != {"head.weight": "embed.weight"} or done.returncode:
            return [f"ties {ties} {listed.stderr}{done.stderr}"]
        state = torch.load(out, weights_only=True)
        is_same = torch.equal(state["head.weight"], Tied().head.weight)
        is_one = state["head.weight"].untyped_storage().data_ptr() == state["embed.weight"].untyped_storage().data_ptr()
        return [] if is_same and is_one else [f"same values: {is_same}, one storage: {is_one}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", default="*")
    draw.add_options(parser, 0.15)
    args = parser.parse_args()
    fixtures = pathlib.Path(os.environ["RESHARD_FIXTURES"])
    cases = [p for f in ("verl", "accelerate") for p in sorted((fixtures / f).iterdir()) if not p.name.startswith("bad-")]
    cases = draw.Draw(args).of(p for p in cases if fnmatch.fnmatch(p.name, args.case))
    print(f"1..{len(cases) + 1}")
    failed = 0
    for number, case in enumerate(cases, 1):
        manifest = json.loads((case / "manifest.json").read_text())
        ranks = manifest["world"]["ranks"]
        wanted = [n for n in (2, 3, 4) if n != ranks][:2] + ([] if case.name.endswith(("-dcp", "-full")) else [ranks])
        bad = []
        for world in wanted:
            with tempfile.TemporaryDirectory() as work:
                target = pathlib.Path(work) / "out"
                anew = ["--to", "fsdp-ranks", "--layout", f"ranks={world}"]
                options = ["--like", case / manifest["path"]] if world == ranks else anew
                done = subprocess.run([args.bin, "convert", case / manifest["path"], target, "--quiet", "--no-sync", *options],
                                      capture_output=True, text=True)
                wrong, line = flat_and_ranks.ranks(target, case / "manifest.json") if done.returncode == 0 else ([done.stderr], "")
                bad += [f"{world} ranks: {text}" for text in wrong]
        failed += bool(bad)
        merger = " (verl's merger too)" if "merger" in line else ""
        print(f"{'not ' * bool(bad)}ok {number} - {case.name} on {wanted} ranks{merger}" + "".join(f"\n# {t}" for t in bad[:5]), flush=True)
    bad = tied_model(args.bin)
    failed += bool(bad)
    print(f"{'not ' * bool(bad)}ok {len(cases) + 1} - a tied weight under fully_shard" + "".join(f"\n# {t}" for t in bad), flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
