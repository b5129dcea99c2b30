# SPDX-License-Identifier: Apache-2.0
"""Paddle's state dicts, with ShardedWeights and DistTensors, and its process groups: what paddle.distributed.save_state_dict and
load_state_dict do, in their order of arguments.

    import reshard.paddle

    reshard.paddle.save(model.sharded_state_dict(), "checkpoint-100/model_state")               # all ranks together
    reshard.paddle.load(model.sharded_state_dict(), "checkpoint-100/model_state")               # in place, under any layout
    reshard.paddle.load(model.sharded_state_dict(), "llama-hf", aoa_config={"aoa_statements": […]})    # any format, under other names
    weights = reshard.paddle.read("llama-hf")                                                   # a flat dict of tensors

Checkpoints are Paddle's own (Flex Checkpoint): load_state_dict loads what is saved here, and the other way round. They appear whole or not
at all, and each byte is read by one rank. `import reshard` alone does not need Paddle.
"""

import json
import math
import re

import numpy
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

from . import Comm, Shard, UsageError, _Opened
from . import load as _load
from . import open as _open
from . import save as _save
from ._arrays import dtype_name, framework_dtype
from ._online import OwningSaver, may_replace
from ._options import given
from ._shards import Pieces
from ._sockets import own_address
from ._states import flatten, is_array, nested_state, with_pieces

__all__ = ["Saver", "comm", "load", "read", "redistribute", "save", "shards"]


# ---- reading ----

def read(source, keys=None, *, place=None, dtype=None, nested=False, opening=None, **run):
    """{key: paddle.Tensor} of a checkpoint of any format: of some keys, or all, read in one run.

    place   where the tensors go ("gpu:0", a Place); None: the host
    dtype   "bf16", paddle.bfloat16, …: a cast of all
    nested  the state dict as it was saved, dicts in dicts and lists as dicts of positions, with items in their places

    opening: options of reshard.open, as a dict. memory, threads, io, progress as everywhere.
    """
    with _Opened(source, opening) as checkpoint:
        wanted = {key: checkpoint.tensors[key] for key in (checkpoint.tensors if keys is None else keys)}
        types = {key: _paddle_type(tensor.dtype if dtype is None else dtype_name(dtype)) for key, tensor in wanted.items()}
        if place is None:
            arrays = checkpoint.read(wanted, dtype=dtype, **run)
            tensors = {key: paddle.utils.dlpack.from_dlpack(array) for key, array in arrays.items()}
        else:
            empty = {key: paddle.empty(tensor.shape, dtype=types[key], device=place) for key, tensor in wanted.items()}
            tensors = checkpoint.load_into(empty, **run)
        return nested_state(checkpoint, tensors, keys is None) if nested else tensors


def _paddle_type(name):
    if name == "U16":
        raise UsageError("Paddle takes U16 for bfloat16: read it as another type (dtype=), or with reshard.open as an Array")
    return framework_dtype(paddle, name)


# ---- pieces ----

def shards(state_dict):
    """The same nested state dict with a Shard in place of each ShardedWeight and DistTensor: the piece that this rank has, by its place in
    the whole. A plain tensor is a copy that each rank has. As Paddle does not say who else has the same piece, the first rank that has it
    saves it."""
    return with_pieces(state_dict, _piece, lambda value: value, _is_leaf)


def _is_leaf(value):
    return isinstance(value, ShardedWeight) or is_array(value)


def _piece(array):
    if isinstance(array, ShardedWeight):
        return _weight_shard(array)
    return _dist_shard(array) if isinstance(array, paddle.Tensor) and array.is_dist() else array


def _weight_shard(weight):
    local, shape = weight.local_tensor, tuple(weight.local_shape)
    if not weight.is_flattened:
        return Shard(local, weight.global_shape, weight.global_offset, shape=shape, replica=None)
    flat = (int(weight.flattened_range.start), int(weight.flattened_range.stop))
    return Shard(local, weight.global_shape, weight.global_offset, shape=shape, flat=flat, replica=None)


def _cuts(placements, rank):
    """(dimension of the mesh, axis) of each cut, in their order: Paddle says of an axis that is cut twice in which, but only in words."""
    cuts = []
    for dimension, placement in enumerate(placements):
        if not placement.is_shard():
            continue
        if getattr(placement, "get_split_factor", lambda: 1)() > 1:
            raise UsageError(f"a DistTensor with the placement {placement} is not one box of the whole")
        axis = next(axis for axis in range(rank) if placement.is_shard(axis))
        order = re.search(r"shard_order=(\d+)", str(placement))
        cuts.append((axis, int(order[1]) if order else 0, dimension))
    return [(dimension, axis) for axis, _, dimension in sorted(cuts)]


def _dist_shard(tensor):
    """Axes are cut into parts of one extent, rounded up, the last ones smaller, over each dimension of the mesh in turn."""
    mesh, placements, rank = tensor.process_mesh, tensor.placements, dist.get_rank()
    if any(placement.is_partial() for placement in placements):
        raise UsageError("a DistTensor whose values are partial sums has no values of its own: reshard it first")
    if rank not in mesh.process_ids:
        return Pieces()
    place = numpy.unravel_index(mesh.process_ids.index(rank), mesh.shape)
    offset, extent = [0] * len(tensor.shape), list(tensor.shape)
    for dimension, axis in _cuts(placements, len(extent)):
        part = math.ceil(extent[axis] / mesh.shape[dimension])
        begin = min(part * int(place[dimension]), extent[axis])
        offset[axis], extent[axis] = offset[axis] + begin, min(part, extent[axis] - begin)
    replica = tuple(int(at) for at, placement in zip(place, placements) if not placement.is_shard())
    if 0 in extent and 0 not in tensor.shape:
        return Pieces()  # other ranks have all of it
    local = tensor._local_value()
    if list(local.shape) != extent:
        raise UsageError(f"a DistTensor with the placements {placements} is not one box of the whole")
    return Shard(local, tuple(tensor.shape), offset, replica=replica or (0,))


