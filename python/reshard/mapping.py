# SPDX-License-Identifier: Apache-2.0
"""Trying texts of the mapping language (docs/mapping.md), before they are used: `map=` of reshard.convert, load, diff and redistribute.

    from reshard import mapping

    mapping.check("a^T -> b", "iter_0001000", "hf-model").data["lost"]        # does it fit, and what would get lost
    back = mapping.invert("a^T -> b", "iter_0001000")                         # the text of the way back
    mapping.eval("x, y -> z, axis=0", {"tensors": {"x": {"dtype": "F32", "shape": [1], "data": [3]}, ...}}).data["tensors"]["z"]

A text is a str, a path of a file (pathlib.Path), or an Outcome of expand or invert. source and target are what it maps: a Checkpoint, the
path of one, or a description: {"tensors": {key: {"dtype", "shape", "shards": [[offset, shape], ...], "data": [...]}}, "initial": number},
of which shards, data and initial may be left out. No values of checkpoints are read. Without a target, all that is assigned or left over
comes out.

Keywords of all of them: strict refuses what Paddle's own engine does not know; reverse reads the text backwards, as aoa_config_reverse;
config (JSON, such as a model's config.json) and constants ({name: number}) give the numbers that a text names; limits as in reshard.open.

A text that does not fit is a UsageError: str() is the first mistake, with line and column; diagnoses are all of them, with the lines
concerned and hints.
"""

import contextlib
import json

from . import _reshard
from ._options import given, mapping_text
from ._values import Outcome

__all__ = ["Outcome", "check", "eval", "expand", "invert", "parse"]


def parse(text, **options):
    """Syntax only: `data["statements"]` is the syntax tree."""
    return _run("parse", text, None, None, options)


def expand(text, source, target=None, **options):
    """The statements behind all macros, one a line."""
    return _run("expand", text, source, target, options)


def check(text, source, target=None, **options):
    """Whether it fits, whether it loses or doubles anything, and what every tensor of the target is made of."""
    return _run("check", text, source, target, options)


def eval(text, source, target=None, **options):
    """The values of the target's tensors, from those of the source's description. `_ -> key` keeps "initial" of the target's (0)."""
    return _run("eval", text, source, target, options)


def invert(text, source, target=None, **options):
    """A text that makes the source again of the target: proved by composing both, else refused with the statement that is to blame."""
    return _run("invert", text, source, target, options)


def _input(text, *, strict=None, reverse=None, config=None, constants=None, limits=None):
    name, text = mapping_text(text)
    return given(name=name, text=text, strict=strict, reverse=reverse, config=config, constants=constants, limits=limits)


@contextlib.contextmanager
def _space(space):
    """The extension's form of a source or a target."""
    if space is None or isinstance(space, dict):
        yield None if space is None else json.dumps(space)
    else:
        from . import _Opened

        with _Opened(space) as checkpoint:
            yield checkpoint._handle


def _run(verb, text, source, target, options):
    options = _input(text, **options)
    with _space(source) as from_space, _space(target) as to_space:
        text, data, warnings = _reshard.map(verb, options, from_space, to_space)
    return Outcome(text.removesuffix("\n"), json.loads(data), warnings)
