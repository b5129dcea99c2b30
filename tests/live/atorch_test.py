#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flat parameters that reshard cut for other numbers of ranks and wrappings: atorch itself loads every tensor and state. Prints TAP.

usage: atorch_test.py --bin RESHARD --root DIR [--case GLOB]
Needs atorch, torch and safetensors below 0.8. DIR/atorch-fsdp has what atorch wrote, with the digests of all tensors. flat_and_ranks.py
says what is compared; each folder is read in a process of its own, in which torch's groups begin anew.
"""
import argparse
import fnmatch
import json
import pathlib
import subprocess
import sys
import tempfile

# Once here, not in each fork: what optimizers import on their first step, and what atorch imports. atorch itself is of two versions.
import fsspec, grpc, safetensors.torch, setuptools, torch._dynamo  # noqa: E401, F401

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402
import flat_and_ranks  # noqa: E402


def runs_of(case):
    """Options of each conversion. Experts keep their number of ranks, and a unit of one type takes no parameters of another."""
    yield ["--like", case["folder"] / case["path"]]
    if case["case"] == "atorch-moe":
        return
    yield from (["--to", "atorch", "--layout", f"ranks={ranks}"] for ranks in (2, 5) if ranks != case["world"]["ranks"])
    if case["case"] != "atorch-dtypes":
        yield ["--to", "atorch", "--layout", "ranks=3", "--wrap", "root"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=pathlib.Path)
    parser.add_argument("--case", default="*")
    draw.add_options(parser, 0.15)
    arguments = parser.parse_args()
    manifests = sorted(arguments.root.glob("atorch-fsdp/atorch-*/manifest.json"))
    manifests = [path for path in manifests if fnmatch.fnmatch(path.parent.name, arguments.case)]
    cases = [json.loads(path.read_text()) | {"folder": path.parent} for path in manifests]
    runs = draw.Draw(arguments).of((case, [str(word) for word in options]) for case in cases for options in runs_of(case))
    print(f"1..{len(runs)}")
    for number, (case, options) in enumerate(runs, 1):
        with tempfile.TemporaryDirectory() as work:
            target = pathlib.Path(work, "flat")
            done = subprocess.run([arguments.bin, "convert", str(case["folder"] / case["path"]), str(target), "--quiet", *options],
                                  capture_output=True, text=True)
            manifest = case["folder"] / "manifest.json"
            bad, line = flat_and_ranks.flat_of_both(target, manifest, "--wrap" in options) if done.returncode == 0 else ([done.stderr], "")
        name = "as it was" if options[0] == "--like" else " ".join(options[3:])
        complaints = "".join(f"\n# {text}" for text in bad[:5])
        print(f"{'not ok' if bad else 'ok'} {number} - {case['case']}, {name}: {line}{complaints}", flush=True)


main()
