#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The 23 failures that were recorded while Paddle's Flex Checkpoint was made to load under every strategy, F1 to F23: what the command
does in each situation. Prints TAP.

usage: failures_test.py --bin PATH [--only F7] [--keep DIR]
"""
import argparse
import copy
import dataclasses
import json
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import tempfile

import strategies as S
from matrix_test import tree_problems

SMALL = dict(layers=4, experts=4, hidden=8, middle=4, heads=8, vocab=8)


class Shell:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work

    def any(self, *arguments):
        return subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, errors="replace", timeout=120,
                              cwd=self.work)

    def __call__(self, *arguments, status=0):
        done = self.any(*arguments)
        said = done.stderr.strip() or done.stdout.strip()
        assert done.returncode == status, f"{' '.join(map(str, arguments))}: exit {done.returncode}, not {status}: {said[:500]}"
        return done.stdout + done.stderr

    def findings(self, verb, *arguments, status=0):
        said = self(verb, "--json", *arguments, status=status)
        return json.loads(said)["findings"]

    def tensors(self, path, *options):
        return {t["key"]: t for t in json.loads(self("hash", "--json", *options, path))["tensors"]}

    def convert(self, source, target, *options, status=0):
        return self("convert", source, target, "--no-sync", *options, status=status)


def of_kind(findings, kind):
    return [f for f in findings if f["kind"] == kind]


def flex(shell, name, model, strategy, keep=lambda shard: True, folder=None):
    """Writes the tree of a model under a strategy, without the shards that keep refuses. Returns its folder."""
    s = S.BY_NAME[strategy]
    held = [[shard for shard in S.shards_of(model, s, place) if keep(shard)] for place in S.places(s)]
    folder = folder or shell.work / name
    S.write_flex(model, S.stored(model, s, held), folder)
    return folder


def same_tensors(shell, path, model, without=()):
    found, wanted = shell.tensors(path), S.manifest(model)
    assert {k: t["hash"] for k, t in found.items()} == {k: t["sha256"] for k, t in wanted.items() if k not in without}, \
        sorted(found.keys() ^ wanted.keys())[:5]


def there_and_back(shell, model, a, b):
    """a to b and back, every shard compared with the generator's trees."""
    source = flex(shell, f"{a}-{b}", model, a)
    for i, (strategy, target) in enumerate(((b, shell.work / f"{a}-{b}-there"), (a, shell.work / f"{a}-{b}-back"))):
        s = S.BY_NAME[strategy]
        shell.convert(source, target, "--to", "paddle-flex", "--layout", s.words)
        problems = tree_problems(model, S.stored(model, s), target)
        assert not problems, problems[:3]
        source = target


# ---- F1 to F23 ----

def f1(shell):
    """dp2 to dp4, moments missing: they were offloaded, so that only master weights were saved. verify --expect-optimizer says so."""
    model = S.language_model(**SMALL)
    whole = flex(shell, "whole", model, "dp2")
    assert not of_kind(shell.findings("verify", "--expect-optimizer", whole), "optimizer")
    offloaded = flex(shell, "offloaded", model, "tp2", lambda shard: "moment" not in shard.key)
    shell.findings("verify", offloaded)  # nothing is wrong with the files
    found = of_kind(shell.findings("verify", "--expect-optimizer", offloaded, status=1), "optimizer")
    trainable = len([k for k in S.manifest(model) if k.endswith(".moment1_0")])
    texts = sorted(f["text"].split(":")[0] for f in found)
    assert texts == [f"the {n} moment is missing for {trainable} of {trainable} weights" for n in ("first", "second")], texts
    assert all("offloaded" in f["text"] for f in found)
    lacking = ("model.norm.weight.beta1_pow_acc_0", "q_proj.weight.w_0")
    half = flex(shell, "half", model, "tp2", lambda shard: not shard.key.endswith(lacking))
    found = of_kind(shell.findings("verify", "--expect-optimizer", half, status=1), "optimizer")
    texts = [f["text"] for f in found]
    assert [f["key"] for f in found] == ["model.layers.0.self_attn.q_proj.weight", "model.norm.weight"], found
    assert texts[0].startswith("the master weight is missing for 5 of ") and "layers.3.self_attn.q_proj.weight" in texts[0], texts
    assert texts[1].startswith("the first beta power is missing for 1 of "), texts


