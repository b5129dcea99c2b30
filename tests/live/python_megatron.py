#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard.megatron beside Megatron's own dist_checkpointing, in processes over gloo: each loads what the other saves, in the same world and
in another, and says the same about keys that are missing or unexpected. Prints TAP.

usage: python_megatron.py --package DIR --bin PATH
"""
import argparse
import enum
import io
import logging
import multiprocessing
import os
import pathlib
import random
import shutil
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import built_package
import forks
import megatron_logits
import numpy
import small_models
import torch
import torch.distributed as dist

ROWS, COLUMNS, LAYERS = 12, 8, 3


def whole(key):
    """The values of a tensor of the model, by its key."""
    layers = (LAYERS, ROWS, COLUMNS)
    shapes = {"layers.weight": layers, "turned.weight": layers, "fc1.weight": (2 * ROWS, COLUMNS), "flags": (ROWS,)}
    shape = shapes.get(key, (ROWS, COLUMNS))
    count = int(numpy.prod(shape))
    values = torch.arange(count, dtype=torch.float32).reshape(shape) + 1000 * (sum(map(ord, key)) % 97)
    return values.bool() if key == "flags" else values.bfloat16() if key == "norm.weight" else values


def swiglu_factory(key, data, rank, size, replica):
    """Gate and up of a fused matrix, each cut over the ranks: as Megatron's MLP has them."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    def build(key, tensor, replica_id, flattened_range):
        gate, up = tensor.chunk(2)
        return [ShardedTensor.from_rank_offsets(key, gate.contiguous(), (0, rank, 2 * size), replica_id=replica_id),
                ShardedTensor.from_rank_offsets(key, up.contiguous(), (0, size + rank, 2 * size), replica_id=replica_id)]

    return ShardedTensorFactory(key, data, build, torch.cat, replica)


def random_state(rank):
    """What Megatron keeps of generators: tuples, arrays and tensors."""
    return [{"random_rng_state": random.Random(rank).getstate(), "np_rng_state": numpy.random.RandomState(rank).get_state(),
             "torch_rng_state": torch.arange(rank, rank + 16, dtype=torch.uint8), "rng_tracker_states": {"model": torch.tensor([rank, 7])}}]


def state(filled, more=()):
    """The sharded state dict of this rank: rows and columns cut, layers on a prepended axis, copies, objects, common and local values."""
    from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject, ShardedTensor
    rank, size = dist.get_rank(), dist.get_world_size()
    make = ShardedTensor.from_rank_offsets

    def data(tensor):
        return tensor.clone() if filled else torch.zeros_like(tensor)

    rows, columns = whole("rows.weight").chunk(size), whole("columns.weight").chunk(size, dim=1)
    gate, up = (half.chunk(size)[rank] for half in whole("fc1.weight").chunk(2))
    mine = {"rows": make("rows.weight", data(rows[rank].contiguous()), (0, rank, size)),
            "columns": make("columns.weight", data(columns[rank].t().contiguous()).t(), (1, rank, size)),
            "norm": make("norm.weight", data(whole("norm.weight")), replica_id=(0, rank)),
            "flags": make("flags", data(whole("flags")), replica_id=rank),
            "layers": [make("layers.weight", data(whole("layers.weight")[i].chunk(size)[rank]), (0, i, LAYERS), (1, rank, size),
                            prepend_axis_num=1) for i in range(LAYERS)],
            "turned": [make("turned.weight", data(whole("turned.weight")[i].t().contiguous()).t(), (0, i, LAYERS), prepend_axis_num=1,
                            replica_id=rank) for i in range(LAYERS)],
            "mlp": {"fc1": swiglu_factory("fc1.weight", data(torch.cat([gate, up])), rank, size, 0)}}
    extra = io.BytesIO(b"extra state") if filled else None
    found = {"model": mine, "step_hook": LocalNonpersistentObject(len), "iteration": 7,
             "args": argparse.Namespace(lr=0.25, path=pathlib.PosixPath("/data"), dtype=torch.bfloat16),
             "opt": {"param_groups": [{"betas": (0.9, 0.95), "wd": None}], 3: {"x": torch.tensor([1.5, 2.5])}},
             "rng_state": ShardedObject("rng_state", random_state(0) if filled else None, (1, 1), (0, 0), replica_id=rank),
             "extra": ShardedObject("extra._extra_state", extra, (size,), (rank,))}
    for key in more:
        found["model"][key] = make(key, data(whole(key)), replica_id=rank)
    return found


