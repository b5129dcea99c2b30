#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real models of Transformers and of Megatron Core compute the same logits: one takes the other's weights as the mapping texts of models/
relate them. Prints TAP, a test a model; needs a Python with transformers, megatron-core and torch.

usage: hf_megatron_logits.py --bin PATH --models DIR [--case GLOB] [--share N] [--seed N]
What a text does is taken from `map eval` over numbered elements: first from Hugging Face to Megatron, then to Megatron's local modules,
which need no GPU. The Megatron model must take exactly these tensors.
"""
import argparse
import contextlib
import fnmatch
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402
import forks  # noqa: E402

IMPORTED = ("torch._dynamo", "safetensors.torch", "transformers.modeling_utils", "megatron.core.models.gpt.gpt_layer_specs",
            "megatron.core.models.gpt.gpt_model", "megatron.core.transformer.multi_latent_attention")  # once, before a case is forked
VOCABULARY, TOKENS = 56, 12
BASE = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, intermediate_size=48,
            max_position_embeddings=16, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)
EXPERTS = dict(num_moe_experts=4, moe_router_topk=2, moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather",
               moe_ffn_hidden_size=24)
LATENT = dict(q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
DEEP = dict(num_key_value_heads=8, n_routed_experts=4, moe_intermediate_size=24, num_experts_per_tok=2, n_shared_experts=2,
            first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.0)
DEEP_TO = dict(EXPERTS, multi_latent_attention=True, qk_layernorm=True, kv_lora_rank=10, qk_head_dim=6, qk_pos_emb_head_dim=4, v_head_dim=5,
               moe_layer_freq=[0, 1, 1], moe_shared_expert_intermediate_size=48, num_query_groups=8)

# Name: class and configuration of Transformers, what Megatron's configuration differs in, what its model does, the text.
CASES = {
    "llama": ("Llama", dict(), dict(), dict(), "llama"),
    "llama, tied embeddings": ("Llama", dict(tie_word_embeddings=True), dict(), dict(share_embeddings_and_output_weights=True), "llama"),
    "llama, biases": ("Llama", dict(attention_bias=True, mlp_bias=True), dict(add_bias_linear=True, add_qkv_bias=True), dict(), "llama"),
    "mistral": ("Mistral", dict(head_dim=6), dict(kv_channels=6), dict(), "llama"),
    "qwen2": ("Qwen2", dict(), dict(add_qkv_bias=True), dict(), "llama"),
    "qwen3": ("Qwen3", dict(head_dim=6), dict(kv_channels=6, qk_layernorm=True), dict(), "llama"),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2), dict(EXPERTS, moe_ffn_hidden_size=48), dict(), "mixtral"),
    "qwen2-moe": ("Qwen2Moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=20,
                                   mlp_only_layers=[1], norm_topk_prob=False),
                  dict(EXPERTS, moe_layer_freq=[1, 0, 1], moe_shared_expert_intermediate_size=20, moe_shared_expert_gate=True,
                       moe_router_pre_softmax=True, add_qkv_bias=True), dict(), "qwen-moe"),
    "qwen3-moe": ("Qwen3Moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=6, norm_topk_prob=True),
                  dict(EXPERTS, kv_channels=6, qk_layernorm=True), dict(), "qwen-moe"),
    "deepseek-v2 without a latent query": ("DeepseekV2", dict(DEEP, **{**LATENT, "q_lora_rank": None}),
                                           dict(DEEP_TO, q_lora_rank=None, moe_router_pre_softmax=True), dict(), "deepseek"),
    "deepseek-v3": ("DeepseekV3", dict(DEEP, **LATENT),
                    dict(DEEP_TO, q_lora_rank=12, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True), dict(),
                    "deepseek"),
    "glm4-moe": ("Glm4Moe", dict(DEEP, num_key_value_heads=4, head_dim=6, use_qk_norm=True, attention_bias=True, partial_rotary_factor=1.0),
                 dict(EXPERTS, kv_channels=6, qk_layernorm=True, add_qkv_bias=True, moe_layer_freq=[0, 1, 1],
                      moe_shared_expert_intermediate_size=48, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True),
                 dict(), "glm4-moe"),
    "ernie4_5": ("Ernie4_5", dict(head_dim=6, use_bias=False), dict(kv_channels=6, rotary_interleaved=True), dict(), "llama"),
    "gpt-oss": ("GptOss", dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=5, swiglu_limit=0.5),
                dict(EXPERTS, kv_channels=8, moe_ffn_hidden_size=48, add_bias_linear=True, add_qkv_bias=True, activation_func="quick",
                     glu_linear_offset=1.0, activation_func_clamp_value=0.5, softmax_type="learnable", window_size=(4, 0),
                     window_attn_skip_freq=2), dict(position_embedding_type="yarn"), "gpt-oss"),
    "nemotron": ("Nemotron", dict(head_dim=8),
                 dict(kv_channels=8, gated_linear_unit=False, activation_func="relu2", normalization="LayerNorm",
                      layernorm_zero_centered_gamma=True),
                 dict(rotary_percent=0.5), "nemotron"),
    "nemotron, biases": ("Nemotron", dict(head_dim=8, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
                         dict(kv_channels=8, gated_linear_unit=False, activation_func="relu2", normalization="LayerNorm",
                              layernorm_zero_centered_gamma=True, add_bias_linear=True, add_qkv_bias=True),
                         dict(rotary_percent=0.5, share_embeddings_and_output_weights=True), "nemotron"),
    "gpt2": ("GPT2", dict(n_embd=32, n_layer=3, n_head=8, n_positions=16, n_inner=48),
             dict(add_bias_linear=True, add_qkv_bias=True, gated_linear_unit=False, activation_func="gelu", normalization="LayerNorm",
                  num_query_groups=8),
             dict(position_embedding_type="learned_absolute", share_embeddings_and_output_weights=True), "gpt2"),
}


def make_hf(name):
    """A model with random weights, norms and biases too, and what save_pretrained writes of it."""
    import torch
    import transformers
    kind, more = CASES[name][:2]
    torch.manual_seed(5)
    head = "GPT2LMHeadModel" if kind == "GPT2" else kind + "ForCausalLM"
    base = {key: BASE[key] for key in ("vocab_size", "tie_word_embeddings")} if kind == "GPT2" else BASE
    base = {**base, "tie_word_embeddings": True} if kind == "GPT2" else base
    config = getattr(transformers, kind + "Config")(**{**base, **more}, attn_implementation="eager")
    model = getattr(transformers, head)(config).float().eval()
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point() and "inv_freq" not in key:
                tensor.copy_(torch.randn_like(tensor) * 0.2 + (1.0 if tensor.ndim == 1 and key.endswith("weight") else 0.0))
    return model


def attention_without_gpu():
    """What stands between q, k, v and the projection has no weights; the local module of Megatron 0.16.1 cannot be built for latent
    attention."""
    import torch

    class Attention(torch.nn.Module):
        def __init__(self, config, layer_number, attn_mask_type, attention_type, softmax_scale=None, **_):
            super().__init__()
            self.softmax_scale = softmax_scale

        def forward(self, query, key, value, attention_mask, **_):
            scores = torch.einsum("qbnd,kbnd->bnqk", query, key) * (self.softmax_scale or query.shape[-1] ** -0.5)
            out = torch.einsum("bnqk,kbnd->qbnd", scores.masked_fill(attention_mask, float("-inf")).softmax(-1), value)
            return out.reshape(*out.shape[:2], -1)

    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.transformer import multi_latent_attention
    for absent in ("TELinear", "TEColumnParallelLinear", "Linear"):
        setattr(multi_latent_attention, absent, type(absent, (), {}))
    LocalSpecProvider.core_attention = lambda self: Attention


def norms_without_gpu():
    """Weights that count from 1 are for modules that need a GPU. What such a norm computes is a formula."""
    import torch

    class Norm(torch.nn.Module):
        def __init__(self, config, hidden_size, eps=1e-5, **_):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.zeros(hidden_size)), eps
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size)) if config.normalization == "LayerNorm" else None

        def forward(self, x):
            x = x - x.mean(-1, keepdim=True) if self.bias is not None else x
            x = x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * (1 + self.weight)
            return x + self.bias if self.bias is not None else x

    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer import transformer_block
    LocalSpecProvider.layer_norm = lambda self, *_, **__: Norm
    gpt_layer_specs.LNImpl = transformer_block.LayerNormImpl = Norm


def make_megatron(name, eps, theta):
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    more, arguments = CASES[name][2:4]
    functions = {"gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "relu2": lambda x: torch.relu(x).pow(2),
                 "silu": torch.nn.functional.silu, "quick": lambda x: x * torch.sigmoid(1.702 * x)}
    settings = dict(
        num_layers=3, hidden_size=32, ffn_hidden_size=48, num_attention_heads=8, num_query_groups=4, use_cpu_initialization=True,
        gated_linear_unit=True, activation_func="silu",
        normalization="RMSNorm", add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0, layernorm_epsilon=eps,
        pipeline_dtype=torch.float32, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        persist_layer_norm=False, gradient_accumulation_fusion=False, apply_rope_fusion=False)
    settings.update(more)
    settings["activation_func"] = functions[settings["activation_func"]]
    if settings.get("layernorm_zero_centered_gamma"):
        norms_without_gpu()
    if settings.get("multi_latent_attention"):
        attention_without_gpu()
        config = MLATransformerConfig(**settings, rope_type="rope", rotary_base=theta, rotary_percent=1.0)
    else:
        config = TransformerConfig(**settings)
    if "num_moe_experts" in more:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization, qk_l2_norm=False)
    else:
        spec = get_gpt_layer_local_spec(normalization=config.normalization, qk_layernorm=config.qk_layernorm)
    chosen = dict(position_embedding_type="rope", share_embeddings_and_output_weights=False, rotary_base=int(theta))
    chosen.update(arguments)
    if chosen["position_embedding_type"] == "yarn":   # attributes that Megatron-LM makes of arguments
        for key, value in dict(rotary_scaling_factor=32.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                               mscale_all_dim=0.0, correction_range_round_to_int=False).items():
            setattr(config, "yarn_" + key, value)
    return GPTModel(config, spec, vocab_size=VOCABULARY, max_sequence_length=16, parallel_output=False, **chosen).float().eval()


def mapped(binary, folder, config, text, numbers):
    source = folder / "source.json"
    source.write_text(json.dumps({"tensors": {key: {"dtype": "F32", "shape": shape, "data": data} for key,
                                              (shape, data) in numbers.items()}}))
    done = subprocess.run([binary, "map", "eval", text, "--source", source, "--config", config, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {key: (t["shape"], t["data"]) for key, t in json.loads(done.stdout)["tensors"].items()}


def convert(binary, models, folder, model, text):
    """The checkpoint that save_pretrained writes, in the names and layouts of Megatron's local modules."""
    import torch
    from safetensors.torch import load_file
    model.save_pretrained(folder / "hf")
    source = load_file(folder / "hf" / "model.safetensors")
    numbers, at = {}, 0
    for key, tensor in source.items():
        numbers[key] = list(tensor.shape), list(range(at, at + tensor.numel()))
        at += tensor.numel()
    assert at < 1 << 24, "F32 counts no further"
    elements = torch.cat([tensor.reshape(-1).float() for tensor in source.values()])
    for name in (f"{text}.hf-megatron.map", "megatron.te-local.map"):
        numbers = mapped(binary, folder, folder / "hf" / "config.json", models / name, numbers)
    return {key: elements[torch.tensor(data, dtype=torch.long)].reshape(shape) for key, (shape, data) in numbers.items()}