def pickled(model, shards):
    """A file of paddle.save with these shards under their structured names."""
    with S.Pickles():
        state = {shard.key: S.array_of(model, shard) for shard in shards}
        state["StructuredToParameterName@@"] = {shard.key: shard.name for shard in shards}
        return pickle.dumps(state, 4)


def optimizer_file(model, shards):
    """A .pdopt: states by static names, and master weights in a dictionary of their own."""
    with S.Pickles():
        state = {shard.name: S.array_of(model, shard) for shard in shards if not shard.key.endswith(".w_0")}
        masters = [shard for shard in shards if shard.key.endswith(".w_0")]
        state["master_weights"] = {shard.name.replace("_fp32_master_0", ""): S.array_of(model, shard) for shard in masters}
        state["LR_Scheduler"] = {"last_epoch": 3, "last_lr": 0.01}
        return pickle.dumps(state, 4)


def is_weight(shard):
    return not shard.key.endswith((".w_0", *S.STATES))


def f2(shell):
    """sharding4 to dp: model_state_shard00.pdparams, optimizer_shard00.pdopt and so on are one checkpoint, as model_state.pdparams is."""
    model = S.language_model(**SMALL, has_mtp=False)
    for name, strategy, infix in (("sharded", "sharding4-v1", "_shard{:02}"), ("plain", "dp1", "")):
        folder, s = shell.work / name, S.BY_NAME[strategy]
        folder.mkdir()
        for place in S.places(s):
            shards, rank = S.shards_of(model, s, place), infix.format(place.rank)
            (folder / f"model_state{rank}.pdparams").write_bytes(pickled(model, [x for x in shards if is_weight(x)]))
            (folder / f"optimizer{rank}.pdopt").write_bytes(optimizer_file(model, [x for x in shards if not is_weight(x)]))
        same_tensors(shell, folder, model)
    shell("diff", "sharded", "plain", "--items", "ignore")
    shell.convert("sharded", "flex", "--to", "paddle-flex", "--layout", "dp=2")
    same_tensors(shell, "flex", model)


def f3(shell):
    """The package was renamed: metadata of the old module is read, and written where an older generation is asked for."""
    model = S.language_model(**SMALL)
    new = flex(shell, "new", model, "tp2")
    raw = (new / "0.metadata").read_bytes()
    assert S.METADATA_MODULE.encode() in raw
    old = shell.work / "old"
    old.mkdir()
    for path in new.iterdir():
        (old / path.name).write_bytes(path.read_bytes())
    module = S.METADATA_MODULE
    S.METADATA_MODULE = "paddle.distributed.checkpoint.metadata"
    S.Pickles.MODULES = tuple(m for m in S.Pickles.MODULES if not m.startswith("paddle")) + (
        "paddle", "paddle.distributed", "paddle.distributed.checkpoint", S.METADATA_MODULE)
    try:
        S.write_flex(model, S.stored(model, S.BY_NAME["tp2"]), old)
    finally:
        S.METADATA_MODULE = module
    assert b"paddle.distributed.checkpoint.metadata" in (old / "0.metadata").read_bytes()
    same_tensors(shell, old, model)
    shell("diff", old, new)
    for generation, named in (("0", b"paddle.distributed.checkpoint.metadata"), ("2", module.encode())):
        shell.convert(old, f"written{generation}", "--to", "paddle-flex", "-o", f"generation=v{generation}", "--layout", "tp=2")
        assert named in (shell.work / f"written{generation}" / "0.metadata").read_bytes(), generation
        same_tensors(shell, f"written{generation}", model)


def f4(shell):
    """Bugs of training code (fp16 and fp32 gradients added, an ignored flag) leave no trace in files: types stay what they are."""
    model = S.language_model(**SMALL)
    there_and_back(shell, model, "dp2", "tp2")


