#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads torch_dist checkpoints that reshard wrote through the real megatron-core.

Every good torch_dist case of the fixtures is written anew in several ways (plain, with small chunks over several files, with the
common state as an object, like a reference with integrity.json); dist_checkpointing.load then asks for everything in it, strictly
(raise_all), on one process and, cut along the first axis that divides, on two. Values must be those of the manifest, the common state and
the objects those of the original. The object form is for releases from 0.19 on and is only loaded by those.
Needs torch, megatron-core (pip install --no-deps megatron-core) and einops, numpy, packaging; skips without them.
Usage: torch_dist_test.py [--bin PATH] [--root FIXTURES] [--case GLOB] [--temporary FOLDER]
"""
import argparse
import fnmatch
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402

warnings.filterwarnings("ignore")
try:
    import torch
    torch.cuda.current_device = lambda: "cpu"  # no GPU: megatron-core asks for one in passing
    from megatron.core import __version__ as MEGATRON
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core.dist_checkpointing.serialization import load_sharded_metadata
    from megatron.core.dist_checkpointing.validation import StrictHandling
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(0)

HERE = pathlib.Path(__file__).resolve().parent
WAYS = {
    "plain": [],
    "small chunks": ["-o", "chunk-bytes=64", "--layout", "ranks=3"],
    "object": ["-o", "common=object"],
    "integrity": ["-o", "integrity=yes", "-o", "root=none"],
}


def start(rank, world, rendezvous):
    torch.distributed.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=world)


def folder_of(path):
    return str(next(p.parent for p in sorted(pathlib.Path(path).rglob("metadata.json"))))


def digest(tensor):
    tensor = tensor.detach().cpu().contiguous()
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"").hexdigest()


def cut_axis(shape, world):
    """First axis that world divides, or None: every process asks for the whole tensor then."""
    return next((i for i, n in enumerate(shape) if n >= world and n % world == 0), None) if world > 1 else None


def load_all(folder, rank, world):
    request, axes = {}, {}
    for key, entry in load_sharded_metadata(folder).items():
        if isinstance(entry, ShardedObject):
            entry.replica_id = rank
            request[key] = entry
            continue
        shape = list(entry.global_shape)
        axis = axes[key] = cut_axis(shape, world)
        if axis is None:
            request[key] = ShardedTensor.from_rank_offsets(key, torch.empty(shape, dtype=entry.dtype), replica_id=rank)
        else:
            shape[axis] //= world
            request[key] = ShardedTensor.from_rank_offsets(key, torch.empty(shape, dtype=entry.dtype), (axis, rank, world))
    wanted = set(request)
    loaded = dist_checkpointing.load(request, folder, strict=StrictHandling.RAISE_ALL)
    tensors = {k: (axes[k], loaded[k]) for k in wanted if k in axes}
    return tensors, {k: loaded[k] for k in wanted if k not in axes}, {k: v for k, v in loaded.items() if k not in wanted}


def worker(rank, world, rendezvous, folders, out):
    start(rank, world, rendezvous)
    result = {}
    for name, folder in folders.items():
        try:
            result[name] = load_all(folder, rank, world)
        except BaseException as error:  # DCP's CheckpointException is none of Exception
            result[name] = str(error)[:300]
    torch.save(result, f"{out}.{rank}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def load_with(world, folders, temporary):
    out = tempfile.mktemp(dir=temporary)
    given = world, tempfile.mktemp(dir=temporary), folders, out
    torch.multiprocessing.start_processes(worker, given, nprocs=world, start_method="fork")  # the imports, once, take seconds
    return [torch.load(f"{out}.{rank}", weights_only=False) for rank in range(world)]


def whole(parts, key):
    axis = parts[0][key][0]
    return parts[0][key][1] if axis is None else torch.cat([part[key][1] for part in parts], axis)


def same(a, b):
    """Loaded objects are equal, tensors and namespaces in them included."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and digest(a) == digest(b)
    if isinstance(a, argparse.Namespace):
        return isinstance(b, argparse.Namespace) and same(vars(a), vars(b))
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "tobytes"):
        return type(a) is type(b) and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return type(a) is type(b) and (a == b or (a != a and b != b))


