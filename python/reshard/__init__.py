# SPDX-License-Identifier: Apache-2.0
"""Opens any sharded deep-learning checkpoint, and saves it under any other layout or format.

    import reshard

    with reshard.open("iter_0001000") as checkpoint:          # any format, recognised from the content
        weight = checkpoint.tensors["decoder.layers.0.mlp.linear_fc1.weight"]
        weight.shape, weight.dtype                            # nothing is read yet
        rows = weight[0:128].numpy()                          # only these rows are
        args = checkpoint.items["args"]

    reshard.convert("iter_0001000", "hf-model", to="hf", rules="auto", dtype="bf16")
    reshard.convert("iter_0001000", "resharded", to="torch_dist", layout={"tp": 4, "pp": 2})
    reshard.save("checkpoint", {"model": model.state_dict(), "step": 1000}, to="torch-dcp")

Nothing of a checkpoint is ever executed: pickles are read as data, and classes become reshard.Object. numpy, torch and others are not
needed: arrays have the buffer protocol and DLPack. Calls release the GIL; Ctrl-C stops them. Errors are reshard.Error, by kind.
"""

import contextlib
from dataclasses import dataclass, field

from . import _reshard, mapping
from ._arrays import Array, Values, dtype_name
from ._checkpoint import Checkpoint, Chunk, Items, Tensor, Tensors, Warned
from ._errors import (CancelledError, DiffersError, DroppedWarning, Error, FormatError, LimitError, MappingWarning, OutOfMemoryError,
                      StorageError, UnsupportedError, UsageError, python_words)
from ._online import Cell, Comm, Loaded, Saver, Transfers, load, save_together
from ._options import (Progress, convert_options, given, map_options, open_options, run_options, split_run, takes)
from ._reports import Move, Note, Report, ReportFile, report_of
from ._shards import Shard, shard_tuples
from ._states import flatten, items_taken
from ._values import Object, Stored, TorchFile
from ._writer import Writer

__version__ = _reshard.version()


@takes(open_options)
def open(path, *, progress=None, **options):
    """Opens a file or directory of any format as a Checkpoint. Reads metadata only.

    format            the format's name, if it is not to be recognised
    iteration         of a root that holds several; else the latest
    follow_links      symbolic links may lead out of the directory
    lenient           accept what is ambiguous but readable
    skip_unsupported  leave out, with a warning, tensors of types and codings that are not supported; for looking
    shows_damage      overlaps, gaps and missing files are warnings; what they concern is not read
    limits            {name: value}: how far the input may make things grow; reshard.limits() lists the names
    progress          is called with a Progress
    """
    return Checkpoint(_reshard.open(path, open_options(**options), run_options(progress=progress)), path)


class _Opened:
    """A checkpoint that is given, or a path that is opened for one call."""

    def __init__(self, source, options=None):
        self._is_own = not isinstance(source, Checkpoint)
        self._checkpoint = open(source, **(options or {})) if self._is_own else source

    def __enter__(self):
        return self._checkpoint

    def __exit__(self, *error):
        if self._is_own:
            self._checkpoint.close()


def _looked_at(held, source, opening):
    """The checkpoint, which is open until held ends."""
    checkpoint = held.enter_context(_Opened(source, opening))
    held.enter_context(checkpoint._owners)
    return checkpoint


def _group_of(run):
    """The handle of the group that makes a call, which is no longer among the call's options; or None."""
    comm = run.pop("comm", None)
    return getattr(comm, "_handle", comm)