def check(found, has_extra=True):
    """A loaded state dict has all that was saved."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = found["model"]
    assert torch.equal(model["rows"], whole("rows.weight").chunk(size)[rank])
    assert torch.equal(model["columns"], whole("columns.weight").chunk(size, dim=1)[rank])
    assert torch.equal(model["norm"], whole("norm.weight")) and torch.equal(model["flags"], whole("flags"))
    assert all(torch.equal(model["layers"][i], whole("layers.weight")[i].chunk(size)[rank]) for i in range(LAYERS))
    assert all(torch.equal(model["turned"][i], whole("turned.weight")[i]) for i in range(LAYERS))
    gate, up = (half.chunk(size)[rank] for half in whole("fc1.weight").chunk(2))
    assert torch.equal(model["mlp"]["fc1"], torch.cat([gate, up]))
    assert found["step_hook"] is len and found["iteration"] == 7
    assert found["args"] == argparse.Namespace(lr=0.25, path=pathlib.PosixPath("/data"), dtype=torch.bfloat16), found["args"]
    assert found["opt"]["param_groups"] == [{"betas": (0.9, 0.95), "wd": None}] and type(found["opt"]["param_groups"][0]["betas"]) is tuple
    assert torch.equal(found["opt"][3]["x"], torch.tensor([1.5, 2.5]))
    if has_extra:
        assert found["extra"].getvalue() == b"extra state"
    (now,), (then,) = found["rng_state"], random_state(0)
    assert now["random_rng_state"] == then["random_rng_state"] and random.Random().setstate(now["random_rng_state"]) is None
    assert now["np_rng_state"][0] == "MT19937" and numpy.array_equal(now["np_rng_state"][1], then["np_rng_state"][1])
    assert torch.equal(now["torch_rng_state"], then["torch_rng_state"])
    assert torch.equal(now["rng_tracker_states"]["model"], then["rng_tracker_states"]["model"])


# ---- what ranks do ----

def ours_to_theirs(work):
    from megatron.core import dist_checkpointing
    reshard.megatron.save(state(True), work / "ours", content_metadata={"note": "x"})
    check(dist_checkpointing.load(state(False), str(work / "ours"), strict="raise_all"))
    assert dist_checkpointing.load_common_state_dict(str(work / "ours"))["content_metadata"] == {"note": "x"}
    check(reshard.megatron.load(state(False), work / "ours", strict="raise_all"))


def theirs_to_ours(work):
    from megatron.core import dist_checkpointing
    if dist.get_rank() == 0:
        (work / "theirs").mkdir()
    dist.barrier()
    dist_checkpointing.save(state(True), str(work / "theirs"))
    for exchange in (True, False):
        check(reshard.megatron.load(state(False), work / "theirs", strict="raise_all", exchange=exchange))


def in_another_world(work):
    wanted = state(False)
    del wanted["extra"]
    for name in ("ours", "theirs"):
        check(reshard.megatron.load(dict(wanted), work / name), has_extra=False)


def strictness(work):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.validation import StrictHandling

    def asked():
        wanted = state(False, more=["other"])
        del wanted["model"]["norm"]
        return wanted

    for strict in ("return_all", "return_unexpected", StrictHandling.RETURN_ALL):
        one, two = (load(asked(), str(work / "ours"), strict=strict) for load in (dist_checkpointing.load, reshard.megatron.load))
        assert one[1:] == two[1:] and "other" not in two[0]["model"] and "norm" not in two[0]["model"], (one[1:], two[1:])
    for strict in ("log_unexpected", "log_all", "ignore_all"):
        told = io.StringIO()
        handler = logging.StreamHandler(told)
        logging.getLogger("reshard.megatron").addHandler(handler)
        found = reshard.megatron.load(asked(), work / "ours", strict=strict)
        logging.getLogger("reshard.megatron").removeHandler(handler)
        assert torch.equal(found["model"]["flags"], whole("flags")) and "other" not in found["model"]
        assert ("other" in told.getvalue()) == (strict != "ignore_all") and ("norm.weight" in told.getvalue()) == (strict == "log_all")
    for strict in ("assume_ok_unexpected", "raise_unexpected", "raise_all"):
        try:
            reshard.megatron.load(asked(), work / "ours", strict=strict)
            raise AssertionError(f"{strict} passes")
        except reshard.Error as error:
            assert "other" in str(error)
    without = state(False)
    without["model"]["mlp"]["fc1"].key = "fc1.lost"
    found, _, unexpected = reshard.megatron.load(without, work / "ours", strict="return_unexpected")
    assert unexpected == {"fc1.lost"} and "mlp" not in found["model"] and "rows" in found["model"]
    rank, size = dist.get_rank(), dist.get_world_size()
    several = {"list": [swiglu_factory(key, torch.zeros(2 * ROWS // size, COLUMNS), rank, size, 0) for key in
                        ("absent", "fc1.weight", "gone", "fc1.weight")], "norm": state(False)["model"]["norm"]}
    found = reshard.megatron.load(several, work / "ours", strict="ignore_all", validate_access_integrity=False)
    assert len(found["list"]) == 2 and all(
        torch.equal(one, torch.cat([half.chunk(size)[rank] for half in whole("fc1.weight").chunk(2)])) for one in found["list"])


def checks_made(work):
    """What Megatron checks of a state dict before it saves."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    doubled = {"a": ShardedTensor.from_rank_offsets("a", torch.zeros(2), replica_id=0)}
    try:
        reshard.megatron.save(doubled, work / "doubled", spread=False)
        assert dist.get_world_size() == 1, "two main copies pass"
    except reshard.UsageError as error:
        assert "Invalid sharding pattern" in str(error), error
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    logging.getLogger("reshard.megatron").addHandler(handler)
    different = state(True)
    different["args"].rank = dist.get_rank()
    different["where"] = dist.get_rank()
    reshard.megatron.save(dict(different), work / "told", overwrite=True)
    first = told.getvalue()
    reshard.megatron.save(dict(different), work / "told", overwrite=True, preprocess_common_before_consistancy_check=lambda common: {
        key: value for key, value in common.items() if key not in ("args", "where")})
    logging.getLogger("reshard.megatron").removeHandler(handler)
    assert told.getvalue() == first, (first, told.getvalue())
    assert ("'where'" in first) == (dist.get_rank() == 0), first
    with reshard.open(work / "told") as checkpoint:
        assert checkpoint.items["where"] == 0
    # What one rank cannot write stops all, and none waits for it; a copy and other ranks' common state are not written.
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    unlike = (lambda: 0) if dist.get_rank() else 1
    one = {"x": ShardedObject("x", unlike, (2,), (dist.get_rank(),)), "w": state(True)["model"]["norm"]}
    try:
        reshard.megatron.save(one, work / "one")
        raise AssertionError("what cannot be pickled was saved")
    except Exception as error:
        assert "lambda" in str(error) and (dist.get_rank() == 1 or "rank 1" in str(error)), error
    one["x"] = ShardedObject("x", unlike, (1,), (0,), replica_id=dist.get_rank())
    one["common"] = unlike
    reshard.megatron.save(one, work / "one")
    with reshard.open(work / "one") as checkpoint:
        assert checkpoint.items["common"] == 1 and checkpoint.items["x/shard_0_1"] == [1]
    try:
        reshard.megatron.save({**state(True), 5: "five"}, work / "five")
        raise AssertionError("a key that is no text was saved")
    except (TypeError, reshard.Error) as error:
        assert "keys of the common state" in str(error)


