#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Floats of four bits: safetensors writes torch's float4_e2m1fn_x2 as F4, and torch loads what reshard makes of that, from torch.save's
files and from DCP's folders on other numbers of ranks, bit by bit. Prints TAP; skips without torch that has the type, and safetensors.

usage: f4_test.py --bin PATH [--seed N]
"""
import argparse
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save_file
    F4 = torch.float4_e2m1fn_x2
except (ImportError, AttributeError) as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(0)


def case(binary, folder, chance, ranks):
    def convert(source, target, *words):
        subprocess.run([binary, "convert", folder / source, folder / target, "--verify", "--quiet", *words], check=True)

    shape = [chance.randint(1, 9) for _ in range(chance.randint(1, 3))]
    bits = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(chance.randrange(1 << 30)))
    save_file({"w": bits.view(F4)}, folder / "a.safetensors")
    convert("a.safetensors", "a.pt", "--to", "torch")
    loaded = torch.load(folder / "a.pt", weights_only=True)["w"]
    assert loaded.dtype == F4 and torch.equal(loaded.view(torch.uint8), bits), (shape, loaded)
    convert("a.pt", "dcp", "--to", "torch-dcp", "--layout", f"ranks={ranks}")
    convert("a.safetensors", "dcp2", "--to", "torch-dcp", "--layout", f"ranks={ranks}")
    for name in ("dcp", "dcp2"):
        state = {"w": torch.zeros(shape, dtype=torch.uint8).view(F4)}
        dcp.load(state, checkpoint_id=folder / name, no_dist=True)
        assert torch.equal(state["w"].view(torch.uint8), bits), (name, shape)
        convert(name, f"{name}.safetensors", "--to", "safetensors")
        back = load_file(folder / f"{name}.safetensors")["w"]
        assert back.dtype == F4 and torch.equal(back.view(torch.uint8), bits), (name, shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"1..4\n# torch {torch.__version__}, seed {args.seed}")
    failed = False
    for number in range(1, 5):
        with tempfile.TemporaryDirectory() as folder:
            try:
                case(args.bin, pathlib.Path(folder), random.Random(args.seed * 100 + number), number)
                print(f"ok {number}", flush=True)
            except (AssertionError, subprocess.CalledProcessError) as wrong:
                failed = True
                print(f"not ok {number} - {str(wrong)[:300]}", flush=True)
    sys.exit(failed)


main()