def alike_weights(path, count, has_all):
    """Weights of one shape, of which two and two begin alike, and the last is a copy of the first. Without has_all every other one has no
    state."""
    tensors, noise = {}, random.Random(5)
    for i in range(count):
        row = noise.randbytes(32) if i % 2 == 0 else row
        value = tensors["layers.0.weight"][2] if i == count - 1 else row + noise.randbytes(32)
        tensors[f"layers.{i}.weight"] = ("float32", (2, 8), value)
    for i in range(0, count, 1 if has_all else 2):
        tensors[f"layers.{i}.weight.moment1_0"] = ("float32", (2, 8), noise.randbytes(64))
    path.write_bytes(S.safetensors_bytes(tensors))


def f5(shell):
    """tp2(ep2) to pp4: embed_tokens.weight.moment1_0 not found, because tied weights have one state. The alias is reported, both get it."""
    model = S.language_model(is_tied=True, **SMALL)
    tied = flex(shell, "tied", model, "tp2ep2")
    found = of_kind(shell.findings("verify", "--deep", tied), "alias")
    assert len(found) == 1 and found[0]["key"] == "lm_head.weight" or "embed_tokens" in found[0]["key"], found
    assert "lm_head.weight" in found[0]["text"] or "embed_tokens.weight" in found[0]["text"], found
    found = shell.findings("verify", "--expect-optimizer", tied)
    shared = of_kind(found, "alias")
    assert [f["key"] for f in shared] == ["model.embed_tokens.weight"] and "lm_head.weight" in shared[0]["text"], shared
    assert not of_kind(found, "optimizer"), found
    # A reference that is not tied wants states under both keys: both get them.
    untied = copy.deepcopy(model)
    for parameter in untied.parameters:
        parameter.tied_to = None
    S.number_names(untied.parameters)
    untied.contents = {}
    reference = flex(shell, "untied", untied, "pp4")
    said = shell.convert(tied, "out", "--like", reference)
    found = shell.tensors("out")
    for state in ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0", "w_0"):
        assert found[f"model.embed_tokens.weight.{state}"]["hash"] == found[f"lm_head.weight.{state}"]["hash"], state
    assert "embed_tokens.weight" in said and "lm_head.weight" in said, said
    # And back: a reference that is tied has them once, and of two that are the same one is left out.
    said = shell.convert("out", "back", "--like", tied, "--verbose", "--verify")
    assert shell.tensors("back") == shell.tensors(tied)
    for state in ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0", "w_0"):
        assert f"dropped: model.embed_tokens.weight.{state}: the same as 'lm_head.weight.{state}'" in said, said
    # Weights that are not tied have states of their own, which no reference takes from them.
    said = shell.convert(reference, "kept", "--like", tied)
    assert shell.tensors("kept") == shell.tensors(reference)
    assert "in the source they are not the same" in said, said
    # The trainer looks for states of a Unified Checkpoint under both names.
    said = shell.convert(tied, "unified", "--to", "paddle-uc", "--rules", "auto", "--layout", "tp=2")
    assert "its loader looks for it under both names" in said, said
    found = shell.tensors("unified")
    for state in S.STATES:
        assert found[f"optimizer:model.embed_tokens.weight/{state}"]["hash"] == found[f"optimizer:lm_head.weight/{state}"]["hash"], state
    masters = [found[f"master_weights:{key}"] for key in ("model.embed_tokens.weight", "lm_head.weight")]
    assert masters[0]["hash"] == masters[1]["hash"], masters
    # However many weights are of one shape, copies are found: none is compared with all the others, and of most one row is read.
    count = 8000
    alike_weights(shell.work / "half.safetensors", count, False)
    alike_weights(shell.work / "all.safetensors", count, True)
    shell.convert("half.safetensors", "more.safetensors", "--like", "all.safetensors")
    found = shell.tensors("more.safetensors")
    assert len(found) == count + count // 2 + 1, len(found)
    assert found[f"layers.{count - 1}.weight.moment1_0"]["hash"] == found["layers.0.weight.moment1_0"]["hash"]


