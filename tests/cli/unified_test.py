#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Paddle's Unified Checkpoint: families, modes, experts numbered by each rank, states that were not merged, names, and what is refused.
Prints TAP.

usage: unified_test.py --bin PATH [--root DIR]...

Checkpoints are written here by the rules of the format, without the command. DIR/paddle/paddle-uc-* are the trainer's own, where a root has
them: then converting between them must give their very files.
"""
import argparse
import filecmp
import hashlib
import json
import math
import pathlib
import random
import struct

import small_models
from small_models import keys_must_be

SIZES = {"F32": 4, "BF16": 2, "I8": 1, "U8": 1, "I32": 4, "U16": 2, "C64": 8}


def fill(key, count, dtype):
    """Elements that depend on the key: no two tensors are alike."""
    source = random.Random(key)
    if dtype == "F32":
        return struct.pack(f"<{count}f", *[source.uniform(-3, 3) for _ in range(count)])
    is_exponent = [dtype == "BF16" and i % 2 for i in range(count * SIZES[dtype])]
    return bytes(source.choice((0x3F, 0xBF)) if exponent else source.randrange(256) for exponent in is_exponent)


def put(path, tensors):
    """One safetensors file of {key: (dtype, shape, bytes)}."""
    header, at = {"__metadata__": {"format": "np"}}, 0
    for key, (dtype, shape, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def get(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    assert header.pop("__metadata__") == {"format": "np"}, path
    begin = 8 + size
    return {k: (v["dtype"], v["shape"], data[begin + v["data_offsets"][0]:begin + v["data_offsets"][1]]) for k, v in header.items()}


def tensor(key, shape, dtype="F32"):
    return dtype, shape, fill(key, math.prod(shape), dtype)


def family(folder, name, files, **more):
    """A family of files with its index."""
    folder.mkdir(exist_ok=True)
    weight_map, total = {}, 0
    for i, tensors in enumerate(files):
        file = f"{name}-{i + 1:05}-of-{len(files):05}.safetensors"
        put(folder / file, tensors)
        weight_map |= {key: file for key in tensors}
        total += sum(len(data) for _, _, data in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map} | more
    (folder / f"{name}.safetensors.index.json").write_text(json.dumps(index, indent=4))


def states(weights, words=("moment1_0", "moment2_0")):
    made = {f"{k}/{word}": tensor(f"{k}/{word}", shape) for word in words for k, (_, shape, _) in weights.items()}
    return made | {f"{k}/{word}": tensor(f"{k}/{word}", [1]) for word in ("beta1_pow_acc_0", "beta2_pow_acc_0") for k in weights}


def masters(weights):
    """Of float32 weights the trainer writes plain copies."""
    return {k: (dtype, shape, data) if dtype == "F32" else tensor("master " + k, shape) for k, (dtype, shape, data) in weights.items()}


def small(dtype="BF16"):
    shapes = {"model.embed.weight": [6, 4], "model.layers.0.up.weight": [4, 8], "model.layers.0.norm.weight": [4], "lm_head.weight": [4, 6]}
    return {k: tensor(k, shape, dtype) for k, shape in shapes.items()}


def whole(folder, model=True, more=None):
    weights = small() | (more or {})
    if model:
        family(folder, "model", [weights])
    family(folder, "optimizer", [states(weights)], master_weights=True, quant_ckpt_resume_times=0)
    family(folder, "master_weights", [masters(weights)])
    return weights


def refused(shell, path, status, *words):
    """Both verbs refuse it, verify what others could still be read of as a finding, and say what these words say."""
    for verb in "hash", "verify":
        done = shell.any(verb, path)
        said = done.stdout + done.stderr
        assert done.returncode in ((status,) if verb == "hash" else (status, 1)), f"{verb}: exit {done.returncode}: {said}"
        missing = [word for word in words if word not in said]
        assert not missing, f"{verb} does not say {missing}: {said}"


def same_bytes(shell, path, expected):
    """expected: {key: (dtype, shape, bytes)}"""
    found = {t["key"]: t for t in json.loads(shell("hash", "--json", "--digest", "md5", path))["tensors"]}
    keys_must_be(set(found), set(expected))
    for key, (dtype, shape, data) in expected.items():
        one = found[key]
        assert (one["dtype"], one["shape"]) == (dtype, shape), (key, one)
        assert one["hash"] == hashlib.md5(data).hexdigest(), f"{key}: other bytes"


def prefixed(**families):
    return {f"{name}:{key}": value for name, tensors in families.items() for key, value in tensors.items()}


# ---- reading ----


def all_families(shell):
    weights = whole(shell.work / "a")
    same_bytes(shell, "a", prefixed(model=weights, optimizer=states(weights), master_weights=masters(weights)))
    assert json.loads(shell("ls", "--json", "a"))["format"] == "paddle-uc"
    assert json.loads(shell("ls", "--json", "--items", "a"))["items"] == []
    shell("verify", "a")


def single_files(shell):
    weights, folder = small(), shell.work / "a"
    folder.mkdir()
    put(folder / "model.safetensors", weights)
    put(folder / "optimizer.safetensors", states(weights))
    put(folder / "master_weights.safetensors", masters(weights))
    same_bytes(shell, "a", prefixed(model=weights, optimizer=states(weights), master_weights=masters(weights)))
    shell("convert", "a", "b", "--like", "a", "--quiet")
    assert sorted(p.name for p in (shell.work / "b").iterdir()) == sorted(p.name for p in folder.iterdir())


def lora(shell):
    adapter = {"model.layers.0.up.lora_A": tensor("A", [4, 2], "BF16")}
    family(shell.work / "a", "peft_model", [adapter])
    same_bytes(shell, "a", prefixed(peft_model=adapter))


def lora_there_and_back(shell):
    """The weights of a LoRA are the only ones that its trainer saves: by other names, too, they are the weights that states are of."""
    for name, dtype in (("half", "BF16"), ("single", "F32")):
        keys = [f"model.layers.{layer}.up.lora_{part}" for layer in range(2) for part in "AB"]
        adapter = {key: tensor(key, [4, 2], dtype) for key in keys}
        copies = masters(adapter) if dtype == "BF16" else adapter
        family(shell.work / name, "peft_model", [adapter], type="lora")
        family(shell.work / name, "optimizer", [states(adapter)], master_weights=True)
        family(shell.work / name, "master_weights", [copies])
        assert "no weights" not in shell("inspect", name).decode()
        shell("convert", name, name + "-flex", "--to", "paddle-flex", "--rules", "auto", "--quiet")
        found = {t["key"]: t["dtype"] for t in json.loads(shell("ls", "--json", name + "-flex"))["tensors"]}
        assert {k: v for k, v in found.items() if k in keys} == {key: dtype for key in keys}, found
        assert not [key for key in found if ":" in key], found
        shell("diff", name, name + "-flex")
        for back, words in (("rules", ("--to", "paddle-uc", "--rules", "auto")), ("like", ("--like", name))):
            shell("convert", name + "-flex", f"{name}-{back}", *words, "--quiet")
            same_bytes(shell, f"{name}-{back}", prefixed(peft_model=adapter, optimizer=states(adapter), master_weights=copies))
            files = sorted(p.name for p in (shell.work / f"{name}-{back}").iterdir())
            assert files == sorted(p.name for p in (shell.work / name).iterdir()), files
            index = json.loads((shell.work / f"{name}-{back}" / "peft_model.safetensors.index.json").read_text())
            assert index["type"] == "lora" and list(index["weight_map"]) == keys, index


def numbered_without_index(shell):
    weights, folder = list(small().items()), shell.work / "a"
    family(folder, "model", [dict(weights[:2]), dict(weights[2:])])
    family(folder, "optimizer", [states(dict(weights))])
    (folder / "model.safetensors.index.json").unlink()
    same_bytes(shell, "a", prefixed(model=dict(weights), optimizer=states(dict(weights))))
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(shell, "a", 4, "model-00001-of-00002.safetensors", "of 2 files there are 1")


def skip_mode(shell):
    weights = small()
    family(shell.work / "a", "model", [masters(weights)])
    family(shell.work / "a", "optimizer", [states(weights)], master_weights=True)
    same_bytes(shell, "a", prefixed(model=masters(weights), optimizer=states(weights)))
    said = shell("inspect", "a").decode()
    assert "skip_save_model_weight" in said and "master weights" in said, said


def weights_stored_once(shell):
    """The trainer's modes are written: what is left out is said, and nothing is left out that cannot be made again."""
    weights = small() | {"norm.weight": tensor("norm", [3], "F32")}
    made, state = masters(weights), states(weights)
    whole(shell.work / "a", more={"norm.weight": weights["norm.weight"]})
    for name, families, left_out, flag in (
            ("skip_save_model_weight", {"model": made}, "model", True),
            ("remove_master_weight", {"model": weights}, "master_weights", False)):
        said = shell.any("convert", "a", name, "--to", "paddle-uc", "-o", "mode=" + name, "--verify", "--verbose")
        assert not said.returncode, said.stderr
        for key in weights:
            assert f"dropped: {left_out}:{key}: {name}: " in said.stdout + said.stderr, said.stdout + said.stderr
        same_bytes(shell, name, prefixed(optimizer=state, **families))
        index = json.loads((shell.work / name / "optimizer.safetensors.index.json").read_text())
        assert index["master_weights"] is flag and not list((shell.work / name).glob("master_weights*"))
        shell("convert", name, name + ".again", "--to", "paddle-uc", "--quiet")
        index = json.loads((shell.work / (name + ".again") / "optimizer.safetensors.index.json").read_text())
        assert index["master_weights"] is flag
    shell("convert", "skip_save_model_weight", "both", "--to", "paddle-uc", "-o", "mode=remove_master_weight", "--quiet")
    assert json.loads((shell.work / "both" / "optimizer.safetensors.index.json").read_text())["master_weights"] is False
    shell("convert", "a", "plain", "--to", "paddle-uc", "--exclude", "master_weights:*", "--quiet")
    assert json.loads((shell.work / "plain" / "optimizer.safetensors.index.json").read_text())["master_weights"] is False
    # What no other tensor can be made of is not left out; a float32 weight is its own master weight.
    alone = next(key for key, value in weights.items() if value[0] == "BF16")
    for mode, pattern, stays in (("skip_save_model_weight", "master_weights:", False), ("remove_master_weight", "model:", False)):
        done = shell.any("convert", "a", "x", "--to", "paddle-uc", "--exclude", pattern + alone, "-o", "mode=" + mode)
        assert done.returncode == 5 and alone in done.stderr and not (shell.work / "x").exists(), done.stderr
    shell("convert", "a", "float", "--to", "paddle-uc", "--exclude", "master_weights:norm.weight", "-o", "mode=skip_save_model_weight",
          "--quiet")
    same_bytes(shell, "float", prefixed(model=made, optimizer=state))
    done = shell.any("convert", "a", "x", "--to", "paddle-uc", "-o", "mode=fast")
    assert done.returncode == 2 and "whole, skip_save_model_weight" in done.stderr, done.stderr


