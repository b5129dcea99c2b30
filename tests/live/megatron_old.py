#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron checkpoints from before Megatron Core: nested dicts, every checkpoint_version and its order of rows in fused heads, tied copies.

usage: megatron_old.py --bin PATH     needs torch; prints TAP
       megatron_old.py --keep FOLDER  writes fixtures instead; Megatron's own fix_query_key_value_ordering, from the tree that
       MEGATRON_TREES names (core_v0.16.1),
                                      must turn every rank's rows of them into today's order
A whole model is made with torch and cut into rank files as those versions stored them; the merged model must be the whole one in today's
order, under the nested path of each key, and a file written from it at TP1 must hold the same nested dict.
"""
import argparse
import collections
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

import torch

HEADS, HEAD, HIDDEN, FFN, LAYERS, VOCABULARY = 4, 3, 12, 20, 4, 16


def whole_model(generator):
    def make(*shape):
        return torch.randn(shape, generator=generator)
    model = {"language_model.embedding.word_embeddings.weight": make(VOCABULARY, HIDDEN),
             "language_model.embedding.position_embeddings.weight": make(8, HIDDEN)}
    for i in range(LAYERS):
        at = f"language_model.encoder.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            model[at + norm + ".weight"], model[at + norm + ".bias"] = make(HIDDEN), make(HIDDEN)
        model[at + "self_attention.query_key_value.weight"] = make(3 * HEADS * HEAD, HIDDEN)
        model[at + "self_attention.query_key_value.bias"] = make(3 * HEADS * HEAD)
        model[at + "self_attention.dense.weight"], model[at + "self_attention.dense.bias"] = make(HIDDEN, HEADS * HEAD), make(HIDDEN)
        model[at + "mlp.dense_h_to_4h.weight"], model[at + "mlp.dense_h_to_4h.bias"] = make(FFN, HIDDEN), make(FFN)
        model[at + "mlp.dense_4h_to_h.weight"], model[at + "mlp.dense_4h_to_h.bias"] = make(HIDDEN, FFN), make(HIDDEN)
    model["language_model.encoder.final_layernorm.weight"] = make(HIDDEN)
    model["language_model.encoder.final_layernorm.bias"] = make(HIDDEN)
    return model


def stored_order(version, rows):
    """Rows [heads, 3, head] of one rank as the version stored them."""
    heads = rows.shape[0] // (3 * HEAD)
    view = rows.view(heads, 3, HEAD, *rows.shape[1:])
    if version < 1:
        return view.transpose(0, 1).reshape(rows.shape).clone()
    if version < 2:
        return view.transpose(1, 2).reshape(rows.shape).clone()
    return rows.clone()


def part(key, tensor, tp, rank, version):
    column = ("query_key_value.", "dense_h_to_4h.", "word_embeddings.")
    if any(name in key for name in column):
        tensor = tensor.chunk(tp, 0)[rank].clone()
        return stored_order(version, tensor) if "query_key_value" in key else tensor
    if key.endswith(("self_attention.dense.weight", "dense_4h_to_h.weight")):
        return tensor.chunk(tp, 1)[rank].clone()
    return tensor.clone()


def nested(model, tp, pp, t, p, version):
    """model of the file of one rank."""
    language = {}
    each = LAYERS // pp
    encoder = collections.OrderedDict()
    for key, tensor in model.items():
        mine = part(key, tensor, tp, t, version)
        rest = key[len("language_model."):]
        if rest.startswith("embedding."):
            if p == 0:
                _, name, leaf = rest.split(".")
                language.setdefault("embedding", {}).setdefault(name, collections.OrderedDict())[leaf] = mine
        elif ".layers." in rest:
            number = int(rest.split(".")[2])
            if number // each == p:
                encoder[rest[len("encoder."):].replace(f"layers.{number}.", f"layers.{number % each}.", 1)] = mine
        elif p == pp - 1:
            encoder[rest[len("encoder."):]] = mine
    language["encoder"] = encoder
    out = {"language_model": language}
    if pp > 1 and p == pp - 1:
        key = "language_model.embedding.word_embeddings.weight"
        out["word_embeddings_for_head"] = collections.OrderedDict(weight=part(key, model[key], tp, t, version))
    return out


def write(root, model, tp, pp, version, say_version):
    for t in range(tp):
        for p in range(pp):
            folder = root / "iter_0000003" / (f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else ""))
            folder.mkdir(parents=True)
            args = argparse.Namespace(num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, kv_channels=HEAD,
                                      padded_vocab_size=VOCABULARY)
            setattr(args, "model_parallel_size" if version < 3 else "tensor_model_parallel_size", tp)
            args.pipeline_model_parallel_size = pp
            data = {"args": args, "iteration": 3, "model": nested(model, tp, pp, t, p, version)}
            if say_version:
                data["checkpoint_version"] = version
            torch.save(data, folder / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("3")


def digests(binary, path):
    done = subprocess.run([binary, "hash", "--json", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    return {t["key"]: (t["shape"], t["hash"]) for t in json.loads(done.stdout)["tensors"]}


def expected(model):
    return {k: (list(v.shape), hashlib.sha256(v.contiguous().numpy().tobytes()).hexdigest()) for k, v in model.items()}


def check(binary, folder, version, say_version, tp, pp):
    model = whole_model(torch.Generator().manual_seed(int(version * 10) + tp))
    root = folder / "old"
    write(root, model, tp, pp, version, say_version)
    found, want = digests(binary, root), expected(model)
    wrong = [k for k in set(found) | set(want) if found.get(k) != want.get(k)]
    assert not wrong, wrong[:4]
    new = folder / "new"
    subprocess.run([binary, "convert", str(root), str(new), "--to", "megatron", "--layout", "tp=1", "--quiet"], check=True)
    assert digests(binary, new) == want, "converted to TP1"
    data = torch.load(new / "iter_0000003" / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    assert data["checkpoint_version"] == 3.0, data["checkpoint_version"]
    encoder = data["model"]["language_model"]["encoder"]
    assert torch.equal(encoder["layers.3.self_attention.query_key_value.weight"],
                       model["language_model.encoder.layers.3.self_attention.query_key_value.weight"])
    assert torch.equal(data["model"]["language_model"]["embedding"]["word_embeddings"]["weight"],
                       model["language_model.embedding.word_embeddings.weight"])
    back = folder / "back"
    subprocess.run([binary, "convert", str(new), str(back), "--to", "megatron", "--layout", "tp=2,pp=2", "--quiet"], check=True)
    last = torch.load(back / "iter_0000003" / "mp_rank_01_001" / "model_optim_rng.pt", weights_only=False)
    assert torch.equal(last["model"]["word_embeddings_for_head"]["weight"],
                       model["language_model.embedding.word_embeddings.weight"].chunk(2, 0)[1])


CASES = [(0.0, False, 1, 1), (0.0, False, 2, 2), (1.0, True, 2, 1), (1.0, True, 4, 2), (2.0, True, 2, 2), (3.0, True, 2, 2),
         (3.0, True, 4, 1)]


def check_with_megatron(model, version, tp):
    """Megatron's function, applied to the rows of every rank, gives the rows of the whole model."""
    sys.path.insert(0, os.path.join(os.environ["MEGATRON_TREES"], "core_v0.16.1"))
    import megatron.training.checkpointing as checkpointing
    attention = types.SimpleNamespace(hidden_size_per_attention_head=HEAD, num_attention_heads_per_partition=HEADS // tp)
    layers = [types.SimpleNamespace(self_attention=attention)]
    for key, tensor in model.items():
        if "query_key_value" in key:
            for rank in range(tp):
                rows = torch.nn.Parameter(part(key, tensor, tp, rank, version))
                holder = types.SimpleNamespace(named_parameters=lambda: [(key, rows)],
                                               language_model=types.SimpleNamespace(encoder=types.SimpleNamespace(layers=layers)))
                checkpointing.fix_query_key_value_ordering(holder, version)
                assert torch.equal(rows.data, tensor.chunk(tp, 0)[rank]), (key, version, rank)


def keep(folder):
    for version, say_version, tp, pp in CASES:
        name = f"megatron-old-version{version:.0f}-tp{tp}pp{pp}"
        model = whole_model(torch.Generator().manual_seed(int(version * 10) + tp))
        check_with_megatron(model, version, tp)
        write(folder / name / "ckpt", model, tp, pp, version, say_version)
        tensors = {key: {"dtype": "F32", "shape": shape, "sha256": digest} for key, (shape, digest) in expected(model).items()}
        manifest = {"case": name, "family": "megatron", "producer": {"torch": torch.__version__},
                    "command": "tests/live/megatron_old.py --keep", "path": "ckpt", "world": {"ranks": tp * pp, "tp": tp, "pp": pp},
                    "notes": ["emulated: a whole model cut by torch as Megatron-LM of that checkpoint_version stored it",
                              "Megatron 0.16.1's fix_query_key_value_ordering turns every rank's rows into those of the whole model"],
                    "tensors": tensors, "items": {}, "expect": {"error": None}, "also": {}}
        (folder / name / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    if options.keep:
        return keep(options.keep)
    binary = str(pathlib.Path(options.bin).resolve())
    print(f"1..{len(CASES)}")
    failed = False
    for number, case in enumerate(CASES, 1):
        with tempfile.TemporaryDirectory(prefix="reshard-old-") as folder:
            try:
                check(binary, pathlib.Path(folder), *case)
                print(f"ok {number} - version {case[0]} at TP{case[2]} PP{case[3]}")
            except (AssertionError, KeyError, subprocess.CalledProcessError) as problem:
                failed = True
                print(f"not ok {number} - version {case[0]} at TP{case[2]} PP{case[3]}\n# {problem!r}")
    return failed


sys.exit(main())
