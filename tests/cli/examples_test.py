#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each example is at most 60 lines, and C as well as C++ against the public headers alone. Prints TAP.

usage: examples_test.py ROOT [BUILD]

With BUILD also: an example compiles with what pkg-config says of the library there, before it is installed.
"""
import os
import pathlib
import shutil
import subprocess
import sys

LINES = 60
LANGUAGES = [["cc", "-std=gnu17", "-xc"], ["c++", "-std=c++17", "-xc++"]]


def mpi_flags(path):
    """Where MPI's header lies, for those that use it; None: there is no MPI."""
    if "<reshard/mpi.h>" not in path.read_text():
        return []
    for name in ("ompi-c", "mpich"):
        found = subprocess.run(["pkg-config", "--cflags", name], capture_output=True, text=True)
        if found.returncode == 0:
            return [flag.replace("-I", "-isystem", 1) for flag in found.stdout.split()]
    return None


def problems(root, path):
    lines = path.read_text().count("\n")
    if lines > LINES:
        yield f"{lines} lines, more than {LINES}"
    flags = mpi_flags(path)
    for language in LANGUAGES if flags is not None else []:
        if shutil.which(language[0]):
            command = [*language, *flags, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{root / 'include'}", path]
            yield from subprocess.run(command, capture_output=True, text=True).stderr.splitlines()[:3]


def uninstalled_problems(root, build):
    """What keeps list_tensors.c, which the README shows, from being compiled against the tree."""
    environment = {**os.environ, "PKG_CONFIG_PATH": str(build / "meson-uninstalled")}
    flags = subprocess.run(["pkg-config", "--cflags", "reshard-uninstalled"], env=environment, capture_output=True, text=True)
    command = ["cc", "-fsyntax-only", *flags.stdout.split(), root / "examples" / "list_tensors.c"]
    return (flags.stderr + subprocess.run(command, capture_output=True, text=True).stderr).splitlines()[:3]


def main():
    root = pathlib.Path(sys.argv[1])
    examples = sorted((root / "examples").glob("*.c"))
    has_build = len(sys.argv) > 2 and shutil.which("pkg-config") and shutil.which("cc")
    print(f"1..{len(examples) + bool(has_build)}")
    failed = not examples
    for number, path in enumerate(examples, 1):
        found = list(problems(root, path))
        failed |= bool(found)
        print(f"{'not ok' if found else 'ok'} {number} - {path.name}", *(f"# {line}" for line in found), sep="\n")
    if has_build:
        found = uninstalled_problems(root, pathlib.Path(sys.argv[2]))
        failed |= bool(found)
        print(f"{'not ok' if found else 'ok'} {len(examples) + 1} - reshard-uninstalled.pc", *(f"# {line}" for line in found), sep="\n")
    return failed


sys.exit(main())
