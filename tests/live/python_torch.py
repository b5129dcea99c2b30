#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package for Python with torch and numpy: arrays without a copy, every type, state dicts there and back, and ranks of
torch.distributed with DTensors, whose checkpoints torch loads and whose checkpoints of torch it loads. Prints TAP.

usage: python_torch.py --package DIR --bin PATH
"""
import argparse
import datetime
import io
import json
import multiprocessing
import os
import pathlib
import random
import re
import subprocess
import sys
import traceback
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import built_package
import numpy
import small_models
import torch
import torch._dynamo  # noqa: F401  that DTensors import; once, before ranks are forked
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import Shard as SavedShard
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch_tensors import of_every_type, same

TYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
         torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.uint16, torch.uint32, torch.uint64]


def every_type(work):
    """Tensors of every type come back bit by bit: torch, DLPack and numpy see the same memory"""
    tensors = of_every_type(TYPES)
    reshard.save(work / "all", tensors, to="torch-dcp")
    with reshard.open(work / "all") as checkpoint:
        for key, expected in tensors.items():
            array = checkpoint.tensors[key].read()
            assert same(array.torch(), expected), key
            assert array.torch().data_ptr() == array.address
            if not key.endswith(("uint16", "uint32", "uint64")) and "float8" not in key:
                lent = torch.from_dlpack(array)
                assert same(lent, expected) and lent.data_ptr() == array.address, key
            if "float8" not in key and key != "torch.bfloat16":
                assert numpy.array_equal(array.numpy().view("u1"), expected.numpy().view("u1")), key
                assert numpy.asarray(array).ctypes.data == array.address
    found = reshard.torch.read(work / "all")
    assert all(same(found[key], expected) for key, expected in tensors.items())
    found = reshard.torch.read(work / "all", device="cpu")
    assert all(same(found[key], expected) for key, expected in tensors.items()) and list(found) == list(tensors)
    assert same(reshard.torch.read(work / "all", ["torch.float32"], device="cpu", dtype="bf16")["torch.float32"],
                tensors["torch.float32"].bfloat16())
    dcp.load(loaded := {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}, checkpoint_id=work / "all")
    assert all(same(loaded[key], expected) for key, expected in tensors.items())
    try:
        import ml_dtypes
    except ImportError:
        return "without ml_dtypes"
    with reshard.open(work / "all") as checkpoint:
        seen = checkpoint.tensors["torch.bfloat16"].numpy()
        assert seen.dtype == ml_dtypes.bfloat16
        reshard.save(work / "ml", {"w": seen}, to="safetensors")
    with reshard.open(work / "ml") as checkpoint:
        assert checkpoint.tensors["w"].dtype == "BF16" and same(checkpoint.tensors["w"].torch(), tensors["torch.bfloat16"])


def arrays_of_others(work):
    """Arrays of numpy and torch are taken as they lie: transposed, in steps, of the other byte order, read-only, negative strides"""
    base = numpy.arange(48, dtype="f4").reshape(6, 8)
    state = {"t": base.T, "step": base[::2, ::3], "torch": torch.arange(48.).reshape(6, 8)[1::2].t(), "scalar": numpy.float32(3), "zero":
             torch.zeros(0, 3), "one": torch.tensor(5), "parameter": torch.nn.Parameter(torch.ones(2)),
             "expanded": torch.arange(3.).expand(2, 3), "windows": torch.arange(10.).unfold(0, 4, 2),
             "wide": numpy.broadcast_to(base[0], (3, 8))}
    reshard.save(work / "s", state, to="torch-dcp")
    with reshard.open(work / "s") as checkpoint:
        for key in ("t", "step"):
            assert numpy.array_equal(checkpoint.tensors[key].numpy(), state[key]), key
        assert torch.equal(checkpoint.tensors["torch"].torch(), state["torch"]) and checkpoint.items["scalar"] == 3.0
        assert checkpoint.tensors["one"].torch() == 5 and checkpoint.tensors["zero"].shape == (0, 3)
        assert numpy.array_equal(numpy.asarray(checkpoint.tensors["t"]), base.T)
        assert all(torch.equal(checkpoint.tensors[key].torch(), state[key]) for key in ("expanded", "windows"))
        assert numpy.array_equal(checkpoint.tensors["wide"].numpy(), state["wide"])
        whole = torch.arange(48.).reshape(6, 8)
        with reshard.from_memory({"t": whole.t()}) as live:
            whole += 1  # values are seen when they are read
            assert torch.equal(live.tensors["t"].read().torch(), torch.arange(1., 49).reshape(6, 8).t())
        out = numpy.zeros((12, 8), "f8")
        checkpoint.tensors["t"].read(out=out.T[:, ::2])
        assert numpy.array_equal(out[::2], base) and not out[1::2].any()
        strided = torch.zeros(8, 12, dtype=torch.bfloat16)[:, ::2]
        checkpoint.load_into({"t": strided})
        assert torch.equal(strided.float(), torch.tensor(base.T.copy()))
        fixed = numpy.zeros((8, 6), "f4")
        fixed.flags.writeable = False
        for wrong in (base.astype(">f4"), base[::-1], numpy.array(["a"]), quantised(torch.ones(2))):
            try:
                reshard.save(work / "x", {"w": wrong}, to="torch-dcp")
                raise AssertionError(f"{wrong.dtype} was taken")
            except reshard.UsageError:
                pass
        twice = torch.zeros(1, 6).expand(8, 6)
        for wrong in (fixed, torch.zeros(8, 6).to_sparse(), torch.zeros(8, 6, device="meta"), quantised(torch.zeros(8, 6)), twice):
            try:
                checkpoint.tensors["t"].read(out=wrong)
                raise AssertionError(f"{type(wrong)} was filled")
            except (reshard.UsageError, BufferError, RuntimeError) as error:
                assert re.search("read-only|sparse|no memory|quantised|share places|single memory", str(error)), error
    # What torch has with a scale only is shown as bytes.
    integers = reshard.Array("qint8", (3,))
    memoryview(integers.raw)[:] = b"\1\2\3"
    reshard.save(work / "q", {"w": integers}, to="torch-dcp")
    for call in (lambda: reshard.torch.read(work / "q"), lambda: reshard.torch.read(work / "q", device="cpu")):
        try:
            call()
            raise AssertionError("a tensor of qint8 was made")
        except reshard.UsageError as error:
            assert "raw" in str(error), error
    with reshard.open(work / "q") as checkpoint:
        assert checkpoint.tensors["w"].read().raw.torch().tolist() == [1, 2, 3]


def quantised(tensor):
    return torch.quantize_per_tensor(tensor, 0.1, 3, torch.qint8)


def nested_states(work):
    """A state dict of torch as it was saved: nested, with items in their places; and torch loads what is written"""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "list": [torch.ones(2), {"a": "b"}]}
    torch.save(whole, work / "own.pt")
    torch.save({"a.b": torch.zeros(4), "a": {"b": torch.ones(4)}}, work / "twice.pt")
    with reshard.open(work / "twice.pt") as checkpoint:
        for tensor, expected in zip(checkpoint.tensor_list, (0, 1), strict=True):
            assert (tensor.read(out=torch.full((4,), 7.)) == expected).all(), tensor
    found = reshard.torch.read(work / "own.pt", nested=True)
    assert found["step"] == 7 and same(found["model"]["0.weight"], whole["model"]["0.weight"])
    assert same(found["optimizer"]["state"][1]["exp_avg"], whole["optimizer"]["state"][1]["exp_avg"])
    assert same(found["list"][0], whole["list"][0])
    reshard.torch.save(work / "ours.pt", whole["model"], to="torch")
    again = torch.load(work / "ours.pt", weights_only=True)
    assert set(again) == set(whole["model"]) and all(same(again[key], value) for key, value in whole["model"].items())
    empty = {key: torch.zeros_like(value) for key, value in whole["model"].items()}
    loaded = reshard.torch.load(work / "ours.pt", empty)
    assert all(same(empty[key], value) for key, value in whole["model"].items()) and not loaded.unexpected
    seen = torch.arange(3)
    odd = {"w": torch.ones(2), "args": argparse.Namespace(lr=0.5, seen=seen, tail=seen[1:]), "rng": {3: torch.arange(4, dtype=torch.uint8)},
           "in": {"v": torch.zeros(1), "date": datetime.date(2026, 1, 2)}, "plain": {"a": [1, "b"]}}
    reshard.torch.save(work / "odd.pt", odd, to="torch")
    found = torch.load(work / "odd.pt", weights_only=False)
    assert found["args"].lr == 0.5 and same(found["args"].seen, odd["args"].seen) and same(found["rng.3"], odd["rng"][3])
    assert found["in.date"] == odd["in"]["date"] and found["plain"] == odd["plain"] and same(found["w"], odd["w"])
    for by in ("thread", "process"):
        with reshard.torch.Saver(by) as saver:
            saver.save(work / by, odd, to="torch")
        found = torch.load(work / by, weights_only=False)
        assert found["args"].lr == 0.5 and same(found["args"].seen, seen) and found["in.date"] == odd["in"]["date"], by
    with reshard.open(work / "odd.pt") as checkpoint:
        assert checkpoint.items["plain"] == odd["plain"]
        again = torch.load(io.BytesIO(checkpoint.items.file("args")), weights_only=False)
        assert again.lr == 0.5 and same(again.seen, seen) and same(again.tail, seen[1:])
        assert again.seen.untyped_storage().data_ptr() == again.tail.untyped_storage().data_ptr()
    reshard.torch.load(work / "odd.pt", {"w": empty.setdefault("w", torch.zeros(2)), "args": open})  # what is no tensor is not looked at
    assert same(empty["w"], odd["w"])


def items_of_torch(work):
    """Items keep their types, as in torch's own checkpoints: a scheduler goes on, dcp.load gives the same, what is not trusted is a file"""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    items = {"best": float("inf"), "pair": (1, (2, [3.5])), "raw": b"\0\xff", "set": {1, 2}, "keys": {1: 2, (3, 4): 5}, "complex": 1 + 2j,
             "nan": [float("nan")], "random": random.getstate(), "size": torch.Size([2, 3]), "dtype": torch.float16, "text": "\udc80",
             "scheduler": scheduler.state_dict(), "groups": optimizer.state_dict()["param_groups"], "big": 2**70, "plain": {"a": [1, "b"]}}
    state = {"model": model.state_dict(), **items}
    for by in (None, "thread", "process"):
        path = work / f"{by}"
        if by is None:
            reshard.torch.save(path, {**state, "args": argparse.Namespace(lr=0.5), "scalar": {"lr": numpy.float64(0.5)}}, to="torch-dcp")
        else:
            with reshard.torch.Saver(by) as saver:
                saver.save(path, {**state, "args": argparse.Namespace(lr=0.5), "scalar": {"lr": numpy.float64(0.5)}}, to="torch-dcp")
        ours = reshard.torch.load(path, {"model": model.state_dict()}).items
        nested = reshard.torch.read(path, nested=True)
        dcp.load(theirs := {"model": model.state_dict(), **dict.fromkeys(items)}, checkpoint_id=path, no_dist=True)
        for found in (ours, nested, theirs):
            for key, value in items.items():
                assert (type(found[key]), repr(found[key])) == (type(value), repr(value)), (by, key, found[key])
        assert isinstance(ours["args"], reshard.TorchFile) and type(ours["scalar"]["lr"]) is float and ours["scalar"] == {"lr": 0.5}
        assert isinstance(nested["args"], reshard.Object)
        with torch.serialization.safe_globals([argparse.Namespace]):
            assert reshard.torch.load(path, {"model": model.state_dict()}).items["args"].lr == 0.5
        again = torch.optim.SGD(model.parameters(), lr=1.)
        resumed = torch.optim.lr_scheduler.MultiStepLR(again, [2, 4])
        resumed.load_state_dict(ours["scheduler"])
        rates = []
        for _ in range(5):
            again.step()
            resumed.step()
            rates.append(round(again.param_groups[0]["lr"], 3))
        assert rates == [1, 0.1, 0.1, 0.01, 0.01], rates