def parameters(work):
    """Sharded state dicts may hold parameters: what is loaded needs no gradients, and lies where they lie."""
    import copy
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    rank, size = dist.get_rank(), dist.get_world_size()

    def halves(key, tensor, replica, flat):
        return [ShardedTensor.from_rank_offsets(key, half, (0, 2 * rank + i, 2 * size)) for i, half in enumerate(tensor.chunk(2))]

    def asked(value):
        one, two = (torch.nn.Parameter(torch.full((4,), value)) for _ in range(2))
        return one, {"made": ShardedTensorFactory("made", two, halves, lambda parts: torch.cat([part.mul_(1) for part in parts])),
                     "one": ShardedTensor.from_rank_offsets("one", one, (0, rank, size), replica_id=[0, 0])}

    reshard.megatron.save(asked(3.0)[1], work / "parameters")
    one, wanted = asked(0.0)
    found = reshard.megatron.load(wanted, work / "parameters")
    assert not any(tensor.requires_grad or tensor.grad_fn for tensor in found.values()), found
    assert all((tensor.numpy() == 3).all() for tensor in copy.deepcopy(found).values())
    assert found["one"].data_ptr() == one.data_ptr() and one.requires_grad


def arguments(work):
    """In Megatron's order; what is for something else here says so."""
    from megatron.core import dist_checkpointing
    calls = [(lambda function, *more, **named: function(state(True), str(work / "arguments"), *more, **named)),
             (lambda function, *more, **named: function(state(False), str(work / "arguments"), *more, **named))]
    for save, load in ((reshard.megatron.save, dist_checkpointing.load), (reshard.megatron.save, reshard.megatron.load)):
        if dist.get_rank() == 0:
            (work / "arguments").mkdir()
        dist.barrier()
        calls[0](save, None, None, True, False, None, {"note": 1})
        check(calls[1](load, None, None, True, "raise_all"))
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(work / "arguments")
        dist.barrier()
    wrong = [(0, reshard.megatron.save, {"sharded_strategy": object()}, "spread="), (0, reshard.megatron.save, {"async_sharded_save": True},
             "Saver"), (1, reshard.megatron.load, {"common_strategy": ("torch", 1)}, "recognised")]
    for which, function, named, told in wrong:
        try:
            calls[which](function, **named)
            raise AssertionError(f"{named} was taken")
        except reshard.UsageError as error:
            assert told in str(error), error
    for which, function, word in ((0, reshard.megatron.save, "validate_acces_integrity"), (1, reshard.megatron.load, "sharded_stratgy")):
        try:
            calls[which](function, **{word: None})
            raise AssertionError(f"{word} was taken")
        except TypeError as error:
            assert "did you mean" in str(error), error
    from types import SimpleNamespace
    group = SimpleNamespace(dp_cp_group=object(), note="x")
    reshard.megatron.save({**state(True), "content_metadata": {"dp_cp_group": group, "note": "y"}}, work / "cleaned")
    assert dist_checkpointing.load_common_state_dict(str(work / "cleaned"))["content_metadata"] == {"note": "y"}


