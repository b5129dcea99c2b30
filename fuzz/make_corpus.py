#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of the fuzz targets: small inputs that together reach all that the fixtures, and what fuzzing has found, reach.

usage: make_corpus.py BUILD [--from DIR] [TARGET]...
       make_corpus.py BUILD --values DIR [TARGET]...    packs of inputs that a run with -use_value_profile=1 has left in DIR/TARGET
BUILD has been configured with -Dfuzz=true. Candidates are made of tests/fixtures, of what `make check` unpacks of it in
build and, where it is there, of ../shared/fixtures; --from DIR adds the
inputs under DIR/TARGET, which a run with FUZZ_KEEP=DIR leaves. Of all candidates those are kept that add coverage for their size. Files in
corpus/TARGET whose names start with "regression-" or "found-" stay.
"""
import argparse
import ctypes
import hashlib
import io
import json
import math
import pathlib
import pickle
import random
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "cli"))
sys.path.insert(0, str(HERE.parent / "tests"))
import gguf_stub  # noqa: E402
import gguf_test  # noqa: E402
import npy_stub  # noqa: E402
import numpy_test  # noqa: E402
import ocdbt_stub  # noqa: E402
import optimizer_cases  # noqa: E402
import orbax_test  # noqa: E402
import torch_checkpointing_test  # noqa: E402
import torchsnapshot_test  # noqa: E402
import ucp_test  # noqa: E402
FIXTURES = [HERE.parent / "tests" / "fixtures", HERE.parent / "build" / "tests" / "fixtures", HERE.parent.parent / "shared" / "fixtures"]
MODELS = HERE.parent / "models"
VECTORS = next((root / "aoa" for root in FIXTURES if (root / "aoa" / "engine.json").is_file()), HERE / "none")
MAPPINGS = [
    "l.*.q -> s, stack=0",
    "a -> n.*.w, unstack=1\nn.{0:3}.w -> k, stack=2",
    "n = 2 * 3 - 4 / 2\nm -> p[0:n], axis=n - 3 # comment\n`m` -> `x/y`",
    "l.$LAYER_ID.q -> r.$LAYER_ID, when=\"l.$LAYER_ID.k\"\nn = 1\na -> b2, unless=\"n >= 2\"",
    "l.0.q, l.0.k, l.0.v -> qkv, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0",
    "l.0.q^T, l.0.k^T, l.0.v^T -> qkv, fused_qkv_old, num_heads=4, num_key_value_heads=2",
    "m -> m, fused_ffn",
    "l.$LAYER_ID.e.*.w -> x.$LAYER_ID, axis=0",
    "a -> c, permute=\"[2, 0, 1]\"\nc -> d, src_dtype=\"float32\", dst_dtype=\"bfloat16\"",
    '{"aoa_config": {"aoa_statements": ["a -> b\\u00e9", "m -> _"], "aoa_config_reverse": true}}',
    "aoa_statements:\n  - \"a -> c\"\n  - |\n    m -> d\n    b -> e\n  - 'l.0.q^T -> z, axis=0'\naoa_config_reverse: no\n",
    "s = [\n 'a -> '\n 'b', # c\n \"\"\"m -> n\"\"\"]",
    "_ -> new\nb -> _\nl.1.q -> a",
]
PACKED = {  # target: families whose cases it opens
    "atorch": ["atorch-fsdp"],
    "convert": ["safetensors", "torch-file", "torch-dcp", "zarr", "megatron", "verl", "deepspeed", "lightning", "accelerate",
                "atorch-fsdp", "numpy"],
    "deepspeed": ["deepspeed"],
    "gguf": ["gguf"],
    "hf": ["safetensors", "torch-dcp", "hf-real", "accelerate", "peft"],
    "megatron": ["megatron", "torch-file"],
    "npy_folder": ["numpy"],
    "numpy": ["numpy"],
    "optimizer": ["megatron"],
    "orbax": ["orbax"],
    "paddle_files": ["paddle"],
    "paddle_flex": ["paddle"],
    "paddle_uc": ["paddle", "safetensors"],
    "torch_dcp": ["torch-dcp", "bytecheckpoint"],
    "torch_checkpointing": ["torch_checkpointing"],
    "torch_dist": ["megatron"],
    "torchsnapshot": ["torchsnapshot"],
    "ucp": ["deepspeed"],
    "zarr_group": ["zarr", "megatron"],
}
FLEX_ROLES = [("master_weight",), ("model_state", "master_weight"), ("model_state", "optimizer_state", "master_weight")]
VALUES_MAX, VALUES_BYTES_MAX = 600, 256 << 10
LARGE = {"tar", "torch_save", "zip"}  # seeds that are larger, and more of them
CONVERT_VARIANTS = 2  # of a case
CONVERT_MAPS = 16  # fuzz_convert.c: MAPS
CONVERT_ARRAYS = 4  # one of so many arrays of zarr cases
SEEDS_MAX = {"convert": 250, "zarr_group": 250}
SEEDS_MAX_OTHERS = 150
SEED_BYTES_MAX, PACKED_BYTES_MAX, CORPUS_BYTES_MAX, PACKED_CORPUS_BYTES_MAX = 6000, 40000, 100000, 450000
UNPACKED_BYTES_MAX, FILES_MAX = 768 << 10, 160
REPAIR_ZIPS, REPAIR_CRC32C, REPAIR_INDEX_AT_END, REPAIR_INDEX_AT_START, REPAIR_COUNT_SHIFT = 1, 2, 4, 6, 3


# ---- cases ----

def cases(families=None):
    """(name, path) of each case, those of this tree first."""
    seen = set()
    for root in FIXTURES:
        for manifest in sorted(root.glob("*/*/manifest.json")):
            if manifest.parent.name not in seen and (families is None or manifest.parent.parent.name in families):
                seen.add(manifest.parent.name)
                yield manifest.parent.name, manifest.parent / json.loads(manifest.read_text())["path"]


def files_of(path):
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink()) if path.is_dir() else []


def pickles_of(path):
    try:
        with zipfile.ZipFile(path) as archive:
            return [archive.read(name) for name in archive.namelist() if name.endswith("data.pkl")]
    except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError, ValueError, zipfile.zlib.error):
        return []


def header_of(content):
    size = int.from_bytes(content[:8], "little")
    return content[8 : 8 + size] if size <= len(content) else b""


# ---- packing (packed.h) ----

def archives_in(data):
    """Where the zip archives in the bytes begin and end."""
    at = data.find(b"PK\5\6")
    while at >= 0:
        size, offset = struct.unpack("<II", data[at + 12 : at + 20].ljust(8, b"\0"))
        directory_end = at - 76 if data[at - 20 : at - 16] == b"PK\6\7" else at
        if directory_end - size - offset >= 0:
            yield directory_end - size - offset, at + 22
        at = data.find(b"PK\5\6", at + 4)


def without_noise(data):
    """The same with payloads of tensors, and states of random number generators, set to zero: lengths stay, checksums are repaired on
    reading."""
    out = bytearray(data)
    for start, end in archives_in(data):
        try:
            members = zipfile.ZipFile(io.BytesIO(data[start:end])).infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError):
            continue
        for member in members:
            header = start + member.header_offset
            if member.compress_type == 0 and re.search(r"/data/\d+$|serialization_id$", member.filename) and header + 30 <= len(data):
                payload = header + 30 + sum(struct.unpack("<HH", data[header + 26 : header + 30]))
                if payload + member.file_size <= len(data):
                    out[payload : payload + member.file_size] = bytes(member.file_size)
    out = re.sub(rb"(?s)(?:[BT]\xc0\x09\0\0)(.{2496})", lambda m: m.group(0)[:5] + bytes(2496), bytes(out))
    return re.sub(rb"(?s)(?:J....|\x8a\x05....\0|M..|K.){400,}",
                  lambda m: re.sub(rb"(?s)J....", b"J\1\0\0\0", re.sub(rb"(?s)\x8a\x05....\0", b"\x8a\5\1\0\0\x80\0", m.group(0))), out)


def shard_repairs(folder):
    """What repairs the chunk files of a zarr array."""
    try:
        array = json.loads((folder / "zarr.json").read_text())
        codecs, shape = array["codecs"], array["chunk_grid"]["configuration"]["chunk_shape"]
        if codecs[-1]["name"] == "crc32c":
            return REPAIR_CRC32C
        sharding = next(codec for codec in codecs if codec["name"] == "sharding_indexed")["configuration"]
        if len(codecs) > 1 or sharding["index_codecs"][-1]["name"] != "crc32c":
            return 0
        count = math.prod(-(-outer // inner) for outer, inner in zip(shape, sharding["chunk_shape"]))
        where = REPAIR_INDEX_AT_START if sharding.get("index_location") == "start" else REPAIR_INDEX_AT_END
        return where | count << REPAIR_COUNT_SHIFT if count < 32 else 0
    except (OSError, ValueError, KeyError, TypeError, IndexError, StopIteration, ZeroDivisionError):
        return 0


def compress(content):
    """A zstd frame. Python's own library has no zstd; reshard needs its library anyway."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compress.restype = library.ZSTD_compressBound.restype = ctypes.c_size_t
    bound = library.ZSTD_compressBound(ctypes.c_size_t(len(content)))
    out = ctypes.create_string_buffer(bound)
    size = library.ZSTD_compress(out, ctypes.c_size_t(bound), content, ctypes.c_size_t(len(content)), 15)
    return out.raw[:size]


