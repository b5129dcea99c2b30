#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Paddle's AdamW goes on where torch's left off: state in torch's spelling, of steps that NumPy computes by the rules of AdamW, becomes a
Flex Checkpoint that Paddle loads, and further steps of Paddle give the weights that further steps of NumPy give. Prints TAP.

usage: paddle_goes_on.py --bin PATH
"""
import argparse
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import numpy as np
import paddle
import small_models
import torch_stub

RATE, BETAS, DECAY, EPSILON, BEFORE, BEHIND = 0.01, (0.9, 0.95), 0.1, 1e-8, 3, 4
MAP = "#: from hf\n#: to paddle\n#: keys weight bias\n#: back weight bias\nweight^T -> weight\n"


class Numpy:
    """A linear layer, [in, out], whose mean square is made small by AdamW, in float64."""

    def __init__(self, draw):
        self.values = {"weight": draw.normal(size=(6, 4)), "bias": draw.normal(size=4)}
        self.first, self.second = ({key: np.zeros_like(value) for key, value in self.values.items()} for _ in range(2))
        self.steps = 0

    def step(self, inputs):
        outputs = inputs @ self.values["weight"] + self.values["bias"]
        slope = 2 * outputs / outputs.size
        self.steps += 1
        for key, gradient in (("weight", inputs.T @ slope), ("bias", slope.sum(axis=0))):
            self.values[key] *= 1 - RATE * DECAY
            self.first[key] = BETAS[0] * self.first[key] + (1 - BETAS[0]) * gradient
            self.second[key] = BETAS[1] * self.second[key] + (1 - BETAS[1]) * gradient ** 2
            first, second = self.first[key] / (1 - BETAS[0] ** self.steps), self.second[key] / (1 - BETAS[1] ** self.steps)
            self.values[key] -= RATE * first / (np.sqrt(second) + EPSILON)


def stub(array):
    flat = np.ascontiguousarray(array, dtype="<f4")
    return torch_stub.tensor("FloatStorage", list(flat.shape), flat.tobytes())


def write_torch(path, model):
    """As torch has it: weights as [out, in], a step for each parameter."""
    turned = {name: {key: array.T for key, array in getattr(model, name).items()} for name in ("values", "first", "second")}
    state = {key: {"step": torch_stub.tensor("FloatStorage", [], struct.pack("<f", model.steps)), "exp_avg": stub(turned["first"][key]),
                   "exp_avg_sq": stub(turned["second"][key])} for key in model.values}
    groups = [{"lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY, "params": list(model.values)}]
    torch_stub.write_zip(path, {**{key: stub(array) for key, array in turned["values"].items()},
                                "optimizer": {"state": state, "param_groups": groups}})


def named(optimizer, layer):
    """{structured key: the framework's own} of the optimizer's state."""
    own = {parameter.name: key for key, parameter in layer.state_dict().items()}
    return {f"{own[name]}.{key[len(name) + 1:]}": key for key, value in optimizer.state_dict().items() for name in own
            if isinstance(value, paddle.Tensor) and key.startswith(name + "_")}


def load(folder, layer, optimizer):
    paths = named(optimizer, layer)
    assert {key.split(".")[1] for key in paths} == {"moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0"}, paths
    wanted = {key: paddle.zeros_like(value) for key, value in layer.state_dict().items()}
    wanted |= {key: paddle.full_like(optimizer.state_dict()[name], -1.0) for key, name in paths.items()}
    paddle.distributed.load_state_dict(wanted, str(folder))
    layer.set_state_dict({key: wanted[key] for key in layer.state_dict()})
    optimizer.set_state_dict({**optimizer.state_dict(), **{name: wanted[key] for key, name in paths.items()}})


def goes_on(shell):
    draw = np.random.default_rng(3)
    model, inputs = Numpy(draw), [draw.normal(size=(5, 6)) for _ in range(BEFORE + BEHIND)]
    layer = paddle.nn.Linear(6, 4)
    optimizer = paddle.optimizer.AdamW(RATE, BETAS[0], BETAS[1], EPSILON, layer.parameters(), weight_decay=DECAY)

    def step(batch):
        (layer(paddle.to_tensor(batch.astype("float32"))) ** 2).mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    step(inputs[0])  # makes the state that is loaded into
    for batch in inputs[:BEFORE]:
        model.step(batch)
    write_torch(shell.work / "torch.pt", model)
    (shell.work / "linear.map").write_text(MAP)
    shell("convert", "torch.pt", "flex", "--to", "paddle-flex", "--rules", "linear.map", "--verify")
    load(shell.work / "flex", layer, optimizer)
    for batch in inputs[BEFORE:]:
        model.step(batch)
        step(batch)
    for key, value in layer.state_dict().items():
        found = float(np.abs(np.array(value) - model.values[key]).max())
        assert found < 2e-6, (key, found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    return small_models.run(parser.parse_args().bin, [("AdamW of Paddle goes on with state of torch's", goes_on)])


if __name__ == "__main__":
    raise SystemExit(main())
