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
        ("an optimizer's state", optimizers(arguments.root))])


if __name__ == "__main__":
    sys.exit(main())
