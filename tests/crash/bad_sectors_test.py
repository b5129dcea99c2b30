#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""salvage on a disk that fails: what one file does not give any more is lost, with the disk's reason, and all else is written. Prints TAP.

usage: bad_sectors_test.py --bin PATH --module PATH --fixtures DIR
One read of a file fails, or it and every later one (interpose.c). Of tensors that share bytes all are lost.
"""
import argparse
import errno
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Checkpoint, the file that fails, the first of its reads to fail (those before it are of headers), how, and how many tensors lie there.
CASES = (
    ("torch-dcp/dcp-fsdp2-4/ckpt", "__1_0.distcp", 5, "fail-on", 32),
    ("paddle/paddle-fc-flat/ckpt", "1_0.distcp", 5, "fail-on", 6),
    ("safetensors/safetensors-hf-sharded/ckpt", "model-00001-of-00003.safetensors", 3, "fail-on", 4),
    ("zarr/zarr3-layout/ckpt", "one-by-one/c/0/0", 1, "fail-on", 1),
    ("torch-file/torch-file-training/ckpt.pt", "ckpt.pt", 25, "fail", 1),
    ("torch-file/torch-file-tied-legacy/ckpt.pt", "ckpt.pt", 7, "fail", 1),
    ("torch-file/torch-file-tied-legacy/ckpt.pt", "ckpt.pt", 8, "fail", 3),
)
FILE_CASE = "safetensors/safetensors-hf-sharded/ckpt"
REASON = os.strerror(errno.EIO)


def run(args, *words, **variables):
    done = subprocess.run([args.bin, *map(str, words)], capture_output=True, text=True, timeout=120, env=os.environ | variables)
    return done.returncode, done.stdout, done.stderr


def salvage(args, source, target, to, name, first, how):
    shutil.rmtree(target, ignore_errors=True)
    return run(args, "salvage", source, target, "--to", to, "--json", "--threads", "1", LD_PRELOAD=str(args.module), SHIM_CALLS="pread",
               SHIM_ACT=f"{how}:{errno.EIO}", SHIM_NTH=str(first), SHIM_PATH=name)


def check_file(args, work, source):
    """A file beside the tensors is lost by itself."""
    damaged, target = work / "damaged", work / "left"
    shutil.copytree(source, damaged, copy_function=shutil.copyfile)
    damaged.chmod(0o755)
    (damaged / "tokenizer.json").write_text('{"model": {}}')
    status, text, message = salvage(args, damaged, target, "hf", "tokenizer.json", 1, "fail-on")
    if status != 1:
        return f"exit {status}: {message[-300:]}"
    lost = [finding["key"] for finding in json.loads(text)["findings"] if finding["kind"].startswith("lost")]
    if lost != ["tokenizer.json"] or (target / "tokenizer.json").exists():
        return f"{lost} are lost"
    return "" if run(args, "diff", source, target, "--items", "ignore")[0] == 0 else "what is left differs"


def check(args, work, source, name, first, how, count):
    target = work / "left"

    def digests(path):
        return {tensor["key"]: tensor["hash"] for tensor in json.loads(run(args, "hash", "--json", path)[1])["tensors"]}

    status, text, message = salvage(args, source, target, "torch-dcp", name, first, how)
    if status != 1:
        return f"exit {status}: {message[-300:]}"
    lost = {finding["key"]: finding["reason"] for finding in json.loads(text)["findings"] if finding["kind"] == "lost"}
    silent = [key for key, reason in lost.items() if REASON not in reason or name not in reason]
    if silent or len(lost) != count:
        return f"{len(lost)} lost, {silent[:1]}: {[lost[key] for key in silent[:1]]}"
    whole, left = digests(source), digests(target)
    if not left or set(whole) - set(left) != set(lost) or any(whole[key] != digest for key, digest in left.items()):
        return f"{len(left)} of {len(whole)} are left, {len(lost)} are listed as lost"
    status, text, message = run(args, "verify", target, "--deep")
    return "" if status == 0 else f"what is left: {text[-300:]}{message[-300:]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--module", required=True, type=pathlib.Path)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    args = parser.parse_args()
    number = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for source, *rest in (*CASES, (FILE_CASE,)):
            wrong = (check if rest else check_file)(args, pathlib.Path(folder), args.fixtures / source, *rest)
            number, failed = number + 1, failed + bool(wrong)
            print(f"{'not ok' if wrong else 'ok'} {number} - {source}: {rest}" + (f"\n# {wrong}" if wrong else ""), flush=True)
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
