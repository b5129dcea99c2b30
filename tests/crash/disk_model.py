# SPDX-License-Identifier: Apache-2.0
"""What may lie on a disk after a crash, from the log of calls that interpose.c writes.

A log becomes effects: bytes written, sizes set, entries of directories changed. An effect is forced once a later fsync of the file, or of
the directory, was called; until then a crash may keep it, lose it, or keep a part of what was written (sectors), in any order, as ALICE and
dm-log-writes assume. Only a rename is atomic: the sync of either directory forces all of it. Disk.image() applies what was kept, in the
order of the calls.
"""
import bisect
import dataclasses
import os

SECTOR = 512
NEVER = 1 << 60
AT_CREATE, AT_TRUNCATE, EXCHANGE, REMOVE_DIRECTORY = os.O_CREAT, os.O_TRUNC, 2, 0x200


@dataclasses.dataclass
class Call:
    name: str
    result: int
    error: int
    inode: int
    directory: int
    path: str
    other_directory: int
    other_path: str
    flags: int
    offset: int
    data_at: int


@dataclasses.dataclass
class Effect:
    at: int  # index of the call
    nodes: tuple  # the file, or the directories, of which any one's sync forces it
    kind: str  # "data", "size", "entries"
    value: object  # (offset, bytes), size, [(directory, name, node or None)]
    forced_at: int = NEVER


def read_log(path):
    calls = []
    for line in open(path, encoding="utf-8", errors="surrogateescape"):
        name, result, error, inode, directory, text, other, other_text, flags, offset, data_at = line.rstrip("\n").split("\t")
        calls.append(Call(name, int(result), int(error), int(inode), int(directory), text, int(other), other_text, int(flags), int(offset),
                          int(data_at)))
    return calls


