#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard.megatron beside dist_checkpointing: medians of interleaved rounds, and ratios, of ranks that save and load one sharded state.

usage: bench_megatron.py --package build/python [--ranks 2] [--megabytes 512] [--rounds 5] [--folder /dev/shm]
Needs torch and megatron-core. Each rank has its rows of every matrix, and a copy of the norms. Megatron's saves are those of its
FullyParallelSaveStrategyWrapper, as training uses it; its time begins with an empty folder, which it asks for. Its fully parallel loads
need GPUs: here each rank reads what it wants.
"""
import multiprocessing
import os
import warnings

import torch
import torch.distributed as dist
from beside import medians_of, options_of, parser, print_medians, remove, said_by_ranks

WIDTH = 1024


def state(layers, rank, size):
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    rows = WIDTH // size
    found = {"iteration": 3}
    for i in range(layers):
        found[f"layers.{i}.weight"] = ShardedTensor.from_rank_offsets(
            f"layers.{i}.weight", torch.randn(rows, WIDTH), (0, rank, size))
        found[f"layers.{i}.norm"] = ShardedTensor.from_rank_offsets(f"layers.{i}.norm", torch.ones(WIDTH), replica_id=rank)
    return found


def jobs(work, made):
    """{name: (call, its peer, what it writes anew)}: in one round all run, one after the other."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
    from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

    def theirs():
        dist_checkpointing.save(dict(made), str(work / "theirs"), FullyParallelSaveStrategyWrapper(get_default_save_sharded_strategy()))

    return {
        "dist_checkpointing.save": (theirs, None, work / "theirs"),
        "reshard.megatron.save": (lambda: reshard.megatron.save(dict(made), work / "ours"), "dist_checkpointing.save", work / "ours"),
        "reshard.megatron.save, sync=False": (lambda: reshard.megatron.save(dict(made), work / "ours", sync=False),
                                              "dist_checkpointing.save", work / "ours"),
        "dist_checkpointing.load": (lambda: dist_checkpointing.load(dict(made), str(work / "theirs")), None, None),
        "reshard.megatron.load of the same": (lambda: reshard.megatron.load(dict(made), work / "theirs"), "dist_checkpointing.load", None),
    }


def run(rank, args, work, port, said):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.cuda.current_device = torch.cuda.synchronize = lambda *a: "cpu"  # no GPU: megatron-core asks for one in passing
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    tried = jobs(work, state(args.megabytes * 2**20 // (4 * WIDTH * WIDTH), rank, args.ranks))

    def prepare(name):
        written = tried[name][2]
        if rank == 0 and written:
            remove(written)
            written.mkdir()

    medians = medians_of({name: call for name, (call, _, _) in tried.items()}, args.rounds, prepare, dist.barrier)
    if rank == 0:
        said.put((medians, {name: peer for name, (_, peer, _) in tried.items()}))
    said.close()
    said.join_thread()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # gloo's threads


def main():
    global reshard
    options = parser(megabytes=512, rounds=5)
    options.add_argument("--ranks", type=int, default=2)
    args = options_of(options)
    import reshard
    import reshard.megatron
    warnings.simplefilter("ignore")
    medians, peers = said_by_ranks(run, args, 20000 + os.getpid() % 20000)
    print(f"{args.ranks} ranks, {args.megabytes} MiB, {args.rounds} rounds, {args.folder}")
    print_medians(medians, peers, args.megabytes)


if __name__ == "__main__":
    main()
