#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Standard input through a pipe takes at most nine tenths of what is free in the temporary folder. Prints TAP.

usage: streams_test.py --bin PATH
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

SMALL = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1M none "$0" && TMPDIR="$0" exec "$@"']


def safetensors(size):
    text = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    binary = os.path.abspath(parser.parse_args().bin)
    with tempfile.TemporaryDirectory(prefix="reshard-streams-") as folder:
        if subprocess.run([*SMALL, folder, "true"], capture_output=True).returncode:
            print("1..1\nok 1 - # SKIP no file system of its own can be mounted here")
            return 0
        few, many = (subprocess.run([*SMALL, folder, binary, "ls", "-"], input=safetensors(size), capture_output=True)
                     for size in (500_000, 1_020_000))
    fits = few.returncode == 0 and few.stdout == b"a\tU8\t[500000]\t500000\n"
    told = b"nine tenths of what is free in '" in many.stderr and b"hint: TMPDIR" in many.stderr
    ends = many.returncode == 6 and told and not many.stdout
    for number, (good, name, done) in enumerate(((fits, "what fits is read", few), (ends, "more is refused", many)), 1):
        print(f"{'ok' if good else 'not ok'} {number} - {name}", *([] if good else [f"# {done}"]), sep="\n")
    print("1..2")
    return 0 if fits and ends else 1


sys.exit(main())
