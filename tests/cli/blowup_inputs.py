# SPDX-License-Identifier: Apache-2.0
"""Small inputs that ask for much: makers of checkpoints and mappings for blowup_test.py, with nothing but the standard library."""
import argparse
import bz2
import json
import lzma
import math
import pathlib
import pickle
import random
import struct
import sys
import types
import zipfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import bytecheckpoint_test
import torch_stub


# ---- zarr ----

def array(folder, shape, chunks, dtype="<f4", compressor=None, filters=None, fill=0):
    """A .zarray of format 2, without chunks."""
    folder.mkdir(parents=True)
    document = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "compressor": compressor, "filters": filters,
                "fill_value": fill, "order": "C"}
    (folder / ".zarray").write_text(json.dumps(document))


def zstd_zeros(size):
    """A frame of blocks that each say `128 KiB of zeros`."""
    blocks, left = [], size
    while left:
        step = min(left, 128 << 10)
        left -= step
        blocks.append(((step << 3 | 1 << 1 | (left == 0)).to_bytes(3, "little")) + b"\0")
    return b"\x28\xb5\x2f\xfd" + bytes([0xC0 | 0x20]) + struct.pack("<Q", size) + b"".join(blocks)


def zstd_window(size, log):
    """A frame without its size that asks for a window of 2^log bytes."""
    frame = zstd_zeros(size)[13:]
    return b"\x28\xb5\x2f\xfd" + bytes([0, (log - 10) << 3]) + frame


def bz2_zeros(size, piece=64 << 20):
    return bz2.compress(bytes(piece)) * (size // piece)


def lz4_zeros(size):
    """numcodecs' size, then one long match."""
    more, rest = divmod(size - 1 - 4 - 15 - 12 + 4, 255)
    return struct.pack("<I", size) + b"\x1f\0\x01\0" + b"\xff" * more + bytes([rest]) + b"\x80" + bytes(8)


def blosc_zeros(size, block=32 << 20):
    """One Blosc buffer of blocks that zstd codes, whose places are all the same."""
    coded, count = zstd_zeros(block), -(-size // block)
    start = 16 + 4 * count
    data = struct.pack("<I", start) * count + struct.pack("<I", len(coded)) + coded
    return struct.pack("<BBBBIII", 2, 1, 4 << 5 | 0x10, 1, size, block, 16 + len(data)) + data


def deflated(size, window=15):
    compressor = zlib.compressobj(9, wbits=window)
    return compressor.compress(bytes(size)) + compressor.flush()


def lzma_zeros(size, piece=16 << 20):
    """Streams one after the other."""
    return lzma.compress(bytes(piece), preset=1) * (size // piece)


CODED = {
    "zstd": (zstd_zeros, {"id": "zstd", "level": 1}),
    "bz2": (bz2_zeros, {"id": "bz2", "level": 9}),
    "lz4": (lz4_zeros, {"id": "lz4", "acceleration": 1}),
    "gzip": (lambda size: deflated(size, 31), {"id": "gzip", "level": 9}),
    "zlib": (deflated, {"id": "zlib", "level": 9}),
    "lzma": (lzma_zeros, {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None}),
    "blosc": (blosc_zeros, {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 0, "blocksize": 0}),
}


def coded_chunks(folder, codec, count, size, filters=None, dtype="<f4"):
    """count chunks of `size` zeros each."""
    make, compressor = CODED[codec]
    elements = size // 4
    array(folder / "w", [elements * count], [elements], dtype, compressor, filters)
    data = make(size)
    for i in range(count):
        (folder / "w" / str(i)).write_bytes(data)


def shard_in_shard(folder, shard_bytes, inners):
    """Format 3: a shard coded as a whole, whose many inner chunks each decode all of it."""
    node = folder / "w"
    node.mkdir(parents=True)
    elements = shard_bytes // inners
    codecs = [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [elements], "codecs": [{"name": "bytes"}], "index_location": "end",
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}},
              {"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
    (node / "zarr.json").write_text(json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": [elements * inners], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [elements * inners]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": codecs, "attributes": {}}))
    index = b"".join(struct.pack("<QQ", i * elements, elements) for i in range(inners))
    head = zstd_zeros(elements * inners)
    raw = b"".join(((len(part) << 3 | (at + len(part) == len(index))).to_bytes(3, "little")) + part
                   for at, part in ((at, index[at:at + (128 << 10)]) for at in range(0, len(index), 128 << 10)))
    size = elements * inners + len(index)
    blocks = bytearray(head[13:])
    blocks[-4] &= 0xFE
    (node / "c").mkdir()
    (node / "c" / "0").write_bytes(b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + struct.pack("<Q", size) + bytes(blocks) + raw)


def holes(folder, count, inners):
    """Format 3 in a deflated zip: a shard's index that says `not stored` over and over."""
    node = {"zarr_format": 3, "node_type": "array", "shape": [inners], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [inners]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "attributes": {},
            "codecs": [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [1], "codecs": [{"name": "bytes"}], "index_location": "end",
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}]}
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "holes.zarr.zip", "w", zipfile.ZIP_DEFLATED) as out:
        for i in range(count):
            out.writestr(f"w{i}/zarr.json", json.dumps(node))
            out.writestr(f"w{i}/c/0", b"\xff" * (16 * inners))
    return folder / "holes.zarr.zip"


