#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of flat parameters, and trees of rank files, as the real atorch and torch read them.

usage: flat_and_ranks.py flat DIR MANIFEST
       flat_and_ranks.py ranks DIR MANIFEST
flat: atorch loads every tensor by name and every optimizer state (ShardTensorUtil, ShardOptim); then as jobs of other world sizes read
them (load_flat_param_by_name, FSDP.shard_full_optim_state_dict), against what torch's FSDP1 cuts itself.
ranks: each rank's file in a process of its own: full_tensor() or gather(), load_state_dict into fully_shard or FSDP1, the optimizer into
AdamW; then verl's own merger where it can.
Prints "N tensors equal ..." and exits 0, else the first complaints and 1. Needs what requirements-atorch*.txt say.
"""
import contextlib
import datetime
import hashlib
import importlib.util
import io
import json
import logging
import os
import pathlib
import pickle
import re
import signal
import sys
import tempfile
import types
import warnings
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

import forks

N = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32", "uint64": "U64",
     "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3",
     "float8_e5m2": "F8_E5M2", "complex64": "C64", "complex128": "C128"}
N = {getattr(torch, name): ours for name, ours in N.items()}

warnings.filterwarnings("ignore")
torch.cuda.current_device = torch.cuda.synchronize = lambda *a: None  # atorch calls them for CPU too
torch.set_num_threads(1)
CPU = torch.device("cpu")


def raw(t):
    t = t.detach().contiguous()
    return t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def entry(t):
    return {"dtype": N.get(t.dtype, str(t.dtype)), "shape": list(t.shape), "sha256": hashlib.sha256(raw(t)).hexdigest()}


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def differs(t, want):
    """What is wrong with t, or nothing."""
    got = entry(t)
    return (
        ""
        if all(got[k] == want[k] for k in got)
        else (
            f"{got['dtype']}{got['shape']} instead of {want['dtype']}{want['shape']}"
            if t.shape != torch.Size(want["shape"]) or got["dtype"] != want["dtype"]
            else "other bytes"
        )
    )


def memory(t, strides):
    """A dense tensor's elements in the order of these strides, as FSDP flattens it."""
    if not t.dim() or strides is None:
        return t.reshape(-1)
    return torch.empty_strided(t.shape, strides, dtype=t.dtype).copy_(t).as_strided((t.numel(),), (1,))


def restore(flat, shape, strides):
    return flat.reshape(shape) if strides is None or not flat.numel() else flat.as_strided(tuple(shape), tuple(strides))


def plain(v):
    """The JSON form that manifests have."""
    if isinstance(v, torch.Tensor):
        return {"tensor": entry(v)}
    if isinstance(v, dict):
        return {str(k): plain(x) for k, x in v.items()}
    return [plain(x) for x in (sorted(v) if isinstance(v, set) else v)] if isinstance(v, (list, tuple, set)) else v


# ---- atorch ---------------------------------------------------------------------------------------------------------------------


def compute_type(meta, dtype):
    """The mixed-precision type whose 16-byte alignment gives these runs (None: the stored one)."""
    for t in (dtype, torch.bfloat16, torch.float32, torch.float64):
        runs, a = [], 16 // t.itemsize
        for n in meta["numels"]:
            runs += [a - sum(runs) % a] * (sum(runs) % a > 0) + [n]
        if tuple(runs) == tuple(meta["numels_with_padding"][: len(runs)]):
            return None if t == dtype else t
    raise ValueError(f"numels_with_padding {meta['numels_with_padding']} fit no alignment")


class Fsdp:
    """The model that a flat folder tells of, wrapped by torch's FSDP1 as one rank of a world that is not there."""

    def __init__(self, units, params, strides, groups, types, orig, rank, world):
        from torch.distributed.fsdp._common_utils import clean_tensor_name as clean
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        own = {u: dist.new_group(g) for u, g in groups.items()}
        self.root = nn.Module()
        for unit in sorted(
            units, key=lambda u: u.count(".") if u else -1
        ):  # outer units first: modules stand in the order of their parameters
            for k in units[unit]:
                *path, leaf = k.split(".")
                m = self.root
                for p in path:
                    p in m._modules or m.add_module(p, nn.Module())
                    m = m._modules[p]
                t = params[k].detach()
                m.register_parameter(leaf, nn.Parameter(restore(memory(t, strides.get(k)).clone(), t.shape, strides.get(k))))
        for unit in sorted({*units, ""}, key=lambda u: -u.count(".") if u else 1):
            kw = dict(
                use_orig_params=orig,
                device_id=CPU,
                process_group=own.get(unit),
                mixed_precision=MixedPrecision(param_dtype=types[unit]) if types.get(unit) else None,
            )
            if unit:
                *path, leaf = unit.split(".")
                m = self.root
                for p in path:
                    m = m._modules[p]
                m._modules[leaf] = FSDP(m._modules[leaf], **kw)
        self.root = FSDP(self.root, **kw)
        self.handles = {clean(n) if n else "": m._handle for n, m in self.root.named_modules() if isinstance(m, FSDP) and m._handle}
        self.names = [clean(n) for n, _ in self.root.named_parameters()]

    def end(self):
        dist.destroy_process_group()