class Disk:
    """The folder `root` as it was before the run, and the effects of the run's calls on what lies in it."""

    def __init__(self, root):
        self.root_path = str(root)
        self.kinds, self.names, self.bytes = {}, {}, {}  # by node: is it a directory, its entries, its content
        self.by_inode, self.effects, self.calls = {}, [], []
        self.root = self.take_in(self.root_path)
        self.at_first = {node: dict(entries) for node, entries in self.names.items()}

    def new_node(self, is_directory):
        node = len(self.kinds)
        self.kinds[node] = is_directory
        if is_directory:
            self.names[node] = {}
        return node

    def take_in(self, path):
        node = self.new_node(os.path.isdir(path))
        self.by_inode[os.stat(path).st_ino] = node
        if self.kinds[node]:
            for name in sorted(os.listdir(path)):
                self.names[node][name] = self.take_in(os.path.join(path, name))
        else:
            with open(path, "rb") as file:
                self.bytes[node] = file.read()
        return node

    # ---- names, as the run saw them ----

    def walk(self, directory, path):
        """(node of the directory, last name), or None for what lies elsewhere."""
        node = self.by_inode.get(directory)
        if path.startswith("/"):
            if not (path + "/").startswith(self.root_path + "/"):
                return None
            node, path = self.root, path[len(self.root_path) + 1:]
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for part in parts[:-1]:
            node = self.names.get(node, {}).get(part)
        return None if node is None else (node, parts[-1] if parts else "")

    def node_at(self, place):
        if place is None:
            return None
        return place[0] if not place[1] else self.names.get(place[0], {}).get(place[1])

    def change(self, at, directory, entries):
        self.effects.append(Effect(at, tuple({directory, *(where for where, _, _ in entries)}), "entries", entries))
        for where, name, node in entries:
            if node is None:
                self.names[where].pop(name, None)
            else:
                self.names[where][name] = node

    # ---- calls ----

    def replay(self, log_path):
        self.calls = read_log(log_path)
        with open(log_path + ".data", "rb") as data:
            for at, call in enumerate(self.calls):
                if call.result >= 0:
                    getattr(self, "do_" + call.name, lambda *_: None)(at, call, data)
        return self

    def do_openat(self, at, call, _data):
        place = self.walk(call.directory, call.path)
        node = self.node_at(place)
        if place and node is None and call.flags & AT_CREATE:
            node = self.new_node(False)
            self.bytes[node] = b""
            self.change(at, place[0], [(*place, node)])
        elif node is not None and call.flags & AT_TRUNCATE:
            self.effects.append(Effect(at, (node,), "size", 0))
        if node is not None:
            self.by_inode[call.inode] = node
        else:
            self.by_inode.pop(call.inode, None)

    def do_mkdirat(self, at, call, _data):
        place = self.walk(call.directory, call.path)
        if place:
            self.change(at, place[0], [(*place, self.new_node(True))])

    def do_unlinkat(self, at, call, _data):
        place = self.walk(call.directory, call.path)
        if place:
            self.change(at, place[0], [(*place, None)])

    def do_linkat(self, at, call, _data):
        source, target = self.walk(call.directory, call.path), self.walk(call.other_directory, call.other_path)
        if source and target:
            self.change(at, target[0], [(*target, self.node_at(source))])

    def do_renameat(self, at, call, _data):
        source, target = self.walk(call.directory, call.path), self.walk(call.other_directory, call.other_path)
        if source and target:
            there = self.node_at(target) if call.flags & EXCHANGE else None
            self.change(at, target[0], [(*source, there), (*target, self.node_at(source))])

    do_renameat2 = do_renameat

    def written(self, at, call, data):
        node = self.by_inode.get(call.inode)
        if node is not None:
            data.seek(call.data_at)
            self.effects.append(Effect(at, (node,), "data", (call.offset, data.read(call.result))))

    do_pwrite = do_write = do_copy_file_range = written

    def do_ftruncate(self, at, call, _data):
        node = self.by_inode.get(call.inode)
        if node is not None:
            self.effects.append(Effect(at, (node,), "size", call.offset))

    def synced(self, at, call, _data):
        node = self.by_inode.get(call.inode)
        for effect in self.effects:
            if node in effect.nodes and effect.forced_at == NEVER:
                effect.forced_at = at

    do_fsync = do_fdatasync = synced

    # ---- what the order of the calls promises ----

    def order_complaints(self):
        """Whatever gets a visible name in the root must have been forced before, and its name must be forced by the end."""
        found = []
        for effect in self.effects:
            for directory, name, node in effect.value if effect.kind == "entries" else ():
                if directory != self.root or name.startswith("."):
                    continue
                if effect.forced_at == NEVER:
                    found.append(f"call {effect.at}: the entry {name!r} is never forced to the disk")
                for inner in self.below(node, effect.at):
                    found += [f"call {effect.at}: {name!r} is made visible, and {late.kind} of call {late.at} ({self.calls[late.at].name}) "
                              f"are not forced"
                              for late in self.effects if inner in late.nodes and late.at < effect.at < late.forced_at]
        return found

    def below(self, node, at):
        """A node and all that lay under it at a call."""
        if node is None:
            return set()
        names = self.apply(self.before(at))[0]
        found, waiting = set(), [node]
        while waiting:
            next_node = waiting.pop()
            if next_node not in found:
                found.add(next_node)
                waiting += names.get(next_node, {}).values()
        return found

    # ---- crashes ----
    # Some of the effects are bits of a number: the first effect is the lowest.

    def effects_if(self, condition):
        return sum(1 << place for place, effect in enumerate(self.effects) if condition(effect))

    def before(self, at):
        """The effects of the calls before that one."""
        return (1 << bisect.bisect_left(self.effects, at, key=lambda effect: effect.at)) - 1

    def apply(self, kept, torn=None):
        """(names, changed content) after those effects; torn(effect) yields the pieces of its bytes that arrived."""
        names = {node: dict(self.at_first.get(node, {})) for node in self.names}
        content = {}
        for effect, bit in zip(self.effects, reversed(f"{kept:0{len(self.effects)}b}")):
            if bit == "0":
                continue
            if effect.kind == "entries":
                for directory, name, node in effect.value:
                    names[directory].pop(name, None)
                    if node is not None:
                        names[directory][name] = node
                continue
            node, = effect.nodes
            bytes_ = content.setdefault(node, bytearray(self.bytes[node]))
            if effect.kind == "size":
                bytes_[effect.value:] = b"" if effect.value < len(bytes_) else bytes(effect.value - len(bytes_))
                continue
            for offset, piece in torn(effect) if torn else [effect.value]:
                if len(bytes_) < offset + len(piece):
                    bytes_.extend(bytes(offset + len(piece) - len(bytes_)))
                bytes_[offset:offset + len(piece)] = piece
        return names, content

    def image(self, kept, torn=None):
        """{path: bytes, or None for a folder} of the root."""
        names, content = self.apply(kept, torn)
        out, waiting = {}, [("", self.root)]
        while waiting:
            path, node = waiting.pop()
            for name, inner in names[node].items():
                if self.kinds[inner]:
                    out[path + name] = None
                    waiting.append((path + name + "/", inner))
                else:
                    out[path + name] = bytes(content.get(inner, self.bytes[inner]))
        return out

    def crashes(self, chance, random_states):
        """(what, effects that were kept, torn) for a crash before every call and after the last: all was kept, nothing but what was forced,
        entries without data, data without entries, entries in order up to each of the last few, all but one of the oldest entries, and
        random choices with torn writes. Without `torn` the same effects leave the same image, whichever call it was."""
        data, entries = (self.effects_if(lambda effect, kind=kind: effect.kind == kind) for kind in ("data", "entries"))
        for at in range(len(self.calls) + 1):
            is_forced = lambda effect, at=at: effect.forced_at < at  # noqa: E731
            past, forced = self.before(at), self.effects_if(is_forced)
            yield f"before call {at}, all kept", past, None
            if past == forced:
                continue
            yield f"before call {at}, only what was forced", forced, None
            yield f"before call {at}, no loose data", forced | past & ~data, None
            yield f"before call {at}, entries alone", forced | past & entries, None
            yield f"before call {at}, no loose entries", forced | past & ~entries, None
            loose = [place for place in range(len(self.effects)) if (past & ~forced) >> place & 1]
            changed = [self.effects[place].at for place in loose if entries >> place & 1]
            for cut in changed[-4:]:
                yield f"before call {at}, entries up to {cut}", forced | self.before(cut + 1) & entries, None
            for lost in changed[:2] if len(changed) > 1 else ():
                yield f"before call {at}, all but entry {lost}", forced | self.before(lost) | past & ~self.before(lost + 1), None
            for number in range(random_states):
                kept = forced | sum(1 << place for place in loose if chance.random() < 0.5)
                yield f"before call {at}, random {number}", kept, lambda effect: sectors(effect, is_forced(effect), chance)


def sectors(effect, is_whole, chance):
    """The pieces of a write that arrived."""
    offset, data = effect.value
    if is_whole or chance.random() < 0.5:
        return [effect.value]
    cuts = [0, *range(SECTOR - offset % SECTOR, len(data), SECTOR), len(data)]
    return [(offset + begin, data[begin:end]) for begin, end in zip(cuts, cuts[1:]) if chance.random() < 0.5]
