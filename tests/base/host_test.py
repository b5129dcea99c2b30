#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""src/base/host.c refuses machines for which the code is not made, with a message that says so. Prints TAP.

usage: host_test.py COMPILER… SOURCE
"""
import subprocess
import sys

CASES = [("this machine", [], None),
         ("a big-endian machine", ["-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"], "little-endian machines only"),
         ("a 32-bit machine", ["-U__SIZEOF_POINTER__", "-D__SIZEOF_POINTER__=4"], "64-bit machines only")]


def main():
    *compiler, source = sys.argv[1:]
    print(f"1..{len(CASES)}")
    for number, (name, options, message) in enumerate(CASES, 1):
        done = subprocess.run([*compiler, *options, "-w", "-fsyntax-only", source], capture_output=True, text=True)
        good = message in done.stderr and done.returncode != 0 if message else done.returncode == 0
        print(f"{'ok' if good else 'not ok'} {number} - {name}" + ("" if good else f"\n# exit {done.returncode}: {done.stderr[:300]!r}"))


main()
