#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that ranks of Paddle's own optimizers save are one checkpoint with whole states: sharding stage 1 V1 and V2, experts. Prints TAP.

Two processes train a model for two steps, and say where in each parameter the elements of their states lie, as Paddle's buffers have it.
Put together they are what is wanted. Experts are those of two models, which number theirs from 0 as the ranks of a job do.

usage: paddle_sharding.py --bin RESHARD
Needs paddlepaddle 3.3 and numpy.
"""
import argparse
import os
import pathlib
import subprocess
import tempfile

import numpy as np
import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.utils import tensor_fusion_helper

from paddle_stage3 import STATES
from paddle_test import Test, differences, digest, shown, failures_of_two

SIZES = {"uneven": (37, 53, 64, 5),
         "bias": (4, 64, 2)}  # of V2 the ranks' border is behind a bias: as many elements of padding as it has itself are the second one's


class Sharding(Test):
    def conflicts(self, path):
        """What verify says of copies that are none."""
        done = subprocess.run([self.bin, "verify", path], capture_output=True, text=True)
        return done.stdout.splitlines() if done.returncode else []


def on_processors():
    """V2 asks for the alignment of a GPU's buffers, and for reduce_scatter, which gloo lacks: the sums are right in the rank's own part."""
    tensor_fusion_helper.get_current_device_type = lambda: "gpu"
    paddle.distributed.reduce_scatter = lambda part, whole, **options: paddle.distributed.all_reduce(whole, **options)


def train(model, optimizer, width, seed):
    for step in range(2):
        inputs = paddle.to_tensor(np.random.default_rng((seed, step)).normal(size=(4, width)).astype("float32"))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()


def runs(optimizer):
    """{the framework's name: (first, behind the last) element that this rank has} of V2's buffers."""
    views = [view for buffer in getattr(optimizer, "_comm_buffer_list", []) for view in buffer._sharding_param_grad_view.items()]
    return {name: (view._param_begin - view._index, view._param_end - view._index) for name, view in views}


def rank_main(work, version, sizes):
    rank, widths = int(os.environ["PADDLE_TRAINER_ID"]), SIZES[sizes]
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"sharding_degree": 2, "dp_degree": 1, "mp_degree": 1, "pp_degree": 1}
    strategy.hybrid_configs["sharding_configs"].split_param = version == "V2"
    on_processors()
    fleet.init(is_collective=True, strategy=strategy)
    paddle.seed(7)
    model = paddle.nn.Sequential(*(paddle.nn.Linear(a, b) for a, b in zip(widths, widths[1:])))
    inner = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    names = {key: (parameter.name, list(parameter.shape)) for key, parameter in model.named_parameters()}
    optimizer = fleet.distributed_optimizer(inner)
    train(fleet.distributed_model(model), optimizer, widths[0], rank)
    (work / "files").mkdir(exist_ok=True)
    paddle.save(optimizer.state_dict(), str(work / "files" / f"optimizer.shard{rank:02d}.pdopt"))
    if rank == 0:
        paddle.save(model.state_dict(), str(work / "files" / "model_state.pdparams"))
    held, where = {}, runs(optimizer._inner_opt)
    for key, (name, shape) in names.items():
        for kind in STATES:
            table = inner._accumulators[kind.removesuffix("_0")]
            if name in table:
                held[f"{key}.{kind}"] = np.array(table[name]), shape, None if "pow" in kind else where.get(name)
    paddle.save(held, str(work / f"held{rank}"))
    paddle.distributed.barrier()


def put_together(parts):
    """What ranks have of one state: all of it, or each a run, which may go on behind the last element."""
    array, shape, run = parts[0]
    if run is None:
        return "F32", list(array.shape), digest(array)
    whole = np.full(int(np.prod(shape)), np.nan, "float32")
    for array, _, (begin, end) in parts:
        assert len(array) == end - begin
        whole[begin:end] = array[:max(0, len(whole) - begin)]
    assert not np.isnan(whole).any()
    return "F32", shape, digest(whole)


def sharding_is_read(test, version, sizes):
    name = f"{version}, {sizes}"
    work = test.work / f"{version}-{sizes}"
    work.mkdir()
    failures = failures_of_two(work, rank_main, version, sizes)
    if failures:
        return test.report(name, failures)
    ranks = [paddle.load(str(work / f"held{rank}"), return_numpy=True) for rank in (0, 1)]
    parts = {key: [rank[key] for rank in ranks if key in rank] for key in {**ranks[0], **ranks[1]}}
    wanted = {key: put_together(value) for key, value in parts.items()} | shown(paddle.load(str(work / "files" / "model_state.pdparams")))
    shared = [key for key, value in parts.items() if len(value) > 1 and value[0][2]]
    is_met = bool(shared) == (version == "V2") and len(wanted) == (len(SIZES[sizes]) - 1) * 2 * (1 + len(STATES))
    failed = test.report(f"states of {name}: {len(shared)} are on both ranks", [] if is_met else [len(wanted)])
    failed += test.report(f"files of {name}", differences(test.tensors(work / "files"), wanted) + test.conflicts(work / "files"))
    flex = test.convert(work / "files", work / "flex", "--to", "paddle-flex", "--layout", "sharding=4,stage=1v2")
    return failed + test.report(f"and as a Flex Checkpoint of four ranks, {name}", differences(test.tensors(flex), wanted))


class Layer(paddle.nn.Layer):
    """Two of four experts. A rank numbers its own from 0, or leaves the places of the others empty, as PaddleFormers' layers do."""
    def __init__(self, rank, has_places):
        super().__init__()
        paddle.seed(1)  # on every rank alike
        self.gate = paddle.nn.Linear(6, 4)
        paddle.seed(10 + rank)
        self.experts = paddle.nn.LayerList([])
        for number in range(4):
            if number // 2 == rank:
                self.experts.append(paddle.nn.Linear(6, 6))
            elif has_places:
                self.experts.append(None)

    def forward(self, inputs):
        return self.gate(sum(expert(inputs) for expert in self.experts if expert is not None))


def experts_are_read(test, has_places, words):
    """What the ranks share is made the same, as it is in a job; Paddle's names of the experts are the same on both ranks."""
    name = f"{words[1]}{', with the places of others' * has_places}"
    folder, wanted = test.work / name, {}
    folder.mkdir()
    for rank in (0, 1):
        with paddle.utils.unique_name.guard():
            model = Layer(rank, has_places)
            optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
            train(model, optimizer, 6, rank)
        weights, states = model.state_dict(), optimizer.state_dict()
        for key, weight in weights.items():
            of_it = [each for each in states if each.startswith(weight.name + "_")]
            own = {"": weight} | {f".{each[len(weight.name) + 1:]}": states[each] for each in of_it}
            if key.startswith("experts."):
                _, number, leaf = key.split(".")
                key = f"experts.{int(number) + 2 * rank * (not has_places)}.{leaf}"
            else:
                for tensor in own.values():
                    tensor.set_value(paddle.full_like(tensor, 0.5))
            wanted |= shown({key + state: tensor for state, tensor in own.items()})
        paddle.save(weights, str(folder / f"model_state.{words[0]}{rank:02d}.pdparams"))
        paddle.save(states, str(folder / f"optimizer.{words[1]}{rank:02d}.pdopt"))
    failed = test.report(f"states of four experts, {name}", [len(wanted)] if len(wanted) != (2 + 4 * 2) * (1 + len(STATES)) else [])
    return failed + test.report(f"files of ranks with experts, {name}", differences(test.tensors(folder), wanted) + test.conflicts(folder))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    parser.add_argument("--root", default=".")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reshard-sharding-") as work:
        test = Sharding(args, pathlib.Path(work))
        failed = sum(sharding_is_read(test, *which) for which in (("V1", "uneven"), ("V2", "uneven"), ("V2", "bias")))
        for words in (("moe", "moe"), ("moe_sharding", "shard")):
            failed += sum(experts_are_read(test, has_places, words) for has_places in (False, True))
    print(f"1..{test.number}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
