#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The usual mistakes of those who cut, merge and convert checkpoints, planted in converted ones: diff and verify --against name them.
Prints TAP.

usage: mistakes_test.py --bin RESHARD
"""
import argparse
import json
import math
import pathlib
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

CONFIG = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 2,
          "num_hidden_layers": 2, "vocab_size": 16, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
LAYER = {"input_layernorm": [8], "post_attention_layernorm": [8], "mlp.gate_proj": [12, 8], "mlp.up_proj": [12, 8],
         "mlp.down_proj": [8, 12]} | {f"self_attn.{x}_proj": [8, 8] for x in "qkvo"}


def matrix(rows, columns, draw):
    return [[draw.uniform(-1, 1) for _ in range(columns)] for _ in range(rows)]


def packed(values):
    flat = [x for row in values for x in row] if isinstance(values[0], list) else values
    return struct.pack(f"<{len(flat)}f", *flat)


def shape_of(values):
    return [len(values), len(values[0])] if isinstance(values[0], list) else [len(values)]


def safetensors(path, tensors):
    """{key: rows, or numbers}"""
    header, data = {}, b""
    for key, values in tensors.items():
        part = packed(values)
        header[key] = {"dtype": "F32", "shape": shape_of(values), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Work:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.draw = random.Random(7)

    def run(self, *words, status=0):
        done = subprocess.run([self.binary, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, f"{words}: exit {done.returncode} instead of {status}: {done.stdout[-300:]}{done.stderr[:300]}"
        return done

    def findings(self, *words):
        return json.loads(self.run(*words, "--json", status=1).stdout)["findings"]

    def model(self):
        shapes = {"model.embed_tokens": [16, 8], "lm_head": [16, 8], "model.norm": [8]}
        shapes |= {f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()}
        return {f"{key}.weight": matrix(*shape, self.draw) if len(shape) == 2 else matrix(1, shape[0], self.draw)[0]
                for key, shape in shapes.items()}

    def hf(self, name, tensors, **options):
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        safetensors(self.folder / "all.safetensors", tensors)
        self.run("convert", "all.safetensors", name, "--to", "hf", *[word for pair in options.items() for word in pair])
        (folder / "config.json").write_text(json.dumps(CONFIG))
        return folder


def rounded_to_bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.unpack("<f", struct.pack("<I", bits + 0x7fff + (bits >> 16 & 1) & 0xffff0000))[0]


def cut_to_bf16(value):
    return struct.unpack("<f", b"\0\0" + struct.pack("<f", value)[2:])[0]


def cause_of(work, a, b):
    """What diff says of `w` in the second."""
    safetensors(work.folder / "a.safetensors", {"w": a} if not isinstance(a, dict) else a)
    safetensors(work.folder / "b.safetensors", {"w": b} if not isinstance(b, dict) else b)
    found = {f["key"]: f["text"] for f in work.findings("diff", "a.safetensors", "b.safetensors") if f["kind"] == "cause"}
    return found if isinstance(a, dict) else found.get("w", "")


def fused(parts, degree):
    """As `degree` ranks hold it, one after the other."""
    cut = [[part[len(part) // degree * r:len(part) // degree * (r + 1)] for part in parts] for r in range(degree)]
    return [row for rank in cut for part in rank for row in part]


def case_causes(work):
    """Every kind of cause in a file of its own."""
    w = matrix(24, 10, work.draw)
    q, k, v = matrix(32, 6, work.draw), matrix(8, 6, work.draw), matrix(8, 6, work.draw)
    gate, up = matrix(16, 6, work.draw), matrix(16, 6, work.draw)
    square, order = matrix(9, 9, work.draw), work.draw.sample(range(24), 24)
    bf16 = [[rounded_to_bf16(x) for x in row] for row in w]
    for a, b, expected in (
        (square, [list(column) for column in zip(*square)], "transposed"),
        (w, [list(column) for column in zip(*w)], "transposed"),
        (w, [[0.5 * x for x in row] for row in w], "scaled by 0.5"),
        (w, [[0.0] * 10 for _ in w], "nothing but zeros"),
        (w, bf16, "cast to BF16"),
        (w, [w[i] for i in order], "rows come in another order"),
        (w, w[12:] + w[:12], "in pieces of 12: the second has, as the first numbers them, 1, 0"),
        (w, [row[5:] + row[:5] for row in w], "columns come in another order, in pieces of 5"),
        (fused([q, k, v], 1), fused([q, k, v], 4),
         "fused q, k and v are interleaved for 4 tensor-parallel ranks in the second, for 1"),
        (fused([gate, up], 4), fused([gate, up], 1),
         "gate and up) are interleaved for 1 tensor-parallel ranks in the second, for 4"),
    ):
        said = cause_of(work, a, b)
        assert expected in said, f"{said!r} instead of {expected!r}"
    cut = [[cut_to_bf16(x) for x in row] for row in w]
    assert cause_of(work, w, cut) == "the second was cast to BF16 by cutting digits off, not by rounding, and back"
    work.run("convert", "b.safetensors", "cut.safetensors", "--dtype", "*=BF16")
    said = [f["text"] for f in work.findings("diff", "cut.safetensors", "a.safetensors") if f["kind"] == "cause"]
    assert said == ["the first was cast to BF16 by cutting digits off, not by rounding"], said
    lost = [list(row) for row in w]
    lost[3][4], lost[5][6], lost[5][7] = math.nan, -math.inf, math.inf
    assert cause_of(work, w, lost) == "1 NaN in the second alone, 2 infinite in the second alone, all other values agree"
    said = json.loads(work.run("diff", "a.safetensors", "b.safetensors", "--json", status=1).stdout)
    assert said["summary"]["max_relative"] is None and "relative error inf" in said["verdict"], said
    assert cause_of(work, lost, w) == "1 NaN in the first alone, 2 infinite in the first alone, all other values agree"
    halves = [row for head in range(0, 32, 16) for pair in zip(q[head:head + 8], q[head + 8:head + 16]) for row in pair]
    assert "the other convention of rotary embeddings" in cause_of(work, q, halves)
    noise = [[x + work.draw.uniform(0.1, 0.2) for x in row] for row in w]
    assert cause_of(work, w, noise) == "", "an explanation of noise"
    swapped = cause_of(work, {"l.0": w, "l.1": noise}, {"l.0": noise, "l.1": w})
    assert swapped == {"l.0": "it and 'l.1' have changed places", "l.1": "it and 'l.0' have changed places"}, swapped


def case_fused_elsewhere(work):
    """Ranks' fused weights, put behind each other and cut as if one rank had them all: several tensors have rows of each other."""
    draw = work.draw
    parts = {"gate_proj": matrix(16, 6, draw), "up_proj": matrix(16, 6, draw), "q_proj": matrix(32, 6, draw),
             "k_proj": matrix(8, 6, draw), "v_proj": matrix(8, 6, draw)}
    model = {f"l.{name}.weight": rows for name, rows in parts.items()}
    for words, degree, what in (
        (("gate_proj", "up_proj"), 2, "two fused weights (gate and up)"),
        (("gate_proj", "up_proj"), 8, "two fused weights (gate and up)"),
        (("q_proj", "k_proj", "v_proj"), 4, "fused q, k and v"),
    ):
        rows = fused([parts[word] for word in words], degree)
        other = dict(model)
        for word in words:
            other[f"l.{word}.weight"], rows = rows[:len(parts[word])], rows[len(parts[word]):]
        for a, b, ranks in ((model, other, (degree, 1)), (other, model, (1, degree))):
            if ranks == (1, 2):
                continue  # with two ranks and two parts it is the same order from either side
            said = cause_of(work, a, b)
            assert sorted(said) == sorted(f"l.{word}.weight" for word in words), said
            for word in words:
                text, rest = said[f"l.{word}.weight"], [f"'l.{x}.weight'" for x in words if x != word]
                expected = f"with {' and '.join(rest)}: rows of {what} are interleaved for {ranks[0]} tensor-parallel ranks in the " \
                           f"second, for {ranks[1]} in the first"
                assert text.startswith(expected), f"{text!r} instead of {expected!r}"
    apart = dict(model)
    apart["l.up_proj.weight"], apart["l.gate_proj.weight"] = matrix(16, 6, draw), matrix(16, 6, draw)
    assert cause_of(work, model, apart) == {}, "a cause of weights that have nothing of each other"


