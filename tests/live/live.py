#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a live test with a Python that has the real libraries, or skips it. Prints TAP.

usage: live.py MODULE,… SCRIPT ARGUMENT…
The first that can import the modules is taken: those that RESHARD_TEST_PYTHON names (separated by colons), the environments that
tests/live/setup.sh makes, this one. Where RESHARD_TEST_REQUIRED is set, as in CI, a missing library is a failure.
A script may print TAP itself; otherwise its exit status is the result.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pythons():
    named = [path for path in os.environ.get("RESHARD_TEST_PYTHON", "").split(os.pathsep) if path]
    made = [str(ROOT / name / "bin" / "python") for name in (".venv", ".venv-paddle", ".venv-atorch", ".venv-browser")]
    return [path for path in [*named, *made, sys.executable] if os.path.exists(path)]


def python_with(modules):
    """The first Python that can import all of these (a comma between them), or None."""
    for python in pythons():
        if subprocess.run([python, "-W", "ignore", "-c", "import " + modules], capture_output=True).returncode == 0:
            return python
    return None


def is_required():
    return bool(os.environ.get("RESHARD_TEST_REQUIRED"))


def main():
    modules, script, *arguments = sys.argv[1:]
    name = os.path.basename(script)
    python = python_with(modules)
    if not python:
        print(f"{'not ok' if is_required() else 'ok'} 1 - {name}{'' if is_required() else ' # SKIP'} needs {modules}: make live-env\n1..1")
        return 0
    process = subprocess.run([python, "-W", "ignore", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if re.search(r"^1\.\.\d", process.stdout, re.M):  # what the libraries say in between is none of it
        print(re.sub(r"^(?!ok |not ok |1\.\.|#|Bail out)(?=.)", "# ", process.stdout, flags=re.M), end="")
        if process.returncode and not re.search(r"^not ok ", process.stdout, re.M):
            print(f"Bail out! {name} died, exit {process.returncode}")
            return 1
    else:
        print("# " + process.stdout.strip()[-4000:].replace("\n", "\n# "))
        print(f"{'not ok' if process.returncode else 'ok'} 1 - {name}\n1..1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
