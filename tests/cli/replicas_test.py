#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies of one tensor in several files: verify compares them, and says which tensor has two values. Prints TAP.

usage: replicas_test.py --bin PATH
Ranks of Megatron and of torch's Distributed Checkpoint hold the same norms. One copy is changed here, with a checksum that is right again.
"""
import argparse
import struct
import subprocess
import sys
import zipfile

import small_models

LAYER = "decoder.layers.0."
SHAPES = {"embedding.word_embeddings.weight": [16, 8], "decoder.final_layernorm.weight": [8], "output_layer.weight": [16, 8],
          LAYER + "self_attention.linear_qkv.weight": [24, 8], LAYER + "self_attention.linear_qkv.layer_norm_weight": [8],
          LAYER + "self_attention.linear_proj.weight": [8, 8], LAYER + "mlp.linear_fc1.weight": [24, 8], LAYER + "mlp.linear_fc1.layer_norm_weight": [8],
          LAYER + "mlp.linear_fc2.weight": [8, 12]}


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


def copies_of_a_norm(shell):
    small_models.write(shell.work / "model.safetensors", SHAPES)
    shell("convert", "model.safetensors", "legacy", "--to", "megatron", "--layout", "tp=2", "--quiet")
    assert verify(shell, "legacy")[0] == 0
    norm = shell.bytes_of("legacy", "decoder.final_layernorm.weight")
    changed = norm[:-2] + struct.pack("<H", struct.unpack("<H", norm[-2:])[0] ^ 1)
    replace_bytes(next((shell.work / "legacy").rglob("mp_rank_01/model_optim_rng.pt")), norm, changed)
    status, text = verify(shell, "legacy")
    assert status == 1 and "decoder.final_layernorm.weight" in text, (status, text)
    assert not any(key in text for key in SHAPES if key != "decoder.final_layernorm.weight"), text
    replace_bytes(next((shell.work / "legacy").rglob("mp_rank_00/model_optim_rng.pt")), norm, changed)
    assert verify(shell, "legacy")[0] == 0, "both copies are the same again"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    return small_models.run(parser.parse_args().bin, [("copies of a norm in two ranks", copies_of_a_norm)])


sys.exit(main())
