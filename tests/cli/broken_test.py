#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint whose data files hold something else than .metadata says. Prints TAP.

usage: broken_test.py --bin PATH
"""
import argparse
import io
import json
import struct
import zipfile

import small_bombs as s
import small_models


def archive(content, storages=()):
    out = io.BytesIO()
    s.torch_zip(out, content, storages, zipfile.ZIP_STORED)
    return out.getvalue()


def deflated(data):
    """The same archive, as other programs pack it again."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def safetensors(key):
    header = json.dumps({key: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + struct.pack("<4f", 1, 2, 3, 4)


def checkpoint(path, blob):
    """One tensor `w` of four floats whose blob is this."""
    whole, s.blob = s.blob, lambda: blob
    try:
        chunks = s.EMPTY_LIST + s.chunk_at_zero() + s.APPEND
        s.dcp(path, s.state(("w", s.tensor_storage(chunks))), s.EMPTY_DICT + s.index("w", s.integer(0)) + s.storage_info() + s.SETITEM)
    finally:
        s.blob = whole


CASES = {
    "a tensor": (archive(s.small_tensor(), [("0", struct.pack("<4f", 1, 2, 3, 4))]), None),
    "a deflated tensor": (deflated(archive(s.small_tensor(), [("0", struct.pack("<4f", 1, 2, 3, 4))])), None),
    "a tensor of safetensors": (safetensors("w"), None),
    "no tensor": (archive(s.EMPTY_LIST), "its blob holds no tensor"),
    "a number": (archive(s.integer(7)), "its blob holds no tensor"),
    "a dictionary of tensors": (archive(s.EMPTY_DICT + s.text("w") + s.small_tensor() + s.SETITEM,
                                        [("0", struct.pack("<4f", 1, 2, 3, 4))]), "its blob holds no tensor"),
    "another tensor of safetensors": (safetensors("v"), "the safetensors header does not have it"),
    "safetensors without tensors": (struct.pack("<Q", 2) + b"{}", "the safetensors header does not have it"),
}


def check(shell, blob, message):
    checkpoint(shell.work / "in", blob)
    for verb in (("hash", "in"), ("verify", "in"), ("convert", "in", "out.safetensors", "--quiet")):
        done = shell.any(*verb)
        if message is None:
            assert done.returncode == 0, (verb, done.stderr)
        else:
            said = done.stdout + done.stderr
            assert done.returncode in (1, 4) and message in said, (verb, done.returncode, said)
    if message is None:
        assert shell.bytes_of("in", "w") == struct.pack("<4f", 1, 2, 3, 4)
    else:
        assert not (shell.work / "out.safetensors").exists()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    return small_models.run(args.bin, [(f"the blob of a tensor is {name}", lambda shell, case=case: check(shell, *case))
                                       for name, case in CASES.items()])


if __name__ == "__main__":
    raise SystemExit(main())