# ---- pickles of classes that are not installed ----

def stand_in(module, name, reduce=None):
    """A class that pickles under another one's name."""
    if module not in sys.modules:
        parts = module.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    made = type(name, (reduce or object,), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


def fill(made, **attributes):
    made = made.__new__(made)
    made.__dict__.update(attributes)
    return made


def old_vector_hash_twins(count):
    """Pairs that one multiplication and one shift a number, without a seed, hashes to the same 64 bits."""
    mask, out, at = (1 << 64) - 1, [], 1
    wanted = 0x123456789
    while len(out) < count:
        state = (2 * 0x9E3779B97F4A7C15 & mask) ^ at
        state = state * 0xFF51AFD7ED558CCD & mask
        second = state ^ (state >> 32) ^ wanted
        if second < 1 << 63:
            out.append((at, second))
        at += 1
    return out


def colliding_metadata(folder, count):
    """A DCP whose chunks begin where an unseeded hash of index vectors has one value."""
    base = "torch.distributed.checkpoint.metadata"
    metadata, tensor, chunk, properties = (stand_in(base, name)
                                           for name in ("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties"))
    size = stand_in("torch", "Size", tuple)
    size.__reduce__ = lambda self: (type(self), (tuple(self),))
    one = size((1, 1))
    chunks = [fill(chunk, offsets=size(pair), sizes=one) for pair in old_vector_hash_twins(count)]
    entry = fill(tensor, properties=fill(properties, dtype=stand_in("torch", "float32")), size=size((1 << 62, 1)), chunks=chunks)
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(pickle.dumps(fill(metadata, state_dict_metadata={"w": entry}, planner_data={}, storage_data={}), 4))
    (folder / "__0_0.distcp").write_bytes(b"")


# ---- Megatron ----

def megatron(folder, rank_folder="mp_rank_00", **changes):
    """A legacy checkpoint of one rank and one layer, whose arguments are changed."""
    hidden, inner, heads, vocabulary = 16, 32, 4, 64
    args = dict(num_layers=1, hidden_size=hidden, ffn_hidden_size=inner, num_attention_heads=heads, num_query_groups=heads,
                group_query_attention=False, kv_channels=hidden // heads, swiglu=True, add_bias_linear=False, normalization="RMSNorm",
                untie_embeddings_and_output_weights=True, position_embedding_type="rope", add_position_embedding=True,
                max_position_embeddings=64, seq_length=64, vocab_size=vocabulary, padded_vocab_size=vocabulary,
                make_vocab_size_divisible_by=64, tensor_model_parallel_size=1, pipeline_model_parallel_size=1,
                virtual_pipeline_model_parallel_size=None, expert_model_parallel_size=1, expert_tensor_parallel_size=1, num_experts=None,
                moe_layer_freq=1, world_size=1, data_parallel_size=1, bf16=False, fp16=False, transformer_impl="transformer_engine",
                use_distributed_optimizer=False, no_save_optim=True, no_save_rng=True, iteration=10)
    args.update(changes)
    shapes = {"embedding.word_embeddings.weight": (vocabulary, hidden), "decoder.final_layernorm.weight": (hidden,),
              "output_layer.weight": (vocabulary, hidden)}
    prefix = "decoder.layers.0."
    shapes.update({prefix + "self_attention.linear_proj.weight": (hidden, hidden),
                   prefix + "self_attention.linear_qkv.layer_norm_weight": (hidden,), prefix
                   + "self_attention.linear_qkv.weight": (3 * hidden, hidden), prefix + "mlp.linear_fc1.layer_norm_weight": (hidden,),
                   prefix + "mlp.linear_fc1.weight": (2 * inner, hidden), prefix + "mlp.linear_fc2.weight": (hidden, inner)})
    state = {key: torch_stub.tensor("FloatStorage", shape, random.Random(key).randbytes(4 * math.prod(shape))) for key,
             shape in shapes.items()}
    place = folder / "iter_0000010" / rank_folder
    place.mkdir(parents=True)
    torch_stub.write_zip(place / "model_optim_rng.pt",
                         {"args": argparse.Namespace(**args), "checkpoint_version": 3.0, "iteration": 10, "model": state})
    (folder / "latest_checkpointed_iteration.txt").write_text("10")


# ---- DeepSpeed ----

def deepspeed(folder, groups, **members):
    """ZeRO 2 of one rank whose many groups have no parameters; members are said of the optimizer besides."""
    folder.mkdir(parents=True)
    empty = torch_stub.tensor("FloatStorage", (0,), b"")
    model = {"module": {"w": torch_stub.tensor("FloatStorage", (1,), bytes(4))}, "param_shapes": [{}] * groups, "buffer_names": ["w"]}
    torch_stub.write_zip(folder / "mp_rank_00_model_states.pt", model, method=zipfile.ZIP_DEFLATED)
    said = {"zero_stage": 2, "single_partition_of_fp32_groups": [empty] * groups, **members}
    torch_stub.write_zip(folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt", {"optimizer_state_dict": said}, method=zipfile.ZIP_DEFLATED)


def fragment():
    return torch_stub.Object(torch_stub.Named("deepspeed.utils.tensor_fragment", "fragment_address"), {"numel": 0, "start": 0})


def shared_fragments(folder):
    """Each of 100,000 groups has the same dict of 10,000 fragments."""
    one = fragment()
    deepspeed(folder, 100_000, param_slice_mappings=[{f"p{i}": one for i in range(10_000)}] * 100_000)


def shared_params(folder):
    """Each of 30,000 param_groups has the same list of 100,000 numbers."""
    params = list(range(100_000))
    deepspeed(folder, 1, base_optimizer_state={"state": {}, "param_groups": [{"params": params} for _ in range(30_000)]})


# ---- safetensors ----

def safetensors(path, header, payload=b""):
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)


# ---- ByteCheckpoint ----

class RepeatingPickler(bytecheckpoint_test.MappingPickler):
    """The first pair of every dict of pairs, again and again, by the memo."""
    times, key_slot = 60_000, 3000

    def save(self, value, save_persistent_id=True):
        if not isinstance(value, bytecheckpoint_test.Pairs):
            return super().save(value, save_persistent_id)
        key, content = value[0]
        slot = 1000 if isinstance(content, bytecheckpoint_test.Raw) else 2000
        self.write(pickle.EMPTY_DICT + pickle.MARK)
        for part, number in (key, self.key_slot), (content, slot):
            super().save(part)
            self.write(pickle.LONG_BINPUT + struct.pack("<I", number))
        again = b"".join(pickle.LONG_BINGET + struct.pack("<I", number) for number in (self.key_slot, slot))
        return self.write(again * self.times + pickle.SETITEMS)


def repeated_storages(folder):
    """A blob that storage_data names 60,000 times, and all_tensor_metadata as often."""
    data, model = bytes(24), bytecheckpoint_test.Folder()
    model.blob("w", [0, 0], 0, data, bytecheckpoint_test.said_of("F32", [2, 3], [3, 1], data))
    model.tensor("w", "F32", [2, 3], [bytecheckpoint_test.chunk([0, 0], [2, 3])])
    model.write(folder, RepeatingPickler)
