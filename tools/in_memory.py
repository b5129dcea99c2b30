#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command whose temporary files lie in memory, where there is room.

usage: in_memory.py COMMAND [ARGUMENT]...
"""
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOM_BYTES = 3 << 30


@contextlib.contextmanager
def surroundings():
    """The environment of tests. Their files lie in memory where there is room: on a disk thousands of runs wait, and prove nothing more.
    What is synced, and when, tests/crash sees in the calls; tests/cli/sizes_test.py works on the disk of the build."""
    memory = pathlib.Path("/dev/shm")
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ROOM_BYTES
    if "TMPDIR" in os.environ or not has_room:
        yield os.environ
        return
    with tempfile.TemporaryDirectory(prefix="reshard-", dir=memory) as folder:
        os.chmod(folder, 0o1777)  # as /tmp: some tests are other users
        yield os.environ | {"TMPDIR": folder}


if __name__ == "__main__":
    with surroundings() as environment:
        status = subprocess.run(sys.argv[1:], env=environment).returncode
    sys.exit(status)
