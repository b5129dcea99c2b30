#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a live test with a Python that has the real libraries, or skips it. Prints TAP.

usage: live.py MODULE,… SCRIPT ARGUMENT…
The first that can import the modules is taken: those that RESHARD_TEST_PYTHON names (separated by colons), the environments that
tests/live/setup.sh makes, this one. Where RESHARD_TEST_REQUIRED is set, as in CI, a missing library is a failure.
A script may print TAP itself; otherwise its exit status is the result.
"""
import gc
import importlib
import multiprocessing
import os
import pathlib
import re
import runpy
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ABSENT = 213  # exit status of a Python that lacks a module


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


def spare_megatron():
    """What Megatron takes long for, and nobody asks about here: functions marked to be compiled stay what they are, and helpers that are to
    begin as a new Python, with all its imports, are forked."""
    import torch.multiprocessing

    def mark(function=None, **_):
        return mark if function is None else function
    torch.compile, torch.multiprocessing.get_context = mark, lambda _=None: multiprocessing.get_context("fork")


def judge(modules, script, arguments):
    """What a Python that may have the modules does: it imports them and runs the script, in one process, as imports take seconds."""
    sys.path[0], sys.argv = os.path.dirname(os.path.abspath(script)), [script, *arguments]
    try:
        if "megatron" in modules:
            spare_megatron()
        for module in modules.split(","):
            importlib.import_module(module)
    except BaseException:  # whatever a library says that does not fit
        return ABSENT
    gc.freeze()  # Paddle collects garbage as it loads: what is imported is none
    runpy.run_path(script, run_name="__main__")
    return 0


def judged(modules, script, arguments):
    """The ended process of the first Python that has the modules, or None."""
    environment = {"OMP_NUM_THREADS": "1", "GLOG_minloglevel": "2"} | os.environ
    for python in pythons():
        process = subprocess.run([python, "-W", "ignore", __file__, "--judge", modules, script, *arguments], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, env=environment)
        if process.returncode != ABSENT:
            return process
    return None


def main():
    if sys.argv[1] == "--judge":
        return judge(sys.argv[2], sys.argv[3], sys.argv[4:])
    modules, script, *arguments = sys.argv[1:]
    name = os.path.basename(script)
    process = judged(modules, script, arguments)
    if not process:
        print(f"{'not ok' if is_required() else 'ok'} 1 - {name}{'' if is_required() else ' # SKIP'} needs {modules}: make live-env\n1..1")
        return 0
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
