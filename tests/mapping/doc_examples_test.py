#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of a page, as TAP: files are the blocks that are named (```map swap.map), commands those of ```console blocks.

usage: doc_examples_test.py --bin RESHARD [--update] PAGE
Every `$ reshard …` must print exactly what stands below it. --update writes what it prints into the page instead.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile


def run(binary, command, folder):
    done = subprocess.run(command.replace("reshard", f"'{binary}'", 1), shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.stdout


def commands_of(block):
    """[command, what stands below it]"""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append([line[2:], ""])
        elif found:
            found[-1][1] += line + "\n"
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("page", type=pathlib.Path)
    args = parser.parse_args()
    binary = pathlib.Path(args.bin).resolve()
    page, count, failed = args.page.read_text(), 0, 0

    with tempfile.TemporaryDirectory() as folder:

        def handle(match):
            nonlocal count, failed
            info, block = match[1], match[2]
            words = info.split()
            if len(words) == 2:
                (pathlib.Path(folder) / words[1]).write_text(block)
            if words != ["console"]:
                return match[0]
            text = ""
            for command, expected in commands_of(block):
                count += 1
                printed = run(binary, command, folder)
                text += f"$ {command}\n{printed}"
                failed += printed != expected
                print(f"{'ok' if printed == expected else 'not ok'} {count} - {command}")
                if printed != expected and not args.update:
                    print("# printed:\n# " + printed.replace("\n", "\n# "))
            return f"```console\n{text}```\n"

        updated = re.sub(r"^```(\w[^\n]*)\n(.*?)^```\n", handle, page, flags=re.M | re.S)
    if args.update:
        args.page.write_text(updated)
    print(f"1..{count}")
    return 1 if failed and not args.update else 0


sys.exit(main())