def pack(files, options):
    """files: (name, repairs, content)."""
    packed = bytearray(options.ljust(8, b"\0"))
    if not files or len(files) > FILES_MAX:
        return None
    for name, repairs, content in files:
        name = name.encode()
        if len(name) > 255:
            return None
        packed += bytes([repairs, len(name)]) + name + len(content).to_bytes(3, "little") + content
    return compress(bytes(packed)) if len(packed) <= UNPACKED_BYTES_MAX else None


def packed_files(path, keeps_payload):
    files = files_of(path)
    if sum(file.stat().st_size for file in files) > UNPACKED_BYTES_MAX:
        return []
    packed = []
    for file in files:
        content = file.read_bytes()
        is_zip = b"PK\3\4" in content[:4] or file.suffix == ".distcp"
        repairs = REPAIR_ZIPS if is_zip else 0
        if file.name not in ("zarr.json", ".zarray", ".zgroup"):
            folder = next((p for p in file.parents if (p / "zarr.json").is_file()), None)
            repairs |= shard_repairs(folder) if folder else 0
        packed.append((file.name if path.is_file() else str(file.relative_to(path)), repairs,
                       content if keeps_payload else without_noise(content)))
    return packed


def array_files(path):
    """A store of each array of a zarr case alone, below the root's own documents; of many chunks the first few."""
    for document in sorted([*path.rglob("zarr.json"), *path.rglob(".zarray")]) if path.is_dir() else []:
        folder = document.parent
        if folder == path or any(child.is_file() for child in folder.glob("*/zarr.json")):
            continue
        documents = [file for file in files_of(path) if file.parent == path and file.name in (".zgroup", ".zattrs")]
        if (path / "zarr.json").is_file() and b'"consolidated_metadata": {' not in (path / "zarr.json").read_bytes():
            documents.append(path / "zarr.json")
        own = [file for file in files_of(folder) if not file.name.startswith(".z") and file.name != "zarr.json"]
        chosen = documents + [file for file in files_of(folder) if file not in own] + own[:6]
        repairs = shard_repairs(folder)
        yield folder.name, [(str(file.relative_to(path)), repairs if file in own else 0, file.read_bytes()) for file in chosen]


def number_of(text):
    return int.from_bytes(hashlib.sha1(text.encode()).digest()[:8], "little")


def convert_options(name, variant):
    chosen = number_of(f"{name} {variant}")
    flags = chosen & 15 if variant else 0
    some = [chosen >> 24 + 4 * i & 15 if variant > 1 and chosen >> 50 + i & 1 else 0 for i in range(10)]
    return bytes([flags, number_of(name) + variant & 255, chosen >> 8 & 255] + [some[i] | some[i + 1] << 4 for i in range(0, 10, 2)])


def small_safetensors(*keys):
    header = json.dumps({key: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i, key in enumerate(keys)}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(8 * len(keys)))


def hf_folders():
    """What no fixture is: numbered files without an index, some of them lacking or damaged, and indexes that say more than they need to."""
    def folder(**files):
        return [(name.replace("__", "-").replace("_json", ".json") + ("" if "json" in name else ".safetensors"), 0, content)
                for name, content in files.items()]
    one, two, three = (small_safetensors(*keys) for keys in (("a", "b"), ("c",), ("d",)))
    places = {key: f"model-0000{number}-of-00002.safetensors" for key, number in (("a", 1), ("b", 1), ("c", 2))}
    index = {"metadata": {"total_size": 24, "flag": True, "of": "words", "list": [1]}, "weight_map": places, "format": "pt", "count": 3,
             "is": True, "not": False, "deep": {"x": [1]}, "half": 0.5}
    text = json.dumps(index).encode()
    yield "numbered", folder(model__00001__of__00002=one, model__00002__of__00002=two)
    yield "numbered-gap", folder(model__00001__of__00003=one, model__00003__of__00003=three)
    yield "numbered-two-runs", folder(model__00001__of__00002=one, model__00002__of__00002=two, model__00001__of__00003=three)
    yield "numbered-damaged", folder(model__00001__of__00002=one[:-4], model__00002__of__00002=two)
    yield "numbered-beside-whole", folder(model__00001__of__00002=one, model=two)
    yield "index-says-more", folder(model__00001__of__00002=one, model__00002__of__00002=two) + [("model.safetensors.index.json", 0, text)]
    yield "index-damaged-file", folder(model__00001__of__00002=one[:40], model__00002__of__00002=two) + [
        ("model.safetensors.index.json", 0, text)]
    yield "index-missing-file", folder(model__00002__of__00002=two) + [("model.safetensors.index.json", 0, text)]
    yield "index-without-map", folder(model__00002__of__00002=two) + [
        ("model.safetensors.index.json", 0, b'{"metadata": {"total_size": 8}}')]
    yield "two-indexes", folder(model__00001__of__00002=one, model__00002__of__00002=two) + [
        ("model.safetensors.index.json", 0, text), ("other.safetensors.index.json", 0, text)]
    yield "same-key-twice", folder(model__00001__of__00002=one, model__00002__of__00002=one)
    yield "words-beside", folder(model=one, adapter=two, optimizer=three)


