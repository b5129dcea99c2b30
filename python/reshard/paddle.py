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
import os
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
from ._online import OwningSaver, agree, may_replace
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
    nested  the state dict as Paddle saved it, dicts in dicts and lists as dicts of positions, with items in their places; what reshard
            saved has flat keys

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
    local, shape, flat = weight.local_tensor, tuple(weight.local_shape), weight.flattened_range
    if not weight.is_flattened:
        return Shard(local, weight.global_shape, weight.global_offset, shape=shape, replica=None)
    if flat is None:
        raise UsageError(f"'{weight.key}' is flattened, and does not say which elements it has (flattened_range)")
    return Shard(local, weight.global_shape, weight.global_offset, shape=shape, flat=(int(flat.start), int(flat.stop)), replica=None)


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
    if 0 in extent and 0 not in tensor.shape:
        return Pieces()  # other ranks have all of it
    local = tensor._local_value()
    if list(local.shape) != extent:
        raise UsageError(f"a DistTensor with the placements {placements} is not one box of the whole")
    return Shard(local, tuple(tensor.shape), offset, replica=None)


# ---- saving and loading ----

TIMEOUT = 1800  # seconds that a rank may do nothing

_OF_SAVE = {"unique_id": "a save is a folder of its own: give it another path, or overwrite=True",
            "async_save": "reshard.paddle.Saver does that",
            "save_replicas": "copies are saved once: reshard.convert(…, options={'dedupe': 'none'}) writes all",
            "safetensors": "to='hf' writes safetensors"}
_NEEDLESS = ("coordinator_rank", "offload", "comm_method", "worker_groups")  # which say how, and not what


def _told_otherwise(options, words):
    """Takes arguments of Paddle's functions away that do not count here; UsageError for those that another one is for."""
    for name, instead in words.items():
        if options.pop(name, None):
            raise UsageError(f"{name}=: {instead}")
    for name in _NEEDLESS:
        options.pop(name, None)


def _take_aoa(mapping, aoa_config):
    if aoa_config and mapping.get("map") is not None:
        raise UsageError("map= and aoa_config= both say how tensors come: give one of them")
    if aoa_config:
        mapping["map"] = json.dumps(aoa_config)


def _make_parents(path, rank):
    if rank == 0:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)


def save(state_dict, path, process_group=None, *, to="paddle-flex", timeout=TIMEOUT, **options):
    """Saves a state dict as one checkpoint, together with the other ranks of the group: of ShardedWeights, DistTensors and tensors, nested
    ones too, and of items that are numbers, texts and containers of these.

    to       the format: Paddle's Flex Checkpoint, or any other of reshard.formats()
    timeout  seconds that a rank may do nothing
    options  more of reshard.save: overwrite, sync, checksum, layout, options={"generation": "3.2"}, check, spread, memory, threads, …

    An empty folder is replaced, all else that is there needs overwrite=True: a Flex Checkpoint saved into another's folder would not be
    one. Where what ranks have is no whole, it is refused.
    """
    def prepare():
        _told_otherwise(options, _OF_SAVE)
        _make_parents(path, ranks.rank)

    with _ranks_of(process_group, timeout) as ranks:
        agree(ranks, prepare)
        options["overwrite"] = options.get("overwrite") or may_replace(path, ranks)
        return _save(path, lambda: shards(state_dict), comm=ranks, to=to, **options)


def load(state_dict, path, process_group=None, *, unique_id=None, aoa_config=None, mw_name_compatibility=True, timeout=TIMEOUT, **options):
    """Fills the tensors of a state dict where they lie, together with the other ranks of the group, from a checkpoint of any format and
    layout; flattened ShardedWeights too. Values are cast to the tensors' types.

    unique_id   which of the checkpoints of a folder; None: the last
    aoa_config  {"aoa_statements": […], "aoa_config_reverse": …}: how the state dict's tensors come of the checkpoint's
    mw_name_compatibility  master weights may be there under the other one of their two names in auto parallel
    timeout     seconds that a rank may do nothing
    options     more of reshard.load: strict, map (map=[]: recognised names, such as Hugging Face's, become those of the state dict), rules,
                config, constants, lenient, limits, memory, threads, io

    Formats are recognised, and how ranks exchange what they read is the library's: safetensors, offload, comm_method, worker_groups and
    coordinator_rank of Paddle's function are taken, and change nothing. Returns a reshard.Loaded.
    """
    _told_otherwise(options, {})
    options.pop("safetensors", None)
    _take_aoa(options, aoa_config)
    if unique_id is not None:
        path = f"{path}/{unique_id}.metadata"

    def wanted():
        pieces = shards(state_dict)
        if not mw_name_compatibility or options.get("map") is not None or options.get("rules") is not None:
            return pieces
        return _renamed_master_weights(flatten(pieces)[0], path, options)

    with _ranks_of(process_group, timeout) as ranks:
        return _load(path, wanted, comm=ranks, **options)