def case_stale_shard(work):
    """Files of an older step among those of a DCP are named with their ranks, the first four of them."""
    for rows, ranks, stale in ((32, 4, [2]), (4, 4, [1, 2]), (16, 8, [0, 3, 4, 6]), (16, 8, [0, 1, 2, 4, 5])):
        w = {"w": matrix(rows, 6, work.draw)}
        old = {"w": matrix(rows, 6, work.draw)}
        for name, tensors in (("new", w), ("old", old)):
            safetensors(work.folder / "m.safetensors", tensors)
            work.run("convert", "m.safetensors", name, "--to", "torch-dcp", "--layout", f"ranks={ranks}", "--overwrite")
        shutil.rmtree(work.folder / "mixed", ignore_errors=True)
        shutil.copytree(work.folder / "new", work.folder / "mixed")
        for rank in stale:
            shutil.copy(work.folder / f"old/__{rank}_0.distcp", work.folder / "mixed")
        causes = [f["text"] for f in work.findings("diff", "new", "mixed", "--items", "ignore") if f["kind"] == "cause"]
        size = rows // ranks
        named = "; ".join(f"rank {r}, [{r * size}:{(r + 1) * size},0:6] in '__{r}_0.distcp'" for r in stale[:4])
        where = f"the difference begins and ends with shards of the first, {len(stale)} of {ranks}: {named}"
        where += ", and others" if len(stale) > 4 else ""
        assert len(causes) == 1 and causes[0].endswith(where), (causes, where)


