#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host program may have called setlocale(LC_ALL, ""), and its numbers may have decimal commas: nothing that is read or written changes.
Prints TAP.

The library's own texts and files must be the same after setlocale; the command itself never calls it, so that its environment changes
nothing.

usage: locale_test.py --bin RESHARD --spy LIBRARY
localedef makes the locale in a folder of the test; where it or the sources of locales are missing the test is skipped.
"""
import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

NAME = "de_DE.UTF-8"


def commands(work):
    """What reads, prints or parses numbers with a fraction."""
    torch_stub.write_zip(work / "m.pt", {"w": torch_stub.tensor("FloatStorage", [3], struct.pack("<3f", 0.5, -1.25, 3e-9)), "lr": 0.0025,
                                         "betas": [0.9, 0.999]})
    torch_stub.write_zip(work / "n.pt", {"w": torch_stub.tensor("FloatStorage", [3], struct.pack("<3f", 0.5, -1.0, 3e-9)), "lr": 0.0025,
                                         "betas": [0.9, 0.999]})
    array = work / "z.zarr/w"
    array.mkdir(parents=True)
    (work / "z.zarr/.zgroup").write_text('{"zarr_format": 2}')
    (array / ".zattrs").write_text('{"rate": 0.125, "small": 1.5e-7}')
    (array / ".zarray").write_text(json.dumps({"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<f4", "order": "C",
                                               "fill_value": 0.75, "filters": None, "compressor": None}))
    (work / "s.json").write_text(json.dumps({"tensors": {"a": {"dtype": "F32", "shape": [2], "data": [1.5, 2.25]}}}))
    (work / "m.map").write_text("a -> b, dtype='float16'\n")
    return [["inspect", "m.pt"], ["ls", "m.pt", "--items"], ["ls", "m.pt", "--items", "--json"], ["cat", "m.pt", "w"],
            ["cat", "m.pt", "lr"], ["cat", "m.pt", "betas"], ["cat", "z.zarr", "w"], ["ls", "z.zarr", "--items", "--json"],
            ["diff", "m.pt", "n.pt", "--tolerance", "0.25"], ["diff", "m.pt", "n.pt", "--tolerance", "0.125"], ["diff", "m.pt", "n.pt"],
            ["map", "eval", "m.map", "--source", "s.json", "--json"], ["plan", "m.pt", "--to", "hf"],
            ["convert", "m.pt", "dcp", "--to", "torch-dcp", "--quiet"], ["cat", "dcp", "lr"],
            ["convert", "z.zarr", "z2.zarr", "--to", "zarr", "--quiet"], ["cat", "z2.zarr", "w"]]


def run_all(binary, work, environment):
    work.mkdir()
    outputs = []
    for command in commands(work):
        done = subprocess.run([binary, *command], cwd=work, capture_output=True, env={**os.environ, **environment}, timeout=60)
        printed = done.stdout.decode()
        if command[0] == "diff":  # its verdict is the command's own text
            printed = "".join(line for line in printed.splitlines(True) if not line.startswith("different: "))
        outputs.append((command, done.returncode, printed, done.stderr.decode()))
    files = {str(path.relative_to(work)): path.read_bytes() for path in sorted(work.rglob("*")) if path.is_file()
             and path.relative_to(work).parts[0] in ("dcp", "z2.zarr")}
    return outputs, files


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--spy", required=True, type=pathlib.Path)
    args = parser.parse_args()
    binary, spy = str(args.bin.resolve()), str(args.spy.resolve())
    print("1..1")
    with tempfile.TemporaryDirectory(prefix="reshard-locale-") as folder:
        top = pathlib.Path(folder)
        made = shutil.which("localedef") and subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(top / NAME)],
                                                            capture_output=True)
        if not (top / NAME).exists():
            print(f"ok 1 - decimal commas # SKIP localedef cannot make {NAME}: {made.stderr.decode()[:80] if made else 'not installed'}")
            return 0
        plain, plain_files = run_all(binary, top / "plain", {"LC_ALL": "C"})
        spied, spied_files = run_all(binary, top / "comma", {"LC_ALL": NAME, "LOCPATH": str(top), "SPY_LOCALE": NAME, "LD_PRELOAD": spy,
                                                             "SPY_OUTPUT": str(top / "comma/spy.txt")})
        # Sizes, elements and --tolerance are the command's.
        ours = [i for i, row in enumerate(plain) if row[0][0] not in ("plan", "inspect") and "--tolerance" not in row[0]
                and row[0][2:] != ["w"]]
        environment, _ = run_all(binary, top / "environment", {"LC_ALL": NAME, "LANG": NAME, "LOCPATH": str(top)})
        problems = [f"environment: {a} and {b}" for a, b in zip(plain, environment) if a != b]
        problems += [f"{plain[i]} and {spied[i]}" for i in ours
                     if plain[i] != spied[i]] + [f"{name} differs" for name in plain_files if plain_files[name] != spied_files.get(name)]
        if "commas 1" not in (top / "comma/spy.txt").read_text():
            problems.append("the locale was not set")
        if not any("0.0025" in row[2] for row in plain):
            problems.append("no number was printed")
        print(f"{'not ok' if problems else 'ok'} 1 - decimal commas" + "".join(f"\n# {line[:400]}" for line in problems[:5]))
        return bool(problems)


sys.exit(main())
