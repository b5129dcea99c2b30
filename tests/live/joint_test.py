#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What several ranks save together loads in torch, Megatron Core, safetensors, Paddle and atorch; and what these save loads under 1 to 4
ranks. Prints TAP.

usage: joint_test.py --program TEST_JOINT
Whichever of torch, megatron.core, safetensors, paddle and atorch is there is asked. RESHARD_FIXTURES is passed on to the program.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

import forks

SHAPES = {"rows": (24, 3), "columns": (5, 12), "layers": (12, 4), "copy": (7,), "flat": (5, 6), "scalar": ()}
RANKS = (1, 2, 3, 4)
REMOVED, LEFT = ("torch-dcp", "torch_dist"), ("rows", "layers", "flat", "scalar")  # without what begins with "co"


def has(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def count(shape):
    total = 1
    for extent in shape:
        total *= extent
    return total


def torch_tensors():
    import torch
    return {key: (torch.arange(float(count(shape))) + 1000 * number).reshape(shape)
            for number, (key, shape) in enumerate(SHAPES.items(), 1)}


def torch_loads(path, left=tuple(SHAPES)):
    import torch
    import torch.distributed.checkpoint as dcp
    wanted = {key: tensor for key, tensor in torch_tensors().items() if key in left}
    found = {key: torch.zeros_like(tensor) for key, tensor in wanted.items()}
    dcp.load(found, checkpoint_id=str(path), no_dist=True)
    return [key for key in wanted if not torch.equal(wanted[key], found[key])]


def megatron_loads(path, left=tuple(SHAPES)):
    import torch
    from megatron.core import dist_checkpointing
    wanted = {key: tensor for key, tensor in torch_tensors().items() if key in left}
    make = dist_checkpointing.ShardedTensor.from_rank_offsets
    state = {key: make(key, torch.zeros_like(tensor)) for key, tensor in wanted.items() if key != "layers"}
    state["layers"] = [make("layers", torch.zeros(4), (0, i, 12), prepend_axis_num=1) for i in range(12)]
    found = dist_checkpointing.load(state, str(path))
    wrong = [key for key in state if key != "layers" and not torch.equal(wanted[key], found[key])]
    wrong += ["layers"] if not torch.equal(torch.stack(list(found["layers"])), wanted["layers"]) else []
    return wrong + (["iteration"] if found["iteration"] != 7 else [])


def megatron_world():
    import torch
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
    torch.cuda.current_device = torch.cuda.synchronize = lambda *a: "cpu"  # no GPU: megatron-core asks for one in passing
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)


def paddle_loads(path):
    import numpy
    import paddle
    wanted = {key: (numpy.arange(float(count(shape)), dtype="float32") + 1000 * number).reshape(shape)
              for number, (key, shape) in enumerate(SHAPES.items(), 1)}
    found = {key: paddle.zeros(array.shape, dtype="float32") for key, array in wanted.items()}
    paddle.distributed.load_state_dict(found, str(path))
    return [key for key in wanted if not numpy.array_equal(found[key].numpy(), wanted[key])]


def torch_saves(path):
    import torch.distributed.checkpoint as dcp
    dcp.save(torch_tensors(), checkpoint_id=str(path), no_dist=True)


def megatron_saves(path):
    from megatron.core import dist_checkpointing
    path.mkdir()
    tensors = torch_tensors()
    make = dist_checkpointing.ShardedTensor.from_rank_offsets
    state = {key: make(key, tensor) for key, tensor in tensors.items() if key != "layers"}
    state["layers"] = [make("layers", tensors["layers"][i].contiguous(), (0, i, 12), prepend_axis_num=1) for i in range(12)]
    dist_checkpointing.save(state, str(path))


def paddle_saves(path):
    import numpy
    import paddle
    state = {key: paddle.to_tensor((numpy.arange(float(count(shape)), dtype="float32") + 1000 * number).reshape(shape))
             for number, (key, shape) in enumerate(SHAPES.items(), 1)}
    paddle.distributed.save_state_dict(state, str(path))


def safetensors_loads(path):
    import torch
    from safetensors.torch import load_file
    wanted, found = torch_tensors(), {}
    for file in path.glob("*.safetensors"):
        found.update(load_file(file))
    return [key for key in wanted if key not in found or not torch.equal(wanted[key], found[key])]