def optim_pieces(d):
    """Optimizer files read without atorch, for what it cannot: key -> pieces in rank order."""
    from safetensors import safe_open

    out = defaultdict(list)
    for f in sorted(d.glob("optim_param*")):
        with safe_open(f, framework="pt") as s:
            for k in s.keys():
                out[k].append(s.get_tensor(k))
    return out


def join(pieces, shape):
    return pieces[-1] if pieces[0].dim() != 1 else torch.cat(pieces).reshape(shape)


def flat(d, manifest, release="0.2.5", is_rewrapped=False):
    """is_rewrapped: of other units than the manifest's folder."""
    d, m = pathlib.Path(d), json.loads(pathlib.Path(manifest).read_text())
    d = next((p.parent for p in sorted(d.rglob("flat_param.*"))), d)
    want, also, bad, seen = m["tensors"], m["also"], [], set()
    logging.disable(logging.WARNING)
    sys.modules.setdefault("pynvml", types.ModuleType("pynvml"))
    if release != "0.2.5":  # that of version 0, in place of the one that may be there
        sys.path.insert(0, os.path.join(sys.prefix, "atorch0"))
        for name in [name for name in sys.modules if name.split(".")[0] == "atorch"]:
            del sys.modules[name]
    from atorch.utils import fsdp_save_util as util
    from torch.distributed.fsdp._common_utils import clean_tensor_name as clean
    from atorch.distributed.distributed import _DistributedContext as ctx, _prefix_pg_name

    def expert(e, size):  # what atorch asks about this rank's place
        ctx.PARALLEL_RANK, ctx.PARALLEL_GROUP_SIZE = {_prefix_pg_name("expert"): e}, {_prefix_pg_name("expert"): size}

    def check(k, t, w=None):
        seen.add(k)
        w = w or want.get(k)
        why = differs(t, w) if w else "not in the manifest"
        why and bad.append(f"{k}: {why}")

    # by name
    u = util.ShardTensorUtil(str(d), 0, 1, device="cpu")
    world, v0, old = u.shard_nums, not (d / "ckpt_meta").exists(), release != "0.2.5"
    meta = {k: v[0] for k, v in u.param_meta.items()}
    strides = {k: v["param_strides"] for k, v in meta.items() if not v.get("param_contiguities", True)}
    units, runs = defaultdict(list), {} if v0 else {k: v[0] for k, v in u.flat_param_meta.items()}
    for k, v in meta.items():
        units[v["striped_fsdp_name"]].append(k)
    experts = {x: len(f["expert_ranks"]) for x, f in runs.items() if "expert_ranks" in f}
    ne = next(iter(experts.values()), 1)
    unit_of = {k: v["striped_fsdp_name"] for k, v in meta.items()}
    params = [dict() for _ in range(ne)]  # by expert rank
    for k in [*u.buffers.keys(), *meta]:
        if unit_of.get(k) in experts:  # atorch joins the pieces of all expert ranks; taken per expert rank, below
            for e in range(ne):
                of = lambda x: u.flat_param_meta[unit_of[k]][x["rank"]]
                mine = sorted(
                    (of(x)["expert_fsdp_rank"], x["rank"], x["param_offsets"]) for x in u.param_meta[k] if of(x)["expert_rank"] == e
                )
                t = params[e][k] = torch.cat([u.rank_fds[r].get_slice(unit_of[k])[slice(*o)] for _, r, o in mine]).reshape(
                    meta[k]["param_shapes"]
                )
                check(f"{k} of expert {e}", t, also["expert_tensors"][k][e])
            continue
        t = u.load_tensor_by_name(k)
        if k in strides:  # atorch ignores the strides; its scrambled tensor is known
            check(k, t, (also.get("atorch_by_name") or {}).get(k))
            t = restore(t.reshape(-1), t.shape, strides[k])
        check(k, t)
        if k in meta:
            for e in range(ne):
                params[e][k] = t

    names = {p.name for p in d.iterdir() if p.name.startswith(("flat_", "optim_param"))}  # atorch looks at their number only
    names ^= {
        f"{k}.{r:05}-{world:05}"
        for k in ["flat_param", "flat_meta"] + ["optim_param"] * any(n.startswith("optim") for n in names)
        for r in range(world)
    }
    bad += [f"file {n}: {'not of this checkpoint' if (d / n).exists() else 'missing'}" for n in sorted(names)]

    # optimizer, by name
    orig, pieces, so = "stored_optimizer_keys" not in also, optim_pieces(d), None
    states = [defaultdict(dict) for _ in range(ne)]
    shape = {k: tuple(v["param_shapes"]) for k, v in meta.items()}
    named = any("-" in k for k in meta)  # atorch splits keys at every hyphen
    if pieces and orig and not named:
        expert(0, ne)
        so = util.ShardOptim(str(d))
        for k in meta:
            for s in so.state_dict[k]:
                for e in range(ne if unit_of[k] in experts else 1):
                    expert(e, ne)
                    t = so.state_dict["state"][k]
                    t = (
                        t.load_tensor_by_param_and_state_name(s, 0, meta[k]["param_numels"])
                        if t.check_1d(s)
                        else t.load_tensor_by_param_and_state_name(s)
                    )
                    if t.dim() == 1 and t.numel() == meta[k]["param_numels"] and (world > 1 or len(shape[k]) == 1):
                        t = restore(t, shape[k], strides.get(k))
                    check(
                        f"{k}-{s} of expert {e}" if unit_of[k] in experts else f"{k}-{s}",
                        t,
                        also["expert_tensors"][f"{k}-{s}"][e] if unit_of[k] in experts else None,
                    )
                    for f in range(ne) if unit_of[k] not in experts else [e]:
                        states[f][k][s] = t
        stray = {k for k in pieces if k.rsplit("-", 1)[0] not in meta}
        bad.extend(f"{k}: an optimizer state of no parameter" for k in stray)
    elif pieces and orig:
        for k, v in pieces.items():
            check(k, join(v, shape[k.rsplit("-", 1)[0]]))
    elif pieces:  # one flat state a unit, which ShardOptim cannot load
        for k, v in pieces.items():
            x, s = k.rsplit("-", 1)
            t, at = join(v, (-1,)), 0
            for p in units[x.removesuffix("_flat_param").removesuffix(".")]:
                n = meta[p]["param_numels"]
                check(f"{p}-{s}", t if not t.dim() else restore(t[at : at + n], shape[p], strides.get(p)))
                at += n
    for k, v in pieces.items():
        if v[0].dim() != 1 and any(not same(v[0], x) for x in v):
            bad.append(f"{k}: ranks disagree")
    if "optim_meta" in m["items"]:
        got, ours = m["items"]["optim_meta"]["value"], plain(pickle.loads((d / "optim_meta").read_bytes()))
        all_of = lambda groups: sorted(p for g in groups for p in g["params"])
        if all_of(got) != all_of(ours) and (orig or not is_rewrapped):  # without original parameters the names are those of units
            bad.append("optim_meta: other parameters")
        bad += [
            f"optim_meta: group {i} has other options" for i, g in enumerate(ours) for w in got if w["params"] == g["params"] and w != g
        ]
    if not v0 and "ckpt_meta" in m["items"]:
        ours, w = plain(u.ckpt_meta), m["items"]["ckpt_meta"]["value"]
        members = ["version"] if is_rewrapped else ["version", "wrap_class"]
        bad += [f"ckpt_meta: {k} {ours.get(k)} instead of {w[k]}" for k in members if ours.get(k) != w[k]]
    for f, at in (("lora_weight", lambda x: x), ("lora_optim", lambda x: {f"{k}-{s}": t for k, v in x.items() for s, t in v.items()})):
        if f in also:
            got = torch.load(d / f, weights_only=False)
            got, w = at(got["state"] if f == "lora_optim" else got), at(also[f])
            bad += [f"{f}: {k}" for k in {*got, *w} if k not in got or k not in w or differs(got[k], w[k])]
    bad += [f"missing {k}" for k in want if k not in seen]

    # as jobs of this and of other world sizes read it; only where all above is right: that is what it is held against
    shards = cut = 0
    if not bad:
        dtype = {x: u.rank_fds[0].get_slice(x).get_dtype() for x in units}
        back = {v: k for k, v in N.items()}
        types_ = {x: compute_type(runs[x], back[dtype[x]]) for x in units} if orig and not v0 else {}
        for w in sorted({world} if experts or old else {1, 2, world, world + 1, 7}):
            for r in range(w):
                groups, e = {}, 0
                for x in experts:
                    groups[x], e = u.flat_param_meta[x][r]["expert_fsdp_ranks"], u.flat_param_meta[x][r]["expert_rank"]
                expert(e, ne)
                model = Fsdp(units, params[e], strides, groups, types_, orig, r, w)
                mine = util.ShardTensorUtil(str(d), r, w, device="cpu")
                try:
                    for x, h in model.handles.items():
                        fp, at = h.flat_param, f"unit {x!r}, rank {r} of {w}"
                        if w == world:  # the file itself
                            shards += 1
                            same(u.rank_fds[r].get_tensor(x), fp.data) or bad.append(f"{at}: the stored shard is not FSDP's")
                            if orig and not v0:
                                have = u.flat_param_meta[x][r]
                                for f, v in (
                                    ("numels", fp._numels),
                                    ("numels_with_padding", fp._numels_with_padding),
                                    ("is_padding_mask", fp._is_padding_mask),
                                ):
                                    tuple(have[f]) == tuple(v) or bad.append(f"{at}: {f} {have[f]} instead of {v}")
                                have["flat_numel"] == fp.numel() or bad.append(
                                    f"{at}: flat_numel {have['flat_numel']} instead of {fp.numel()}"
                                )
                            for k, i, t in zip(units[x], fp._shard_param_infos, fp._shapes):
                                have = [
                                    (
                                        tuple(p["param_offsets"]),
                                        tuple(p["param_shapes"]),
                                        p["param_numels"],
                                        p["pad"],
                                        p["striped_fsdp_name"],
                                        clean(p["param_names"]),
                                    )
                                    for p in u.param_meta[k]
                                    if p["rank"] == r
                                ]
                                exp = (i.offset_in_shard, i.offset_in_shard + i.numel_in_shard) if i.in_shard else None
                                exp = (
                                    [(exp, tuple(t), t.numel(), getattr(fp, "_shard_numel_padded", 0), x, k.removeprefix(x + "."))]
                                    if exp
                                    else []
                                )
                                if t.numel() and have != exp:  # a parameter without elements is in the shard of one rank, at any place
                                    bad.append(f"{at}: {k}: {have} instead of {exp}")
                        tail = fp._numels_with_padding[-1] if fp._is_padding_mask[-1] else 0
                        if (
                            v0 and not old or not orig or tail > fp.numel()
                        ):  # no re-cut of version 0; the final padding is in no run list; padding of more than a shard
                            continue
                        view = types.SimpleNamespace(
                            world_size=h.world_size,
                            rank=h.rank,
                            flat_param=types.SimpleNamespace(
                                size=lambda i, n=sum(fp._numels_with_padding): n,
                                _numels_with_padding=fp._numels_with_padding,
                                _is_padding_mask=fp._is_padding_mask,
                            ),
                        )
                        got = mine.load_flat_param_by_name(x) if old else mine.load_flat_param_by_name(x, view)[0]
                        ok = same(got, fp.data)
                        if got.dtype != fp.dtype:  # the last rank's padding makes it float32, NaN payloads are lost
                            ok = got.shape == fp.shape and torch.equal(*(torch.nan_to_num(y.double(), nan=7.25) for y in (got, fp.data)))
                        shards += 1
                        ok or bad.append(f"{at}: re-cut by atorch to something else than FSDP cuts")
                    if so and (world > 1 or w == 1):  # states of one rank keep their shape, which atorch takes for scalars
                        got = so.reshard_optim_state_dict(model.root)["state"]
                        for x, h in model.handles.items():
                            for k, i in zip(units[x], h.flat_param._shard_param_infos):
                                have = got.get(model.names.index(k), got.get(k, {}))
                                for s, t in states[e][k].items() if i.in_shard and i.numel_in_shard else ():
                                    exp = (
                                        t
                                        if not t.dim() or world == 1
                                        else memory(t, strides.get(k))[i.intra_param_start_idx : i.intra_param_end_idx + 1]
                                    )
                                    cut += 1
                                    s in have and same(have[s], exp) or bad.append(
                                        f"{k}-{s}, rank {r} of {w}: re-cut by atorch to something else"
                                    )
                finally:
                    model.end()
    return bad, f"{len(seen)} tensors equal; {shards} shards and {cut} optimizer pieces as FSDP cuts them"