def removed_masters(shell):
    weights = small()
    family(shell.work / "a", "model", [weights])
    family(shell.work / "a", "optimizer", [states(weights)], master_weights=False)
    said = shell("inspect", "a").decode()
    assert "no master weights" in said, said


def quantised(shell):
    weights = small()
    kept = states(weights)
    for key in weights:
        kept[f"{key}/moment1_0"] = tensor(key + " q", weights[key][1], "I8")
        kept[f"{key}/moment1_0@scales"] = tensor(key + " s", [1])
        kept[f"{key}/moment2_0@min_scales"] = tensor(key + " m", [1])
    family(shell.work / "a", "model", [weights])
    family(shell.work / "a", "optimizer", [kept], ckpt_quant_stage="O1", quant_ckpt_resume_times=3, master_weights=False)
    assert "quantised (ckpt_quant_stage O1)" in shell("inspect", "a").decode()
    shell("convert", "a", "b", "--to", "paddle-uc", "--quiet")
    index = json.loads((shell.work / "b" / "optimizer.safetensors.index.json").read_text())
    assert (index["ckpt_quant_stage"], index["quant_ckpt_resume_times"], index["master_weights"]) == ("O1", 3, False), index
    same_bytes(shell, "b", prefixed(model=weights, optimizer=kept))


