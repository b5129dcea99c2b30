# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch, with DTensors, and process groups of torch.distributed. `import reshard` alone does not need torch.

    import reshard.torch

    weights = reshard.torch.read("iter_0001000")                            # any format, as a flat dict of tensors
    reshard.torch.save("checkpoint", model.state_dict(), to="torch-dcp")    # all ranks together, if torch.distributed is there
    reshard.torch.load("iter_0001000", model.state_dict(), map=[])          # in place, whatever the layout on disk
"""

import io
import os
from collections.abc import Mapping

import torch
import torch.distributed

from . import Comm, Shard, Stored, TorchFile, UnsupportedError, UsageError, _Opened
from . import save as _save
from ._arrays import dtype_name, framework_dtype
from ._online import OwningSaver, load_as
from ._shards import Pieces
from ._sockets import own_address
from ._states import nested_state, with_pieces, without_numpy
from ._values import json_holds


# ---- reading ----

def read(source, keys=None, *, device=None, dtype=None, nested=False, opening=None, **run):
    """{key: tensor} of a checkpoint of any format: of some keys, or all, read in one run.

    device  where the tensors go; None: the host
    dtype   "bf16", torch.bfloat16, …: a cast of all
    nested  the state dict as torch saved it, dicts in dicts and lists as dicts of positions, with items in their places; what reshard saved
            has flat keys

    opening: options of reshard.open, as a dict. memory, threads, io, progress as everywhere.
    """
    with _Opened(source, opening) as checkpoint:
        if device is None:
            tensors = {key: array.torch() for key, array in checkpoint.read(keys, dtype=dtype, **run).items()}
        else:
            tensors = checkpoint.load_into(_empty(checkpoint, keys, device, dtype), **run)
        return nested_state(checkpoint, tensors, keys is None, _stored_value) if nested else tensors


def _stored_value(items, key):
    """An item with the types that torch.load gives it; of classes that torch does not trust what Items shows of it."""
    try:
        value = TorchFile(b"") if items.kind(key) == "file" else _value_of_file(items.file(key))
    except UnsupportedError:  # it holds tensors that the checkpoint cannot give
        return items[key]
    return items[key] if isinstance(value, TorchFile) else value


def _empty(checkpoint, keys, device, dtype):
    tensors = {key: checkpoint.tensors[key] for key in (checkpoint.tensors if keys is None else keys)}
    types = {key: framework_dtype(torch, tensor.dtype if dtype is None else dtype_name(dtype)) for key, tensor in tensors.items()}
    return {key: torch.empty(tensor.shape, dtype=types[key], device=device) for key, tensor in tensors.items()}


# ---- pieces ----

def shards(state_dict, items=True):
    """The same nested state dict with a Shard in place of each DTensor and ShardedTensor: the piece that this rank has, by its place in the
    whole. What has a state dict of its own at the top level (a module, an optimizer) is that, as for torch.distributed.checkpoint. A plain
    tensor is detached: a copy that each rank has. As a tensor does not say who else has the same piece, on another mesh or in another
    group, the first rank that has it saves it. Items that JSON does not hold with their types (tuples, infinities, bytes, dicts
    with other keys than texts, objects) are TorchFiles, and numpy's scalars Python's; without items, they are None."""
    return with_pieces(_states_of(state_dict), _piece, _item if items else lambda value: None)


def _is_stateful(value):
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def _states_of(state_dict):
    """The same with the state dicts of modules, optimizers and their like in place of these."""
    if not isinstance(state_dict, Mapping):
        own = ": give its state_dict()" if _is_stateful(state_dict) else ""
        raise UsageError(f"a state dict is a mapping, not {type(state_dict).__name__}{own}")
    return {key: value.state_dict() if _is_stateful(value) else value for key, value in state_dict.items()}


def _put_items(state, prefix, items, path):
    """Puts items that were loaded in their places of a nested state dict whose tensors are filled."""
    for name, value in list(state.items() if isinstance(state, Mapping) else enumerate(state)):
        key = f"{prefix}.{name}"
        if isinstance(items.get(key), TorchFile):
            raise UnsupportedError(f"'{key}' of {path} is of a class that nobody trusts: torch.serialization.safe_globals trusts more")
        if key in items:
            state[name] = items[key]
        elif isinstance(value, (dict, list)):
            _put_items(value, key, items, path)


def _piece(array):
    if hasattr(array, "placements") and hasattr(array, "to_local"):
        return _dtensor_shards(array)
    if hasattr(array, "local_shards"):
        return Pieces(Shard(piece.tensor.detach(), tuple(array.size()), tuple(piece.metadata.shard_offsets), replica=None)
                      for piece in array.local_shards())
    return array.detach() if isinstance(array, torch.Tensor) else array


def file_of(value):
    """The bytes of a file of torch.save."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _value_of_file(file):
    """What torch.load gives where it trusts all classes; else the file as it is."""
    try:
        return torch.load(io.BytesIO(file), map_location="cpu", weights_only=True)
    except Exception:
        return TorchFile(file)


