# SPDX-License-Identifier: Apache-2.0
"""Megatron Core's sharded state dicts, saved and loaded by the library: what dist_checkpointing.save and load do, with their arguments.

    import reshard.megatron

    reshard.megatron.save(sharded_state_dict, "checkpoints/iter_0001000")
    state_dict = reshard.megatron.load(sharded_state_dict, "checkpoints/iter_0001000")
    state_dict = reshard.megatron.load(sharded_state_dict, "hf-model", map=[], strict="log_unexpected")    # any other format and layout

Checkpoints are Megatron's own: dist_checkpointing loads what is saved here, and the other way round. They appear whole or not at all,
each byte is read by one rank, and tensors on GPUs are saved and filled without a copy of the state on the host.

Common state and ShardedObjects are Python objects. They are written with torch.save, and read by torch.load with weights_only=True: no
class is made that safe_globals (and Megatron's own list, where it has one) does not name.
"""

import argparse
import contextlib
import hashlib
import io
import logging
import pathlib
import pickle
import re
import signal
import threading
import types

import torch
from megatron.core.dist_checkpointing import utils as _megatron_utils
from megatron.core.dist_checkpointing.dict_utils import (dict_list_map_outplace, diff, extract_matching_values, merge,
                                                         nested_values)
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factory_merges, is_main_replica
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess, save_preprocess
from megatron.core.dist_checkpointing.validation import parse_strict_flag

from . import Shard, UnsupportedError, UsageError, _reshard
from . import open as _open
from ._online import agree, background_options, loading_options, may_replace
from ._options import convert_options, run_options, split_run, takes
from ._shards import Pieces, sharded_tuples
from .torch import Saver as _Saver
from .torch import TIMEOUT, file_of, ranks_of

__all__ = ["Saver", "load", "save"]

_logger = logging.getLogger(__name__)


# ---- Python objects as files ----

def _trusted():
    """What Megatron's checkpoints hold beside numbers and texts; its own list, where this version has one."""
    names = [argparse.Namespace, types.SimpleNamespace, pathlib.PosixPath, signal.Signals, io.BytesIO]
    try:
        from megatron.core.safe_globals import SAFE_GLOBALS
        names += SAFE_GLOBALS
    except ImportError:
        import numpy
        from megatron.core.enums import ModelType
        array = numpy.zeros(1, "u4")
        names += [ModelType, numpy.ndarray, numpy.dtype, type(array.dtype), array.__reduce__()[0]]
    return names


_trusting = threading.Lock()  # what is trusted is the process's


@contextlib.contextmanager
def _trust(more):
    """Within it _object makes what Megatron's checkpoints hold, and what `more` names."""
    with _trusting:
        known = torch.serialization.get_safe_globals()  # which the end of the context would make strangers again
        with torch.serialization.safe_globals([name for name in (*_trusted(), *more) if name not in known]):
            yield


def _reason(error):
    """One line, without colours. Of what torch says about a class that is not trusted, the end says which."""
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error)).strip()
    which = re.search(r"WeightsUnpickler error: *\n*\s*(.*)", text)
    return (which[1] if which else text.split("\n", 1)[0]).split(" was not an allowed global", 1)[0]


