#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DTensor and ShardedTensor in files of ranks: each form in which torch has written them, and what is refused of one. Prints TAP.

usage: shards_test.py --bin PATH

The files are written here, object by object; tests/live has those of torch itself.
"""
import argparse
import json
import math
import pathlib
import struct
import sys

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

Named, Call, Object = torch_stub.Named, torch_stub.Call, torch_stub.Object
TENSOR = "torch.distributed.tensor"


def thing(name, **state):
    """An object of one of torch.distributed's classes."""
    return Object(Named(f"{TENSOR}.parts", name), state)


def local(*shape, kind="FloatStorage"):
    return torch_stub.tensor(kind, shape, bytes(math.prod(shape) * torch_stub.ELEMENT_BYTES[kind]))


def whole(name, state, size=(5, 2), dtype="float32"):
    arguments = (Named(TENSOR, name), Named("torch", dtype), size, (2, 1), 0, Named("torch", "strided"), "cpu", False)
    return Call(Named("torch._tensor", "_rebuild_from_type_v2"),
                (Named("torch._utils", "_rebuild_wrapper_subclass"), Named(TENSOR, name), arguments, state))


def dtensor(part, mesh, *placements, **more):
    return whole("DTensor", {"_local_tensor": part, "_spec": thing("DTensorSpec", mesh=mesh, placements=placements)}, **more)


def shard(dim, **more):
    return thing("Shard", dim=dim, **more)


def layout(shape):
    return thing("_MeshLayout", shape=shape, stride=1)


# ---- the ways to write a mesh of two, and where a rank stands in it ----

MESHES = {
    "a layout": lambda rank: thing("DeviceMesh", _layout=layout((2,)), _coordinate_on_dim=[rank]),
    "a layout of one number": lambda rank: thing("DeviceMesh", _layout=layout(2), _coordinate_on_dim=[rank]),
    "a layout of tuples": lambda rank: thing("DeviceMesh", _layout=layout(((2, 1),)), _coordinate_on_dim=[rank]),
    "axes": lambda rank: thing("DeviceMesh", _layout=thing("_MeshLayout", axes=(layout(2),)), _coordinate_on_dim=[rank]),
    "a tensor": lambda rank: thing("DeviceMesh", mesh=torch_stub.tensor("LongStorage", (2,), struct.pack("<2q", 0, 1)),
                                   _coordinate_on_dim=[rank]),
    "a flat map": lambda rank: thing("DeviceMesh", _layout=layout((2,)), _flatten_rank_map=(0, 1), _rank=rank),
    "a flat list": lambda rank: thing("DeviceMesh", _layout=layout((2,)), _flatten_mesh_list=[0, 1]),
}


def square(rank):
    return thing("DeviceMesh", _layout=layout((2, 2)), _flatten_rank_map=(0, 1, 2, 3))


def line(rank, **more):
    return thing("DeviceMesh", **{"_layout": layout((2,)), "_coordinate_on_dim": [rank], **more})


def put(shell, *tensors):
    folder = shell.work / "c"
    folder.mkdir(exist_ok=True)
    for rank, tensor in enumerate(tensors):
        torch_stub.write_zip(folder / f"model_world_size_{len(tensors)}_rank_{rank}.pt", {"w": tensor})
    return folder


def boxes_must_be(shell, expected, *tensors):
    """expected: by rank, where its part begins, and the extents of that."""
    chunks = json.loads(shell("ls", "--json", "--chunks", put(shell, *tensors)))["tensors"][0]["chunks"]
    found = sorted((int(c["file"].removesuffix(".pt").rsplit("_", 1)[1]), c["start"], c["extent"]) for c in chunks)
    assert found == [(rank, *box) for rank, box in enumerate(expected)], f"{found} instead of {expected}"


HALVES = [([0, 0], [3, 2]), ([3, 0], [2, 2])]


def meshes(shell):
    for name, mesh in MESHES.items():
        try:
            boxes_must_be(shell, HALVES, dtensor(local(3, 2), mesh(0), shard(0)), dtensor(local(2, 2), mesh(1), shard(0)))
        except AssertionError as problem:
            raise AssertionError(f"{name}: {problem}") from None


def places_in_a_square(shell):
    """The flat list of ranks has the last dimension of the mesh innermost."""
    parts = [dtensor(local(rows, 1), square(rank), shard(0), shard(1)) for rank, rows in enumerate((3, 3, 2, 2))]
    boxes_must_be(shell, [([0, 0], [3, 1]), ([0, 1], [3, 1]), ([3, 0], [2, 1]), ([3, 1], [2, 1])], *parts)


