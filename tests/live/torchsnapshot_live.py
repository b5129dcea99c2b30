#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchsnapshot takes snapshots of drawn states, and what reshard shows of them is what was put in. Prints TAP; skips without it.

Drawn: types, shapes, nested dicts and lists, odd keys, numbers as keys, empty containers, values of all kinds; chunks and slabs of drawn
sizes; one rank or several, with sharded tensors, replicated ones, and what each rank has for itself. (0.1.0 cannot save DTensors.)
usage: torchsnapshot_live.py --bin PATH [--count N] [--seed N] [--fixtures FOLDER]
--fixtures makes the cases torchsnapshot-ranks and torchsnapshot-nested of tests/fixtures below FOLDER/torchsnapshot, and nothing else.
"""
import argparse
import collections
import contextlib
import hashlib
import json
import math
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
    from torchsnapshot import Snapshot, StateDict, knobs
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(0)

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32",
         torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64", torch.complex128: "C128"}
KEYS = ["weight", "bias", "a.b", "x/y", "50%", "%2F", "caf\u00e9", "0", "-1", ""]


def raw(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def digest(tensor):
    return NAMES[tensor.dtype], list(tensor.shape), hashlib.sha256(raw(tensor)).hexdigest()


def drawn_tensor(rng, dtype=None, shape=None):
    dtype = dtype or rng.choice(list(NAMES))
    shape = shape or [rng.randint(1, 5) for _ in range(rng.randint(0, 3))]
    if dtype == torch.bfloat16 and math.prod(shape) % 2:  # which torchsnapshot 0.1.0 cannot save
        dtype = torch.float16
    if dtype == torch.bool:
        return torch.tensor([rng.random() < 0.5 for _ in range(math.prod(shape))], dtype=dtype).reshape(shape)
    size = torch.empty(0, dtype=dtype).element_size() * math.prod(shape)
    return torch.frombuffer(bytearray(rng.randbytes(size)), dtype=dtype).reshape(shape).clone()


def drawn_value(rng, depth):
    kind = rng.randrange(12 if depth else 9)
    if kind < 4:
        return drawn_tensor(rng)
    if kind < 9:
        return rng.choice([3, -2 ** 70, True, False, 0.1, float("inf"), -0.0, "text", "caf\u00e9\n", "", b"\x00\xff", None, {1, 2},
                           (1, "a")])
    if kind == 9:
        return [drawn_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    keys = rng.sample([*KEYS, 7, 0, -3], rng.randint(0, 4))
    if len({str(key) for key in keys}) < len(keys):
        keys = [key for key in keys if isinstance(key, str)]
    made = {key: drawn_value(rng, depth - 1) for key in keys}
    made.pop("", None)  # whose file would be a folder
    return collections.OrderedDict(made) if rng.random() < 0.3 else made


def flat(prefix, value, out):
    """What becomes of a state: {key: tensor or value}, parts joined with dots as they are."""
    if isinstance(value, dict) and value:
        for key in value:
            flat(f"{prefix}.{key}", value[key], out)
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            flat(f"{prefix}.{index}", part, out)
    else:
        out[prefix] = value
    return out


def as_json(value):
    """As reshard's listing has it."""
    if isinstance(value, float) and (math.isinf(value) or math.isnan(value)):
        return str(value)
    if isinstance(value, bytes):
        return {"__bytes__": value.hex()}
    if isinstance(value, (set, tuple)):
        return list(value)
    return value


@contextlib.contextmanager
def sizes(rng):
    with knobs.override_max_chunk_size_bytes(rng.choice([40, 100, 1 << 20])), \
            knobs.override_max_shard_size_bytes(rng.choice([40, 100, 1 << 20])), \
            knobs.override_slab_size_threshold_bytes(rng.choice([1, 64, 1 << 20])):
        yield


def run(binary, *words):
    done = subprocess.run([binary, *map(str, words)], capture_output=True, text=True, errors="replace")
    return done.returncode, done.stdout, done.stderr


def compare(binary, path, tensors, values):
    code, out, err = run(binary, "hash", "--json", path)
    if code:
        return err.strip()
    found = {t["key"]: (t["dtype"], t["shape"], t["hash"]) for t in json.loads(out)["tensors"]}
    wrong = [f"{key!r}: {found.get(key)} instead of {tensors.get(key)}" for key in {*found, *tensors} if found.get(key) != tensors.get(key)]
    seen = {item["key"]: item["value"] for item in json.loads(run(binary, "ls", "--items", "--json", path)[1])["items"]}
    wrong += [f"item {key!r}: {seen.get(key, 'none')!r} instead of {value!r}"[:300] for key, value in values.items()
              if key not in seen or seen[key] != as_json(value)]
    code, out, err = run(binary, "verify", "--deep", path)
    return "; ".join(wrong[:3]) or (code and (err or out).strip()) or None


def single(rng, folder):
    """A state of one rank: (path, tensors, values)"""
    state = StateDict(**{f"k{i}": drawn_value(rng, 3) for i in range(rng.randint(0, 6))})
    with sizes(rng):
        Snapshot.take(str(folder / "ckpt"), {"app": state})
    parts = flat("app", dict(state), {})
    return (folder / "ckpt", {k: digest(v) for k, v in parts.items() if isinstance(v, torch.Tensor)},
            {k: v for k, v in parts.items() if not isinstance(v, torch.Tensor)})