def _object(file, what, path):
    """UnsupportedError where it is of a class that is not trusted: the item, and which class that is."""
    try:
        return torch.load(io.BytesIO(file), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsupportedError(f"'{what}' of {path} is of a class that nobody trusts: {_reason(error)} (safe_globals= names more)"
                               ) from error


# ---- state dicts ----

def _replica(value):
    """Megatron takes a number, or any sequence of them."""
    return (value.replica_id,) if isinstance(value.replica_id, int) else tuple(value.replica_id)


def _shard(tensor):
    """A ShardedTensor as a Shard: prepended axes are axes of one element."""
    data, shape = tensor.data, (1,) * tensor.prepend_axis_num + tuple(tensor.local_shape)
    flat = None if tensor.flattened_range is None else (tensor.flattened_range.start, tensor.flattened_range.stop)
    if data is not None:
        data = data.detach() if flat else data.detach().reshape(shape) if data.is_contiguous() else data.detach()[
            (None,) * tensor.prepend_axis_num]
    return Shard(data, tensor.global_shape, tensor.global_offset, shape=shape, flat=flat, dtype=tensor.dtype, replica=_replica(tensor),
                 allow_shape_mismatch=tensor.allow_shape_mismatch)


def _tensors(sharded):
    """{key: Pieces} of the ShardedTensors of a state dict."""
    pieces = {}
    for value in nested_values(sharded):
        if isinstance(value, ShardedTensor):
            pieces.setdefault(value.key, Pieces()).append(_shard(value))
    return pieces


def _objects(sharded, with_values):
    """What the extension takes of the ShardedObjects of a state dict, of copies without their values. Megatron keeps lists of one."""
    return [(value.key, tuple(value.global_shape), tuple(value.global_offset),
             _replica(value),
             file_of([value.data]) if with_values and is_main_replica(value.replica_id) else "null")
            for value in nested_values(sharded) if isinstance(value, ShardedObject)]


def _without_float8(sharded):
    """Tensors of Transformer Engine's 8-bit types as those of the higher precision, where this version of Megatron knows them."""
    getattr(_megatron_utils, "force_all_tensors_to_non_fp8", lambda state: None)(sharded)


def _common(common):
    for key in common:
        if not isinstance(key, str):
            raise TypeError(f"keys of the common state are str, not {key!r}")
    return [(0, key, file_of(value)) for key, value in common.items()]


def _state(sharded_state_dict, content_metadata, rank):
    """(what the extension saves, owners of the memory, the common state). Common state is rank 0's."""
    sharded, common = save_preprocess(sharded_state_dict, False)
    content_metadata = common.get("content_metadata") if content_metadata is None else content_metadata
    if content_metadata is not None:
        common["content_metadata"] = getattr(_megatron_utils, "_clean_metadata_for_serialization", dict)(content_metadata)
    _without_float8(sharded)
    tuples, owners = sharded_tuples(_tensors(sharded))
    return (tuples, _objects(sharded, True), _common(common) if rank == 0 else ()), owners, common


# ---- what ranks agree about ----

def _compare(common, ranks):
    """Warns on rank 0 of common state that differs from its own, with Megatron's words. Rank 0's is sent, where another one differs."""
    def seen():
        try:
            return file_of(common)
        except Exception as error:  # nor can it be compared
            return b"?" + repr(error).encode()

    own = seen() if ranks.size > 1 else b""
    digests = ranks.all_gather(hashlib.sha256(own).digest())
    if len(set(digests)) == 1:
        return
    first = ranks.all_gather(own if ranks.rank == 0 else b"")[0]
    said = _difference(first, own, common, ranks.rank) if digests[ranks.rank] != digests[0] else ""
    for text in filter(None, ranks.all_gather(said.encode(errors="replace"))):
        if ranks.rank == 0:
            _logger.warning("%s", text.decode())


def _difference(first, own, common, rank):
    """How a rank's common state differs from rank 0's, of which there is the file; "" if it does not."""
    try:
        for file in (first, own):
            if file.startswith(b"?"):
                raise ValueError(file[1:].decode(errors="replace"))
        with _trust(()):
            only_first, only_other, mismatched = diff(_object(first, "common state", "rank 0"), common)
    except Exception as error:  # of a class that nobody trusts, or that cannot be compared
        return f"Rank {rank} common state dict differs from rank 0 common state dict; it is not known how: {_reason(error)}"
    if not (only_first or only_other or mismatched):
        return ""
    return (f"Rank {rank} common state dict differs from rank 0 common state dict. Keys only on rank 0: {only_first}, "
            f"Keys only on {rank}: {only_other}, Mismatched keys: {mismatched}")


def _choose_format(options):
    """Megatron's own, with the state as the job has it, and without a root around it."""
    if options.setdefault("to", "torch_dist") == "torch_dist":
        options["options"] = {"root": "none", "state": "as-is", **(options.get("options") or {})}


# ---- saving ----

def _told_otherwise(arguments):
    """UsageError for an argument of Megatron's that another one, or nothing, is for."""
    for name, (value, usual, instead) in arguments.items():
        if value is not usual:
            raise UsageError(f"{name}=: {instead}")


_STRATEGY_OF_SAVE = "to= says the format, spread= whether ranks share the work, memory=, threads= and io= how it is written"
_STRATEGY_OF_LOAD = "formats are recognised; exchange= says whether ranks share the work"


@takes(convert_options, run_options)
def save(sharded_state_dict, checkpoint_dir, sharded_strategy=None, common_strategy=None, validate_access_integrity=True,
         async_sharded_save=False, preprocess_common_before_consistancy_check=None, content_metadata=None, *, group=None, timeout=TIMEOUT,
         spread=True, **options):
    """Saves a sharded state dict as one checkpoint, together with the other ranks of the group. As dist_checkpointing.save, whose order of
    arguments this is, factories are applied in place.

    validate_access_integrity, preprocess_common_before_consistancy_check, content_metadata   as Megatron has them
    sharded_strategy, common_strategy, async_sharded_save   as Megatron means them by default: spread, to and Saver are in their place
    timeout  seconds that a rank may do nothing
    spread   copies that several ranks have are saved by one of them, evenly (fully parallel saving)
    to       the format: "torch_dist", or any other of reshard.formats()
    options  more of reshard.convert: overwrite, sync, checksum, layout, memory, threads, …

    An empty folder is replaced, all else that is there needs overwrite=True. Common state that differs between ranks is a warning of the
    logger of this module.
    """
    preprocess = preprocess_common_before_consistancy_check if validate_access_integrity else None

    def prepare():
        _told_otherwise({"sharded_strategy": (sharded_strategy, None, _STRATEGY_OF_SAVE),
                         "common_strategy": (common_strategy, None, _STRATEGY_OF_SAVE),
                         "async_sharded_save": (async_sharded_save, False, "reshard.megatron.Saver saves in the background")})
        run, rest = split_run(options)
        _choose_format(rest)
        state, owners, common = _state(sharded_state_dict, content_metadata, ranks.rank)
        return run, rest, state, owners, preprocess(common) if preprocess else common

    with ranks_of(group, timeout) as ranks:
        run, rest, state, owners, common = agree(ranks, prepare)
        rest["overwrite"] = rest.get("overwrite") or may_replace(checkpoint_dir, ranks)
        if validate_access_integrity:
            _compare(common, ranks)
        with owners:
            _reshard.save(ranks._handle, lambda: (checkpoint_dir, state, convert_options(**rest), not validate_access_integrity,
                                                  not spread, run))


class Saver(_Saver):
    """Saves in the background, in place of Megatron's async_save: save() returns when the tensors have been copied. All ranks of the group
    have one. Failures are raised by the next wait() or close()."""

    def __init__(self, *, group=None, **options):
        super().__init__("thread", group=group, **options)

    @takes(convert_options, run_options)
    def save(self, sharded_state_dict, checkpoint_dir, *, validate_access_integrity=True, preprocess_common_before_consistancy_check=None,
             timeout=None, content_metadata=None, **options):
        """Begins to save; options as save() has them, but an empty folder is not replaced without overwrite=True, what ranks have is always
        looked at, and their common state is not compared. Returns the save's number."""
        with self.group_ends_if_it_fails():
            _told_otherwise({"validate_access_integrity": (validate_access_integrity, True, "what ranks have is always looked at"),
                             "timeout": (timeout, None, "it is one of the Saver")})
            run, rest = background_options(options)
            state, owners, _ = _state(sharded_state_dict, content_metadata, self._rank)
            _choose_format(rest)
            with owners:
                return self._handle.save(state, True, checkpoint_dir, convert_options(**rest), run)


# ---- loading ----

# Keys that are logged are asked for first.
_TOLD = {"log_unexpected": "return_unexpected", "log_all": "return_all", "ignore_all": "return_unexpected"}


@takes(loading_options)
def load(sharded_state_dict, checkpoint_dir, sharded_strategy=None, common_strategy=None, validate_access_integrity=True,
         strict="assume_ok_unexpected", *, group=None, timeout=TIMEOUT, exchange=True, safe_globals=(), **options):
    """Loads a checkpoint of any format and layout into a sharded state dict, together with the other ranks of the group, in the order of
    arguments of dist_checkpointing.load. Tensors are filled where they lie; those without data get some on the host. What fails on one
    rank fails on all.

    sharded_strategy, common_strategy   as Megatron means them by default: formats are recognised
    validate_access_integrity   look whether the ranks together ask for wholes
    strict        Megatron's StrictHandling, or its value
    exchange      what several ranks ask for is read by one and sent to the others; False: each reads what it wants
    safe_globals  more classes that common state and ShardedObjects may be of
    options       map, rules, config, constants, strict_map: under which names tensors come; map=[]: recognised names (Hugging Face,
                  Megatron's old formats, Paddle) become those of the state dict. format, iteration, lenient, limits, memory, threads, io

    Returns the state dict, and where strict says so, the missing and the unexpected keys, as dist_checkpointing.load does.
    """
    asked, format = parse_strict_flag(strict).value, options.get("format")

    def prepare():
        _told_otherwise({"sharded_strategy": (sharded_strategy, None, _STRATEGY_OF_LOAD),
                         "common_strategy": (common_strategy, None, _STRATEGY_OF_LOAD)})
        wanted, local, factories = load_preprocess(sharded_state_dict)
        wanted, _ = _megatron_utils.extract_sharded_base(wanted)
        for value in nested_values(wanted):
            if isinstance(value, ShardedTensor):
                value.init_data("cpu")
        _without_float8(wanted)
        return wanted, local, factories

    def finish():
        with _trust(safe_globals):
            found = {(key, tuple(offset)): _object(file, key, checkpoint_dir) for key, _, offset, file in objects}
            state_dict = _common_of([(key, file) for kind, key, file in values if kind == 0], checkpoint_dir, format)
        lost = {id(value) for value in nested_values(wanted) if value.key in unexpected}
        present = _present(factories, wanted, lost)
        loaded, _ = extract_matching_values(wanted, lambda value: id(value) not in lost)
        merge(state_dict, local)
        merge(state_dict, dict_list_map_outplace(lambda value: _loaded(value, found), loaded))
        return apply_factory_merges(state_dict, present)

    with ranks_of(group, timeout) as ranks:
        wanted, local, factories = agree(ranks, prepare)
        objects, values = _load(ranks, wanted, checkpoint_dir, _TOLD.get(asked, asked), not validate_access_integrity, exchange, options)
        missing, unexpected = ({key for kind, key, _ in values if kind == which} for which in (2, 3))
        state_dict = agree(ranks, finish)
    if asked in ("log_unexpected", "log_all"):
        _log(unexpected, "asked for, and not in the checkpoint")
        _log(missing, "in the checkpoint, and not asked for")
    return (state_dict, missing, unexpected) if asked in ("return_unexpected", "return_all") else state_dict


def _load(ranks, wanted, path, strict, no_check, exchange, options):
    def make():
        opened, mapping, run = loading_options(**options)
        tuples, owners = sharded_tuples(_tensors(wanted), writable=True)
        held.enter_context(owners)
        return path, (tuples, _objects(wanted, False), ()), opened, mapping, strict, no_check, not exchange, True, run

    with contextlib.ExitStack() as held:
        return _reshard.load(ranks._handle, make)


def _loaded(value, found):
    if isinstance(value, ShardedTensor):
        return value.data.detach()  # as Megatron has it: sharded state dicts may hold parameters
    stored = found[value.key, tuple(value.global_offset)]
    return stored[0] if isinstance(stored, list) and len(stored) == 1 else stored


# What of another format's items belongs to the format, and not to what was saved.
_OF_FORMATS = ("__metadata__",)
_MEGATRON = ("torch_dist", "zarr", "megatron", "torch_dcp", "fsdp_dtensor")


def _common_of(files, path, format):
    """The common state, which of other formats than Megatron's has what can be made of their items."""
    common = {}
    for key, file in files:
        if key in _OF_FORMATS:
            continue
        try:
            common[key] = _object(file, key, path)
        except UnsupportedError as error:
            with _open(path, **({"format": format} if format else {})) as checkpoint:
                if checkpoint.format in _MEGATRON:
                    raise
            _logger.warning("%s: it is left out", error)
    return common


def _parts(value):
    return list(nested_values({"parts": value}))


def _present(factories, wanted, lost):
    """Those factories all of whose parts came; the identities of the parts of the others are added to lost. Places in lists are those that
    are left when what is lost is gone."""
    if not isinstance(factories, dict):
        parts = {id(part) for part in _parts(wanted)}
        if lost & parts:
            lost |= parts
            return None
        return factories
    inside = {key: _present(factory, wanted[key], lost) for key, factory in factories.items()}
    if isinstance(wanted, list):
        left = [any(id(part) not in lost for part in _parts(value)) for value in wanted]
        inside = {sum(left[:key]): factory for key, factory in inside.items() if factory}
    return {key: factory for key, factory in inside.items() if factory}


def _log(keys, why):
    if keys:
        _logger.warning("%d keys are %s: %s", len(keys), why, ", ".join(sorted(keys)))