def flat_of_both(d, manifest, is_rewrapped=False):
    """By this atorch, and what it wrote before it had ckpt_meta also by that of version 0."""
    bad, line = forks.answer_of(lambda: flat(d, manifest, is_rewrapped=is_rewrapped))
    if not list(pathlib.Path(d).rglob("ckpt_meta")) and os.path.isdir(os.path.join(sys.prefix, "atorch0")):
        bad += [f"atorch 0.1.4: {x}" for x in forks.answer_of(lambda: flat(d, manifest, "0.1.4"))[0]]
    return bad, line


# ---- per-rank torch files ---------------------------------------------------------------------------------------------------------

NAMED = re.compile(
    r"(?P<what>model|optim|extra_state)_world_size_(?P<w>\d+)_rank_(?P<r>\d+)\.pt|"
    r"(?P<acc>pytorch_model_fsdp|optimizer)_0_rank(?P<r2>\d+)\.bin"
)


def rank_files(d):
    """{what: {rank: file}} and the world size; complains of what does not fit together."""
    files, worlds = defaultdict(dict), set()
    for p in sorted(pathlib.Path(d).rglob("*")):
        if x := NAMED.fullmatch(p.name):
            what = x["what"] or {"pytorch_model_fsdp": "model", "optimizer": "optim"}[x["acc"]]
            files[what][int(x["r"] or x["r2"])] = p
            worlds |= {int(x["w"])} if x["w"] else set()
    world = worlds.pop() if worlds else len(files["model"])
    bad = [f"files of {world} and {w} ranks" for w in worlds]
    bad += [f"{k}: ranks {sorted(v)} of {world}" for k, v in files.items() if sorted(v) != list(range(world))]
    for c in pathlib.Path(d).rglob("fsdp_config.json"):
        bad += [f"fsdp_config.json: {json.loads(c.read_text())}"] if json.loads(c.read_text())["world_size"] != world else []
    return files, world, bad if files["model"] else ["no rank files"]


