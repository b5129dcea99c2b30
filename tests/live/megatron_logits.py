#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real Megatron Core models read what reshard wrote, and compute the same logits. Prints TAP; needs a Python with megatron-core and torch.

usage: megatron_logits.py --bin PATH
A model with TP1 writes a legacy checkpoint. reshard converts it into legacy TP2, and into torch_dist; models of two processes (gloo, CPU)
load each, the second one through dist_checkpointing.load, and their logits must be those of the first model.
"""
import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import forks

CONFIG = dict(num_layers=4, hidden_size=32, ffn_hidden_size=48, num_attention_heads=8, num_query_groups=4, kv_channels=6)
VOCABULARY, TOKENS = 56, 12


def build(tp, rank, rendezvous):
    import torch
    torch.cuda.current_device = lambda: "cpu"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=tp)
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.transformer_config import TransformerConfig
    CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()   # dropout is off, and there is no GPU
    parallel_state.initialize_model_parallel(tp)
    torch.manual_seed(5)
    config = TransformerConfig(
        **CONFIG, use_cpu_initialization=True, gated_linear_unit=True, activation_func=torch.nn.functional.silu, normalization="RMSNorm",
        add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0, pipeline_dtype=torch.float32, tensor_model_parallel_size=tp,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
        gradient_accumulation_fusion=False, apply_rope_fusion=False)
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=VOCABULARY, max_sequence_length=16,
                     position_embedding_type="rope", share_embeddings_and_output_weights=False, parallel_output=False)
    return model.eval()


def logits(model):
    import torch
    tokens = (torch.arange(TOKENS) * 7 % VOCABULARY).reshape(1, TOKENS)
    mask = torch.triu(torch.ones(1, 1, TOKENS, TOKENS), 1).bool()
    with torch.no_grad():
        return model(tokens, torch.arange(TOKENS).reshape(1, TOKENS), mask).float()


def save(folder):
    """The TP1 checkpoint, as Megatron-LM's save_checkpoint lays it out, and the logits."""
    import torch
    model = build(1, 0, folder + "/rendezvous-save")
    args = argparse.Namespace(
        **CONFIG, group_query_attention=True, swiglu=True, add_bias_linear=False, normalization="RMSNorm",
        untie_embeddings_and_output_weights=True, position_embedding_type="rope", add_position_embedding=True, max_position_embeddings=16,
        vocab_size=VOCABULARY, padded_vocab_size=VOCABULARY, make_vocab_size_divisible_by=14, tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1, virtual_pipeline_model_parallel_size=None, expert_model_parallel_size=1,
        expert_tensor_parallel_size=1, num_experts=None, moe_layer_freq=1, transformer_impl="local", world_size=1, data_parallel_size=1,
        iteration=10, bf16=False, fp16=False, use_distributed_optimizer=False, no_save_optim=True, no_save_rng=True)
    inside = pathlib.Path(folder, "tp1", "iter_0000010", "mp_rank_00")
    inside.mkdir(parents=True)
    torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 10, "model": model.state_dict()}, inside / "model_optim_rng.pt")
    pathlib.Path(folder, "tp1", "latest_checkpointed_iteration.txt").write_text("10")
    torch.save(logits(model), folder + "/logits.pt")


def compare(folder, kind, rank):
    import torch
    model = build(2, rank, f"{folder}/rendezvous-{kind}")
    if kind == "legacy":
        file = next(pathlib.Path(folder, kind).rglob(f"mp_rank_{rank:02d}*/model_optim_rng.pt"))
        model.load_state_dict(torch.load(file, weights_only=False)["model"], strict=True)
    else:
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing.validation import StrictHandling
        inside = next(pathlib.Path(folder, kind).rglob("metadata.json")).parent
        request = model.sharded_state_dict()
        wanted = set(request)   # the common state comes along
        loaded = dist_checkpointing.load(request, str(inside), strict=StrictHandling.RAISE_ALL)
        model.load_state_dict({key: value for key, value in loaded.items() if key in wanted}, strict=True)
    difference = (logits(model) - torch.load(folder + "/logits.pt")).abs().max().item()
    print(f"{kind}: rank {rank}: largest difference {difference:.2e}")
    return int(difference > 1e-5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    args = parser.parse_args()
    try:
        import megatron.core.dist_checkpointing  # noqa: F401
        import megatron.core.models.gpt.gpt_model  # noqa: F401
        import torch._dynamo  # noqa: F401
    except ImportError:
        print("1..0 # SKIP megatron-core is not installed")
        return 0
    with tempfile.TemporaryDirectory(prefix="reshard-logits-") as folder:
        done, text = forks.in_forks(300, (save, folder))
        print(f"{'ok' if done else 'not ok'} 1 - a real model writes its checkpoint"
              + ("" if done else "\n# " + text[-2000:].replace("\n", "\n# ")))
        targets = {"legacy": ["--to", "megatron", "--layout", "tp=2"], "torch_dist": ["--to", "torch_dist"]}
        for number, (kind, options) in enumerate(targets.items(), 2):
            convert = subprocess.run([os.path.abspath(args.bin), "convert", folder + "/tp1", f"{folder}/{kind}", "--quiet", *options],
                                     capture_output=True, text=True)
            ranks = [(compare, folder, kind, rank) for rank in range(2)]
            good, text = (False, convert.stderr) if convert.returncode else forks.in_forks(300, *ranks)
            print("# " + text[-3000:].strip().replace("\n", "\n# "))
            print(f"{'ok' if good else 'not ok'} {number} - models of two tensor ranks load {kind} and compute the same logits")
    print("1..3")
    return 0


if __name__ == "__main__":
    sys.exit(main())
