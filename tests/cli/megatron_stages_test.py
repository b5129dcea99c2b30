#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stages of legacy Megatron files where the model has multi-token prediction. Prints TAP.

usage: megatron_stages_test.py --bin PATH

Files of the stages are written here as Megatron's ranks write them, go into one distributed checkpoint, and come back: each stage must have
what it had. Since Megatron Core 0.16 the norm behind the layers is on the stage of the last one, and a layout of the pipeline may have
multi-token prediction before its last stage.
"""
import argparse
import collections
import random

import moe_layouts_test
import small_models

MODEL = dict(layers=4, experts=0, frequency=[0] * 4, hidden=2, kv=1, groups=1, heads=2, ffn=2, gated=True, vocabulary=4, shared=0,
             spelling="modules", router_bias=False, optimizer="none")
EMBEDDING, NORM, OUTPUT = "embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight"

# layout of the pipeline, virtual stages a rank, release, stages (chunk by chunk) of the norm and of multi-token prediction
CASES = (
    ("Ett|tt|mL", 1, "0.16", 1, 2),
    ("Ett|tt|mL", 1, "0.15", 2, 2),
    ("Ett|ttm|L", 1, "0.16", 1, 1),
    ("Ett|tt|m|L", 1, "0.19", 1, 2),
    ("Et|ttt|m|L", 2, "0.16", 1, 2),
    ("Ett|ttmL", 1, "0.16", 1, 1),
)


def arguments(layout, chunks, release, is_tied):
    stages = layout.count("|") + 1
    said = moe_layouts_test.arguments(MODEL)
    said.num_experts, said.mtp_num_layers, said.pipeline_model_parallel_layout = None, 1, layout
    said.untie_embeddings_and_output_weights = not is_tied
    said.pipeline_model_parallel_size = said.world_size = stages // chunks
    said.virtual_pipeline_model_parallel_size = chunks if chunks > 1 else None
    for name, since in (("moe_latent_size", "0.16"), ("mtp_use_repeated_layer", "0.17")):
        if release >= since:
            setattr(said, name, None)
    return said


def parts_of(layout, release, norm, mtp, is_tied):
    """For each stage its parameters, with the layers' numbers within it."""
    chance = random.Random(1)
    whole = dict(moe_layouts_test.make_parameters(MODEL, chance))
    inner = [name.removeprefix("decoder.layers.0.") for name in whole if name.startswith("decoder.layers.0.")]
    shapes = {"enorm": (2,), "hnorm": (2,), "eh_proj": (2, 4), "final_layernorm": (2,)}
    predicting = {f"mtp.layers.0.{name}.weight": moe_layouts_test.weight(chance, *shape) for name, shape in shapes.items()}
    module = "mtp_model_layer" if release >= "0.17" else "transformer_layer"
    predicting |= {f"mtp.layers.0.{module}.{name}": whole["decoder.layers.1." + name] for name in inner}
    stages, layer = [], 0
    for number, letters in enumerate(layout.split("|")):
        stage = {}
        if "E" in letters or number == mtp:
            stage[EMBEDDING] = whole[EMBEDDING]
        for local in range(letters.count("t")):
            stage |= {f"decoder.layers.{local}.{name}": whole[f"decoder.layers.{layer}.{name}"] for name in inner}
            layer += 1
        if number == norm:
            stage[NORM] = whole[NORM]
        if number == mtp:
            stage |= predicting
        if "L" in letters:
            stage[OUTPUT] = whole[EMBEDDING if is_tied else OUTPUT]
        stages.append(stage)
    return stages


def write_stages(root, layout, chunks, release, norm, mtp, is_tied):
    stages, said = parts_of(layout, release, norm, mtp, is_tied), arguments(layout, chunks, release, is_tied)
    ranks = len(stages) // chunks
    for rank in range(ranks):
        content = {"args": said, "checkpoint_version": 3.0, "iteration": 10}
        for chunk in range(chunks):
            content[f"model{chunk}" if chunks > 1 else "model"] = collections.OrderedDict(stages[chunk * ranks + rank])
        moe_layouts_test.write(root / "iter_0000010" / f"mp_rank_00_{rank:03}" / "model_optim_rng.pt", "model_optim_rng", content)
    (root / "latest_checkpointed_iteration.txt").write_text("10")


def there_and_back(shell, layout, chunks, release, norm, mtp):
    for is_tied in (False, True):
        source, dist, back = (shell.work / f"{name}-{is_tied}" for name in ("source", "dist", "back"))
        write_stages(source, layout, chunks, release, norm, mtp, is_tied)
        shell("convert", source, dist, "--to", "torch_dist", "--quiet")
        words = f"pp={len(layout.split('|')) // chunks}" + (f",vp={chunks}" if chunks > 1 else "")
        shell("convert", dist, back, "--to", "megatron", "--layout", words, "--quiet")
        for file in sorted(source.rglob("*.pt")):
            wanted, found = shell.tensors(file), shell.tensors(back / file.relative_to(source))
            small_models.keys_must_be(set(found), set(wanted))
            assert found == wanted, (layout, file, [key for key in wanted if wanted[key] != found[key]][:4])


def other_stages(shell):
    """With another number of stages there is no layout: the last one has the norm and multi-token prediction."""
    write_stages(shell.work / "source", "Ett|ttm|L", 1, "0.16", 1, 1, False)
    shell("convert", "source", "out", "--to", "megatron", "--layout", "pp=2", "--quiet")
    first, last = (shell.tensors(file) for file in sorted((shell.work / "out").rglob("*.pt")))
    assert {"model." + NORM, "model." + EMBEDDING, "model." + OUTPUT, "model.mtp.layers.0.enorm.weight"} <= last.keys(), sorted(last)
    assert "model." + EMBEDDING in first and "model." + NORM not in first, sorted(first)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    options = parser.parse_args()
    tests = [(f"{case[0]} of {case[2]}", lambda shell, c=case: there_and_back(shell, *c)) for case in CASES]
    tests.append(("another number of stages", other_stages))
    return small_models.run(options.bin, tests)


if __name__ == "__main__":
    raise SystemExit(main())