def optimizer_folders():
    """A run's rank whose optimizer's state is what the fixtures never have."""
    for case in optimizer_cases.CASES:
        with tempfile.TemporaryDirectory() as work:
            root = pathlib.Path(work)
            optimizer_cases.write(root, case)
            yield f"{case.kind}-{case.name}", packed_files(root, False)


def universal_folders():
    """Models in several parts, which DeepSpeed's own fixtures are not."""
    for seed in range(24):
        with tempfile.TemporaryDirectory() as work:
            root = pathlib.Path(work)
            ucp_test.Universal(random.Random(seed), root).write()
            yield f"drawn-{seed}", packed_files(root, False)


def item_folders():
    """Files of items and ranks, and metadata that say otherwise."""
    good = torch_checkpointing_test.of_ranks()
    made = [(name, good, torch_checkpointing_test.metadata(2, ["model"], version)) for name, version in (("ranks", "2.0"), ("old", "1.0"))]
    made += [(f"wrong-{i}", given, said) for i, (given, said, _, _) in enumerate(torch_checkpointing_test.wrong())]
    for name, given, said in made:
        files = [(file, 0, content) for file, content in torch_checkpointing_test.entries(given, said)]
        yield name, files
        yield f"{name}-beside", [("config.json", 0, b"{}"), *files[1:]]


def snapshot_folders():
    """Snapshots of several ranks, what ranks have for themselves, paths, values, and what is wrong."""
    made = [(f"drawn-{seed}", torchsnapshot_test.drawn_snapshot(random.Random(seed))[0]) for seed in range(12)]
    made += [("paths", torchsnapshot_test.paths_snapshot()), ("values", torchsnapshot_test.values_snapshot()),
             ("ranks", torchsnapshot_test.ranks_snapshot()[0])]
    made += [(f"wrong-{i}", torchsnapshot_test.one_of(entry)) for i, (entry, _, _) in enumerate(torchsnapshot_test.wrong())]
    for name, snapshot in made:
        yield name, [(file, 0, content) for file, content in snapshot.entries()]
    yield "yaml", [(".snapshot_metadata", 0, b"version: 0.0.1\n")]


def gguf_folders():
    """Files of either byte order and version, and such as are of several parts."""
    for seed in range(24):
        chance, is_big = random.Random(seed), seed % 4 == 3
        pairs = [(f"k{i}", *gguf_test.drawn_value(chance, 2)) for i in range(seed % 5)]
        pairs = [pair for pair in pairs if len(gguf_stub.File([pair], []).bytes()) < 600]
        pairs += [("general.alignment", gguf_stub.U32, 8)] if seed % 3 == 0 else []
        tensors = [gguf_test.drawn_tensor(chance, f"t{i}", is_big)[0] for i in range(seed % 4)]
        content = gguf_stub.File(pairs, tensors, 2 + seed % 2, is_big, 8 if seed % 3 == 0 else 32).bytes()
        yield f"drawn-{seed}", [("m.gguf", 0, content)]
    tensors = [(f"t{i}", [i], 0, bytes(4 * i)) for i in range(3)]
    parts = [(f"m-{n:05d}-of-00003.gguf", 0, content) for n, content in enumerate(gguf_test.parts_of(3, tensors), 1)]
    yield "parts", parts
    yield "parts-missing", parts[::2]
    yield "parts-twice", [parts[0], (parts[1][0], 0, parts[0][2]), parts[2]]
    yield "parts-count", [(name, 0, content) for (name, _, _), content in zip(parts, gguf_test.parts_of(3, tensors, total=4))]
    yield "part-alone", [("alone.gguf", 0, parts[0][2])]
    yield "encoder", [("m.gguf", 0, parts[0][2].replace(b"split.count", b"split.other")), ("mmproj.gguf", 0, parts[1][2])]
    yield "two", [("a.gguf", 0, parts[0][2]), ("b.gguf", 0, parts[1][2])]
    for name, tensor in (("unread", ("w", [256], 16, bytes(66))), ("unknown", ("w", [4], 99, b"")), ("cut", ("w", [400], 0, bytes(16))),
                         ("overlap", ("w", [2], 0, bytes(8), 0))):
        yield name, [("m.gguf", 0, gguf_stub.File([], [("v", [2], 0, bytes(8)), tensor]).bytes())]
    yield "unread-big", [("m.gguf", 0, gguf_stub.File([], [("w", [32], 7, bytes(24))], is_big=True).bytes())]


def ocdbt_folders():
    """Trees of several heights, which the fixtures do not have."""
    for seed in range(16):
        with tempfile.TemporaryDirectory() as work:
            root, chance = pathlib.Path(work), random.Random(seed)
            ocdbt_stub.Store(root, (b"", b"ocdbt.process_0/")[seed % 2]).write(
                orbax_test.drawn_values(chance, 1 + seed)[0], per_node=2 + seed // 4, inline=(0, 100, 1000)[seed % 3],
                numbered=seed % 4 == 3)
            if seed % 2:
                (root / "_METADATA").write_text(orbax_test.metadata(a0="scalar", t="string", n="None"))
                (root / "_strings.json").write_text('{"t": "x"}')
            yield f"drawn-{seed}", packed_files(root, True)


