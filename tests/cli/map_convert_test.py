#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""convert, plan and diff with mappings: what is written is compared, element by element, with arrays that this script makes. Prints TAP.

usage: map_convert_test.py --bin PATH
"""
import argparse
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402


class Array:
    """A few axes of Python numbers, row-major: slow, plain, and not the code under test."""

    def __init__(self, shape, values):
        self.shape, self.values = list(shape), list(values)

    def strides(self):
        out, step = [], 1
        for extent in reversed(self.shape):
            out.insert(0, step)
            step *= extent
        return out

    def permute(self, axes):
        strides, shape = self.strides(), [self.shape[a] for a in axes]
        count, values = 1, []
        for extent in shape:
            count *= extent
        for flat in range(count):
            at = 0
            for axis, extent in reversed(list(zip(axes, shape))):
                at += flat % extent * strides[axis]
                flat //= extent
            values.append(self.values[at])
        return Array(shape, values)

    def split(self, parts, axis=0):
        whole = self.permute([axis] + [a for a in range(len(self.shape)) if a != axis])
        back = list(range(1, axis + 1)) + [0] + list(range(axis + 1, len(self.shape)))
        width = whole.shape[0] // parts * (len(whole.values) // whole.shape[0])
        shape = [whole.shape[0] // parts] + whole.shape[1:]
        return [Array(shape, whole.values[i * width:(i + 1) * width]).permute(back) for i in range(parts)]

    @staticmethod
    def join(parts, axis=0):
        rank = len(parts[0].shape)
        order, back = [axis] + [a for a in range(rank) if a != axis], list(range(1, axis + 1)) + [0] + list(range(axis + 1, rank))
        turned = [p.permute(order) for p in parts]
        return Array([sum(p.shape[0] for p in turned)] + turned[0].shape[1:], [v for p in turned for v in p.values]).permute(back)

    @staticmethod
    def stack(parts, axis=0):
        return Array.join([Array(p.shape[:axis] + [1] + p.shape[axis:], p.values) for p in parts], axis)

    def unstack(self, axis=0):
        return [Array(p.shape[:axis] + p.shape[axis + 1:], p.values) for p in self.split(self.shape[axis], axis)]

    def cast(self, dtype):
        return Array(self.shape, [decode(dtype, encode(dtype, v)) for v in self.values])


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def encode(dtype, value):
    return struct.pack("<H", bf16(value)) if dtype == "BF16" else struct.pack({"F32": "<f", "F16": "<e", "F64": "<d", "I64": "<q"}[dtype],
                                                                              value)


def decode(dtype, data):
    if dtype == "BF16":
        return struct.unpack("<f", b"\0\0" + data)[0]
    return struct.unpack({"F32": "<f", "F16": "<e", "F64": "<d", "I64": "<q"}[dtype], data)[0]


def write_safetensors(path, tensors):
    """tensors: {key: (dtype, Array)}"""
    header, blobs, at = {}, [], 0
    for key, (dtype, array) in tensors.items():
        data = b"".join(encode(dtype, v) for v in array.values)
        header[key] = {"dtype": dtype, "shape": array.shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for k, t in header.items()}


class Shell:
    def __init__(self, binary, work):
        self.binary, self.work, self.draw = binary, work, random.Random(5)
        t = self.tensors = {}
        for i in range(3):
            for name, rows in (("q", 8), ("k", 4), ("v", 4)):
                t[f"model.layers.{i}.self_attn.{name}_proj.weight"] = ("F32", self.random([rows, 6]))
            t[f"model.layers.{i}.mlp.up.weight"] = ("F32", self.random([10, 6]))
        t["model.embed.weight"] = ("BF16", self.random([12, 6]).cast("BF16"))
        t["model.cube"] = ("F64", self.random([3, 4, 5]))
        t["step"] = ("I64", Array([], [77]))
        write_safetensors(work / "source.safetensors", t)

    def random(self, shape):
        count = 1
        for extent in shape:
            count *= extent
        return Array(shape, [self.draw.gauss(0, 3) for _ in range(count)]).cast("F32")

    def __call__(self, *arguments, status=0):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=self.work)
        assert done.returncode == status, f"{arguments}: exit {done.returncode}, not {status}: {done.stderr.strip()[:400]}"
        return done

    def map(self, *statements):
        return [word for statement in statements for word in ("-m", statement)]

    def expect(self, path, expected):
        """What PATH holds, whatever its format, is exactly {key: (dtype, Array)}."""
        self("convert", path, "check.safetensors", "--to", "safetensors", "--overwrite", "--quiet", "--rules", "none")
        found = read_safetensors(self.work / "check.safetensors")
        assert sorted(found) == sorted(expected), f"{sorted(set(found) ^ set(expected))}"
        for key, (dtype, array) in expected.items():
            assert found[key][0] == dtype and found[key][1] == array.shape, f"{key}: {found[key][:2]}, not {dtype} {array.shape}"
            assert found[key][2] == b"".join(encode(dtype, v) for v in array.values), f"{key}: other values"


QKV = "model.layers.$LAYER_ID.self_attn.%s_proj.weight"
JOIN = f"{QKV % 'q'}, {QKV % 'k'}, {QKV % 'v'} -> blocks.$LAYER_ID.qkv, axis=0"


def array(shell, key):
    return shell.tensors[key][1]


def renamed_joined_and_transposed(shell):
    expected = {"e": ("BF16", array(shell, "model.embed.weight").permute([1, 0])),
                "cube": ("F64", array(shell, "model.cube").permute([2, 0, 1])), "step": shell.tensors["step"]}
    for i in range(3):
        expected[f"blocks.{i}.qkv"] = ("F32", Array.join([array(shell, f"model.layers.{i}.self_attn.{n}_proj.weight") for n in "qkv"]))
        expected[f"blocks.{i}.up"] = shell.tensors[f"model.layers.{i}.mlp.up.weight"]
    for target, options in (("torch-dcp", ["--layout", "ranks=3"]), ("hf", ["--max-shard-size", "700"]), ("torch", []),
                            ("safetensors", ["--memory", "64KiB"])):
        shell("convert", "source.safetensors", f"r-{target}", "--to", target, "--verify", *options, *shell.map(
            JOIN, "model.layers.$LAYER_ID.mlp.up.weight -> blocks.$LAYER_ID.up", "model.embed.weight^T -> e",
            'model.cube -> cube, permute="[2, 0, 1]"'))
        shell.expect(f"r-{target}", expected)


def stacked_and_back(shell):
    up = [array(shell, f"model.layers.{i}.mlp.up.weight") for i in range(3)]
    for axis in (0, 1, 2):
        shell("convert", "source.safetensors", f"stacked{axis}", "--to", "torch-dcp", "--layout", "ranks=2", "--include", "up", "--verify",
              *shell.map(f"model.layers.*.mlp.up.weight -> up, stack={axis}"))
        shell.expect(f"stacked{axis}", {"up": ("F32", Array.stack(up, axis))})
        shell("convert", f"stacked{axis}", f"back{axis}", "--to", "torch", "--verify",
              *shell.map(f"up -> model.layers.0.mlp.up.weight, model.layers.1.mlp.up.weight, model.layers.2.mlp.up.weight, unstack={axis}"))
        shell.expect(f"back{axis}", {f"model.layers.{i}.mlp.up.weight": ("F32", up[i]) for i in range(3)})


def splits_are_sorted_and_joined_again(shell):
    """Two texts: the second one sees what the first one made, and cuts it elsewhere."""
    (shell.work / "first.map").write_text("model.cube -> a, b, axis=1\n")
    (shell.work / "second.map").write_text('b, a -> cube, axis=1\ncube -> x, y, z, axis=0\nx, y -> w, axis=0\nw -> turned, permute="[1, 0, '
                                           '2]"\n')
    shell("convert", "source.safetensors", "texts", "--to", "hf", "--include", "turned", "--include", "z", "--map", "first.map", "--map",
          "second.map", "--verify")
    a, b = array(shell, "model.cube").split(2, 1)
    x, y, z = Array.join([b, a], 1).split(3, 0)
    shell.expect("texts", {"turned": ("F64", Array.join([x, y], 0).permute([1, 0, 2])), "z": ("F64", z)})


def casts_round_one_after_the_other(shell):
    shell("convert", "source.safetensors", "casts", "--to", "hf", "--include", "x", "--include", "y", "--include", "z", "--dtype", "z=f64",
          "--verify", *shell.map(
        'model.layers.0.mlp.up.weight -> n, dtype="bfloat16"', 'n -> x, dtype="float32"',
        'model.layers.1.mlp.up.weight -> y, dtype="float16"', 'model.cube -> m, dtype="float16"', 'm -> z, dtype="bfloat16"'))
    shell.expect("casts", {"x": ("F32", array(shell, "model.layers.0.mlp.up.weight").cast("BF16")),
                           "y": ("F16", array(shell, "model.layers.1.mlp.up.weight")),
                           "z": ("F64", array(shell, "model.cube").cast("F16").cast("BF16"))})


def removed_tensors_are_listed(shell):
    report = json.loads(shell("plan", "source.safetensors", "--to", "hf", "--json",
                              *shell.map("step -> _", "model.cube -> half, rest, axis=1", "rest -> _")).stdout)
    assert "step: by the mapping" in report["dropped"], report["dropped"]
    assert "model.cube: 30 of its 60 elements, by the mapping" in report["dropped"], report["dropped"]
    assert report["tensors"] == len(shell.tensors) - 1, report
    done = shell("convert", "source.safetensors", "removed", "--to", "hf", *shell.map("step -> _"))
    assert "dropped: step: by the mapping" in done.stderr, done.stderr


def a_reference_gives_names_and_shapes(shell):
    reference = {f"blocks.{i}.qkv": ("F32", Array([16, 6], [0] * 96)) for i in range(3)}
    reference["bias"] = ("F32", Array([5], [1, 2, 3, 4, 5]))
    write_safetensors(shell.work / "reference.safetensors", reference)
    expected = {f"blocks.{i}.qkv": ("F32", Array.join([array(shell, f"model.layers.{i}.self_attn.{n}_proj.weight") for n in "qkv"]))
                for i in range(3)}
    expected["bias"] = ("F32", Array([5], [0] * 5))
    for target in ("safetensors", "torch", "torch-dcp"):
        done = shell("convert", "source.safetensors", f"like-{target}", "--like", "reference.safetensors", "--to", target, "--verify",
                     *shell.map(JOIN, "_ -> bias"))
        assert "dropped: model.* (5): by the mapping" in done.stderr, done.stderr
        shell.expect(f"like-{target}", expected)
    done = shell("convert", "source.safetensors", "none", "--like", "reference.safetensors", *shell.map(JOIN), status=2)
    assert "'bias' has no source" in done.stderr and "`_ -> bias`" in done.stderr, done.stderr
    reference["blocks.1.qkv"] = ("F32", Array([16, 5], [0] * 80))
    write_safetensors(shell.work / "reference.safetensors", reference)
    done = shell("convert", "source.safetensors", "none", "--like", "reference.safetensors", *shell.map(JOIN, "_ -> bias"), status=2)
    assert "comes out with shape [16,6], the target has [16,5]" in done.stderr, done.stderr
    assert not (shell.work / "none").exists()


def eval_of(shell, statements, source, target=None):
    """What `map eval` makes of {key: (shape, shards)}, whose elements are 0, 1, …: {key: values}."""
    for name, tensors in ("eval.source.json", source), ("eval.target.json", target or {}):
        entries = {}
        for key, (shape, *shards) in tensors.items():
            entries[key] = {"dtype": "float32", "shape": shape, "data": list(range(math.prod(shape)))}
            if shards:
                entries[key]["shards"] = shards
        (shell.work / name).write_text(json.dumps({"tensors": entries}))
    (shell.work / "eval.map").write_text("\n".join(statements))
    words = ["map", "eval", "eval.map", "--source", "eval.source.json", "--json"]
    found = json.loads(shell(*words, *(["--target", "eval.target.json"] if target else [])).stdout)
    return {key: tensor["data"] for key, tensor in found["tensors"].items()}


def names_that_change_nothing(shell):
    """As Paddle has it: a name that is cast in place is tied to what it was tied to, and `_ ->` says nothing where no target is."""
    cut = {"a": ([2, 8], [[0, 0], [2, 4]], [[0, 4], [2, 4]])}
    plain = eval_of(shell, ["a -> t, fused_ffn", "t -> B"], cut, {"B": ([2, 8],)})
    assert plain["B"][:8] == [0, 1, 4, 5, 2, 3, 6, 7], plain
    for again in 't -> t, dtype="float32"', "t -> t":
        assert eval_of(shell, ["a -> t, fused_ffn", again, "t -> B"], cut, {"B": ([2, 8],)}) == plain
    two = {"a": ([2],), "b": ([2],)}
    assert eval_of(shell, ["_ -> a"], two) == {"a": [0, 1], "b": [0, 1]}
    assert eval_of(shell, ["a -> t", "t -> _"], two) == {"b": [0, 1]}
    assert eval_of(shell, ["a -> t", "t -> _", "b -> t"], two) == {"t": [0, 1]}
    kept = eval_of(shell, ["a -> t", "t -> _"], two, {"t": ([2],)})
    assert kept == eval_of(shell, ["_ -> t"], two, {"t": ([2],)}), kept
    write_safetensors(shell.work / "r.safetensors", {"head": ("F32", Array([2], [1, 2]))})
    done = shell("convert", "r.safetensors", "as-it-is", "--to", "hf", *shell.map("_ -> head"))
    assert "dropped" not in done.stderr and "zeros" not in done.stderr, done.stderr
    shell.expect("as-it-is", {"head": ("F32", Array([2], [1, 2]))})


def hints_of_many_mistakes_are_few(shell):
    """Each search for the nearest name looks at all of them: behind the first mistakes nobody reads that."""
    tensors = {f"model.layers.{i}.mlp.experts.{j}.up": {"dtype": "float32", "shape": [1]} for i in range(4) for j in range(4)}
    (shell.work / "many.json").write_text(json.dumps({"tensors": tensors}))
    (shell.work / "many.map").write_text("\n".join(f"model.layers.1.mlp.experts.1.up{i} -> x{i}" for i in range(40)))
    done = shell("map", "check", "many.map", "--source", "many.json", status=2)
    said = done.stdout + done.stderr
    assert said.count("neither a weight of the source") == 40 and said.count("did you mean") == 10, said


def what_a_mapping_leaves_is_missing(shell):
    """A file has no initial values: --missing says what stands in for them, and without it zeros are told of."""
    ones, more = Array([2, 2], [1, 2, 3, 4]), Array([2, 2], [5, 6, 7, 8])
    write_safetensors(shell.work / "r.safetensors", {"head": ("F32", ones), "tail": ("F32", more)})
    third = Array([4, 2], range(10, 18))
    write_safetensors(shell.work / "third.safetensors", {"head": ("F32", more), "c": ("BF16", third), "both": ("F32", third)})
    whole = "filled with zeros, as the mapping makes nothing of it: --missing says what else it is to be"
    part = "4 of its 8 elements are filled with zeros, as the mapping removes what they come from: --missing says what else they are to be"
    cases = {  # statements, the key, its values without --missing, with 2.5, out of the third one, and what is told
        ("head -> both0", "tail -> both1", "both1, both0 -> both, axis=0", "head -> _"):
            ("both", [5, 6, 7, 8, 0, 0, 0, 0], [5, 6, 7, 8] + [2.5] * 4, [5, 6, 7, 8, 14, 15, 16, 17], part),
        ("head, head -> c, axis=0", "head -> _"): ("c", [0] * 8, [2.5] * 8, list(range(10, 18)), whole),
        ("head, tail -> x, axis=0", "x^T -> y", "y^T -> both", "tail -> _"):
            ("both", [1, 2, 3, 4, 0, 0, 0, 0], [1, 2, 3, 4] + [2.5] * 4, [1, 2, 3, 4, 14, 15, 16, 17], part)}
    for statements, (key, zeros, filled, borrowed, told) in cases.items():
        told = f"{key}: {told}"
        for target in ("safetensors", "torch-dcp"):
            for words, values in ([], zeros), (["--missing", "zeros"], zeros), (["--missing", "2.5"], filled), \
                    (["--missing", "third.safetensors"], borrowed):
                done = shell("convert", "r.safetensors", "out", "--to", target, "--overwrite", "--verify", *shell.map(*statements), *words)
                assert (f"warning: {told}\n" in done.stderr) == (not words), (words, done.stderr)
                assert ("zeros" in done.stderr) == (not words), (words, done.stderr)
                found = [float(v) for v in shell("cat", "out", key).stdout.split()]
                assert found == [float(v) for v in values], (statements, words, found)
        plan = ["plan", "r.safetensors", "--to", "hf", *shell.map(*statements)]
        assert json.loads(shell(*plan, "--json").stdout)["warnings"] == [told]
        assert told in shell(*plan).stdout.replace("\t", ": ")
        said = shell(*plan, "--missing", "error", status=5).stderr
        assert f"the mapping makes nothing, or not all, of 1 tensors: '{key}'\n" in said and "--missing zeros" in said, said
        done = shell(*plan, "--missing", "r.safetensors", status=0 if key == "head" else 5)
        assert key == "head" or "so does the checkpoint that stands in" in done.stderr, done.stderr
    # A reference's tensors too; what the globs leave out is not missing.
    write_safetensors(shell.work / "like.safetensors", {"score": ("F16", Array([3], [1, 2, 3])), "head": ("F32", ones)})
    like = ["convert", "r.safetensors", "out", "--like", "like.safetensors", "--overwrite", *shell.map("_ -> score")]
    assert f"warning: score: {whole}" in shell(*like).stderr
    shell.expect("out", {"score": ("F16", Array([3], [0] * 3)), "head": ("F32", ones)})
    shell(*like, "--missing", "like.safetensors")
    shell.expect("out", {"score": ("F16", Array([3], [1, 2, 3])), "head": ("F32", ones)})
    shell(*like, "--missing", "7")
    shell.expect("out", {"score": ("F16", Array([3], [7] * 3)), "head": ("F32", ones)})
    assert "'score'" in shell(*like, "--missing", "error", status=5).stderr
    assert "score" not in shell(*like, "--missing", "error", "--exclude", "score").stderr
    said = shell("convert", "r.safetensors", "bad", "--like", "like.safetensors", *shell.map("head -> head"), status=2).stderr
    assert "write `_ -> score`" in said and "--missing" in said, said
    write_safetensors(shell.work / "wrong.safetensors", {"head": ("F32", third)})
    words = ["--to", "hf", "--overwrite", "--missing"]
    said = shell("convert", "r.safetensors", "out", *words, "wrong.safetensors", "--like", "r.safetensors", *shell.map("_ -> head"),
                 status=5).stderr
    assert "'head' is to be [2, 2]; 'wrong.safetensors', which is to stand in for it, has [4, 2]" in said, said
    # Nothing is missing: then nothing is asked for.
    for missing in ("error", "zeros", "third.safetensors"):
        said = shell("convert", "r.safetensors", "out", *words, missing, *shell.map("head -> a")).stderr
        assert "zeros" not in said and "missing" not in said, said
    # map check counts them.
    counts = {"head, head -> c, axis=0": (1, 0), "head, tail -> c, axis=0": (0, 1), "tail -> c": (0, 0)}
    for statement, (kept, in_part) in counts.items():
        (shell.work / "kept.map").write_text(f"{statement}\nhead -> _\n")
        check = ["map", "check", "kept.map", "--source", "r.safetensors"]
        found = json.loads(shell(*check, "--json").stdout)
        assert (found["kept"], found["kept_in_part"]) == (kept, in_part), found
        assert [t["origin"] for t in found["targets"] if t["key"] == "c"] == ["kept" if kept else "assigned"], found
        said = f"{kept} keep their initial value" + (f", {in_part} in part" if in_part else "")
        assert f"{said}\n" in shell(*check).stdout, shell(*check).stdout
        assert found["assigned"] + found["identity"] + found["kept"] == len(found["targets"]), found


def a_reshape_gives_what_the_reference_has(shell):
    """With two axes or with all, whichever of the two the source has; without a reference it changes to the other one."""
    values, text = list(range(24)), 't -> x, reshape="[2, 3, 4]"'
    many, flat = [2, 3, 4], [6, 4]
    for number, shape in enumerate((many, flat)):
        write_safetensors(shell.work / f"t{number}.safetensors", {"t": ("F32", Array(shape, values))})
        write_safetensors(shell.work / f"x{number}.safetensors", {"x": ("F32", Array(shape, [0] * 24))})
    for number in range(2):
        for wanted, shape in enumerate((many, flat)):
            shell("convert", f"t{number}.safetensors", "out", "--to", "safetensors", "--like", f"x{wanted}.safetensors", "--overwrite",
                  *shell.map(text))
            shell.expect("out", {"x": ("F32", Array(shape, values))})
    shell("convert", "t1.safetensors", "out", "--to", "safetensors", "--overwrite", *shell.map(text))
    shell.expect("out", {"x": ("F32", Array(many, values))})


def errors_have_a_place(shell):
    (shell.work / "bad.map").write_text("# names\nmodel.embed.weight -> a\n\nmodel.embad.weight -> b\n")
    done = shell("convert", "source.safetensors", "bad", "--to", "hf", "--map", "bad.map", status=2)
    assert "bad.map:4:1: error:" in done.stderr and "did you mean 'model.embed.weight'?" in done.stderr, done.stderr
    assert "reshard:" not in done.stderr, done.stderr
    done = shell("plan", "source.safetensors", "--to", "hf", "--json", *shell.map("model.cube -> a", "nothing -> b"), status=2)
    error = json.loads(done.stderr)
    assert "nothing" in json.dumps(error), error
    done = shell("convert", "source.safetensors", "bad", "--to", "hf", *shell.map("model.cube -> a", "b c -> d"), status=2)
    assert "-m:2:" in done.stderr, done.stderr
    done = shell("plan", "source.safetensors", "--to", "hf", "--strict-aoa",
                 *shell.map("model.layers.*.mlp.up.weight -> up, stack=0"), status=2)
    assert "-m:1:" in done.stderr, done.stderr
    done = shell("convert", "source.safetensors", "bad", "--to", "hf", *shell.map("_ -> bias"), status=2)
    assert "--like" in done.stderr, done.stderr


def numbers_come_from_config_and_set(shell):
    fused = f"{QKV % 'q'}, {QKV % 'k'}, {QKV % 'v'} -> blocks.$LAYER_ID.qkv, fused_qkv, axis=0, num_heads=H, num_key_value_groups=G"
    shell("convert", "source.safetensors", "set", "--to", "hf", *shell.map(fused), "--set", "H=4", "--set", "G=2", "--include", "blocks.*")
    (shell.work / "numbers.json").write_text(json.dumps({"H": 4, "G": 2, "name": "x"}))
    shell("convert", "source.safetensors", "config", "--to", "hf", *shell.map(fused), "--config", "numbers.json", "--include", "blocks.*")
    shell("convert", "source.safetensors", "plain", "--to", "hf", "--include", "model.layers.*")
    (shell.work / "plain" / "config.json").write_text(json.dumps({"H": 4, "G": 2}))
    shell("convert", "plain", "beside", "--to", "hf", *shell.map(fused), "--include", "blocks.*")
    expected = {}
    for i in range(3):
        q, k, v = (array(shell, f"model.layers.{i}.self_attn.{n}_proj.weight").split(2) for n in "qkv")
        expected[f"blocks.{i}.qkv"] = ("F32", Array.join([part for group in zip(q, k, v) for part in group]))
    for path in ("set", "config", "beside"):
        shell.expect(path, expected)


def diff_through_a_mapping(shell):
    shell("convert", "source.safetensors", "other", "--to", "torch-dcp", "--layout", "ranks=2",
          *shell.map(JOIN, "model.embed.weight^T -> e"))
    (shell.work / "names.map").write_text(JOIN + "\nmodel.embed.weight^T -> e\n")
    shell("diff", "source.safetensors", "other", status=1)
    shell("diff", "source.safetensors", "other", "--map", "names.map")
    tensors = dict(shell.tensors)
    key = "model.layers.1.self_attn.k_proj.weight"
    values = list(array(shell, key).values)
    values[9] += 1
    tensors[key] = ("F32", Array([4, 6], values))
    del tensors["step"]
    write_safetensors(shell.work / "changed.safetensors", tensors)
    done = shell("diff", "changed.safetensors", "other", "--map", "names.map", "--json", status=1)
    found = {(f["kind"], f["key"]): f for f in json.loads(done.stdout)["findings"]}
    assert sorted(found) == [("unexpected", "step"), ("values", "blocks.1.qkv")], found
    assert found["values", "blocks.1.qkv"]["index"] == 8 * 6 + 9 and found["values", "blocks.1.qkv"]["count"] == 1, found
    shell("diff", "changed.safetensors", "other", "--map", "missing.map", status=3)


def configurations_run_backwards(shell):
    """aoa_config_reverse of a configuration counts in all verbs, with a reference and without, and mistakes have their place in the file"""
    text = json.dumps({"aoa_statements": ["a^T -> model.embed.weight", "b -> model.cube", "_ -> gone"], "aoa_config_reverse": True})
    (shell.work / "back.json").write_text(text)
    only = ["--include", "a", "--include", "b"]
    shell("convert", "source.safetensors", "turned", "--to", "hf", *only, "--map", "back.json")
    expected = {"a": ("BF16", array(shell, "model.embed.weight").permute([1, 0])), "b": shell.tensors["model.cube"]}
    shell.expect("turned", expected)
    shell("diff", "source.safetensors", "turned", "--map", "back.json", "--include", "a", "--include", "b")
    shell("convert", "source.safetensors", "like", "--like", "turned", "--map", "back.json")
    shell.expect("like", expected)
    text = text.replace("model.cube", "model.kube")
    (shell.work / "wrong.json").write_text(text)
    for verb in (["convert", "source.safetensors", "out", "--to", "hf"], ["diff", "source.safetensors", "turned"],
                 ["convert", "source.safetensors", "out", "--like", "turned"]):
        said = shell(*verb, "--map", "wrong.json", status=2).stderr
        assert f"wrong.json:1:{text.index('model.kube') + 1}: error" in said and text in said, said


def llama(shell):
    """A small model under the names of Hugging Face, and the same under those of Megatron's distributed checkpoints."""
    heads, groups, size, hidden, inner, layers, words = 4, 2, 4, 16, 24, 3, 20
    hf, stacks = {}, {}

    def make(key, *shape):
        hf[key] = shell.random(list(shape)).cast("BF16")
        return hf[key]

    megatron = {"embedding.word_embeddings.weight": make("model.embed_tokens.weight", words, hidden),
                "output_layer.weight": make("lm_head.weight", words, hidden),
                "decoder.final_layernorm.weight": make("model.norm.weight", hidden)}
    for i in range(layers):
        of = f"model.layers.{i}."
        q, k, v = (make(f"{of}self_attn.{n}_proj.weight", rows * size, hidden) for n, rows in (("q", heads), ("k", groups), ("v", groups)))
        fused = Array.join([part for group in zip(q.split(groups), k.split(groups), v.split(groups)) for part in group])
        one = {"self_attention.linear_qkv.weight": fused,
               "self_attention.linear_proj.weight": make(of + "self_attn.o_proj.weight", hidden, heads * size),
               "self_attention.linear_qkv.layer_norm_weight": make(of + "input_layernorm.weight", hidden),
               "mlp.linear_fc1.layer_norm_weight": make(of + "post_attention_layernorm.weight", hidden),
               "mlp.linear_fc1.weight": Array.join([make(of + "mlp.gate_proj.weight", inner, hidden),
                                                    make(of + "mlp.up_proj.weight", inner, hidden)]),
               "mlp.linear_fc2.weight": make(of + "mlp.down_proj.weight", hidden, inner)}
        for key, value in one.items():
            stacks.setdefault(key, []).append(value)
    for key, parts in stacks.items():
        megatron["decoder.layers." + key] = Array.stack(parts)
    (shell.work / "model").mkdir()
    write_safetensors(shell.work / "model" / "model.safetensors", {k: ("BF16", a) for k, a in hf.items()})
    (shell.work / "model" / "config.json").write_text(json.dumps({"num_attention_heads": heads, "num_key_value_heads": groups,
                                                                  "num_hidden_layers": layers}))
    return {k: ("BF16", a) for k, a in hf.items()}, {k: ("BF16", a) for k, a in megatron.items()}


