#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that two ranks of Paddle's own sharding stage 3 (GroupShardedStage3) save are one checkpoint with whole states. Prints TAP.

The float32 model is trained for two steps. A CPU lacks the kernels of bfloat16: there Paddle makes master weights and states, and their
values are made up. Each rank also says what its arrays hold; put together they are what is wanted.

usage: paddle_stage3.py --bin RESHARD
Needs paddlepaddle 3.3 and numpy.
"""
import argparse
import os
import pathlib
import tempfile

import numpy as np
import paddle
from paddle.base import core
from paddle.distributed.fleet.meta_parallel.sharding import group_sharded_stage3

from paddle_test import Test, differences, digest, shown, failures_of_two

SEGMENT = 40     # more elements are cut: of the biases the first two
STATES = ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0")


def sharded(dtype):
    """A model under stage 3, on a CPU, which Paddle's constructor has a question against only."""
    paddle.seed(7)
    model = paddle.nn.Sequential(paddle.nn.Linear(37, 53), paddle.nn.Linear(53, 1024), paddle.nn.Linear(1024, 5)).to(dtype=dtype)
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters(), multi_precision=True)
    real, core.is_compiled_with_cuda = core.is_compiled_with_cuda, lambda: True
    try:
        return model, group_sharded_stage3.GroupShardedStage3(model, optimizer, device="cpu", segment_size=SEGMENT)
    finally:
        core.is_compiled_with_cuda = real


def train(stage3):
    for step in range(2):
        inputs = paddle.to_tensor(np.random.default_rng(step).normal(size=(4, 37)).astype("float32"))
        stage3(inputs).square().mean().backward()
        stage3._optim.step()
        stage3._optim.clear_grad()


def make_up_states(stage3, rank):
    """As step() makes them, but with values: those of slices are other ones on each rank."""
    optimizer = stage3._optim
    held = [getattr(parameter, "fw_storage", parameter) for parameter in optimizer._parameter_list]
    optimizer._create_accumulators(paddle.base.framework.default_main_program().global_block(), held)
    cut = {parameter.name for parameter in optimizer._parameter_list if hasattr(parameter, "fw_storage")}
    state = optimizer.state_dict()
    for number, (name, tensor) in enumerate([*state.items(), *state["master_weights"].items()]):
        if not isinstance(tensor, paddle.Tensor):
            continue
        is_part = "pow" not in name and any(name.removeprefix("slice@").startswith(each) for each in cut)
        values = np.random.default_rng((number, rank if is_part else 9)).normal(size=tensor.shape)
        tensor.set_value(values.astype("float32"))


def rank_main(work, dtype):
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    paddle.distributed.init_parallel_env()
    model, stage3 = sharded(dtype)
    shapes = {key: (parameter.name, list(parameter.shape), hasattr(parameter, "fw_storage")) for key, parameter in model.named_parameters()}
    if dtype == "float32":
        train(stage3)
    else:
        make_up_states(stage3, rank)
    state = stage3._optim.state_dict()
    (work / "files").mkdir(exist_ok=True)
    paddle.save(state, str(work / "files" / f"optimizer.shard{rank:02d}.pdopt"))
    stage3.get_all_parameters()
    if rank == 0:
        paddle.save(model.state_dict(), str(work / "files" / "model_state.pdparams"))
    # What Paddle calls the states of each parameter, by the optimizer's own tables, not by their names.
    held = {}
    for key, (name, shape, is_cut) in shapes.items():
        for kind in STATES:
            table = stage3._optim._accumulators[kind.removesuffix("_0")]
            held[f"{key}.{kind}"] = table[name] if name in table else table["slice@" + name], shape, is_cut and "pow" not in kind
        masters = state.get("master_weights", {})
        if dtype != "float32":
            held[f"{key}.w_0"] = masters["slice@" + name if is_cut else name], shape, is_cut
    paddle.save({key: (np.array(tensor), shape, is_cut) for key, (tensor, shape, is_cut) in held.items()}, str(work / f"held{rank}"))
    paddle.distributed.barrier()


def whole(first, second):
    array, shape, is_cut = first
    if not is_cut:
        return ("F32", list(array.shape), digest(array))
    values = np.concatenate([array, second[0]])[:int(np.prod(shape))]
    return ("F32", shape, digest(values))


def stage3_is_read(test, dtype):
    work = test.work / dtype
    work.mkdir()
    failures = failures_of_two(work, rank_main, dtype)
    if failures:
        return test.report(f"stage 3 of {dtype}", failures)
    first, second = (paddle.load(str(work / f"held{rank}"), return_numpy=True) for rank in (0, 1))
    wanted = {key: whole(first[key], second[key]) for key in first}
    wanted |= shown(paddle.load(str(work / "files" / "model_state.pdparams")))
    count = 6 * (len(STATES) + 1 + (dtype != "float32"))
    failed = test.report(f"states of {dtype}, some of them slices", [len(wanted)] if len(wanted) != count or
                         sum(is_cut for _, _, is_cut in first.values()) < 10 else [])
    failed += test.report(f"files of stage 3, {dtype}", differences(test.tensors(work / "files"), wanted))
    words = "--to", "paddle-flex", "--layout", "sharding=4,stage=3", "-o", f"segment-size={SEGMENT}"
    flex = test.convert(work / "files", work / "flex", *words)
    return failed + test.report(f"and as a Flex Checkpoint of four ranks, {dtype}", differences(test.tensors(flex), wanted))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    parser.add_argument("--root", default=".")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reshard-stage3-") as work:
        test = Test(args, pathlib.Path(work))
        failed = sum(stage3_is_read(test, dtype) for dtype in ("float32", "bfloat16"))
    print(f"1..{test.number}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