def numpy_folders(as_archive):
    """Small arrays of every kind, and what is wrong with them, which the fixtures have too little of."""
    header = numpy_test.HEADER
    parts = {f"{kind}-{big}-{fortran}": npy_stub.numbers(kind, [2, 3], [0, 1] * 3, big, fortran, 1 + big + fortran)[0]
             for kind in ("F32", "U8") for big in (False, True) for fortran in (False, True)}
    parts |= {"text": numpy_test.text_array(["a", "bc", "", "\U0001F600"], 3, [2, 2], ">"), "bytes": npy_stub.npy("|S3", [2], b"ab\0c\0d"),
              "object": npy_stub.npy("|O", [], pickle.dumps({"a": [1]}, 4)), "time": npy_stub.npy("<M8[ns]", [1], bytes(8)),
              "bf16": npy_stub.npy("<V2", [1], bytes(2)), "records": npy_stub.npy("[('a', '<f4')]", [1], bytes(4)),
              "short": npy_stub.framed(header, bytes(11)), "long": npy_stub.framed(header, bytes(13)),
              "none": npy_stub.npy("<f4", [0], b""),
              "columns": npy_stub.npy("<U1", [2, 2], bytes(16), fortran=True)}
    names = list(parts)
    for seed in range(20):
        chance = random.Random(seed)
        some = names[seed:seed + 1] if seed < len(names) else chance.sample(names, 4)
        files = [(f"{chance.choice(['', 'a/'])}{name}.npy", parts[name]) for name in some]
        if as_archive:
            deflated = {name for name, _ in files if chance.random() < 0.5}
            files = [("x.npz", npy_stub.npz([*files, ("raw", b"x")][:1 + seed % 2 * 9], deflated))]
        yield f"drawn-{seed}", [(name, REPAIR_ZIPS if as_archive else 0, data) for name, data in files]


def packed_candidates(target):
    folders = {"gguf": gguf_folders, "hf": hf_folders, "npy_folder": lambda: numpy_folders(False), "numpy": lambda: numpy_folders(True),
               "optimizer": optimizer_folders, "orbax": ocdbt_folders,
               "torch_checkpointing": item_folders, "torchsnapshot": snapshot_folders, "ucp": universal_folders}
    for name, files in folders.get(target, list)():
        yield name, pack(files, b"\0")
        yield name + "-lenient", pack(files, b"\1")
    for name, path in cases(PACKED[target]):
        files = packed_files(path, target in ("zarr_group", "npy_folder", "numpy"))
        if target == "convert":
            for variant in range(CONVERT_VARIANTS):
                yield f"{name}-{variant}", pack(files, convert_options(name, number_of(name) % 2 + variant))
            mapping = number_of(name) % 8
            yield f"{name}-mapped-{mapping}", pack(files, bytes([CONVERT_MAPS | mapping << 5]) + convert_options(name, 0)[1:])
        else:
            yield name, pack(files, b"\0")
            yield name + "-lenient", pack(files, b"\1")
        if target == "paddle_flex" and any(file.endswith(".metadata") and "/" not in file for file, _, _ in files):
            for roles in FLEX_ROLES:  # as a trainer's folders: master_weight/ alone, in which weights are looked for, and beside others
                parts = [(f"{role}/{file}", repairs, content) for role in roles for file, repairs, content in files]
                yield f"{name}-{'-'.join(roles)}", pack(parts, b"\0")
        if target in ("zarr_group", "convert"):
            for variant, (array, some) in enumerate(array_files(path)):
                if target == "convert" and number_of(name + array) % CONVERT_ARRAYS:
                    continue
                options = convert_options(name + array, 1 + variant % 2) if target == "convert" else bytes([variant % 2])
                yield f"{name}-{array}", pack(some, options)


def ocdbt_bodies():
    files = [(b"", b"d/one"), (b"p/", b"d/two")]
    leaf = ocdbt_stub.leaf_body([(b"a/.zarray", b"{}"), (b"a/0", (1, 5, 7)), (b"b", b"")], files)
    interior = ocdbt_stub.interior_body(2, [(b"a/0", 2, 0, 9, 90), (b"a/1", 2, 1, 99, 9)], files)
    for name, body in (("leaf", leaf), ("interior", interior)):
        yield name, b"\0" + body
        yield name + "-whole", b"\4" + ocdbt_stub.framed(ocdbt_stub.NODE, body)
        yield name + "-cut", b"\0" + body[:-2]
        yield name + "-zstd", b"\4" + ocdbt_stub.framed(ocdbt_stub.NODE, compress(body), compression=1)
    for kind in (0, 1, 2):
        for versions in (0, 1, 3):
            body = ocdbt_stub.manifest_body((1, 3, 40), files, 2, kind=kind, versions=versions, older=kind * 2)
            yield f"manifest-{kind}-{versions}", bytes([1 | (versions & 1) << 1]) + body
    yield "manifest-whole", b"\5" + ocdbt_stub.framed(ocdbt_stub.MANIFEST, body)


# ---- texts ----

def mappings():
    """The vectors of Paddle's engine where they are present, and what is only in our language."""
    for name in ("engine", "errors", "macros", "numeric"):
        path = VECTORS / f"{name}.json"
        for vector in json.loads(path.read_text())["vectors"] if path.is_file() else []:
            flags = (name == "macros") | bool(vector.get("reverse")) << 1
            source = json.dumps({"tensors": vector["source"]}, separators=(",", ":"))
            yield vector["id"], bytes([flags]) + "\n".join(vector["statements"]).encode() + b"\0" + source.encode()
    for number, text in enumerate(MAPPINGS):
        yield f"own-{number}", b"\0" + text.encode()
        yield f"own-{number}-reverse", b"\2" + text.encode()
        yield f"own-{number}-target", b"\4" + text.encode()


def configs():
    for path in sorted(FIXTURES[-1].glob("hf-real/*/*config.json")) + sorted((HERE.parent / "tests").rglob("config.json")):
        if path.stat().st_size < SEED_BYTES_MAX // 2:
            yield path.read_bytes()


def model_texts():
    """The texts of models/, cut where they are long, and the cases of the unit tests."""
    kinds = {".rules": 0, ".names": 1, ".settings": 2}
    some = list(configs())[:12] or [b"{}"]
    for path in sorted(MODELS.iterdir()):
        kind = kinds.get(path.suffix)
        if kind is None:
            continue
        lines = [line for line in path.read_bytes().splitlines() if line and (kind == 2 or not line.startswith(b"#"))]
        for first in range(0, len(lines), 30):
            yield f"{path.name}-{first}", bytes([kind]) + b"\n".join(lines[first : first + 30])
        for number, config in enumerate(some if kind == 2 else []):
            yield f"{path.name}-config-{number}", bytes([kind]) + b"\n".join(lines) + b"\0" + config
    cases_of_tests = (HERE.parent / "tests" / "mapping" / "test_settings.c").read_text()
    for number, match in enumerate(re.finditer(r'\{ "[^"]*", "((?:[^"\\]|\\.)*)", SETTINGS_(CONFIG|ARGS), "((?:[^"\\]|\\.)*)"',
                                               cases_of_tests)):
        text, members = (part.encode().decode("unicode_escape").encode("latin-1") for part in (match.group(1), match.group(3)))
        yield f"settings-{number}", b"\2" + text + b"\0" + members + b"\0" + members


