# SPDX-License-Identifier: Apache-2.0
"""Writing piece by piece."""

from collections.abc import Mapping

from . import _reshard
from ._arrays import Owners, dtype_name, memory_of
from ._errors import UsageError
from ._options import convert_options, run_options, taken
from ._reports import report_of
from ._shards import Shard, place_of
from ._states import flatten, items_taken


class Writer:
    """Writes a checkpoint of any format piece by piece, so that it may be larger than memory: tensors are declared, then their values come
    in any order, from any number of threads, and go where they belong at once. It appears at the end, whole, or not at all.

        with reshard.Writer("out", {"w": ("BF16", (8192, 4096))}, {"step": 3}, to="hf") as writer:
            for row in range(0, 8192, 1024):
                writer.put("w", rows(row, row + 1024), (row, 0))

    path     where it appears: when the block ends, unless it raises
    tensors  {key: (dtype, shape)}, or of whatever has these two: arrays, the tensors of a checkpoint
    items    {key: value}, as in save
    name     of the whole, for messages
    options  of convert, but for resume, verify and comm; to, or like, is needed. part=(0, 8): one of eight writers, in processes that see
             the same storage. Each puts what it has, Writer.commit makes all of it visible

    report is what it is going to write, a Report. finish or close within the block end it there.
    """

    def __init__(self, path, tensors, items=None, *, name="memory", **options):
        if not isinstance(tensors, Mapping):
            raise TypeError("tensors are a mapping of keys to (dtype, shape)")
        run = run_options(**taken(options, "memory", "threads", "io", "progress"))
        declared = [(key, *_declared(tensor)) for key, tensor in tensors.items()]
        arrays, values = flatten({} if items is None else items)
        if arrays:
            raise UsageError(f"item '{next(iter(arrays))}' has an array: arrays are tensors, which are declared")
        self._places = {key: (index, shape) for index, (key, _, shape) in enumerate(declared)}
        facts, self._handle = _reshard.writer_open(declared, *items_taken(values), name, path, convert_options(**options), run)
        self.report = report_of(facts)
        self._is_done = False

    def put(self, key, values, offset=None):
        """Writes values of a tensor, which are cast to its type: an array, whose box begins at offset (None: it is all of the tensor), or a
        Shard. They may change when the call returns. What does not fit, or was written before, is a UsageError, and the writer goes on;
        after any other failure it is of no more use."""
        index, whole = self._places[key]
        shard = _shard_of(key, whole, values, offset)
        owners = Owners()
        address, strides, functions = place_of(key, shard, False, owners)
        with owners:
            self._handle.put(index, len(whole), shard.offset, shard.shape, shard.flat, shard.dtype, strides, address,
                             memory_of(shard.data).nbytes, functions)

    def finish(self):
        """Makes the checkpoint visible; the end of a with block does. If elements are missing it is a UsageError that names them, and they
        may still come."""
        self._handle.finish()
        self._is_done = True

    def close(self):
        """Ends the writer. What was not finished is removed, but for a part's, which others may need."""
        self._handle.close()
        self._is_done = True

    @staticmethod
    def commit(path, **run):
        """Makes visible what the writers of all parts have written; a Report. What they were opened with the first part has kept, unless it
        has a mapping: DiffersError names a part that is missing. memory, threads, io and progress as everywhere."""
        return report_of(_reshard.writer_commit(path, run_options(**run)))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if kind is None and not self._is_done:
                self.finish()
        finally:
            self.close()


def _declared(tensor):
    dtype, shape = tensor if isinstance(tensor, (tuple, list)) else (tensor.dtype, tensor.shape)
    return dtype_name(dtype), tuple(shape)


def _shard_of(key, whole, values, offset):
    if not isinstance(values, Shard):
        memory = memory_of(values)
        if offset is None and memory.shape != whole:
            raise UsageError(f"'{key}' has the shape {list(whole)}, not {list(memory.shape)}: offset says where a part of it begins")
        return Shard(memory, whole, (0,) * len(whole) if offset is None else offset)
    if values.data is None or values.global_shape != whole:
        what = "the shard has no data" if values.data is None else f"the shard is one of {list(values.global_shape)}"
        raise UsageError(f"'{key}' has the shape {list(whole)}, and {what}")
    return values