def _other_name(key):
    """Of optimizer.master_weights.linear_0.w_0: optimizer.linear_0.w_0_fp32_master_0; and the other way round."""
    parts = key.split(".")
    if "master_weights" in parts:
        parts.remove("master_weights")
        return ".".join(parts) + "_fp32_master_0"
    if not key.endswith("_fp32_master_0"):
        return None
    parts = key.removesuffix("_fp32_master_0").split(".")
    return ".".join([parts[0], "master_weights", *parts[1:]])


def _renamed_master_weights(wanted, path, options):
    others = {key: _other_name(key) for key in wanted}
    if not any(others.values()):
        return wanted
    opening = {name: options.get(name) for name in ("format", "iteration", "follow_links", "lenient", "limits")}
    with _open(path, **given(**opening)) as there:
        renamed = {key: other for key, other in others.items()
                   if key not in there.tensors and other in there.tensors and other not in wanted}
    return {renamed.get(key, key): value for key, value in wanted.items()}


def redistribute(source, target, process_group=None, *, aoa_config=None, timeout=TIMEOUT, **mapping):
    """Fills the tensors of one state dict from those of another, whatever the layouts and without files: from rank to rank, each element
    once. mapping: aoa_config, or map, rules, config, constants and strict as in reshard.convert. Returns how many bytes were kept, sent,
    received, and moved by all."""
    _take_aoa(mapping, aoa_config)
    with _ranks_of(process_group, timeout) as ranks:
        pieces = agree(ranks, lambda: [flatten(shards(state))[0] for state in (source, target)])
        return ranks.redistribute(*pieces, **mapping)


# ---- groups ----

def _rank_in(group):
    """(rank, size): Paddle itself says -1 of both in a group of one rank."""
    if group is None:
        return dist.get_rank(), dist.get_world_size()
    if dist.get_rank() not in group.ranks:
        raise UsageError("this rank is not one of the group: only those that are call this")
    return group.ranks.index(dist.get_rank()), len(group.ranks)


def comm(process_group=None, *, timeout=TIMEOUT):
    """A reshard.Comm of the ranks of a process group (None: the default one), whose backend may be any: it only tells the ranks each
    other's addresses, here. Bytes go over TCP, from this rank's endpoint of Paddle, or the address of the environment's RESHARD_HOST."""
    rank, size = _rank_in(process_group)

    def gather(data):
        told = []
        if size == 1:
            return [data]
        dist.all_gather_object(told, data, process_group)
        return told

    def host():
        return own_address(dist.ParallelEnv().current_endpoint.rpartition(":")[0].strip("[]"))

    return Comm.sockets(rank, size, gather, host=host, timeout=timeout)


def _ranks_of(group, timeout):
    """The same, of one rank where there are no others. As Paddle's own functions do, this makes the default group if it is not there."""
    if group is None and dist.get_world_size() > 1 and not dist.is_initialized():
        dist.init_parallel_env()
    return comm(group, timeout=timeout) if _rank_in(group)[1] > 1 else Comm.threads(1)[0]


class Saver(OwningSaver):
    """Saves in the background, in place of async_save: save() returns when the tensors have been copied. All ranks of the group have one.
    Failures are raised by the next wait() or close()."""

    def __init__(self, process_group=None, *, timeout=TIMEOUT, **options):
        super().__init__("thread", _ranks_of(process_group, timeout), **options)

    def save(self, state_dict, path, *, to="paddle-flex", **options):
        """Begins to save; options as reshard.paddle.save has them, but an empty folder is not replaced without overwrite=True. Returns the
        save's number."""
        with self.group_ends_if_it_fails():
            _told_otherwise(options, _OF_SAVE)
            _make_parents(path, self._rank)
            return super().save(path, shards(state_dict), to=to, **options)
