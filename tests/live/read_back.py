# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints with the real library: a line [kind, path] in JSON comes in, a line with its tensors, or {"error": …}, goes out.

kind is hf, torch or torch-dcp. One process serves many checkpoints, because importing torch takes seconds.
"""
import hashlib
import json
import pathlib
import sys

import torch

NAMES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64",
         "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3",
         "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
         "complex64": "C64", "complex128": "C128"}


def tensors(value, path=(), above=()):
    """(joined path, tensor); a container inside itself is left out."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path), value
    elif isinstance(value, (dict, list, tuple)) and id(value) not in above:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from tensors(inner, (*path, str(key)), (*above, id(value)))


def load(kind, path):
    if kind == "hf":
        from safetensors.torch import load_file
        files = sorted(pathlib.Path(path).glob("*.safetensors")) if pathlib.Path(path).is_dir() else [path]
        return {key: value for file in files for key, value in load_file(file).items()}
    if kind == "torch":
        return torch.load(path, weights_only=False)
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    state = {}
    _load_state_dict(state, storage_reader=FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def rows_of(kind, path):
    rows = []
    for key, tensor in dict(tensors(load(kind, path))).items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
            continue
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        name = str(tensor.dtype).removeprefix("torch.")
        rows.append({"key": key, "dtype": NAMES.get(name, name), "shape": list(tensor.shape), "hash": hashlib.sha256(data).hexdigest()})
    return rows


def main():
    for line in sys.stdin:
        try:
            answer = rows_of(*json.loads(line))
        except BaseException as problem:  # torch's CheckpointException is no Exception
            answer = {"error": f"{type(problem).__name__}: {problem}"[:2000]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
