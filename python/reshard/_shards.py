# SPDX-License-Identifier: Apache-2.0
"""Pieces of tensors, as ranks have them."""

from collections.abc import Mapping

from ._arrays import Owners, Reached, dtype_name, memory_of
from ._errors import UsageError


class Shard:
    """The box of a whole tensor that one rank holds.

    data          an array (Array, numpy, torch, Values, buffer); None where another rank has it
    global_shape  of the whole tensor
    offset        where the box begins in it, in elements
    shape         of the box; by default that of data
    flat          (begin, end): data is only these elements of the box's row-major order
    dtype         by default that of data
    replica       which copy it is: 0 is the main one, which is saved. None: it is not known; of equal pieces the first rank's is
    allow_shape_mismatch  loading: the checkpoint's whole may have another shape; what it lacks is zero, what is too much is left
    """

    __slots__ = ("data", "global_shape", "offset", "shape", "flat", "dtype", "replica", "allow_shape_mismatch")

    def __init__(self, data, global_shape, offset, *, shape=None, flat=None, dtype=None, replica=0, allow_shape_mismatch=False):
        self.data = data
        self.global_shape, self.offset = tuple(global_shape), tuple(offset)
        if data is None and (shape is None or dtype is None):
            raise UsageError("a shard without data needs a shape and a dtype")
        if flat is not None and shape is None:
            raise UsageError("a flat shard needs the shape of the box that it is cut out of")
        self.shape = tuple(memory_of(data).shape if shape is None else shape)
        self.flat, self.replica, self.allow_shape_mismatch = flat, replica, allow_shape_mismatch
        self.dtype = memory_of(data).dtype if dtype is None else dtype_name(dtype)

    def memory(self, key, writable=False):
        """(address, strides, functions, owner) of its values."""
        if self.data is None:
            return 0, None, None, None
        memory = memory_of(self.data, writable)
        if not writable:
            memory = memory.apart()
        shape = (self.flat[1] - self.flat[0],) if self.flat else self.shape
        if memory.shape != shape or memory.dtype != self.dtype:
            raise UsageError(f"'{key}': the shard's data is {memory.dtype} {list(memory.shape)}, and {self.dtype} {list(shape)} is said")
        if self.flat and memory.strides is not None:
            raise UsageError(f"'{key}': the values of a flat shard lie one behind the other")
        return memory.address, memory.strides, memory.functions, memory.owner

    def __repr__(self):
        return f"reshard.Shard({self.dtype} {list(self.shape)} at {list(self.offset)} of {list(self.global_shape)})"


class Pieces(list):
    """The Shards of a tensor that a rank has, perhaps none."""


def as_shard(value):
    """A whole array as a shard of its tensor."""
    if isinstance(value, Shard):
        return value
    memory = memory_of(value)
    return Shard(value, memory.shape, (0,) * len(memory.shape), replica=None)


def each_shard(state):
    """(key, Shard) for each of {key: array, Shard or list of Shards}."""
    if not isinstance(state, Mapping):
        raise TypeError("a state is a mapping of keys to arrays and Shards")
    for key, value in state.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            yield key, as_shard(one)


def place_of(key, shard, writable, owners):
    """(address, strides, functions) of its values, as the extension takes them; adds to the owners."""
    address, strides, functions, owner = shard.memory(key, writable)
    reached = functions and Reached(functions, owners.failures)
    owners += [owner, reached]
    return address, strides, reached


def shard_tuples(state, writable=False):
    """What the extension takes, and the owners of the memory."""
    tuples, owners = [], Owners()
    for key, shard in each_shard(state):
        place = place_of(key, shard, writable, owners)
        tuples.append((key, shard.dtype, shard.global_shape, shard.offset, shard.shape, shard.flat, *place))
    return tuples, owners


_ANY = (-1,)  # RESHARD_REPLICA_ANY


def sharded_tuples(state, writable=False):
    """The same for the ranks of a group, with replicas."""
    tuples, owners = [], Owners()
    for key, shard in each_shard(state):
        address, strides, functions = place_of(key, shard, writable, owners)
        replica = _ANY if shard.replica is None else shard.replica if isinstance(shard.replica, tuple) else (shard.replica,)
        tuples.append((key, shard.dtype, shard.global_shape, shard.offset, shard.shape, shard.flat, replica, address, strides,
                       shard.allow_shape_mismatch, functions))
    return tuples, owners
