#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names of Megatron-FSDP: what convert --to fsdp_dtensor calls the tensors of Megatron's models, and the way back. Prints TAP.

usage: fsdp_names_test.py --bin PATH [--root DIR]...

Expected keys are written out here, by the rules of the format, for checkpoints that Megatron wrote (DIR/megatron/CASE/ckpt; a case that no
root has is left out) and for a small model of every part that has a rule of its own.
"""
import argparse
import json
import pathlib
import struct
import sys

import small_models
from small_models import keys_must_be, write

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

# Megatron wrote these with --transformer-impl local, as their arguments say.
NORMS = ["input_layernorm.weight", "pre_mlp_layernorm.weight"]
ATTENTION = ["self_attention.linear_qkv.weight", "self_attention.linear_proj.weight"]
ENDS = ["embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight"]
GATED = ["mlp.linear_fc1.weight_w", "mlp.linear_fc1.weight_v", "mlp.linear_fc2.weight"]
LOCAL_EXPERTS = [f"mlp.experts.local_experts.{e}.{name}" for e in range(4)
                 for name in ("linear_fc1.weight_w", "linear_fc1.weight_v", "linear_fc2.weight")]
SHARED = ["mlp.shared_experts.linear_fc1.weight_w", "mlp.shared_experts.linear_fc1.weight_v", "mlp.shared_experts.linear_fc2.weight"]
TIED = ["input_layernorm.weight", "input_layernorm.bias", "self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias",
        "self_attention.linear_proj.weight", "self_attention.linear_proj.bias", "pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias",
        "mlp.linear_fc1.weight", "mlp.linear_fc1.bias", "mlp.linear_fc2.weight", "mlp.linear_fc2.bias"]


def layers(count, names):
    return [f"decoder.layers.{i}.{name}" for i in range(count) for name in names]


def weights(names):
    return {"model.module." + name for name in names}


def states(names, words):
    return {f"optimizer.state.module.module.module.{name}.{word}" for name in names for word in words}


DENSE = layers(2, NORMS + ATTENTION + GATED) + ENDS
CASES = {
    "megatron-dense-dist-tp2": weights(layers(4, NORMS + ATTENTION + GATED) + ENDS),
    "megatron-moe-dist-tp1": weights(layers(2, NORMS + ["mlp.router.weight", "mlp.router.expert_bias"] +
                                            ATTENTION + LOCAL_EXPERTS + SHARED) + ENDS),
    # No gate, and the output layer is the embedding.
    "megatron-tied-dist-tp1": weights(layers(4, TIED) + ["embedding.word_embeddings.weight", "embedding.position_embeddings.weight",
                                                        "decoder.final_layernorm.weight", "decoder.final_layernorm.bias"]),
    "megatron-optim-dense-full-tp2dp2": weights(DENSE) | states(DENSE, ["exp_avg", "exp_avg_sq", "param"]),
}


def there_and_back(shell, path, expected):
    shell("convert", path, "there", "--to", "fsdp_dtensor", "--quiet", "--verify")
    keys_must_be(set(shell.tensors("there")), expected)
    shell("convert", "there", "back", "--to", "torch_dist", "--quiet", "--verify")
    before, after = shell.tensors(path), shell.tensors("back")
    keys_must_be(set(after), set(before))
    assert after == before, [key for key in before if before[key] != after[key]][:4]


def paths(shell, path):
    """Megatron looks its tensors up by their paths: the model's names are whole, and so are those of parameters that have state."""
    shell("convert", path, "there", "--to", "fsdp_dtensor", "--quiet")
    metadata = next((shell.work / "there").rglob(".metadata")).read_bytes()
    found = torch_stub.InertUnpickler(metadata).load().state["planner_data"]
    for name in DENSE:
        assert found[f"model.module.{name}"] == ("model", f"module.{name}"), found[f"model.module.{name}"]
        for word in ("exp_avg", "exp_avg_sq", "param"):
            key, parameter = f"optimizer.state.module.module.module.{name}.{word}", f"module.module.module.{name}"
            assert found[key] == ("optimizer", "state", parameter, word), found[key]


