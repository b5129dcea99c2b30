#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flat parameters that reshard cut for other numbers of ranks and wrappings: atorch itself loads every tensor and state. Prints TAP.

usage: atorch_test.py --bin RESHARD --root DIR
Needs atorch 0.2.5, torch and safetensors below 0.8. DIR/atorch-fsdp has what atorch wrote, with the digests of all tensors.
"""
import argparse
import hashlib
import json
import logging
import pathlib
import subprocess
import sys
import tempfile
import types

import torch

torch.cuda.current_device = torch.cuda.synchronize = lambda *a: None  # atorch calls them for the CPU too
sys.modules.setdefault("pynvml", types.ModuleType("pynvml"))
logging.disable(logging.WARNING)
from atorch.utils import fsdp_save_util as util  # noqa: E402

MEMORY_ORDER = {"atorch-channels-last"}  # atorch loads parameters that are not row-major scrambled
OTHERS = {"atorch-moe", "atorch-names", "atorch-async", "atorch-noorig-w2", "atorch-noorig-w4", "atorch-noorig-bf16"}  # no ShardOptim


def digest(tensor):
    tensor = tensor.detach().contiguous()
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"").hexdigest()


def differs(tensor, wanted):
    return list(tensor.shape) != wanted["shape"] or digest(tensor) != wanted["sha256"]


def loaded(folder, case):
    """What atorch's loaders give that is not what the manifest says."""
    tensors, bad = case["tensors"], []
    loader = util.ShardTensorUtil(str(folder), 0, 1, device="cpu")
    names = [name for name in [*loader.buffers.keys(), *loader.param_meta] if name in tensors]
    bad += [name for name in names if differs(loader.load_tensor_by_name(name), tensors[name])]
    if not (folder / "optim_meta").exists() or case["case"] in OTHERS:
        return len(names), bad
    states, count = util.ShardOptim(str(folder)), 0
    for key, wanted in tensors.items():
        name, _, state = key.rpartition("-")
        if name not in loader.param_meta:
            continue
        found = states.state_dict["state"][name]
        numel = loader.param_meta[name][0]["param_numels"]
        tensor = (found.load_tensor_by_param_and_state_name(state, 0, numel) if found.check_1d(state)
                  else found.load_tensor_by_param_and_state_name(state))
        count += 1
        bad += [key] if differs(tensor.reshape(wanted["shape"]), wanted) else []
    return len(names) + count, bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    manifests = sorted(arguments.root.glob("atorch-fsdp/atorch-*/manifest.json"))
    cases = [json.loads(path.read_text()) | {"folder": path.parent} for path in manifests]
    cases = [case for case in cases if case["case"] not in MEMORY_ORDER]
    runs = [(case, [f"ranks={ranks}", *more]) for case in cases for ranks, *more in ((2,), (5,), (3, "--wrap", "root"))
            if not (case["case"] == "atorch-moe" and (ranks != 2 or more)) and not (case["case"] == "atorch-dtypes" and more)]
    print(f"1..{len(runs)}")
    for number, (case, layout) in enumerate(runs, 1):
        with tempfile.TemporaryDirectory() as work:
            target = pathlib.Path(work, "flat")
            done = subprocess.run([arguments.bin, "convert", str(case["folder"] / case["path"]), str(target), "--to", "atorch", "--quiet",
                                   "--layout", *layout], capture_output=True, text=True)
            try:
                count, bad = loaded(target, case) if done.returncode == 0 else (0, [done.stderr])
            except Exception as problem:  # of whatever kind atorch raises
                count, bad = 0, [f"{type(problem).__name__}: {problem}"]
        print(f"{'not ok' if bad or not count else 'ok'} {number} - {case['case']} {' '.join(layout)}: {count} tensors"
              + "".join(f"\n# {text}" for text in bad[:5]), flush=True)


main()