def case_wrong_ranks(work):
    """Two files of a DCP in each other's place."""
    safetensors(work.folder / "m.safetensors", {"w": matrix(32, 6, work.draw)})
    work.run("convert", "m.safetensors", "right", "--to", "torch-dcp", "--layout", "ranks=4")
    shutil.copytree(work.folder / "right", work.folder / "wrong")
    shutil.copy(work.folder / "right/__1_0.distcp", work.folder / "wrong/__2_0.distcp")
    shutil.copy(work.folder / "right/__2_0.distcp", work.folder / "wrong/__1_0.distcp")
    causes = [f["text"] for f in work.findings("diff", "right", "wrong", "--items", "ignore") if f["kind"] == "cause"]
    assert causes == ["shards are in another rank's place: the second has, as the first numbers them, 0, 2, 1, 3"], causes


def case_against_config(work):
    """What config.json asks for, and what is not there."""
    tensors = work.model()
    work.hf("good", tensors)
    work.run("verify", "good", "--against", "good/config.json")
    work.run("verify", "good", "--against", "good/config.json", "--fail-on", "nan")
    for name in "nowhere", "no/where.json":
        assert f"cannot open '{name}'" in work.run("verify", "good", "--against", name, status=3).stderr
    config = json.loads((work.folder / "good/config.json").read_text())
    for name, said in ("float32", 0), ("bfloat16", 1):
        (work.folder / "typed.json").write_text(json.dumps(config | {"torch_dtype": name}))
        told = json.loads(work.run("verify", "good", "--against", "typed.json", "--json").stdout)["findings"]
        told = [f for f in told if f["kind"] == "dtype"]
        warns = all(f["severity"] == "warning" and f"one of {len(tensors)} " in f["text"] and "BF16" in f["text"] for f in told)
        assert len(told) == said and warns, told
    bad = dict(tensors)
    del bad["lm_head.weight"]
    bad["model.layers.1.mlp.gate_proj.weight"] = [list(c) for c in zip(*tensors["model.layers.1.mlp.gate_proj.weight"])]
    bad["model.extra.weight"] = [1.0]
    work.hf("bad", bad)
    found = {(f["kind"], f["key"]) for f in work.findings("verify", "bad", "--against", "bad/config.json") if f["severity"] == "failure"}
    expected = {("missing", "lm_head.weight"), ("shape", "model.layers.1.mlp.gate_proj.weight"), ("unexpected", "model.extra.weight")}
    assert found == expected, found
    found = {(f["kind"], f["key"]) for f in work.findings("verify", "bad", "--against", "good") if f["severity"] == "failure"}
    assert found == expected, found
    notes = work.run("convert", "bad", "again", "--to", "hf").stderr
    for words in ("1 tensors that it asks for are missing: 'lm_head.weight'", "1 tensors have another shape",
                  "1 tensors are none that it asks for"):
        assert words in notes, notes