def f6(shell):
    """bias=False: a bias that is not there is missing on both sides, and that is no error."""
    model = S.language_model(**SMALL)
    model.parameters = [p for p in model.parameters if not p.key.endswith(".bias")]
    assert not any("bias" in p.key and not p.is_buffer for p in model.parameters)
    there_and_back(shell, model, "tp2", "pp2")
    shell.findings("verify", "--expect-optimizer", "tp2-pp2-there")
    # Nor is it one if the reference has them and the source has not, or the other way round.
    full = S.language_model(**SMALL)
    reference = flex(shell, "full", full, "pp2")
    shell.convert("tp2-pp2-there", "unbiased", "--like", reference)
    same_tensors(shell, "unbiased", model)
    said = shell.convert(reference, "biased", "--like", "tp2-pp2-there")
    same_tensors(shell, "biased", full)
    biases = [key for key in S.manifest(full) if ".bias" in key]
    assert f"{len(biases)} tensors that the reference does not have" in said, said


def f7(shell):
    """tp2 to tp4: one digest differs, because a callback changes the gate behind the optimizer's back. diff shows where and by how much."""
    model = S.language_model(**SMALL)
    key = "model.layers.3.mlp.gate.weight"
    changed = copy.deepcopy(model)
    dtype, shape, value = S.contents(changed)[key]
    numbers = [*struct.unpack(f"<{len(value) // 4}f", value)]
    numbers[5] += 0.25
    changed.contents[key] = (dtype, shape, struct.pack(f"<{len(numbers)}f", *numbers))
    a, b = flex(shell, "a", model, "tp2"), flex(shell, "b", changed, "tp4")
    found = shell.findings("diff", a, b, status=1)
    assert [(f["key"], f["index"], f["count"]) for f in found] == [(key, 5, 1)] and abs(found[0]["max_difference"] - 0.25) < 1e-6, found
    assert not shell.findings("diff", "--exclude", "*.mlp.gate.weight", a, b)
    assert not shell.findings("diff", "--include", "*.experts.*", a, b)


def f8(shell):
    """tp2(ep2) to pp4: an extra key e_score_correction_bias. It is only on one side, and nothing demands optimizer states of a buffer."""
    model = S.language_model(**SMALL)
    without = copy.deepcopy(model)
    without.parameters = [p for p in without.parameters if not p.is_buffer]
    without.contents = {}
    buffers = {p.key for p in model.parameters if p.is_buffer}
    a, b = flex(shell, "a", model, "tp2ep2"), flex(shell, "b", without, "pp4")
    found = shell.findings("diff", a, b, status=1)
    assert {(f["kind"], f["key"]) for f in found} == {("missing", key) for key in buffers}, found
    found = shell.findings("diff", b, a, status=1)
    assert {(f["kind"], f["key"]) for f in found} == {("unexpected", key) for key in buffers}, found
    assert not shell.findings("diff", "--exclude", "*.e_score_correction_bias", a, b)
    shell.findings("verify", "--expect-optimizer", a)
    shell.convert(a, "out", "--to", "paddle-flex", "--layout", "pp=4")
    assert buffers <= shell.tensors("out").keys()


def f9(shell):
    """vpp4 of 9 layers: blocks of multi-token prediction are no layers, and what does not divide is refused before anything is written."""
    nine = S.language_model(**{**SMALL, "layers": 9})
    source = flex(shell, "nine", nine, "dp2")
    said = shell.convert(source, "out", "--to", "paddle-flex", "--layout", "pp=4", status=5)
    assert "9 layers" in said and "4" in said, said
    said = shell.convert(source, "out", "--to", "paddle-flex", "--layout", "pp=2,vp=2", status=5)
    assert "9 layers" in said, said
    assert not (shell.work / "out").exists()
    eight = S.language_model(**{**SMALL, "layers": 8})  # and an MTP block
    there_and_back(shell, eight, "dp2", "vpp")


def f10(shell):
    """dp2 to dp4: the optimizer's wrapper differs. It has no effect on files."""
    there_and_back(shell, S.language_model(**SMALL), "dp2", "dp4")