def failures_of_one(work):
    """What fails on one rank while a load is prepared or finished fails on all at once."""
    import time
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory
    rank = dist.get_rank()

    def asked(value=None, fails=False):
        def build(key, tensor, replica, flat):
            if fails and rank == 1:
                raise RuntimeError("no memory here")
            return [ShardedTensor.from_rank_offsets(key, tensor, replica_id=rank)]
        return {"a": ShardedTensorFactory("a", torch.ones(1), build, lambda parts: parts[0]),
                "x": ShardedObject("layer._extra_state", value, (2,), (rank,))}

    reshard.megatron.save(asked(Unknown() if rank else 1), work / "one_odd")
    for fails, told in ((False, ("layer._extra_state", "Unknown", "safe_globals=")), (True, ("no memory here",))):
        begun = time.monotonic()
        try:
            reshard.megatron.load(asked(fails=fails), work / "one_odd", timeout=30)
            raise AssertionError("a load that failed on one rank was one")
        except (reshard.Error, RuntimeError) as error:
            assert all(text in str(error) for text in told) and (rank == 1 or "rank 1" in str(error)), error
        assert time.monotonic() - begun < 15
    # Common state that differs goes from rank 0 to the others alone.
    received = []

    class Counted:
        def __init__(self, ranks):
            self.ranks, self.rank, self.size = ranks, ranks.rank, ranks.size

        def all_gather(self, data):
            received.append(sum(map(len, found := self.ranks.all_gather(data))))
            return found

    with reshard.torch.comm() as ranks:
        reshard.megatron._compare({"rank": rank, "much": bytes(1 << 16)}, Counted(ranks))
        assert 1 << 16 < sum(received) < 3 << 15, received
        received.clear()
        reshard.megatron._compare({"much": bytes(1 << 16)}, Counted(ranks))
        assert sum(received) < 1000, received


