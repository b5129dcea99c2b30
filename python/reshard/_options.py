# SPDX-License-Identifier: Apache-2.0
"""Arguments of Python as the library's options: what is shared by all calls that take them."""

import difflib
import functools
import inspect
import os

from . import _reshard
from ._errors import UsageError
from ._values import Outcome


def given(**options):
    """Those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


# Options of the command, and words of other libraries, that have another name here.
_USUAL = {"rename": "renames", "items": "drop_items", "max_shard_size": "max_shard_bytes", "set": "constants", "strict_aoa": "strict",
          "no_sync": "sync", "no_space_check": "space_check", "mapping": "map", "option": "options", "format_options": "options",
          "dtypes": "dtype", "torch_dtype": "dtype", "expect": "expect_optimizer", "source_options": "opening", "limit": "limits",
          "tolerances": "tolerance", "force": "overwrite", "num_threads": "threads"}


def _refuse(text):
    raise TypeError(text)


def _keywords(function):
    return {name for name, one in inspect.signature(function).parameters.items() if one.kind is not one.VAR_KEYWORD}


def takes(*functions):
    """A decorator: the keywords that a call takes are its own and those of these functions, and one that it does not take is told with that
    which may be meant; to the other ranks of comm, too, which wait for this one."""
    def decorated(call):
        known = set().union(*map(_keywords, (call, *functions)))

        @functools.wraps(call)
        def checked(*arguments, **options):
            for name in options:
                if name in known:
                    continue
                near = [_USUAL[name]] if _USUAL.get(name) in known else difflib.get_close_matches(name, sorted(known), 1)
                comm = options.get("comm")
                _reshard.agree(comm and comm._handle, lambda: _refuse(
                    f"{call.__name__}() takes no argument {name!r}" + (f": did you mean {near[0]!r}?" if near else "")))
            return call(*arguments, **options)
        return checked
    return decorated


def byte_count(size):
    """Of 4096, "256MiB", "5GB"."""
    if isinstance(size, int):
        return size
    units = {"": 1, "B": 1, "K": 1024, "KB": 1000, "KIB": 1024, "M": 1024**2, "MB": 1000**2, "MIB": 1024**2, "G": 1024**3, "GB": 1000**3,
             "GIB": 1024**3, "T": 1024**4, "TB": 1000**4, "TIB": 1024**4}
    text = str(size).strip()
    digits = len(text) - len(text.lstrip("0123456789."))
    try:
        return int(float(text[:digits]) * units[text[digits:].strip().upper()])
    except (ValueError, KeyError):
        raise UsageError(f"no size: {size!r}; such as 4096, '256MiB' or '5GB'") from None


class Progress:
    """How far a call has come, all in bytes; total is 0 where it is not known."""

    __slots__ = ("done", "total", "read", "written", "memory")

    def __init__(self, done, total, read, written, memory):
        self.done, self.total, self.read, self.written, self.memory = done, total, read, written, memory

    def __repr__(self):
        return f"reshard.Progress(done={self.done}, total={self.total})"


def run_options(*, memory=None, threads=None, io=None, progress=None, comm=None):
    """How a call runs. memory: bytes for buffers, or "256MiB"; threads; io: "auto", "buffered", "direct" or "mmap"; progress is called with
    a Progress, and may raise to stop; comm: a Comm, whose ranks make the call together."""
    return given(memory_bytes=None if memory is None else byte_count(memory), threads=threads, io=io,
                 progress=None if progress is None else lambda *numbers: progress(Progress(*numbers)),
                 comm=None if comm is None else getattr(comm, "_handle", comm))


def taken(options, *names):
    """Those of the keywords of a call that have these names, which are no longer among them."""
    return {name: options.pop(name) for name in names if name in options}


def split_run(options):
    """(run options, the rest) of the keywords of a call."""
    return run_options(**taken(options, "memory", "threads", "io", "progress", "comm")), options


def open_options(*, format=None, iteration=None, follow_links=None, lenient=None, skip_unsupported=None, shows_damage=None, limits=None):
    """How a checkpoint is opened; reshard.open says what each is."""
    return given(format=format, iteration=iteration, has_iteration=None if iteration is None else True, follow_links=follow_links,
                 lenient=lenient, skip_unsupported=skip_unsupported, shows_damage=shows_damage, limits=limits)


def map_options(map=None, *, rules=None, config=None, constants=None, strict=None):
    """A mapping as options: a text, a path of one, or a list of these, which run one after the other. None without any of them."""
    texts = None
    if map is not None:
        texts = [mapping_text(one) for one in (map if isinstance(map, (list, tuple)) else [map])]
    rules_text = None
    if isinstance(rules, os.PathLike):
        rules_text, rules = mapping_text(rules), None
    if isinstance(config, os.PathLike):
        config = mapping_text(config)[1]
    options = given(texts=texts, rules=rules, rules_text=rules_text, config=config, constants=constants, strict=strict)
    return options or None


def mapping_text(one):
    """(name for diagnoses, text) of a path, or of a text, or what str() makes one of: reshard.mapping.Outcome."""
    if isinstance(one, os.PathLike):
        with open(one, encoding="utf-8") as file:
            return (os.fspath(one), file.read())
    if not isinstance(one, (str, Outcome)):
        raise TypeError(f"a mapping is a text, a path of one, or what reshard.mapping made, not {one!r}")
    return ("mapping", str(one))


def layout_words(layout):
    """"tp=2,pp=4" of {"tp": 2, "pp": 4}."""
    return ",".join(f"{name}={value}" for name, value in layout.items()) if isinstance(layout, dict) else layout


def convert_options(*, to=None, like=None, layout=None, include=None, exclude=None, dtype=None, options=None, max_shard_bytes=None,
                    drop_items=None, overwrite=None, resume=None, sync=True, verify=None, checksum=None, wrap=None, strip_prefix=None,
                    add_prefix=None, renames=None, missing=None, part=None, space_check=True, limits=None, map=None, rules=None,
                    config=None, constants=None, strict=None):
    """What is written, and how; reshard.convert says what each is."""
    dtypes = None
    if dtype is not None:
        dtypes = [f"{glob}={name}" for glob, name in dtype.items()] if isinstance(dtype, dict) else [dtype]
    return given(
        to=to, like=like, layout=layout_words(layout), include=include, exclude=exclude, dtypes=dtypes,
        format_options=None if options is None else [f"{name}={_word(value)}" for name, value in options.items()],
        max_shard_bytes=None if max_shard_bytes in (None, "none") else byte_count(max_shard_bytes),
        no_shard_limit=True if max_shard_bytes == "none" else None, drop_items=drop_items, overwrite=overwrite, resume=resume,
        no_sync=None if sync else True, verify=verify, checksum=checksum, wrap=wrap, strip_prefix=strip_prefix, add_prefix=add_prefix,
        renames=renames, missing=None if missing is None else str(missing), part=None if part is None else part[0],
        part_count=None if part is None else part[1], no_space_check=None if space_check else True,
        open=open_options(limits=limits) or None,
        map=map_options(map, rules=rules, config=config, constants=constants, strict=strict))


def _word(value):
    return str(value).lower() if isinstance(value, bool) else str(value)