def f11(shell):
    """dp2 to sharding4 V1: only some experts have states, because they were copies of one layer. Both are said."""
    model = S.language_model(**SMALL)
    lacking = {f"model.layers.3.mlp.experts.{e}.{p}_proj.weight" for e in (2, 3) for p in ("gate", "up", "down")}
    some = flex(shell, "some", model, "dp2", lambda shard: is_weight(shard) or shard.key.rsplit(".", 1)[0] not in lacking)
    found = of_kind(shell.findings("verify", "--expect-optimizer", some, status=1), "optimizer")
    assert len(found) == 5 and all(key in f["text"] for key in lacking for f in found), found
    assert not any("layers.2." in f["text"] or "experts.1." in f["text"] for f in found), found
    same = copy.deepcopy(model)
    S.contents(same)
    for part in ("gate_proj", "up_proj", "down_proj"):
        same.contents[f"model.layers.3.mlp.experts.2.{part}.weight"] = same.contents[f"model.layers.3.mlp.experts.0.{part}.weight"]
    copies = flex(shell, "copies", same, "dp2")
    assert not of_kind(shell.findings("verify", "--deep", some), "expert")
    found = of_kind(shell.findings("verify", "--deep", copies), "expert")
    assert {f["key"] for f in found} == {f"model.layers.3.mlp.experts.2.{p}_proj.weight" for p in ("gate", "up", "down")}, found
    assert all(f["severity"] == "warning" and ".experts.0." in f["text"] for f in found), found


def f12(shell):
    """dp2 to sharding4 V2."""
    there_and_back(shell, S.language_model(**SMALL), "dp2", "sharding4-v2")


def f13(shell):
    """dp2 to sharding2(ep2) and back."""
    there_and_back(shell, S.language_model(**SMALL), "dp2", "sd2ep2")


def lost_shapes(model, keep):
    """Each rank of tp2 says of the keys that its part is the whole tensor, as layers without a sharded_state_dict do."""
    s = S.BY_NAME["tp2"]
    held = []
    for place in S.places(s):
        held.append([dataclasses.replace(x, shape=x.extent, start=(0,) * len(x.start)) if keep(x) and x.extent != x.shape else x
                     for x in S.shards_of(model, s, place)])
    return held


def write_replicas(model, held, folder):
    """As with save_replicas: every rank's file keeps its own, and the metadata says which is a copy."""
    folder.mkdir()
    s = S.BY_NAME["tp2"]
    parts = [[S.shard_bytes(model, shard) for shard in S.shards_of(model, s, place)] for place in S.places(s)]
    with S.Pickles():
        metadata = S.metadata_of(S.stored(model, s, held), 0)
        metadata.storage_metadata, copies = {}, {}
        for rank, shards in enumerate(held):
            for shard in shards:
                number = copies[shard.index] = copies.get(shard.index, -1) + 1
                entry = S.filled(S.SHARD_INDEX, tensor_key=shard.key, global_offset=shard.start, is_flattened=False, flattened_range=None,
                                 replica_id=number, local_shape=shard.extent)
                metadata.storage_metadata[entry] = f"{rank}_0.distcp"
            state = {shard.key: S.array_of(model, shard, part) for shard, part in zip(shards, parts[rank])}
            state["StructuredToParameterName@@"] = {shard.key: shard.name for shard in shards}
            (folder / f"{rank}_0.distcp").write_bytes(pickle.dumps(state, 4))
        (folder / "0.metadata").write_bytes(pickle.dumps(metadata, 4))


def conflicting(shell, keep, key):
    """Copies that differ are shown with both files, and against a good checkpoint the shape says what it is."""
    model = S.language_model(**SMALL)
    held = lost_shapes(model, keep)
    write_replicas(model, held, shell.work / "lost")
    found = of_kind(shell.findings("verify", "lost", status=1), "replica")
    lost = {x.key for shards in held for x in shards if keep(x) and x.shape != S.contents(model)[x.key][1]}
    assert {f["key"] for f in found} == lost and key in lost, sorted({f["key"] for f in found} ^ lost)[:4]
    assert all("'0_0.distcp' and '1_0.distcp'" in f["text"] for f in found), found[0]
    whole = flex(shell, "whole", model, "dp2")
    found = {f["key"]: f for f in of_kind(shell.findings("diff", "lost", whole, status=1), "shape")}
    assert found.keys() == lost and "2 times as long" in found[key]["text"] and "tensor-parallel" in found[key]["text"], found.get(key)


