#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch reads files of ranks that reshard wrote: each rank's in a process of its own, as the job that goes on from them would.

usage: ranks_live.py --bin PATH [--case GLOB]        (fixtures: RESHARD_FIXTURES)
Trees of verl and accelerate are written for two other numbers of ranks, and as they lie. Every rank loads its files, gathers each DTensor
or ShardedTensor, and compares with the manifest; a model under fully_shard or FSDP1 takes the state dict. Prints TAP.
"""
import argparse
import datetime
import fnmatch
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
import torch.distributed.tensor
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardedStateDictConfig, StateDictType, fully_shard
from torch.distributed.tensor import DTensor

torch.set_num_threads(1)


def digest(t):
    t = t.detach().contiguous()
    return list(t.shape), hashlib.sha256(t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"").hexdigest()


def load(folder, what, rank):
    path = next((p for pattern in (f"{what}*_rank_{rank}.pt", f"{what}*_rank{rank}.bin") for p in folder.glob(pattern)), None)
    return path and torch.load(path, weights_only=False, map_location="cpu")


def whole(t, mesh):
    if isinstance(t, ShardedTensor):
        out = torch.empty(t.size(), dtype=t.dtype)
        t.gather(0, out if dist.get_rank() == 0 else None)
        dist.broadcast(out.view(torch.uint8), 0)
        return out
    if not isinstance(t, DTensor):
        return t
    own = mesh if t.device_mesh.mesh_dim_names == mesh.mesh_dim_names else mesh[t.device_mesh.mesh_dim_names]
    assert own.mesh.tolist() == t.device_mesh.mesh.tolist(), f"mesh {t.device_mesh} instead of {own}"
    return DTensor.from_local(t._local_tensor, own, t.placements, run_check=False, shape=t.shape, stride=t.stride()).full_tensor()


def module_of(state):
    """Modules that hold parameters, and buffers for what is plain, of these names."""
    root = nn.Module()
    for key, t in state.items():
        *path, leaf = key.split(".")
        at = root
        for part in path:
            part in at._modules or at.add_module(part, nn.Module())
            at = at._modules[part]
        zero = torch.zeros(t.size(), dtype=t.dtype)
        at.register_parameter(leaf, nn.Parameter(zero)) if isinstance(t, (DTensor, ShardedTensor)) else at.register_buffer(leaf, zero)
    return root


def go_on(state, mesh, is_fsdp1):
    if not is_fsdp1:
        model = fully_shard(module_of(state), mesh=mesh)
        model.load_state_dict(state)
        return model.state_dict()
    has_mesh = any(isinstance(t, DTensor) for t in state.values())
    model = FSDP(module_of(state), device_mesh=mesh if has_mesh else None, device_id=torch.device("cpu"), use_orig_params=True)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
        model.load_state_dict(state)
        return model.state_dict()


def one_rank(rank, world, folder, manifest, meeting):
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
    state, also = load(folder, "*model", rank), manifest["also"]
    root = next((t.device_mesh for t in state.values() if isinstance(t, DTensor)), None)
    root = getattr(root, "_root_mesh", None) or root
    mesh = init_device_mesh("cpu", tuple(root.mesh.shape) if root else (world,), mesh_dim_names=root.mesh_dim_names if root else ("fsdp",))
    assert {*state} == {*manifest["tensors"]}, "other names"
    for key, want in manifest["tensors"].items():
        assert digest(whole(state[key], mesh)) == (want["shape"], want["sha256"]), key
    optimizer = load(folder, "optim", rank)
    for key, states in also.get("optimizer_tensors", {}).items() if optimizer else ():
        held = {str(k): v for k, v in optimizer["state"].items()}[key]
        for name, want in states.items():
            assert digest(whole(held[name], mesh)) == (want["shape"], want["sha256"]), f"{key}-{name}"
    if "tp" not in (mesh.mesh_dim_names or ()):
        for key, t in go_on(load(folder, "*model", rank), mesh, "fsdp1" in manifest["case"]).items():
            want = manifest["tensors"][key]
            assert digest(whole(t, mesh)) == (want["shape"], want["sha256"]), f"{key}, loaded"
    dist.barrier()
    dist.destroy_process_group()


def read(folder, world, manifest):
    with tempfile.TemporaryDirectory() as meeting:
        children = {}
        for rank in range(world):
            child = os.fork()
            if child == 0:
                try:
                    one_rank(rank, world, folder, manifest, meeting + "/meet")
                    os._exit(0)
                except BaseException as failure:
                    pathlib.Path(meeting, str(rank)).write_text(f"rank {rank}: {type(failure).__name__}: {str(failure)[:300]}")
                    os._exit(1)
            children[child] = rank
        bad = [rank for child, rank in children.items() if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
        assert not bad, "; ".join(p.read_text() for p in sorted(pathlib.Path(meeting).glob("[0-9]*")))[:600] or f"ranks {bad} died"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", default="*")
    args = parser.parse_args()
    fixtures = pathlib.Path(os.environ["RESHARD_FIXTURES"])
    cases = [p for f in ("verl", "accelerate") for p in sorted((fixtures / f).iterdir()) if not p.name.startswith("bad-")]
    cases = [p for p in cases if fnmatch.fnmatch(p.name, args.case)]
    print(f"1..{len(cases)}")
    failed = 0
    for number, case in enumerate(cases, 1):
        manifest = json.loads((case / "manifest.json").read_text())
        ranks = manifest["world"]["ranks"]
        wanted = [n for n in (2, 3, 4) if n != ranks][:2] + ([] if case.name.endswith(("-dcp", "-full")) else [ranks])
        try:
            for world in wanted:
                with tempfile.TemporaryDirectory() as work:
                    target = pathlib.Path(work) / "out"
                    anew = ["--to", "fsdp-ranks", "--layout", f"ranks={world}"]
                    options = ["--like", case / manifest["path"]] if world == ranks else anew
                    subprocess.run([args.bin, "convert", case / manifest["path"], target, "--quiet", "--no-sync", *options], check=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    read(target, world, manifest)
            print(f"ok {number} - {case.name} on {wanted} ranks", flush=True)
        except Exception as failure:
            failed += 1
            print(f"not ok {number} - {case.name}\n# {type(failure).__name__}: {failure}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
