# SPDX-License-Identifier: Apache-2.0
"""An open checkpoint."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass

from ._arrays import Array, Owners, dtype_name, memory_of
from ._errors import UsageError
from ._options import map_options, run_options
from ._shards import shard_tuples
from ._values import Stored


@dataclass(frozen=True)
class Chunk:
    """A piece of a tensor as it is stored: the box [start, start + extent) of the whole; or, if flat is (begin, count), a run of the box's
    row-major order. nbytes at offset of file; of the container if it is not resolved."""

    start: tuple
    extent: tuple
    file: str
    offset: int
    nbytes: int
    flat: tuple | None
    encoding: str
    is_replica: bool
    is_resolved: bool
    writer: int | None


class Tensor:
    """A tensor of a checkpoint: what it is; its values are read when they are asked for.

    key, dtype (the library's name: "BF16"), shape, nbytes, and how many chunks it is stored in. t[0:2, :] reads a box, t.read() all.
    """

    __slots__ = ("_checkpoint", "_index", "key", "dtype", "shape", "nbytes", "chunk_count", "replica_count", "_tied_to", "is_ambiguous")

    def __init__(self, checkpoint, index, facts):
        self._checkpoint, self._index = checkpoint, index
        (self.key, self.dtype, self.shape, self.nbytes, self.chunk_count, self.replica_count, self._tied_to, self.is_ambiguous) = facts

    @property
    def path(self):
        """The way to it in the nested state dict: str for keys, int for positions in lists and integer keys."""
        return self._checkpoint._handle.tensor_path(self._index)

    @property
    def tied_to(self):
        """The tensor that it shares its storage with, or None."""
        return None if self._tied_to < 0 else self._checkpoint.tensor_list[self._tied_to]

    @property
    def chunks(self):
        """The pieces that it is stored in."""
        return [Chunk(start, extent, file, offset, size, None if count < 0 else (begin, count), encoding, is_replica, is_resolved,
                      None if writer < 0 else writer)
                for start, extent, file, offset, size, begin, count, encoding, is_replica, is_resolved, writer
                in self._checkpoint._handle.chunks(self._index)]

    def read(self, start=None, extent=None, *, dtype=None, out=None, **run):
        """Reads the box [start, start + extent), or all of it, as an Array; or into out, an array of that shape (strided ones too), which
        is returned. dtype casts. memory, threads, io and progress as everywhere."""
        whole = start is None and extent is None
        start = (0,) * len(self.shape) if start is None else tuple(start)
        extent = tuple(size - at for size, at in zip(self.shape, start)) if extent is None else tuple(extent)
        if out is None:
            out = Array(self.dtype if dtype is None else dtype, self.shape if whole else extent)
        memory = memory_of(out, writable=True)
        if memory.shape != (self.shape if whole else extent):
            raise UsageError(f"'{self.key}': what is read has the shape {list(extent)}, and out {list(memory.shape)}")
        if dtype is not None and dtype_name(dtype) != memory.dtype:
            raise UsageError(f"'{self.key}': out has the type {memory.dtype}, and dtype is {dtype_name(dtype)}")
        place = memory_of(Array(memory.dtype, memory.shape)) if memory.functions else memory
        self._checkpoint._read_boxes([self._box(place, None if whole else start, None if whole else extent)], run)
        if memory.functions:
            memory.functions.write(0, memoryview(place.owner.raw).toreadonly())
        return out

    def _box(self, memory, start=None, extent=None):
        cast = None if memory.dtype == self.dtype else memory.dtype
        return (self._index, len(self.shape), start, extent, memory.strides, cast, memory.address, memory.nbytes)

    def __getitem__(self, index):
        """A box of it, as an Array: ints, slices without a step, and one `...`. Axes with an int go."""
        start, extent, shape = _box_of(index, self.shape, self.key)
        array = self.read(start, extent)
        return array if shape == extent else Array(array.dtype, shape, array)

    def __array__(self, dtype=None, copy=None):
        values = self.read(dtype=None if dtype is None else dtype_name(dtype)).numpy()
        return values

    def numpy(self):
        """All of it as a numpy array."""
        return self.read().numpy()

    def torch(self):
        """All of it as a torch tensor."""
        return self.read().torch()

    def __len__(self):
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __repr__(self):
        return f"reshard.Tensor({self.key!r}, {self.dtype}, {list(self.shape)})"


def _box_of(index, shape, key):
    """(start, extent, shape without the axes that have an int) of an index."""
    index = index if isinstance(index, tuple) else (index,)
    if sum(one is Ellipsis for one in index) > 1:
        raise IndexError("one '...' at most")
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = index[:at] + (slice(None),) * (len(shape) - len(index) + 1) + index[at + 1:]
    if len(index) > len(shape):
        raise IndexError(f"'{key}' has {len(shape)} axes, the index {len(index)}")
    index += (slice(None),) * (len(shape) - len(index))
    start, extent, kept = [], [], []
    for one, size in zip(index, shape):
        if isinstance(one, slice):
            begin, end, step = one.indices(size)
            if step != 1:
                raise IndexError("slices of a checkpoint's tensors have no step")
            count = max(end - begin, 0)
            kept.append(count)
        else:
            begin, count = operator.index(one), 1
            begin += size if begin < 0 else 0
            if not 0 <= begin < size:
                raise IndexError(f"'{key}': {one} is outside of an axis of {size}")
        start.append(begin)
        extent.append(count)
    return tuple(start), tuple(extent), tuple(kept)


class Tensors(Mapping):
    """Tensors by key, in the checkpoint's order. Of several with one key the last counts; Checkpoint.tensor_list has all."""

    def __init__(self, tensors):
        self._by_key = {tensor.key: tensor for tensor in tensors}

    def __getitem__(self, key):
        return self._by_key[key]

    def __iter__(self):
        return iter(self._by_key)

    def __len__(self):
        return len(self._by_key)

    def __repr__(self):
        return f"<{len(self)} tensors>"


class Items(Mapping):
    """What is no tensor, by key; values are loaded when they are asked for. Objects of classes are reshard.Object: they are never made.
    A side file is its text."""

    def __init__(self, handle):
        self._handle = handle
        self._facts = handle.items()
        self._index = {facts[0]: index for index, facts in enumerate(self._facts)}

    def __getitem__(self, key):
        index = self._index[key]
        if self.kind(key) == "file":
            return self._handle.item_json(index)
        return self._handle.item_value(index)

    def json(self, key):
        """The item as JSON text, as `reshard cat` prints it."""
        return self._handle.item_json(self._index[key])

    def stored(self, key):
        """The item as it is stored, for reshard.save and from_memory: objects of classes too, which are copied and never made. The
        checkpoint stays open until then."""
        return Stored(self._handle, self._index[key])

    def file(self, key):
        """The item as the bytes of a file of torch.save, with classes and tensors: torch.load(io.BytesIO(…)) makes it, if you trust it."""
        return self._handle.item_file(self._index[key])

    def kind(self, key):
        """"int", "dict", "object", "file", …; "" for a value that has to be loaded first to be known."""
        return self._facts[self._index[key]][1]

    def path(self, key):
        """The way to it in the nested state dict."""
        return self._handle.item_path(self._index[key])

    def __iter__(self):
        return iter(self._index)

    def __len__(self):
        return len(self._index)

    def __repr__(self):
        return f"<{len(self)} items>"


@dataclass(frozen=True)
class Warned:
    """A warning of opening a checkpoint. is_damage: something is missing or broken. lost: the key of a tensor of which only the name is
    left, or ""."""

    text: str
    is_damage: bool
    lost: str


class Checkpoint:
    """An open checkpoint: `with reshard.open(path) as c`. Any number of threads may read from it at once; all else (convert, verify, diff,
    hash, stats, load under other names) needs it for itself, and says so."""

    def __init__(self, handle, path, owners=None):
        self._handle = handle
        self._owners = Owners() if owners is None else owners  # of a state in memory
        self.path = path
        self.format = handle.format
        self._list_contents()

    def _list_contents(self):
        self.tensor_list = [Tensor(self, index, facts) for index, facts in enumerate(self._handle.tensors())]
        self.tensors = Tensors(self.tensor_list)
        self.items = Items(self._handle)

    @property
    def facts(self):
        """What the format tells about itself: {"written by": "torch >= 2.9", "ranks": "4", …}"""
        return dict(self._handle.facts())

    @property
    def warnings(self):
        """What is odd, as Warned."""
        return [Warned(*warning) for warning in self._handle.warnings()]

    @property
    def files(self):
        """Bytes by the name of each file."""
        return dict(self._handle.files())

    @property
    def nbytes(self):
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensor_list)

    def select(self, include=None, exclude=None, *, strip_prefix=None, renames=None, add_prefix=None):
        """Shows no more than globs choose, under other names: before anything else, and once. Such a checkpoint is for reading and verify;
        conversions have options of the same names. Returns the checkpoint."""
        options = {"include": include, "exclude": exclude, "strip_prefix": strip_prefix, "renames": renames, "add_prefix": add_prefix}
        self._handle.view({name: value for name, value in options.items() if value is not None})
        self._list_contents()
        return self

    def read(self, keys=None, *, dtype=None, **run):
        """Values of many tensors, all if keys is None, as {key: Array}, read in one run in the order of the files. dtype casts, all of
        them."""
        keys = list(self.tensors) if keys is None else list(keys)
        arrays = {key: Array(self.tensors[key].dtype if dtype is None else dtype, self.tensors[key].shape) for key in keys}
        self._read_boxes([self.tensors[key]._box(memory_of(array)) for key, array in arrays.items()], run)
        return arrays

    def load_into(self, state, *, map=None, rules=None, config=None, constants=None, strict=None, **run):
        """Fills arrays: {key: array, Shard or a list of Shards}, each cast to its own type, whatever the layout on disk. All that state
        asks for must be there with its global shape, else nothing is read. With a mapping the checkpoint has what that makes of it; map=[]
        makes recognised names those of the state."""
        shards, owners = shard_tuples(state, writable=True)
        options = map_options(map, rules=rules, config=config, constants=constants, strict=strict)
        with owners, self._owners:
            self._handle.load(shards, options, run_options(**run))
        return state

    def _read_boxes(self, boxes, run):
        with self._owners:
            self._handle.read([box for box in boxes if box[-1]], run_options(**run))

    def close(self):
        """Closes it; arrays that were read stay."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        return f"<reshard.Checkpoint {self.path!r}: {self.format}, {len(self.tensor_list)} tensors, {len(self.items)} items>"