def empty_model(want, dtypes, trained):
    """Modules that hold parameters (and, for the rest, buffers) of these names, all zero."""
    root = nn.Module()
    for k, w in want.items():
        *path, leaf = k.split(".")
        m = root
        for p in path:
            p in m._modules or m.add_module(p, nn.Module())
            m = m._modules[p]
        t = torch.zeros(w["shape"], dtype=dtypes[w["dtype"]])
        m.register_parameter(leaf, nn.Parameter(t)) if k in trained else m.register_buffer(leaf, t)
    return root


def one_rank(rank, world, files, m, real, rendezvous):
    """What is wrong with the checkpoint as this rank sees it."""
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType, fully_shard
    from torch.distributed.tensor import DTensor

    dist.init_process_group(
        "gloo", init_method="file://" + rendezvous, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60)
    )
    want, also, bad, dtypes = m["tensors"], m["also"], [], {v: k for k, v in N.items()}
    load = lambda what: torch.load(files[what][rank], weights_only=False, map_location="cpu")
    sd = load("model")
    root = next((t.device_mesh for t in sd.values() if isinstance(t, DTensor)), None)
    while root is not None and getattr(root, "_root_mesh", None) is not None:
        root = root._root_mesh
    shape, names = (tuple(root.mesh.shape), root.mesh_dim_names) if root is not None else ((world,), ("fsdp",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)

    def full(t):
        if isinstance(t, ShardedTensor):
            out = torch.empty(t.size(), dtype=t.dtype)
            t.gather(0, out if rank == 0 else None)
            dist.broadcast(out.view(torch.uint8) if out.dim() else out, 0)
            return out
        if not isinstance(t, DTensor):
            return t
        own = mesh if t.device_mesh.mesh_dim_names == names else mesh[t.device_mesh.mesh_dim_names]
        if own.mesh.tolist() != t.device_mesh.mesh.tolist():
            bad.append(f"rank {rank}: mesh {t.device_mesh} instead of {own}")
        return DTensor.from_local(t._local_tensor, own, t.placements, run_check=False, shape=t.shape, stride=t.stride()).full_tensor()

    def hold(k, t, w, how=""):
        why = differs(t.detach(), w)
        why and bad.append(f"rank {rank}{how}: {k}: {why}")

    def stop():  # together: a rank that goes on alone would wait for the others
        dist.all_gather_object(all_bad := [None] * world, len(bad))
        return any(all_bad)

    states = {str(k): v for k, v in load("optim")["state"].items()} if "optim" in files else {}
    moments = also.get("optimizer_tensors") if "optim" in files else {}
    form = lambda t: (type(t), tuple(t.shape), t.placements if isinstance(t, DTensor) else None)
    dist.all_gather_object(forms := [None] * world, {k: form(t) for k, t in sd.items()})
    bad += [f"rank {rank}: {'extra' if k in sd else 'missing'} {k}" for k in sorted({*sd} ^ {*want})]
    bad += [f"rank {rank}: {k}: {form(t)[1:]}, on rank 0 {forms[0].get(k)}" for k, t in sd.items() if form(t) != forms[0].get(k)]
    bad += [f"rank {rank}: optimizer {k}: {sorted(states.get(k, {}))}" for k, w in moments.items() if {*states.get(k, {})} != {*w}]
    if stop():
        return bad
    for k, w in want.items():
        hold(k, full(sd[k]), w)
    for k, w in moments.items():
        for s in w:
            hold(f"{k}-{s}", full(states[k][s]), w[s])
    local = not also.get("optimizer_tensors")  # FSDP1: flat local pieces, whose intervals no file tells: equal to those that verl wrote
    if local and "optim" in files and world == m["world"]["ranks"]:
        name = files["optim"][rank].name
        a, b = load("optim")["state"], torch.load(next(real.rglob(name)), weights_only=False)["state"]
        bad += [
            f"rank {rank}: optimizer {k}: other than verl's"
            for k in {*a, *b}
            if k not in a or k not in b or {*a[k]} != {*b[k]} or any(not same(a[k][s], b[k][s]) for s in b[k])
        ]
    if "extra_state" in files:
        x, w = load("extra_state"), m["items"].get("extra_state.lr_scheduler.last_epoch")
        bad += (
            [f"rank {rank}: extra_state: {sorted(x)}"]
            if {*x} != {"lr_scheduler", "rng"} or w and x["lr_scheduler"]["last_epoch"] != w["value"]
            else []
        )

    # a job goes on from these files, as verl and accelerate load them
    split = {k for k, t in sd.items() if isinstance(t, (DTensor, ShardedTensor))}
    if not stop() and "tp" not in (names or ()):
        model = empty_model(want, dtypes, split)
        if local:
            model = FSDP(model, device_mesh=mesh if root is not None else None, device_id=CPU, use_orig_params=True)
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
                model.load_state_dict(load("model"))
            with FSDP.summon_full_params(model, writeback=False):
                for k, t in [*model._fsdp_wrapped_module.named_parameters(), *model._fsdp_wrapped_module.named_buffers()]:
                    hold(k, t.clone(), want[k], " FSDP1")
        else:
            fully_shard(model, mesh=mesh)
            model.load_state_dict(load("model"))
            for k, t in model.state_dict().items():
                hold(k, full(t), want[k], " fully_shard")
            if "optim" in files:
                ps, order, got = dict(model.named_parameters()), also.get("optimizer_parameter_order"), load("optim")
                named = order is None  # accelerate: by name
                order = order or list(also["optimizer_tensors"])
                if named:
                    ids = {k: i for i, k in enumerate(order)}
                    got = {
                        "state": {ids[k]: v for k, v in got["state"].items()},
                        "param_groups": [{**g, "params": [ids[k] for k in g["params"]]} for g in got["param_groups"]],
                    }
                optimizer = torch.optim.AdamW([ps[k] for k in order], foreach=False)
                optimizer.load_state_dict(got)
                for i, k in enumerate(order):
                    for s, w in also["optimizer_tensors"][k if named else str(i)].items():
                        hold(f"{k}-{s}", full(optimizer.state[ps[k]][s]), w, " AdamW")
    dist.barrier()
    dist.destroy_process_group()
    return bad


def verl_merger():
    """verl's FSDPModelMerger, without the HF classes that only its last step needs."""
    at = importlib.util.find_spec("verl")
    if not at:
        return None
    folder = os.path.join(os.path.dirname(at.origin), "model_merger")
    for name in ("merger", "merger.base_model_merger"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["merger.base_model_merger"].BaseModelMerger = object
    spec = importlib.util.spec_from_file_location("merger.fsdp_model_merger", os.path.join(folder, "fsdp_model_merger.py"))
    mod = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mod)
    return mod.FSDPModelMerger


def merge(d, m):
    """verl's merger over the folder; it makes bf16 of everything, so against bf16 of what rank files hold. Meshes with tp and
    ShardedTensors are beyond it."""
    from torch.distributed.tensor import DTensor

    x = verl_merger() if m["family"] == "verl" else None
    if not x or "shardedtensor" in m["case"] or "tp" in m["also"]["mesh_dim_names"]:
        return [], ""
    x = x()
    x.config = types.SimpleNamespace(local_dir=str(next(d.rglob("fsdp_config.json")).parent))
    world = x._get_world_size()
    zero = {
        k: t for k, t in x._load_rank_zero_state_dict(world).items() if isinstance(t, DTensor)
    }  # it takes the mesh from the first name: wrong where that is a buffer
    mesh, names = x._extract_device_mesh_info(zero, world)
    with contextlib.redirect_stderr(io.StringIO()):
        got = x._load_and_merge_state_dicts(world, *x._calculate_shard_configuration(mesh, names), names)
    ranks = [torch.load(p, weights_only=False, map_location="cpu") for _, p in sorted(rank_files(d)[0]["model"].items())][: mesh.shape[-1]]
    bad = [f"verl merger: missing {k}" for k in m["tensors"] if k not in got]
    for k, t in got.items():
        v = [r[k] for r in ranks]
        true = (
            (torch.cat([y._local_tensor for y in v], v[0].placements[-1].dim) if v[0].placements[-1].is_shard() else v[0]._local_tensor)
            if isinstance(v[0], DTensor)
            else v[0]
        )
        w = m["tensors"].get(k)
        if w is None or differs(true, w) or not same(t, true.bfloat16()):
            bad.append(f"verl merger: {k}: other bytes")
    return bad, " (verl's merger too)"


def ranks(d, manifest):
    d, m, real = pathlib.Path(d), json.loads(pathlib.Path(manifest).read_text()), pathlib.Path(manifest).parent
    files, world, bad = rank_files(d)
    logging.disable(logging.WARNING)
    if bad:
        return bad, ""
    with tempfile.TemporaryDirectory() as tmp:
        kids = {}
        for r in range(world):  # forked: torch is imported once
            kids[os.fork()] = r
            if 0 in kids:
                try:
                    got, code = one_rank(r, world, files, m, real / m["path"], tmp + "/meet"), 0
                except BaseException as e:
                    got, code = [f"rank {r}: {type(e).__name__}: {(str(e).splitlines() or [''])[0]}"], 2
                pathlib.Path(tmp, str(r)).write_text(json.dumps(got))
                os._exit(code)
        while kids:
            pid, status = os.wait()
            r = kids.pop(pid)
            if os.waitstatus_to_exitcode(status):
                bad += (
                    json.loads(pathlib.Path(tmp, str(r)).read_text())
                    if pathlib.Path(tmp, str(r)).exists()
                    else [f"rank {r} died"] if not bad else []
                )
                for k in kids:  # they would wait for it in vain
                    os.kill(k, signal.SIGKILL)
        bad = bad or [x for p in sorted(pathlib.Path(tmp).glob("[0-9]*")) for x in json.loads(p.read_text())]
    bad, more = (bad, "") if bad else merge(d, m)
    return bad, f"{len(m['tensors'])} tensors equal on each of {world} ranks{more}"


def main(what, *args):
    try:
        bad, line = {"flat": flat_of_both, "ranks": ranks}[what](*args)
    except Exception as e:
        bad, line = [f"{type(e).__name__}: {str(e).strip()[:300]}"], ""
    print("\n".join(bad[:10]) + (f"\nand {len(bad) - 10} more" if len(bad) > 10 else "") if bad else line)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