def load(model, state):
    """Exactly the parameters and buffers that the model has: no more, no fewer, of these shapes."""
    own = {key: value for key, value in model.state_dict().items() if not key.endswith("_extra_state") and value is not None}
    state = dict(state)
    own.pop("output_layer.weight", None) if "output_layer.weight" not in state and model.share_embeddings_and_output_weights else None
    assert set(own) == set(state), f"lacks {sorted(set(own) - set(state))[:4]}, has {sorted(set(state) - set(own))[:4]}"
    for key, tensor in own.items():
        assert tensor.shape == state[key].shape, f"{key}: {list(state[key].shape)} for {list(tensor.shape)}"
    model.load_state_dict(state, strict=False)


def compare(binary, models, name):
    import torch
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: "cpu"
    with tempfile.TemporaryDirectory(prefix="reshard-logits-") as work:
        folder = pathlib.Path(work)
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
        CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()   # dropout is off, and there is no GPU
        from megatron.core.transformer.moe import moe_utils
        ones = torch.ones
        torch.ones = lambda *size, device=None, **more: ones(*size, **more)   # masks of windows are made on a GPU
        moe_utils.te_general_gemm = None   # a name that 0.16.1 defines only where Transformer Engine is installed
        parallel_state.initialize_model_parallel(1)
        hf = make_hf(name)
        config = hf.config.to_dict()
        theta = (config.get("rope_parameters") or {}).get("rope_theta", 10000.0)
        megatron = make_megatron(name, config.get("rms_norm_eps") or config.get("norm_eps") or config.get("layer_norm_epsilon"), theta)
        load(megatron, convert(binary, models, folder, hf, CASES[name][4]))
        tokens = (torch.arange(TOKENS) * 7 % VOCABULARY).reshape(1, TOKENS)
        mask = torch.triu(torch.ones(1, 1, TOKENS, TOKENS), 1).bool()
        with torch.no_grad():
            expected = hf(tokens).logits
            found = megatron(tokens, torch.arange(TOKENS).reshape(1, TOKENS), mask).float()
        difference, size = (found - expected).abs().max().item(), expected.abs().max().item()
        print(f"largest difference {difference:.2e}, largest logit {size:.2e}")
        return int(not difference < 1e-4 * size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--case", default="*")
    draw.add_options(parser, 0.3)
    args = parser.parse_args()
    names = draw.Draw(args).of(name for name in CASES if fnmatch.fnmatch(name, args.case))
    for module in IMPORTED:
        importlib.import_module(module)
    print(f"1..{len(names)}")
    for number, name in enumerate(names, 1):
        # Megatron's groups and the classes that are put in its modules are a case's own.
        is_good, text = forks.in_forks(300, (compare, os.path.abspath(args.bin), args.models, name))
        said = text.strip()[-1500:].replace("\n", "\n# ")
        print(f"{'ok' if is_good else 'not ok'} {number} - {name}: the same logits\n# {said}", flush=True)
    return 0


sys.exit(main())
