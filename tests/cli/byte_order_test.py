#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data of big-endian machines: every width, in torch files and zarr arrays of both formats, has the digests of its little-endian twin,
through a conversion too. NaNs keep their payloads. Prints TAP.

usage: byte_order_test.py --bin RESHARD
"""
import argparse
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import small_models  # noqa: E402
import torch_stub  # noqa: E402

COUNT = 24
# NaNs with a payload, quiet and signalling, as little-endian bytes.
NANS = {2: bytes.fromhex("017e 01fc"), 4: bytes.fromhex("0100807f efbecaff"), 8: bytes.fromhex("010000000000f07f efbeadde0000f8ff")}
TORCH = {"BoolStorage": 1, "ByteStorage": 1, "CharStorage": 1, "ShortStorage": 2, "HalfStorage": 2, "BFloat16Storage": 2, "IntStorage": 4,
         "FloatStorage": 4, "LongStorage": 8, "DoubleStorage": 8, "ComplexFloatStorage": 4,
         "ComplexDoubleStorage": 8}  # the width that is swapped: a complex number is two
ZARR = {"f2": 2, "f4": 4, "f8": 8, "i2": 2, "i4": 4, "i8": 8, "u2": 2, "u4": 4, "u8": 8, "c8": 4, "c16": 8}
ZARR3 = {"float16": 2, "float32": 4, "float64": 8, "bfloat16": 2, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
         "complex64": 4, "complex128": 8}


def content(name, width, size):
    """Little-endian bytes of COUNT elements; those of floats begin with NaNs."""
    data = bytearray(random.Random(name).randbytes(size * COUNT))
    if name == "BoolStorage":
        data = bytearray(b & 1 for b in data)
    nans = NANS.get(width, b"")
    if name[0] in "fcFDHC" and "Char" not in name:
        data[: len(nans)] = nans
    return bytes(data)


def swapped(data, width):
    return b"".join(data[i : i + width][::-1] for i in range(0, len(data), width))


def same(sh, little, big):
    wanted, found = sh.tensors(little), sh.tensors(big)
    assert wanted.keys() == found.keys() and wanted, f"{sorted(wanted)} and {sorted(found)}"
    for key in wanted:
        assert wanted[key] == found[key], f"{key}: {found[key]} instead of {wanted[key]}"
        assert sh.bytes_of(big, key) == sh.bytes_of(little, key), f"{key}: bytes"


def through(sh, little, big):
    """As they lie, and in formats that are little-endian."""
    same(sh, little, big)
    for number, to in enumerate(("torch", "torch-dcp", "zarr")):
        sh("convert", big, f"out{number}", "--to", to)
        same(sh, little, f"out{number}")
        sh("diff", little, f"out{number}", "--items", "ignore")


def torch_zip(sh):
    values = {}
    for order in ("little", "big"):
        for name, width in TORCH.items():
            data = content(name, width, torch_stub.ELEMENT_BYTES[name])
            values[name] = torch_stub.tensor(name, [COUNT], data if order == "little" else swapped(data, width))
        torch_stub.write_zip(sh.work / f"{order}.pt", values, byteorder=order)
    through(sh, "little.pt", "big.pt")
    for name, width in TORCH.items():
        assert sh.bytes_of("big.pt", name) == content(name, width, torch_stub.ELEMENT_BYTES[name]), f"{name}: bytes"


def torch_legacy(sh):
    """The flag says big, the payload is little-endian all the same: torch's writer swaps, and its reader never looks."""
    values = {name: torch_stub.tensor(name, [COUNT], content(name, width, torch_stub.ELEMENT_BYTES[name])) for name, width in TORCH.items()}
    torch_stub.write_legacy(sh.work / "little.pt", values)
    torch_stub.write_legacy(sh.work / "big.pt", values, little_endian=False)
    same(sh, "little.pt", "big.pt")


def write_array(folder, document, metadata, chunk, data):
    folder.mkdir(parents=True)
    (folder / document).write_text(json.dumps(metadata))
    (folder / chunk).parent.mkdir(parents=True, exist_ok=True)
    (folder / chunk).write_bytes(data)


def zarr_2(sh):
    for order, sign in (("little", "<"), ("big", ">")):
        for name, width in ZARR.items():
            data = content(name, width, int(name[1:]))
            metadata = {"zarr_format": 2, "shape": [COUNT], "chunks": [COUNT], "dtype": sign + name, "order": "C", "fill_value": None,
                        "filters": None, "compressor": None}
            write_array(sh.work / order / name, ".zarray", metadata, "0", data if order == "little" else swapped(data, width))
        (sh.work / order / ".zgroup").write_text('{"zarr_format": 2}')
    big = {key: t for key, t in sh.tensors("big").items()}
    assert set(big) == set(ZARR), sorted(big)
    through(sh, "little", "big")


def zarr_3(sh):
    for order in ("little", "big"):
        for name, width in ZARR3.items():
            size = 2 * width if name.startswith("complex") else width
            data = content(name, width, size)
            metadata = {"zarr_format": 3, "node_type": "array", "shape": [COUNT], "data_type": name,
                        "fill_value": [0, 0] if name.startswith("complex") else 0, "attributes": {},
                        "codecs": [{"name": "bytes", "configuration": {"endian": order}}],
                        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [COUNT]}},
                        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}}
            write_array(sh.work / order / name, "zarr.json", metadata, "c/0", data if order == "little" else swapped(data, width))
        (sh.work / order / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    through(sh, "little", "big")


TESTS = [("torch zip files", torch_zip), ("legacy streams", torch_legacy), ("zarr 2", zarr_2), ("zarr 3", zarr_3)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    sys.exit(small_models.run(parser.parse_args().bin, TESTS))


main()