def npy_headers():
    for name, path in cases(["numpy"]):
        for file in files_of(path):
            if file.suffix == ".npy":
                yield f"{name}-{file.name}", file.read_bytes()[:1000]
    types = ["<f4", ">f8", "|u1", "<i2", "=i8", "|b1", "<c16", "<V2", "|O", "<U3", "f4"]
    for number, dtype in enumerate(types):
        for order in ("False", "True"):
            for shape in ("()", "(3,)", "(2, 3)", "(0, 9223372036854775807)", "(4L,)"):
                text = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
                version = 1 + number % 3
                size = struct.pack("<H" if version == 1 else "<I", len(text) + 1)
                yield f"own-{number}-{order}-{shape}", b"\x93NUMPY" + bytes([version, 0]) + size + text + b"\n"


def run_args():
    """Arguments as the unit tests of placement have them, and those of configurations."""
    placements = [(8, 4, 1, ""), (8, 2, 2, ""), (6, 4, 1, "Et|(tt|)*2tL"), (4, 2, 2, "Et|tt||tL"), (5, 2, 1, "E,t*3|t*2,L"),
                  (3, 2, 1, "Ett|tmL"), (4, 3, 1, ""), (4, 2, 1, "Et|ttL"), (4, 2, 1, "Ett|xL"), (4, 2, 1, "(t"), (4, 2, 1, "t*"),
                  (4, 2, 1, "((t)*2)*2"), (7, 2, 1, None)]
    for number, (layers, pp, vp, layout) in enumerate(placements):
        args = {"num_layers": layers, "pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": vp,
                "pipeline_model_parallel_layout": layout}
        yield f"placement-{number}", json.dumps(args).encode()
        args.update(tensor_model_parallel_size=2, expert_model_parallel_size=2, expert_tensor_parallel_size=1, vocab_size=1000,
                    padded_vocab_size=1024, make_vocab_size_divisible_by=128, hidden_size=64, num_attention_heads=4, num_query_groups=2,
                    group_query_attention=True, kv_channels=16, swiglu=True, num_experts=4, moe_grouped_gemm=True, transformer_impl="local",
                    moe_layer_freq=[0, 1], ffn_hidden_size=128)
        yield f"model-{number}", json.dumps(args).encode()
        for word, value in (("decoder_first_pipeline_num_layers", 1), ("decoder_last_pipeline_num_layers", 2),
                            ("account_for_embedding_in_pipeline_split", True), ("account_for_loss_in_pipeline_split", True),
                            ("hybrid_layer_pattern", "M*"), ("multi_latent_attention", True), ("qk_head_dim", 32), ("kv_lora_rank", 16),
                            ("mamba_state_dim", 16), ("tensor_model_parallel_size", 3)):
            yield f"{word}-{number}", json.dumps({**args, word: value}).encode()


