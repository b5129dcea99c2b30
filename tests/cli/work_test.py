#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small files that ask for much end soon and in little memory, in every verb. Prints TAP, a test a file.

usage: work_test.py --bin PATH [--measure] [--only NAME]

Each run succeeds, or is refused by a named limit (exit 6), as pinned here. --measure prints what each run takes instead.
"""
import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

import small_bombs

MEMORY_KIB_MAX = 1 << 20
SECONDS_MAX = 20  # against hangs on a busy machine or under a sanitizer; --measure shows seconds
FORMATS = ("safetensors", "hf", "torch", "torch-dcp", "zarr", "megatron", "fsdp-ranks")
VERBS = [("inspect",), ("inspect", "--json"), ("ls",), ("ls", "--items"), ("ls", "--chunks"), ("ls", "--items", "--json"), ("hash",),
         ("verify",), ("verify", "--deep"), ("cat",), ("diff",), ("plan",), ("stats",), ("ls", "--tree"), ("draw",), ("salvage",)]
VERBS += [("convert", name) for name in FORMATS]
LIKE_OTHERS = [("verify", "--against"), ("diff", "--stat"), ("draw", "--diff")]  # measured: they do what others above do

OPENING = [("inspect",), ("ls", "--items", "--json"), ("verify", "--deep"), ("convert", "torch-dcp")]
# What the budget of work, or another named limit, refuses: as the checkpoint is opened, so that all verbs are alike, or what only these
# verbs ask for. All else succeeds: a bomb that is no longer refused, or refuses too much, is a change that says why.
REFUSED_OPEN = {"none_flood.pt", "deep_lists.pt", "equal_keys.pt", "long_keys.pt", "stride_zero.pt", "stride_zero_thousand.pt",
                "wide_state"}
REFUSED = {
    "long_keys_item.pt": [("cat",)], "doubling.pt": [("cat",)], "small_items.pt": [("convert", "torch-dcp"), ("convert", "fsdp-ranks")],
    "shared_flat_list.pt": [("diff",), ("convert", "torch-dcp"), ("convert", "megatron"), ("convert", "fsdp-ranks")],
}
FOREIGN = {"small_items.pt", "replicas", "replica_tensors"}  # they have tensors, of no Megatron model: exit 5 as they are written so


def verbs_of(name):
    return OPENING if name in REFUSED_OPEN else VERBS


def confine():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MAX, SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 30, 4 << 30))
    if not os.environ.get("ASAN_OPTIONS"):
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))


def first_key(binary, path):
    listed = subprocess.run([binary, "ls", "--items", path], capture_output=True, preexec_fn=confine, errors="replace")
    return listed.stdout.split("\t")[0].split("\n")[0] or "w"


def arguments(binary, verb, path, out):
    if verb[0] == "cat":
        return ["cat", path, first_key(binary, path)]
    if verb[0] == "diff":
        return [*verb, path, path]
    if verb == ("draw", "--diff"):
        return [*verb, path, path, out.with_suffix(".html")]
    if verb == ("verify", "--against"):
        return ["verify", path, "--against", path]
    if verb[0] == "salvage":
        return ["salvage", path, out]
    if verb[0] == "plan":
        return ["plan", path, "--to", "safetensors"]
    if verb[0] == "convert":
        return ["convert", path, out, "--to", verb[1]]
    return [*verb, path]


def run(binary, verb, path, work):
    """(exit status, seconds of CPU, KiB of memory, first line of the error)."""
    out = work / "out"
    with open(work / "stdout", "wb") as stdout, open(work / "stderr", "wb") as stderr:
        process = subprocess.Popen([binary, *map(str, arguments(binary, verb, path, out))], stdout=stdout, stderr=stderr,
                                   preexec_fn=confine)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    shutil.rmtree(out, ignore_errors=True)
    out.unlink(missing_ok=True)
    out.with_suffix(".html").unlink(missing_ok=True)
    message = (work / "stderr").read_text(errors="replace").strip().split("\n")
    return process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss, message[0][:170]


def check(binary, name, verb, path, work):
    status, seconds, kib, message = run(binary, verb, path, work)
    what = f"{' '.join(verb)}: exit {status}, {seconds:.1f} s, {kib >> 10} MiB: {message}"
    is_refused = name in REFUSED_OPEN or verb in REFUSED.get(name, [])
    assert status == (6 if is_refused else 5 if name in FOREIGN and verb == ("convert", "megatron") else 0), what
    assert status != 6 or "--limit" in (work / "stderr").read_text(errors="replace"), what
    assert kib <= MEMORY_KIB_MAX or os.environ.get("ASAN_OPTIONS"), what


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--only")
    args = parser.parse_args()
    names = [name for name in small_bombs.BOMBS if not args.only or name == args.only]
    failed = 0
    print(f"1..{len(names)}")
    for number, name in enumerate(names, 1):
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            path = small_bombs.BOMBS[name](work / name)
            try:
                for verb in VERBS + LIKE_OTHERS if args.measure else verbs_of(name):
                    if args.measure:
                        status, seconds, kib, message = run(args.bin, verb, path, work)
                        bad = "!" if status not in (0, 4, 6) or seconds > 5 or kib > MEMORY_KIB_MAX else " "
                        print(f"{bad} {name:24} {' '.join(verb):20} exit {status:3} {seconds:6.2f} s {kib >> 10:6} MiB  {message}",
                              flush=True)
                    else:
                        check(args.bin, name, verb, path, work)
                print(f"ok {number} - {name}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"not ok {number} - {name}\n# {error}", flush=True)
    return 1 if failed else 0


sys.exit(main())
