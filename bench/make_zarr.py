#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a zarr group of four float32 arrays as they come from bfloat16 weights. usage: make_zarr.py PATH blosc|zstd GIGABYTES"""
import sys

import numpy
import zarr
from numcodecs import Blosc, Zstd

path, codec, gigabytes = sys.argv[1], sys.argv[2], float(sys.argv[3])
generator, columns = numpy.random.default_rng(0), 4096
rows = int(gigabytes * 1e9 / 4 / 4 / columns)
root = zarr.open_group(path, mode="w", zarr_format=2)
for number in range(4):
    weights = (generator.standard_normal((rows, columns)).astype("f4").view("u4") & 0xFFFF0000).view("f4")
    # Chunks of whole rows, and a grid in which every row crosses four chunks.
    chunks = (512, columns) if number % 2 else (1024, columns // 4)
    compressor = Blosc("lz4", 5, 1) if codec == "blosc" else Zstd(1)
    root.create_array(f"w{number}", shape=weights.shape, chunks=chunks, dtype="f4", compressors=compressor)[...] = weights