def name_spaces_are_related(shell):
    hf, megatron = llama(shell)
    done = shell("convert", "model", "dist", "--to", "torch_dist", "--verify")
    assert "names: hf to torch_dist, by llama.hf-megatron.map" in done.stderr, done.stderr
    shell.expect("dist", megatron)
    for a, b in (("model", "dist"), ("dist", "model")):
        done = shell("diff", "--items", "ignore", a, b)
        assert "names" in done.stdout and "llama.hf-megatron.map" in done.stdout, done.stdout
        shell("diff", "--items", "ignore", "--rules", "none", a, b, status=1)
    shell("convert", "dist", "kept", "--to", "hf")
    shell.expect("kept", megatron)
    numbers = ["--set", "num_attention_heads=4", "--set", "num_key_value_heads=2"]
    for rules in ("llama", "auto", "mistral"):
        shell("convert", "dist", f"back-{rules}", "--to", "hf", "--rules", rules, "--verify", *numbers)
        shell.expect(f"back-{rules}", hf)
    shell("convert", "dist", "like", "--like", "model", "--verify")
    shell.expect("like", hf)
    (shell.work / "own.map").write_text("#: from hf\n#: to torch_dist\n#: keys a.weight\n#: back b.weight\na.weight -> b.weight\n")
    write_safetensors(shell.work / "other.safetensors", {"a.weight": ("F32", Array([2], [1, 2]))})
    shell("convert", "other.safetensors", "own", "--to", "torch_dist", "--rules", "own.map")
    shell.expect("own", {"b.weight": ("F32", Array([2], [1, 2]))})


