#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names of Megatron's models in distributed checkpoints, by architecture, and the way back. Prints TAP.

usage: megatron_names_test.py --bin PATH

A small model has the keys that a rank of Megatron registers; those of its distributed checkpoint, which are written out here, are what
Megatron 0.12 to 0.19 wrote for models of these architectures. Where a tensor comes from is checked by its bytes.
"""
import argparse
import random

import moe_layouts_test
import small_models
from small_models import keys_must_be, write

H = 4
ENDS = {"embedding.word_embeddings.weight": [8, H], "decoder.final_layernorm.weight": [H], "output_layer.weight": [8, H]}
QKV = {"self_attention.linear_qkv.weight": [12, H], "self_attention.linear_proj.weight": [H, 4]}
MLP = {"mlp.linear_fc1.weight": [12, H], "mlp.linear_fc2.weight": [H, 6]}
NORMS = {"input_layernorm.weight": [H], "pre_mlp_layernorm.weight": [H]}
MLA = {"self_attention.linear_q_down_proj.weight": [5, H], "self_attention.q_layernorm.weight": [5],
       "self_attention.linear_q_up_proj.weight": [8, 5], "self_attention.linear_kv_down_proj.weight": [7, H],
       "self_attention.kv_layernorm.weight": [6], "self_attention.linear_kv_up_proj.weight": [8, 6],
       "self_attention.linear_proj.weight": [H, 4]}
EXPERTS = {f"mlp.experts.local_experts.{e}.{name}": shape for e in range(2) for name,
           shape in (("linear_fc1.weight", [6, H]), ("linear_fc2.weight", [H, 3]))}
MOE = {"mlp.router.weight": [2, H], **EXPERTS}
MOE_DIST = {"mlp.router.weight", "mlp.experts.experts.linear_fc1.weight", "mlp.experts.experts.linear_fc2.weight"}
# Of 6 inner channels in 2 heads, 2 groups of 2 states: z 6, x 6, B 4, C 4, dt 2.
MAMBA = {"mixer.A_log": [2], "mixer.D": [2], "mixer.dt_bias": [2], "mixer.in_proj.weight": [22, H], "mixer.conv1d.weight": [14, 1, 3],
         "mixer.conv1d.bias": [14], "mixer.norm.weight": [6], "mixer.out_proj.weight": [H, 6]}
MAMBA_PARTS = {"mixer.in_proj.weight": {"z": 6, "x": 6, "B": 4, "C": 4, "dt": 2}, "mixer.conv1d.weight": {"x": 6, "B": 4, "C": 4},
               "mixer.conv1d.bias": {"x": 6, "B": 4, "C": 4}}
# Keys of 3, values of 4 in 2 heads.
DELTA = {"self_attention.A_log": [2], "self_attention.dt_bias": [2], "self_attention.in_proj.layer_norm_weight": [H],
         "self_attention.in_proj.weight": [18, H], "self_attention.conv1d.weight": [10, 1, 3], "self_attention.out_norm.weight": [2],
         "self_attention.out_proj.weight": [H, 4]}
DELTA_PARTS = {"self_attention.in_proj.weight": {"query": 3, "key": 3, "value": 4, "z": 4, "beta": 2, "alpha": 2},
               "self_attention.conv1d.weight": {"query": 3, "key": 3, "value": 4}}
TE_MLP = {"mlp.linear_fc1.layer_norm_weight": [H], **MLP}


def stack(prefix, *layers):
    return {f"{prefix}{i}.{name}": shape for i, layer in enumerate(layers) for name, shape in layer.items()}


def keys(prefix, *layers):
    return {f"{prefix}{i}.{name}" for i, layer in enumerate(layers) for name in layer}


def parts(layer, splits):
    """The names of a layer whose matrices are in parts."""
    return {name for name in layer if name not in splits} | {f"{name}.{part}" for name, sizes in splits.items() for part in sizes}


RENAMED = {"self_attention.linear_qkv.layer_norm_weight", "mlp.linear_fc1.layer_norm_weight", *QKV, *MLP}
MTP = {"mtp.layers.0.enorm.weight": [H], "mtp.layers.0.hnorm.weight": [H], "mtp.layers.0.eh_proj.weight": [H, 8],
       "mtp.layers.0.final_layernorm.weight": [H]}
NEW_MTP = {f"mtp.layers.0.mtp_model_layer.{name}": shape for name, shape in {**NORMS, **QKV, **MLP}.items()}
OLD_MTP = {f"mtp.layers.0.transformer_layer.{name}": shape for name, shape in {**NORMS, **QKV, **MLP}.items()}
DENSE = {**NORMS, **QKV, **MLP}
LATENT = {**NORMS, **MLA, **MLP}
MIXED = {**NORMS, **MLA, **MOE}
MAMBA_LAYER = {"norm.weight": [H], **MAMBA}
BERT_ENDS = {"encoder.final_layernorm.weight": [H], "pooler.dense.weight": [H, H]}
BERT = {name: shape for name, shape in stack("encoder.layers.", DENSE, DENSE).items()} | BERT_ENDS
HYBRID_ENDS = {"embedding.word_embeddings.weight": [8, H], "decoder.final_norm.weight": [H], "output_layer.weight": [8, H]}

# name: (the model as a rank registers it, keys of its distributed checkpoint)
CASES = {
    "layers that are alike lie along an axis, also before multi-token prediction":
        (ENDS | stack("decoder.layers.", DENSE, DENSE) | MTP | OLD_MTP,
         {*ENDS, *MTP} | {"decoder.layers." + n for n in RENAMED} | {"mtp.layers.0.transformer_layer." + n for n in RENAMED}),
    "the layer of multi-token prediction as newer versions call it":
        (ENDS | stack("decoder.layers.", DENSE, DENSE) | MTP | NEW_MTP,
         {*ENDS, *MTP} | {"decoder.layers." + n for n in RENAMED} | {"mtp.layers.0.transformer_layer." + n for n in RENAMED}),
    "norms of local latent attention keep their names":
        (ENDS | stack("decoder.layers.", LATENT, LATENT), {*ENDS} | {"decoder.layers." + n for n in LATENT}),
    "layers with and without experts keep their numbers":
        (ENDS | stack("decoder.layers.", LATENT, MIXED),
         {*ENDS} | keys("decoder.layers.", LATENT, {*NORMS, *MLA, *MOE_DIST})),
    "layers of other shapes keep their numbers":
        (ENDS | stack("decoder.layers.", DENSE, {**NORMS, **QKV, "mlp.linear_fc1.weight": [8, H], "mlp.linear_fc2.weight": [H, 4]}),
         {*ENDS} | keys("decoder.layers.", RENAMED, RENAMED)),
    "Mamba, attention and networks in turn":
        (HYBRID_ENDS | stack("decoder.layers.", MAMBA_LAYER, {"input_layernorm.weight": [H], **QKV},
                             {"pre_mlp_layernorm.weight": [H], **MLP}, MAMBA_LAYER),
         {*HYBRID_ENDS} | keys("decoder.layers.", parts(MAMBA_LAYER, MAMBA_PARTS), {"input_layernorm.weight", *QKV},
                               {"pre_mlp_layernorm.weight", *MLP}, parts(MAMBA_LAYER, MAMBA_PARTS))),
    "gated delta nets between layers of attention":
        (ENDS | stack("decoder.layers.", {**DELTA, **TE_MLP}, {"self_attention.linear_qkv.layer_norm_weight": [H], **QKV, **TE_MLP}),
         {*ENDS} | keys("decoder.layers.", parts({**DELTA, **TE_MLP}, DELTA_PARTS), RENAMED)),
    "an encoder alone": (BERT | {"embedding.word_embeddings.weight": [8, H]},
                         {"embedding.word_embeddings.weight", "encoder.final_layernorm.weight", "pooler.dense.weight"}
                         | {"encoder.layers." + n for n in RENAMED}),
}


def there_and_back(shell, model, expected):
    write(shell.work / "model.safetensors", model)
    shell("convert", "model.safetensors", "legacy", "--to", "megatron", "--rules", "none", "--quiet")
    shell("convert", "legacy", "dist", "--to", "torch_dist", "--quiet", "--verify")
    found = set(shell.tensors("dist"))
    keys_must_be(found, expected)
    shell("convert", "model.safetensors", "direct", "--to", "torch_dist", "--quiet")
    assert shell.tensors("direct") == shell.tensors("dist"), "from a file of any names the keys are others"
    shell("convert", "dist", "back", "--like", "legacy", "--quiet", "--verify")
    before, after = shell.tensors("legacy"), shell.tensors("back")
    assert after == before, [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)][:4]


def parts_follow_each_other(shell):
    """What the parts of a matrix hold is the matrix, part by part."""
    model, _ = CASES["Mamba, attention and networks in turn"]
    write(shell.work / "model.safetensors", model)
    shell("convert", "model.safetensors", "dist", "--to", "torch_dist", "--quiet")
    for name, sizes in MAMBA_PARTS.items():
        key = "decoder.layers.0." + name
        whole = b"".join(shell.bytes_of("dist", f"{key}.{part}") for part in sizes)
        assert whole == shell.bytes_of("model.safetensors", key), key
        assert [shell.tensors("dist")[f"{key}.{part}"]["shape"][0] for part in sizes] == list(sizes.values()), key


# As ranks register them, in that order.
EMBEDDING, END, NORM_END = (("embedding.word_embeddings.weight", [8, H]), ("decoder.final_layernorm.weight", [H]),
                            ("decoder.final_norm.weight", [H]))
OUTPUT = ("output_layer.weight", [8, H])
LOCAL_LAYER = ("input_layernorm.weight", "self_attention.linear_proj.weight", "self_attention.linear_qkv.weight",
               "pre_mlp_layernorm.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight")
LATENT_LAYER = ("input_layernorm.weight", "self_attention.linear_proj.weight", "self_attention.linear_q_down_proj.weight",
                "self_attention.linear_q_up_proj.weight", "self_attention.linear_kv_down_proj.weight",
                "self_attention.linear_kv_up_proj.weight", "self_attention.q_layernorm.weight", "self_attention.kv_layernorm.weight",
                "pre_mlp_layernorm.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight")
OLD_MIXER = ("mixer.dt_bias", "mixer.A_log", "mixer.D", "mixer.in_proj.weight", "mixer.conv1d.weight", "mixer.conv1d.bias",
             "mixer.norm.weight", "mixer.out_proj.weight", "norm.weight")
NEW_MIXER = ("mixer.conv1d_weight", "mixer.conv1d_bias", *(name for name in OLD_MIXER if "conv1d" not in name))
ENGINE_MLP = ("mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight")
DELTA_LAYER = ("self_attention.dt_bias", "self_attention.A_log", "self_attention.in_proj.layer_norm_weight",
               "self_attention.in_proj.weight", "self_attention.conv1d.weight", "self_attention.out_norm.weight",
               "self_attention.out_proj.weight", *ENGINE_MLP)
ENGINE_LAYER = ("self_attention.linear_proj.weight", "self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_qkv.weight",
                *ENGINE_MLP)
SHAPES = {**NORMS, **QKV, **MLP, **MLA, **MAMBA_LAYER, **DELTA, **TE_MLP, "self_attention.linear_qkv.layer_norm_weight": [H],
          "mixer.conv1d_weight": MAMBA["mixer.conv1d.weight"], "mixer.conv1d_bias": MAMBA["mixer.conv1d.bias"]}


def layers(*registered, at="decoder.layers.{}."):
    return [(at.format(number) + name, SHAPES[name]) for number, layer in enumerate(registered) for name in layer]


def predictor(name, layer):
    own = {name.removeprefix("mtp.layers.0."): shape for name, shape in MTP.items()}
    return [*(("mtp.layers.0." + name, own[name]) for name in ("enorm.weight", "hnorm.weight", "eh_proj.weight")),
            *layers(layer, at="mtp.layers.{}." + name + "."), ("mtp.layers.0.final_layernorm.weight", own["final_layernorm.weight"])]


PREDICTING = [EMBEDDING, *layers(LOCAL_LAYER, LOCAL_LAYER), END]
PREDICTED = {EMBEDDING[0], END[0], OUTPUT[0], *MTP} | {"decoder.layers." + n for n in RENAMED} | {
    "mtp.layers.0.transformer_layer." + n for n in RENAMED}
HYBRID = {EMBEDDING[0], NORM_END[0], OUTPUT[0]} | keys(
    "decoder.layers.", parts(MAMBA_LAYER, MAMBA_PARTS), {"input_layernorm.weight", *QKV}, {"pre_mlp_layernorm.weight", *MLP})
LOCAL = {"transformer_impl": "local"}

# name: (parameters in order, what the arguments say, keys of the distributed checkpoint)
WITH_STATE = {
    "multi-token prediction": ([*PREDICTING, *predictor("transformer_layer", LOCAL_LAYER), OUTPUT], {**LOCAL, "mtp_num_layers": 1},
                               PREDICTED),
    "multi-token prediction since 0.17": ([*PREDICTING, *predictor("mtp_model_layer", LOCAL_LAYER), OUTPUT],
                                          {**LOCAL, "mtp_num_layers": 1, "mtp_use_repeated_layer": False}, PREDICTED),
    "local latent attention": ([EMBEDDING, *layers(LATENT_LAYER, LATENT_LAYER), END, OUTPUT], {**LOCAL, "multi_latent_attention": True},
                               {EMBEDDING[0], END[0], OUTPUT[0]} | {"decoder.layers." + n for n in LATENT}),
    "Mamba and attention": ([EMBEDDING, *layers(OLD_MIXER, LOCAL_LAYER[:3], LOCAL_LAYER[3:]), NORM_END, OUTPUT],
                            {**LOCAL, "hybrid_override_pattern": "M*-"}, HYBRID),
    "Mamba and attention since 0.19": ([EMBEDDING, *layers(NEW_MIXER, LOCAL_LAYER[:3], LOCAL_LAYER[3:]), NORM_END, OUTPUT],
                                       {**LOCAL, "hybrid_layer_pattern": "M*-", "expert_tensor_parallel_num_weight_shards": None}, HYBRID),
    "gated delta nets": ([EMBEDDING, *layers(DELTA_LAYER, ENGINE_LAYER), END, OUTPUT], {"linear_attention_freq": 2},
                         {EMBEDDING[0], END[0], OUTPUT[0]} | keys("decoder.layers.", parts({**DELTA, **TE_MLP}, DELTA_PARTS), RENAMED)),
}


def with_state(shell, parameters, said, expected):
    """Files of ranks with an optimizer become a distributed checkpoint of the same names as weights alone, and come back with all state."""
    digests = moe_layouts_test.Shell(shell.binary).digests
    chance = random.Random(1)
    count = 1 + max(int(name.split(".")[2]) for name, _ in parameters if name.startswith("decoder.layers."))
    model = {"layers": count, "hidden": H, "heads": 2, "groups": 2, "kv": 2, "gated": True, "experts": None, "frequency": 1,
             "spelling": "numbered", "vocabulary": 8}
    for optimizer in ("plain", "distributed"):
        model["optimizer"] = optimizer
        args = moe_layouts_test.arguments(model)
        vars(args).update(said)
        first, dist, back, there, again = (shell.work / f"{optimizer} {name}" for name in ("first", "dist", "back", "there", "again"))
        moe_layouts_test.write_checkpoint(first, model, chance, args,
                                          made=[(name, moe_layouts_test.weight(chance, *shape)) for name, shape in parameters])
        shell("convert", first, dist, "--to", "torch_dist", "--quiet", "--verify")
        found = set(shell.tensors(dist))
        keys_must_be({key for key in found if not key.startswith("optimizer.")}, expected)
        keys_must_be({key for key in found if key.startswith("optimizer.state.exp_avg.")},
                     {"optimizer.state.exp_avg." + key for key in expected})
        shell("convert", dist, back, "--like", first, "--quiet")
        shell("convert", first, there, "--to", "megatron", "--layout", "pp=2" if count == 2 else "pp=3", "--quiet")
        shell("convert", there, again, "--like", first, "--quiet")
        wanted = digests(first)
        for path in (back, again):
            found = digests(path)
            wrong = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
            assert not wrong, f"{path.name}: {wrong[:4]}, {len(wrong)} in all"


FUSED_LAYER = {"self_attention.linear_proj.weight": [H, 4], "self_attention.linear_qkv_down_proj.layer_norm_weight": [H],
               "self_attention.linear_qkv_down_proj.weight": [14, H], "self_attention.linear_q_up_proj.layer_norm_weight": [6],
               "self_attention.linear_q_up_proj.weight": [8, 6], "self_attention.linear_kv_up_proj.layer_norm_weight": [6],
               "self_attention.linear_kv_up_proj.weight": [8, 6], **TE_MLP}


def fused_latent_attention(shell):
    """Where the first matrices of latent attention are one, distributed checkpoints have two, and ranks parts of both."""
    chance = random.Random(1)
    parameters = [EMBEDDING, *((f"decoder.layers.{i}.{name}", shape) for i in range(2) for name, shape in FUSED_LAYER.items()), END, OUTPUT]
    model = {"layers": 2, "hidden": H, "heads": 2, "groups": 2, "kv": 2, "gated": True, "experts": None, "frequency": 1,
             "spelling": "numbered", "vocabulary": 8}
    expected = {EMBEDDING[0], END[0], OUTPUT[0]} | {"decoder.layers." + name for name in FUSED_LAYER if "qkv_down" not in name} | {
        "decoder.layers." + name for name in ("input_layernorm.weight", "self_attention.linear_q_down_proj.weight",
                                              "self_attention.linear_kv_down_proj.weight")}
    for optimizer in (None, "plain", "distributed"):
        model["optimizer"] = optimizer
        args = moe_layouts_test.arguments(model)
        vars(args).update(multi_latent_attention=True, mla_down_proj_fusion=True, q_lora_rank=6, kv_lora_rank=6, qk_pos_emb_head_dim=2)
        moe_layouts_test.write_checkpoint(shell.work / "source", model, chance, args,
                                          made=[(name, moe_layouts_test.weight(chance, *shape)) for name, shape in parameters])
        shell("convert", "source", "dist", "--to", "torch_dist", "--quiet", "--overwrite")
        before = shell.tensors("dist")
        keys_must_be({key for key in before if not key.startswith("optimizer.")}, expected)
        if optimizer:
            keys_must_be({key for key in before if key.startswith("optimizer.state.exp_avg.")},
                         {"optimizer.state.exp_avg." + key for key in expected})
        whole, query, rest = ([shell.bytes_of(path, key.format(i)) for i in range(2)] for path, key in (
            ("source", "decoder.layers.{}.self_attention.linear_qkv_down_proj.weight"),
            ("dist", "decoder.layers.self_attention.linear_q_down_proj.weight"),
            ("dist", "decoder.layers.self_attention.linear_kv_down_proj.weight"))) if optimizer is None else ([b""] * 2,) * 3
        assert query[0] + rest[0] == b"".join(w[:12 * H] for w in whole) + b"".join(w[12 * H:] for w in whole)
        # Ranks have parts of both one after another, and come together again.
        shell("convert", "source", "ranks", "--to", "megatron", "--layout", "tp=2", "--quiet", "--overwrite")
        shell("convert", "ranks", "again", "--to", "torch_dist", "--layout", "tp=1", "--quiet", "--overwrite")
        assert shell.tensors("again") == before
        if optimizer is None:
            part = shell.bytes_of(next(shell.work.glob("ranks/iter_*/mp_rank_01/model_optim_rng.pt")),
                                  "model.decoder.layers.0.self_attention.linear_qkv_down_proj.weight")
            assert part == whole[0][6 * H:12 * H] + whole[0][20 * H:28 * H]


def numbers_that_stay_are_told(shell):
    """A tensor of layers that no text knows keeps the number of its layer, which is told where the others lie along an axis."""
    model = dict([EMBEDDING, *layers(ENGINE_LAYER, ENGINE_LAYER), END, OUTPUT])
    for more, is_told in (({}, False), ({f"decoder.layers.{i}.self_attention.strange.weight": [H] for i in range(2)}, True)):
        write(shell.work / "model.safetensors", {**model, **more})
        done = shell.any("convert", "model.safetensors", "dist", "--to", "torch_dist", "--overwrite")
        told = "changed: decoder.layers.0.self_attention.strange.weight: keeps the number of its layer" in done.stderr
        assert done.returncode == 0 and told == is_told, done.stderr


def files_that_describe_layers(shell):
    """Layers that a file of their own describes keep their numbers, though they are alike."""
    chance = random.Random(1)
    parameters = [EMBEDDING, *layers(ENGINE_LAYER, ENGINE_LAYER), END, OUTPUT]
    model = {"layers": 2, "hidden": H, "heads": 2, "groups": 2, "kv": 2, "gated": True, "experts": None, "frequency": 1,
             "spelling": "numbered", "vocabulary": 8, "optimizer": None}
    for path, expected in (("/layers.json", {EMBEDDING[0], END[0], OUTPUT[0]} | keys("decoder.layers.", ENGINE_LAYER, ENGINE_LAYER)),
                           (None, {EMBEDDING[0], END[0], OUTPUT[0]} | {"decoder.layers." + name for name in ENGINE_LAYER})):
        args = moe_layouts_test.arguments(model)
        args.heterogeneous_layers_config_path = path
        moe_layouts_test.write_checkpoint(shell.work / "source", model, chance, args,
                                          made=[(name, moe_layouts_test.weight(chance, *shape)) for name, shape in parameters])
        shell("convert", "source", "out", "--to", "torch_dist", "--quiet", "--overwrite")
        keys_must_be(set(shell.tensors("out")), expected)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    options = parser.parse_args()
    tests = [(name, lambda shell, c=case: there_and_back(shell, *c)) for name, case in CASES.items()]
    tests.append(("parts of a matrix follow each other", parts_follow_each_other))
    tests.append((fused_latent_attention.__doc__, fused_latent_attention))
    tests.append((numbers_that_stay_are_told.__doc__, numbers_that_stay_are_told))
    tests.append((files_that_describe_layers.__doc__, files_that_describe_layers))
    tests += [(name + ", with an optimizer", lambda shell, c=case: with_state(shell, *c)) for name, case in WITH_STATE.items()]
    return small_models.run(options.bin, tests)


if __name__ == "__main__":
    raise SystemExit(main())
