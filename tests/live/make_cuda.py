#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that PyTorch writes of tensors on a GPU, with digests of what they hold; and what of them reshard writes, loaded onto it.

usage: make_cuda.py OUT [--bin RESHARD]

Needs a CUDA device, torch and safetensors. OUT gets CASE/ckpt and CASE/manifest.json for each case, in the form of tests/fixtures. With
--bin each case is converted into files of torch, DCP and safetensors; torch loads these onto the device, and every element is compared.
"""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

DTYPES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int32: "I32", torch.int64: "I64", torch.bfloat16: "BF16", torch.float16: "F16",
          torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
GPU = "cuda:0"


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def entry(tensor):
    data = whole(tensor).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "sha256": hashlib.sha256(data).hexdigest()}


def leaves(value, path=()):
    """(path, tensor) of a nested state."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, path + (str(key),))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6, bias=False)) for _ in range(2))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.head(self.norm(hidden))


def trained(is_sharded, dtype=torch.float32):
    """A model on the device after two steps of AdamW, whose step counts lie there too."""
    torch.manual_seed(3)
    model = Model().to(GPU, dtype)
    if is_sharded:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        model.head.weight = model.embed.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=True)
    for step in range(2):
        tokens = torch.arange(8, device=GPU).reshape(2, 4) + step
        model(tokens).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def training():
    model, optimizer = trained(False, torch.bfloat16)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones(1, device=GPU))
    pinned = torch.arange(5, dtype=torch.int32).pin_memory()
    halves = torch.randn(3, 8, device=GPU)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
            "rng": {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}, "pinned": pinned, "left": halves[:, :4],
            "right": halves[:, 4:], "turned": torch.randn(4, 3, device=GPU, dtype=torch.float16).t(),
            "fp8": torch.randn(5, 7, device=GPU).to(torch.float8_e4m3fn), "flags": torch.tensor([True, False], device=GPU), "step": 2}


def sharded():
    model, optimizer = trained(True)
    state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": state, "optimizer": optimizer_state, "step": 2}


def save_zip(folder):
    state = training()
    torch.save(state, folder / "ckpt.pt")
    return "torch-file", "ckpt.pt", state


def save_legacy(folder):
    state = training()
    torch.save(state, folder / "ckpt.pt", _use_new_zipfile_serialization=False)
    return "torch-file", "ckpt.pt", state


def save_dcp(folder):
    state = sharded()
    dcp.save(state, checkpoint_id=str(folder / "ckpt"))
    return "torch-dcp", "ckpt", state


def save_async(folder):
    """Staged in pinned memory, written by a thread while the weights go on."""
    state = sharded()
    kept = {path: whole(tensor).clone() for path, tensor in leaves(state)}
    writer = dcp.FileSystemWriter(str(folder / "ckpt"), cache_staged_state_dict=True)
    saving = dcp.async_save(state, storage_writer=writer)
    saving.result()
    for _, tensor in leaves(state["model"]):
        tensor.detach().mul_(2)
    return "torch-dcp", "ckpt", {**{".".join(path): tensor for path, tensor in kept.items()}, "step": state["step"]}


def save_rank(folder):
    """One rank's own file of DTensors on a mesh of GPUs, as trainers leave it."""
    model, _ = trained(True)
    state = model.state_dict()
    (folder / "ckpt").mkdir()
    torch.save(state, folder / "ckpt" / "model_world_size_1_rank_0.pt")
    return "torch-file", "ckpt", state


def save_safetensors(folder):
    state = {key: tensor.contiguous() for key, tensor in trained(False, torch.float16)[0].state_dict().items() if key != "head.weight"}
    safetensors.torch.save_file(state, str(folder / "ckpt.safetensors"))
    return "safetensors", "ckpt.safetensors", state


CASES = {"torch-file-cuda": save_zip, "torch-file-cuda-legacy": save_legacy, "dcp-cuda-fsdp2": save_dcp, "dcp-cuda-async": save_async,
         "torch-file-cuda-dtensor": save_rank, "safetensors-cuda": save_safetensors}


def digests(loaded):
    return {".".join(path): entry(tensor) for path, tensor in leaves(loaded)}


def load_dcp(path):
    metadata = dcp.FileSystemReader(str(path)).read_metadata().state_dict_metadata
    state = {key: torch.empty(meta.size, dtype=meta.properties.dtype, device=GPU) for key, meta in metadata.items()
             if hasattr(meta, "size")}
    dcp.load(state, checkpoint_id=str(path))
    return state


def check_loads(binary, path, tensors):
    """What reshard makes of it comes onto the device as it was."""
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for to, load in (("torch", lambda p: torch.load(p, map_location=GPU, weights_only=True)), ("torch-dcp", load_dcp),
                         ("safetensors", lambda p: safetensors.torch.load_file(str(p), device=GPU))):
            out = work / f"{to}.out"
            done = subprocess.run([binary, "convert", path, out, "--to", to, "--rules", "none", "--verify", "--quiet"],
                                  capture_output=True, text=True)
            if done.returncode:
                yield f"to {to}: exit {done.returncode}: {done.stderr.strip()[:300]}"
                continue
            loaded = load(out)
            away = [".".join(p) for p, t in leaves(loaded) if t.device != torch.device(GPU)]
            found = digests(loaded)
            wrong = sorted(key for key in tensors if found.get(key, {}).get("sha256") != tensors[key]["sha256"])
            yield f"to {to}: {len(tensors)} tensors, {len(wrong)} wrong {wrong[:5]}, {len(away)} not on the device"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--bin")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK="0", WORLD_SIZE="1")
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    for name, save in CASES.items():
        folder = args.out / name
        folder.mkdir(parents=True)
        family, path, state = save(folder)
        tensors = digests(state)
        manifest = {"case": name, "family": family, "producer": {"torch": torch.__version__}, "command": "tests/live/make_cuda.py",
                    "path": path, "world": {"ranks": 1}, "notes": [f"tensors on {torch.cuda.get_device_name(0)}"], "tensors": tensors,
                    "items": {"step": {"kind": "int", "value": 2}} if "step" in state else {}, "expect": {"error": None}, "also": {}}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        print(f"{name}: {len(tensors)} tensors", flush=True)
        for line in check_loads(args.bin, folder / path, tensors) if args.bin else ():
            print(f"  {line}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
