#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names from files reach terminals and JSON without control, bidirectional or invisible characters, and JSON keeps their value. Prints TAP.

usage: escapes_test.py --bin PATH
"""
import argparse
import json
import os
import struct
import subprocess
import sys

import small_models

UNSEEN = [*range(0x00, 0x20), *range(0x7F, 0xA0), 0xAD, 0x34F, 0x61C, 0x115F, 0x180E, *range(0x200B, 0x2010), *range(0x2028, 0x202F),
          *range(0x2060, 0x2070), 0x3164, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF9, 0xE0001, 0xE0041, 0xE007F]
SEEN = "äß語😀\u00a0\u2010"


def unseen_in(text):
    return sorted({hex(ord(c)) for c in text if ord(c) in UNSEEN and c not in "\n\t"})


class Shell:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work
        self.keys = [f"a{chr(c)}{SEEN}" for c in UNSEEN]
        header = {key: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for key in self.keys}
        header["__metadata__"] = {key: key for key in self.keys}
        text = json.dumps(header).encode()
        (work / "in.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)

    def __call__(self, *arguments, status=0):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, timeout=120, cwd=self.work)
        assert done.returncode == status, f"{arguments}: exit {done.returncode}, not {status}: {done.stderr[:300]}"
        out, err = done.stdout.decode(), done.stderr.decode()
        assert not unseen_in(out + err), f"{arguments}: {unseen_in(out + err)}"
        return out, err


def listings(shell):
    for verb in (["ls"], ["ls", "--items"], ["ls", "--chunks"], ["hash"], ["inspect", "--verbose"], ["verify"], ["verify", "--deep"]):
        for options in ([], ["--json"]):
            out, _ = shell(*verb, *options, "in.safetensors")
            assert verb[0] not in ("ls", "hash") or SEEN in out, out
    out, _ = shell("ls", "--json", "in.safetensors")
    assert sorted(t["key"] for t in json.loads(out)["tensors"]) == sorted(shell.keys)
    out, _ = shell("ls", "--json", "--items", "in.safetensors")
    item = json.loads(out)["items"][0]["key"]
    out, _ = shell("cat", "in.safetensors", item)
    assert json.loads(out) == {key: key for key in shell.keys}, out


def errors(shell):
    for key in shell.keys[1:]:
        path = f"no{key[1]}file" if key[1] != "/" else "no"
        shell("ls", path, status=3)
        out, err = shell("ls", "--json", path, status=3)
        json.loads(err)
    name = "bad\u202eeman\u2066.safetensors"
    (shell.work / name).write_bytes(b"\x08\0\0\0\0\0\0\0garbage!")
    shell("ls", name, status=4)
    shell("convert", name, "out", "--to", "hf", status=4)


def reports(shell):
    other = shell.work / "other.safetensors"
    other.write_bytes(struct.pack("<Q", 2) + b"{}")
    shell("diff", "in.safetensors", other, status=1)
    out, _ = shell("diff", "--json", "in.safetensors", other, status=1)
    assert sorted(f["key"] for f in json.loads(out)["findings"] if f["key"] in shell.keys) == sorted(shell.keys), out
    for key in shell.keys[1:4]:
        shell("convert", "in.safetensors", "out\u202e", "--to", "hf", "--dtype", f"{key}=nonsense", status=2)
    shell("plan", "in.safetensors", "--to", "hf", "-m", "no\u202eway -> b", status=2)
    shell("convert", "in.safetensors", "out\u202e", "--to", "hf")


def written_files_hold_the_same_keys(shell):
    """What is escaped in a file that we write is the same key to whoever parses it."""
    shell("convert", "in.safetensors", "out.safetensors", "--to", "safetensors")
    data = (shell.work / "out.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    assert header.pop("__metadata__") == {key: key for key in shell.keys}
    assert sorted(header) == sorted(shell.keys)


def names_that_are_no_text(shell):
    """Folders have names of any bytes, keys have not: no format gets one that its own reader would refuse; a new name helps."""
    array = shell.work / "arrays" / os.fsdecode(b"a\xd1b")
    array.mkdir(parents=True)
    (shell.work / "arrays" / ".zgroup").write_text('{"zarr_format": 2}')
    (array / ".zarray").write_text(json.dumps({"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0,
                                               "compressor": None, "filters": None}))
    (array / "0").write_bytes(b"\1\2")
    out, _ = shell("ls", "arrays")
    assert out.startswith("a\\xd1b\tU8"), out
    formats = json.loads(shell("formats", "--json")[0])["formats"]
    written = [found["name"] for found in formats if found["writes"]]
    assert len(written) > 10, formats
    for name in written:
        _, err = shell("convert", "arrays", "none", "--to", name, status=5)
        assert "tensor 'a\\xd1b'" in err, (name, err)
        assert "no Unicode text, byte 1 is 0xD1" in err and "--rename gives it a name" in err, (name, err)
        assert not (shell.work / "none").exists(), name
    shell("convert", "arrays", "named", "--to", "torch-dcp", "--rename", "s/^a.*/b/")
    assert shell("ls", "named")[0].startswith("b\tU8"), "renamed"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    checks = (listings, errors, reports, written_files_hold_the_same_keys, names_that_are_no_text)
    return small_models.run(args.bin,
                            [(check.__name__, lambda shell, check=check: check(Shell(shell.binary, shell.work))) for check in checks])


sys.exit(main())