def case_against_folder(work):
    """A folder with no more than a text in it; a reference that is damaged itself says so, and what it lost is expected."""
    tensors = work.model()
    folder = work.hf("sound", tensors, **{"--max-shard-size": "1kB"})
    ref = work.folder / "ref"
    ref.mkdir()
    shutil.copy(folder / "config.json", ref)
    bad = {key: value for key, value in tensors.items() if key != "model.norm.weight"} | {"model.extra.weight": [1.0]}
    work.hf("unlike", bad)
    wrong = {("failure", "missing", "model.norm.weight"), ("failure", "unexpected", "model.extra.weight")}
    for name, warned in ("config.json", False), ("model.safetensors.index.json", True):
        found = work.findings("verify", "unlike", "--against", "ref")
        assert {(f["severity"], f["kind"], f["key"]) for f in found if f["severity"] == "failure"} == wrong, (name, found)
        told = [f for f in found if f["kind"] == "reference"]
        assert len(told) == warned and all("only names are compared, with those of 'model.safetensors.index.json'" in f["text"]
                                           for f in told), told
        shutil.copy(folder / "model.safetensors.index.json", ref)
    for file in folder.glob("*.safetensors"):
        shutil.copy(file, ref)
    weights = json.loads((ref / "model.safetensors.index.json").read_text())["weight_map"]
    (ref / weights["model.norm.weight"]).unlink()
    lost = {key for key, file in weights.items() if file == weights["model.norm.weight"]}
    found = work.findings("verify", "unlike", "--against", "ref")
    assert {(f["severity"], f["kind"], f["key"]) for f in found if f["severity"] == "failure"} == wrong, found
    assert {f["key"] for f in found if f["kind"] == "reference"} >= lost, found
    work.run("verify", "sound", "--against", "ref")


def case_against_index(work):
    """An index whose entry was lost, and one that points nowhere."""
    tensors = work.model()
    folder = work.hf("parts", tensors, **{"--max-shard-size": "1kB"})
    index = folder / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    shutil.copy(index, work.folder / "index.json")
    work.run("verify", "parts", "--against", "index.json")
    lost = json.loads(index.read_text())
    del lost["weight_map"]["model.norm.weight"]
    lost["weight_map"]["ghost.weight"] = next(iter(whole["weight_map"].values()))
    (work.folder / "index.json").write_text(json.dumps(lost))
    found = {(f["kind"], f["key"]) for f in work.findings("verify", "parts", "--against", "index.json") if f["severity"] == "failure"}
    assert found == {("missing", "ghost.weight"), ("unexpected", "model.norm.weight")}, found
    file = whole["weight_map"]["model.norm.weight"]
    (folder / file).unlink()
    gone = {key for key, name in whole["weight_map"].items() if name == file}
    found = [f for f in work.findings("verify", "parts") if f["severity"] == "failure"]
    assert {f["key"] for f in found if f["kind"] == "lost"} == gone, found
    assert any(file in f["text"] for f in found if f["kind"] == "damage"), found
    listed = json.loads(work.run("ls", "--json", "parts").stdout)
    assert set(listed["lost"]) == gone and {t["key"] for t in listed["tensors"]} == set(whole["weight_map"]) - gone, listed
    for verb in ("hash", "parts"), ("convert", "parts", "out", "--to", "torch"):
        said = work.run(*verb, status=4).stderr
        assert file in said, said


