#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a conversion writes is found again when it is read: under other names, in parts, or it was refused or left out. Prints TAP.

usage: found_again_test.py --bin PATH --fixtures DIR
"""
import json
import pickle
import zipfile

import small_models


def values(shell, path):
    return {key: tensor["hash"] for key, tensor in shell.tensors(path).items()}


def layers_are_compared_with_their_stack(shell, fixtures):
    """One tensor of all layers, by which no model is recognised, becomes one a layer in Megatron's files; --verify compares them."""
    source, key = fixtures / "megatron" / "megatron-core-zarr-v0.8.0" / "ckpt", "decoder.layers.mlp.linear_fc1.bias"
    shell("convert", source, "stack", "--to", "zarr", "--include", key, "--quiet")
    report = json.loads(shell("convert", "stack", "layers", "--to", "megatron", "--verify", "--json", "--quiet"))
    assert report["verified_bytes"] == 4 * 22 * 4, report
    parts = [shell("cat", "layers", f"decoder.layers.{i}.mlp.linear_fc1.bias", "--as", "raw") for i in range(4)]
    assert b"".join(parts) == shell("cat", "stack", key, "--as", "raw")


def members_without_a_name_are_left_out(shell, fixtures):
    """Members of a list have no strings for their keys, without which Megatron's files cannot be read."""
    with zipfile.ZipFile(shell.work / "list.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps([{"a": 1}, {"b": 2}], 2))
        archive.writestr("archive/version", "3\n")
    said = shell.any("convert", "list.pt", "out", "--to", "megatron", "--verify")
    assert said.returncode == 0 and "dropped: 0: legacy files have no place for it" in said.stderr, said.stderr
    assert shell.tensors("out") == {}


def scalars_are_on_every_rank(shell, fixtures):
    """A DTensor without axes cannot be cut: each rank of another number has it."""
    source = fixtures / "torch-file" / "torch-file-dtensor-2d-ranks"
    source /= json.loads((source / "manifest.json").read_text())["path"]
    for ranks in (1, 2, 3):
        shell("convert", source, f"out{ranks}", "--to", "fsdp-ranks", "--layout", f"ranks={ranks}", "--verify", "--lenient", "--quiet")
        assert values(shell, f"out{ranks}")["scalar"] == values(shell, source)["scalar"]


def experts_need_version_1(shell, fixtures):
    """Which ranks share an expert is not in atorch's first files."""
    source = fixtures / "atorch-fsdp" / "atorch-moe" / "ckpt"
    said = shell("convert", source, "out", "--to", "atorch", "-o", "version=0", exit_status=5).decode()
    assert "expert ranks" in said and "version=1" in said and not (shell.work / "out").exists(), said
    shell("convert", source, "out", "--to", "atorch", "-o", "version=1", "--verify", "--quiet")


def arrays_need_a_name_beside_others(shell, fixtures):
    """A lone tensor without a name is the group of a plain zarr; Megatron's has a folder for each."""
    source = next((fixtures / "paddle" / "paddle262-binary").rglob("*.pdtensor"))
    shell("convert", source, "plain", "--to", "zarr", "--verify", "--quiet")
    said = shell("convert", source, "out", "--to", "zarr", "-o", "flavour=megatron", exit_status=5).decode()
    assert "without a name" in said and "--rename" in said, said
    shell("convert", source, "out", "--to", "zarr", "-o", "flavour=megatron", "--rename", "s/^$/w/", "--verify", "--quiet")
    assert list(values(shell, "out").values()) == list(values(shell, "plain").values())


def main():
    args = small_models.arguments()
    tests = (layers_are_compared_with_their_stack, members_without_a_name_are_left_out, scalars_are_on_every_rank, experts_need_version_1,
             arrays_need_a_name_beside_others)
    return small_models.run(args.bin, [(test.__doc__, lambda shell, test=test: test(shell, args.fixtures)) for test in tests])


if __name__ == "__main__":
    raise SystemExit(main())