def safetensors_saves(path):
    from safetensors.torch import save_file
    path.mkdir()
    tensors = torch_tensors()
    parts, places = [dict(list(tensors.items())[:3]), dict(list(tensors.items())[3:])], {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-00002.safetensors"
        save_file(part, path / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(part, name))
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def atorch_world():
    import logging
    import torch
    torch.cuda.current_device = torch.cuda.synchronize = lambda *a: None  # atorch calls them for the CPU too
    sys.modules.setdefault("pynvml", types.ModuleType("pynvml"))
    logging.disable(logging.WARNING)


def atorch_loads(path):
    import torch
    from atorch.utils import fsdp_save_util as util
    wanted, loader = torch_tensors(), util.ShardTensorUtil(str(path), 0, 1, device="cpu")
    return [key for key in wanted if not torch.equal(loader.load_tensor_by_name(key), wanted[key])]


def atorch_rank(path):
    """One rank of a job under FSDP: saves by atorch itself."""
    atorch_world()
    import torch
    import atorch
    from atorch.distributed.distributed import create_parallel_group
    from atorch.utils import fsdp_save_util as util
    from torch.distributed.fsdp import FullyShardedDataParallel
    assert atorch.init_distributed("gloo")
    create_parallel_group(([("data", torch.distributed.get_world_size())], None))
    model = torch.nn.Module()
    for key, tensor in torch_tensors().items():
        if tensor.dim():
            model.register_parameter(key, torch.nn.Parameter(tensor))
        else:
            model.register_buffer(key, tensor)  # FSDP takes no scalars
    model.forward = lambda x: sum((p * x).sum() for p in model.parameters())
    model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    model(torch.ones(())).backward()
    util.save_fsdp_flat_param(model, path)


def atorch_saves(path):
    path.mkdir()
    port = 20000 + os.getpid() % 20000
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MASTER_PORT2": str(port + 1), "WORLD_SIZE": "2",
             "LOCAL_WORLD_SIZE": "2", "NPROC_PER_NODE": "2"}
    logs = [f"{path}.log{rank}" for rank in "01"]
    ranks = [forks.start(log, atorch_rank, path, environment=world | {"RANK": rank, "LOCAL_RANK": rank}) for log, rank in zip(logs, "01")]
    if not forks.all_ended_well(ranks, 240):
        raise RuntimeError("".join(pathlib.Path(log).read_text(errors="replace")[-1000:] for log in logs))


def run(program, folder, load=None):
    environment = dict(os.environ, RESHARD_JOINT_FOLDER=str(folder))
    if load:
        environment["RESHARD_JOINT_LOAD"] = str(load)
    return subprocess.run([program], env=environment, capture_output=True, text=True)


def frameworks():
    if has("torch") and has("torch.distributed.checkpoint"):
        yield "torch", "torch-dcp", torch_loads, torch_saves
    if has("megatron.core"):
        megatron_world()
        yield "Megatron Core", "torch_dist", megatron_loads, megatron_saves
    if has("torch") and has("safetensors"):
        yield "safetensors", "hf", safetensors_loads, safetensors_saves
    if has("atorch"):
        atorch_world()
        yield "atorch", "atorch", atorch_loads, atorch_saves
    if has("paddle"):
        yield "Paddle", "paddle-flex", paddle_loads, paddle_saves


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    arguments = parser.parse_args()
    number = failed = 0

    def tell(good, text, why=""):
        nonlocal number, failed
        number, failed = number + 1, failed + (not good)
        print(f"{'ok' if good else 'not ok'} {number} - {text}{'' if good else ': ' + str(why)}", flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        saved = folder / "saved"
        saved.mkdir()
        result = run(arguments.program, saved)
        tell(result.returncode == 0, "ranks save", result.stdout + result.stderr)
        for name, form, loads, saves in frameworks():
            for ranks in RANKS:
                path = saved / f"{form}-{ranks}"
                roots = [child for child in path.iterdir() if child.is_dir()]
                wrong = loads(roots[0] if roots else path)
                tell(not wrong, f"{name} loads what {ranks} ranks saved", wrong)
            if form in REMOVED:
                path = saved / f"removed-{form}"
                roots = [child for child in path.iterdir() if child.is_dir()]
                wrong = loads(roots[0] if roots else path, LEFT)
                tell(not wrong, f"{name} loads what is left where tensors were removed", wrong)
            saves(folder / form)
            result = run(arguments.program, saved, folder / form)
            tell(result.returncode == 0, f"1 to 4 ranks load what {name} saved", result.stdout + result.stderr)
    print(f"1..{number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
