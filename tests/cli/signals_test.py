#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interrupted conversions leave the old state or the new one, and nothing beside. Prints TAP.

usage: signals_test.py --bin PATH
"""
import argparse
import json
import os
import pathlib
import signal
import struct
import subprocess
import tempfile
import time

MIB = 1 << 20


def write_source(path, tensors, bytes_each):
    header, at = {}, 0
    for i in range(tensors):
        header[f"t{i}"] = {"dtype": "U8", "shape": [bytes_each], "data_offsets": [at, at + bytes_each]}
        at += bytes_each
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)  # sparse


def interrupt_after(binary, work, delay, number, *extra):
    target = work / "target"
    process = subprocess.Popen([binary, "convert", "source.safetensors", "target", "--to", "torch-dcp", "--layout", "ranks=4", *extra], cwd=work,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(delay)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    left = sorted(p.name for p in work.iterdir() if p.name != "source.safetensors")
    return process.returncode, err.decode(), target, left


def check_interrupts(binary, work):
    """Whatever the moment: exit 130 and nothing, or exit 0 and a whole target."""
    statuses = set()
    for delay in (0.02, 0.05, 0.1, 0.2, 0.4):
        for number in (signal.SIGINT, signal.SIGTERM):
            status, err, target, left = interrupt_after(binary, work, delay, number)
            statuses.add(status)
            if status == 130 or status == -number and delay < 0.03:
                assert left == [], f"{delay} s: left {left}"
            else:
                assert status == 0 and left == ["target"], f"{delay} s: exit {status}, left {left}: {err}"
                subprocess.run(["rm", "-r", target], check=True)
    return f"exit statuses {sorted(statuses)}"


def check_overwrite_keeps_old(binary, work):
    (work / "target").mkdir()
    (work / "target" / "old").write_text("old")
    status, err, target, left = interrupt_after(binary, work, 0.1, signal.SIGINT, "--overwrite")
    assert left == ["target"], left
    if status == 130:
        assert (target / "old").read_text() == "old"
    else:
        assert status == 0 and not (target / "old").exists(), err
    return f"exit status {status}"


def check_quiet_pipe(binary, work):
    process = subprocess.Popen([binary, "ls", "source.safetensors"], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=60)
    assert err == b"", err
    return f"exit status {process.returncode}"


def check_full_device(binary, work):
    if not os.path.exists("/dev/full"):
        return "no /dev/full"
    with open("/dev/full", "wb") as full:
        done = subprocess.run([binary, "ls", "source.safetensors"], cwd=work, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 3 and done.stderr.startswith(b"reshard: "), (done.returncode, done.stderr)
    return "exit status 3"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    checks = (check_interrupts, check_overwrite_keeps_old, check_quiet_pipe, check_full_device)
    print(f"1..{len(checks)}")
    for number, check in enumerate(checks, 1):
        with tempfile.TemporaryDirectory(prefix="reshard-signals-") as folder:
            work = pathlib.Path(folder)
            write_source(work / "source.safetensors", 64, 4 * MIB)
            try:
                verdict, text = "ok", check(binary, work)
            except AssertionError as problem:
                verdict, text = "not ok", str(problem)
            print(f"{verdict} {number} - {check.__name__[6:]}\n# {text}", flush=True)


main()