def in_the_background(work):
    from megatron.core import dist_checkpointing
    work.mkdir(exist_ok=True)
    with reshard.megatron.Saver() as saver:
        for turn in range(2):
            saved = state(True)
            saver.save(saved, work / f"turn{turn}", content_metadata={"turn": turn}, validate_access_integrity=True)
            saved["model"]["rows"].data.zero_()
    dist.barrier()
    check(dist_checkpointing.load(state(False), str(work / "turn1"), strict="raise_all"))
    check(reshard.megatron.load(state(False), work / "turn0"))


class Unknown:
    """Of no list of safe classes."""


class Known(enum.Enum):
    """Of one's own list."""
    ONE = 1


def classes(work):
    """Nothing is made of a class that nobody trusts."""
    reshard.megatron.save({**state(True), "odd": Unknown()}, work / "odd")
    try:
        reshard.megatron.load(state(False), work / "odd")
        raise AssertionError("an unknown class was made")
    except reshard.UnsupportedError as error:
        assert "Unknown" in str(error) and "'odd'" in str(error) and "safe_globals=" in str(error), error
    reshard.megatron.save({**state(True), "known": Known.ONE}, work / "known")
    assert reshard.megatron.load(state(False), work / "known", safe_globals=[Known])["known"] is Known.ONE
    torch.save({"norm.weight": whole("norm.weight"), "trainer": Unknown(), "step": 3}, work / "other.pt")
    found = reshard.megatron.load({"n": state(False)["model"]["norm"]}, work / "other.pt")
    assert torch.equal(found["n"], whole("norm.weight")) and found["step"] == 3 and "trainer" not in found


def other_formats(work):
    """An empty folder is replaced; tensors come from any format, and under other names."""
    if dist.get_rank() == 0:
        (work / "hf").mkdir()
        reshard.save(work / "source", {"model.rows": whole("rows.weight"), "c": whole("columns.weight").t().contiguous()}, to="hf")
    dist.barrier()
    wanted = {"model": {name: state(False)["model"][name] for name in ("rows", "columns")}}
    if dist.get_rank() == 0:
        (work / "source" / "config.json").write_text("{}")
    dist.barrier()
    found = reshard.megatron.load(wanted, work / "source", map="model.rows -> rows.weight\nc^T -> columns.weight")
    assert torch.equal(found["model"]["rows"], whole("rows.weight").chunk(dist.get_world_size())[dist.get_rank()])
    assert torch.equal(found["model"]["columns"], whole("columns.weight").chunk(dist.get_world_size(), dim=1)[dist.get_rank()])
    assert set(found) == {"model"}, found
    reshard.megatron.save({"model": {key: value for key, value in state(True)["model"].items()}}, work / "hf", to="hf")
    with reshard.open(work / "hf") as checkpoint:
        assert torch.equal(checkpoint.tensors["rows.weight"].read().torch(), whole("rows.weight")) and checkpoint.format == "hf"
        assert torch.equal(checkpoint.tensors["fc1.weight"].read().torch(), whole("fc1.weight"))


# ---- a real model ----

def fill(model, load, path, **options):
    """Loads the parameters of a model of Megatron's, and compares its logits with those of the model that was saved first."""
    for parameter in model.parameters():
        parameter.data.zero_()
    request = model.sharded_state_dict()
    names = set(request)  # common state comes along
    found = load(request, str(path), **options)
    found = {key: value for key, value in found.items() if key in names}
    model.load_state_dict(found, strict=False)
    lost = {name for name, _ in model.named_parameters()} - set(found)
    assert not lost, lost
    difference = (megatron_logits.logits(model) - torch.load(path.parent / "logits.pt")).abs().max().item()
    assert difference < 1e-5, difference


