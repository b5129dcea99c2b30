#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies of one tensor in several files: verify compares them, and says which tensor has two values. Prints TAP.

usage: replicas_test.py --bin PATH
Ranks of Megatron and of torch's Distributed Checkpoint hold the same norms. One copy is changed here, with a checksum that is right again.
"""
import argparse
import re
import struct
import subprocess
import sys
import zipfile

import small_models

TIED = {"embedding.word_embeddings.weight": [16, 8], "decoder.final_layernorm.weight": [8]}
for layer in range(2):
    TIED |= {f"decoder.layers.{layer}.{name}": shape for name, shape in {
        "self_attention.linear_qkv.weight": [24, 8], "self_attention.linear_qkv.layer_norm_weight": [8],
        "self_attention.linear_proj.weight": [8, 8], "mlp.linear_fc1.weight": [24, 8], "mlp.linear_fc1.layer_norm_weight": [8],
        "mlp.linear_fc2.weight": [8, 12]}.items()}
SHAPES = TIED | {"output_layer.weight": [16, 8]}


def replace_bytes(path, old, new):
    """In one member of the archive, whose checksum is that of the new bytes."""
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    assert sum(data.count(old) for _, data in members) == 1, f"{old!r} is not in {path} once"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members:
            archive.writestr(name, data.replace(old, new))


def verify(shell, path):
    done = subprocess.run([shell.binary, "verify", "--json", str(path)], cwd=shell.work, capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode() + done.stderr.decode()


def copies(shapes, layout, key, ranks):
    """The second rank's copy of the tensor is changed, and then the first one's too."""
    def check(shell):
        small_models.write(shell.work / "model.safetensors", shapes)
        shell("convert", "model.safetensors", "legacy", "--to", "megatron", "--layout", layout, "--quiet")
        assert set(shell.tensors("legacy")) == set(shapes), "a copy is listed as a tensor of its own"
        assert verify(shell, "legacy")[0] == 0
        stored = shell.bytes_of("legacy", key)
        changed = stored[:-2] + struct.pack("<H", struct.unpack("<H", stored[-2:])[0] ^ 1)
        first, second = (next((shell.work / "legacy").rglob(f"{rank}/model_optim_rng.pt")) for rank in ranks)
        replace_bytes(second, stored, changed)
        status, text = verify(shell, "legacy")
        assert status == 1 and key in text, (status, text)
        was, became = (struct.unpack("<f", b"\0\0" + value[-2:])[0] for value in (stored, changed))
        told = float(re.search(r"max abs ([-+.e0-9]+)", text)[1])
        assert abs(told - abs(was - became)) <= told * 1e-3, (told, was, became)
        assert not any(other in text for other in shapes if other != key), text
        replace_bytes(first, stored, changed)
        assert verify(shell, "legacy")[0] == 0, "both copies are the same again"
    return check


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    return small_models.run(parser.parse_args().bin, [
        ("a norm in two ranks", copies(SHAPES, "tp=2", "decoder.final_layernorm.weight", ("mp_rank_00", "mp_rank_01"))),
        ("a tied embedding in two stages", copies(TIED, "pp=2", "embedding.word_embeddings.weight", ("mp_rank_00_000", "mp_rank_00_001")))])


sys.exit(main())
