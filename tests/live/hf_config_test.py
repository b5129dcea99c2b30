#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers come back from Megatron's checkpoints with a config.json of ours: Transformers opens what was written without
anything by hand, and computes the same logits, bit for bit. Prints TAP, a test a model; needs a Python with transformers and torch.

usage: hf_config_test.py --bin PATH [--case GLOB] [--share N] [--seed N]
"""
import argparse
import contextlib
import fnmatch
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402

BASE = dict(vocab_size=77, hidden_size=32, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=48,
            max_position_embeddings=64, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, rms_norm_eps=3e-6)
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=24)
DEEP = dict(EXPERTS, num_key_value_heads=8, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5,
            n_routed_experts=4, n_shared_experts=2, first_k_dense_replace=1, n_group=2, topk_group=1, routed_scaling_factor=1.5)
ROPE = lambda theta, **more: dict(rope_parameters=dict(rope_theta=theta, rope_type="default", **more))
YARN = dict(rope_theta=1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=16, beta_slow=2, mscale=1.0,
            mscale_all_dim=0.8)
OTHER_YARN = dict(rope_theta=1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=16)

# Name: class, configuration, words of --layout, type, names of the family that --rules auto cannot tell from others.
CASES = {
    "llama": ("Llama", ROPE(5e5), "tp=2,pp=2", "bfloat16", None),
    "llama, tied": ("Llama", dict(tie_word_embeddings=True), "tp=2,pp=2", "float32", None),
    "llama, biases": ("Llama", dict(attention_bias=True, mlp_bias=True, head_dim=6), "tp=4", "float16", None),
    "llama 3 scaling": ("Llama", dict(rope_parameters=dict(rope_theta=5e5, rope_type="llama3", factor=32.0, low_freq_factor=1.0,
                                                           high_freq_factor=4.0,
                                                          original_max_position_embeddings=8192)), "tp=2,pp=4", "float32", None),
    "llama, linear scaling": ("Llama", dict(rope_parameters=dict(rope_theta=1e4, rope_type="linear", factor=2.0)), "pp=2", "float32", None),
    "mistral": ("Mistral", dict(sliding_window=5, head_dim=6), "tp=2,pp=2", "bfloat16", None),
    "mistral, no window": ("Mistral", dict(sliding_window=None), "tp=2", "bfloat16", "mistral"),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True), "tp=2,pp=2", "bfloat16", None),
    "qwen3": ("Qwen3", dict(head_dim=6), "tp=2,pp=2", "bfloat16", None),
    "ernie4_5": ("Ernie4_5", dict(head_dim=6), "tp=2,pp=2", "bfloat16", None),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2), "tp=2,pp=2,ep=2", "bfloat16", None),
    "qwen2-moe": ("Qwen2Moe", dict(EXPERTS, num_experts=4, shared_expert_intermediate_size=20, mlp_only_layers=[1], norm_topk_prob=False),
                  "tp=2,pp=2,ep=2", "bfloat16", None),
    "qwen3-moe": ("Qwen3Moe", dict(EXPERTS, num_experts=4, head_dim=6, norm_topk_prob=True), "tp=2,pp=2,ep=2", "float32", None),
    "deepseek-v2": ("DeepseekV2", dict(DEEP, topk_method="group_limited_greedy"), "tp=2,pp=2", "float32", None),
    "deepseek-v2-lite": ("DeepseekV2", dict(DEEP, q_lora_rank=None, n_group=1, topk_method="greedy", rope_parameters=YARN), "tp=2,pp=2",
                         "float32", None),
    "deepseek-v3": ("DeepseekV3", dict(DEEP), "tp=2,pp=2,ep=2", "float32", None),
    "deepseek-v3, yarn": ("DeepseekV3", dict(DEEP, first_k_dense_replace=0, rope_parameters=YARN), "tp=2,pp=2,ep=2", "bfloat16", None),
    "glm": ("Glm", dict(head_dim=8, attention_bias=True), "tp=2", "float32", "glm"),
    "glm4": ("Glm4", dict(head_dim=8, attention_bias=True), "tp=2", "float32", None),
    "glm4-moe": ("Glm4Moe", dict({k: v for k, v in DEEP.items() if "lora" not in k and "head" not in k}, num_key_value_heads=4, head_dim=8,
                                 use_qk_norm=True, attention_bias=True), "tp=2,pp=2", "float32", None),
    "ernie4_5-moe": ("Ernie4_5_Moe", dict(head_dim=6, moe_num_experts=4, moe_k=2, moe_intermediate_size=24, moe_num_shared_experts=2,
                                          moe_layer_start_index=1, moe_layer_end_index=3), "tp=2,pp=2", "float32", None),
    "gpt-oss": ("GptOss", dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=5, swiglu_limit=0.5),
                "tp=2,pp=2,ep=2", "bfloat16", None),
    "gpt-oss, other scaling": ("GptOss", dict(head_dim=8, num_local_experts=3, num_experts_per_tok=2, sliding_window=3,
                                              rope_parameters=dict(OTHER_YARN, beta_fast=16.0, beta_slow=2.0)), "tp=2,pp=2", "float32",
                               None),
    "nemotron": ("Nemotron", dict(head_dim=8, norm_eps=2e-5), "tp=2,pp=2", "bfloat16", None),
    "nemotron, biases": ("Nemotron", dict(attention_bias=True, mlp_bias=True, norm_eps=1e-5, tie_word_embeddings=True,
                                          partial_rotary_factor=1.0), "tp=4", "float32", None),
    "gpt2": ("GPT2", dict(n_embd=32, n_layer=4, n_head=8, n_positions=64, n_inner=48, tie_word_embeddings=True), "tp=2,pp=2",
             "float32", None),
    "gpt2, exact gelu": ("GPT2", dict(n_embd=32, n_layer=4, n_head=8, n_positions=64, activation_function="gelu", layer_norm_epsilon=2e-5,
                                      tie_word_embeddings=False),
                         "tp=2", "bfloat16", None),
}


def make(name):
    """A model with random weights, norms and biases too."""
    import torch
    import transformers
    kind, more, _, dtype, _ = CASES[name]
    torch.manual_seed(7)
    known = ("vocab_size", "bos_token_id", "eos_token_id") if kind == "GPT2" else BASE
    base = {key: BASE[key] for key in known}
    if "norm_eps" in more:
        del base["rms_norm_eps"]
    config = getattr(transformers, kind + "Config")(**{**base, **more})
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else kind + "ForCausalLM")(config)
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point() and "inv_freq" not in key:
                tensor.copy_(torch.randn_like(tensor) * 0.2 + (1.0 if tensor.ndim == 1 and key.endswith("weight") else 0.0))
    return model.to(getattr(torch, dtype)).eval()


def logits(model):
    import torch
    tokens = (torch.arange(24) * 7 % 77).reshape(2, 12)
    with torch.no_grad():
        return model(tokens).logits


def run(binary, *words):
    done = subprocess.run([binary, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stderr


def opened(folder):
    import transformers
    with contextlib.redirect_stderr(io.StringIO()):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return model.eval()


def same(expected, found):
    import torch
    assert expected.dtype == found.dtype, f"{found.dtype} for {expected.dtype}"
    assert torch.equal(expected, found), f"largest difference {(expected.float() - found.float()).abs().max().item():.2e}"


def compare(binary, name):
    import torch
    torch.set_num_threads(1)
    kind, _, layout, dtype, family = CASES[name]
    with tempfile.TemporaryDirectory(prefix="reshard-config-") as work:
        folder = pathlib.Path(work)
        model = make(name)
        model.save_pretrained(folder / "hf", max_shard_size="40KB")
        assert len(list((folder / "hf").glob("*.safetensors"))) > 1
        expected = logits(opened(folder / "hf"))
        run(binary, "convert", folder / "hf", folder / "megatron", "--to", "megatron", "--layout", layout)
        numbers = ["--set", "pad_token_id=0"] if kind in ("Glm",
                                                          "Glm4") else []   # the default of these classes is no token of a tiny vocabulary
        run(binary, "convert", folder / "megatron", folder / "back", "--to", "hf", "--rules", family or "auto", "--max-shard-size",
            "40KB", *numbers)
        same(expected, logits(opened(folder / "back")))
        told = run(binary, "convert", folder / "hf", folder / "dist", "--to", "torch_dist")
        for file in folder.glob("dist/*/*config.json"):
            file.unlink()
        run(binary, "convert", folder / "dist", folder / "again", "--to", "hf", "--rules", family or "auto", *numbers)
        same(expected, logits(opened(folder / "again")))
        config = json.loads((folder / "again" / "config.json").read_text())
        assert config == json.loads((folder / "back" / "config.json").read_text())
        assert config["vocab_size"] == 77 and config["torch_dtype"] == dtype, config
        assert "no argument says" not in told, told


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", default="*")
    draw.add_options(parser, 0.3)
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    names = draw.Draw(args).of(name for name in CASES if fnmatch.fnmatch(name, args.case))
    print(f"1..{len(names)}")
    for number, name in enumerate(names, 1):
        told = io.StringIO()
        try:
            with contextlib.redirect_stdout(told):
                compare(binary, name)
            verdict = "ok"
        except Exception as error:   # whatever a library says is the finding
            verdict = "not ok"
            told.write(f"{type(error).__name__}: {error}"[:1500])
        print(f"{verdict} {number} - {name}: opened without anything by hand, the same logits\n# "
              + told.getvalue().strip().replace("\n", "\n# "), flush=True)
    return 0


sys.exit(main())