def model_of_two(folder, rank):
    model = megatron_logits.build(2, rank, f"{folder}/rendezvous-2")
    fill(model, reshard.megatron.load, folder / "tp1", map=[], strict="log_unexpected")
    reshard.megatron.save(model.sharded_state_dict(), folder / "tp2")
    fill(model, reshard.megatron.load, folder / "tp2", strict="raise_all")
    dist.destroy_process_group()


def model_of_one(folder):
    from megatron.core import dist_checkpointing
    model = megatron_logits.build(1, 0, f"{folder}/rendezvous-1")
    fill(model, dist_checkpointing.load, folder / "tp2", strict="raise_all")
    fill(model, reshard.megatron.load, folder / "tp2", strict="raise_all")


def real_model(work):
    """A legacy checkpoint of one rank is loaded by two, saved by them, and loaded by one, with the same logits"""
    for turn in ([(megatron_logits.save, str(work))], [(model_of_two, work, rank) for rank in range(2)], [(model_of_one, work)]):
        done, said = forks.in_forks(200, *turn)
        assert done, said[-3000:]


# ---- ranks ----

def rank_main(steps, rank, size, port, work, said):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.cuda.current_device = torch.cuda.synchronize = lambda *a: "cpu"  # no GPU: megatron-core asks for one in passing
    try:
        dist.init_process_group("gloo", rank=rank, world_size=size)
        for step in steps:
            step(work)
            dist.barrier()
        said.put((rank, None))
    except BaseException:
        said.put((rank, traceback.format_exc()))
    said.close()
    said.join_thread()
    for child in multiprocessing.active_children():  # Megatron's own, which nobody else would end
        child.kill()
        child.join()
    os._exit(0)  # gloo's threads


def ranks(size, steps, work):
    said = multiprocessing.Queue()
    port = 20000 + (os.getpid() * 7 + size) % 20000
    processes = [multiprocessing.Process(target=rank_main, args=(steps, rank, size, port, work, said)) for rank in range(size)]
    for process in processes:
        process.start()
    failure = None
    for _ in processes:
        failure = failure or said.get(timeout=120)[1]
        if failure:  # the others wait for it
            break
    for process in processes:
        if failure:
            process.terminate()
        process.join()
    assert not failure, failure


def in_a_world_of(size, *steps):
    return lambda work: ranks(size, steps, work)


TESTS = [("Alone: what is saved here Megatron loads, and the other way round", in_a_world_of(1, ours_to_theirs, theirs_to_ours)),
         ("Two ranks: tensors cut and copied, objects, common and local values; then one rank, and four",
          lambda work: (ranks(2, [ours_to_theirs, theirs_to_ours], work), ranks(1, [in_another_world], work),
                        ranks(4, [in_another_world], work))[0]),
         ("What is missing or unexpected is told as Megatron tells it", in_a_world_of(2, ours_to_theirs, strictness)),
         ("State dicts that are no whole are refused, common state that differs is a warning", in_a_world_of(2, checks_made)),
         ("Parameters, arguments in Megatron's order", in_a_world_of(1, parameters, arguments)),
         ("What one rank cannot do the other one hears of; parameters and arguments of two",
          in_a_world_of(2, failures_of_one, parameters, arguments)),
         ("In the background, what is saved is what was there",
          lambda work: (ranks(2, [in_the_background], work), ranks(1, [in_the_background], work / "alone"))[0]),
         ("Classes that nobody trusts are not made", in_a_world_of(1, classes)),
         ("From any format, under other names, and to any", in_a_world_of(2, other_formats)),
         (real_model.__doc__, real_model)]


def main():
    global reshard
    args = built_package.arguments()
    multiprocessing.set_start_method("fork")
    import reshard
    import reshard.megatron
    import megatron.core.dist_checkpointing  # noqa: F401  once, before processes are forked
    import megatron.core.models.gpt.gpt_model  # noqa: F401
    import torch._dynamo  # noqa: F401
    torch.serialization.add_safe_globals(reshard.megatron._trusted())  # as Megatron-LM does at its start, from 0.14 on
    return small_models.run(args.bin, [(name, small_models.whatever_fails(test)) for name, test in TESTS])


if __name__ == "__main__":
    sys.exit(main())