def case_large_tensors(work):
    """Tensors of many times what diff holds of each side at once: equal however they are cut, and each differing byte is told."""
    part = work.draw.randbytes(1 << 20)
    data = bytearray(b"".join(i.to_bytes(4, "little") + part for i in range(27)) + b"rest")
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()

    def write(name):
        (work.folder / name).write_bytes(struct.pack("<Q", len(header)) + header + data)
    write("one.safetensors")
    work.run("convert", "one.safetensors", "cut", "--to", "torch-dcp", "--layout", "ranks=3")
    for memory in "128MiB", "32MiB":
        work.run("diff", "one.safetensors", "cut", "--memory", memory)
        work.run("diff", "cut", "one.safetensors", "--memory", memory)
    places = [(8 << 20) - 1, 8 << 20, (16 << 20) + 5, len(data) - 1]
    for at in places:
        data[at] ^= 1
    write("other.safetensors")
    for pair in ("cut", "other.safetensors"), ("other.safetensors", "cut"):
        found = [f for f in work.findings("diff", *pair) if f["key"] == "w" and f["severity"] == "failure"]
        assert [(f["index"], f["count"]) for f in found] == [(places[0], len(places))], found
    stat = json.loads(work.run("diff", "cut", "other.safetensors", "--stat", "--json", status=1).stdout)
    assert stat["summary"]["changed_elements"] == len(places), stat["summary"]