def groups_by_parameter(shell, path):
    """What torch has of groups is kept for each parameter, both halves of a gate being one: matrices decay, and vectors do not."""
    shell("convert", path, "there", "--to", "fsdp_dtensor", "--quiet")
    prefix, end = "optimizer.param_to_group_meta.module.module.module.", ".weight_decay"
    values = {i["key"]: i.get("value") for i in json.loads(shell("ls", "--items", "--json", "there"))["items"]}
    found = {key[len(prefix):-len(end)]: value for key, value in values.items() if key.startswith(prefix) and key.endswith(end)}
    expected = {name.removesuffix("_w").removesuffix("_v"): 0.0 if "norm" in name else 0.01 for name in DENSE}
    assert found == expected, {name: (found.get(name), expected.get(name)) for name in {**found, **expected}
                               if found.get(name) != expected.get(name)}
    assert all(values[f"{prefix}{name}.lr"] == values["optimizer.param_groups.0.lr"] for name in expected)
    assert not any(key.startswith(prefix) and key.endswith(".params") for key in values)


def grouped_experts(shell):
    """Transformer Engine's numbered experts, with biases; and a layer that predicts a second token, in both spellings of its inner
    layer."""
    layer = {"self_attention.linear_qkv.layer_norm_weight": [4], "self_attention.linear_qkv.weight": [12, 4],
             "self_attention.linear_proj.weight": [4, 4], "pre_mlp_layernorm.weight": [4], "mlp.router.weight": [2, 4]}
    for e in range(2):
        layer |= {f"mlp.experts.linear_fc1.weight{e}": [6, 4], f"mlp.experts.linear_fc1.bias{e}": [6],
                  f"mlp.experts.linear_fc2.weight{e}": [4, 3]}
    model = {"embedding.word_embeddings.weight": [8, 4], "mtp.layers.0.eh_proj.weight": [4, 8]}
    for stack in ("decoder.layers.0.", "decoder.layers.1.", "mtp.layers.0.transformer_layer."):
        model |= {stack + name: shape for name, shape in layer.items()}
    write(shell.work / "model.safetensors", model)
    split = [half for name in layer for half in ([f"{name}_w", f"{name}_v"] if "linear_fc1" in name else [name])]
    expected = [name for name in model if name.startswith(("embedding", "mtp.layers.0.eh"))]
    expected += [stack + name for stack in ("decoder.layers.0.", "decoder.layers.1.", "mtp.layers.0.transformer_layer.") for name in split]
    shell("convert", "model.safetensors", "there", "--to", "fsdp_dtensor", "--quiet")
    keys_must_be(set(shell.tensors("there")), weights(expected))
    shell("convert", "model.safetensors", "dist", "--to", "torch_dist", "--quiet")
    shell("convert", "there", "back", "--to", "torch_dist", "--quiet")
    assert shell.tensors("back") == shell.tensors("dist")
    shell("convert", "there", "old.safetensors", "--to", "safetensors", "--quiet")
    data = (shell.work / "old.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    text = data[8:8 + size].replace(b".transformer_layer.", b".mtp_model_layer.")
    (shell.work / "old.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    shell("convert", "old.safetensors", "again", "--to", "torch_dist", "--quiet")
    assert shell.tensors("again") == shell.tensors("dist")


def other_names_stay(shell):
    """What is no model that a text knows keeps its keys, there and back."""
    write(shell.work / "a.safetensors", {"model.module.some.weight": [3, 2], "model.module.other.bias": [5]})
    shell("convert", "a.safetensors", "there", "--to", "fsdp_dtensor", "--quiet")
    shell("convert", "there", "back", "--to", "torch_dist", "--quiet")
    assert shell.tensors("back") == shell.tensors("a.safetensors")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", action="append", default=[], type=pathlib.Path)
    options = parser.parse_args()
    tests = [("grouped experts", grouped_experts), ("other names", other_names_stay)]
    for name, expected in CASES.items():
        path = next((root.resolve() / "megatron" / name / "ckpt" for root in options.root if (root / "megatron" / name).is_dir()), None)
        if path:
            tests.append((name, lambda shell, p=path, e=expected: there_and_back(shell, p, e)))
        if path and "optim" in name:
            tests.append(("groups by parameter", lambda shell, p=path: groups_by_parameter(shell, p)))
            tests.append(("paths", lambda shell, p=path: paths(shell, p)))
    return small_models.run(options.bin, tests)


if __name__ == "__main__":
    raise SystemExit(main())