def f14(shell):
    """dp2 to tp2(ep2)pp2: layers without a sharded_state_dict, whose parts looked like replicas."""
    conflicting(shell, lambda x: is_weight(x) and ".mlp." in x.key, "model.layers.0.mlp.up_proj.weight")


def f15(shell):
    """tp2: an optimizer without a sharded_state_dict, the same of its states."""
    conflicting(shell, lambda x: not is_weight(x), "model.layers.0.mlp.up_proj.weight.moment1_0")


def f16(shell):
    """dp hangs in save, where rank 0 waits for all. One process reads what all ranks wrote, and names what is missing."""
    model = S.language_model(**SMALL)
    folder = flex(shell, "dp2", model, "dp2")
    same_tensors(shell, folder, model)
    (folder / "1_0.distcp").unlink()
    said = shell.any("hash", folder)
    assert said.returncode == 4 and "data file '1_0.distcp', which storage_metadata names, is not there" in said.stderr, said.stderr


def fused_model():
    """Per-rank [gate | up] and [Q | K | V], which were cut naively."""
    parameters = [S.Parameter("model.layers.0.self_attn.qkv_proj.weight", (4, 24), axis=1, layer=0),
                  S.Parameter("model.layers.0.mlp.up_gate_proj.weight", (4, 16), axis=1, layer=0),
                  S.Parameter("model.layers.0.mlp.down_proj.weight", (8, 4), axis=0, layer=0)]
    S.number_names(parameters)
    return S.Model(parameters, 1, 0)


