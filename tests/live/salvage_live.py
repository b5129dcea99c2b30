#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose metadata is lost, rebuilt with that of a sibling: the framework loads the values that were there. Prints TAP.

usage: salvage_live.py --bin RESHARD --framework dcp|torch_dist|flex

Two processes save two checkpoints of one layout and different values, as two steps of a run. One loses what says where things lie; from
its data files and the other's metadata `salvage` writes one that the two processes load.
"""
import argparse
import hashlib
import importlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

import numpy as np

import forks

SHAPES = {"model.embed.weight": (8, 5), "model.proj.weight": (6, 3, 2), "model.bias": (9,), "optimizer.embed.exp_avg": (8, 5)}
WHOLE = ("model.bias",)  # the same on both processes
IMPORTED = {"dcp": ("torch.distributed.checkpoint", "torch.distributed.tensor", "torch._dynamo"), "flex": ("paddle",),
            "torch_dist": ("megatron.core.dist_checkpointing",)}  # once, before the processes are forked
METADATA = {"dcp": [".metadata"], "torch_dist": [".metadata", "metadata.json"], "flex": ["*.metadata"]}


def values(seed):
    return {key: np.random.default_rng([seed, i]).random(shape, np.float32) for i, (key, shape) in enumerate(SHAPES.items())}


def digests(arrays):
    return {key: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for key, array in arrays.items()}


# ---- a process of the frameworks ----


def rows_of(array, rank, key):
    half = len(array) // 2
    return array if key in WHOLE else array[rank * half:(rank + 1) * half]


def joined(parts):
    """Whole arrays of what the two processes hold; what both hold must be the same."""
    assert all(np.array_equal(parts[0][key], parts[1][key]) for key in WHOLE)
    return {key: parts[0][key] if key in WHOLE else np.concatenate([part[key] for part in parts]) for key in SHAPES}


def all_parts(mine):
    import torch.distributed as dist
    parts = [None, None]
    dist.all_gather_object(parts, mine)
    return parts


def dcp(args, arrays):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    dist.init_process_group("gloo", init_method="file://" + args.meeting, rank=args.rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    cut = {key: [Replicate() if key in WHOLE else Shard(0)] for key in arrays}
    state = {key: distribute_tensor(torch.tensor(array), mesh, cut[key]) for key, array in arrays.items()}
    state["step"] = args.seed if args.job == "save" else 0
    if args.job == "save":
        checkpoint.save(state, checkpoint_id=args.folder)
        return None
    checkpoint.load(state, checkpoint_id=args.folder)
    return {key: state[key].full_tensor().numpy() for key in arrays}, state["step"]


def torch_dist(args, arrays):
    import torch
    import torch.distributed as dist
    torch.cuda.current_device, torch.cuda.synchronize = (lambda: "cpu"), lambda *rest: None  # it asks for a GPU in passing
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor
    dist.init_process_group("gloo", init_method="file://" + args.meeting, rank=args.rank, world_size=2)

    def sharded(key, array):
        local = torch.tensor(rows_of(array, args.rank, key))
        cut = [] if key in WHOLE else [(0, args.rank, 2)]
        return ShardedTensor.from_rank_offsets(key, local, *cut, replica_id=args.rank if key in WHOLE else 0)

    state = {key: sharded(key, array) for key, array in arrays.items()}
    if args.job == "save":
        os.makedirs(args.folder, exist_ok=True)
        dist_checkpointing.save(state | {"step": args.seed}, args.folder)
        return None
    loaded = dist_checkpointing.load(state, args.folder)
    return joined(all_parts({key: loaded[key].numpy() for key in arrays})), loaded["step"]


def flex(args, arrays):
    import paddle
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
    paddle.Tensor.cuda = lambda self, *rest, **named: self  # Paddle's exchange asks for a GPU, and does not need one
    paddle.distributed.init_parallel_env()
    state = {}
    for key, array in arrays.items():
        local = rows_of(array, args.rank, key)
        offset = (0 if key in WHOLE else args.rank * len(local),) + (0,) * (array.ndim - 1)
        state[key] = ShardedWeight(key, paddle.to_tensor(local.copy()), local.shape, array.shape, offset)
    if args.job == "save":
        paddle.distributed.save_state_dict(dict(state), args.folder)
        return None
    paddle.distributed.load_state_dict(dict(state), args.folder)
    mine = {key: np.array(weight.local_tensor) for key, weight in state.items()}
    with open(f"{args.meeting}.{args.rank}", "wb") as file:
        np.savez(file, **mine)
    paddle.distributed.barrier()
    return joined([dict(np.load(f"{args.meeting}.{rank}")) for rank in (0, 1)]), None


def one_rank(args):
    given = values(args.seed)
    found = globals()[args.framework](args, given if args.job == "save" else {key: np.zeros_like(array) for key, array in given.items()})
    if found and args.rank == 0:
        pathlib.Path(args.meeting + ".found").write_text(json.dumps([digests(found[0]), found[1]]))


# ---- the test ----


def ends_for_paddle():
    sockets = [socket.socket() for _ in range(3)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    *ends, master = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    together = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ENDPOINTS": ",".join(ends), "PADDLE_MASTER": master,
                "PADDLE_DISTRI_BACKEND": "gloo", "OMP_NUM_THREADS": "1", "GLOG_minloglevel": "2"}
    return [together | {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": ends[rank]} for rank in (0, 1)]


def try_two(framework, job, seed, folder, meeting):
    started = []
    for rank, environment in enumerate(ends_for_paddle() if framework == "flex" else [{}, {}]):
        given = argparse.Namespace(framework=framework, job=job, seed=seed, folder=str(folder), meeting=str(meeting), rank=rank)
        started.append(forks.start(f"{meeting}.log{rank}", one_rank, given, environment=environment))
    return forks.all_ended_well(started, 120)


def two_processes(work, framework, job, seed, folder):
    """What `load` finds. Gloo sometimes fails to connect on a busy machine: three attempts."""
    for attempt in range(3):
        meeting = work / f"{job}-{pathlib.Path(folder).name}-{attempt}"
        if job == "save":
            shutil.rmtree(folder, ignore_errors=True)
        if try_two(framework, job, seed, folder, meeting):
            found = pathlib.Path(f"{meeting}.found")
            return json.loads(found.read_text()) if found.exists() else None
    raise AssertionError(f"{framework} cannot {job}: " + pathlib.Path(f"{meeting}.log0").read_text(errors="replace")[-1500:])


class Test:
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.first, self.sibling = work / "first", work / "sibling"

    def run(self, *words):
        done = subprocess.run([self.args.bin, *map(str, words)], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def hashes(self, path):
        code, out, err = self.run("hash", "--json", path)
        assert code == 0, err
        return {t["key"]: t["hash"] for t in json.loads(out)["tensors"]}

    def make(self):
        for seed, folder in ((1, self.first), (2, self.sibling)):
            two_processes(self.work, self.args.framework, "save", seed, folder)
            assert self.hashes(folder) == digests(values(seed)), f"{folder.name} is read otherwise"
        for pattern in METADATA[self.args.framework]:
            paths = list(self.first.glob(pattern))
            assert paths, f"no {pattern}"
            for path in paths:
                path.unlink()

    def alone(self):
        """Without the sibling: what the data files do not say is refused, or lost."""
        code, out, err = self.run("salvage", self.first, self.work / "alone", "--json")
        if self.args.framework != "flex":
            assert code == 5 and "--like" in err and not (self.work / "alone").exists(), f"exit {code}: {err}"
            return
        lost = {f["key"] for f in json.loads(out)["findings"] if f["kind"] == "lost"}
        assert code == 1 and lost == set(SHAPES) - set(WHOLE), f"exit {code}: lost {lost}"
        assert self.hashes(self.work / "alone") == {k: v for k, v in digests(values(1)).items() if k in WHOLE}

    def with_sibling(self):
        rebuilt = self.work / "rebuilt"
        code, out, err = self.run("salvage", self.first, rebuilt, "--like", self.sibling, "--json")
        assert code == 0, f"exit {code}: {err}"
        report, wanted = json.loads(out), digests(values(1))
        assert report["proved"] == 0 and {f["key"] for f in report["findings"] if f["kind"] == "unproved"} == set(SHAPES), report
        assert self.hashes(rebuilt) == wanted, "reshard reads other values"
        found, step = two_processes(self.work, self.args.framework, "load", 1, rebuilt)
        assert found == wanted, f"{self.args.framework} loads other values: {[k for k in wanted if found.get(k) != wanted[k]]}"
        assert step == (None if self.args.framework == "flex" else 1), f"step {step}"

    def with_a_file_less(self):
        """A data file is gone too: the rest has its values, none of them the sibling's."""
        tensors = json.loads(self.run("ls", "--chunks", "--json", self.sibling)[1])["tensors"]
        kept = next(chunk["file"] for tensor in tensors if tensor["key"] in WHOLE for chunk in tensor["chunks"])
        next(path for path in sorted(self.first.glob("*.distcp")) if path.name != pathlib.Path(kept).name).unlink()
        code, out, err = self.run("salvage", self.first, self.work / "less", "--like", self.sibling, "--json")
        assert code == 1, f"exit {code}: {err}"
        lost, wanted = {f["key"] for f in json.loads(out)["findings"] if f["kind"] == "lost"}, digests(values(1))
        found = self.hashes(self.work / "less")
        assert lost and set(found) == set(wanted) - lost, f"lost {lost}, found {set(found)}"
        assert all(wanted[key] == value for key, value in found.items()), "values that were never there"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=os.path.abspath)
    parser.add_argument("--framework", choices=sorted(METADATA), required=True)
    args = parser.parse_args()
    for name in IMPORTED[args.framework]:
        importlib.import_module(name)
    parts, failed = ("make", "alone", "with_sibling", "with_a_file_less"), 0
    print(f"1..{len(parts)}")
    with tempfile.TemporaryDirectory(prefix="reshard-salvage-") as work:
        test = Test(args, pathlib.Path(work))
        for number, part in enumerate(parts, 1):
            try:
                getattr(test, part)()
                print(f"ok {number} - {args.framework}: {part}", flush=True)
            except Exception as problem:
                failed += 1
                print(f"not ok {number} - {args.framework}: {part}\n# " + str(problem)[-1500:].replace("\n", "\n# "), flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