@takes(convert_options, run_options)
def convert(source, target, *, opening=None, **options):
    """Writes a checkpoint under another format, layout, names or types. The target appears whole or not at all. Returns a Report.

    source            a path, or a Checkpoint
    target            a path
    opening           options of reshard.open for the source, as a dict
    to                the format; reshard.formats() lists them. Without it, and without like, the target's suffix says it (.safetensors,
                      .pt, .pth, .bin, .npz, .pdparams, .pdopt)
    like              a checkpoint whose format, layout and names are taken (never its values)
    layout            "tp=2,pp=4" or {"tp": 2, "pp": 4}: words that the format knows
    include, exclude  globs on keys
    dtype             "bf16", or {"*.bias": "f32", …}: the last glob that fits counts
    options           {name: value} of the format
    max_shard_bytes   of formats with several files: 5_000_000_000, "5GB", or "none"
    drop_items        only tensors
    overwrite         replace a checkpoint, an empty folder or an empty file; nothing else
    resume            go on with a conversion that was killed
    sync              False: do not wait for the disk
    verify            read back and compare
    checksum          "crc32c" or "sha256": digests in reshard.json beside it
    map               mapping: a text, a path (os.PathLike) of one, or a list of these
    rules, config, constants, strict   how a model family's tensors are split; the model's config.json, a text or a path (os.PathLike);
                      numbers that mappings name, {name: number}; Paddle's language only
    wrap              which modules formats of flat parameters flatten
    strip_prefix, renames, add_prefix   names, behind the mapping
    missing           tensors that like has and the source lacks, and what a mapping leaves: "error", "zeros", a number, or the path of
                      a checkpoint
    part              (0, 8): one of eight parts, on shared storage; reshard.commit makes them visible
    space_check       False: begin although the disk has not enough room
    limits            as in reshard.open
    memory, threads, io, progress   bytes for buffers ("256MiB"), threads, "auto", "buffered", "direct" or "mmap", a function
    """
    return report_of(_conversion(_reshard.convert, source, target, opening, options))


@takes(convert_options, run_options)
def plan(source, target=None, *, opening=None, **options):
    """What convert would do, as a Report; touches nothing."""
    return report_of(_conversion(_reshard.plan, source, target, opening, options))


@takes(convert_options, run_options)
def preview(source, target=None, *, opening=None, **options):
    """What convert would do and write: a Report with moves, and a Checkpoint to look at, whose tensors, chunks and files are those of the
    target. It has no items, and no values."""
    facts, handle = _conversion(_reshard.preview, source, target, opening, options)
    return report_of(facts), Checkpoint(handle, target)


@takes(convert_options, run_options)
def commit(source, target, *, opening=None, **options):
    """Makes visible what convert with part=(0, n) … (n-1, n) has written; source and options are those of the parts."""
    return report_of(_conversion(_reshard.commit, source, target, opening, options))


def _conversion(call, source, target, opening, options):
    run, rest = split_run(options)
    chosen = convert_options(**rest)
    with _Opened(source, opening) as checkpoint:
        with checkpoint._owners:
            return call(checkpoint._handle, target, chosen, run)


@takes(convert_options, run_options)
def save(path, state, *, comm=None, cells=None, check=True, spread=True, **options):
    """Saves arrays in memory as a checkpoint of any format: options as in convert; to is needed where the suffix does not say it.

    state   {key: array, Shard or list of Shards}, nested dicts and lists too: keys are joined with '.'; what has no arrays in it is an
            item, Checkpoint.items.stored(key) is one of another checkpoint, objects of classes too, and a TorchFile is any. Arrays are
            those of numpy, torch (on devices, too), reshard.Array, Values, or of DLPack or the buffer protocol; none is copied
    comm    the other ranks that save the same checkpoint: each passes what it has. Items may be of any rank, of those that several have the
            first one's is saved; cells ({key: Cell}) are each rank's
    check   look whether what the ranks have is one whole
    spread  copies that several ranks have are saved by one of them, evenly

    Returns a Report; with comm, on rank 0, the warnings: how other ranks' items differ, and what the format does not hold ("dropped: …").
    """
    if comm is not None or cells:
        return save_together(path, state, comm, cells, check, spread, options)
    with from_memory(state) as checkpoint:
        return convert(checkpoint, path, **options)


def from_memory(state, *, name="memory", limits=None):
    """Arrays in memory as a Checkpoint, which can be read, converted, compared and verified like any other. Together the shards of each key
    are whole. Values stay where they are, and are seen as they are when they are read."""
    tensors, items = flatten(state)
    tuples, owners = shard_tuples(tensors)
    return Checkpoint(_reshard.open_state(tuples, *items_taken(items), name, open_options(limits=limits), owners), name, owners)


@dataclass(frozen=True)
class Finding:
    """What verify, diff or salvage found. severity: "note", "warning" or "failure"; kind: a short word ("checksum", "replica", "nan",
    "missing", "values", …); index: the first element, row-major, or -1; count: how many."""

    kind: str
    key: str
    text: str
    severity: str
    index: int
    count: int
    max_difference: float


