# SPDX-License-Identifier: Apache-2.0
"""Writes OCDBT stores by tensorstore's description of the format (docs/formats/orbax.md), uncompressed, so that a test can have trees of
any height, and anything wrong in them."""
import pathlib
import struct

MANIFEST, NODE = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde"
TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def column(values):
    return b"".join(map(varint, values))


def framed(magic, body, version=0, compression=0):
    """A manifest or a node around its body."""
    inner = varint(version) + varint(compression) + body
    data = magic + struct.pack("<Q", len(inner) + 16) + inner
    return data + struct.pack("<I", crc32c(data))


def shared_lengths(texts):
    """(how much each but the first shares with the one before, what is its own)"""
    shared = [next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b))) for a, b in zip(texts, texts[1:])]
    return shared, [text[n:] for text, n in zip(texts, [0, *shared])]


def file_table(files):
    """files: (base, rest of the path)"""
    shared, own = shared_lengths([base + rest for base, rest in files])
    # Upstream asks that what is shared ends with a base unless the bases are the same.
    shared = [n if files[i][0] == files[i + 1][0] else min(n, len(files[i][0]), len(files[i + 1][0])) for i, n in enumerate(shared)]
    own = [(base + rest)[n:] for (base, rest), n in zip(files, [0, *shared])]
    return varint(len(files)) + column(shared) + column(map(len, own)) + column(len(base) for base, _ in files) + b"".join(own)


def leaf_body(entries, files):
    """entries: (key, value or (file, offset, bytes)), ascending"""
    shared, own = shared_lengths([key for key, _ in entries])
    inline = [value for _, value in entries if isinstance(value, bytes)]
    outside = [value for _, value in entries if not isinstance(value, bytes)]
    return (b"\0" + file_table(files) + varint(len(entries)) + column(shared) + column(map(len, own)) + b"".join(own) +
            column(len(value) if isinstance(value, bytes) else value[2] for _, value in entries) +
            bytes(not isinstance(value, bytes) for _, value in entries) + column(v[0] for v in outside) + column(v[1] for v in outside) +
            b"".join(inline))


def interior_body(height, entries, files):
    """entries: (key, how much of it all below share, file, offset, bytes)"""
    shared, own = shared_lengths([entry[0] for entry in entries])
    return (bytes([height]) + file_table(files) + varint(len(entries)) + column(shared) + column(map(len, own)) +
            column(entry[1] for entry in entries) + b"".join(own) + b"".join(column(entry[i] for entry in entries) for i in (2, 3, 4)) +
            column([1] * len(entries)) * 3)


def manifest_body(root, files, height, kind=0, keys=1, with_versions=True, versions=1, older=0):
    """root: (file, offset, bytes) of the newest version. Nothing lies where older ones say that theirs is."""
    body = bytes(16) + varint(kind) + varint(1024) + varint(100_000_000) + b"\4" + varint(1) + struct.pack("<i", 0)
    if not with_versions:
        return body
    n, gone = versions, versions - 1
    body += file_table(files) + varint(n) + column(range(1, n + 1)) + bytes([9] * gone + [height])
    body += b"".join(column([2**40] * gone + [value]) for value in (*root, keys, 1, 0)) + struct.pack("<Q", 7) * n
    return body + varint(older) + column([1] * older) * 5 + struct.pack("<Q", 7) * older + bytes(range(older, 0, -1))


class Store:
    """A store in a folder: nodes and values lie one behind another in data files of a base ("" or "process_0/")."""

    def __init__(self, folder, base=b""):
        self.folder, self.base, self.data = pathlib.Path(folder), base, bytearray()

    def put(self, content):
        at = len(self.data)
        self.data += content
        return at, len(content)

    def tree(self, values, per_node=1000, inline=100):
        """{key: value} -> (offset, bytes, height) of the root."""
        files = [(b"", b"d/data")]
        level = []
        keys = sorted(values)
        for start in range(0, len(keys), per_node):
            part = keys[start:start + per_node]
            level.append((part, lambda prefix, part=part: (0, leaf_body(
                [(key[prefix:], values[key] if len(values[key]) <= inline else (0, *self.put(values[key]))) for key in part], files))))
        height = 0
        while len(level) > 1:
            height += 1
            groups = [level[start:start + per_node] for start in range(0, len(level), per_node)]
            level = [(sum((part for part, _ in group), []), lambda prefix, group=group, height=height:
                      (height, self.children(group, prefix, height, files))) for group in groups]
        part, make = level[0]
        _, body = make(0)
        return (*self.put(framed(NODE, body)), height)

    def children(self, group, prefix, height, files):
        entries = []
        for part, make in group:
            first, last = part[0], part[-1]
            common = next((i for i, (x, y) in enumerate(zip(first, last)) if x != y), min(len(first), len(last)))
            common = max(common, prefix)
            _, body = make(common)
            entries.append((first[prefix:], common - prefix, 0, *self.put(framed(NODE, body))))
        return interior_body(height, entries, files)

    def write(self, values, per_node=1000, inline=100, numbered=False, **more):
        offset, size, height = self.tree(values, per_node, inline)
        self.write_data()
        body = dict(root=(0, offset, size), files=[(self.base, b"d/data")], height=height, kind=int(numbered), **more)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "manifest.ocdbt").write_bytes(framed(MANIFEST, manifest_body(**body, with_versions=not numbered)))
        if numbered:
            (self.folder / "manifest.0000000000000009").write_bytes(b"an older one")
            (self.folder / "manifest.000000000000000a").write_bytes(framed(MANIFEST, manifest_body(**body)))

    def write_data(self):
        data = self.folder / self.base.decode() / "d" / "data"
        data.parent.mkdir(parents=True, exist_ok=True)
        data.write_bytes(bytes(self.data))
