#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron models of several parts, of which one has a gated activation and the others have none: the arguments say it of the whole run,
the shapes of each pair of matrices say it of the pair. Prints TAP.

usage: gates_test.py --bin PATH
"""
import argparse
import pathlib
import random
import sys

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub as torch  # noqa: E402

HIDDEN, INNER, VOCABULARY = 8, 16, 32


def model(with_bias):
    """{key: (shape, axis, gated)} of a LLaVA: a vision tower (CLIP, gelu), a projection, and a Llama."""
    made = {"language_model.embedding.word_embeddings.weight": ([VOCABULARY, HIDDEN], 0, False),
            "language_model.output_layer.weight": ([VOCABULARY, HIDDEN], 0, False),
            "language_model.decoder.final_layernorm.weight": ([HIDDEN], None, False)}
    parts = [(f"vision_model.decoder.layers.{i}.mlp.", False) for i in range(3)]
    parts += [("vision_projection.encoder.", False)] + [(f"language_model.decoder.layers.{i}.mlp.", True) for i in range(2)]
    for prefix, is_gated in parts:
        rows = INNER * (2 if is_gated else 1)
        made[prefix + "linear_fc1.weight"] = [rows, HIDDEN], 0, is_gated
        made[prefix + "linear_fc2.weight"] = [HIDDEN, INNER], 1, False
        if with_bias:
            made[prefix + "linear_fc1.bias"] = [rows], 0, is_gated
            made[prefix + "linear_fc2.bias"] = [HIDDEN], None, False
    return made


def cut(data, shape, axis, is_gated, ranks, rank):
    """A rank's bytes, and their shape."""
    if axis is None:
        return data, shape
    row = len(data) // shape[0]
    if axis == 0:
        halves = 2 if is_gated else 1
        share = len(data) // halves // ranks
        parts = [data[h * len(data) // halves + rank * share:][:share] for h in range(halves)]
        return b"".join(parts), [shape[0] // ranks, *shape[1:]]
    share = row // ranks
    return b"".join(data[r * row + rank * share:][:share] for r in range(shape[0])), [shape[0], shape[1] // ranks]


def write(folder, values, shapes, ranks, arguments):
    for rank in range(ranks):
        path = folder / "iter_0000005" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
        path.parent.mkdir(parents=True)
        state = {}
        for key, (shape, axis, is_gated) in shapes.items():
            data, own = cut(values[key], shape, axis, is_gated, ranks, rank)
            state[key] = torch.tensor("BFloat16Storage", own, data)
        torch.write_zip(path, {"args": argparse.Namespace(tensor_model_parallel_size=ranks, **arguments), "checkpoint_version": 3.0,
                               "iteration": 5, "model": state})
    (folder / "latest_checkpointed_iteration.txt").write_text("5")


def both_ways(with_bias):
    def test(shell):
        chance = random.Random(7)
        shapes = model(with_bias)
        values = {}
        for key, (shape, _, _) in shapes.items():
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            values[key] = bytes(chance.getrandbits(8) for _ in range(2 * count))
        for arguments in ({"swiglu": True}, {"swiglu": True, "vision_model_type": "clip"}):
            arguments = {"num_layers": 2, "hidden_size": HIDDEN, "num_attention_heads": 2, "pipeline_model_parallel_size": 1,
                         "padded_vocab_size": VOCABULARY, "make_vocab_size_divisible_by": 8, **arguments,
                         "untie_embeddings_and_output_weights": True}
            name = f"run{len(arguments)}"
            for ranks in (1, 2, 4):
                write(shell.work / f"{name}.{ranks}", values, shapes, ranks, arguments)
            for ranks in (2, 4):
                shell("convert", f"{name}.{ranks}", f"{name}.{ranks}.pt", "--to", "torch", "--no-sync")
                for key, data in values.items():
                    assert shell.bytes_of(f"{name}.{ranks}.pt", key) == data, ("merged", ranks, key)
                shell("convert", f"{name}.1", f"{name}.{ranks}.new", "--to", "megatron", "--layout", f"tp={ranks}", "--no-sync")
                for rank in range(ranks):
                    paths = [f"{name}.{ranks}{end}/iter_0000005/mp_rank_{rank:02d}/model_optim_rng.pt" for end in ("", ".new")]
                    old, new = ({key: t["hash"] for key, t in shell.tensors(path).items()} for path in paths)
                    assert old == new, ("cut", ranks, rank, [key for key in old if old[key] != new.get(key)])
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    return small_models.run(parser.parse_args().bin, [("with biases", both_ways(True)), ("without biases", both_ways(False))])


if __name__ == "__main__":
    sys.exit(main())