_SEVERITIES = ("note", "warning", "failure")


def _findings(tuples):
    return [Finding(kind, key, python_words(text), _SEVERITIES[severity], index, count, difference)
            for kind, key, text, severity, index, count, difference in tuples]


@dataclass(frozen=True)
class Verified:
    """The result of verify; true if nothing failed. coverage: what a checksum covers, in numbers; uncovered: bytes that none covers, by the
    tensor's key."""

    is_good: bool
    findings: list
    uncovered: dict
    coverage: dict

    def __bool__(self):
        return self.is_good


@takes(run_options)
def verify(source, *, opening=None, deep=None, expect_optimizer=None, against=None, fail_on=(), **run):
    """Structure, sizes, coverage, replicas and stored checksums; a Verified.

    opening   options of reshard.open; what is damaged or not supported is a finding unless shows_damage or skip_unsupported says False
    deep      also read all values: NaN, Inf, all-zero counts
    against   a checkpoint, the index of a Hugging Face folder or a config.json: missing, unexpected, misshaped
    fail_on   "nan", "inf", "zero", or several
    expect_optimizer   trainable weights that lack optimizer state are a failure
    memory, threads, io, progress, comm   as everywhere; the ranks of comm share the reading
    """
    words = {"nan": 1, "inf": 2, "zero": 4}

    def make():
        kinds = [fail_on] if isinstance(fail_on, str) else fail_on
        for kind in kinds:
            if kind not in words:
                raise UsageError(f"fail_on is 'nan', 'inf' or 'zero', not {kind!r}")
        options = given(deep=deep, expect_optimizer=expect_optimizer, against=against, fail_on=sum({words[kind] for kind in kinds}) or None)
        shown = {"shows_damage": True, "skip_unsupported": True, **(opening or {})}
        return _looked_at(held, source, shown)._handle, options, run_options(**run)

    comm = _group_of(run)
    with contextlib.ExitStack() as held:
        is_good, findings, uncovered, coverage = _reshard.verify(comm, make)
    return Verified(is_good, _findings(findings), dict(uncovered), coverage)


@dataclass(frozen=True)
class TensorDifference:
    """What diff found of a tensor. outcome: "same", "values", "missing" (in the second), "unexpected" (only there), "shape" or "dtype"."""

    key: str
    outcome: str
    elements: int
    nbytes: int
    changed_elements: int
    max_difference: float
    max_relative: float


@dataclass(frozen=True)
class Difference:
    """The result of diff; true if the two are the same. tensors by key; summary: numbers of all."""

    is_same: bool
    findings: list
    tensors: dict
    summary: dict

    def __bool__(self):
        return self.is_same


@takes(run_options)
def diff(a, b, *, tolerance=(0, 0), items=True, include=None, exclude=None, explain=None, map=None, rules=None, config=None, constants=None,
         strict=None, strip_prefix=None, renames=None, add_prefix=None, ignore_dtype=None, opening=None, **run):
    """Compares two checkpoints, tensor by tensor and item by item, across formats, layouts and related names; a Difference.

    tolerance  (absolute, relative); (0, 0): bit equality
    items      False: tensors only
    map, …     what comes out of a is compared with b
    ignore_dtype  what is of another floating type in b is cast to that first: a copy that convert has cast is the same
    explain    look for the usual mistakes that explain a difference
    """
    def make():
        absolute, relative = tolerance if isinstance(tolerance, tuple) else (tolerance, 0)
        options = given(absolute_tolerance=absolute, relative_tolerance=relative, ignore_items=not items, include=include, exclude=exclude,
                        explain=explain, ignore_dtype=ignore_dtype, strip_prefix=strip_prefix, renames=renames, add_prefix=add_prefix,
                        map=map_options(map, rules=rules, config=config, constants=constants, strict=strict))
        first, second = (_looked_at(held, source, opening)._handle for source in (a, b))
        return first, second, options, run_options(**run)

    comm = _group_of(run)
    outcomes = ("same", "values", "missing", "unexpected", "shape", "dtype")
    with contextlib.ExitStack() as held:
        is_same, findings, tensors, summary = _reshard.diff(comm, make)
    by_key = {key: TensorDifference(key, outcomes[outcome], *rest) for key, outcome, *rest in tensors}
    return Difference(is_same, _findings(findings), by_key, summary)


