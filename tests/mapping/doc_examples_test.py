#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of a page, as TAP: files are the blocks that are named (```map swap.map), commands those of ```console blocks, and of
blocks without a name that begin with `$ `.

usage: doc_examples_test.py --bin RESHARD [--root DIR] [--update] PAGE
Every `$ reshard …` must print exactly what stands below it. --update writes what it prints into the page instead. Commands run in a folder
with the files of the page; with --root in DIR, as a reader of the README types them on a terminal, only that
/tmp is a folder of the test.
"""
import argparse
import fcntl
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios


def on_terminal(command, folder, environment):
    """What a command prints on a terminal without colours, and what it says on standard error."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    process = subprocess.Popen(command, shell=True, cwd=folder, env=environment | {"NO_COLOR": "1"}, stdout=its, stderr=subprocess.PIPE)
    os.close(its)
    printed = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # all who could write are gone
            part = b""
        if not part:
            break
        printed += part
    os.close(ours)
    said = process.communicate(timeout=60)[1]
    return printed.decode().replace("\r\n", "\n"), said.decode()


def run(binary, command, folder, root):
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    if not root:
        return subprocess.run(command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60).stdout
    # A README shows what is asked for; what is noted beside it, on standard error, only where there is nothing else.
    printed, said = on_terminal(command.replace("/tmp/", f"{folder}/tmp/"), root, environment)
    return (printed or said).replace(f"{folder}/tmp/", "/tmp/")


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
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("page", type=pathlib.Path)
    args = parser.parse_args()
    binary = pathlib.Path(args.bin).resolve()
    page, count, failed = args.page.read_text(), 0, 0

    with tempfile.TemporaryDirectory() as folder:
        for name in ("bin", "tmp"):
            os.mkdir(f"{folder}/{name}")
        os.symlink(binary, f"{folder}/bin/reshard")

        def handle(match):
            nonlocal count, failed
            info, block = match[1], match[2]
            words = info.split()
            if len(words) == 2:
                (pathlib.Path(folder) / words[1]).write_text(block)
            if words != ["console"] and (words or not block.startswith("$ ")):
                return match[0]
            text = ""
            for command, expected in commands_of(block):
                count += 1
                printed = re.sub(r"in [0-9]+ s\b", "in less than a second", run(binary, command, folder, args.root))
                text += f"$ {command}\n{printed}"
                failed += printed != expected
                print(f"{'ok' if printed == expected else 'not ok'} {count} - {command}")
                if printed != expected and not args.update:
                    print("# printed:\n# " + printed.replace("\n", "\n# "))
            return f"```{info}\n{text}```\n"

        updated = re.sub(r"^```([^\n]*)\n(.*?)^```\n", handle, page, flags=re.M | re.S)
    if args.update:
        args.page.write_text(updated)
    if not count:
        failed, count = 1, 1
        print(f"not ok 1 - {args.page.name} has no examples")
    print(f"1..{count}")
    return 1 if failed and not args.update else 0


sys.exit(main())
