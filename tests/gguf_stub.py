# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF files by the description of the format (docs/formats/gguf.md), in either byte order, whatever they say; and what blocks mean,
as Python computes it: every product here is exact in the 53 bits of a float, so that rounding once at the end is what float32 does."""
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
PLAIN = {"F32": (0, 4), "F16": (1, 2), "I8": (24, 1), "I16": (25, 2), "I32": (26, 4), "I64": (27, 8), "F64": (28, 8), "BF16": (30, 2)}
# name: number, elements, bytes, places of numbers of two bytes that a big-endian file has turned
BLOCKS = {"Q4_0": (2, 32, 18, [0]), "Q5_1": (7, 32, 24, None), "Q8_0": (8, 32, 34, [0]), "Q4_K": (12, 256, 144, [0, 2]),
          "Q6_K": (14, 256, 210, [208]), "TQ2_0": (35, 256, 66, None), "MXFP4": (39, 32, 17, [])}


class File:
    """pairs: [(key, type, value)], an array's value is (type of elements, [values]); tensors: [(name, shape, type number, bytes)] with the
    slowest axis first, and a fifth member for another offset than the next."""

    def __init__(self, pairs, tensors, version=3, is_big=False, alignment=32):
        self.order, self.version, self.alignment = ">" if is_big else "<", version, alignment
        self.pairs, self.tensors = pairs, tensors

    def number(self, code, value):
        return struct.pack(self.order + code, value)

    def string(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        return self.number("Q", len(data)) + data

    def value(self, kind, value):
        if kind == STRING:
            return self.string(value)
        if kind == ARRAY:
            of, values = value
            if of in CODES:
                return self.number("I", of) + self.number("Q", len(values)) + struct.pack(f"{self.order}{len(values)}{CODES[of]}", *values)
            return self.number("I", of) + self.number("Q", len(values)) + b"".join(self.value(of, v) for v in values)
        return self.number(CODES[kind], value)

    def infos(self):
        at, out, data = 0, [], b""
        for name, shape, kind, content, *offset in self.tensors:
            place = offset[0] if offset else at
            out.append(self.string(name) + self.number("I", len(shape)) + b"".join(self.number("Q", n) for n in reversed(shape)) +
                       self.number("I", kind) + self.number("Q", place))
            data += content + bytes(-len(content) % self.alignment)
            at = len(data)
        return b"".join(out), data

    def bytes(self):
        infos, data = self.infos()
        header = b"GGUF" + self.number("I", self.version) + self.number("Q", len(self.tensors)) + self.number("Q", len(self.pairs))
        header += b"".join(self.string(key) + self.number("I", kind) + self.value(kind, value) for key, kind, value in self.pairs) + infos
        return header + bytes(-len(header) % self.alignment) + data


def turned(kind, blocks):
    """Blocks as a big-endian file has them."""
    _, _, size, halves = BLOCKS[kind]
    out = bytearray(blocks)
    for at in range(0, len(out), size):
        for half in halves:
            out[at + half], out[at + half + 1] = out[at + half + 1], out[at + half]
    return bytes(out)


def half(data):
    return struct.unpack("<e", data)[0]


def k_scales(data):
    scales = [data[i] & 63 for i in range(4)] + [data[8 + i] & 15 | data[i] >> 6 << 4 for i in range(4)]
    least = [data[4 + i] & 63 for i in range(4)] + [data[8 + i] >> 4 | data[4 + i] >> 6 << 4 for i in range(4)]
    return scales, least


def numbers_of(kind, b):
    """The numbers of one block, not rounded."""
    nibbles = lambda data: [v & 15 for v in data] + [v >> 4 for v in data]  # noqa: E731
    if kind == "Q4_0":
        return [half(b[:2]) * (q - 8) for q in nibbles(b[2:])]
    if kind == "Q5_1":
        bits = int.from_bytes(b[4:8], "little")
        return [half(b[:2]) * (q + (bits >> i & 1) * 16) + half(b[2:4]) for i, q in enumerate(nibbles(b[8:]))]
    if kind == "Q8_0":
        return [half(b[:2]) * q for q in struct.unpack("32b", b[2:])]
    if kind == "Q4_K":
        scales, least = k_scales(b[4:16])
        values = [q for at in range(16, 144, 32) for q in nibbles(b[at:at + 32])]
        return [half(b[:2]) * scales[i // 32] * q - half(b[2:4]) * least[i // 32] for i, q in enumerate(values)]
    if kind == "Q6_K":
        low = [q for at in (0, 64) for q in nibbles(b[at:at + 64])]
        high = [b[128 + at + i] >> shift & 3 for at in (0, 32) for shift in (0, 2, 4, 6) for i in range(32)]
        scales = struct.unpack("16b", b[192:208])
        return [half(b[208:]) * scales[i // 16] * ((low[i] | high[i] << 4) - 32) for i in range(256)]
    if kind == "TQ2_0":
        return [half(b[64:]) * ((b[at + i] >> shift & 3) - 1) for at in (0, 32) for shift in (0, 2, 4, 6) for i in range(32)]
    values = (0, 1, 2, 3, 4, 6, 8, 12)
    return [2.0 ** (b[0] - 128) * (values[q & 7] if q < 8 else -values[q & 7]) for q in nibbles(b[1:])]  # MXFP4; of -0 there is none


def meaning(kind, blocks):
    """What blocks mean, as little-endian float32."""
    _, count, size, _ = BLOCKS[kind]
    out = [v for at in range(0, len(blocks), size) for v in numbers_of(kind, blocks[at:at + size])]
    return struct.pack(f"<{len(out)}f", *out)


def drawn_block(chance, kind):
    """A block of any content but for scales that are no numbers or overflow."""
    _, _, size, _ = BLOCKS[kind]
    block = bytearray(chance.randbytes(size))
    halves = {"Q4_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208], "TQ2_0": [64], "MXFP4": []}[kind]
    for at in halves:
        block[at:at + 2] = struct.pack("<e", chance.choice([0.0, -0.0, 2.0**-24, 5e-7, 65504.0, chance.uniform(-1, 1)]))
    if kind == "MXFP4":
        block[0] = chance.choice([0, 1, 2, 100, 127, 128, 200])
    return bytes(block)
