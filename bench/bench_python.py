#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package for Python beside its peers: medians of interleaved rounds, and ratios, of reading and saving one state dict.

usage: bench_python.py --package build/python [--megabytes 1024] [--rounds 7] [--folder /dev/shm] [--device cuda]
Needs torch and safetensors. Fresh memory is touched, a page at a time: safetensors maps files, and reads them when they are looked at.
"""
import pathlib
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from beside import medians_of, options_of, parser, print_medians, remove
from safetensors.torch import load_file, save_file


def touched(tensors):
    for tensor in tensors.values():
        if tensor.is_cuda:
            break
        tensor.view(-1)[:: 4096 // tensor.itemsize].sum()
    return tensors


def jobs(work, state, into, device):
    """{name: (call, its peer)}: in one round all run, one after the other."""
    one, folder = work / "one.safetensors", work / "dcp"
    save_file(state, one)
    dcp.save(state, checkpoint_id=folder)

    def load_into():
        with reshard.open(one) as checkpoint:
            checkpoint.load_into(into)

    there = None if device == "cpu" else device
    host = {key: tensor.cpu() for key, tensor in state.items()}

    def copy():
        for key, tensor in into.items():
            tensor.copy_(host[key])
    return {
        "memcpy": (copy, None),  # from the host to where the tensors are
        "safetensors load_file": (lambda: touched(load_file(one, device=device)), "memcpy"),
        "reshard.torch.read": (lambda: touched(reshard.torch.read(one, device=there)), "safetensors load_file"),
        "load_into, memory that is there": (load_into, "memcpy"),
        "torch dcp.load": (lambda: dcp.load(into, checkpoint_id=folder), "memcpy"),
        "reshard.torch.load of the same": (lambda: reshard.torch.load(folder, into), "torch dcp.load"),
        "torch dcp.save": (lambda: dcp.save(state, checkpoint_id=work / "theirs"), "memcpy"),
        "reshard.torch.save, synced": (lambda: reshard.torch.save(work / "ours", state, to="torch-dcp"), "torch dcp.save"),
        "reshard.torch.save, sync=False": (lambda: reshard.torch.save(work / "ours", state, to="torch-dcp", sync=False), "torch dcp.save"),
    }


def main():
    global reshard
    options = parser(megabytes=1024, rounds=7)
    options.add_argument("--device", default="cpu")
    args = options_of(options)
    import reshard
    import reshard.torch
    warnings.simplefilter("ignore")
    state = {f"layers.{i}.weight": torch.randn(1024, 1024, device=args.device) for i in range(args.megabytes // 4)}
    into = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    work = pathlib.Path(tempfile.mkdtemp(dir=args.folder))
    try:
        tried = jobs(work, state, into, args.device)
        medians = medians_of({name: call for name, (call, _) in tried.items()}, args.rounds,
                             lambda name: [remove(work / made) for made in ("theirs", "ours")],
                             torch.cuda.synchronize if args.device != "cpu" else lambda: None)
    finally:
        remove(work)
    print(f"{args.megabytes} MiB in {len(state)} tensors, {args.folder}, {args.device}, medians of {args.rounds} rounds")
    print_medians(medians, {name: peer for name, (_, peer) in tried.items()}, args.megabytes)


if __name__ == "__main__":
    main()
