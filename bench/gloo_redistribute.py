#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench_redistribute does, by torch.distributed: all ranks gather all shards of each matrix over gloo and cut out their own.

usage: gloo_redistribute.py tp|ep [MEGABYTES]. Prints seconds of the slowest rank, the median of three rounds behind a first.
"""
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, ROWS, COLUMNS, ROUNDS = 4, 4096, 4096, 3


def shards_of(kind, rank, count):
    """What a rank has, and what it wants to fill: as in bench_redistribute.c."""
    def part(matrix, at, parts):
        shape = [ROWS, COLUMNS]
        shape[matrix % 2] //= parts
        return torch.full(shape, matrix + at, dtype=torch.bfloat16)

    if kind == "ep":
        source = {i: torch.full((ROWS, COLUMNS), i, dtype=torch.bfloat16) for i in range(count) if i // 2 % RANKS == rank}
        return source, {i: part(i, 0, RANKS) for i in range(count)}
    return {i: part(i, rank, RANKS) for i in range(count)}, {i: part(i, 0, 2) for i in range(count)}


def move(kind, rank, source, target, count):
    if kind == "tp":
        for i in range(count):
            parts = [torch.empty_like(source[i]) for _ in range(RANKS)]
            dist.all_gather(parts, source[i])
            half = rank % 2 * 2
            target[i].copy_(torch.cat(parts[half:half + 2], dim=i % 2))
        return
    for first in range(0, count, 2 * RANKS):  # two matrices of an expert of each rank
        for matrix in range(2):
            own = source[first + 2 * rank + matrix]
            parts = [torch.empty_like(own) for _ in range(RANKS)]
            dist.all_gather(parts, own)
            for other, whole in enumerate(parts):
                i = first + 2 * other + matrix
                target[i].copy_(whole.chunk(RANKS, dim=i % 2)[rank])


def run(rank, kind, count, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=RANKS)
    source, target = shards_of(kind, rank, count)
    spent = []
    for _ in range(1 + ROUNDS):
        dist.barrier()
        began = time.perf_counter()
        move(kind, rank, source, target, count)
        seconds = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        spent.append(float(seconds))
    if rank == 0:
        print(f"{statistics.median(spent[1:]):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    matrices = int(sys.argv[2] if len(sys.argv) > 2 else 2000) * 1000000 // (ROWS * COLUMNS * 2) // 8 * 8
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (sys.argv[1], matrices, os.path.join(folder, "meeting")), RANKS)
