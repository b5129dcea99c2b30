#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares every cast with torch: all inputs of 8- and 16-bit types, special and random ones of wider types.

Needs torch and a C compiler; prints one line a pair that differs and exits 1 if there is any.
NaN payloads are not compared: torch's own differ between its vectorised and its scalar loops.
Usage: cast_test.py [REPOSITORY]
"""
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import torch

warnings.filterwarnings("ignore")
ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64",
    "I64": "int64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F16": "float16", "BF16": "bfloat16", "F32": "float32",
    "F64": "float64", "COMPLEX32": "complex32", "C64": "complex64", "C128": "complex128",
}
COMPLEX = {"COMPLEX32": "F16", "C64": "F32", "C128": "F64"}
UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def build(folder):
    library = folder / "cast.so"
    sources = ["src/kernels/cast.c", "src/tensor/dtype.c", "src/base/str.c"]
    subprocess.run(["cc", "-std=gnu17", "-O2", "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{ROOT}/include", f"-I{ROOT}/src", "-o", library]
                   + [str(ROOT / source) for source in sources], check=True)
    return ctypes.CDLL(str(library))


def dtype_numbers():
    table = (ROOT / "src/tensor/dtype.h").read_text()
    names = re.findall(r"^    X\((\w+), \"", table, re.M)
    return {name: number for number, name in enumerate(names)}


def random_bits(kind, count, generator):
    return torch.randint(-2**63, 2**63 - 1, (count * kind.itemsize // 8,), generator=generator, dtype=torch.int64).view(kind)


def inputs(name, generator):
    kind = getattr(torch, TORCH[name])
    if name in COMPLEX:
        part = inputs(COMPLEX[name], generator)
        return torch.cat([part, part.flip(0)]).view(kind) if kind != torch.complex32 else part.view(kind)
    if kind == torch.bool:
        return torch.tensor([False, True] * 64)
    if kind.itemsize == 1:
        return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kind)
    if kind.itemsize == 2:
        return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(kind)
    edges = [0.0, 1.0, 0.5, 1.5, 2.5, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 65504, 65519.99, 65520, 448, 464, 480, 240, 248,
             57344, 61440, 2.0**-24, 2.0**-25, 2.0**-14, 2.0**-15, 2.0**-16, 2.0**-17, 2.0**-18, 2.0**-7, 2.0**-9, 2.0**-10, 2.0**-126,
             2.0**-127, 2.0**-128, 2.0**-149, 2.0**31 - 1, 2.0**31, 2.0**32 - 1, 2.0**32, 2.0**53, 2.0**62]
    if kind.is_floating_point:
        edges += [float("inf"), float("nan"), 2.0**33 + 513, 2.0**63, 1e19, 3e38, 1e38]
        edges += [value * (1 + sign * 2.0**-bits) for value in edges[:40] for bits in (9, 11, 12, 22, 24, 25, 40) for sign in (-1, 1)]
        edges += [-value for value in edges]
        values = torch.tensor(edges, dtype=torch.float64).to(kind)
        spread = torch.randn(60000, generator=generator,
                             dtype=torch.float64) * torch.exp(torch.randn(60000, generator=generator, dtype=torch.float64) * 12)
        return torch.cat([values, spread.to(kind), random_bits(kind, 60000, generator)])
    values = torch.tensor([int(value) for value in edges] + [-int(value) for value in edges], dtype=torch.int64)
    small = torch.randint(-2**20, 2**20, (20000,), generator=generator, dtype=torch.int64)
    return torch.cat([values.to(kind), small.to(kind), random_bits(kind, 60000, generator)])


def bits(tensor):
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor).contiguous()
    return tensor.flatten().view(UNSIGNED[tensor.dtype.itemsize])


def nan(tensor):
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor).contiguous()
    if not tensor.dtype.is_floating_point:
        return torch.zeros(tensor.numel(), dtype=torch.bool)
    return tensor.flatten().double().isnan()


def in_range(source, target):
    """Floats that the integer can hold: of others C says nothing, and torch's answers depend on its code path."""
    if not source.dtype.is_floating_point or target.is_floating_point or target.is_complex or target == torch.bool:
        return torch.ones(source.numel(), dtype=torch.bool)
    value, info = source.double(), torch.iinfo(target)
    return (value > float(info.min) - 1) & (value < float(info.max) + 1)


def main():
    generator = torch.Generator().manual_seed(1)
    numbers = dtype_numbers()
    failures = pairs = 0
    with tempfile.TemporaryDirectory() as folder:
        library = build(pathlib.Path(folder))
        cast = ctypes.create_string_buffer(256)
        for source in TORCH:
            given = inputs(source, generator)
            for target, torch_name in TORCH.items():
                kind = getattr(torch, torch_name)
                found = library.cast_find(numbers[source], numbers[target], cast) & 1
                if bool(found) != ((source in COMPLEX) == (target in COMPLEX)):
                    print(f"{source} -> {target}: cast_find says {found}")
                    failures += 1
                if not found:
                    continue
                pairs += 1
                got = torch.empty(given.numel(), dtype=kind)
                library.cast_run(cast, ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(got.data_ptr()), ctypes.c_size_t(given.numel()))
                expected = given.to(kind)
                wrong = (bits(got) != bits(expected)) & ~(nan(got) & nan(expected))
                if source not in COMPLEX:
                    wrong &= in_range(given, kind)
                if wrong.any():
                    failures += 1
                    at = int(wrong.nonzero()[0])
                    plain = bits(given)[at].item() if source in COMPLEX else (bits(given)[at].item(), given.flatten()[at].double().item())
                    print(f"{source} -> {target}: {int(wrong.sum())} of {wrong.numel()} differ; first: {plain} gives "
                          f"{bits(got)[at].item():#x}, "
                          f"torch {bits(expected)[at].item():#x}")
    print(f"{pairs} pairs, {failures} failures")
    return 1 if failures else 0


sys.exit(main())
