# SPDX-License-Identifier: Apache-2.0
"""Values of items that Python has no type for, and items as JSON."""

import json as _json
import math
from dataclasses import dataclass

from . import _reshard


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


def _is_text(value):
    return type(value) is str and (value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value))


def json_holds(value):
    """Whether JSON gives the same value back, of the same types."""
    kind = type(value)
    if kind is list:
        return all(json_holds(member) for member in value)
    if kind is dict:
        return all(_is_text(key) and json_holds(member) for key, member in value.items())
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return -(1 << 63) <= value < 1 << 63
    return value is None or kind is bool or _is_text(value)


def content(value):
    """What the extension takes of a value: JSON text where that says all of it, else bytes of a file of torch.save."""
    if isinstance(value, TorchFile):
        return value.data
    if isinstance(value, Stored):
        return value.handle.item_file(value.index)
    if json_holds(value):
        return _json.dumps(value, ensure_ascii=False)
    return _reshard.open_state([], {"value": value}, [], "a value", {}, None).item_file(0)


def values_of_files(files, limits):
    """What files of torch.save hold, as Items gives it: nothing of a class is made. What is too deep for Python is cut as JSON cuts it."""
    if not files:
        return []
    held = _reshard.open_state([], {}, [(str(number), file, 0) for number, file in enumerate(files)], "items", limits, None)
    places = {facts[0]: index for index, facts in enumerate(held.items())}
    return [_value_at(held, places[str(number)]) for number in range(len(files))]


def _value_at(held, place):
    try:
        return held.item_value(place)
    except RecursionError:
        return _json.loads(held.item_json(place))
