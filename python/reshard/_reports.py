# SPDX-License-Identifier: Apache-2.0
"""What a conversion did, or would do."""

from dataclasses import dataclass

from ._errors import python_words


@dataclass(frozen=True)
class Note:
    """What does not arrive as it was. what: "dropped", "changed", "warning"; kind: a word for programs ("no-place", "layout", …);
    key: of the tensor or item, or ""; text: key and reason in one line."""

    what: str
    kind: str
    key: str
    reason: str
    text: str


@dataclass(frozen=True)
class ReportFile:
    """A file of the target, and how many chunks of how many files go into it."""

    name: str
    nbytes: int
    chunks: int
    sources: int


@dataclass(frozen=True)
class Move:
    """What goes from a file of the source ("": made by the conversion) to one of the target, and which ranks (-1: unknown) have these."""

    source: str
    target: str
    source_rank: int
    target_rank: int
    nbytes: int


@dataclass(frozen=True)
class Report:
    """What a conversion did, or would do. Bytes are of payload but for target_bytes, which are those of all files. moves: of preview."""

    source_format: str
    target_format: str
    tensors: int
    items: int
    source_chunks: int
    target_chunks: int
    steps: int
    read_bytes: int
    write_bytes: int
    target_bytes: int
    peak_memory_bytes: int
    verified_tensors: int
    verified_bytes: int
    files: list
    notes: list
    moves: list

    @property
    def dropped(self):
        """The notes of what the target does not have."""
        return [note for note in self.notes if note.what == "dropped"]


def report_of(facts):
    """Of what the extension gives."""
    words = ("dropped", "changed", "warning")
    facts["files"] = [ReportFile(*file) for file in facts["files"]]
    facts["moves"] = [Move(*move) for move in facts["moves"]]
    facts["notes"] = [Note(words[what], kind, key, python_words(reason), python_words(text))
                      for what, kind, key, reason, text in facts["notes"]]
    return Report(**facts)
