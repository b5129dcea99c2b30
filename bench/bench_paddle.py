#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard.paddle beside Paddle's save_state_dict and load_state_dict: medians of interleaved rounds, and ratios, of ranks that save and
load one sharded state, as it was saved and under another layout.

usage: bench_paddle.py --package build/python [--ranks 2] [--megabytes 512] [--rounds 5] [--folder /dev/shm]
Needs Paddle. Each rank has its rows of every matrix, and a copy of the norms; or its columns.
"""
import logging
import os
import socket
import warnings

from beside import medians_of, options_of, parser, print_medians, remove, said_by_ranks

WIDTH = 1024


def state(layers, rank, size, axis):
    import paddle
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
    shape, offset, found = [WIDTH, WIDTH], [0, 0], {}
    shape[axis] //= size
    offset[axis] = rank * shape[axis]
    for i in range(layers):
        found[f"layers.{i}.weight"] = ShardedWeight(f"layers.{i}.weight", paddle.randn(shape), tuple(shape), (WIDTH, WIDTH), tuple(offset))
        found[f"layers.{i}.norm"] = ShardedWeight(f"layers.{i}.norm", paddle.ones([WIDTH]), (WIDTH,), (WIDTH,), (0,))
    return found


def jobs(work, rows, columns):
    """{name: (call, its peer, what it writes anew)}: in one round all run, one after the other."""
    import paddle.distributed as dist
    theirs, ours = work / "theirs", work / "ours"
    return {
        "dist.save_state_dict": (lambda: dist.save_state_dict(dict(rows), str(theirs)), None, theirs),
        "reshard.paddle.save": (lambda: reshard.paddle.save(rows, ours), "dist.save_state_dict", ours),
        "reshard.paddle.save, sync=False": (lambda: reshard.paddle.save(rows, ours, sync=False), "dist.save_state_dict", ours),
        "dist.load_state_dict": (lambda: dist.load_state_dict(dict(rows), str(theirs)), None, None),
        "reshard.paddle.load of the same": (lambda: reshard.paddle.load(rows, theirs), "dist.load_state_dict", None),
        "dist.load_state_dict, columns": (lambda: dist.load_state_dict(dict(columns), str(theirs)), None, None),
        "reshard.paddle.load, columns": (lambda: reshard.paddle.load(columns, theirs), "dist.load_state_dict, columns", None),
    }


def run(rank, args, work, ends, said):
    os.environ.update(PADDLE_TRAINERS_NUM=str(args.ranks), PADDLE_TRAINER_ENDPOINTS=",".join(ends[1:]), PADDLE_MASTER=ends[0],
                      PADDLE_DISTRI_BACKEND="gloo", PADDLE_TRAINER_ID=str(rank), PADDLE_CURRENT_ENDPOINT=ends[1 + rank])
    import paddle
    import paddle.distributed as dist
    paddle.Tensor.cuda = lambda self, *args, **named: self  # Paddle's exchange asks for a GPU, and does not need one
    dist.init_parallel_env()
    layers = args.megabytes * 2**20 // (4 * WIDTH * WIDTH)
    tried = jobs(work, *(state(layers, rank, args.ranks, axis) for axis in (0, 1)))
    medians = medians_of({name: call for name, (call, _, _) in tried.items()}, args.rounds,
                         lambda name: remove(tried[name][2]) if rank == 0 and tried[name][2] else None, dist.barrier)
    if rank == 0:
        said.put((medians, {name: peer for name, (_, peer, _) in tried.items()}))
    said.close()
    said.join_thread()
    os._exit(0)


def main():
    global reshard
    options = parser(megabytes=512, rounds=5)
    options.add_argument("--ranks", type=int, default=2)
    args = options_of(options)
    import reshard
    import reshard.paddle
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(args.ranks + 1)]
    ends = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    medians, peers = said_by_ranks(run, args, ends)
    print(f"{args.ranks} ranks, {args.megabytes} MiB, {args.rounds} rounds, {args.folder}")
    print_medians(medians, peers, args.megabytes)


if __name__ == "__main__":
    main()
