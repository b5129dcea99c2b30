# SPDX-License-Identifier: Apache-2.0
"""What tests of the command share: a command in a folder, small models of different bytes, and TAP."""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import traceback


class Shell:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work

    def __call__(self, *words, exit_status=0, environment=None):
        """Standard output; where a failure is wanted, with what was said about it."""
        done = subprocess.run([self.binary, *map(str, words)], cwd=self.work, capture_output=True, timeout=120,
                              env={**os.environ, **(environment or {})})
        assert done.returncode == exit_status, f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.decode()[:800]}"
        return done.stdout + done.stderr if exit_status else done.stdout

    def any(self, *words):
        """Whatever becomes of it."""
        return subprocess.run([self.binary, *map(str, words)], cwd=self.work, capture_output=True, text=True, errors="replace", timeout=120)

    def tensors(self, path):
        """{key: what `hash` says}"""
        return {t["key"]: t for t in json.loads(self("hash", "--json", path))["tensors"]}

    def bytes_of(self, path, key):
        return self("cat", path, key, "--as", "raw")


def write(path, shapes):
    """Safetensors whose bytes are all different."""
    header, at = {}, 0
    for key, shape in shapes.items():
        size = 2
        for extent in shape:
            size *= extent
        header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(struct.pack("<H", i) for i in range(at // 2)))


def terminal_output(ours):
    """What is written to a terminal until nobody has its other side; closes it."""
    said = b""
    try:
        while more := os.read(ours, 1 << 16):
            said += more
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    return said


def keys_must_be(found, expected):
    assert found == expected, f"lacks {sorted(expected - found)[:4]}, has {sorted(found - expected)[:4]}"


def is_sanitized(binary):
    """Built with AddressSanitizer, which takes address space without end."""
    return b"__asan_init" in pathlib.Path(binary).read_bytes()


def arguments():
    """`bin`, and `fixtures` as a path, which tests over both are called with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True, type=lambda path: pathlib.Path(path).resolve())
    return parser.parse_args()


def whatever_fails(function):
    """A test of a folder whose every exception is a failure of it, told with its trace."""
    def tried(shell):
        try:
            return function(shell.work)
        except BaseException:
            raise AssertionError(traceback.format_exc()) from None
    return tried


def run(binary, tests):
    """Runs (name, test) pairs, each test with a Shell in a folder of its own; what one returns is told. Whether one failed."""
    print(f"1..{len(tests)}")
    failed = 0
    for number, (name, test) in enumerate(tests, 1):
        with tempfile.TemporaryDirectory() as work:
            try:
                text = test(Shell(str(pathlib.Path(binary).resolve()), pathlib.Path(work)))
                print(f"ok {number} - {name}" + (f"\n# {text}" if text else ""), flush=True)
            except (AssertionError, KeyError, ValueError, OSError, subprocess.TimeoutExpired) as problem:
                failed += 1
                print(f"not ok {number} - {name}")
                print("".join(f"# {line if line.isprintable() else ascii(line)}\n" for line in str(problem).splitlines()),
                      end="", flush=True)
    return failed > 0