def _item(value):
    if isinstance(value, (Stored, TorchFile)):
        return value
    value = without_numpy(value)
    return value if json_holds(value) else TorchFile(file_of(value))


def _dtensor_shards(tensor):
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise UsageError("a DTensor whose values are partial sums has no values of its own: redistribute it first")
    coordinate = mesh.get_coordinate()
    local = tensor.detach().to_local()
    if coordinate is None or (local.numel() == 0 and tensor.numel() != 0):
        return Pieces()  # other ranks have all of it
    chunks = tensor.__create_chunk_list__()
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(local.shape):
        raise UsageError(f"a DTensor with the placements {placements} is not one box of the whole")
    return Shard(local, tuple(tensor.shape), tuple(chunks[0].offsets), replica=None)


# ---- saving and loading ----

TIMEOUT = 1800  # seconds that a rank may do nothing: as long as torch gives one


def _group_is_there(group):
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    if torch.distributed.get_rank(group) < 0:
        raise UsageError("this rank is not one of the group: only those that are call this")
    return torch.distributed.get_world_size(group) > 1


def save(path, state_dict, *, group=None, timeout=TIMEOUT, **options):
    """Saves a state dict in any format: reshard.save with its options (to is needed), for DTensors too. Where torch.distributed is there,
    all ranks of the group call it, and write one checkpoint together. timeout: seconds that a rank may do nothing."""
    if not _group_is_there(group):
        return _save(path, shards(state_dict), **options)
    with comm(group, timeout=timeout) as ranks:
        return _save(path, lambda: shards(state_dict), comm=ranks, **options)


def load(path, state_dict, *, group=None, timeout=TIMEOUT, **options):
    """Fills the tensors of a state dict where they lie, DTensors too, from a checkpoint of any format and layout: reshard.load with its
    options. All ranks of the group call it; each byte is read once. map=[]: recognised names (Hugging Face, Megatron, Paddle) become those
    of the state dict. timeout: seconds that a rank may do nothing. Modules, optimizers and their like at the top level get what was loaded
    by their load_state_dict, items too.

    Returns a reshard.Loaded, whose items and cells have the types that torch.load(weights_only=True) gives them. What is of a class that
    it does not make is a TorchFile: torch.load(io.BytesIO(value.data), weights_only=False) makes it, if you trust it. Within
    torch.serialization.safe_globals it makes more."""
    states = {}

    def wanted():
        states.update(_states_of(state_dict))
        return shards(states, False)

    if _group_is_there(group):
        with comm(group, timeout=timeout) as ranks:
            loaded = load_as(_values_of_files, path, wanted, comm=ranks, **options)
    else:
        loaded = load_as(_values_of_files, path, wanted, **options)
    stateful = [key for key, value in state_dict.items() if _is_stateful(value)]
    for key in stateful:
        _put_items(states[key], key, loaded.items, path)
    for key in stateful:
        state_dict[key].load_state_dict(states[key])
    return loaded


def _values_of_files(files, limits):
    return [_value_of_file(file) for file in files]


# ---- groups ----

def comm(group=None, *, timeout=TIMEOUT):
    """A reshard.Comm of the ranks of a process group (None: the default one), whose backend may be any (nccl, gloo, …): it only tells the
    ranks each other's addresses, here. Bytes go over TCP, from the address by which a machine reaches MASTER_ADDR, or that of the
    environment's RESHARD_HOST."""
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    if rank < 0:
        raise UsageError("this rank is not one of the group")

    def gather(data):
        told = [None] * size
        torch.distributed.all_gather_object(told, data, group=group)
        return told

    return Comm.sockets(rank, size, gather, host=lambda: own_address(os.environ.get("MASTER_ADDR")), timeout=timeout)


def ranks_of(group=None, timeout=TIMEOUT):
    """The same, of one rank where there is no such group."""
    return comm(group, timeout=timeout) if _group_is_there(group) else Comm.threads(1)[0]


class Saver(OwningSaver):
    """reshard.Saver for state dicts of torch, with DTensors; with a group, all its ranks have one and save together."""

    def __init__(self, by="thread", *, group=None, timeout=TIMEOUT, **options):
        super().__init__(by, ranks_of(group, timeout) if by == "thread" or _group_is_there(group) else None, **options)

    def save(self, path, state_dict, **options):
        with self.group_ends_if_it_fails():
            return super().save(path, shards(state_dict), **options)