def rules_that_do_not_fit(shell):
    hf, _ = llama(shell)
    done = shell("convert", "source.safetensors", "unknown", "--to", "torch_dist")
    assert "names are kept as they are" in done.stderr and "--rules" in done.stderr, done.stderr
    assert shell("convert", "source.safetensors", "quiet", "--to", "torch_dist", "--quiet").stderr == ""
    done = shell("convert", "source.safetensors", "none", "--to", "hf", "--rules", "lama", status=2)
    assert "unknown family 'lama'" in done.stderr and "known: chatglm, llama, " in done.stderr, done.stderr
    done = shell("convert", "source.safetensors", "none", "--to", "torch_dist", "--rules", "auto", status=2)
    assert "not recognised" in done.stderr, done.stderr
    layers = ("0.input_layernorm", "0.pre_mlp_layernorm", "0.self_attention.linear_qkv", "0.mlp.linear_fc1", "1.input_layernorm",
              "1.mlp.router", "1.mlp.experts.local_experts.0.linear_fc1")
    small = ("F32", Array([1], [1]))
    write_safetensors(shell.work / "layers.safetensors", {f"decoder.layers.{name}.weight": small for name in layers})
    done = shell("convert", "layers.safetensors", "none", "--to", "hf", "--rules", "auto", status=2)
    assert "not recognised" in done.stderr, done.stderr  # other spellings of Megatron's lead back, and not on
    shell("convert", "model", "kept", "--to", "torch_dist", "--rules", "none")
    shell.expect("kept", hf)
    (shell.work / "bad.map").write_text("a -> b\n")
    done = shell("convert", "model", "none", "--to", "hf", "--rules", "bad.map", status=2)
    assert "#: from" in done.stderr, done.stderr
    (shell.work / "model" / "config.json").unlink()
    done = shell("convert", "model", "none", "--to", "torch_dist", status=2)
    assert "llama.hf-megatron.map:" in done.stderr, done.stderr