def expected(manifest):
    """The tensors as they are written: optimizer state that is stored by bucket or flattened becomes that of parameters."""
    related = (manifest.get("also") or {}).get("fully_reshardable") or {}
    if not related or not set(related) - set(manifest["tensors"]):
        return manifest["tensors"], False
    weights = {k: v for k, v in manifest["tensors"].items() if "optimizer." not in k}
    return {**weights, **related}, True


def complaints(name, results, original, manifest):
    parts = [result[name] for result in results]
    broken = [p for p in parts if isinstance(p, str)]
    if broken:
        return broken[:1]
    tensors = [p[0] for p in parts]
    manifest, is_related = expected(manifest)
    bad = [f"missing {k}" for k in manifest if k not in tensors[0]]
    bad += [f"{k}: other values" for k, w in manifest.items() if k in tensors[0] and digest(whole(tensors, k)) != w["sha256"]]
    if not isinstance(original, str):
        _, objects, common = original
        if is_related:  # what describes how it was stored goes with it
            objects = {k: v for k, v in objects.items() if "optimizer." not in k}
            common = {k: v for k, v in common.items() if k not in ("optimizer", "content_metadata")}
        for part in parts:
            bad += [f"object {k}" for k in objects if not same(objects[k], part[1].get(k))]
            bad += [f"common state {k}" for k in common if not same(common[k], part[2].get(k))]
    return bad


def good_cases(root, glob):
    """(manifest, folder) of those that are stored as torch_dist."""
    for path in sorted((root / "megatron").glob("*/manifest.json")):
        manifest = json.loads(path.read_text())
        source = path.parent / manifest["path"]
        if not manifest["expect"]["error"] and fnmatch.fnmatch(manifest["case"], glob) and list(source.rglob(".metadata")):
            yield manifest, source


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(HERE.parents[1] / "build/reshard"))
    parser.add_argument("--root", default=str(HERE.parents[1] / "build/tests/fixtures"))
    parser.add_argument("--case", default="*")
    parser.add_argument("--temporary")
    draw.add_options(parser, 0.15)
    options = parser.parse_args()
    cases = draw.Draw(options).of(good_cases(pathlib.Path(options.root).resolve(), options.case))
    with tempfile.TemporaryDirectory(dir=options.temporary) as temporary:
        folders, originals, manifests = {}, {}, {}
        for manifest, source in cases:
            for way, words in WAYS.items():
                if way == "object" and tuple(map(int, MEGATRON.split(".")[:2])) < (0, 19):
                    continue
                name = f"{manifest['case']}, {way}"
                target = pathlib.Path(temporary) / f"{manifest['case']}.{len(folders)}"
                run = subprocess.run([options.bin, "convert", str(source), str(target), "--to", "torch_dist", "--quiet", *words],
                                     capture_output=True, text=True)
                if run.returncode:
                    print(f"not ok - {name}: {run.stderr.strip()}")
                    continue
                folders[name], originals[name], manifests[name] = folder_of(target), f"original of {manifest['case']}", manifest
                folders[originals[name]] = folder_of(source)
        failed, count = 0, 0
        for world in (1, 2):
            results = load_with(world, folders, temporary)
            for name in manifests:
                original = results[0][originals[name]]
                count += 1
                if isinstance(original, str) and str(results[0][name]).startswith("Weights only load failed"):
                    print(f"ok {count} - {name}, world {world} # SKIP this Megatron lacks classes of it, and of the original")
                    continue
                bad = complaints(name, results, original, manifests[name])
                failed += bool(bad)
                print(f"{'not ok' if bad else 'ok'} {count} - {name}, world {world}" + (": " + "; ".join(bad[:4]) if bad else ""))
        print(f"1..{count}")
    return bool(failed) or not count


if __name__ == "__main__":
    sys.exit(main())
