#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A format that is a folder and a row of the registry, tests/toy, does all that the command does: docs/adding-a-format.md promises it.

usage: toy_test.py --bin TOY_RESHARD --fixtures FOLDER
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import small_models

SHAPES = {"model.a.weight": [5, 3], "model.b.bias": [2], "scale": [], "none": [0, 4]}


def model(shell):
    small_models.write(shell.work / "in.safetensors", SHAPES)
    return "in.safetensors"


def same_tensors(shell, one, other):
    a, b = shell.tensors(one), shell.tensors(other)
    assert a == b and len(a) == len(SHAPES), f"{one} has {a}, {other} has {b}"


def listed(shell):
    """`formats` tells its word and its option"""
    formats = json.loads(shell("formats", "--json"))["formats"]
    toy = next(entry for entry in formats if entry["name"] == "toy")
    assert toy["reads"] and toy["writes"] and [option["name"] for option in toy["options"]] == ["align"], toy


def two_ranks(shell):
    """a layout word: rows lie in two files, each where the option says"""
    source = model(shell)
    shell("convert", source, "out", "--to", "toy", "--layout", "files=2", "-o", "align=32", "--verify")
    assert sorted(path.name for path in (shell.work / "out").iterdir()) == ["rank_0.bin", "rank_1.bin", "toy.json"]
    index = json.loads((shell.work / "out/toy.json").read_text())
    assert [rows for _, rows in index["tensors"]["model.a.weight"]["parts"]] == [2, 3], index
    assert all(offset % 32 == 0 for tensor in index["tensors"].values() for offset, _ in tensor["parts"]), index
    same_tensors(shell, source, "out")
    assert json.loads(shell("inspect", "out", "--json"))["format"] == "toy"


def relayout_and_back(shell):
    """from one to four files and back to safetensors, nothing is lost"""
    source = model(shell)
    shell("convert", source, "one", "--to", "toy")
    shell("convert", "one", "four", "--to", "toy", "--layout", "files=4", "--checksum", "crc32c")
    shell("verify", "four", "--deep")
    shell("convert", "four", "back.safetensors", "--to", "safetensors")
    same_tensors(shell, source, "back.safetensors")
    shell("diff", source, "four")


def items(shell):
    """items of a DCP lie in the index, and come back"""
    shell("convert", shell.fixtures / "torch-dcp" / "dcp-dots" / "ckpt", "out", "--to", "toy")
    index = json.loads((shell.work / "out/toy.json").read_text())
    listed_items = {item["key"]: item for item in json.loads(shell("ls", "out", "--items", "--json"))["items"]}
    assert index["items"] and set(index["items"]) == set(listed_items), index["items"]


def refusals(shell):
    """an unknown word, an option that makes no sense, a file that ends early, a row that is missing"""
    source = model(shell)
    assert b"files" in shell("convert", source, "out", "--to", "toy", "--layout", "tp=2", exit_status=5)
    assert b"align" in shell("convert", source, "out", "--to", "toy", "-o", "align=0", exit_status=2)
    shell("convert", source, "out", "--to", "toy", "--layout", "files=2")
    index = (shell.work / "out/toy.json").read_text()
    (shell.work / "out/toy.json").write_text(index.replace(',3]]', ',2]]', 1))
    assert b"model.a.weight" in shell("hash", "out", exit_status=4)
    (shell.work / "out/toy.json").write_text(index)
    (shell.work / "out/rank_1.bin").write_bytes(b"")
    assert b"rank_1.bin" in shell("hash", "out", exit_status=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True)
    args = parser.parse_args()

    def prepared(test):
        def run(shell):
            shell.fixtures = pathlib.Path(args.fixtures).resolve()
            return test(shell)
        return test.__doc__, run
    return small_models.run(args.bin, [prepared(test) for test in (listed, two_ranks, relayout_and_back, items, refusals)])


sys.exit(main())