# ---- several ranks ----

def rank_main(rank, world, seed, folder, port):
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    rng = random.Random(seed)  # the same of all ranks
    state, tensors, values = {}, {}, {}
    rows = rng.choice([n for n in range(world, 14) if (world - 1) * -(-n // world) < n])  # no rank without rows: 0.1.0 cannot save that
    columns = rng.randint(2, 5)
    full = drawn_tensor(rng, torch.float32, [rows, columns])
    made = sharded_tensor.empty(ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(world)]), rows, columns)
    for shard in made.local_shards():
        (first, _), (count, _) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        shard.tensor.copy_(full[first:first + count])
    state["sharded"], tensors["app.sharded"] = made, digest(full)
    state["nested"] = {"replicated": drawn_tensor(rng), 3: [drawn_tensor(rng)]}
    tensors |= {key: digest(tensor) for key, tensor in flat("app.nested", state["nested"], {}).items()}
    state["step"], state["rank"] = 3, rank
    own = [random.Random(seed * 100 + r) for r in range(world)]
    private = [drawn_tensor(chance, torch.int64, [chance.randint(1, 9), 2]) for chance in own]
    state["own"] = private[rank]
    with sizes(random.Random(seed)):
        Snapshot.take(str(folder / "ckpt"), {"app": StateDict(**state)}, replicated=["app/nested/**"])
    values = {"app.step": 3, "app.rank": 0} | {f"rank_{r}.app.rank": r for r in range(1, world)}
    if rank == 0:
        known = {"tensors": tensors, "values": values, "private": [raw(tensor).hex() for tensor in private]}
        (folder / "known.json").write_text(json.dumps(known))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def several(rng, folder, world=None):
    world = world or rng.choice([2, 3, 4])
    multiprocessing.start_processes(rank_main, (world, rng.randrange(1 << 20), folder, free_port()), nprocs=world, start_method="fork")
    known = json.loads((folder / "known.json").read_text())
    return folder / "ckpt", {k: tuple(v) for k, v in known["tensors"].items()}, known["values"], known["private"]


def private_tensors(binary, path, private):
    """What each rank has for itself, as torch reads what is converted."""
    target = path.parent / "out.pt"
    code, _, err = run(binary, "convert", path, target, "--to", "torch", "--no-sync")
    if code:
        return err.strip()
    state = torch.load(target, weights_only=True)
    found = [state["app"]["own"]] + [state[f"rank_{r}"]["app"]["own"] for r in range(1, len(private))]
    return None if [raw(tensor).hex() for tensor in found] == private else f"tensors of the ranks: {found}"


def case(rng, number, binary, folder):
    if number % 6:
        return compare(binary, *single(rng, folder))
    path, tensors, values, private = several(rng, folder)
    return compare(binary, path, tensors, values) or private_tensors(binary, path, private)


# ---- fixtures ----

def manifest(name, tensors, values, ranks, notes, **more):
    kinds = {bool: "bool", int: "int", float: "float", str: "str", bytes: "bytes"}
    return {"case": name, "family": "torchsnapshot", "producer": {"torchsnapshot": "0.1.0", "torch": torch.__version__},
            "command": "tests/live/torchsnapshot_live.py --fixtures", "path": "ckpt", "world": {"ranks": ranks}, "notes": notes,
            "tensors": {key: {"dtype": dtype, "shape": shape, "sha256": sha256} for key, (dtype, shape, sha256) in tensors.items()},
            "items": {key: {"kind": kinds[type(value)], "value": value} for key, value in values.items()
                      if type(value) in kinds and not isinstance(value, bytes)}, "expect": {"error": None}, **more}


def make_fixtures(top):
    folders = {}
    for name in ("torchsnapshot-ranks", "torchsnapshot-nested"):
        folders[name] = top / "torchsnapshot" / name
        folders[name].mkdir(parents=True)
    _, tensors, values, private = several(random.Random(1), folders["torchsnapshot-ranks"], 4)
    (folders["torchsnapshot-ranks"] / "known.json").unlink()
    made = manifest("torchsnapshot-ranks", tensors, values, 4, ["shards cut further, replicated tensors in chunks, a tensor of each rank"],
                    also={"private": private})
    (folders["torchsnapshot-ranks"] / "manifest.json").write_text(json.dumps(made, indent=1) + "\n")
    seed = next(s for s in range(100) if len(flat("app", {f"k{i}": drawn_value(random.Random(s), 3) for i in range(6)}, {})) > 9)
    _, tensors, values = single(random.Random(seed), folders["torchsnapshot-nested"])
    made = manifest("torchsnapshot-nested", tensors, values, 1, ["nested dicts and lists, odd keys, empty containers, small slabs"])
    (folders["torchsnapshot-nested"] / "manifest.json").write_text(json.dumps(made, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fixtures", type=pathlib.Path)
    args = parser.parse_args()
    if args.fixtures:
        make_fixtures(args.fixtures)
        return
    print(f"1..{args.count}\n# seed {args.seed}")
    failed = 0
    for number in range(1, args.count + 1):
        with tempfile.TemporaryDirectory() as folder:
            complaint = case(random.Random(args.seed * 1000 + number), number, args.bin, pathlib.Path(folder))
        failed += complaint is not None
        print(f"ok {number}" if complaint is None else f"not ok {number} - {complaint[:500]}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
