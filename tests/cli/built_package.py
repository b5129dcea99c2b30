# SPDX-License-Identifier: Apache-2.0
"""The package for Python as it was built, for programs that test it."""
import argparse
import os
import pathlib
import sys


def arguments(parser=None):
    """The command line, with --package and --bin: whole paths. The package can be imported behind it; where it was not built, the program
    ends."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--package", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--bin", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    args = parser.parse_args()
    if not list(pathlib.Path(args.package, "reshard").glob("_reshard*.so")):
        print("1..0 # SKIP the package was not built: it needs the headers of Python 3.11 or later (python3-dev)")
        sys.exit(1 if os.environ.get("RESHARD_TEST_REQUIRED") else 0)
    sys.path.insert(0, args.package)
    return args
