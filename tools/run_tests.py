#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a build directory through meson and ends with the line `N passed, N failed, N skipped`.

usage: run_tests.py BUILD [--suite NAME]... [--no-suite NAME]...
Counts single test cases (every TAP line), not programs. Prints each failure and each reason why something was skipped. Every program that
the build knows must have run and reported at least one case: a program that is silent, and a run without programs, fails.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import in_memory

SLOWEST = 12  # are told


def introspect(build, what):
    return json.loads(subprocess.run(["meson", "introspect", build, what], check=True, capture_output=True, text=True).stdout)


def registered(build, suites, without):
    """The tests that the build defines, of these suites or of all."""
    tests = []
    for test in introspect(build, "--tests"):
        own = {suite.split(":")[-1] for suite in test["suite"]}
        if (not suites or own & set(suites)) and not own & set(without):
            tests.append(test)
    return tests


def build_for(build, tests):
    """Builds the programs and libraries that the tests name, and the fixtures, which no test names."""
    needed = {target for test in tests for target in test["depends"]}
    folder, here = pathlib.Path(build, "tests").resolve(), pathlib.Path(build).resolve()
    files = []
    for target in introspect(build, "--targets"):
        is_data = target["type"] == "custom" and target["build_by_default"] and folder in pathlib.Path(target["filename"][0]).parents
        if target["id"] in needed or is_data:
            files += [os.path.relpath(name, here) for name in target["filename"]]
    subprocess.run(["ninja", "-C", build, "--quiet", *files], check=True)


def count_cases(report):
    """{name of a program: [passed, failed, skipped]}, and what to tell of it."""
    programs, lines = {}, []
    for suite in ElementTree.parse(report).iter("testsuite") if report.exists() else ():
        name = suite.get("name").split(" / ")[-1]
        counts = programs.setdefault(name, [0, 0, 0])
        for case in suite.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                counts[1] += 1
                lines.append(f"FAILED {name}: {case.get('name', '')}")
            elif case.find("skipped") is not None:
                counts[2] += 1
                reason = (case.find("system-out").text or "").strip() if case.find("system-out") is not None else ""
                lines.append(f"SKIP {name}: {case.get('name', '')} {reason}".rstrip())
            else:
                counts[0] += 1
    return programs, lines


def ends(log):
    """Names of the programs that meson calls good, and [seconds, name] of all, the slowest first. A program that is killed after its last
    case, or leaks, is not good."""
    tests = [json.loads(line) for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    good = {test["name"].split(" / ")[-1] for test in tests if test["result"] in ("OK", "SKIP", "EXPECTEDFAIL")}
    return good, sorted(([round(test["duration"]), test["name"].split(" / ")[-1]] for test in tests), reverse=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--no-suite", action="append", default=[])
    args = parser.parse_args()
    command = ["meson", "test", "-C", args.build, "--no-rebuild", "--print-errorlogs", "--num-processes", str(os.cpu_count() + 2),
               "--timeout-multiplier", "3"]  # machines are shared; some tests wait more than they work
    for suite in args.suite:
        command += ["--suite", suite]
    for suite in args.no_suite:
        command += ["--no-suite", suite]
    tests = registered(args.build, args.suite, args.no_suite)
    names = [test["name"] for test in tests]
    build_for(args.build, tests)
    logs = pathlib.Path(args.build, "meson-logs")
    for old in logs.glob("testlog*"):
        old.unlink()
    with in_memory.surroundings() as environment:
        status = subprocess.run(command, env=environment).returncode
    programs, lines = count_cases(logs / "testlog.junit.xml")
    good, slowest = ends(logs / "testlog.json")
    passed, failed, skipped = (sum(counts[i] for counts in programs.values()) for i in range(3))
    for name in sorted({name for name in names if names.count(name) > 1}): # whoever asks for it gets one of them
        failed += 1
        lines.append(f"FAILED {name}: two programs have the name")
    for name in names:
        counts = programs.get(name, [0, 0, 0])
        if not sum(counts):
            failed += 1
            lines.append(f"FAILED {name}: reported no case")
        elif name not in good and not counts[1]:
            failed += 1
            lines.append(f"FAILED {name}: ended badly")
    if not names or (status and not failed):
        failed += 1
        lines.append("FAILED: no test is registered" if not names else f"FAILED: meson test ended with {status}")
    lines.append("slowest: " + ", ".join(f"{name} {seconds} s" for seconds, name in slowest[:SLOWEST]))
    print(*lines, f"{len(good)} of {len(names)} programs ended well", f"{passed} passed, {failed} failed, {skipped} skipped", sep="\n")
    return 1 if failed else 0


sys.exit(main())