def copies(shell):
    boxes_must_be(shell, [([0, 0], [5, 2])] * 2, *(dtensor(local(5, 2), line(rank), thing("Replicate")) for rank in (0, 1)))


def filled(value, *shape):
    return torch_stub.tensor("FloatStorage", shape, struct.pack("<f", value) * math.prod(shape))


def other_values_at_one_place(shell):
    """Ranks of experts whose axis is not in the mesh say the same place, and hold other values there."""
    axis = lambda rank: thing("DeviceMesh", _layout=layout((2,)), _coordinate_on_dim=[rank % 2])
    part = lambda rank, value: dtensor(filled(value, 2, 2), axis(rank), shard(0), size=(4, 2))
    put(shell, *(part(rank, 1) for rank in range(4)))
    assert shell.bytes_of("c", "w") == struct.pack("<8f", *[1] * 8)
    put(shell, *(part(rank, 1 + rank // 2) for rank in range(4)))
    said = shell("hash", "c", exit_status=5).decode()
    assert "rank 2 holds other values at the same place of 'w'" in said and "--lenient opens it" in said, said
    done = shell.any("convert", "c", "out.pt", "--to", "torch", "--lenient")
    assert done.returncode == 0 and "rank 2 holds other values" in done.stderr, done.stderr
    for look in (("ls", "c"), ("inspect", "c")):
        done = shell.any(*look)
        assert done.returncode == 0 and "rank 2 holds other values" in done.stdout + done.stderr, done
    put(shell, *(dtensor(filled(1 + (rank == 3), 2, 2), axis(rank), shard(0), size=(4, 2)) for rank in range(4)))
    assert b"rank 3 holds other values" in shell("hash", "c", exit_status=5)


def optimizers_of_stages(shell):
    """Each pipeline stage numbers its own parameters from 0: state of one number belongs to several."""
    mesh = lambda rank: thing("DeviceMesh", _layout=layout((2,)), _coordinate_on_dim=[rank % 2])
    part = lambda rank, value: dtensor(filled(value, 2, 2), mesh(rank), shard(0), size=(4, 2))
    for stages, own in ((2, {"optimizer", "rank_1.optimizer", "rank_2.optimizer", "rank_3.optimizer"}), (1, {"optimizer"})):
        put(shell, *(part(rank, 1) for rank in range(4)))
        for rank in range(4):
            stage = rank * stages // 4
            torch_stub.write_zip(shell.work / "c" / f"model_world_size_4_rank_{rank}.pt", {f"layers.{stage}.w": part(rank, 1)})
            group = {"lr": 0.1, "params": [0]}
            torch_stub.write_zip(shell.work / "c" / f"optim_world_size_4_rank_{rank}.pt",
                                 {"state": {0: {"exp_avg": part(rank, 5 + stage)}}, "param_groups": [group]})
        said = shell.any("ls", "c").stderr
        items = {i["key"] for i in json.loads(shell("ls", "--items", "--json", "c"))["items"]}
        assert {i for i in items if i.endswith("optimizer")} == own, items
        assert ("different tensors, as those of pipeline stages do" in said) == (stages > 1), said
        done = shell.any("convert", "c", f"out{stages}", "--to", "fsdp-ranks", "--verbose")
        assert done.returncode == 0 and ("rank_3.optimizer: the optimizers of pipeline stages" in done.stderr) == (stages > 1), done.stderr
        assert len(list((shell.work / f"out{stages}").glob("optim*"))) == (4 if stages == 1 else 0)


def optimizers_that_are_copies(shell):
    """NO_SHARD: all ranks have the whole of the model and of the optimizer's state, which is one then if it is the same."""
    (shell.work / "c").mkdir()
    for other, own in ((5, {"optimizer"}), (6, {"optimizer", "rank_1.optimizer"})):
        for rank in range(2):
            torch_stub.write_zip(shell.work / "c" / f"model_world_size_2_rank_{rank}.pt", {"w": filled(1, 4, 2)})
            state = {0: {"exp_avg": filled(other if rank else 5, 4, 2)}}
            torch_stub.write_zip(shell.work / "c" / f"optim_world_size_2_rank_{rank}.pt",
                                 {"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]})
        items = {i["key"] for i in json.loads(shell("ls", "--items", "--json", "c"))["items"]}
        assert {i for i in items if i.endswith("optimizer")} == own, items
        assert ("kept rank by rank" in shell.any("ls", "c").stderr) == (len(own) > 1)
        shell("convert", "c", "out", "--to", "fsdp-ranks", "--layout", "ranks=3", "--verify", "--overwrite")
        assert len(list((shell.work / "out").glob("optim*"))) == (3 if len(own) == 1 else 0)


def what_each_rank_has_of_its_own(shell):
    """States of random numbers and counters beside a model of pieces differ on ranks; weights that do are refused."""
    (shell.work / "c").mkdir()
    ints = lambda *values: torch_stub.tensor("LongStorage", (len(values),), struct.pack(f"<{len(values)}q", *values))
    for rank in range(2):
        piece = dtensor(filled(rank, 3 - rank, 2), line(rank), shard(0))
        values = {"w": piece, "rng": ints(7, rank), "seen": ints(5), "nest": [ints(rank)]}
        torch_stub.write_zip(shell.work / "c" / f"ckpt_rank_{rank}.pt", values)
    listed = json.loads(shell("ls", "--json", "--items", "c"))
    assert {t["key"] for t in listed["tensors"]} == {"w", "rng", "seen", "nest.0"}, listed
    assert {i["key"] for i in listed["items"] if not i["key"].endswith("]")} == {"rank_1.rng", "rank_1.nest.0"}, listed["items"]
    assert shell.bytes_of("c", "rng") == struct.pack("<2q", 7, 0)
    shell("convert", "c", "out.pt", "--to", "torch", "--verify")
    kept = torch_stub.load(shell.work / "out.pt")
    assert kept["rank_1"]["rng"].storage.data == struct.pack("<2q", 7, 1) and kept["rng"].storage.data == struct.pack("<2q", 7, 0), kept
    shell("verify", "c")
    for rank in range(2):
        piece = dtensor(filled(rank, 3 - rank, 2), line(rank), shard(0))
        torch_stub.write_zip(shell.work / "c" / f"ckpt_rank_{rank}.pt", {"w": piece, "plain": filled(rank, 2)})
    said = shell("hash", "c", exit_status=5).decode()
    assert "tensor 'plain' is a plain one but differs on rank 1" in said and "--lenient opens it" in said, said
    shell("hash", "c", "--lenient")


def parts_of_a_sum(shell):
    """They are not the tensor, and are not told as one."""
    for name in "Partial", "_Partial":
        put(shell, *(dtensor(local(5, 2), line(rank), thing(name, reduce_op="sum")) for rank in (0, 1)))
        assert not shell.tensors("c")
        assert b"'w' is left out: its placement is Partial" in shell("verify", "c")


def strided(shell):
    """Of FSDP above tensor parallelism: the axis is cut by the second dimension of the mesh first."""
    parts = [dtensor(local(2), square(rank), thing("_StridedShard", dim=0, split_factor=2), shard(0), size=(8,)) for rank in range(4)]
    boxes_must_be(shell, [([0], [2]), ([4], [2]), ([2], [2]), ([6], [2])], *parts)


def sharded(*parts, size=(5, 2)):
    made = [thing("Shard", tensor=tensor, metadata=thing("ShardMetadata", shard_offsets=start, shard_sizes=extent))
            for tensor, start, extent in parts]
    return whole("ShardedTensor", (made, None), size=size)


def sharded_tensors(shell):
    boxes_must_be(shell, HALVES, sharded((local(3, 2), [0, 0], [3, 2])), sharded((local(2, 2), [3, 0], [2, 2])))


def alone(shell):
    """A file that is opened without others: what holds all of its tensor is that tensor, the rest are told as pieces."""
    mesh = line(0, _layout=layout((1,)), _coordinate_on_dim=[0])
    two = torch_stub.tensor("FloatStorage", (5, 2), struct.pack("<10f", *range(10)))
    data = two.storage.data
    values = {"one": dtensor(two, mesh, shard(0)), "copy": dtensor(local(5, 2), line(0), thing("Replicate")),
              "piece": dtensor(local(3, 2), line(0), shard(0)), "sum": dtensor(local(5, 2), line(0), thing("Partial", reduce_op="sum")),
              "sharded": sharded((local(5, 2), [0, 0], [5, 2])), "half": sharded((local(3, 2), [0, 0], [3, 2])), "plain": local(3)}
    torch_stub.write_zip(shell.work / "a.pt", values)
    listed, said = json.loads(shell("ls", "--json", "--items", "a.pt")), shell.any("ls", "a.pt").stderr
    assert {t["key"] for t in listed["tensors"]} == {"one", "copy", "sharded", "plain"}, listed
    assert {i["key"]: i["class"] for i in listed["items"]} == {"piece": f"{TENSOR}.DTensor", "sum": f"{TENSOR}.DTensor",
                                                               "half": f"{TENSOR}.ShardedTensor"}, listed["items"]
    assert "'piece' and 2 other items: one rank's piece of a tensor" in said and "--format fsdp-ranks joins them" in said, said
    shell("convert", "a.pt", "b.safetensors", "--to", "safetensors")
    assert shell.bytes_of("b.safetensors", "one") == shell.bytes_of("a.pt", "one") == data
    shell("convert", "a.pt", "same.pt", "--to", "torch")
    shell("diff", "a.pt", "same.pt")
    kept = torch_stub.load(shell.work / "same.pt")
    assert kept["one"].name == "torch._tensor._rebuild_from_type_v2", kept["one"]
    done = shell.any("convert", "a.pt", "other.pt", "--to", "torch", "--dtype", "f64")
    assert "'one' loses its class" in done.stderr, done.stderr
    kept = torch_stub.load(shell.work / "other.pt")
    assert isinstance(kept["one"], torch_stub.Tensor) and kept["one"].storage.kind == "DoubleStorage", kept["one"]
    torch_stub.write_zip(shell.work / "c.pt", {"w": values["one"], "v": local(3)})
    assert "one rank's piece" not in shell.any("ls", "c.pt").stderr


def parameters_alone(shell):
    """What a DTensor says of gradients is kept where it becomes a plain tensor."""
    mesh = line(0, _layout=layout((1,)), _coordinate_on_dim=[0])
    spec = thing("DTensorSpec", mesh=mesh, placements=(shard(0),))
    arguments = (Named(TENSOR, "DTensor"), Named("torch", "float32"), (5, 2), (2, 1), 0, Named("torch", "strided"), "cpu", True)
    made = Call(Named("torch._tensor", "_rebuild_from_type_v2"),
                (Named("torch._utils", "_rebuild_wrapper_subclass"), Named(TENSOR, "DTensor"), arguments,
                 ({"_is_param": True}, {"_local_tensor": local(5, 2), "_spec": spec})))
    torch_stub.write_zip(shell.work / "a.pt", {"w": made, "v": dtensor(local(5, 2), mesh, shard(0))})
    shell("convert", "a.pt", "b.pt", "--to", "torch", "--dtype", "f64")
    kept = torch_stub.load(shell.work / "b.pt")
    assert kept["w"].is_parameter and not kept["v"].is_parameter, kept


def orders(shell):
    """shard_order of torch 2.13: which dimension of the mesh cuts first."""
    def ordered(rank, *entries):
        spec = thing("DTensorSpec", mesh=square(rank), placements=(shard(0), shard(0)), shard_order=entries)
        return whole("DTensor", {"_local_tensor": local(2), "_spec": spec}, size=(8,))
    def entry(*dims):
        return Call(Named(f"{TENSOR}.parts", "ShardOrderEntry"), (0, dims))
    boxes_must_be(shell, [([2 * rank], [2]) for rank in range(4)], *(ordered(rank, entry(0, 1)) for rank in range(4)))
    boxes_must_be(shell, [([2 * rank], [2]) for rank in range(4)], *(ordered(rank) for rank in range(4)))
    for text, other in ("in another order (shard_order)", entry(1, 0)), ("shard_order of a DTensor in a form", entry("x")), \
                       ("shard_order of a DTensor in a form", 1):
        assert text in shell("hash", put(shell, *(ordered(rank, other) for rank in range(4))), exit_status=5).decode()


def refused(shell):
    none = thing("DeviceMesh", _layout=thing("_MeshLayout", stride=1))
    good, tensor = line(0), local(5, 2)
    for text, status, made in (
            ("device mesh of a DTensor in a form that is not known", 5, dtensor(tensor, none, shard(0))),
            ("device mesh of a DTensor in a form that is not known", 5, dtensor(tensor, line(0, _layout=layout((2, "x"))), shard(0))),
            ("device mesh of a DTensor in a form that is not known", 5,
             dtensor(tensor, thing("DeviceMesh", mesh=torch_stub.tensor("LongStorage", (1,) * 17, bytes(8))), shard(0))),
            ("device mesh of a DTensor in a form that is not known", 5, dtensor(tensor, line(0, _layout=layout((1,) * 17)), shard(0))),
            ("device mesh with a dimension of 0", 4, dtensor(tensor, line(0, _layout=layout((0,))), shard(0))),
            ("device mesh with a dimension of 2147483648", 4, dtensor(tensor, line(0, _layout=layout((2**31,))), shard(0))),
            ("a file of rank 5, whose name says rank 0", 4, dtensor(tensor, line(0, _rank=5), shard(0))),
            ("coordinate 2 in a mesh dimension of 2", 4, dtensor(tensor, line(2), shard(0))),
            ("coordinate -1 in a mesh dimension of 2", 4, dtensor(tensor, line(-1), shard(0))),
            ("placement of a DTensor that is not Shard, Replicate or Partial", 5, dtensor(tensor, good, thing("Other", dim=0))),
            ("Shard placement without a dimension of the tensor", 4, dtensor(tensor, good, shard(2))),
            ("Shard placement without a dimension of the tensor", 4, dtensor(tensor, good, shard(-1))),
            ("strided placement without a usable split factor", 4, dtensor(tensor, good, thing("_StridedShard", dim=0))),
            ("strided placement without a usable split factor", 4, dtensor(tensor, good, thing("_StridedShard", dim=0, split_factor=0))),
            ("strided placement without a usable split factor", 4, dtensor(tensor, good, thing("_StridedShard", dim=0, split_factor=4097))),
            ("mesh gives it 3", 4, dtensor(tensor, good, thing("_StridedShard", dim=0, split_factor=1))),
            ("local part of a DTensor is no single box", 5, dtensor(local(4096), good, thing("_StridedShard", dim=0, split_factor=4096),
                                                                    size=(8192,))),
            ("placements are not one for each dimension of its mesh", 4, dtensor(tensor, good, shard(0), shard(1))),
            ("has 5 elements along dimension 0, its mesh gives it 3", 4, dtensor(tensor, good, shard(0))),
            ("has 2 elements along dimension 1, its mesh gives it 1", 4, dtensor(tensor, good, shard(1))),
            ("another type or rank than the whole", 4, dtensor(local(5, 2, kind="DoubleStorage"), good, thing("Replicate"))),
            ("another type or rank than the whole", 4, dtensor(local(10), good, thing("Replicate"))),
            ("DTensor without local tensor or spec", 4, whole("DTensor", {"_local_tensor": tensor})),
            ("negative size -5 of a tensor", 4, dtensor(tensor, good, shard(0), size=(-5, 2))),
            ("number of elements of a tensor overflows 64 bits", 4, dtensor(tensor, good, shard(0), size=(2**40, 2**40))),
            ("_rebuild_wrapper_subclass without a type and a size", 4, dtensor(tensor, good, shard(0), size=None)),
            ("_rebuild_wrapper_subclass without a type and a size", 4, dtensor(tensor, good, shard(0), dtype="float3")),
            ("shard of a ShardedTensor lies outside of it on axis 0", 4, sharded((local(3, 2), [3, 0], [3, 2]))),
            ("shard of a ShardedTensor has another type or size than its metadata says", 4, sharded((local(3, 2), [0, 0], [2, 2]))),
            ("shard of a ShardedTensor has another type or size than its metadata says", 4, sharded((local(3, 2, 1), [0, 0], [3, 2]))),
            ("shard of a ShardedTensor has another type or size than its metadata says", 4,
             sharded((local(3, 2, kind="DoubleStorage"), [0, 0], [3, 2]))),
            ("shard of a ShardedTensor without tensor, offsets and sizes", 4, sharded((local(3, 2), [0], [3, 2]))),
            ("shard of a ShardedTensor without tensor, offsets and sizes", 4, sharded((local(3, 2), [0, 0], [3]))),
            ("shard of a ShardedTensor without tensor, offsets and sizes", 4, sharded((None, [0, 0], [3, 2]))),
            ("ShardedTensor without a list of shards", 4, whole("ShardedTensor", (None, None)))):
        done = shell.any("hash", put(shell, made))
        assert done.returncode == status and text in done.stderr, f"instead of {text}: exit {done.returncode}: {done.stderr}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    tests = [("every way to write a mesh", meshes), ("a mesh of two dimensions", places_in_a_square), ("copies", copies),
             ("other values at one place", other_values_at_one_place), ("optimizers of stages", optimizers_of_stages),
             ("what each rank has of its own", what_each_rank_has_of_its_own),
             ("optimizers that are copies", optimizers_that_are_copies),
             ("parts of a sum", parts_of_a_sum), ("strided shards", strided), ("ShardedTensor", sharded_tensors),
             ("a file alone", alone), ("parameters alone", parameters_alone), ("orders", orders),
             ("what is refused", refused)]
    sys.exit(small_models.run(args.bin, tests))


main()
