#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random Megatron models under random layouts: what reshard makes of a TP1 legacy checkpoint is what slicing the tensors gives, and the way
back is the identity.

usage: megatron_layouts.py --bin PATH [--count N] [--seed N]     needs torch; prints TAP
Each round writes a model (GQA, gated or not, biases, tied embeddings, experts, padded vocabulary) with torch, converts it into a random
layout (TP, PP, VPP, EP, ETP), compares every tensor of every rank file with the rule applied here by hand, converts back, and compares
again.
"""
import argparse
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import torch


def random_model(chance):
    tp = chance.choice([1, 1, 2, 2, 3, 4])
    groups = tp * chance.choice([1, 1, 2])
    heads = groups * chance.choice([1, 2, 3])
    experts = chance.choice([0, 0, 2, 4, 6])
    stages = chance.choice([1, 1, 2, 3])
    virtual = chance.choice([1, 1, 2, 3]) if stages > 1 else 1
    ep = chance.choice([n for n in (1, 2, 3) if not experts or experts % n == 0]) if experts else 1
    etp = chance.choice([tp, 1]) if experts else tp
    model = dict(hidden=chance.randint(2, 5) * 2, kv=chance.randint(1, 4), heads=heads, groups=groups, ffn=tp * chance.randint(1, 5),
                 gated=chance.random() < 0.7, bias=chance.random() < 0.4, tied=chance.random() < 0.4,
                 layers=stages * virtual * chance.choice([1, 1, 2]), experts=experts, expert_ffn=tp * chance.randint(1, 3),
                 shared=tp * chance.randint(1, 3) if experts and chance.random() < 0.5 else 0, vocabulary=chance.randint(5, 40),
                 divisible=chance.randint(1, 7))
    return model, dict(tp=tp, pp=stages, vp=virtual, ep=ep, etp=etp)


def padded(model, tp):
    unit = model["divisible"] * tp
    return -(-model["vocabulary"] // unit) * unit


def random_tensor(chance, *shape):
    generator = torch.Generator().manual_seed(chance.getrandbits(40))
    return torch.randint(-2**15, 2**15, shape, dtype=torch.int16, generator=generator).view(torch.bfloat16)


def make_tensors(model, chance):
    """The whole model under the names of a TP1 file."""
    hidden, tensors = model["hidden"], {}

    def linear(name, out, into):
        tensors[name + ".weight"] = random_tensor(chance, out, into)
        if model["bias"] and "experts" not in name:
            tensors[name + ".bias"] = random_tensor(chance, out)

    tensors["embedding.word_embeddings.weight"] = random_tensor(chance, padded(model, 1), hidden)
    times = 2 if model["gated"] else 1
    for layer in range(model["layers"]):
        at = f"decoder.layers.{layer}."
        tensors[at + "input_layernorm.weight"] = random_tensor(chance, hidden)
        linear(at + "self_attention.linear_proj", hidden, model["heads"] * model["kv"])
        linear(at + "self_attention.linear_qkv", (model["heads"] + 2 * model["groups"]) * model["kv"], hidden)
        tensors[at + "pre_mlp_layernorm.weight"] = random_tensor(chance, hidden)
        if not model["experts"]:
            linear(at + "mlp.linear_fc1", times * model["ffn"], hidden)
            linear(at + "mlp.linear_fc2", hidden, model["ffn"])
            continue
        tensors[at + "mlp.router.weight"] = random_tensor(chance, model["experts"], hidden)
        for expert in range(model["experts"]):
            linear(at + f"mlp.experts.local_experts.{expert}.linear_fc1", times * model["expert_ffn"], hidden)
            linear(at + f"mlp.experts.local_experts.{expert}.linear_fc2", hidden, model["expert_ffn"])
        if model["shared"]:
            linear(at + "mlp.shared_experts.linear_fc1", times * model["shared"], hidden)
            linear(at + "mlp.shared_experts.linear_fc2", hidden, model["shared"])
    tensors["decoder.final_layernorm.weight"] = random_tensor(chance, hidden)
    if not model["tied"]:
        tensors["output_layer.weight"] = random_tensor(chance, padded(model, 1), hidden)
    return tensors


def arguments(model, layout):
    return argparse.Namespace(
        num_layers=model["layers"], hidden_size=model["hidden"], ffn_hidden_size=model["ffn"], num_attention_heads=model["heads"],
        kv_channels=model["kv"], num_query_groups=model["groups"], group_query_attention=model["groups"] != model["heads"],
        swiglu=model["gated"], add_bias_linear=model["bias"], normalization="RMSNorm",
        untie_embeddings_and_output_weights=not model["tied"], position_embedding_type="rope", add_position_embedding=True,
        max_position_embeddings=16, vocab_size=model["vocabulary"], padded_vocab_size=padded(model, layout["tp"]),
        make_vocab_size_divisible_by=model["divisible"], tensor_model_parallel_size=layout["tp"], pipeline_model_parallel_size=layout["pp"],
        expert_model_parallel_size=layout["ep"], expert_tensor_parallel_size=layout["etp"], virtual_pipeline_model_parallel_size=None,
        num_experts=model["experts"] or None, moe_layer_freq=1, moe_grouped_gemm=False, moe_ffn_hidden_size=model["expert_ffn"],
        moe_shared_expert_intermediate_size=model["shared"] or None, moe_router_enable_expert_bias=False,
        decoder_first_pipeline_num_layers=None, decoder_last_pipeline_num_layers=None, account_for_embedding_in_pipeline_split=False,
        account_for_loss_in_pipeline_split=False, bf16=True, fp16=False, use_distributed_optimizer=False, transformer_impl="local",
        qk_layernorm=False, world_size=1, data_parallel_size=1, iteration=10, ckpt_format="torch", seed=1)


def part_of(tensor, axis, rank, ranks):
    return tensor.chunk(ranks, axis)[rank] if ranks > 1 else tensor


def cut(model, key, tensor, rank, layout):
    """The part of a tensor that a rank holds; rank: (tp, etp)."""
    t, e = rank
    place, ranks = (e, layout["etp"]) if ".local_experts." in key else (t, layout["tp"])
    if key.startswith(("embedding.", "output_layer.")):
        rows = padded(model, layout["tp"])
        grown = torch.zeros(rows, tensor.shape[1], dtype=tensor.dtype)
        grown[:min(rows, len(tensor))] = tensor[:rows]
        return part_of(grown, 0, place, ranks)
    if "linear_fc1" in key and model["gated"]:
        return torch.cat([part_of(half, 0, place, ranks) for half in tensor.chunk(2)])
    if "linear_fc1" in key or "linear_qkv" in key:
        return part_of(tensor, 0, place, ranks)
    if key.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return part_of(tensor, 1, place, ranks)
    return tensor


def expected_files(model, tensors, layout):
    """{file: {member: {key: tensor}}}, the rule applied by hand."""
    tp, pp, vp, ep, etp = (layout[word] for word in ("tp", "pp", "vp", "ep", "etp"))
    files, each = {}, model["layers"] // (pp * vp)
    for stage in range(pp):
        for rank in range(math.lcm(tp, etp * ep)):
            t, e, x = rank % tp, rank % etp, rank // etp % ep
            name = f"mp_rank_{t:02d}" + (f"_{stage:03d}" if pp > 1 else "") + (f"_{x:03d}" if ep > 1 else "")
            for chunk in range(vp):
                members = files.setdefault(name, {}).setdefault(f"model{chunk}" if vp > 1 else "model", {})
                first = chunk * (model["layers"] // vp) + stage * each
                for key, tensor in tensors.items():
                    words = key.split(".")
                    is_first, is_last = stage == chunk == 0, stage == pp - 1 and chunk == vp - 1
                    if words[0] == "embedding":
                        if is_first:
                            members[key] = cut(model, key, tensor, (t, e), layout)
                        if is_last and model["tied"] and pp > 1:
                            members["output_layer.weight"] = cut(model, key, tensor, (t, e), layout)
                        continue
                    if words[1] == "layers":
                        layer = int(words[2]) - first
                        if not 0 <= layer < each:
                            continue
                        words[2] = str(layer)
                        if "local_experts" in words:
                            expert = int(words[6]) - x * (model["experts"] // ep)
                            if not 0 <= expert < model["experts"] // ep:
                                continue
                            words[6] = str(expert)
                    elif not is_last:
                        continue
                    members[".".join(words)] = cut(model, key, tensor, (t, e), layout)
    return files


def write(folder, model, tensors):
    inside = folder / "iter_0000010" / "mp_rank_00"
    inside.mkdir(parents=True)
    layout = dict(tp=1, pp=1, vp=1, ep=1, etp=1)
    torch.save({"args": arguments(model, layout), "checkpoint_version": 3.0, "iteration": 10, "model": tensors},
               inside / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("10")


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def differences(folder, expected):
    found = {path.parent.name for path in folder.glob("iter_0000010/*/model_optim_rng.pt")}
    if found != set(expected):
        return f"files {sorted(found)} instead of {sorted(expected)}"
    for name, members in expected.items():
        file = torch.load(folder / "iter_0000010" / name / "model_optim_rng.pt", weights_only=False)
        for member, tensors in members.items():
            have = {key: value for key, value in file[member].items() if isinstance(value, torch.Tensor)}
            if set(have) != set(tensors):
                return f"{name}: {member}: keys {sorted(set(have) ^ set(tensors))[:4]}"
            for key, tensor in tensors.items():
                if have[key].shape != tensor.shape or not torch.equal(bits(have[key]), bits(tensor)):
                    return f"{name}: {member}: {key}: {list(have[key].shape)}, expected {list(tensor.shape)}"
    return None


def words(layout):
    return ",".join(f"{word}={size}" for word, size in layout.items())


def one_round(binary, work, seed):
    chance = random.Random(seed)
    model, layout = random_model(chance)
    tensors = make_tensors(model, chance)
    write(work / "a", model, tensors)
    for source, target, wanted in (("a", "b", layout), ("b", "c", dict(tp=1, pp=1, vp=1, ep=1, etp=1))):
        command = [binary, "convert", str(work / source), str(work / target), "--to", "megatron", "--layout", words(wanted), "--quiet"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            return f"{model} {layout}: {result.stderr.strip()}"
        wrong = differences(work / target, expected_files(model, tensors, wanted))
        if wrong:
            return f"{model} {layout}: {source} to {target}: {wrong}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for seed in range(args.seed, args.seed + args.count):
        work = pathlib.Path(tempfile.mkdtemp(prefix="reshard-layouts-"))
        wrong = one_round(os.path.abspath(args.bin), work, seed)
        shutil.rmtree(work)
        if wrong:
            failed += 1
            print(f"# seed {seed}: {wrong}")
            if failed == 5:
                break
    print(f"# {args.count} rounds from seed {args.seed}")
    print(f"{'not ok' if failed else 'ok'} 1 - random layouts are cut by the rules, and the way back is the identity\n1..1")


sys.exit(main())