# ---- saving and loading ----

def save(state_dict, path, process_group=None, *, to="paddle-flex", **options):
    """Saves a state dict as one checkpoint, together with the other ranks of the group: of ShardedWeights, DistTensors and tensors, nested
    ones too, and of items that are numbers, texts and containers of these.

    to       the format: Paddle's Flex Checkpoint, or any other of reshard.formats()
    options  more of reshard.save: overwrite, sync, checksum, layout, options={"generation": "3.2"}, check, spread, memory, threads, …

    An empty folder is replaced, all else that is there needs overwrite=True: a Flex Checkpoint saved into another's folder would not be
    one. Where what ranks have is no whole, it is refused.
    """
    with _ranks_of(process_group) as ranks:
        options["overwrite"] = options.get("overwrite") or may_replace(path, ranks)
        return _save(path, shards(state_dict), comm=ranks, to=to, **options)


def load(state_dict, path, process_group=None, *, unique_id=None, aoa_config=None, mw_name_compatibility=True, **options):
    """Fills the tensors of a state dict where they lie, together with the other ranks of the group, from a checkpoint of any format and
    layout; flattened ShardedWeights too. Values are cast to the tensors' types.

    unique_id   which of the checkpoints of a folder; None: the last
    aoa_config  {"aoa_statements": […], "aoa_config_reverse": …}: how the state dict's tensors come of the checkpoint's
    mw_name_compatibility  master weights may be there under the other one of their two names in auto parallel
    options     more of reshard.load: strict, map (map=[]: recognised names, such as Hugging Face's, become those of the state dict), rules,
                config, constants, lenient, limits, memory, threads, io

    Returns a reshard.Loaded.
    """
    if aoa_config is not None:
        options["map"] = json.dumps(aoa_config)
    if unique_id is not None:
        path = f"{path}/{unique_id}.metadata"
    with _ranks_of(process_group) as ranks:
        wanted, _ = flatten(shards(state_dict))
        if mw_name_compatibility and options.get("map") is None and options.get("rules") is None:
            wanted = _renamed_master_weights(wanted, path, options)
        return _load(path, wanted, comm=ranks, **options)


def _other_name(key):
    """Of optimizer.master_weights.linear_0.w_0: optimizer.linear_0.w_0_fp32_master_0; and the other way round."""
    parts = key.split(".")
    if "master_weights" in parts:
        parts.remove("master_weights")
        return ".".join(parts) + "_fp32_master_0"
    if not key.endswith("_fp32_master_0"):
        return None
    return ".".join([parts[0], "master_weights", *parts[1:]]).removesuffix("_fp32_master_0")


def _renamed_master_weights(wanted, path, options):
    others = {key: _other_name(key) for key in wanted}
    if not any(others.values()):
        return wanted
    with _open(path, **given(format=options.get("format"), limits=options.get("limits"))) as checkpoint:
        there = checkpoint.tensors
        return {others[key] if key not in there and others[key] in there else key: value for key, value in wanted.items()}


def redistribute(source, target, process_group=None, *, aoa_config=None, **mapping):
    """Fills the tensors of one state dict from those of another, whatever the layouts and without files: from rank to rank, each element
    once. mapping: aoa_config, or map, rules, config, constants and strict as in reshard.convert. Returns how many bytes were kept, sent,
    received, and moved by all."""
    if aoa_config is not None:
        mapping["map"] = json.dumps(aoa_config)
    with _ranks_of(process_group) as ranks:
        return ranks.redistribute(flatten(shards(source))[0], flatten(shards(target))[0], **mapping)


# ---- groups ----

def comm(process_group=None, *, timeout=0):
    """A reshard.Comm of the ranks of a process group (None: the default one), whose backend may be any: it only tells the ranks each
    other's addresses, here. Bytes go over TCP, from this rank's endpoint of Paddle, or the address of the environment's RESHARD_HOST."""
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    if rank < 0:
        raise UsageError("this rank is not one of the group")

    def gather(data):
        told = []
        dist.all_gather_object(told, data, process_group)
        return told

    endpoint = dist.ParallelEnv().current_endpoint.rpartition(":")[0].strip("[]")
    return Comm.sockets(rank, size, gather, host=own_address(endpoint), timeout=timeout)


def _ranks_of(group):
    """The same, of one rank where there are no others. As Paddle's own functions do, this makes the default group if it is not there."""
    if group is None and dist.get_world_size() > 1 and not dist.is_initialized():
        dist.init_parallel_env()
    return comm(group) if dist.get_world_size(group) > 1 else Comm.threads(1)[0]


class Saver(OwningSaver):
    """Saves in the background, in place of async_save: save() returns when the tensors have been copied. All ranks of the group have one.
    Failures are raised by the next wait() or close()."""

    def __init__(self, process_group=None, **options):
        super().__init__("thread", _ranks_of(process_group), **options)

    def save(self, state_dict, path, *, to="paddle-flex", **options):
        """Begins to save; options as reshard.paddle.save has them, but an empty folder is not replaced without overwrite=True. Returns the
        save's number."""
        return super().save(path, shards(state_dict), to=to, **options)
