#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a live test with the Python that has the real libraries (RESHARD_TEST_PYTHON, else this one), or skips it. Prints TAP.

usage: live.py MODULE,… SCRIPT ARGUMENT…
A script may print TAP itself; otherwise its exit status is the result.
"""
import os
import re
import subprocess
import sys


def main():
    modules, script, *arguments = sys.argv[1:]
    python = os.environ.get("RESHARD_TEST_PYTHON", sys.executable)
    name = os.path.basename(script)
    missing = subprocess.run([python, "-c", "import " + modules], capture_output=True).returncode
    if missing:
        print(f"ok 1 - {name} # SKIP needs {modules} in RESHARD_TEST_PYTHON\n1..1")
        return 0
    process = subprocess.run([python, "-W", "ignore", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if re.search(r"^1\.\.\d", process.stdout, re.M):
        print(process.stdout, end="")
    else:
        print("# " + process.stdout.strip()[-4000:].replace("\n", "\n# "))
        print(f"{'not ok' if process.returncode else 'ok'} 1 - {name}\n1..1")
    return 0


sys.exit(main())
