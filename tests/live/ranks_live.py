#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch reads files of ranks that reshard wrote: each rank's in a process of its own, as the job that goes on from them would.

usage: ranks_live.py --bin PATH [--case GLOB]        (fixtures: RESHARD_FIXTURES)
Trees of verl and accelerate are written for two other numbers of ranks, and as they lie. Every rank loads its files, gathers each DTensor
or ShardedTensor, and compares with the manifest; a model under fully_shard or FSDP1 takes the state dict, AdamW the optimizer's, and
verl's own merger the folder (flat_and_ranks.py). Prints TAP.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch._dynamo  # optimizers import it on their first step: once here, not in each fork  # noqa: F401

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402
import flat_and_ranks  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", default="*")
    draw.add_options(parser, 0.3)
    args = parser.parse_args()
    fixtures = pathlib.Path(os.environ["RESHARD_FIXTURES"])
    cases = [p for f in ("verl", "accelerate") for p in sorted((fixtures / f).iterdir()) if not p.name.startswith("bad-")]
    cases = draw.Draw(args).of(p for p in cases if fnmatch.fnmatch(p.name, args.case))
    print(f"1..{len(cases)}")
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
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