@takes(run_options)
def hash(source, digest="sha256", *, opening=None, **run):
    """{key: digest} of every tensor's full content, row-major: independent of format and layout. digest: "sha256", "xxh3", "crc32c" or
    "md5". Keys in their order, bytewise."""
    keys = []

    def make():
        checkpoint = _looked_at(held, source, opening)
        keys.extend(tensor.key for tensor in checkpoint.tensor_list)
        return checkpoint._handle, digest, run_options(**run)

    comm = _group_of(run)
    with contextlib.ExitStack() as held:
        return {keys[index]: text for index, text in _reshard.hash(comm, make)}


@dataclass(frozen=True)
class Statistics:
    """What a tensor's values are like: of the finite ones min, max, mean, deviation and norm. negative and positive: numbers by magnitude,
    bin b from 2**(b - 127) on. is_opaque: the type has no numbers."""

    count: int
    nan_count: int
    inf_count: int
    zero_count: int
    subnormal_count: int
    is_opaque: bool
    min: float
    max: float
    mean: float
    deviation: float
    norm: float
    negative: list = field(repr=False)
    positive: list = field(repr=False)


@takes(run_options)
def stats(source, *, include=None, exclude=None, opening=None, **run):
    """{key: Statistics} of tensors, in one pass over their bytes."""
    with _Opened(source, opening) as checkpoint:
        with checkpoint._owners:
            found = _reshard.stats(checkpoint._handle, given(include=include, exclude=exclude), run_options(**run))
        return {checkpoint.tensor_list[index].key: Statistics(**facts) for index, facts in found}


@dataclass(frozen=True)
class Salvaged:
    """The result of salvage; true if nothing is lost. counts: tensors and items that are proved, unproved and lost."""

    is_whole: bool
    findings: list
    counts: dict

    def __bool__(self):
        return self.is_whole


@takes(run_options)
def salvage(path, target, *, to=None, like=None, overwrite=None, sync=True, include=None, exclude=None, opening=None, **run):
    """Writes what is left of a damaged checkpoint; no byte of a value is made up. like: a sibling of the same run, whose files that say
    where things lie stand in for missing ones."""
    options = given(to=to, like=like, overwrite=overwrite, no_sync=None if sync else True, include=include, exclude=exclude,
                    open=open_options(**opening) if opening else None)
    is_whole, findings, counts = _reshard.salvage(path, target, options, run_options(**run))
    return Salvaged(is_whole, _findings(findings), counts)


@takes(run_options)
def latest_good(root, *, opening=None, deep=None, **run):
    """The path of the newest checkpoint below root that opens and verifies, or None."""
    return _reshard.latest_good(root, open_options(**(opening or {})), given(deep=deep), run_options(**run))


@dataclass(frozen=True)
class Format:
    """A format: what can be done with it, its options as (name, type, default, help), and its layout words as (name, help)."""

    name: str
    summary: str
    reads: bool
    writes: bool
    is_directory: bool
    holds_items: bool
    options: list
    words: list


def formats():
    """All formats, by name."""
    return {facts[0]: Format(*facts) for facts in _reshard.formats()}


def dtypes():
    """Element types: {name: (torch's name, bits)}."""
    return {name: (torch_name, bits) for name, torch_name, bits in _reshard.dtypes()}


def limits():
    """Named limits: {name: (help, default)}."""
    return {name: (text, default) for name, text, default in _reshard.limits()}


__all__ = ["Array", "CancelledError", "Cell", "Checkpoint", "Chunk", "Comm", "Difference", "DiffersError", "DroppedWarning", "Error",
           "Finding", "Format", "FormatError", "Items", "LimitError", "Loaded", "MappingWarning", "Move", "Note", "Object",
           "OutOfMemoryError", "Progress", "Report", "ReportFile", "Salvaged", "Saver", "Shard", "Statistics", "StorageError", "Stored",
           "Tensor", "TensorDifference", "Tensors", "TorchFile", "Transfers", "UnsupportedError", "UsageError", "Values", "Verified",
           "Warned", "Writer", "commit", "convert", "diff", "dtype_name", "dtypes", "flatten", "formats", "from_memory", "hash",
           "latest_good", "limits", "load", "mapping", "open", "plan", "preview", "salvage", "save", "stats", "verify"]