def nested_names_stay_nested(shell):
    """A renamed tensor of a nested state dict stays beside its neighbours, in their dict; one that leaves them has a name of its own."""
    made = {name: torch_stub.tensor("FloatStorage", [2], struct.pack("<2f", i, -i)) for i, name in enumerate("abcde")}
    layers = {"layer.bias": made["b"], "layer.weight": made["a"], "rest": made["e"]}
    torch_stub.write_zip(shell.work / "nested.pt", {"top": {"model": layers, "step.size": made["c"]}, "other": made["d"]})
    shell("convert", "nested.pt", "out", "--to", "torch", "--quiet",
          *shell.map("top.model.layer.weight -> top.model.layer.w2", "top.step.size -> top.renamed", "other -> elsewhere.other",
                     "top.model.rest -> topmost.rest"))
    found = torch_stub.load(shell.work / "out")
    bytes_of = {name: tensor.storage.data for name, tensor in made.items()}
    assert {key: value.storage.data for key, value in found["top"]["model"].items()} == {"layer.bias": bytes_of["b"],
                                                                                         "layer.w2": bytes_of["a"]}, found
    assert found["top"]["renamed"].storage.data == bytes_of["c"] and set(found["top"]) == {"model", "renamed"}, found
    assert found["elsewhere.other"].storage.data == bytes_of["d"] and found["topmost.rest"].storage.data == bytes_of["e"], found
    assert set(found) == {"top", "elsewhere.other", "topmost.rest"}, found


