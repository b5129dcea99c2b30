# SPDX-License-Identifier: Apache-2.0
"""What may lie on a disk after a crash, from the log of calls that interpose.c writes.

A log becomes effects: bytes written, sizes set, entries of directories changed. An effect is forced once a later fsync of the file, or of
the directory, was called; until then a crash may keep it, lose it, or keep a part of what was written (sectors), in any order, as ALICE and
dm-log-writes assume. Only a rename is atomic: the sync of either directory forces all of it. Disk.image() applies what was kept, in the
order of the calls.
"""
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
        self.before = {node: dict(entries) for node, entries in self.names.items()}

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
        names = self.apply(lambda effect: effect.at < at)[0]
        found, waiting = set(), [node]
        while waiting:
            next_node = waiting.pop()
            if next_node not in found:
                found.add(next_node)
                waiting += names.get(next_node, {}).values()
        return found

    # ---- crashes ----

    def apply(self, keeps, torn=None):
        """(names, changed content) after the effects that keeps() chooses; torn(effect) yields the pieces of its bytes that arrived."""
        names = {node: dict(self.before.get(node, {})) for node in self.names}
        content = {}
        for effect in self.effects:
            if not keeps(effect):
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

    def image(self, keeps, torn=None):
        """{path: bytes, or None for a folder} of the root."""
        names, content = self.apply(keeps, torn)
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
        """(what, image) for a crash before every call and after the last: all was kept, nothing but what was forced, entries without data,
        data without entries, entries in order up to each of the last few, all but one of the oldest entries, and random choices with torn
        writes."""
        for at in range(len(self.calls) + 1):
            loose = [e for e in self.effects if e.at < at <= e.forced_at]
            is_forced = lambda e, at=at: e.forced_at < at  # noqa: E731
            is_past = lambda e, at=at: e.at < at  # noqa: E731
            yield f"before call {at}, all kept", self.image(is_past)
            if not loose:
                continue
            yield f"before call {at}, only what was forced", self.image(is_forced)
            yield f"before call {at}, no loose data", self.image(lambda e: is_forced(e) or (is_past(e) and e.kind != "data"))
            yield f"before call {at}, entries alone", self.image(lambda e: is_forced(e) or (is_past(e) and e.kind == "entries"))
            yield f"before call {at}, no loose entries", self.image(lambda e: is_forced(e) or (is_past(e) and e.kind != "entries"))
            entries = [e.at for e in loose if e.kind == "entries"]
            for cut in entries[-4:]:
                yield f"before call {at}, entries up to {cut}", self.image(lambda e,
                                                                           cut=cut: is_forced(e) or (e.kind == "entries" and e.at <= cut))
            for lost in entries[:2] if len(entries) > 1 else ():
                yield f"before call {at}, all but entry {lost}", self.image(lambda e,
                                                                            lost=lost: is_forced(e) or (is_past(e) and e.at != lost))
            for number in range(random_states):
                kept = {id(e) for e in loose if chance.random() < 0.5}
                yield f"before call {at}, random {number}", self.image(lambda e: is_forced(e) or id(e) in kept,
                                                                       lambda e: sectors(e, is_forced(e), chance))


def sectors(effect, is_whole, chance):
    """The pieces of a write that arrived."""
    offset, data = effect.value
    if is_whole or chance.random() < 0.5:
        return [effect.value]
    cuts = [0, *range(SECTOR - offset % SECTOR, len(data), SECTOR), len(data)]
    return [(offset + begin, data[begin:end]) for begin, end in zip(cuts, cuts[1:]) if chance.random() < 0.5]
