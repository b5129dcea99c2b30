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
import sys
import tempfile

import shim as shims

# Checkpoint, the file that fails, the first of its reads to fail (those before it are of headers), how, and how many tensors lie there.
CASES = (
    ("torch-dcp/dcp-fsdp2-4/ckpt", "__1_0.distcp", 5, "fail-on", 32),
    ("paddle/paddle-fc-flat/ckpt", "1_0.distcp", 5, "fail-on", 6),
    ("safetensors/safetensors-hf-sharded/ckpt", "model-00001-of-00003.safetensors", 3, "fail-on", 4),
    ("zarr/zarr3-layout/ckpt", "one-by-one/c/0/0", 1, "fail-on", 1),
    ("torch-file/torch-file-training/ckpt.pt", "ckpt.pt", 27, "fail", 1),
    ("torch-file/torch-file-tied-legacy/ckpt.pt", "ckpt.pt", 9, "fail", 1),
    ("torch-file/torch-file-tied-legacy/ckpt.pt", "ckpt.pt", 10, "fail", 3),
)
FILE_CASE = "safetensors/safetensors-hf-sharded/ckpt"
MARKED_CASE = "megatron/megatron-core-zarr-v0.8.0-bf16/ckpt"
REASON = os.strerror(errno.EIO)


def salvage(shim, work, source, to, name, first, how):
    """Into work/left: the exit status, and the report or what went wrong."""
    shutil.rmtree(work / "left", ignore_errors=True)
    done = shim.run(["salvage", source, "left", "--to", to, "--json", "--threads", "1"], work, calls="pread", act=f"{how}:{errno.EIO}",
                    nth=first, path=name)
    return done.returncode, json.loads(done.stdout) if done.returncode == 1 else done.stderr[-300:]


def check_file(shim, work, source):
    """A file beside the tensors is lost by itself."""
    damaged, target = work / "damaged", work / "left"
    shutil.copytree(source, damaged, copy_function=shutil.copyfile)
    damaged.chmod(0o755)
    (damaged / "tokenizer.json").write_text('{"model": {}}')
    status, report = salvage(shim, work, damaged, "hf", "tokenizer.json", 1, "fail-on")
    if status != 1:
        return f"exit {status}: {report}"
    lost = [finding["key"] for finding in report["findings"] if finding["kind"].startswith("lost")]
    if lost != ["tokenizer.json"] or (target / "tokenizer.json").exists():
        return f"{lost} are lost"
    shim.plain(["diff", source, target, "--items", "ignore"], work)
    return ""


def check_marks(shim, work, source):
    """Arrays beside a metadata.json that the disk does not give once are not read as if they were not Megatron's."""
    bare = work / "bare"
    shutil.copytree(source, bare, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("common.pt"))
    for path in (source, bare):
        verb = ["ls", path, "--items"]
        clean = shim.plain(verb, work)
        for nth in range(1, 6):
            done = shim.run(verb, work, calls="pread,read", act=f"fail:{errno.EIO}", nth=nth, path="metadata.json")
            said = done.stderr.decode()
            is_told = done.returncode == 3 and REASON in said and "metadata.json" in said
            if not is_told and (done.returncode or done.stdout != clean):
                return f"{path.name}, read {nth}: exit {done.returncode}: {said[-300:]}"
    return ""


def check(shim, work, source, name, first, how, count):
    def digests(path):
        return {tensor["key"]: tensor["hash"] for tensor in json.loads(shim.plain(["hash", "--json", path], work))["tensors"]}

    status, report = salvage(shim, work, source, "torch-dcp", name, first, how)
    if status != 1:
        return f"exit {status}: {report}"
    lost = {finding["key"]: finding["reason"] for finding in report["findings"] if finding["kind"] == "lost"}
    silent = [key for key, reason in lost.items() if REASON not in reason or name not in reason]
    if silent or len(lost) != count:
        return f"{len(lost)} lost, {silent[:1]}: {[lost[key] for key in silent[:1]]}"
    whole, left = digests(source), digests("left")
    if not left or set(whole) - set(left) != set(lost) or any(whole[key] != digest for key, digest in left.items()):
        return f"{len(left)} of {len(whole)} are left, {len(lost)} are listed as lost"
    shim.plain(["verify", "left", "--deep"], work)
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--module", required=True, type=pathlib.Path)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    args = parser.parse_args()
    shim, number, failed = shims.Shim(args.bin, args.module), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for judge, source, *rest in (*((check, *case) for case in CASES), (check_file, FILE_CASE), (check_marks, MARKED_CASE)):
            wrong = judge(shim, pathlib.Path(folder), args.fixtures.resolve() / source, *rest)
            number, failed = number + 1, failed + bool(wrong)
            print(f"{'not ok' if wrong else 'ok'} {number} - {source}: {rest}" + (f"\n# {wrong}" if wrong else ""), flush=True)
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