def sidecars():
    digests = {"crc32c": "00000000", "sha256": "0" * 64, "xxh3": "0" * 16}
    for digest, value in digests.items():
        tensors = {"a": value, "b": value, "c.d": value}
        for number, document in enumerate([
            {"schema": "reshard-sidecar/1", "digest": digest, "tensors": tensors},
            {"schema": "reshard-sidecar/2", "digest": digest,
             "tensors": {k: {"digest": v, "dtype": "F32", "shape": [2, 2]} for k, v in tensors.items()}, "items": {"x": value}},
            {"schema": "reshard-sidecar/1", "digest": digest, "tensors": {"a": value, "zz": value}},
            {"digest": digest, "tensors": []},
            {"schema": 3, "digest": None, "tensors": {"a": 1}},
            {"schema": "reshard-sidecar/2", "digest": digest, "tensors": tensors,
             "types": {"a": "U8 [4]", "b": "F64 []", "c.d": "I64 [1]", "zz": "U8 []"}, "items": {"__metadata__": value, "x": value}},
            {"schema": "reshard-sidecar/2", "digest": digest, "tensors": {"a": 1}, "types": {}, "items": {}},
            {"schema": "reshard-sidecar/2", "digest": "md5", "tensors": {}, "types": {}, "items": {}},
            {"schema": "reshard-sidecar/2", "digest": digest, "types": {}, "items": {}},
        ]):
            for folder in (0, 1):
                yield f"{digest}-{number}-{folder}", bytes([folder]) + json.dumps(document).encode()
    for flags in range(2, 14):
        yield f"made-{flags}", bytes([flags])
        for place in range(20, 420, 40):
            yield f"made-{flags}-{place}", bytes([flags]) + place.to_bytes(2, "little") + b'"\n0[1]'[place // 40 % 6 :]


def kept_items():
    nested = {"__dict__": [[1, "one"], [{"__tuple__": [1, 2]}, {"k": {"__dict__": []}}]]}
    odd = {"__tuple__": [1, {"__bytes__": "00ff7a"}, {"__float__": "nan"}, {"__float__": "-inf"}, {"__float__": "inf"}]}
    good = [{"key": "step", "value": 3}, {"key": "a.b", "path": ["a", "b"], "value": [1, 2.5, None, True, "x\u00e9"]},
            {"key": "g.0.7", "path": ["g", 0, [7]], "value": odd}, {"key": "d", "value": nested}, {"key": "big", "value": 10**30},
            {"key": "deep", "value": [[[[[[{"a": [{}]}]]]]]]}, {"key": "__x", "value": {"plain": {"__other__": 1, "b": 2}}}]
    bad = [{"key": "a", "path": [1.5], "value": 1}, {"key": "a", "path": {}, "value": 1}, {"key": "a"}, 3,
           {"key": "a", "path": ["a"] * 70, "value": 1}]
    bad += [{"key": "a", "value": {word: value}} for word, value in (("__bytes__", "0g"), ("__bytes__", "000"), ("__float__", "x"),
                                                                     ("__dict__", [[1]]), ("__what__", "x"))]
    yield "all", json.dumps({"schema": "reshard-items/1", "items": good}).encode()
    for number, item in enumerate(good + bad):
        yield f"item-{number}", json.dumps({"schema": "reshard-items/1", "items": [item]}).encode()
    yield "no-items", b'{"schema":"reshard-items/1"}'
    yield "text", b'"x"'


def model_configs():
    few = ("num_hidden_layers", "num_local_experts", "num_experts", "n_routed_experts", "n_layer", "num_key_value_heads")
    wide = ("hidden_size", "n_embd", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
    ranks = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim")
    sizes = dict.fromkeys(few, 2) | dict.fromkeys(wide, 64) | dict.fromkeys(ranks, 8)
    sizes |= {"num_attention_heads": 4, "n_head": 4, "vocab_size": 96, "n_positions": 32, "n_shared_experts": 1, "decoder_sparse_step": 1,
              "first_k_dense_replace": 1, "torch_dtype": "bfloat16"}
    shapes = (HERE.parent / "models/hf.shapes").read_text()
    for family in re.findall(r"\S+", " ".join(re.findall(r"^model (.*)$", shapes, re.M))):
        yield family, json.dumps({"model_type": family, **sizes}).encode()
    changes = [("hidden_size", -1), ("num_attention_heads", 0), ("head_dim", 2**62), ("num_hidden_layers", 10**9), ("hidden_size", 6.5),
               ("torch_dtype", "no"), ("tie_word_embeddings", True), ("attention_bias", True), ("quantization_config", {"bits": 4})]
    for word, value in changes:
        yield f"{word}-{value}".replace(" ", ""), json.dumps({"model_type": "llama", **sizes, word: value}).encode()
    for name, document in (("no-family", sizes), ("missing", {"model_type": "llama"}), ("number", {"model_type": 3}), ("text", "llama")):
        yield name, json.dumps(document).encode()


def packed_text(value):
    return struct.pack("<I", len(value)) + value.encode()


def packed_shard(key, dtype, shape, start, extent, flat=None, strides=None):
    """A shard with values, as src/parallel/shard_pack.c has it."""
    flags = 4 | (flat is not None) | (strides is not None) << 1
    vectors = [*shape, *start, *extent, *(flat or ()), *(strides or ()), 0]
    return packed_text(key) + packed_text(dtype) + bytes([flags, len(shape)]) + struct.pack(f"<{len(vectors)}q", *vectors)


def sharded_states():
    """What ranks send each other (src/parallel/shard_pack.c, sharded_pack.c): grids, a flat range, strides, objects, values; and what is
    wrong."""
    text = packed_text

    def numbers(*values):
        return struct.pack(f"<{len(values)}q", *values)

    def tensor(key, shape, start, extent, fragments=None, flat=None, strides=None, prepended=0, replica=(0,), dtype="F32"):
        shard = packed_shard(key, dtype, shape, start, extent, flat, strides)
        more = bytes([fragments is not None, prepended]) + numbers(*(fragments or ()))
        return shard + more + struct.pack("<I", len(replica)) + numbers(*replica)

    def item(key, shape, offset, json="[1]", data=None):
        return (text(key) + bytes([len(shape)]) + numbers(*shape, *offset) + struct.pack("<I", 1) + numbers(0) + bytes([data is not None])
                + text(json) + text(data or ""))

    def state(tensors, objects=(), values=(), magic=0x32534453, count=None, compared=()):
        counts = struct.pack("<IIIIB", magic, len(tensors) if count is None else count, len(objects), len(values) + len(compared),
                             len(compared) > 0)
        said = [text(k) + text(v) + bytes([kind]) for kind, some in ((0, values), (1, compared)) for k, v in some]
        return counts + b"".join(tensors) + b"".join(objects) + b"".join(said)

    rows = [tensor("w", [4, 3], [2 * r, 0], [2, 3], [2, 1]) for r in range(2)]
    flat = [tensor("f", [2, 3], [0, 0], [2, 3], [1, 1], (b, e), replica=(0, 0)) for b, e in ((0, 2), (2, 6))]
    layers = [tensor("l", [2, 4], [i, 0], [1, 4], [2, 1], prepended=1, replica=(0, 1)) for i in range(2)]
    yield "whole", state(rows + flat + layers, [item("o", [2], [0]), item("o", [2], [1], "", "xy")], [("iteration", "7")],
                         compared=[("iteration", "0")])
    yield "value", state([], values=[("iteration", "7")])[:-1] + b"\2"
    yield "irregular", state([tensor("u", [7], [0], [3]), tensor("u", [7], [3], [4], strides=[2])])
    yield "nothing", state([])
    yield "scalar", state([tensor("s", [], [], [], [], dtype="BF16", replica=())])
    yield "hole", state(rows[:1] + flat[1:], [item("o", [3], [1])])
    yield "twice", state(rows + rows + flat + flat, [item("o", [1], [0])] * 2)
    yield "grid", state([tensor("w", [1 << 40], [0], [1], [1 << 40])])
    yield "outside", state([tensor("w", [4], [3], [2])])
    yield "replicas", state([rows[0][:-12] + struct.pack("<I", 1 << 31)])
    yield "count", state(rows, count=1 << 31)
    yield "magic", state(rows, magic=7)
    yield "cut", state(rows)[:-3]
    yield "dtype", state([tensor("w", [4], [0], [4], dtype="F99")])


def option_text(value):
    """As src/api/options_pack.c has it, with a zero behind it."""
    return struct.pack("<I", 2**32 - 1) if value is None else struct.pack("<I", len(value)) + value.encode() + b"\0"


def packed_block(content):
    return struct.pack("<Q", len(content)) + content


def packed_items(items, values=b"", files=(), file_count=None):
    """As src/api/items_pack.c has them; values: a pickle."""
    texts = b"".join(option_text(key) + option_text(json) for key, json in items)
    contents = b"".join(option_text(key) + packed_block(content) for key, content in files)
    count = struct.pack("<Q", len(files) if file_count is None else file_count)
    return struct.pack("<Q", len(items)) + texts + packed_block(values) + count + contents


def part_records():
    """What the only part of a target with the tensors w (2, 3) and none (0, 3) says (src/convert/part_record.c), behind the identity."""

    def record(part=0, parts=1, words=b"", crcs=(), fed=(), end=b""):
        pairs = b"".join(struct.pack("<II", chunk, crc) for chunk, crc in crcs)
        boxes = b"".join(struct.pack("<I4q", *box) for box in fed)
        return struct.pack("<III", part, parts, len(words)) + words + struct.pack("<I", len(crcs)) + pairs + boxes + end

    whole = (0, 0, 0, 2, 3)
    yield "whole", record(crcs=[(0, 0x12345678)], fed=[whole])
    yield "halves", record(fed=[(0, 0, 0, 1, 3), (0, 1, 0, 1, 3)])
    yield "twice", record(fed=[whole, (0, 1, 1, 1, 1)])
    yield "missing", record(fed=[(0, 0, 0, 2, 2)])
    yield "outside", record(fed=[(0, 1, 0, 2, 3)])
    yield "tensor", record(fed=[(2, 0, 0, 2, 3)])
    yield "empty", record(fed=[whole, (1, 0, 0, 0, 3)])
    yield "cut", record(fed=[whole], end=b"\0\0\0")
    yield "nothing", record()
    yield "chunk", record(crcs=[(7, 1)], fed=[whole])
    yield "parts", record(part=1, parts=3, fed=[whole])
    yield "no-parts", record(parts=0)
    yield "words", record(words=b'["--to","torch-dcp"]', fed=[whole])
    yield "many-words", struct.pack("<III", 0, 1, 1 << 31)
    options = b"".join(map(option_text, [None, "torch-dcp", "ranks=2", *[None] * 10])) + bytes(6 + 8)
    tensors = struct.pack("<Q", 1) + option_text("w") + option_text("float32") + struct.pack("<B2q", 2, 12, 4)
    kinds = {"declared": {}, "declared-values": {"values": pickle.dumps({"seed": b"\0"}, 4)}, "declared-file": {"files": [("f", b"no")]}}
    for name, more in kinds.items():
        words = b"RSHRDW02" + options + option_text(None) + tensors + packed_items([("step", "12")], **more)
        yield name, record(words=words, crcs=[(0, 0xD428242C), (1, 0x68A693D1)], fed=[(0, 0, 0, 12, 4)])
    yield "many-crcs", struct.pack("<IIII", 0, 1, 0, 1 << 29)


def saver_requests():
    """Requests as src/api/saver_request.c writes them: two tensors, one of them flattened, items; and what is wrong with others."""
    def listed(values):
        return struct.pack("<I", 2**32 - 1) if values is None else struct.pack("<I", len(values)) + b"".join(map(option_text, values))

    def shard(key, dtype, shape, start, extent, flat, offset):
        return packed_shard(key, dtype, shape, start, extent, flat) + struct.pack("<Q", offset)

    def request(shards, items, magic=b"RSHSAVE4", count=None, lists=None, end=b"", sharded=b"\0", **more):
        words = ["/nowhere/x", "job", None, "torch-dcp", "ranks=2", None, None, "a.", "b.", None]
        options = b"".join(map(option_text, words))
        options += b"".join(listed(values) for values in lists or [["w*"], None, ["bf16"], [], ["s/a/b/"]])
        options += bytes([0, 1, 1, 0, 1, 1]) + struct.pack("<Q", 1 << 20) + option_text("mmap") + struct.pack("<QQ", 1 << 20, 2)
        shards = struct.pack("<Q", len(shards) if count is None else count) + b"".join(shards)
        return magic + options + sharded + shards + packed_items(items, **more) + end

    whole = shard("w", "F32", [2, 3], [0, 0], [2, 3], None, 64)
    halves = [shard("f", "BF16", [4], [0], [4], (0, 3), 0), shard("f", "BF16", [4], [0], [4], (3, 4), 8)]
    items = [("step", "17"), ("args", '{"a": [1, 2.5, null]}')]
    yield "whole", request([whole, *halves], items)
    yield "nothing", request([], [])
    yield "scalar", request([shard("s", "I64", [], [], [], None, 0)], [])
    yield "magic", request([whole], items, magic=b"RSHSAVE9")
    yield "count", request([whole], items, count=1 << 60)
    yield "outside", request([shard("w", "F32", [2, 3], [0, 0], [2, 3], None, 4090)], [])
    yield "offset", request([shard("w", "F32", [2, 3], [0, 0], [2, 3], None, (1 << 64) - 8)], [])
    yield "box", request([shard("w", "F32", [2, 3], [1, 0], [2, 3], None, 0)], [])
    yield "large", request([shard("w", "F32", [1 << 40, 1 << 40], [0, 0], [1, 1], None, 0)], [])
    yield "flat", request([shard("f", "BF16", [4], [0], [4], (3, 9), 0)], [])
    yield "dtype", request([shard("f", "F33", [4], [0], [4], None, 0)], [])
    yield "axes", request([shard("f", "U8", [1] * 65, [0] * 65, [1] * 65, None, 0)], [])
    yield "hole", request([halves[1]], [])
    yield "list", request([whole], [], lists=[["a", None], None, None, None, None])
    yield "json", request([whole], [("step", "{1}")])
    yield "json-late", request([whole], [("step", '["a text that is made", "and another"')])
    yield "end", request([whole], items, end=b"x")
    values = pickle.dumps({"lr": 0.5, "betas": (0.9, 0.95), "big": 2**90, "seen": {1, 2}, "raw": b"\0\xff"}, 4)
    yield "values", request([whole], items, values=values)
    yield "values-list", request([whole], [], values=pickle.dumps([1], 4))
    yield "values-key", request([whole], [], values=pickle.dumps({1: 2}, 4))
    yield "values-end", request([whole], [], values=values + b"x")
    yield "values-cut", request([whole], [], values=values[:-2])
    yield "twice", request([whole], [("lr", "1")], values=values)
    files = (path.read_bytes() for name, path in cases(["torch-file"]) if not name.startswith("bad") and path.is_file())
    stored = min((content for content in files if content.startswith(b"PK")), key=len)
    yield "files", request([whole], items, files=[("file", stored)], values=values)
    yield "files-no", request([whole], [], files=[("file", b"no file")])
    yield "files-many", request([whole], [], file_count=1 << 60)
    yield "files-cut", request([whole], [], files=[("file", b"abc")])[:-2]
    yield "sharded", request([], [], sharded=b"\1" + struct.pack("<Q", 17) + b"SDS2" + bytes(13))
    yield "sharded-cut", request([], [], sharded=b"\1" + struct.pack("<Q", 1 << 40))
    yield "cut", request([whole, *halves], items)[:-4]


def small_arrays():
    """An array's document and its first two chunks, as fuzz_zarr.c has them."""
    for name, path in cases(["zarr"]):
        for document in sorted([*path.rglob("zarr.json"), *path.rglob(".zarray")]) if path.is_dir() else []:
            folder, text = document.parent, document.read_bytes()
            chunks = [file.read_bytes() for file in files_of(folder) if file != document and not file.name.startswith(".z")
                      and file.name != "zarr.json"][:2]
            first, second = (chunks + [b"", b""])[:2]
            if len(text) < 4096 and len(first) < 256 and len(second) < 4096:
                form = 1 if document.name == "zarr.json" else 2 if (folder / "0.0").is_file() else 0
                yield f"{name}-{folder.name}", bytes([form, len(text) & 255, len(text) >> 8, len(first)]) + text + first + second


def text_pickles():
    """Objects in every protocol, text ones too."""
    values = [None, True, 0, -1, 2**31, -(2**31) - 1, 2**70, -(2**70), 0.5, 1e300, "a", "\u00e9\n\\", "\ud800", b"", b"\0\xff",
              bytearray(b"x"), (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [1, [2]], {}, {"a": [1], "b": {}}, {1, 2}, frozenset([3]),
              complex(1, 2), range(3), slice(1, 2), print, int, Ellipsis]
    values.append([values[-8], values[-8], *([values[20]] * 300)])
    for number, value in enumerate(values):
        for protocol in range(6):
            yield f"own-{number}-{protocol}", pickle.dumps(value, protocol)
    for number, text in enumerate([b"(lp0\nI1\naF2.5\nasS'x'\n.", b"(dp0\nS'a'\nI01\nsS'b'\nI00\ns.", b"(ios\nsystem\np0\n.",
                                   b"(cos\nsystem\nS'x'\no.", b"L5L\n.", b"L-99999999999999999999L\n.", b"V\\u00e9\\U0001F600\n.",
                                   b"S'\\x41\\n\\101'\n.", b'S"a\\"b"\n.', b"Pid\n.", b"Fnan\n.", b"F-inf\n.", b"I0x10\n.",
                                   b"T\3\0\0\0abc.", b"U\3abc."]):
        yield f"text-{number}", text


# ---- single files ----

def file_candidates(target, case, index, file):
    name, content = case + (f"-{index}" if index else ""), file.read_bytes()
    is_header = file.suffix == ".safetensors"
    if target == "dcp_metadata" and file.name == ".metadata" or target == "flex_metadata" and file.suffix == ".metadata":
        yield name, content
    elif target == "paddle_save" and file.suffix in (".pdparams", ".pdopt", ".pdtensor", ".distcp"):
        yield name, content
    elif target == "json" and (is_header or file.suffix == ".json"):
        yield name, header_of(content) if is_header else content
    elif target == "pickle":
        yield from ((f"{name}-{i}", data) for i, data in enumerate(pickles_of(file)))
        if file.name == ".metadata":
            yield name, content
    elif target == "safetensors" and (is_header or file.name.endswith("index.json")):
        yield name, (b"\2" if is_header else b"\0") + content
        if is_header and b"DCP_SHARDING_INFO" in content[:4000]:
            try:
                text = json.loads(header_of(content))["__metadata__"]["DCP_SHARDING_INFO"]
                yield name + "-info", b"\1" + text.encode()
            except (ValueError, KeyError, TypeError, AttributeError):
                pass
    elif target in ("torch_save", "zip") and (file.suffix in (".pt", ".pth", ".bin") or content.startswith(b"PK\3\4")):
        yield name, content
        if target == "torch_save":
            yield from ((f"{name}-pickle-{i}", data) for i, data in enumerate(pickles_of(file)))
    elif target == "tar" and content[257:262] == b"ustar":
        yield name, content


def candidates(target):
    """(name, bytes) of everything that may become a seed."""
    texts = {"mapping": mappings, "zarr": small_arrays, "megatron_args": run_args, "model_texts": model_texts, "npy": npy_headers,
             "saver_request": saver_requests, "kept_items": kept_items, "model_shapes": model_configs,
             "sharded": sharded_states, "sidecar": sidecars, "part_record": part_records, "ocdbt": ocdbt_bodies}
    if target in texts:
        yield from texts[target]()
    elif target in PACKED:
        yield from packed_candidates(target)
    else:
        if target == "pickle":
            yield from text_pickles()
        is_paddle = target in ("flex_metadata", "paddle_save")
        for case, path in cases(["paddle"] if is_paddle else ["safetensors", "torch-file", "torch-dcp", "hf-real", "verl"]):
            for index, file in enumerate(files_of(path)):
                yield from file_candidates(target, case, index, file)


# ---- choosing ----

def features_by_file(control):
    """{path: features} out of the file in which libFuzzer notes what it did while merging."""
    lines = control.read_text().splitlines()
    second, count = int(lines[1]), int(lines[0])
    paths, features = lines[2 : 2 + count], {}
    assert second <= count
    for line in lines[2 + count :]:
        words = line.split()
        if words[0] == "FT":
            features[paths[int(words[1])]] = set(map(int, words[2:]))
    return features


def merge(program, work, kept, given, *more):
    """{path: features} of the files that add some: libFuzzer notes for each only what those before it, which are smaller, did not have."""
    control = work / "control"
    subprocess.run([program, "-merge=1", "-timeout=20", f"-merge_control_file={control}", *more, kept, given], check=True, cwd=work,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {path: new for path, new in features_by_file(control).items() if new}


def choose(program, target, found_before, work):
    """(name, bytes) of seeds: those that add coverage, in the order of what they add for their size."""
    given, kept = work / "given", work / "kept"
    given.mkdir()
    kept.mkdir()
    is_packed = target in PACKED
    largest = PACKED_BYTES_MAX if is_packed else 3 * SEED_BYTES_MAX if target in LARGE else SEED_BYTES_MAX
    found = {}
    for name, content in [*candidates(target), *((path.name, path.read_bytes()) for path in found_before)]:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        if content and len(content) <= largest:
            found.setdefault(hashlib.sha1(content).hexdigest(), (name, content))
    for digest, (_, content) in found.items():
        (given / digest).write_bytes(content)
    left = {pathlib.Path(path).name: new for path, new in merge(program, work, kept, given, f"-max_len={largest}").items()}
    best = sorted(left, key=lambda digest: (-len(left[digest]) / len(found[digest][1]) ** 0.3, digest))
    return [found[digest] for digest in best]


def make(target, args):
    corpus = HERE / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    old = sorted(path for path in corpus.iterdir() if not path.name.startswith(("regression-", "found-")))
    before = [path for path in [*old, *((args.grown / target).glob("*") if args.grown else [])] if path.is_file()]
    total = count = 0
    limit = PACKED_CORPUS_BYTES_MAX if target in PACKED else 3 * CORPUS_BYTES_MAX if target in LARGE else CORPUS_BYTES_MAX
    with tempfile.TemporaryDirectory() as work:
        chosen = choose((args.build / "fuzz" / f"fuzz_{target}").resolve(), target, before, pathlib.Path(work))
    for path in old:
        path.unlink()
    for name, content in chosen:
        if total + len(content) <= limit and count < SEEDS_MAX.get(target, SEEDS_MAX_OTHERS):
            (corpus / name).write_bytes(content)
            total, count = total + len(content), count + 1
    print(f"{target}: {count} seeds of {len(chosen)}, {total} bytes", flush=True)


def make_values(target, args):
    """Inputs beside the corpus on which comparisons come out close to where they turn."""
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        (work / "kept").mkdir()
        for path in (HERE / "corpus" / target).iterdir():
            (work / "kept" / path.name).write_bytes(path.read_bytes())
        program = (args.build / "fuzz" / f"fuzz_{target}").resolve()
        left = merge(program, work, work / "kept", (args.values / target).resolve(), "-use_value_profile=1")
    found = {pathlib.Path(path).read_bytes(): new for path, new in left.items() if pathlib.Path(path).parent.name == target}
    inputs = sorted(found.items(), key=lambda item: (-len(item[1]) / (len(item[0]) + 64), item[0]))
    packed, count = b"", 0
    for content, _ in inputs[:VALUES_MAX]:
        if len(packed) + len(content) <= VALUES_BYTES_MAX:
            packed, count = packed + struct.pack("<I", len(content)) + content, count + 1
    (HERE / "values").mkdir(exist_ok=True)
    (HERE / "values" / f"{target}.pack").write_bytes(compress(packed))
    print(f"{target}: {count} values of {len(inputs)}, {len(packed)} bytes", flush=True)


def main():
    targets = [line.split()[0] for line in (HERE / "targets.txt").read_text().splitlines() if line and line[0] not in "# "]
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--from", type=pathlib.Path, dest="grown")
    parser.add_argument("--values", type=pathlib.Path)
    parser.add_argument("targets", nargs="*", default=targets)
    args = parser.parse_intermixed_args()
    for target in args.targets:
        (make_values if args.values else make)(target, args)


main()
