# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch, with DTensors, and process groups of torch.distributed. `import reshard` alone does not need torch.

    import reshard.torch

    weights = reshard.torch.read("iter_0001000")                            # any format, as a flat dict of tensors
    reshard.torch.save("checkpoint", model.state_dict(), to="torch-dcp")    # all ranks together, if torch.distributed is there
    reshard.torch.load("iter_0001000", model.state_dict(), map=[])          # in place, whatever the layout on disk
"""

import ctypes
import io

import torch
import torch.distributed

from . import Comm, Shard, Stored, TorchFile, UsageError, _Opened
from . import load as _load
from . import Saver as _Saver
from . import save as _save
from ._arrays import dtype_name, framework_dtype
from ._devices import bytes_tensor
from ._shards import Pieces
from ._states import nested_state, plain, with_pieces


# ---- reading ----

def read(source, keys=None, *, device=None, dtype=None, nested=False, opening=None, **run):
    """{key: tensor} of a checkpoint of any format: of some keys, or all, read in one run.

    device  where the tensors go; None: the host
    dtype   "bf16", torch.bfloat16, …: a cast of all
    nested  the state dict as it was saved, dicts in dicts and lists as dicts of positions, with items in their places

    opening: options of reshard.open, as a dict. memory, threads, io, progress as everywhere.
    """
    with _Opened(source, opening) as checkpoint:
        if device is None:
            tensors = {key: array.torch() for key, array in checkpoint.read(keys, dtype=dtype, **run).items()}
        else:
            tensors = checkpoint.load_into(_empty(checkpoint, keys, device, dtype), **run)
        return nested_state(checkpoint, tensors, keys is None) if nested else tensors


def _empty(checkpoint, keys, device, dtype):
    tensors = {key: checkpoint.tensors[key] for key in (checkpoint.tensors if keys is None else keys)}
    types = {key: framework_dtype(torch, tensor.dtype if dtype is None else dtype_name(dtype)) for key, tensor in tensors.items()}
    return {key: torch.empty(tensor.shape, dtype=types[key], device=device) for key, tensor in tensors.items()}


# ---- pieces ----

def shards(state_dict, items=True):
    """The same nested state dict with a Shard in place of each DTensor and ShardedTensor: the piece that this rank has, by its place in the
    whole, and which copy it is. A plain tensor is detached: a copy that each rank has. Items that are no numbers, texts and containers of
    these are TorchFiles; without items, they are None."""
    return with_pieces(state_dict, _piece, _item if items else lambda value: None)


def _piece(array):
    if hasattr(array, "placements") and hasattr(array, "to_local"):
        return _dtensor_shards(array)
    if hasattr(array, "local_shards"):
        return Pieces(Shard(piece.tensor.detach(), tuple(array.size()), tuple(piece.metadata.shard_offsets))
                      for piece in array.local_shards())
    return array.detach() if isinstance(array, torch.Tensor) else array


def file_of(value):
    """The bytes of a file of torch.save."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _item(value):
    if isinstance(value, (Stored, TorchFile)):
        return value
    try:
        return plain(value, "")
    except TypeError:
        return TorchFile(file_of(value))


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
    replica = tuple(at for at, placement in zip(coordinate, placements) if placement.is_replicate())
    return Shard(local, tuple(tensor.shape), tuple(chunks[0].offsets), replica=replica or (0,))


# ---- saving and loading ----

def _group_is_there(group):
    return torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size(group) > 1


def save(path, state_dict, *, group=None, **options):
    """Saves a state dict in any format: reshard.save with its options (to is needed), for DTensors too. Where torch.distributed is there,
    all ranks of the group call it, and write one checkpoint together. The group needs a backend for the host's memory, such as gloo."""
    if not _group_is_there(group):
        return _save(path, shards(state_dict), **options)
    with comm(group) as ranks:
        return _save(path, shards(state_dict), comm=ranks, **options)


def load(path, state_dict, *, group=None, **options):
    """Fills the tensors of a state dict where they lie, DTensors too, from a checkpoint of any format and layout: reshard.load with its
    options. All ranks of the group call it; each byte is read once. map=[]: recognised names (Hugging Face, Megatron, Paddle) become those
    of the state dict. Returns a reshard.Loaded."""
    if not _group_is_there(group):
        return _load(path, shards(state_dict, False), **options)
    with comm(group) as ranks:
        return _load(path, shards(state_dict, False), comm=ranks, **options)


# ---- groups ----

class _Transport:
    """What Comm.host needs, over torch.distributed."""

    def __init__(self, group):
        self.group = group
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)
        self._works = []
        self._sent, self._received = {}, {}  # messages with each rank so far: their tags

    def all_gather(self, data):
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        torch.distributed.all_gather(sizes, torch.tensor([len(data)], dtype=torch.int64), group=self.group)
        longest = max(int(size) for size in sizes)
        if longest == 0:
            return [b""] * self.size
        own = torch.zeros(longest, dtype=torch.uint8)
        if data:
            own[: len(data)] = bytes_tensor(data)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        torch.distributed.all_gather(parts, own, group=self.group)
        return [_bytes_of(part[: int(size)]) for part, size in zip(parts, sizes)]

    def submit_send(self, to, memory):
        if memory.nbytes:
            tag = _next(self._sent, to)
            self._works.append(torch.distributed.isend(bytes_tensor(memory), dst=self._global(to), group=self.group, tag=tag))

    def submit_recv(self, from_, memory):
        if memory.nbytes:
            tag = _next(self._received, from_)
            self._works.append(torch.distributed.irecv(bytes_tensor(memory), src=self._global(from_), group=self.group, tag=tag))

    def run(self):
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def _global(self, rank):
        return rank if self.group is None else torch.distributed.get_global_rank(self.group, rank)


def _bytes_of(tensor):
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())  # without numpy


def _next(counts, rank):
    counts[rank] = counts.get(rank, 0) + 1
    return counts[rank]


def comm(group=None, *, timeout=0):
    """A reshard.Comm over a process group (None: the default one), whose backend moves the host's memory: gloo, or "cpu:gloo,cuda:nccl"."""
    return Comm.host(_Transport(group), timeout=timeout)


def ranks_of(group=None):
    """The same, of one rank where there is no such group."""
    return comm(group) if _group_is_there(group) else Comm.threads(1)[0]


class Saver(_Saver):
    """reshard.Saver for state dicts of torch, with DTensors; with a group, all its ranks have one and save together."""

    def __init__(self, by="thread", *, group=None, **options):
        self._comm = ranks_of(group) if by == "thread" or _group_is_there(group) else None
        super().__init__(by, comm=self._comm, **options)

    def save(self, path, state_dict, **options):
        return super().save(path, shards(state_dict), **options)

    def close(self):
        try:
            super().close()
        finally:
            if self._comm is not None:
                self._comm.close()
