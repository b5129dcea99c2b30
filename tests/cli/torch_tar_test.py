#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tar files of torch before 0.1.10, built member by member: what is read of one, and what is refused. Prints TAP.

usage: torch_tar_test.py --bin PATH
"""
import argparse
import io
import json
import pathlib
import pickle
import struct
import sys
import tarfile

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

Named = torch_stub.Named
FLOATS = Named("torch", "FloatStorage")
DATA = struct.pack("<6f", *range(6))


def dumped(value):
    out = io.BytesIO()
    torch_stub.Pickler(out).dump(value)
    return out.getvalue()


class Root(pickle._Pickler):
    """Tensors are their keys, as texts."""

    def persistent_id(self, value):
        return str(value[0]) if isinstance(value, tuple) else None


def root(value):
    out = io.BytesIO()
    Root(out, protocol=2).dump(value)
    return out.getvalue()


def storage(key=1, kind=FLOATS, elements=6, data=DATA):
    return dumped((key, "cpu", kind)) + struct.pack("<q", elements) + data


def tensor(key=11, on=1, shape=(2, 3), stride=(3, 1), offset=0, rank=None):
    numbers = struct.pack(f"<{len(shape) + len(stride) + 1}q", *shape, *stride, offset)
    return dumped((key, on, Named("torch", "FloatTensor"))) + struct.pack("<q", len(shape) if rank is None else rank) + numbers


def members(storages=None, views=(), tensors=None, value=None):
    """Bytes of the members; a list of them is counted by its length."""
    storages, tensors = [storage()] if storages is None else storages, [tensor()] if tensors is None else tensors
    return {"sys_info": dumped({"protocol_version": 1000}), "pickle": root({"w": (11,)} if value is None else value),
            "tensors": dumped(len(tensors)) + b"".join(tensors), "storages": dumped(len(storages)) + b"".join(storages) + dumped(views)}


def put(shell, made, extra=()):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in [*made.items(), *extra]:
            if data is None:
                continue
            info = tarfile.TarInfo(name)
            if isinstance(data, tuple):
                info.type, data = data
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (shell.work / "c.pt").write_bytes(out.getvalue())
    return "c.pt"


def read(shell):
    """A tensor, a view of its storage by name, and values beside them; folders and headers of pax do not matter."""
    views = [(2, 1, 3, 3)]
    made = members(views=views, tensors=[tensor(), tensor(12, 2, (3,), (1,)), tensor(13, 1, (3, 2), (1, 3), 0), tensor(14, 1, (), (), 5)],
                   value={"w": (11,), "part": (12,), "turned": (13,), "last": (14,), "epoch": 3})
    beside = [("d", (tarfile.DIRTYPE, b"")), ("h", (tarfile.XHDTYPE, b"11 mtime=1\n"))]
    put(shell, {f"./{name}": data for name, data in made.items()}, beside)
    found = {key: struct.unpack(f"<{count}f", shell.bytes_of("c.pt", key)) for key, count in
             {"w": 6, "part": 3, "turned": 6, "last": 1}.items()}
    assert found == {"w": (0, 1, 2, 3, 4, 5), "part": (3, 4, 5), "turned": (0, 3, 1, 4, 2, 5), "last": (5,)}, found
    items = json.loads(shell("ls", "--items", "--json", "c.pt"))["items"]
    assert [(i["key"], i["value"]) for i in items] == [("epoch", 3)], items


def header_change(shell):
    """The size of the first member in the ways of tar: octal digits with blanks, or GNU's base 256."""
    put(shell, members())
    data = bytearray((shell.work / "c.pt").read_bytes())
    size = int(data[124:135], 8)
    for field, status, text in ((b"%11o " % size, 0, b""), (b" %-10o\0" % size, 0, b""), (b"\x80" + size.to_bytes(11, "big"), 0, b""),
                                (b"\x81" + size.to_bytes(11, "big"), 4, b"reaches beyond the file"), (b"\0" * 12, 4, b"beyond the file"),
                                (b"\x80" + (1 << 80).to_bytes(11, "big"), 4, b"beyond the file"),
                                (b"\x80" + (1 << 63).to_bytes(11, "big"), 4, b"beyond the file"),
                                (b"8" * 11 + b"\0", 4, b"beyond the file"),
                                (b"%011ox" % size, 4, b"beyond the file"), (b"%011o\0" % (1 << 30), 4, b"beyond the file")):
        data[124:136] = field
        data[148:156] = b" " * 8
        data[148:156] = b"%06o\0 " % sum(data[:512])
        (shell.work / "c.pt").write_bytes(data)
        said = shell("hash", "c.pt", exit_status=status)
        assert text in said, (field, said)