def many_tensors_and_pieces(shell):
    """20000 keys under a mapping of every one, and a tensor of 2000 pieces: near linear."""
    path, count = shell.work / "many.safetensors", 20000
    header = {f"l.{i}.w": {"dtype": "U8", "shape": [2, 2], "data_offsets": [4 * i, 4 * i + 4]} for i in range(count)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(i * 7 % 251 for i in range(4 * count)))
    started = time.monotonic()
    shell("convert", "many.safetensors", "many", "--to", "torch-dcp", "--layout", "ranks=2", *shell.map("l.$LAYER_ID.w^T -> m.$LAYER_ID"))
    names = ", ".join(f"m.{i}" for i in range(2000))
    shell("convert", "many", "joined", "--to", "hf", "--include", "all", *shell.map(f"{names} -> all, axis=0"))
    took = time.monotonic() - started
    assert took < 20, f"{took:.1f} s"
    data = [bytes(i * 7 % 251 for i in range(4 * n, 4 * n + 4)) for n in range(2000)]
    found = read_safetensors(shell.work / "joined" / "model.safetensors")["all"]
    assert found == ("U8", [4000, 2], b"".join(bytes([d[0], d[2], d[1], d[3]]) for d in data))
    return f"{took:.1f} s"


def memory_stays_flat(shell):
    """64 MiB through a permutation and a cast, in 8 MiB of buffers."""
    rows, columns = 4096, 4096
    header = json.dumps({"w": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, rows * columns * 4]}}).encode()
    with open(shell.work / "large.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        row = struct.pack(f"<{columns}f", *range(columns))
        for i in range(rows):
            file.write(row)
    runner = ("import resource,subprocess,sys\nstatus=subprocess.run(sys.argv[1:]).returncode\n"
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\nsys.exit(status)")
    done = subprocess.run(["python3", "-c", runner, shell.binary, "convert", "large.safetensors", "turned.safetensors", "--to",
                           "safetensors", "--memory", "8MiB", "--quiet", "-m", "w^T -> n", "-m", 'n -> t, dtype="bfloat16"'],
                          capture_output=True, text=True, timeout=120, cwd=shell.work)
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.split()[-1])
    assert peak < 40 << 10, f"{peak} KiB"
    found = read_safetensors(shell.work / "turned.safetensors")["t"]
    assert found[1] == [columns, rows] and found[2][:2 * rows] == bytes(2 * rows), found[:2]
    assert found[2][-2:] == encode("BF16", columns - 1), found[:2]
    return f"{peak >> 10} MiB"


def large_parts_are_no_plain_runs(shell):
    """Parts of megabytes whose rows lie apart in the source, or that are turned: what the kernel could copy in one go, it must not."""
    rows, columns = 8, 262144
    data = b"".join(struct.pack("<H", i * 40503 & 0xffff) for i in range(rows * columns))
    header = json.dumps({"w": {"dtype": "I16", "shape": [rows, columns], "data_offsets": [0, len(data)]}}).encode()
    (shell.work / "large.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    shell("convert", "large.safetensors", "cut.safetensors", "--quiet", *shell.map("w -> a, b, axis=1"))
    shell("convert", "large.safetensors", "turned.safetensors", "--quiet", *shell.map("w^T -> t"))
    half, cut = columns, read_safetensors(shell.work / "cut.safetensors")  # columns / 2 elements of 2 bytes
    for i, key in enumerate("ab"):
        wanted = b"".join(data[(2 * row + i) * half:(2 * row + i + 1) * half] for row in range(rows))
        assert cut[key][1] == [rows, columns // 2] and cut[key][2] == wanted, key
    turned = read_safetensors(shell.work / "turned.safetensors")["t"]
    wanted = bytearray(len(data))
    for row in range(rows):
        for byte in range(2):
            wanted[2 * row + byte::2 * rows] = data[2 * row * columns + byte:2 * (row + 1) * columns:2]
    assert turned[1] == [columns, rows] and turned[2] == bytes(wanted)


TESTS = (large_parts_are_no_plain_runs,
         renamed_joined_and_transposed, stacked_and_back, splits_are_sorted_and_joined_again, casts_round_one_after_the_other,
         removed_tensors_are_listed, a_reference_gives_names_and_shapes,
         names_that_change_nothing, hints_of_many_mistakes_are_few, what_a_mapping_leaves_is_missing,
         a_reshape_gives_what_the_reference_has,
         errors_have_a_place, numbers_come_from_config_and_set,
         diff_through_a_mapping, configurations_run_backwards, name_spaces_are_related, rules_that_do_not_fit, nested_names_stay_nested,
         many_tensors_and_pieces, memory_stays_flat)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    binary = str(pathlib.Path(options.bin).resolve())
    tests = [t for t in TESTS if not options.names or t.__name__ in options.names]
    print(f"1..{len(tests)}")
    failed = 0
    for number, test in enumerate(tests, 1):
        with tempfile.TemporaryDirectory() as work:
            try:
                said = test(Shell(binary, pathlib.Path(work)))
                print(f"ok {number} - {test.__name__}{f' # {said}' if said else ''}", flush=True)
            except Exception as problem:
                failed += 1
                print(f"not ok {number} - {test.__name__}: {type(problem).__name__}: {problem}", flush=True)
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
