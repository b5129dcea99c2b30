# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each status of the library, all of them Error."""

import os
import re
import sys
import warnings


class Error(Exception):
    """What the library could not do.

    str() is one line: where it was, then found and expected. Attributes:
    code    the status, as the command's exit status says it (docs: "Exit status")
    object  the file or tensor concerned, or ""
    offset  the byte in it, or -1
    line, column  the place in a text (a mapping), or 0
    errno   of the system call that failed, or 0
    hint    what to do about it, or ""; also among the notes of the traceback
    diagnoses  all mistakes of a mapping, with the lines concerned, or ""
    """

    code = 0
    object = ""
    offset = -1
    line = 0
    column = 0
    errno = 0
    hint = ""
    diagnoses = ""


class MappingWarning(UserWarning):
    """What a mapping says that fits, but may not be meant: with the lines concerned."""


class DroppedWarning(UserWarning):
    """An item that a save in the background leaves out, as the format has no place for it."""


class UsageError(Error, ValueError):
    """The arguments of a call are wrong, or a mapping does not fit."""


class StorageError(Error, OSError):
    """The operating system refused: no such file, no room, no permission."""


class FormatError(Error, ValueError):
    """The checkpoint is malformed, corrupt or hostile."""


class UnsupportedError(Error):
    """It is valid, but not supported; the message or the hint says what would work."""


class LimitError(Error):
    """A limit was reached; the hint says which, and `limits={name: value}` raises it."""


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed."""


class DiffersError(Error):
    """What a call needs to be equal or complete is not: parts of another run, or missing ones."""


class CancelledError(Error):
    """A callback asked to stop."""


_CLASSES = {1: DiffersError, 2: UsageError, 3: StorageError, 4: FormatError, 5: UnsupportedError, 6: LimitError, 7: OutOfMemoryError,
            8: CancelledError}
# A member, and what stands behind it as its value: FORMAT, or a word that the library's hints give as one.
_MEMBER = re.compile(r"reshard_\w+_options\.(\w+)"
                     r"(?: ([A-Z][A-Z_|]+(?:=\w+)?|auto|none|zeros|hf|atorch|torch-dcp|torch|npz|megatron)(?![\w=-]))?")
# Options that have another name or form in Python than in C.
_WORDS = {"has_iteration": "iteration=", "no_sync": "sync=False", "dtypes": "dtype=", "part_count": "part=", "memory_bytes": "memory=",
          "format_options": "options=", "texts": "map=", **{flag: flag + "=True" for flag in (
              "follow_links", "lenient", "skip_unsupported", "shows_damage", "overwrite", "resume", "verify", "drop_items", "deep")},
          "strict": "strict="}
_CALLS = {"reshard_format_at()": "reshard.formats()", "reshard_limit_at()": "reshard.limits()", "reshard_dtype_at()": "reshard.dtypes()",
          "reshard_convert()": "reshard.convert()", "reshard_verify()": "reshard.verify()", "reshard_open()": "reshard.open()",
          "reshard_salvage()": "reshard.salvage()", "reshard_commit()": "reshard.commit()"}


def _argument(found):
    word, value = _WORDS.get(found[1], found[1] + "="), found[2] or ""
    if "=" in value and found[1] == "dtypes":
        value = "{%r: %r}" % tuple(value.split("="))
    return word + (repr(value) if value and value[0].islower() else value)


def python_words(text):
    """Members of the library's option structs as arguments, and its functions as those of the package."""
    for call, word in _CALLS.items():
        text = text.replace(call, word)
    text = re.sub(r"reshard_format_option_at\((.*?)\)", r"reshard.formats()['\1'].options", text)
    text = _MEMBER.sub(_argument, text)
    return re.sub(r"limits= ?(\w+)=(\d+)", r"limits={'\1': \2}", text)


def make_error(code, message, object, offset, line, column, errno, hint, diagnoses):
    """The exception for an error record of the library; the extension module calls it."""
    error = _CLASSES.get(code, Error)(python_words(message))
    error.code, error.object, error.offset, error.line, error.column = code, object, offset, line, column
    error.errno, error.hint, error.diagnoses = errno, python_words(hint), python_words(diagnoses)
    for text in error.hint.split("\n"):
        if text:
            error.add_note("hint: " + text)
    return error


def said_of(error):
    """(code, message, object, hint) of an exception, for the other ranks of a group; the extension module calls it."""
    codes = [code for code, kind in _CLASSES.items() if isinstance(error, kind)]
    code = codes[0] if codes else 3 if isinstance(error, OSError) else 7 if isinstance(error, MemoryError) else 2
    if not isinstance(error, Exception):
        code = 8  # KeyboardInterrupt and its like
    told = (": ".join(filter(None, (type(error).__name__, str(error)))), getattr(error, "object", ""), getattr(error, "hint", ""))
    return code, *(str(text).encode(errors="replace").decode().replace("\0", "?") for text in told)


def warn_of_mapping(text):
    """The extension module calls it."""
    warn(python_words(text).rstrip("\n"), MappingWarning)


def warn(text, kind):
    """Warns where the package was called."""
    here, level, frame = os.path.dirname(__file__), 1, sys._getframe()
    while frame.f_back and os.path.dirname(frame.f_code.co_filename) == here:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)