def refused(shell):
    unsupported, malformed = 5, 4
    for text, status, made, *more in (
            ("tar without a member 'storages'", malformed, members() | {"storages": None}),
            ("tar member 'tensors' occurs twice", malformed, members(), [("tensors", b"x")]),
            ("tar member 'l' is no regular file", malformed, members(), [("l", (tarfile.SYMTYPE, b""))]),
            ("tar member name '../x' leaves the archive", malformed, members(), [("../x", b"")]),
            ("tar member name '/x' leaves the archive", malformed, members(), [("/x", b"")]),
            ("tar member name 'a/../../x' leaves the archive", malformed, members(), [("a/../../x", b"")]),
            ("pax header that changes path=", unsupported, members(), [("h", (tarfile.XHDTYPE, b"10 path=x\n"))]),
            ("pax header of 4097 bytes", unsupported, members(), [("h", (tarfile.XGLTYPE, b"x" * 4097))]),
            ("tar of more than 1000 members", malformed, members(), [(f"m{i}", b"") for i in range(1000)]),
            ("count of tar entries is not a number", malformed, members() | {"storages": dumped("one")}),
            ("count of tar entries is not a number", malformed, members() | {"tensors": dumped(-1)}),
            ("storage of a tar is not (key, location, type)", malformed, members(storages=[dumped((1, "cpu"))])),
            ("storage of a tar is not (key, location, type)", malformed, members(storages=[dumped((1, 2, FLOATS))])),
            ("storage of a class that torch does not have", unsupported, members(storages=[storage(kind=Named("torch", "OddStorage"))])),
            ("storage of -1 elements", malformed, members(storages=[storage(elements=-1)])),
            ("storage of 9223372036854775807 elements", malformed, members(storages=[storage(elements=2**63 - 1)])),
            ("list of storage views is a dict", malformed, members(views={})),
            ("storage view of a tar is not (key, root key, offset, size)", malformed, members(views=[(2, 1, 0)])),
            ("storage view of storage 7, which is not there", malformed, members(views=[(2, 7, 0, 1)])),
            ("storage view reaches beyond its root of 24 bytes", malformed, members(views=[(2, 1, 1, 6)])),
            ("storage view reaches beyond its root of 24 bytes", malformed, members(views=[(2, 1, -1, 1)])),
            ("storage view reaches beyond its root of 24 bytes", malformed, members(views=[(2, 1, 1, 2**63 - 1)])),
            ("tensor of a tar is not (key, storage key, type)", malformed, members(tensors=[dumped((11, 1))])),
            ("tensor on storage 9, which is not there", malformed, members(tensors=[tensor(on=9)])),
            ("tensor of 65 dimensions", malformed, members(tensors=[tensor(rank=65)])),
            ("tensor of -1 dimensions", malformed, members(tensors=[tensor(rank=0xffffffff)])),
            ("tensor 11 occurs twice", malformed, members(tensors=[tensor(), tensor()]))):
        said = shell("hash", put(shell, made, *more), exit_status=status).decode()
        assert text in said, f"instead of {text}: {said}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    tests = [("what is read", read), ("sizes in headers", header_change), ("what is refused", refused)]
    sys.exit(small_models.run(args.bin, tests))


main()
