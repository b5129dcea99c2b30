# SPDX-License-Identifier: Apache-2.0
"""Nested state dicts as the library has them: tensors by key, and items."""

import array as _array
from collections.abc import Mapping

from ._arrays import Array, Values
from ._errors import UsageError
from ._shards import Pieces, Shard
from ._values import Stored, TorchFile


def is_array(value):
    """Whether it is a tensor of a state: an Array, Values, a Shard, an array of numpy, torch or another that has DLPack, a
    memoryview, an array.array."""
    if isinstance(value, (Array, Values, Shard, memoryview, _array.array)) or hasattr(value, "__dlpack__"):
        return True
    return hasattr(value, "__array_interface__") and hasattr(value, "__setitem__")  # numpy's scalars have no places


def _is_shards(value):
    if isinstance(value, Pieces):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, Shard) for one in value)


def holds_arrays(value, is_leaf=is_array):
    if is_leaf(value) or _is_shards(value):
        return True
    members = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return any(holds_arrays(member, is_leaf) for member in members)


def with_pieces(state, piece, item, is_leaf=is_array):
    """The same nested state with piece(array) in place of each array, and item(value) in place of what has none in it. is_leaf: what an
    array is."""
    def member(value):
        return with_pieces(value, piece, item, is_leaf) if holds_arrays(value, is_leaf) else item(value)

    if isinstance(state, Mapping):
        return {key: member(value) for key, value in state.items()}
    if isinstance(state, Pieces) or _is_shards(state):
        return state
    if isinstance(state, (list, tuple)):
        members = [member(value) for value in state]
        if any(isinstance(one, (Shard, Pieces)) for one in members):
            return dict(enumerate(members))  # a list of Shards would be the pieces of one tensor
        return type(state)(members) if type(state) in (list, tuple) else members
    return piece(state) if is_leaf(state) and not isinstance(state, Shard) else state


def nested_state(checkpoint, tensors, with_items, value=lambda items, key: items[key]):
    """The state dict as it was saved, of tensors of a checkpoint: dicts in dicts, lists as dicts of positions, and items in their
    places: value(items, key) of each."""
    whole = {}
    places = [(checkpoint.tensors[key].path, tensor) for key, tensor in tensors.items()]
    if with_items:
        places += [(checkpoint.items.path(key), value(checkpoint.items, key)) for key in checkpoint.items]
    for path, member in places:
        place = whole
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = member
    return whole


def flatten(state):
    """({key: array}, {key: item}) of nested dicts and lists. Keys are joined with '.', positions and integer keys in decimal. What has no
    arrays in it is one item, and so is a Stored or a TorchFile. UsageError names two places that have one key."""
    tensors, items, places = {}, {}, {}

    def visit(value, place):
        is_tensor = is_array(value) or _is_shards(value)
        if is_tensor or (place and not holds_arrays(value)):
            key = ".".join(str(name) for name in place)
            if key in places:
                raise UsageError(f"{_spelled(places[key])} and {_spelled(place)} are both '{key}': keys are joined with '.', and one of "
                                 "the two would be lost")
            places[key] = place
            if is_tensor:
                tensors[key] = value
            else:
                items[key] = value if isinstance(value, (Stored, TorchFile)) else plain(value, key)
        else:
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            for name, member in pairs:
                visit(member, (*place, name))

    if not isinstance(state, Mapping):
        raise TypeError("a state is a mapping")
    visit(state, ())
    return tensors, items


def _spelled(place):
    return "".join(f"[{name!r}]" for name in place)


def items_taken(items):
    """What the extension takes of items as flatten gives them: those that it makes values of, and those to copy."""
    copies = [(key, value.handle, value.index) for key, value in items.items() if isinstance(value, Stored)]
    copies += [(key, value.data, 0) for key, value in items.items() if isinstance(value, TorchFile)]
    return {key: value for key, value in items.items() if not isinstance(value, (Stored, TorchFile))}, copies


def without_numpy(value):
    """The same with Python's scalars for numpy's, which JSON and torch.load do not make; in containers, too."""
    if type(value) is dict:
        return {key: without_numpy(member) for key, member in value.items()}
    if type(value) in (list, tuple):
        return type(value)(without_numpy(member) for member in value)
    return value.item() if hasattr(value, "item") and hasattr(value, "__array_interface__") else value


def plain(value, key):
    """Scalars of numpy as Python's, mappings as dicts. TypeError names what cannot be stored, and where it is."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, set, frozenset)):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"item '{key}': keys of dicts in items are str, not {name!r}")
        return {name: plain(member, f"{key}.{name}") for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        members = [plain(member, f"{key}.{index}") for index, member in enumerate(value)]
        return members if isinstance(value, list) else tuple(members)
    if hasattr(value, "item") and hasattr(value, "__array_interface__"):
        return value.item()
    raise TypeError(f"item '{key}': items hold None, bool, int, float, str, bytes, list, tuple, dict and set, not {type(value).__name__}")