def f17(shell):
    """tp with fused qkv and ffn: a layout by ranks that is cut in another number of parts is another tensor, and that is said loudly."""
    model = fused_model()
    source = flex(shell, "tp2", model, "tp2")
    assert "ranks\t2" in shell("inspect", source)
    said = shell.convert(source, "tp4", "--to", "paddle-flex", "--layout", "tp=4")
    warned = [line for line in said.splitlines() if "fused" in line]
    assert len(warned) == 2 and all("mapping" in line for line in warned), said
    assert any("qkv_proj" in line for line in warned) and any("up_gate_proj" in line for line in warned), said
    assert "fused" not in shell.convert(source, "again", "--to", "paddle-flex", "--layout", "tp=2")
    said = shell.convert(source, "mapped", "--to", "paddle-flex", "--layout", "tp=4",
                         "-m", "model.layers.0.mlp.up_gate_proj.weight -> gate, up, fused_ffn",
                         "-m", "model.layers.0.self_attn.qkv_proj.weight -> q, k, v, fused_qkv_old, num_heads=4, num_key_value_groups=4")
    assert "fused" not in said, said
    # Layers that are stacked, and the norm before it that Megatron names after it, are not fused.
    header = json.dumps({"layers.linear_qkv.weight": {"dtype": "U8", "shape": [2, 12, 4], "data_offsets": [0, 96]},
                         "layers.linear_qkv.layer_norm_weight": {"dtype": "U8", "shape": [4, 4], "data_offsets": [96, 112]},
                         "last.linear_qkv.weight": {"dtype": "U8", "shape": [12, 4], "data_offsets": [112, 160]}}).encode()
    (shell.work / "s.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(160))
    shell.convert("s.safetensors", "stacked", "--to", "torch-dcp", "--layout", "ranks=2")
    said = shell.convert("stacked", "whole", "--to", "paddle-flex")
    assert [line.split(":")[1].strip() for line in said.splitlines() if "fused" in line] == ["last.linear_qkv.weight"], said


def f18(shell):
    """Unified checkpoints write '/' where flex ones write '.'."""
    model = S.language_model(**SMALL)
    S.write_unified(model, S.BY_NAME["tp2"], shell.work / "uc")
    shell.convert("uc", "fc", "--to", "paddle-flex", "--layout", "tp=2", "--rules", "auto")
    same_tensors(shell, "fc", model)
    shell.convert("fc", "back", "--to", "paddle-uc", "--layout", "tp=2", "--rules", "auto")
    wanted = {"optimizer:lm_head.weight/moment1_0", "master_weights:lm_head.weight", "model:lm_head.weight"}
    assert wanted <= shell.tensors("back").keys()


def f19(shell):
    """Unified checkpoints under dp hold optimizer and master weights only: the weights are cast from these."""
    model = S.language_model(**SMALL)
    S.write_unified(model, S.BY_NAME["dp2"], shell.work / "uc", families=("optimizer", "master_weights"))
    said = shell.convert("uc", "fc", "--to", "paddle-flex", "--layout", "dp=2", "--rules", "auto")
    found, wanted = shell.tensors("fc"), S.manifest(model)
    for parameter in model.parameters:
        if not parameter.is_buffer and parameter.dtype == "bfloat16":
            assert found[parameter.key]["hash"] == wanted[parameter.key]["sha256"], parameter.key
    assert "cast" in said, said


def f20(shell):
    """Unified checkpoints of sharding2(ep2): experts are numbered by each rank and overwrite each other. The collision is found."""
    model = S.language_model(**SMALL)
    S.write_unified(model, S.BY_NAME["dp2ep2"], shell.work / "local", renumbered=False)
    said = shell.any("hash", "local")
    wanted = ("experts.0", "00001-of-00002", "00002-of-00002", "--lenient")
    assert said.returncode == 5 and all(part in said.stderr for part in wanted), said.stderr
    S.write_unified(model, S.BY_NAME["dp2ep2"], shell.work / "global")
    shell("diff", "--lenient", "local", "global", "--items", "ignore")


def f21(shell):
    """Unified checkpoints of tp2(ep2): experts lie whole on one rank each, and are not put together along an axis."""
    model = S.language_model(**SMALL)
    S.write_unified(model, S.BY_NAME["tp2ep2"], shell.work / "uc", renumbered=False)
    S.write_unified(model, S.BY_NAME["tp2"], shell.work / "whole")
    shell("diff", "--lenient", "uc", "whole", "--items", "ignore")


def f22(shell):
    """A unified checkpoint whose mapping table lacks mtp_block has a rank's part there: the shape of its flex counterpart tells."""
    model = S.language_model(**SMALL)
    broken = copy.deepcopy(model)
    key = "model.mtp_block.0.mlp.up_proj.weight"
    lost = {key, *(f"{key}.{state}" for state in ("w_0", "moment1_0", "moment2_0"))}
    for one in lost:
        dtype, shape, value = S.contents(broken)[one]
        part = (shape[0], shape[1] // 2)
        broken.contents[one] = (dtype, part, S.cut(value, S.WIDTH[dtype], shape, (0, 0), part))
    S.write_unified(broken, S.BY_NAME["tp2"], shell.work / "uc")
    fc = flex(shell, "fc", model, "tp2")
    found = shell.findings("diff", "uc", fc, "--items", "ignore", status=1)
    found = [f for f in found if f["kind"] != "names"]
    assert {(f["kind"], f["key"]) for f in found} == {("shape", one) for one in lost}, found
    assert all("2 times as long" in f["text"] for f in found), found


# ---- F23: whole tensors as lists of rows, by hand ----

def rows(model, key):
    _, (height, width), value = S.contents(model)[key]
    numbers = struct.unpack(f"<{height * width}H", value)
    return [[*numbers[i * width:(i + 1) * width]] for i in range(height)]


def packed(table):
    return b"".join(struct.pack(f"<{len(row)}H", *row) for row in table)


def beside(*tables):
    return [sum(parts, []) for parts in zip(*tables)]


def columns(table, begin, end):
    return [row[begin:end] for row in table]


def f23(shell):
    """Many ranks to one with a mapping: tp4 to one file, with every macro."""
    expert = [f"model.layers.{layer}.mlp.experts.{e}.down_proj.weight" for layer in (0, 1) for e in (0, 1)]
    parameters = [S.Parameter(f"model.layers.{layer}.self_attn.{n}_proj.weight", (4, 8), axis=1) for layer in (0, 1) for n in "qkv"]
    parameters += [S.Parameter(f"fused.{name}", (4, width), axis=1) for name, width in (("qkv", 24), ("old", 24), ("ffn", 16))]
    parameters += [S.Parameter(key, (4, 4), axis=0) for key in expert]
    S.number_names(parameters)
    model = S.Model(parameters, 2, 2)
    source = flex(shell, "tp4", model, "tp4", is_weight)
    old, ffn, qkv = rows(model, "fused.old"), rows(model, "fused.ffn"), rows(model, "fused.qkv")
    a = {n: rows(model, f"model.layers.0.self_attn.{n}_proj.weight") for n in "qkv"}
    cases = {
        "^T": ("model.layers.0.self_attn.q_proj.weight^T -> out", [*map(list, zip(*a["q"]))]),
        "permute": ("model.layers.0.self_attn.q_proj.weight -> out, permute=\"[1, 0]\"", [*map(list, zip(*a["q"]))]),
        "$LAYER_ID": ("model.layers.$LAYER_ID.self_attn.k_proj.weight -> k.$LAYER_ID\nk.0, k.1 -> out, axis=0",
                      a["k"] + rows(model, "model.layers.1.self_attn.k_proj.weight")),
        "$EXPERT_ID": ("model.layers.$LAYER_ID.mlp.experts.$EXPERT_ID.down_proj.weight -> e.$LAYER_ID.$EXPERT_ID\n"
                       "e.0.1, e.1.0 -> out, axis=1", beside(rows(model, expert[1]), rows(model, expert[2]))),
        "*": ("model.layers.1.mlp.experts.*.down_proj.weight -> out, axis=1", beside(rows(model, expert[2]), rows(model, expert[3]))),
        "fused_ffn": ("fused.ffn -> gate, out, fused_ffn", beside(*(columns(ffn, 4 * r + 2, 4 * r + 4) for r in range(4)))),
        "fused_qkv_old": ("fused.old -> q, out, v, fused_qkv_old, num_heads=4, num_key_value_groups=4",
                          beside(*(columns(old, 6 * r + 2, 6 * r + 4) for r in range(4)))),
        "fused_qkv": ("fused.qkv -> q, out, v, fused_qkv, num_heads=4, num_key_value_groups=4",
                      beside(*(columns(qkv, 6 * r + 2, 6 * r + 4) for r in range(4)))),
        "concat and split": ("model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.k_proj.weight -> both, axis=1\n"
                             "both -> a, b, c, out, axis=1", columns(a["k"], 4, 8)),
        "_": ("fused.qkv -> _\nmodel.layers.0.self_attn.v_proj.weight -> out", a["v"]),
    }
    for name, (text, expected) in cases.items():
        (shell.work / "text.map").write_text(text + "\n")
        target = shell.work / "single.safetensors"
        shell.convert(source, target, "--to", "safetensors", "--map", "text.map", "--include", "out", "--overwrite")
        raw = target.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + size])
        begin, end = header["out"]["data_offsets"]
        assert header["out"]["shape"] == [len(expected), len(expected[0])], (name, header["out"])
        assert raw[8 + size + begin:8 + size + end] == packed(expected), f"{name}: other bytes"


FAILURES = {f"F{n}": globals()[f"f{n}"] for n in range(1, 24)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--only", action="append", metavar="F7")
    parser.add_argument("--keep", type=pathlib.Path, help="where trees are made, and stay")
    args = parser.parse_args()
    chosen = [name for name in FAILURES if not args.only or name in args.only]
    failed = 0
    for number, name in enumerate(chosen, 1):
        with tempfile.TemporaryDirectory(prefix="reshard-paddle-") as folder:
            work = args.keep / name if args.keep else pathlib.Path(folder)
            work.mkdir(parents=True, exist_ok=True)
            problem = ""
            try:
                FAILURES[name](Shell(args.bin.resolve(), work))
            except (AssertionError, KeyError, ValueError, OSError, subprocess.TimeoutExpired) as error:
                problem = f"{type(error).__name__}: {error}"
        failed += bool(problem)
        print(f"{'not ok' if problem else 'ok'} {number} - {name} {' '.join(FAILURES[name].__doc__.split())}")
        if problem:
            print("#   " + problem.replace("\n", " ")[:600])
        sys.stdout.flush()
    print(f"1..{len(chosen)}")
    return 1 if failed else 0


sys.exit(main())
