#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is told of a checkpoint that reads, but is not as it should be: the words, and whether verify takes it for damage. Prints TAP.

usage: told_test.py --bin PATH --fixtures DIR

Each case makes such a checkpoint, of a fixture or by the rules of its format.
"""
import argparse
import json
import pathlib
import pickle
import shutil
import struct
import sys

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

FIXTURES = pathlib.Path()
FLOATS = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def copied(work, name):
    """A fixture, to be changed."""
    folder = FIXTURES / name
    source, target = folder / json.loads((folder / "manifest.json").read_text())["path"], work / "c"
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def shard(path, key, spaces=b"", **metadata):
    text = spaces + json.dumps(({"__metadata__": metadata} if metadata else {}) | {key: FLOATS}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))


def sharded(work, *shards):
    """A folder of files that each have one tensor, with its index."""
    folder = work / "c"
    folder.mkdir()
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, (key, spaces, metadata) in zip(names, shards):
        shard(folder / name, key, spaces, **metadata)
    index = {"metadata": {"total_size": 8 * len(shards)}, "weight_map": {key: name for name, (key, *_) in zip(names, shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def changed_pickle(path, change):
    value = pickle.loads(path.read_bytes())
    change(value)
    path.write_bytes(pickle.dumps(value, 4))


def with_files(folder, **files):
    for name, data in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def vector(number):
    return torch_stub.tensor("FloatStorage", (2,), bytes([number]) * 8)


# ---- cases: a sentence, what makes the checkpoint, the words, whether that is damage, and options ----


def unknown_type(work):
    arguments = (vector(1).storage, 0, (2,), (1,), False, {}, torch_stub.Named("torch", "float3"))
    odd = torch_stub.Call(torch_stub.Named("torch._utils", "_rebuild_tensor_v3"), arguments)
    torch_stub.write_zip(work / "c.pt", {"w": vector(2), "odd": odd})
    return work / "c.pt"


def paddle_file(data, behind=b""):
    def make(work):
        (work / "c.pdparams").write_bytes(pickle.dumps(data, 4) + behind)
        return work / "c.pdparams"
    return make


def zarr(**files):
    array = '{"zarr_format":2,"shape":[3],"chunks":[2],"dtype":"<f4","compressor":null,"filters":null,"fill_value":0,"order":"C"}'

    def make(work):
        return with_files(work / "c", _dot_zgroup='{"zarr_format":2}', w___dot_zarray=array, w__0=bytes(8), w__1=bytes(8), **files)
    return make


def ranks(*values, world=None, **files):
    """Files of ranks that each have one tensor, which are copies of each other, and what else is there."""
    def make(work):
        (work / "c").mkdir()
        for rank, value in enumerate(values):
            torch_stub.write_zip(work / "c" / f"model_world_size_{len(values)}_rank_{rank}.pt", {"w": vector(value)})
        if world:
            files["fsdp_config_dot_json"] = json.dumps({"world_size": world, "FSDP_version": 2})
        return with_files(work / "c", **files)
    return make


def atorch(change):
    def make(work):
        folder = copied(work, "atorch-fsdp/atorch-w2")
        changed_pickle(folder / "ckpt_meta", change)
        return folder
    return make


def fixture_with(name, **files):
    return lambda work: with_files(copied(work, name), **files)


def fixture_without(name, pattern):
    def make(work):
        folder = copied(work, name)
        for path in list(folder.glob(pattern)):
            path.unlink()
        return folder
    return make


def two_models(work):
    step = work / "c"
    for role in "critic", "actor":
        (step / role).mkdir(parents=True)
        torch_stub.write_zip(step / role / "model_world_size_1_rank_0.pt", {"w": vector(1)})
    return step


def listed_and_gone(work):
    folder = copied(work, "megatron/megatron-sem-integrity")
    path = next(folder.rglob("integrity.json"))
    value = json.loads(path.read_text())
    value["files"]["gone"] = "0" * 64
    path.write_text(json.dumps(value))
    return folder


def unused_data(work):
    folder = copied(work, "paddle/paddle-fc-replicas")
    shutil.copy(folder / "0_0.distcp", folder / "9_0.distcp")
    return folder


CASES = [
    ("a tensor of a type that is not known", unknown_type, "a tensor of unknown type torch.float3 is kept as an object", False),
    ("metadata of one file alone", lambda work: sharded(work, ("a", b"", {"format": "pt"}), ("b", b"", {"format": "pt", "step": "7"})),
     "'model-00002-of-00002.safetensors' has metadata that other files do not have; only what all have is kept", False),
    ("white space before a header", lambda work: sharded(work, ("a", b" ", {}), ("b", b"", {})),
     "'model-00001-of-00002.safetensors': white space before the header's object, which the format does not allow", False),
    ("a second index", lambda work: with_files(sharded(work, ("a", b"", {})), model_dot_fp16_dot_safetensors_dot_index_dot_json=json.dumps(
        {"metadata": {}, "weight_map": {}})), "there is another index, 'model.fp16.safetensors.index.json', which is left alone", False),
    ("bytes behind a pickle of Paddle's", paddle_file({"a": 1.5}, b"more"),
     f"4 bytes from byte {len(pickle.dumps({'a': 1.5}, 4))} on, behind the end, are ignored", False),
    ("a class in Paddle's file", paddle_file({"a": 1.5, "b": pathlib.PurePosixPath("x")}),
     "the pickle names pathlib.PurePosixPath; what that makes is an inert value", False, "--lenient"),
    ("an array in both formats of zarr", zarr(w__zarr_dot_json='{"zarr_format":3,"node_type":"array"}'),
     "'w/': described in format 2 and in format 3; format 2 is taken", False),
    ("chunks beyond the shape", zarr(w__2=bytes(8), w__7=bytes(8)), "array 'w': 2 chunks lie beyond its shape and are left out", False),
    ("documents that consolidated metadata has alone", zarr(_dot_zmetadata=json.dumps({"zarr_consolidated_format": 1, "metadata": {
        ".zgroup": {"zarr_format": 2}, "gone/.zgroup": {"zarr_format": 2}}})),
     "consolidated metadata names 1 documents that are not there", False),
    ("no optimizer of rank 0", fixture_without("verl/verl-fsdp2", "**/optim_world_size_*_rank_0.pt"),
     "what they hold is lost", True, "--lenient"),
    ("two models in one step", two_models,
     "'actor' is read; the folder has other models, such as 'critic', which open by their own path", False),
    ("a number of ranks that is none of the files'", ranks(1, 1, world=3), "fsdp_config.json says 3 ranks, but there are files of 2", True),
    ("atorch's version", atorch(lambda meta: meta.update(version=0)),
     "ckpt_meta says version 0, the flat_meta files are of version 1", False),
    ("atorch's ranks", atorch(lambda meta: meta.update(world_size=3)),
     "ckpt_meta says 3 ranks, which 2 ranks with files cannot be shared by", False),
    ("a file of a rank that nobody reads", fixture_with("megatron/megatron-moe-legacy-tp1", iter_0000010__mp_rank_00__more_dot_pt=b"x"),
     "'mp_rank_00/more.pt' is not read, nor is what is like it in other folders", False),
    ("a quantizer's state beside", fixture_with("megatron/megatron-moe-dist-tp1", iter_0000010__modelopt_state__x=b"x"),
     "modelopt_state' is a checkpoint of its own, which is not read with this one", False),
    ("a zarr save without its last file", fixture_without("megatron/megatron-core-zarr-v0.8.0", "**/metadata.json"),
     "there is no metadata.json that says 'zarr': the save may not have been finished", True),
    ("a file that integrity.json lists alone", listed_and_gone, "lists 'gone', which does not exist", True),
    ("data that no metadata refers to", unused_data, "'9_0.distcp': the metadata does not refer to it, though it holds", False),
]


def told(shell, make, text, is_damage, *options):
    done = shell.any("verify", "--json", *options, make(shell.work))
    assert done.stdout, f"exit {done.returncode}: {done.stderr}"
    found = [f for f in json.loads(done.stdout)["findings"] if text in f["text"]]
    assert len(found) == 1, f"exit {done.returncode}: {done.stdout[-1500:]}"
    severity = "failure" if is_damage else "warning"
    assert found[0]["severity"] == severity and done.returncode == is_damage, f"exit {done.returncode}: {done.stdout[-1500:]}"


def main():
    global FIXTURES
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", type=pathlib.Path, required=True)
    args = parser.parse_args()
    FIXTURES = args.fixtures.resolve()
    sys.exit(small_models.run(args.bin, [(name, lambda shell, case=case: told(shell, *case)) for name, *case in CASES]))


main()
