# SPDX-License-Identifier: Apache-2.0
"""Values of items that Python has no type for, and items as JSON."""

import json as _json
import math
from dataclasses import dataclass


class Object:
    """An object of some class, which is never made: its class's name, and what it holds as JSON text."""

    __slots__ = ("class_name", "json")

    def __init__(self, class_name, json):
        self.class_name = class_name
        self.json = json

    @property
    def members(self):
        """What it holds, with JSON's types."""
        return _json.loads(self.json)

    def __eq__(self, other):
        return isinstance(other, Object) and (self.class_name, self.json) == (other.class_name, other.json)

    def __hash__(self):
        return hash((self.class_name, self.json))

    def __repr__(self):
        return f"reshard.Object({self.class_name!r}, {self.json[:60]!r}{'…' if len(self.json) > 60 else ''})"


class Stored:
    """An item as a checkpoint stores it, with classes and all: Items.stored gives it, and save takes it as the value of a key."""

    __slots__ = ("handle", "index")

    def __init__(self, handle, index):
        self.handle, self.index = handle, index


@dataclass(frozen=True)
class Outcome:
    """What comes of trying a mapping's text (reshard.mapping). text: for people; of expand and invert a mapping text, which str() gives
    too. data: the same as the object that the command prints with --json. warnings: with lines and hints, or ""."""

    text: str
    data: dict
    warnings: str

    def __str__(self):
        return self.text


class TorchFile:
    """A value of whatever kind as the bytes of a file of torch.save: save and from_memory take it as the value of a key, and of a Cell."""

    __slots__ = ("data",)

    def __init__(self, data):
        self.data = bytes(data)


def _plain(value):
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(member) for key, member in value.items()}
    raise TypeError(f"such an item is None, a bool, an int, a float, a str, a list or a dict with str keys, not {value!r}")


def content(value):
    """What the extension takes of a value: bytes of a file, or JSON text."""
    if isinstance(value, TorchFile):
        return value.data
    return value.handle.item_file(value.index) if isinstance(value, Stored) else to_json(value)


def to_json(value):
    """As JSON text, in the spelling of docs/items.md."""
    return _json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
