#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves pickle_parse and pickle_write against CPython: what pickle_write makes of a pickle loads as the object that the pickle itself
loads as.

usage: pickle_test.py PATH-TO-pickle_rewrite [ROUNDS]
Objects of every kind, in protocols 0 to 5 of both of CPython's picklers, and random graphs with sharing and cycles. Structure and identity
are compared, not only equality. Prints a line `N passed, N failed`.
"""
import argparse
import array
import collections
import datetime
import decimal
import enum
import fractions
import functools
import io
import ipaddress
import math
import operator
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import types
import uuid


class Plain:
    pass


class Slots:
    __slots__ = ("a", "b")


class Args:
    def __new__(cls, *args, **kwargs):
        self = super().__new__(cls)
        self.got = args, kwargs
        return self

    def __getnewargs_ex__(self):
        return (1, "x"), {"key": [1]}


class ListChild(list):
    pass


class DictChild(dict):
    pass


class SetChild(set):
    pass


class TupleChild(tuple):
    pass


class Reduced:
    """Uses all five members of what __reduce__ may return."""

    def __reduce__(self):
        return ListDict, (), {"state": 1}, iter([1, 2, 3]), iter([("k", 1), ("l", 2)])


class ListDict:
    def __init__(self):
        self.items, self.pairs = [], {}

    def append(self, item):
        self.items.append(item)

    def extend(self, items):
        self.items.extend(items)

    def __setitem__(self, key, value):
        self.pairs[key] = value


class Stateful:
    def __getstate__(self):
        return ("anything", [self])

    def __setstate__(self, state):
        self.state = state


class Color(enum.Enum):
    RED = 1


class Flags(enum.IntFlag):
    A = 1
    B = 2


Point = collections.namedtuple("Point", "x y")


def cyclic():
    own = []
    own.append(own)
    entry = {}
    entry["self"] = entry
    by_tuple = []
    pair = (by_tuple, 1)
    by_tuple.append(pair)
    four = (by_tuple, 1, 2, [3])
    by_tuple.append(four)
    many = [[] for _ in range(5)]
    hub = tuple(many)
    for one in many:
        one.append(hub)
    node = Plain()
    node.me = node
    node.both = (node, [node])
    child = ListChild()
    child.append(child)
    child.attribute = child
    held = Stateful()
    member = Plain()
    member.home = {member}
    frozen = Plain()
    frozen.home = frozenset([frozen])
    return [own, entry, by_tuple, pair, many, hub, node, child, held, member, frozen]


def objects():
    shared = ["shared"]
    text = "shared text of some length"
    slots = Slots()
    slots.a, slots.b = 1, [2]
    plain = Plain()
    plain.x, plain.y = 1, plain
    child = DictChild(a=1)
    child.more = 1
    error = ValueError("bad", 1)
    error.note = "n"
    return [
        None, True, False, 0, 1, 255, 256, 65535, 65536, -1, -128, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63 - 1, 2**63, -2**63,
        -2**63 - 1, 2**64, 10**40, -10**40, 2**2039, 2**2040, -2**2047, 3**5000, 0.0, -0.0, 1.5, -1e300, 5e-324, math.inf, -math.inf,
        math.nan, 1e-7, 12345.678901234567, "", "a", "héllo", "\u20ac\U0001f600", "\ud800", "a\x00b\n\r\\'\"\x1a", "\\u0041", "x" * 300,
        "y" * 70000, "\udc80\ud83d", b"", b"a", bytes(range(256)), b"z" * 300, bytearray(), bytearray(b"ab\xff"), bytearray(500),
        (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), tuple(range(2500)), ((), ((),), [((), )]), [], [1], [1, 2], list(range(1000)),
        list(range(1001)), list(range(3500)), {}, {1: 2}, {1: 2, "a": [3]}, {i: str(i) for i in range(2001)},
        {(1, (2, "x")): frozenset([1])}, {b"k": 1, None: 2, 1.5: 3, frozenset(): 4}, set(), {1, "a", (2,)}, set(range(1500)), frozenset(),
        frozenset([1, (2, 3)]), {frozenset([1]): {2}}, [shared, shared, (shared,), {"k": shared}], [text, text, {text: text}], [(1, 2)] * 3,
        [b"bytes shared"] * 2, [bytearray(b"xy")] * 2, [{7}] * 2,
        [int, int, str, range, bytes, object, type(None), len, math.sin, sys.intern, functools.reduce, chr, map, zip, filter, open, print,
         complex, slice], [collections.UserDict, collections.UserList, io.StringIO, io.BytesIO, pickle.loads, subprocess.Popen,
                           operator.attrgetter, types.SimpleNamespace],
        [OSError, FileNotFoundError, BlockingIOError, ModuleNotFoundError, RecursionError, EncodingWarning, Exception, StopAsyncIteration,
         TimeoutError],
        error, KeyError("k"), OSError(2, "no"), FileNotFoundError(2, "no", "f"), UnicodeDecodeError("utf-8", b"x", 0, 1, "r"), 1 + 2j,
        complex(math.inf, -0.0), range(3), range(1, 10, 2), slice(1, None, 2), Ellipsis, NotImplemented,
        collections.OrderedDict(a=1, b=[2]), collections.OrderedDict(), collections.Counter("hello"),
        collections.defaultdict(list, {"a": [1]}), collections.defaultdict(None), collections.deque([1, 2], 5),
        collections.ChainMap({"a": 1}, {}), collections.UserDict(a=1), collections.UserList([1]), collections.UserString("s"),
        Point(1, [2]), types.SimpleNamespace(a=1), argparse.Namespace(lr=0.1, layers=[1, 2]), datetime.date(2024, 2, 29),
        datetime.datetime(2024, 1, 2, 3, 4, 5, 678901), datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc), datetime.time(1, 2),
        datetime.timedelta(-1, 5, 7), datetime.timezone(datetime.timedelta(hours=1)), decimal.Decimal("1.10"), fractions.Fraction(3, 7),
        uuid.UUID(int=5), pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:/x"), ipaddress.ip_address("1.2.3.4"), Color.RED,
        Flags.A | Flags.B, array.array("i", [1, 2]), functools.partial(int, base=2), operator.itemgetter(1, 2), operator.attrgetter("a.b"),
        operator.methodcaller("m", 1, k=2), random.Random(1).getstate(), random.Random(3), io.BytesIO(b"abc"), io.StringIO("abc"),
        struct.Struct("<i").format, iter([1, 2]), reversed([1, 2]), enumerate([1]), memoryview, property, plain, slots, Args(),
        ListChild([1]), child, SetChild([1]), TupleChild((1, 2)), Reduced(), Stateful(), Plain, Plain.__init__, *cyclic(), cyclic(),
    ]


def order(member):
    """A sorting key of set members that does not depend on where they lie in memory."""
    if isinstance(member, tuple):
        return "tuple" + str([order(part) for part in member])
    if isinstance(member, frozenset):
        return "frozenset" + str(sorted(order(part) for part in member))
    shown = repr(member) if type(member).__repr__ is not object.__repr__ else ""
    return f"{type(member).__name__} {getattr(member, 'label', None)} {shown}"


def streams():
    """What no pickler of today writes: opcodes of Python 2, and legal oddities."""
    return [
        b"(i__main__\nPlain\n.", b"(i__main__\nPlain\np0\n(dp1\nS'x'\nI1\nsb.", b"(c__main__\nPlain\no.", b"(I7\nI8\nibuiltins\nslice\n.",
        b"(c__builtin__\nrange\nI1\nI9\no.", b"(lp0\nI1\naL5L\naF1.5\naS'a\\n\\x41'\naVh\\u00e9\nag0\na.",
        b"(dp0\nS'k'\n(I1\nI2\ntp1\nsI01\nI00\ns.", b"c__builtin__\nset\n((lI1\naI1\natR.",
        b"ccopy_reg\n_reconstructor\n(c__main__\nPlain\nc__builtin__\nobject\nNtR(dVx\nI5\nsb.", b"cexceptions\nValueError\n(S'bad'\ntR.",
        b"cUserDict\nUserDict\n.", b"]I1\n2\x86a.", b"(I1\n(I2\n1l.", b"\x80\x05\x96\x02\x00\x00\x00\x00\x00\x00\x00ab.",
        b"\x80\x04\x8f(K\x01K\x02\x90.", b"\x80\x04(K\x01K\x02\x91.", b"\x80\x04c__main__\nArgs\nK\x05\x85}\x8c\x01kK\x01s\x92.",
        b"c__main__\nListDict\n)R(K\x01K\x02eK\x03K\x04sK\x05a.", b"(i__main__\nPlain\n(dS'x'\nI1\nsb(dS'y'\nI2\nsb.",
        b"]q\x00(h\x00\x85q\x01h\x01e0h\x01.", b"\x80\x02\x8a\x00.", b"\x80\x02\x8a\x03\x00\x00\x00.",
        b"\x80\x02\x8b\x09\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x89.", b"T\x01\x00\x00\x00a.", b"U\x01a.",
        b"\x80\x04\x8c\x0bcollections\x8c\x10OrderedDict.keys\x93.",
    ]


def fingerprint(root):
    """The object as a tree of plain values in which what was met before is its number. Sets are sorted by representation, since their order
    is their own."""
    seen, out, keep = {}, [], []
    pending = [root]
    while pending:
        value = pending.pop()
        if value is None or isinstance(value, (bool, int, float, complex)) and type(value) in (bool, int, float, complex):
            out.append((type(value).__name__, struct.pack(">d", value) if isinstance(value, float) else repr(value)))
            continue
        if type(value) in (str, bytes):
            out.append((type(value).__name__, value))
            continue
        if type(value) in (tuple, frozenset) and not value:
            out.append(type(value).__name__)
            continue
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            out.append(("named", repr(value)))
            continue
        if id(value) in seen:
            out.append(("seen", seen[id(value)]))
            continue
        seen[id(value)] = len(seen)
        keep.append(value)
        out.append((type(value).__module__, type(value).__qualname__))
        parts = []
        if isinstance(value, dict):
            parts += [part for pair in value.items() for part in pair]
        elif isinstance(value, (set, frozenset)):
            parts += sorted(value, key=order)
        elif isinstance(value, (list, tuple, collections.deque)):
            parts += list(value)
        elif isinstance(value, (bytearray, array.array)):
            out.append(bytes(value))
        elif (not hasattr(value, "__dict__") and not hasattr(value, "__slots__")
              or isinstance(value, (enum.Enum, decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath))):
            out.append(repr(value) if " at 0x" not in repr(value) else type(value).__name__)
            reduced = value.__reduce_ex__(2) if not isinstance(value, enum.Enum) else ()
            parts += [part for part in reduced if isinstance(part, tuple)]
        for name in getattr(type(value), "__slots__", ()):
            if isinstance(name, str) and hasattr(value, name) and not name.startswith("__") and isinstance(value, Slots):
                parts += [name, getattr(value, name)]
        if hasattr(value, "__dict__") and not isinstance(value, (enum.Enum, decimal.Decimal, fractions.Fraction, pathlib.PurePath)):
            parts += [part for pair in vars(value).items() for part in pair]
        if isinstance(value, BaseException):
            parts += [value.args]
        if isinstance(value, functools.partial):
            parts += [value.func, value.args, value.keywords]
        if isinstance(value, io.BytesIO):
            out.append(value.getvalue())
        out.append(len(parts))
        pending += reversed(parts)
    return out


def random_graph(rng):
    """Nested containers that share and contain each other in any way that Python allows."""
    pool = [rng.choice([None, True, rng.randrange(-2**70, 2**70), rng.random(), "s%d" % rng.randrange(9), b"b", ""]) for _ in range(6)]
    hashable = list(pool)
    open_ends = []
    for _ in range(rng.randrange(1, 40)):
        kind = rng.randrange(8)
        some = [rng.choice(pool) for _ in range(rng.randrange(6))]
        keys = [rng.choice(hashable) for _ in range(rng.randrange(5))]
        if kind == 0:
            value = list(some)
            open_ends.append(value)
        elif kind == 1:
            value = {key: rng.choice(pool) for key in keys}
            open_ends.append(value)
        elif kind == 2:
            value = Plain()
            value.label = len(pool)
            value.items = some
            open_ends.append(value)
            hashable.append(value)
        elif kind == 3:
            value = set(keys)
        elif kind == 4:
            value = frozenset(keys)
            hashable.append(value)
        elif kind == 5:
            value = tuple(keys)
            hashable.append(value)
        elif kind == 6:
            value = bytearray(rng.randbytes(rng.randrange(4)))
        else:
            value = tuple(some)
        pool.append(value)
    for _ in range(rng.randrange(8)):
        if open_ends:
            end, value = rng.choice(open_ends), rng.choice(pool)
            if isinstance(end, list):
                end.append(value)
            elif isinstance(end, dict):
                end[rng.choice(hashable)] = value
            else:
                end.more = value
    return [rng.choice(pool[6:] or pool) for _ in range(3)]


class Rewriter:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, data):
        self.process.stdin.write(struct.pack("<Q", len(data)) + data)
        self.process.stdin.flush()
        size = self.size()
        if size == 2**64 - 1:
            raise ValueError(self.process.stdout.read(self.size()).decode())
        return self.process.stdout.read(size)

    def size(self):
        return struct.unpack("<Q", self.process.stdout.read(8))[0]


def dumps(value, protocol, pickler):
    stream = io.BytesIO()
    pickler(stream, protocol).dump(value)
    return stream.getvalue()


def check(rewrite, value, protocol, pickler, what):
    try:
        source = dumps(value, protocol, pickler)
        pickle.loads(source)
    except Exception:
        return None  # CPython itself cannot, for example text names beyond ASCII in protocol 2
    return check_stream(rewrite, source, f"{what} protocol {protocol} {pickler.__name__}")


def check_stream(rewrite, source, what):
    try:
        wanted = pickle.loads(source)
        written = rewrite(source)
        if written[:2] != b"\x80\x02":
            raise ValueError("is not protocol 2")
        for load in (pickle.loads, lambda data: pickle._Unpickler(io.BytesIO(data)).load()):
            got, expected = fingerprint(load(written)), fingerprint(wanted)
            if got != expected:
                raise ValueError(f"differs: {str(got)[:300]} instead of {str(expected)[:300]}")
        if rewrite(source) != written:
            raise ValueError("is written differently the second time")
        if fingerprint(pickle.loads(rewrite(written))) != fingerprint(wanted):
            raise ValueError("differs after a second round")
    except Exception as problem:
        print(f"FAILED {what}: {problem!r}"[:1000])
        return False
    return True


def main():
    program = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    sys.setrecursionlimit(10000)
    rewrite = Rewriter(program)
    passed = failed = skipped = 0
    for index, value in enumerate(objects()):
        for protocol in range(6):
            for pickler in (pickle.Pickler, pickle._Pickler):
                result = check(rewrite, value, protocol, pickler, f"object {index} {type(value).__name__} {str(value)[:60]!r}")
                passed += result is True
                failed += result is False
                skipped += result is None
    for stream in streams():
        result = check_stream(rewrite, stream, f"stream {stream!r}")
        passed += result
        failed += not result
    for seed in range(rounds):
        value = random_graph(random.Random(seed))
        result = check(rewrite, value, seed % 6, pickle.Pickler if seed % 4 else pickle._Pickler, f"random graph {seed}")
        passed += result is True
        failed += result is False
        skipped += result is None
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
