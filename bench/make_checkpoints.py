# SPDX-License-Identifier: Apache-2.0
"""Writes benchmark checkpoints with real torch.

usage: make_checkpoints.py dcp OUT GIGABYTES RANKS     Llama-shaped bf16 tensors, each cut on its first axis over RANKS processes
       make_checkpoints.py small OUT COUNT BYTES       COUNT tensors of BYTES bytes, one process
       make_checkpoints.py metadata OUT TENSORS RANKS ROW_BYTES   .metadata as torch pickles it, over sparse data files
"""
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
        bits = torch.randint(-2**15, 2**15, (mine, *shape[1:]), dtype=torch.int16, generator=generator) & 0x3FFF | 0x3000
        stride = (shape[1], 1) if len(shape) == 2 else (1,)
        state[name] = DTensor.from_local(bits.view(torch.bfloat16), mesh, [Shard(0)], shape=torch.Size(shape), stride=stride)
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


if __name__ == "__main__":
    kind, target, *numbers = sys.argv[1:]
    if kind == "dcp":
        point = f"file://{target}.rendezvous"
        mp.spawn(save_rank, (int(numbers[1]), target, float(numbers[0]), point), nprocs=int(numbers[1]))
    elif kind == "small":
        save_small(target, int(numbers[0]), int(numbers[1]))
    else:
        save_metadata(target, *map(int, numbers))
