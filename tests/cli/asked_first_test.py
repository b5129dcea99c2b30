#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is certain before anything is read is said before it is read: a target that cannot be, a reference that is not there. Prints TAP.

usage: asked_first_test.py --bin PATH
The bytes that a command has read are counted, not the time.
"""
import argparse
import json
import os
import struct
import subprocess
import sys

import small_models

BYTES = 16 << 20


def big_file(path, byte):
    header = json.dumps({f"l.{i}": {"dtype": "U8", "shape": [BYTES // 8], "data_offsets": [i * BYTES // 8, (i + 1) * BYTES // 8]}
                         for i in range(8)}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes([byte]) * BYTES)


def read_by(shell, *words):
    """(bytes, exit status, standard error)"""
    with subprocess.Popen([shell.binary, *words], cwd=shell.work, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with open(f"/proc/{process.pid}/io", encoding="utf-8") as counts:
            found = dict(line.split(": ") for line in counts.read().splitlines())
    return int(found["rchar"]), process.returncode, said


def refused(good, *cases):
    """good: words of a command that reads everything. cases: words, exit status, what is said."""
    def test(shell):
        big_file(shell.work / "a.safetensors", 1)
        big_file(shell.work / "b.safetensors", 1)
        (shell.work / "there").mkdir()
        (shell.work / "there.html").write_text("precious")
        (shell.work / "diary").mkdir()
        (shell.work / "diary/notes.txt").write_text("precious")
        for words, status, says in cases:
            done = read_by(shell, *words)
            assert done[1] == status and says in done[2], (words, done)
            assert done[0] < BYTES // 4, f"{words}: {done[0]} bytes were read first"
            assert not list(shell.work.glob("*.html.*")) and (shell.work / "there.html").read_text() == "precious", "something is left"
        done = read_by(shell, *good)
        assert done[1] == 0 and done[0] >= BYTES, (good, done)
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    salvage = ("salvage", "a.safetensors")
    draw, verify = ("draw", "--diff", "a.safetensors", "b.safetensors"), ("verify", "--deep", "a.safetensors")
    return small_models.run(parser.parse_args().bin, [
        ("salvage and its target", refused(
            (*salvage, "out", "--to", "hf"), ((*salvage, "there"), 3, "exists"), ((*salvage, "none/out"), 3, "cannot write"),
            ((*salvage, "s3://bucket/out"), 5, "URL"), ((*salvage, "out", "--to", "gguf"), 5, "read only"),
            ((*salvage, "out", "--to", "hff"), 2, "hff"), ((*salvage, "a.safetensors"), 2, "the source itself"),
            ((*salvage, "a.safetensors", "--overwrite"), 2, "the source itself"),
            ((*salvage, "diary", "--overwrite"), 2, "is no checkpoint"),
            ((*salvage, "there.html", "--overwrite"), 2, "is no checkpoint"))),
        ("draw and its page", refused((*draw, "new.html"), ((*draw, "there.html"), 2, "exists"),
                                      ((*draw, "none/new.html"), 3, "No such file"))),
        ("verify and its reference", refused((*verify, "--against", "b.safetensors"), ((*verify, "--against", "none"), 3, "none"),
                                             ((*verify, "--against", "none.json"), 3, "none.json"),
                                             ((*verify, "--against", "there"), 5, "there")))])


if __name__ == "__main__":
    sys.exit(main())