class App:
    """As torch's tutorials have it: a model and its step, and what torch does not trust if it is asked for."""

    def __init__(self, value, odd=None):
        self.model, self.step, self.pair, self.odd, self.asked = torch.nn.Linear(2, 2), value, (value, "x"), odd, 0
        torch.nn.init.constant_(self.model.weight, value)

    def state_dict(self):
        self.asked += 1
        return {"model": self.model.state_dict(), "step": self.step, "pair": self.pair, **({"odd": self.odd} if self.odd else {})}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.step, self.pair = state["step"], state["pair"]


def stateful(value):
    """{name: object} that has stepped once, with a rate of `value`."""
    app = App(value)
    optimizer = torch.optim.AdamW(app.model.parameters(), lr=float(value), betas=(0.5, 0.25))
    app.model(torch.full((1, 2), float(value))).sum().backward()
    optimizer.step()
    return {"app": app, "model": app.model, "optimizer": optimizer}


def objects_with_state(work):
    """Modules, optimizers and objects with a state dict of their own are saved and loaded as torch.distributed.checkpoint does it"""
    saved = stateful(7)
    reshard.torch.save(work / "ours", saved, to="torch-dcp")
    for by in ("thread", "process"):
        with reshard.torch.Saver(by) as saver:
            saver.save(work / by, saved, to="torch-dcp")
    dcp.save(saved, checkpoint_id=work / "theirs", no_dist=True)
    for path in (work / name for name in ("ours", "thread", "process", "theirs")):
        for load in (reshard.torch.load, lambda path, state: dcp.load(state, checkpoint_id=path, no_dist=True)):
            found = stateful(3)
            asked = found["app"].asked
            load(path, found)
            assert torch.equal(found["model"].weight, saved["model"].weight), path
            assert (found["app"].step, found["app"].pair) == (7, (7, "x")), (path, vars(found["app"]))
            assert found["app"].asked == asked + 1 or load is not reshard.torch.load
            group, expected = found["optimizer"].param_groups[0], saved["optimizer"].param_groups[0]
            assert (group["lr"], group["betas"]) == (expected["lr"], expected["betas"]) == (7.0, (0.5, 0.25)), (path, group)
            for parameter, other in zip(group["params"], expected["params"], strict=True):
                ours, theirs = found["optimizer"].state[parameter], saved["optimizer"].state[other]
                assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs), path
    model = saved["model"]
    for call in (lambda: reshard.torch.load(work / "ours", model), lambda: reshard.torch.save(work / "x", model, to="hf")):
        try:
            call()
            raise AssertionError("a module was taken for a state dict")
        except reshard.UsageError as error:
            assert "give its state_dict()" in str(error)
    reshard.torch.save(work / "odd", {"app": App(1, datetime.date(2026, 1, 2))}, to="torch-dcp")
    found = App(5, datetime.date(1, 1, 1))
    try:
        reshard.torch.load(work / "odd", {"app": found})
        raise AssertionError("a class that nobody trusts was made")
    except reshard.UnsupportedError as error:
        assert "'app.odd'" in str(error) and "safe_globals" in str(error) and found.step == 5, error
    with torch.serialization.safe_globals([datetime.date]):
        reshard.torch.load(work / "odd", {"app": found})
    assert found.step == 1