def rounded(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def dequantised(stored, scales, shape, stage, moment):
    """The values that PaddleFormers' loader makes, each step rounded to float32; scales: one list, or minima and maxima."""
    columns, rows_of_scale = (1, shape[0]) if len(shape) == 1 else (shape[1], shape[0] if stage == "O1" else 32)
    made = []
    for i, byte in enumerate(stored):
        at = i // columns // rows_of_scale * columns + i % columns
        signed = byte - 256 if byte > 127 else byte
        if moment == 1:
            value = rounded(rounded(signed / 127) * scales[0][at]) if stage == "O1" else rounded(rounded((signed >> 4) * scales[0][at]) / 7)
        else:
            low, high = scales[0][at], scales[1][at]
            part = rounded(byte / 255) if stage == "O1" else rounded((byte & 15) / 15)
            ratio = rounded(rounded(part * rounded(high - low)) + low)
            root = rounded(rounded(1 / ratio) - rounded(1e-8))
            value = rounded(root * root)
        made.append(value)
    return struct.pack(f"<{len(made)}f", *made)


def scale(key, shape, low, high):
    source = random.Random(key)
    return "F32", shape, struct.pack(f"<{math.prod(shape)}f", *[source.uniform(low, high) for _ in range(math.prod(shape))])


def quantised_states(weights, stage):
    """What the trainer's files hold of the moments, what its index says of them, and the values that they stand for."""
    held, listed, values = {}, [], {}
    for key, (_, shape, _) in weights.items():
        one, two = f"{key}/moment1_0", f"{key}/moment2_0"
        listed += [one, two]
        if stage == "O2" and len(shape) == 1:
            held |= {one: tensor(one, shape), two: tensor(two, shape)}
            values |= {one: held[one], two: held[two]}
            continue
        scales = [shape[0] // 32, shape[1]] if stage == "O2" else shape[1:]
        first, least, most = scale(one, scales, 0.5, 2), scale(two, scales, 1, 2), scale(two + " most", scales, 3, 9)
        held |= {one + "@scales": first, two + "@min_scales": least, two + "@max_scales": most}
        stored = tensor(two, shape, "I8" if stage == "O2" else "U8")
        held |= {two: stored} if stage == "O2" else {one: tensor(one, shape, "I8"), two: stored}
        of_first = held[one] if stage == "O1" else stored
        values[one] = "F32", shape, dequantised(of_first[2], [floats(first[2])], shape, stage, 1)
        values[two] = "F32", shape, dequantised(stored[2], [floats(least[2]), floats(most[2])], shape, stage, 2)
    return held, listed, values


def put_quantised(folder, weights, stage, change=None):
    """As the trainer writes it: no map has the scales, and it has the first moments of stage O2, which no file has."""
    held, listed, values = quantised_states(weights, stage)
    if change:
        change(held)
    family(folder, "model", [weights])
    family(folder, "optimizer", [held], ckpt_quant_stage=stage, quant_ckpt_resume_times=0, master_weights=False)
    index = folder / "optimizer.safetensors.index.json"
    said = json.loads(index.read_text())
    said["weight_map"] = dict.fromkeys(listed, "optimizer-00001-of-00001.safetensors")
    index.write_text(json.dumps(said))
    return held, listed, values


QUANTISED = {"a.weight": [64, 6], "b.bias": [37], "wide.weight": [32, 20000], "long.weight": [19968, 2], "one.weight": [32, 1]}
# The sizes of stage O2 are whole blocks of 32 rows.


def quantised_values(shell):
    """Converted to other names and compared, states are what the trainer's loader makes of them; files of their own hold what was."""
    weights = {key: tensor(key, shape, "BF16") for key, shape in QUANTISED.items()}
    for stage in "O1", "O2":
        held, listed, values = put_quantised(shell.work / stage, weights, stage)
        found = [finding["text"] for finding in json.loads(shell("verify", "--json", stage))["findings"]]
        assert len(found) == 1 and "quantised" in found[0], found
        same_bytes(shell, stage, prefixed(model=weights, optimizer=held))
        shell("convert", stage, stage + ".fc", "--to", "paddle-flex", "--rules", "auto", "--verify", "--quiet")
        wanted = weights | {key.replace("/", "."): value for key, value in values.items()}
        same_bytes(shell, stage + ".fc", wanted)
        shell("diff", stage, stage + ".fc")
        shell("convert", stage, stage + ".again", "--to", "paddle-uc", "--layout", "tp=3", "--quiet")
        same_bytes(shell, stage + ".again", prefixed(model=weights, optimizer=held))
        index = json.loads((shell.work / (stage + ".again") / "optimizer.safetensors.index.json").read_text())
        keys_must_be(set(index["weight_map"]), set(listed))
        for file in sorted((shell.work / (stage + ".again")).glob("optimizer-*.safetensors")):
            inside = get(file)
            for key in inside:
                owner = key.split("@")[0]
                assert owner in inside or owner.replace("moment1", "moment2") in inside, f"{file.name}: {key} without its state"
        shell("convert", stage, stage + ".plain", "--to", "paddle-uc", "--rules", "auto", "--layout", "tp=2", "--quiet")
        same_bytes(shell, stage + ".plain", prefixed(model=weights, optimizer=values))
        index = json.loads((shell.work / (stage + ".plain") / "optimizer.safetensors.index.json").read_text())
        assert "ckpt_quant_stage" not in index and set(index["weight_map"]) == set(listed)


def quantised_without_scales(shell):
    weights = {"a.weight": tensor("a", [64, 6], "BF16")}
    cases = (("gone", "is not there", lambda held: held.pop("a.weight/moment2_0@max_scales")),
             ("shape", "does not have", lambda held: held.update({"a.weight/moment1_0@scales": tensor("s", [5])})),
             ("type", "does not have", lambda held: held.update({"a.weight/moment2_0@min_scales": tensor("s", [6], "I32")})),
             ("cube", "of a shape that", lambda held: held.update({"a.weight/moment1_0": tensor("q", [8, 8, 6], "I8")})))
    for name, words, change in cases:
        put_quantised(shell.work / name, weights, "O1", change)
        done = shell.any("convert", name, name + ".fc", "--to", "paddle-flex", "--rules", "auto")
        assert done.returncode in (4, 5) and words in done.stderr and "a.weight/moment" in done.stderr, (name, done.returncode, done.stderr)
        assert not (shell.work / (name + ".fc")).exists()


# ---- experts ----


def moe(ranks, experts, each):
    """Files of expert-parallel ranks, whose experts are numbered from 0 on each; and the model that they are."""
    files, model = [], {"model.embed.weight": tensor("embed", [4, 2], "BF16")}
    for rank in range(ranks):
        own = dict(model) if rank == 0 else {}
        for e in range(experts if isinstance(experts, int) else experts[rank]):
            for part in "up", "down":
                data = tensor(f"{rank} {e} {part}", [2, 3], "BF16")
                own[f"model.layers.0.mlp.experts.{e}.{part}.weight"] = data
                model[f"model.layers.0.mlp.experts.{rank * each + e}.{part}.weight"] = data
        files.append(own)
    return files, model


def experts_of_two_ranks(shell):
    files, model = moe(2, 2, 2)
    own = [states({k: v for k, v in file.items() if "experts" in k}) for file in files]
    for rank, file in enumerate(own):
        for key in file:
            file[key] = tensor(f"{rank} {key}", file[key][1])
    family(shell.work / "a", "model", files)
    family(shell.work / "a", "optimizer", own)
    refused(shell, "a", 5, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "other bytes", "--lenient")
    found = {t["key"]: t for t in json.loads(shell("hash", "--json", "--lenient", "a"))["tensors"]}
    expected = {f"model:{key}" for key in model}
    for rank, file in enumerate(own):
        for key in file:
            before, number, rest = key.partition(".experts.")[0], *key.partition(".experts.")[2].split(".", 1)
            expected.add(f"optimizer:{before}.experts.{rank * 2 + int(number)}.{rest}")
    keys_must_be(set(found), expected)
    for key, (_, _, data) in model.items():
        assert found[f"model:{key}"]["hash"] == hashlib.sha256(data).hexdigest(), key
    shell("convert", "a", "b", "--lenient", "--to", "paddle-uc", "--quiet")
    keys_must_be(set(shell.tensors("b")), expected)


def experts_that_ranks_share(shell):
    """Tensor-parallel ranks have the same experts, whole: copies, neither cut nor experts of their own."""
    files, model = moe(2, 2, 2)
    copies = [files[0], {k: v for k, v in files[0].items() if "experts" in k}, files[1], files[1]]
    family(shell.work / "a", "model", copies)
    family(shell.work / "a", "optimizer", [states(model)])
    found = {t["key"]: t for t in json.loads(shell("hash", "--json", "--lenient", "a"))["tensors"]
             if t["key"].startswith("model:")}
    keys_must_be(set(found), {f"model:{key}" for key in model})
    for key, (_, _, data) in model.items():
        assert found[f"model:{key}"]["hash"] == hashlib.sha256(data).hexdigest(), key
    family(shell.work / "b", "model", copies[:2])
    family(shell.work / "b", "optimizer", [states(model)])
    assert "with the same bytes" in shell("inspect", "b").decode()
    refused(shell, "a", 5, "model-00001-of-00004.safetensors", "model-00004-of-00004.safetensors")


def experts_that_do_not_fit(shell):
    files, _ = moe(2, [2, 1], 2)
    family(shell.work / "a", "model", files)
    family(shell.work / "a", "optimizer", [states(small())])
    said = shell("hash", "--lenient", "a", exit_status=5).decode()
    assert "model-00002-of-00002.safetensors' has 1 experts, other ranks have 2" in said, said


# ---- states that were not merged ----


def ranked(shell):
    """tp2, sharding 2: each tensor-parallel pair of ranks has some of the parameters."""
    weights = {"a.weight": tensor("a", [4, 6], "BF16"), "b.weight": tensor("b", [8, 3], "BF16"), "norm.weight": tensor("n", [4], "BF16")}
    folder = shell.work / "a"
    family(folder, "model", [weights])
    merged, files = states(weights), {}
    for key, (dtype, shape, data) in merged.items():
        name, shard = key.split("/")[0], int(key.startswith("b"))
        for tp in range(2):
            rows = [data[i:i + 4 * shape[-1]] for i in range(0, len(data), 4 * shape[-1])]
            if shape == [1] or name == "norm.weight":
                part = dtype, shape, data
            elif name == "a.weight":
                part = dtype, [4, 3], b"".join(row[tp * 12:tp * 12 + 12] for row in rows)
            else:
                part = dtype, [4, 3], b"".join(rows[tp * 4:tp * 4 + 4])
            files.setdefault((tp, shard), {})[key] = part
    for (tp, shard), tensors in files.items():
        put(folder / f"optimizer.tp{tp:02}_shard{shard:02}.safetensors", tensors)
    (folder / "optimizer.safetensors.index.json").write_text(json.dumps({"quant_ckpt_resume_times": 0, "optim_shard_num": 1}))
    same_bytes(shell, "a", prefixed(model=weights, optimizer=merged))
    assert "ignore_merge_optimizer" in shell("inspect", "a").decode()
    shell("verify", "a")
    shell("convert", "a", "b", "--to", "paddle-uc", "--layout", "tp=2", "--quiet")
    same_bytes(shell, "b", prefixed(model=weights, optimizer=merged))
    (folder / "optimizer.tp01_shard00.safetensors").unlink()
    shell("hash", "a", exit_status=4)


def ranked_that_cannot_be_told(shell):
    for name, shape, part, word in (("qkv_proj.weight", [4, 6], [4, 3], "looks fused"), ("a.weight", [4, 4], [2, 2], "no part"),
                                    ("lost.weight", None, [2, 2], "not here")):
        folder = shell.work / name
        family(folder, "model", [{name: tensor("w", shape)} if shape else {"other": tensor("o", [1])}])
        for tp in range(2):
            put(folder / f"optimizer.tp{tp:02}.safetensors", {f"{name}/moment1_0": tensor(f"{tp}", part)})
        said = shell("hash", name, exit_status=5).decode()
        assert word in said and "optimizer.tp00.safetensors" in said, said
        assert word in shell("inspect", name).decode()


def put_ranked(folder, weights, stage, files):
    """ignore_merge_optimizer: what each file holds."""
    family(folder, "model", [weights])
    for name, tensors in files.items():
        put(folder / name, tensors)
    index = {"quant_ckpt_resume_times": 0, "optim_shard_num": 1, "ckpt_quant_stage": stage}
    (folder / "optimizer.safetensors.index.json").write_text(json.dumps(index))


def ranked_and_quantised(shell):
    """Sharding ranks have whole states with their scales, and so have tensor-parallel ranks of what they all hold. Pieces of a state have
    scales of their own, and are refused."""
    weights = {key: tensor(key, shape, "BF16") for key, shape in {"a.weight": [64, 6], "b.bias": [37], "gate.weight": [32, 3]}.items()}
    for stage in "O1", "O2":
        held, _, values = quantised_states(weights, stage)
        parts = [{k: v for k, v in held.items() if k.startswith("a") == first} for first in (True, False)]
        for name, files in (("shards", {f"optimizer.shard{i:02}.safetensors": part for i, part in enumerate(parts)}),
                            ("copies", {f"optimizer.tp{tp:02}.safetensors": held for tp in range(2)})):
            folder = shell.work / f"{stage}.{name}"
            put_ranked(folder, weights, stage, files)
            same_bytes(shell, folder, prefixed(model=weights, optimizer=held))
            shell("verify", folder)
            shell("convert", folder, f"{folder}.fc", "--to", "paddle-flex", "--rules", "auto", "--quiet")
            same_bytes(shell, f"{folder}.fc", weights | {key.replace("/", "."): value for key, value in values.items()})
        for shape in ([64, 3], [32, 6]):
            pieces = quantised_states({**weights, "a.weight": tensor("a.weight", shape, "BF16")}, stage)[0]
            folder = shell.work / f"{stage}.{shape[0]}"
            put_ranked(folder, weights, stage, {f"optimizer.tp{tp:02}.safetensors": pieces for tp in range(2)})
            refused(shell, folder, 5, "a.weight/moment", "optimizer.tp00.safetensors", "quantised")
            assert not any("gate" in line for line in shell("inspect", folder).decode().splitlines() if "left out" in line)


def ranked_that_disagree(shell):
    folder = shell.work / "a"
    family(folder, "model", [{"norm.weight": tensor("w", [4])}])
    for tp in range(2):
        put(folder / f"optimizer.tp{tp:02}.safetensors", {"norm.weight/moment1_0": tensor(f"{tp}", [4])})
    refused(shell, "a", 4, "optimizer.tp00.safetensors", "optimizer.tp01.safetensors", "other bytes")


def runs_of(held, shards, border):
    """Sharding V2 with split_param: states are padded to 256 bytes of the bfloat16 weight a rank, one behind the other, and what of them
    comes before `border` is the first rank's, and so on. Returns {(rank, key): tensor}."""
    made, at = {}, 0
    for key, (dtype, shape, data) in held.items():
        if shape == [1]:
            made[0, key] = dtype, shape, data
            continue
        unit = 128 * shards
        count = -(-math.prod(shape) // unit) * unit
        data += bytes(4 * count - len(data))
        for rank in range(shards):
            begin, end = max(at, rank * border), min(at + count, (rank + 1) * border)
            if begin < end:
                made[rank, key] = dtype, [end - begin], data[4 * (begin - at):4 * (end - at)]
        at += count
    return made


def put_runs(folder, weights, made, word="optimizer.shard{:02}"):
    put_ranked(folder, weights, "O0", {f"{word.format(rank)}.safetensors": {k: v for (r, k), v in made.items() if r == rank}
                                       for rank in {rank for rank, _ in made}})


def ranked_runs(shell):
    """A border may lie within a matrix, a vector, or between two."""
    weights = {"w": tensor("w", [24, 100], "BF16"), "b": tensor("b", [100], "BF16")}
    held = states(weights, ("moment1_0",))
    for shards, border in ((2, 1408), (2, 2560), (3, 1024), (110, 256)):
        folder = shell.work / f"{shards}.{border}"
        put_runs(folder, weights, runs_of(held, shards, border))
        same_bytes(shell, folder, prefixed(model=weights, optimizer=held))
        shell("verify", folder)
    shell("convert", folder, "b", "--to", "paddle-uc", "--quiet")
    same_bytes(shell, "b", prefixed(model=weights, optimizer=held))
    (shell.work / "2.1408" / "optimizer.shard01.safetensors").unlink()
    refused(shell, "2.1408", 4, "w/moment1_0", "sharding ranks have 1408 elements, its weight has 2400")


def ranked_runs_twice(shell):
    """A tied weight of two stages has its states on each."""
    weights = {"w": tensor("w", [24, 100], "BF16")}
    held = states(weights, ("moment1_0",))
    made = runs_of(held, 2, 1280)
    put_runs(shell.work / "a", weights, made, "optimizer.pp00_shard{:02}")
    put_runs(shell.work / "a", weights, made, "optimizer.pp01_shard{:02}")
    same_bytes(shell, "a", prefixed(model=weights, optimizer=held))
    shell("verify", "a")


def ranked_runs_that_cannot_be_told(shell):
    weights = {"w": tensor("w", [24, 100], "BF16"), "mlp.experts.0.w": tensor("e", [4, 6], "BF16")}
    made = runs_of(states({"w": weights["w"]}, ("moment1_0",)), 2, 1280)
    put_runs(shell.work / "a", weights, made, "optimizer.tp00_shard{:02}")
    put_runs(shell.work / "a", weights, made, "optimizer.tp01_shard{:02}")
    refused(shell, "a", 5, "w/moment1_0", "run of sharding V2", "tensor parallelism")
    quantised = {(rank, key): ("I8", shape, data[:math.prod(shape)]) for (rank, key), (_, shape, data) in made.items() if "moment" in key}
    put_runs(shell.work / "q", weights, quantised)
    index = shell.work / "q" / "optimizer.safetensors.index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"ckpt_quant_stage": "O1"}))
    refused(shell, "q", 5, "w/moment1_0", "run of sharding V2", "quantised")


def ranked_experts(shell):
    """Each rank of expert parallelism numbers its own experts from 0 on."""
    key = "mlp.experts.0.w"
    weights = {key: tensor("e", [16, 24], "BF16")}
    for name, shape in (("whole", [16, 24]), ("runs", [512]), ("long", [400])):
        for word in "moe", "shard":
            folder = shell.work / f"{name}.{word}"
            put_ranked(folder, weights, "O0", {f"optimizer.{word}{rank:02}.safetensors": {f"{key}/moment1_0": tensor(f"{rank}", shape)}
                                               for rank in range(2)})
            refused(shell, folder, 5, f"{key}/moment1_0", f"optimizer.{word}00.safetensors", "numbers its own from 0 on")
            assert "numbers its own from 0 on" in shell.any("hash", folder, "--lenient").stderr


# ---- refusals ----


def bad_indexes(shell):
    weights = small()
    first, second = "model.embed.weight", "lm_head.weight"
    file = "model-00001-of-00001.safetensors"

    def index(change):
        whole(shell.work / "a")
        path = shell.work / "a" / "model.safetensors.index.json"
        content = json.loads(path.read_text())
        change(content["weight_map"])
        path.write_text(json.dumps(content))

    index(lambda m: m.update({first: "model-00002-of-00002.safetensors"}))
    refused(shell, "a", 4, "model.safetensors.index.json", "model-00002-of-00002.safetensors", "not there")
    index(lambda m: m.pop(first))
    refused(shell, "a", 4, "model.safetensors.index.json", first, file, "not in weight_map")
    shell("hash", "--lenient", "a")
    index(lambda m: m.update({"ghost": file}))
    refused(shell, "a", 4, "ghost", file, "does not hold it")
    index(lambda m: m.update({first: "../" + file}))
    refused(shell, "a", 4, "model.safetensors.index.json", "'..'")
    index(lambda m: m.update({first: "/etc/" + file}))
    refused(shell, "a", 4, "starts with '/'")
    index(lambda m: None)
    path = shell.work / "a" / "model.safetensors.index.json"
    path.write_text(path.read_text().replace(f'"{second}"', f'"{first}"'))
    refused(shell, "a", 4, first, "twice")
    path.write_text('{"metadata": {}}')
    refused(shell, "a", 4, "no weight_map")
    index(lambda m: None)
    put(shell.work / "a" / "model-00002-of-00002.safetensors", {first: tensor("other", weights[first][1], "BF16")})
    content = json.loads(path.read_text())
    content["weight_map"]["more"] = "model-00002-of-00002.safetensors"
    put(shell.work / "a" / "model-00002-of-00002.safetensors",
        {first: tensor("other", weights[first][1], "BF16"), "more": tensor("more", [1])})
    path.write_text(json.dumps(content))
    refused(shell, "a", 4, first, file, "model-00002-of-00002.safetensors", "other bytes")


# ---- writing ----


def deal(sizes, ranks):
    """Which rank stores which tensor, by the trainer's rule: {key: file}."""
    limit = -(-sum(sizes.values()) // ranks)
    blocks, block, total = [], [], 0
    for index, (key, size) in enumerate(sizes.items()):
        if total + size > limit * (len(blocks) + 1) or len(sizes) - index < ranks - len(blocks):
            if block and len(blocks) + 1 < ranks:
                blocks.append(block)
                block = []
        block.append(key)
        total += size
    blocks.append(block)
    return {key: number for number, keys in enumerate(blocks) for key in keys}


def dealt_over_ranks(shell):
    source = random.Random(7)
    for round_ in range(12):
        folder = shell.work / f"a{round_}"
        weights = {f"w{i}": tensor(f"{round_} {i}", [source.choice((1, 2, 3, 5, 8, 40))], source.choice(("BF16", "I8")))
                   for i in range(source.randrange(1, 14))}
        family(folder, "model", [weights])
        family(folder, "optimizer", [states(weights)], master_weights=False)
        for tp in 1, 2, 3, 5:
            out = f"b{round_}-{tp}"
            shell("convert", folder.name, out, "--to", "paddle-uc", "--layout", f"tp={tp}", "--quiet")
            for name, tensors in ("model", weights), ("optimizer", states(weights)):
                index = json.loads((shell.work / out / f"{name}.safetensors.index.json").read_text())
                expected = deal({k: len(data) for k, (_, _, data) in tensors.items()}, tp)
                assert index["weight_map"] == {k: f"{name}-{f + 1:05}-of-{tp:05}.safetensors" for k, f in expected.items()}, (out, index)
                assert list(index["weight_map"]) == [k for f in range(tp) for k in tensors if expected[k] == f]
                assert index["metadata"] == {"total_size": sum(len(data) for _, _, data in tensors.values())}
                files = [get(path) for path in (shell.work / out).glob(f"{name}-*.safetensors")]
                assert len(files) == len(set(expected.values())), "a file that is in no map"
                assert {k: v for file in files for k, v in file.items()} == tensors
            text = (shell.work / out / "optimizer.safetensors.index.json").read_text()
            assert text == json.dumps(json.loads(text), indent=4), "not spelled as Python's json spells it"
            assert json.loads(text)["master_weights"] is False and json.loads(text)["quant_ckpt_resume_times"] == 0


def quantising_that_no_source_knows(shell):
    """A source of another format has not been taken up from quantised states."""
    weights = {"w.weight": tensor("w", [4, 3], "BF16")}
    family(shell.work / "a", "model", [weights])
    family(shell.work / "a", "optimizer", [states(weights)], master_weights=False, quant_ckpt_resume_times=3)
    shell("convert", "a", "s.safetensors", "--quiet")
    shell("convert", "s.safetensors", "c", "--to", "paddle-uc", "--quiet")
    index = json.loads((shell.work / "c" / "optimizer.safetensors.index.json").read_text())
    assert (index["quant_ckpt_resume_times"], index["master_weights"], "ckpt_quant_stage" in index) == (0, False, False), index


def split_by_size(shell):
    weights = {f"w{i}": tensor(f"{i}", [10], "BF16") for i in range(5)}
    family(shell.work / "a", "model", [weights])
    shell("convert", "a", "b", "--to", "paddle-uc", "--max-shard-size", "40", "--quiet")
    index = json.loads((shell.work / "b" / "model.safetensors.index.json").read_text())["weight_map"]
    assert [index[f"w{i}"][6:11] for i in range(5)] == ["00001", "00001", "00002", "00002", "00003"], index


def like_a_reference(shell):
    weights = whole(shell.work / "a")
    family(shell.work / "ref", "model", [dict(list(weights.items())[2:]), dict(list(weights.items())[:2])])
    family(shell.work / "ref", "optimizer", [states(weights), {}])
    shell("convert", "a", "b", "--like", "ref", "--quiet")
    for name, files in ("model", 2), ("optimizer", 2):
        index = json.loads((shell.work / "b" / f"{name}.safetensors.index.json").read_text())["weight_map"]
        assert index == json.loads((shell.work / "ref" / f"{name}.safetensors.index.json").read_text())["weight_map"], index
        assert all("-of-%05d." % files in p.name for p in (shell.work / "b").glob(f"{name}-*"))
    for words in ("tp=3", "sharding=2", "ranks=1"):  # they win over the reference
        for target, options in (("wanted", ["--to", "paddle-uc"]), ("cut", ["--like", "ref"])):
            shell("convert", "a", target, *options, "--layout", words, "--overwrite", "--quiet")
        found = filecmp.dircmp(shell.work / "wanted", shell.work / "cut")
        assert found.same_files and not found.left_only and not found.right_only and not found.diff_files, (words, found.report())


def what_paddle_lacks(shell):
    put(shell.work / "u.safetensors", {"a": tensor("a", [2], "U16")})
    said = shell("convert", "u.safetensors", "b", "--to", "paddle-uc", exit_status=5).decode()
    assert "'a': Paddle has no dtype U16" in said, said
    put(shell.work / "c.safetensors", {"a": tensor("a", [2], "C64"), "b": tensor("b", [1] * 10, "BF16")})
    said = shell.any("convert", "c.safetensors", "c", "--to", "paddle-uc").stderr
    assert "does not load C64" in said and "more than 9 dimensions" in said, said
    said = shell.any("convert", "c.safetensors", "cf", "--to", "paddle-flex").stderr
    assert "more than 9 dimensions" in said, said
    put(shell.work / "d.safetensors", {"a": tensor("a", [2]), "model:a": tensor("b", [2])})
    said = shell("convert", "d.safetensors", "d", "--to", "paddle-uc", exit_status=5).decode()
    assert "two tensors would have this key in the family 'model'" in said, said


def side_files(shell):
    whole(shell.work / "a")
    for name in "config.json", "scheduler.pdparams", "rng_state_0.pth", "training_args.bin", "trainer_state.bin", "trainer_state.json":
        (shell.work / "a" / name).write_text("{}" + name)
    shell("convert", "a", "b", "--to", "paddle-uc", "--layout", "tp=2", "--quiet")
    for name in "config.json", "scheduler.pdparams", "rng_state_0.pth", "training_args.bin", "trainer_state.bin", "trainer_state.json":
        assert (shell.work / "b" / name).read_text() == "{}" + name
    shell("convert", "a", "b", "--to", "paddle-uc", "--overwrite", "--quiet")
    (shell.work / "b" / "novel.docx").write_text("mine")
    shell("convert", "a", "b", "--to", "paddle-uc", "--overwrite", "--quiet", exit_status=2)


# ---- names ----


def flex(weights, model=True):
    """The same state under the names of a Flex Checkpoint."""
    made = dict(weights) if model else {}
    made |= {key.replace("/", "."): value for key, value in states(weights).items()}
    return made | {key + ".w_0": value for key, value in masters(weights).items() if weights[key][0] != "F32"}


def there_and_back(shell):
    """UC to the names of a Flex Checkpoint and back: lines of md5 are the same but for the names, and diff finds nothing."""
    weights = whole(shell.work / "uc", more={"gate.weight": tensor("gate", [4, 2])})
    put(shell.work / "fc.safetensors", flex(weights))
    shell("convert", "fc.safetensors", "made", "--to", "paddle-uc", "--rules", "auto", "--layout", "tp=2", "--quiet")
    expected = prefixed(model=weights, optimizer=states(weights), master_weights=masters(weights))
    same_bytes(shell, "made", expected)
    assert json.loads((shell.work / "made" / "optimizer.safetensors.index.json").read_text())["master_weights"] is True
    shell("diff", "uc", "fc.safetensors", "--items", "ignore")
    shell("diff", "fc.safetensors", "made", "--items", "ignore")
    shell("convert", "uc", "again", "--to", "paddle-uc", "--quiet")
    assert json.loads((shell.work / "again" / "optimizer.safetensors.index.json").read_text())["master_weights"] is True
    shell("convert", "made", "back.safetensors", "--like", "fc.safetensors", "--quiet")
    assert shell("hash", "--digest", "md5", "back.safetensors") == shell("hash", "--digest", "md5", "fc.safetensors")
    lines = [line.split("  ", 3) for line in shell("hash", "--digest", "md5", "fc.safetensors").decode().splitlines()]
    lines = {key: said for *said, key in lines}
    for line in shell("hash", "--digest", "md5", "uc").decode().splitlines():
        *said, key = line.split("  ", 3)
        name, key = key.split(":", 1)
        if (name, key) == ("master_weights", "gate.weight"):
            continue
        key = key.replace("/", ".") if name == "optimizer" else key + ".w_0" if name == "master_weights" else key
        assert lines.pop(key) == said, key
    assert not lines, lines


def names_stay(shell):
    """Nobody asked for other names, so they stay; and it is said that the states are among the weights."""
    weights = small()
    put(shell.work / "fc.safetensors", flex(weights))
    said = shell.any("convert", "fc.safetensors", "made", "--to", "paddle-uc").stderr
    assert "8 optimizer states are written among the weights" in said and "--rules auto" in said, said
    same_bytes(shell, "made", flex(weights))


def to_bf16(data):
    """float32 to bfloat16, to the nearest, ties to even."""
    words = [struct.unpack("<I", data[i:i + 4])[0] for i in range(0, len(data), 4)]
    return b"".join(struct.pack("<H", (w + 0x7FFF + (w >> 16 & 1)) >> 16) for w in words)


def weights_of_masters(shell):
    """Data parallelism stores states and master weights only: the weights are cast."""
    weights = whole(shell.work / "uc", model=False)
    put(shell.work / "names.safetensors", flex(weights))
    expected = flex(weights) | {key: ("BF16", shape, to_bf16(data)) for key, (_, shape, data) in masters(weights).items()}
    said = shell.any("convert", "uc", "fc.safetensors", "--like", "names.safetensors").stderr
    assert "4 weights are cast from their master weights" in said, said
    same_bytes(shell, "fc.safetensors", expected)


def weights_that_are_masters(shell):
    """skip_save_model_weight: what has the names of the weights is both."""
    weights = small()
    family(shell.work / "uc", "model", [masters(weights)])
    family(shell.work / "uc", "optimizer", [states(weights)], master_weights=True)
    put(shell.work / "names.safetensors", flex(weights))
    shell("convert", "uc", "fc.safetensors", "--like", "names.safetensors", "--quiet")
    same_bytes(shell, "fc.safetensors",
               flex(weights) | {key: ("BF16", shape, to_bf16(data)) for key, (_, shape, data) in masters(weights).items()})


def unmerged_block(shell):
    """A block that the merging rules forgot was saved as one rank had it: its shape tells."""
    weights = small()
    name = "model.mtp_block.0.up.weight"
    family(shell.work / "uc", "model", [weights | {name: tensor("part", [4, 4], "BF16")}])
    family(shell.work / "uc", "optimizer", [states(weights)], master_weights=True)
    family(shell.work / "uc", "master_weights", [masters(weights)])
    put(shell.work / "fc.safetensors", flex(weights) | {name: tensor("whole", [4, 8], "BF16")})
    said = shell("diff", "uc", "fc.safetensors", "--items", "ignore", exit_status=1).decode()
    assert f"{name}\tshape [4,4] against [4,8], axis 1 is 2 times as long: is one of them the part of one tensor-parallel rank" in said


def md5_without_some(shell):
    """Keys that a callback changed are left out of a comparison."""
    weights = whole(shell.work / "a")
    whole(shell.work / "b")
    family(shell.work / "b", "model", [weights | {"model.layers.0.norm.weight": tensor("changed", [4], "BF16")}])
    said = shell("diff", "a", "b", exit_status=1).decode()
    assert "max abs" in said and "model:model.layers.0.norm.weight" in said, said
    for name in "a", "b":
        shell("convert", name, name + "2", "--to", "paddle-uc", "--exclude", "*norm.weight", "--quiet")
    shell("diff", "a2", "b2")


# ---- what the trainer wrote ----


# What PaddleFormers 1.2 wrote of the fixtures' model on two ranks, pipeline stages and a sharding group (stage 1): digests of all files.
TWO_RANKS = {"pp=2": "986ce3a2311533413be2a3642d6b5c1c392e2ea50ef6788f43753c96f64b767d",
             "sharding=2": "2aaab24191ba12ae2fc96eb79a6e4b23ecf9dc1570c8e8f2272c49632ba8e61c"}


def digest_of_files(folder):
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def trainers_own(roots):
    def test(shell):
        found = next((root for root in roots if (root / "paddle" / "paddle-uc-tp2").is_dir()), None)
        if not found:
            return "no fixtures here"
        one, two, skip = (found / "paddle" / f"paddle-uc-{name}" / "ckpt" for name in ("tp1", "tp2", "tp2-skip"))
        shell("convert", one, "a", "--to", "paddle-uc", "--layout", "tp=2", "--quiet")
        shell("convert", two, "b", "--to", "paddle-uc", "--layout", "tp=1", "--quiet")
        shell("convert", one, "c", "--like", two, "--quiet")
        shell("convert", one, "d", "--to", "paddle-uc", "--layout", "tp=2", "-o", "mode=skip_save_model_weight", "--quiet")
        shell("convert", one, "e", "--like", skip, "-o", "mode=skip_save_model_weight", "--quiet")
        for made, wanted in ("a", two), ("b", one), ("c", two), ("d", skip), ("e", skip):
            names = sorted(p.name for p in wanted.iterdir())
            assert sorted(p.name for p in (shell.work / made).iterdir()) == names
            same, other, failed = filecmp.cmpfiles(wanted, shell.work / made, names, shallow=False)
            other = [name for name in other if made != "b" or not name.endswith(".json")]   # two ranks' order is another
            assert not other and not failed, (made, other, failed)
        for words, wanted in TWO_RANKS.items():
            for number, source in enumerate((one, two)):
                made = f"{words}-{number}"
                shell("convert", source, made, "--to", "paddle-uc", "--layout", words, "--quiet")
                assert digest_of_files(shell.work / made) == wanted, made
        return "the trainer's files, byte by byte"
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", action="append", default=[], type=lambda path: pathlib.Path(path).resolve())
    arguments = parser.parse_args()
    tests = [
        ("all families are one checkpoint", all_families), ("one file a family", single_files), ("weights of a LoRA", lora),
        ("a LoRA under other names and back", lora_there_and_back),
        ("numbered files without an index", numbered_without_index), ("skip_save_model_weight", skip_mode),
        ("remove_master_weight", removed_masters), ("weights that are stored once are written", weights_stored_once),
        ("quantised states are kept as they are", quantised),
        ("quantised states become the values that they stand for", quantised_values),
        ("quantised states without fitting scales are refused", quantised_without_scales),
        ("F20 experts numbered by each rank are refused, or get their numbers", experts_of_two_ranks),
        ("F21 experts that tensor-parallel ranks share are copies", experts_that_ranks_share),
        ("ranks with other numbers of experts are refused", experts_that_do_not_fit),
        ("ignore_merge_optimizer: pieces of ranks are put together", ranked),
        ("ignore_merge_optimizer: what cannot be told is refused", ranked_that_cannot_be_told),
        ("ignore_merge_optimizer: quantised states", ranked_and_quantised),
        ("ignore_merge_optimizer: ranks that disagree are named", ranked_that_disagree),
        ("ignore_merge_optimizer: runs of sharding V2 are put together", ranked_runs),
        ("ignore_merge_optimizer: runs of sharding V2 on two stages", ranked_runs_twice),
        ("ignore_merge_optimizer: runs of sharding V2 that cannot be told are refused", ranked_runs_that_cannot_be_told),
        ("ignore_merge_optimizer: experts with numbers of their ranks are refused", ranked_experts),
        ("indexes that do not fit their files are refused", bad_indexes),
        ("tensors are dealt over files as the trainer deals them", dealt_over_ranks),
        ("quantising that no source knows", quantising_that_no_source_knows),
        ("files of a size", split_by_size),
        ("files as a reference has them", like_a_reference), ("what Paddle lacks is said", what_paddle_lacks),
        ("files beside the tensors come along", side_files),
        ("F18 names of a Flex Checkpoint and back, by md5", there_and_back), ("names stay where nobody asks for others", names_stay),
        ("F19 weights are cast from master weights", weights_of_masters), ("weights that are their masters", weights_that_are_masters),
        ("F22 a tensor that was not merged shows in its shape", unmerged_block), ("F7 keys are left out of a comparison", md5_without_some),
        ("the trainer's own files", trainers_own(arguments.root)),
    ]
    return small_models.run(arguments.bin, tests)


if __name__ == "__main__":
    raise SystemExit(main())