def case_damaged_dcp(work):
    """A data file that is cut off: what lies before its end verifies, what lies behind it is damage, and salvage keeps the first."""
    tensors = work.model()
    work.hf("whole", tensors)
    work.run("convert", "whole", "dcp", "--to", "torch-dcp", "--layout", "ranks=2")
    file = sorted((work.folder / "dcp").glob("*.distcp"))[-1]
    content = file.read_bytes()
    file.write_bytes(content[:len(content) // 2])
    work.run("hash", "dcp", status=4)
    found = [f["text"] for f in work.findings("verify", "dcp") if f["severity"] == "failure"]
    assert found and all("hold" in text for text in found) and len(found) < len(tensors), found
    file.unlink()
    found = [f["text"] for f in work.findings("verify", "dcp") if f["severity"] == "failure"]
    assert any(file.name in text and "does not exist" in text for text in found), found
    listed = json.loads(work.run("ls", "--json", "--chunks", "dcp").stdout)
    assert len(listed["tensors"]) == len(tensors), listed
    assert not any(chunk["file"] == file.name for tensor in listed["tensors"] for chunk in tensor["chunks"]), listed


def case_damaged_folder(work):
    """A file that is cut off, one of nothing, one of the numbered that is gone: what is left is listed, what is lost is told."""
    tensors = work.model()
    folder = work.hf("cut", tensors, **{"--max-shard-size": "1kB"})
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted(set(index.values()))
    second = folder / files[1]
    held = {key for key, name in index.items() if name == files[1]}
    bytes_there = second.read_bytes()
    second.write_bytes(bytes_there[:-1])
    found = [f["text"] for f in work.findings("verify", "cut") if f["severity"] == "failure"]
    assert len(found) == 2 and "cut off" in found[0] and any(f"'{key}'" in found[1] for key in held), found
    work.run("hash", "cut", status=4)
    second.write_bytes(b"")
    found = work.findings("verify", "cut")
    assert {f["key"] for f in found if f["kind"] == "lost"} == held, found
    second.unlink()
    (folder / "model.safetensors.index.json").unlink()
    said = work.run("ls", "cut")
    assert {line.split("\t")[0] for line in said.stdout.splitlines()} == set(index) - held, said.stdout
    assert f"file 2 of {len(files)} is missing" in said.stderr, said.stderr
    said = work.run("salvage", "cut", "rest", status=1)
    assert f"file 2 of {len(files)} is missing" in said.stdout, said.stdout
    work.run("hash", "cut", status=4)
    for name in files:
        (folder / name).write_bytes(b"")
    work.run("ls", "cut", status=4)


def case_items_without_room(work):
    """A header has room for so many items; what finds none is dropped and named, and what is no list of items is refused."""
    state = {"w": torch_stub.tensor("FloatStorage", [2], bytes(8)), "small": 1, "long": "x" * (5 << 20), "last": 2}
    torch_stub.write_zip(work.folder / "many.pt", state)
    dropped = json.loads(work.run("convert", "many.pt", "many.safetensors", "--json").stdout)["dropped"]
    assert len(dropped) == 1 and "long" in dropped[0] and "hf holds it" in dropped[0], dropped
    kept = {i["key"] for i in json.loads(work.run("ls", "--items", "--json", "many.safetensors").stdout)["items"] if "in" not in i}
    assert kept == {"__metadata__", "small", "last"}, kept
    for text in "{}", '{"schema":"reshard-items/1","items":[{"key":"a"}]}', "[":
        header = json.dumps({"__metadata__": {"reshard_items": text}}).encode()
        (work.folder / "no.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        said = work.run("ls", "no.safetensors", status=4).stderr
        assert "reshard_items" in said and "no.safetensors" in said, said


def case_metadata_of_one_side(work):
    """Which framework has the tensors is nothing that another format lacks; whatever else safetensors' metadata says is."""
    torch_stub.write_zip(work.folder / "plain.pt", {"w": torch_stub.tensor("FloatStorage", [2], bytes(8))})
    for pairs, status in ({"format": "pt"}, 0), ({"format": "pt", "step": "7"}, 1), ({"step": "7"}, 1):
        tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        header = json.dumps({"__metadata__": pairs, "w": tensor}).encode()
        (work.folder / "said.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        work.run("diff", "plain.pt", "said.safetensors", status=status)
        work.run("diff", "said.safetensors", "plain.pt", status=status)
    torch_stub.write_zip(work.folder / "own.pt", {"w": torch_stub.tensor("FloatStorage", [2], bytes(8)), "format": "pt"})
    work.run("diff", "plain.pt", "own.pt", status=1)


def case_threads(work):
    """Pairs that are shared out among threads are compared each with its own."""
    tensors = {f"t{i}": matrix(i + 1, 3, work.draw) for i in range(9)}
    safetensors(work.folder / "a.safetensors", tensors)
    work.run("convert", "a.safetensors", "b", "--to", "torch-dcp", "--layout", "ranks=3")
    other = dict(tensors, t7=[[0.25] * 3 for _ in range(8)])
    safetensors(work.folder / "c.safetensors", other)
    for threads in (1, 4, 8, 64):
        work.run("diff", "a.safetensors", "b", "--items", "ignore", "--threads", threads)
        found = work.findings("diff", "b", "c.safetensors", "--items", "ignore", "--threads", threads)
        assert [f["key"] for f in found if f["kind"] == "values"] == ["t7"], found


def case_items_come_home(work):
    """Items survive a Hugging Face folder, and a single file, with their types."""
    value = {"betas": (0.9, 0.95), "none": None, "nan": math.nan, "inf": -math.inf, "bytes": b"\x00\xff", 3: ["a", True, 2**70], "lr": 1.0}
    numbers = {"betas": value["betas"], "list": [1, (2, 3)], "empty": ()}
    torch_stub.write_zip(work.folder / "m.pt", {"w": torch_stub.tensor("FloatStorage", [2], bytes(8)), **numbers})
    (work.folder / "m.pdopt").write_bytes(pickle.dumps({"state": value, "step": 7}, protocol=2))
    for kept in "kept", "kept.safetensors":
        work.run("convert", "m.pt", kept, *(["--to", "hf"] if kept == "kept" else []))
        work.run("convert", kept, "home.pt", "--to", "torch", "--overwrite")
        work.run("diff", "m.pt", "home.pt")
        come_home_from(work, "hf" + kept)


def come_home_from(work, kept):
    work.run("convert", "m.pdopt", kept, *(["--to", "hf"] if kept == "hfkept" else []))
    work.run("convert", kept, "home.pdopt", "--to", "paddle", "--overwrite")
    done = json.loads(work.run("ls", "home.pdopt", "--items", "--json").stdout)["items"]
    there = json.loads(work.run("ls", "m.pdopt", "--items", "--json").stdout)["items"]
    home = {i["key"]: (i["kind"], i.get("value")) for i in done}
    lost = [i for i in there if home.get(i["key"]) != (i["kind"], i.get("value"))]
    assert there and not lost, lost


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    binary = str(pathlib.Path(parser.parse_args().bin).resolve())
    cases = [(name[5:], function) for name, function in globals().items() if name.startswith("case_")]
    print(f"1..{len(cases)}")
    failed = 0
    for number, (name, function) in enumerate(cases, 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                function(Work(binary, pathlib.Path(folder)))
                print(f"ok {number} - {name}")
            except AssertionError as problem:
                failed += 1
                print(f"not ok {number} - {name}\n# {str(problem)[:800]}")
    raise SystemExit(failed != 0)


if __name__ == "__main__":
    main()