def placed(mesh, whole, *placements):
    return distribute_tensor(whole, mesh, list(placements))


def run_rank(rank, size, work):
    dist.init_process_group("gloo", init_method=f"file://{work}/meet", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    w = torch.arange(77.).reshape(7, 11)
    before = {"net": {"a": placed(mesh, w, Replicate(), Shard(0)), "b": placed(mesh, w * 2, Shard(0), Shard(1)),
                      "c": placed(mesh, w[:1] * 3, Shard(0), Shard(0)), "plain": torch.full((3,), 7.)}, "step": 4}
    for to in ("torch-dcp", "torch_dist", "hf"):
        reshard.torch.save(work / to, before, to=to)
        after = {"net": {"a": placed(mesh, torch.zeros(7, 11), Shard(1), Shard(0)),
                         "b": placed(mesh, torch.zeros(7, 11), Replicate(), Replicate()),
                         "c": torch.zeros(1, 11, dtype=torch.bfloat16), "plain": torch.zeros(3)}}
        loaded = reshard.torch.load(work / to, after)
        assert torch.equal(after["net"]["a"].full_tensor(), w) and torch.equal(after["net"]["b"].to_local(), w * 2), to
        assert torch.equal(after["net"]["c"].float(), w[:1] * 3) and torch.equal(after["net"]["plain"], torch.full((3,), 7.)), to
        assert loaded.items.get("step", 4) == 4
    # torch loads it under another layout, and reshard what torch saves.
    state = {"net.a": placed(mesh, torch.zeros(7, 11), Shard(0), Replicate()), "net.b": torch.zeros(7, 11)}
    dcp.load(state, checkpoint_id=work / "torch-dcp")
    assert torch.equal(state["net.a"].full_tensor(), w) and torch.equal(state["net.b"], w * 2)
    dcp.save({"net": before["net"]}, checkpoint_id=work / "of_torch")
    after = {"net": {"a": placed(mesh, torch.zeros(7, 11), Shard(0), Shard(0)),
                     "c": placed(mesh, torch.zeros(1, 11), Replicate(), Shard(1))}}
    reshard.torch.load(work / "of_torch", after)
    assert torch.equal(after["net"]["a"].full_tensor(), w) and torch.equal(after["net"]["c"].full_tensor(), w[:1] * 3)
    try:
        reshard.save(work / "plain", before, to="torch-dcp")
        raise AssertionError("a DTensor was taken for a whole")
    except reshard.UsageError as error:
        assert "reshard.torch" in str(error), error
    # A failure of one rank is one of all.
    try:
        reshard.torch.load(work / "of_torch", {"net": {"a": torch.zeros(7, 11), **({"nope": torch.zeros(1)} if rank == 2 else {})}})
        raise AssertionError("nothing was said")
    except reshard.Error as error:
        assert "nope" in str(error) and "rank 2" in str(error), error
    # Partial sums have no values.
    if hasattr(DTensor, "from_local"):
        from torch.distributed.tensor import Partial
        try:
            reshard.torch.shards({"p": DTensor.from_local(torch.ones(2), mesh, [Partial(), Replicate()])})
            raise AssertionError("partial sums were taken")
        except reshard.UsageError:
            pass
    # In the background, all ranks together.
    with reshard.torch.Saver() as saver:
        for step in range(2):
            saver.save(work / f"step{step}", {"w": placed(mesh, w + step, Replicate(), Shard(1)), "plain": torch.ones(2)}, to="torch-dcp")
    for step in range(2):
        assert torch.equal(reshard.torch.read(work / f"step{step}")["w"], w + step)
    # What several parts of the job have: modules outside of the plan of tensor parallelism, tied weights, hybrid sharding.
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stages = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]

    def parts(of):
        piece = SavedShard.from_tensor_and_offsets(of.chunk(2)[rank % 2].clone(), [4 * (rank % 2), 0], rank)
        return {"tp": placed(mesh["tp"], of, Shard(0)), "copies": placed(mesh["tp"], of, Replicate()),
                "tied": placed(stages[rank // 2], of, Shard(1)),
                "sharded": init_from_local_shards([piece], 7, 11, process_group=halves[rank // 2])}
    reshard.torch.save(work / "parts", parts(w), to="torch-dcp")
    with reshard.torch.Saver() as saver:
        saver.save(work / "parts_behind", parts(w), to="torch-dcp")
    for name in ("parts", "parts_behind"):
        assert all(torch.equal(found, w) for found in reshard.torch.read(work / name).values()), name
    for load in (lambda state: reshard.torch.load(work / "parts", state), lambda state: dcp.load(state, checkpoint_id=work / "parts")):
        load(state := parts(torch.zeros(7, 11)))
        assert all(torch.equal(state[key].full_tensor(), w) for key in ("tp", "copies", "tied"))
        assert torch.equal(state["sharded"].local_shards()[0].tensor, w.chunk(2)[rank % 2])
    # A group that is a part of the job.
    pair = dist.new_group([1, 3])
    if rank in (1, 3):
        with reshard.torch.comm(pair) as comm:
            target = {"x": numpy.zeros((2, 5), "f4")}
            comm.redistribute({"x": reshard.Shard(numpy.full((1, 5), rank, "f4"), (2, 5), (comm.rank, 0))}, target)
            assert target["x"][:, 0].tolist() == [1, 3] and comm.size == 2
    dist.barrier()
    dist.destroy_process_group()


def ranks_of_torch(work):
    """Four ranks of torch.distributed: DTensors of a mesh of two axes are saved together in three formats and loaded under others"""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=guarded, args=(rank, 4, work)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(180)
        if rank.is_alive():
            rank.kill()
    assert [rank.exitcode for rank in ranks] == [0] * 4, (work / "said").read_text() if (work / "said").exists() else "a rank was late"
    listed = json.loads(subprocess.run([BINARY, "ls", "--json", work / "torch-dcp"], check=True, capture_output=True).stdout)
    assert {tensor["key"] for tensor in listed["tensors"]} == {"net.a", "net.b", "net.c", "net.plain"}


def guarded(rank, size, work):
    try:
        run_rank(rank, size, work)
    except BaseException:
        with open(work / "said", "a", encoding="utf-8") as file:
            file.write(f"rank {rank}: {traceback.format_exc()}\n")
        os._exit(1)


def on_a_device(work):
    """The same where the library cannot reach the tensors: their values pass through functions"""
    arrays, devices = reshard._arrays, reshard._devices
    own, reached = arrays._memory_of_torch, []

    class Device(devices.DeviceTensor):
        def read(self, offset, memory):
            reached.append("read")
            super().read(offset, memory)

        def write(self, offset, memory):
            reached.append("write")
            super().write(offset, memory)

    def elsewhere(tensor):
        memory = own(tensor)
        functions = Device(tensor)
        return arrays.Memory(0, memory.dtype, memory.shape, None, functions, functions)
    arrays._memory_of_torch = elsewhere
    try:
        for function in (ranks_of_torch, every_type, arrays_of_others, nested_states):
            (work / function.__name__).mkdir()
            function(work / function.__name__)
    finally:
        arrays._memory_of_torch = own
    assert reached.count("read") > 20 and reached.count("write") > 20, len(reached)


def main():
    global reshard, BINARY
    BINARY = built_package.arguments().bin
    warnings.simplefilter("ignore")
    import reshard
    assert "torch" not in vars(reshard), "import reshard has imported torch"
    import reshard.torch
    tests = [ranks_of_torch, every_type, arrays_of_others, nested_states, items_of_torch, objects_with_state, on_a_device]
    return small_models.run(BINARY, [(function.__doc__, small_models.whatever_fails(function)) for function in tests])


if __name__ == "__main__":
    sys.exit(main())
