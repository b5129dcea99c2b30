#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a build directory through meson and ends with the line `N passed, N failed[, N skipped]`.

usage: run_tests.py BUILD [--suite NAME]...
Counts single test cases (every TAP line), not programs. Prints each failure with its output.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--suite", action="append", default=[])
    args = parser.parse_args()
    command = ["meson", "test", "-C", args.build, "--no-rebuild", "--print-errorlogs", "--num-processes", "2"]
    for suite in args.suite:
        command += ["--suite", suite]
    subprocess.run(["ninja", "-C", args.build, "--quiet"], check=True)
    logs = pathlib.Path(args.build, "meson-logs")
    for old in logs.glob("testlog*"):
        old.unlink()
    status = subprocess.run(command).returncode
    passed = failed = skipped = 0
    report = logs / "testlog.junit.xml"
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
                print(f"FAILED {case.get('classname', '')} {case.get('name', '')}")
            elif case.find("skipped") is not None:
                skipped += 1
            else:
                passed += 1
    if status and not failed:
        failed = 1  # a program that died without saying which test
    text = report.read_text(errors="replace") if report.exists() else ""
    if not re.search("<testcase", text):
        failed = failed or 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
