# SPDX-License-Identifier: Apache-2.0
"""Writes benchmark checkpoints with real torch.

usage: make_checkpoints.py dcp OUT GIGABYTES RANKS     Llama-shaped bf16 tensors, each cut on its first axis over RANKS processes
       make_checkpoints.py small OUT COUNT BYTES       COUNT tensors of BYTES bytes, one process
       make_checkpoints.py metadata OUT TENSORS RANKS ROW_BYTES   .metadata as torch pickles it, over sparse data files
       make_checkpoints.py legacy OUT GIGABYTES TP PP  mp_rank folders of Megatron-LM, Llama-shaped bf16
       make_checkpoints.py torch_dist OUT GIGABYTES TP the same model as Megatron Core's distributed checkpoint, layers stacked
"""
import argparse
import json
import os
import pickle
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp


def llama_shapes(gigabytes):
    hidden, inner, vocabulary = 2048, 5632, 32000
    layer_bytes = 2 * (4 * hidden * hidden + 3 * hidden * inner + 2 * hidden)
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(max(1, int((gigabytes * 1e9 - 4 * vocabulary * hidden) / layer_bytes))):
        prefix = f"model.layers.{layer}."
        for name in "qkvo":
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (hidden, hidden)
        shapes[prefix + "mlp.gate_proj.weight"] = shapes[prefix + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (hidden, inner)
        shapes[prefix + "input_layernorm.weight"] = shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
    return shapes


def save_rank(rank, ranks, out, gigabytes, rendezvous):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    state = {}
    for index, (name, shape) in enumerate(llama_shapes(gigabytes).items()):
        rows = -(-shape[0] // ranks)
        mine = max(0, min(shape[0], rows * (rank + 1)) - rows * rank)
        generator = torch.Generator().manual_seed(index * 1000 + rank)
        local = torch.randn((mine, *shape[1:]), generator=generator).mul_(0.02).bfloat16()
        stride = (shape[1], 1) if len(shape) == 2 else (1,)
        state[name] = DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size(shape), stride=stride)
    dcp.save(state, checkpoint_id=out)
    dist.destroy_process_group()


def save_small(out, count, size):
    generator = torch.Generator().manual_seed(7)
    block = torch.randint(0, 2**14, (size // 2,), dtype=torch.int16, generator=generator)
    state = {f"layers.{i}.weight": (block ^ (i & 0x3FFF)).view(torch.bfloat16) for i in range(count)}
    dcp.save(state, checkpoint_id=out)


def save_metadata(out, tensors, ranks, row_bytes):
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta, TensorProperties,
                                                       TensorStorageMetadata)
    columns = row_bytes // 2
    blob = 4 * row_bytes + 1600
    properties = TensorProperties(dtype=torch.bfloat16)
    state, storage, planner = {}, {}, {}
    for i in range(tensors):
        name = f"model.layers.{i}.weight"
        chunks = [ChunkStorageMetadata(torch.Size((4 * r, 0)), torch.Size((4, columns))) for r in range(ranks)]
        state[name] = TensorStorageMetadata(properties, torch.Size((4 * ranks, columns)), chunks)
        planner[name] = (name,)
        for r in range(ranks):
            storage[MetadataIndex(name, torch.Size((4 * r, 0)), r)] = _StorageInfo(f"__{r}_0.distcp", i * blob, blob, None)
    os.makedirs(out)
    with open(os.path.join(out, ".metadata"), "wb") as file:
        pickle.dump(Metadata(state, planner, storage, StorageMeta(checkpoint_id="x")), file)
    for r in range(ranks):
        with open(os.path.join(out, f"__{r}_0.distcp"), "wb") as file:
            file.truncate(tensors * blob)


HIDDEN, INNER, HEADS, GROUPS, VOCABULARY = 2048, 5632, 32, 8, 32000
HEAD_WIDTH = HIDDEN // HEADS
QKV = (HEADS + 2 * GROUPS) * HEAD_WIDTH


def megatron_layers(gigabytes, multiple):
    layer_bytes = 2 * (QKV * HIDDEN + HIDDEN * HIDDEN + 3 * HIDDEN * INNER + 2 * HIDDEN)
    return max(multiple, int((gigabytes * 1e9 - 4 * VOCABULARY * HIDDEN) / layer_bytes) // multiple * multiple)


def noise(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).mul_(0.02).bfloat16()


def megatron_args(layers, tp, pp):
    return argparse.Namespace(
        num_layers=layers, hidden_size=HIDDEN, ffn_hidden_size=INNER, num_attention_heads=HEADS, num_query_groups=GROUPS,
        group_query_attention=True, kv_channels=HEAD_WIDTH, swiglu=True, add_bias_linear=False, normalization="RMSNorm",
        untie_embeddings_and_output_weights=True, position_embedding_type="rope", add_position_embedding=True, max_position_embeddings=4096,
        seq_length=4096, vocab_size=VOCABULARY, padded_vocab_size=VOCABULARY, make_vocab_size_divisible_by=128,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=None,
        expert_model_parallel_size=1, expert_tensor_parallel_size=tp, num_experts=None, moe_layer_freq=1, world_size=tp * pp,
        data_parallel_size=1, bf16=True, fp16=False, params_dtype=torch.bfloat16, transformer_impl="transformer_engine",
        use_distributed_optimizer=False, no_save_optim=True, no_save_rng=True, iteration=10)


def save_legacy(out, gigabytes, tp, pp):
    layers = megatron_layers(gigabytes, 4)
    for rank in range(tp * pp):
        t, p = rank % tp, rank // tp
        state, seed = {}, rank * 100000
        if p == 0:
            state["embedding.word_embeddings.weight"] = noise(seed, VOCABULARY // tp, HIDDEN)
        for layer in range(layers // pp):
            prefix, seed = f"decoder.layers.{layer}.", seed + 10
            norms = (p * layers + layer) * 2 + 7 * 10**6   # replicated: the same on all tensor ranks
            state[prefix + "self_attention.linear_proj.weight"] = noise(seed, HIDDEN, HIDDEN // tp)
            state[prefix + "self_attention.linear_qkv.layer_norm_weight"] = noise(norms, HIDDEN)
            state[prefix + "self_attention.linear_qkv.weight"] = noise(seed + 1, QKV // tp, HIDDEN)
            state[prefix + "mlp.linear_fc1.layer_norm_weight"] = noise(norms + 1, HIDDEN)
            state[prefix + "mlp.linear_fc1.weight"] = noise(seed + 2, 2 * INNER // tp, HIDDEN)
            state[prefix + "mlp.linear_fc2.weight"] = noise(seed + 3, HIDDEN, INNER // tp)
        if p == pp - 1:
            state["decoder.final_layernorm.weight"] = noise(3, HIDDEN)
            state["output_layer.weight"] = noise(seed + 5, VOCABULARY // tp, HIDDEN)
        folder = os.path.join(out, "iter_0000010", f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else ""))
        os.makedirs(folder)
        torch.save({"args": megatron_args(layers, tp, pp), "checkpoint_version": 3.0, "iteration": 10, "model": state},
                   os.path.join(folder, "model_optim_rng.pt"))
    with open(os.path.join(out, "latest_checkpointed_iteration.txt"), "w") as file:
        file.write("10")


def stacked(name, layers, shape, pieces, rank, ranks):
    """A tensor of all layers; pieces: (axis of the layer's tensor or None, number of parts, parts of this rank)."""
    from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
    from torch.distributed._shard.metadata import ShardMetadata
    axis, parts, owners = pieces
    places, local = [], []
    for layer in range(layers):
        for part in range(parts):
            size, offset = list(shape), [0] * len(shape)
            if axis is not None:
                size[axis] //= parts
                offset[axis] = part * size[axis]
            owner = owners[part]
            place = ShardMetadata([layer, *offset], [1, *size], f"rank:{owner}/cpu")
            places.append(place)
            if owner == rank:
                local.append(Shard(noise(hash((name, layer, part)) & 0xFFFFFF, 1, *size), place))
    properties = TensorProperties(dtype=torch.bfloat16)
    metadata = ShardedTensorMetadata(places, torch.Size((layers, *shape)), properties)
    return ShardedTensor._init_from_local_shards_and_global_metadata(local, metadata)


def save_torch_dist(rank, ranks, out, gigabytes, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    layers, each, mine = megatron_layers(gigabytes, 1), list(range(ranks)), [0]
    prefix = "decoder.layers."
    tensors = {prefix + "self_attention.linear_proj.weight": ((HIDDEN, HIDDEN), (1, ranks, each)),
               prefix + "self_attention.linear_qkv.layer_norm_weight": ((HIDDEN,), (None, 1, mine)),
               prefix + "self_attention.linear_qkv.weight": ((QKV, HIDDEN), (0, ranks, each)),
               prefix + "mlp.linear_fc1.layer_norm_weight": ((HIDDEN,), (None, 1, mine)),
               prefix + "mlp.linear_fc1.weight": ((2 * INNER, HIDDEN), (0, 2 * ranks, each * 2)),
               prefix + "mlp.linear_fc2.weight": ((HIDDEN, INNER), (1, ranks, each))}
    state = {name: stacked(name, layers, shape, pieces, rank, ranks) for name, (shape, pieces) in tensors.items()}
    state["decoder.final_layernorm.weight"] = noise(3, HIDDEN)
    state["embedding.word_embeddings.weight"] = noise(4, VOCABULARY, HIDDEN)
    state["output_layer.weight"] = noise(5, VOCABULARY, HIDDEN)
    folder = os.path.join(out, "iter_0000010")
    dcp.save(state, checkpoint_id=folder)
    if rank == 0:
        common = {"args": megatron_args(layers, ranks, 1), "checkpoint_version": 3.0, "iteration": 10}
        torch.save(common, os.path.join(folder, "common.pt"))
        with open(os.path.join(folder, "metadata.json"), "w") as file:
            json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch",
                       "common_backend_version": 1}, file)
        with open(os.path.join(out, "latest_checkpointed_iteration.txt"), "w") as file:
            file.write("10")
    dist.destroy_process_group()


def spawn(function, target, gigabytes, ranks):
    mp.spawn(function, (ranks, target, float(gigabytes), f"file://{target}.rendezvous"), nprocs=ranks)


if __name__ == "__main__":
    kind, target, *numbers = sys.argv[1:]
    if kind == "dcp":
        spawn(save_rank, target, numbers[0], int(numbers[1]))
    elif kind == "torch_dist":
        spawn(save_torch_dist, target, numbers[0], int(numbers[1]))
    elif kind == "legacy":
        save_legacy(target, float(numbers[0]), int(numbers[1]), int(numbers[2]))
    elif kind == "small":
        save_small(target, int(numbers[0]), int(numbers[1]))
    else:
        save_metadata(target, *map(int, numbers))
