#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tensors inside items hold is compared, whatever the items are stored as: objects of torch.save, blobs of DCP, DeepSpeed's optimizer.
Prints TAP.

usage: diff_items_test.py --bin PATH --root DIR
"""
import argparse
import pathlib
import struct
import sys

import small_models
from deepspeed_test import copied

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402


def numbers(*values):
    return torch_stub.tensor("FloatStorage", (len(values),), struct.pack(f"<{len(values)}f", *values))


def kept(**members):
    """An object of a class: an item as a whole, with the tensors in it."""
    return torch_stub.Object(torch_stub.Named("trainer", "State"), members)


def write(shell, name, second=2.0, extra=1.0, count=1):
    """One tensor and an item of two, each mentioned `count` times."""
    first, other = numbers(1.0, second, 3.0), numbers(extra)
    torch_stub.write_zip(shell.work / f"{name}.pt", {"w": numbers(0.0), "n": 1, "state": kept(many=[first] * count, one=other)})
    shell("convert", f"{name}.pt", f"{name}.dcp", "--to", "torch-dcp", "--quiet")


def pairs(a, b):
    """Every way in which the two can be stored."""
    return [(f"{a}.{x}", f"{b}.{y}") for x in ("pt", "dcp") for y in ("pt", "dcp")]


def what_they_hold(shell):
    write(shell, "one")
    write(shell, "same", count=3)
    write(shell, "same1")
    write(shell, "value", second=2.5)
    write(shell, "both", second=2.5, extra=7.0)
    for a, b in pairs("one", "same1"):
        assert b"same: all 1 tensors and 2 items agree, bit by bit" in shell("diff", a, b), (a, b)
    for a, b in pairs("one", "value"):
        said = shell("diff", a, b, exit_status=1).decode()
        assert "failure\titem\tstate\titems differ" in said and "of 1 tensors none differs; 1 items differ" in said, (a, b, said)
        assert ".pt" not in a or ".pt" not in b or "items differ: of 2 tensors in it 1 has other values" in said, said
        shell("diff", "--items", "ignore", a, b)
    assert "of 2 tensors in it 2 have other values" in shell("diff", "one.pt", "both.pt", exit_status=1).decode()
    shell("diff", "one.pt", "same.pt", exit_status=1)  # another list
    shell("diff", "--tolerance", "0.6", "one.pt", "value.pt")
    shell("diff", "--tolerance", "0.4", "one.pt", "value.pt", exit_status=1)


def how_they_are_spelled(shell):
    """Names of storages and devices are how it is stored; types and sizes are what it is."""
    torch_stub.write_zip(shell.work / "a.pt", {"state": kept(t=numbers(5.0, 6.0)), "w": numbers(0.0)})
    torch_stub.write_zip(shell.work / "b.pt", {"w": numbers(0.0), "state": kept(t=numbers(5.0, 6.0))})
    shell("diff", "a.pt", "b.pt")
    for other in numbers(5.0), torch_stub.tensor("IntStorage", (2,), struct.pack("<2f", 5.0, 6.0)), numbers(5.0, 6.0, 7.0):
        torch_stub.write_zip(shell.work / "c.pt", {"w": numbers(0.0), "state": kept(t=other)})
        assert b"items differ" in shell("diff", "a.pt", "c.pt", exit_status=1)


def two_of_a_name(shell):
    """Items that are called the same when their parts are joined are told apart by what these are."""
    for value in ({"w": numbers(0.0), "a.b": 1, "a": {"b": 2, "t": numbers(1.0)}}, {"w": numbers(0.0), "1": 5, 1: 6},
                  {"w": numbers(0.0), None: 5, "None": 6}):
        torch_stub.write_zip(shell.work / "a.pt", value)
        torch_stub.write_zip(shell.work / "b.pt", dict(reversed(value.items())) if None not in value else value)
        assert b"and 2 items agree" in shell("diff", "a.pt", "b.pt"), value
        if None not in value:
            shell("convert", "a.pt", "ranks", "--to", "fsdp-ranks", "--layout", "ranks=2", "--overwrite")
            assert b"and 2 items agree" in shell("diff", "a.pt", "ranks"), value
    torch_stub.write_zip(shell.work / "c.pt", {"w": numbers(0.0), "1": 6, 1: 5})
    torch_stub.write_zip(shell.work / "d.pt", {"w": numbers(0.0), "1": 5, 1: 6})
    assert shell("diff", "c.pt", "d.pt", exit_status=1).count(b"items differ") == 3  # each of the two, and the verdict
    torch_stub.write_zip(shell.work / "e.pt", {"w": numbers(0.0), 1: 5})
    torch_stub.write_zip(shell.work / "f.pt", {"w": numbers(0.0), "1": 5})
    shell("diff", "e.pt", "f.pt")  # by key where paths are not the same
    assert b"item\t1\titem is only in the second" in shell("diff", "f.pt", "d.pt", exit_status=1)


def members(shell):
    """An item that the other side has in parts, as torch.distributed.checkpoint stores dicts, is compared with these."""
    nested = {"w": numbers(0.0), "cfg": {"a": 1, "b": [1, 2], "none": {}, "deep": [{"k": kept(t=numbers(5.0))}]}, "step": 3}
    parts = {"w": numbers(0.0), "cfg.a": 1, "cfg.b": [1, 2], "cfg.deep.0.k": kept(t=numbers(5.0)), "step": 3}
    other = {"cfg.a": 2, "cfg.b": [2, 1], "cfg.deep.0.k": kept(t=numbers(6.0))}
    torch_stub.write_zip(shell.work / "nested.pt", nested)

    def write_parts(values):
        torch_stub.write_zip(shell.work / "parts.pt", values)
        shell("convert", "parts.pt", "parts.dcp", "--to", "torch-dcp", "--quiet", "--overwrite")

    def failures(*words):
        return [line.split("\t")[2:] for line in shell("diff", *words, exit_status=1).decode().splitlines() if line.startswith("failure")]

    write_parts(parts)
    for path in "parts.pt", "parts.dcp":
        assert b"same: all 1 tensors and 2 items agree" in shell("diff", "nested.pt", path)
        assert b"same: all 1 tensors and 4 items agree" in shell("diff", path, "nested.pt")
    for key, value in other.items():
        write_parts(parts | {key: value})
        for path in "parts.pt", "parts.dcp":
            for words in ("nested.pt", path), (path, "nested.pt"):
                said = failures(*words)
                assert len(said) == 1 and said[0][1].startswith("items differ"), (words, said)
                assert said[0][0] == (key if path == "parts.dcp" or key != "cfg.deep.0.k" or words[0] == path else "cfg"), said
    first, again = kept(t=numbers(5.0)), numbers(5.0)  # one storage in two members, which DCP has in two files
    torch_stub.write_zip(shell.work / "shared.pt", {"w": numbers(0.0), "cfg": {"x": kept(t=again), "y": kept(t=again)}})
    write_parts({"w": numbers(0.0), "cfg.x": first, "cfg.y": kept(t=numbers(6.0))})
    assert failures("shared.pt", "parts.dcp") == [["cfg.y", "items differ"]]
    write_parts({key: value for key, value in parts.items() if key != "cfg.b"} | {"cfg.c": 1})
    assert failures("nested.pt", "parts.pt") == [["cfg.b", "item is missing in the second"], ["cfg.c", "item is only in the second"]]
    assert failures("parts.pt", "nested.pt") == [["cfg.b", "item is only in the second"], ["cfg.c", "item is missing in the second"]]


def optimizers(root):
    def test(shell):
        folder, tag, _ = copied(shell, root, "ds-uc-zero2-fp32")
        origin = root / "deepspeed" / "ds-zero2-fp32" / "ckpt"
        assert b"same: all 21 tensors and 17 items agree, bit by bit" in shell("diff", folder, origin)
        file = tag / "zero" / "mix" / "exp_avg_sq.pt"
        torch_stub.write_zip(file, {"cat_dim": 0, "param": torch_stub.tensor("FloatStorage", (3, 7, 7), bytes(4 * 147))})
        said = shell("diff", folder, origin, exit_status=1).decode()
        assert "failure\titem\toptimizer\titems differ: of 42 tensors in it 1 has other values" in said, said
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=lambda path: pathlib.Path(path).resolve())
    arguments = parser.parse_args()
    return small_models.run(arguments.bin, [
        ("what tensors in items hold", what_they_hold), ("how they are spelled", how_they_are_spelled),
        ("two of a name", two_of_a_name), ("members", members),
        ("an optimizer's state", optimizers(arguments.root))])


if __name__ == "__main__":
    sys.exit(main())
