#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Standard input through a pipe takes at most nine tenths of what is free in the temporary folder; standard error gets whole lines. Prints
TAP.

usage: streams_test.py --bin PATH
"""
import argparse
import fcntl
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import termios

import small_models

SMALL = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1M none "$0" && TMPDIR="$0" exec "$@"']


def safetensors(size):
    text = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(size)


def input_takes_what_is_free(binary):
    """(name, whether it holds, what was seen); holds None: it cannot be tried here."""
    with tempfile.TemporaryDirectory(prefix="reshard-streams-") as folder:
        if subprocess.run([*SMALL, folder, "true"], capture_output=True).returncode:
            return [("input", None, "no file system of its own can be mounted here")]
        few, many = (subprocess.run([*SMALL, folder, binary, "ls", "-"], input=safetensors(size), capture_output=True)
                     for size in (500_000, 1_020_000))
    told = b"nine tenths of what is free in '" in many.stderr and b"hint: TMPDIR" in many.stderr
    return [("what fits is read", few.returncode == 0 and few.stdout == b"a\tU8\t[500000]\t500000\n", few),
            ("more is refused", many.returncode == 6 and told and not many.stdout, many)]


def errors_are_written_by_lines(binary):
    """A socket of packets shows each call. Else lines of several processes would mix."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    done = subprocess.run([binary, "convert", "nowhere", "target", "--two"], stdout=subprocess.DEVNULL, stderr=theirs)
    theirs.close()
    packets = list(iter(lambda: ours.recv(1 << 16), b""))
    ours.close()
    return [("each line of an error is one write", done.returncode == 2 and len(packets) > 1 and all(
        packet.endswith(b"\n") and packet.count(b"\n") == 1 for packet in packets), packets)]


def where_streams_are(binary):
    """'-' is what a verb reads, or the target of convert; elsewhere it is refused, with the reason, and nothing is called so."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="reshard-streams-") as folder:
        def ask(*words, data=safetensors(100), **more):
            return subprocess.run([binary, *words], cwd=folder, input=data, capture_output=True, **more)

        with open(os.path.join(folder, "m.safetensors"), "wb") as out:
            out.write(safetensors(100))
        for words in (["salvage", "m.safetensors", "-"], ["convert", "m.safetensors", "out", "--like", "-"],
                      ["convert", "m.safetensors", "out", "--like", "m.safetensors", "--missing", "-"], ["commit", "-"],
                      ["verify", "m.safetensors", "--against", "-"], ["verify", "--latest-good", "-"],
                      ["salvage", "m.safetensors", "out", "--like", "-"], ["map", "check", "-", "--source", "-"]):
            done = ask(*words)
            rows.append((f"{' '.join(words)} is refused", done.returncode == 2 and b"'-'" in done.stderr and b"hint: " in done.stderr and
                         os.listdir(folder) == ["m.safetensors"], done))
        for words in (["ls"], ["inspect"], ["hash"], ["stats"], ["verify"], ["draw"], ["draw", "--to", "hf"], ["plan", "--to", "hf"],
                      ["cat"]):
            done = ask(words[0], "-", *(["a"] if words[0] == "cat" else []), *words[1:])
            rows.append((f"{' '.join(words)} - reads", done.returncode == 0 and b"/proc" not in done.stdout, done))
        for words in (["diff", "-", "m.safetensors"], ["diff", "m.safetensors", "-"], ["diff", "-", "-"]):
            done = ask(*words)
            rows.append((f"{' '.join(words)} reads", done.returncode == 0, done))
        for words in (["salvage", "-", "out"], ["convert", "-", "out2", "--to", "hf"]):
            done = ask(*words)
            again = subprocess.run([binary, "diff", "m.safetensors", words[2]], cwd=folder, capture_output=True)
            rows.append((f"{' '.join(words)} writes", done.returncode == 0 and again.returncode == 0, (done, again)))
        for words in (["ls", "-"], ["salvage", "-", "out3"], ["convert", "-", "-", "--to", "torch"], ["hash", "-", "--json"]):
            done = ask(*words, data=safetensors(100)[:-1])
            rows.append((f"{' '.join(words)} calls it '-'", done.returncode in (1, 4) and b"/proc" not in done.stdout + done.stderr and
                         b"stdout-" not in done.stderr, done))
        done = ask("ls", "-", data=safetensors(1 << 20), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
        rows.append(("a limit on files is no lack of room", done.returncode == 3 and b"File too large" in done.stderr, done))
    return rows


def documents_are_whole(binary):
    """With --json an error leaves nothing on standard output, or a document that ends."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="reshard-streams-") as folder:
        with open(os.path.join(folder, "m.safetensors"), "wb") as out:
            out.write(safetensors(100))
        with open(os.path.join(folder, "not"), "wb") as out:
            out.write(b"no checkpoint")
        os.mkdir(os.path.join(folder, "there"))
        for words in (["salvage", "not", "out"], ["salvage", "m.safetensors", "nowhere/out"], ["salvage", "m.safetensors", "there"],
                      ["diff", "m.safetensors", "not"], ["diff", "m.safetensors", "m.safetensors", "-m", "a -> b -> "],
                      ["diff", "m.safetensors", "m.safetensors", "--include", "zz"], ["verify", "m.safetensors", "--against", "nofile"],
                      ["verify", "--latest-good", "nofile"]):
            done = subprocess.run([binary, *words, "--json"], cwd=folder, capture_output=True)
            rows.append((f"{' '.join(words)} prints no document", done.returncode > 1 and not done.stdout, done))
    return rows


def bar_fits(binary):
    """Of a bar that takes more than one row only the last is taken away again."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="reshard-streams-") as folder:
        with open(os.path.join(folder, "large.safetensors"), "wb") as out:
            out.write(safetensors(1 << 29)[:-(1 << 29)])
            out.truncate(out.tell() + (1 << 29))
        for columns in (3, 12, 40, 80, 120):
            ours, theirs = os.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            process = subprocess.Popen([binary, "hash", "large.safetensors"], cwd=folder, stdout=subprocess.DEVNULL, stderr=theirs)
            os.close(theirs)
            said = small_models.terminal_output(ours).decode()
            process.wait(timeout=60)
            drawn = [line for line in said.replace("\x1b[K", "").split("\r") if line]
            longest = max(map(len, drawn), default=0)
            whole = columns < 80 or all(word in "".join(drawn[:1]) for word in ("hash [", "536.87 MB", "GB/s", "ETA"))
            fits = longest < columns and (drawn or columns < 5) and "\n" not in said
            rows.append((f"the bar fits {columns} columns", bool(fits and whole), drawn[:3]))
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    binary = os.path.abspath(parser.parse_args().bin)
    rows = input_takes_what_is_free(binary) + errors_are_written_by_lines(binary) + bar_fits(binary)
    rows += where_streams_are(binary) + documents_are_whole(binary)
    print(f"1..{len(rows)}")
    for number, (name, holds, seen) in enumerate(rows, 1):
        more = "" if holds else f" # SKIP {seen}" if holds is None else f"\n# {seen}"
        print(f"{'not ' * (holds is False)}ok {number} - {name}{more}")
    return int(any(holds is False for _, holds, _ in rows))


sys.exit(main())
