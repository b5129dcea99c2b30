#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every option of every verb has an effect: the list is what `reshard VERB --help` prints, so an option without a case fails. Prints TAP.

usage: options_test.py --bin RESHARD --spy LIBRARY [--only OPTION]

A case is a function option_NAME that types commands and asserts what the option changes. Each runs twice: as it stands it must hold, and
with the option taken out of every command it must fail. An option that is accepted and ignored cannot pass.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

READING = ("inspect", "ls", "hash", "cat", "convert", "plan", "verify", "diff", "stats")

# Accepted so that a command line of `convert` can be planned as it is, or so that one set of common options fits every verb. That they
# change nothing there is checked too.
NO_EFFECT = {
    "plan": {"resume": "how convert runs", "verify": "how convert runs", "no-sync": "how convert runs", "overwrite": "how convert runs",
             "io": "how convert runs", "checksum": "beside the target", "quiet": "it says nothing else", "progress": "", "color": ""},
    "inspect": {"quiet": "it prints what was asked for", "progress": "reads no payload"},
    "ls": {"quiet": "it prints what was asked for", "progress": "reads no payload", "color": "columns have no colour"},
    "hash": {"quiet": "it prints what was asked for", "verbose": "", "color": ""},
    "cat": {"quiet": "it prints what was asked for", "verbose": "", "color": ""},
    "convert": {"color": ""},
    "commit": {"limit": "as the parts were told", "progress": "moves no payload", "color": ""},
    "salvage": {"lenient": "it takes all that can be read", "verbose": ""},
    "verify": {},
    "stats": {"quiet": "it prints what was asked for", "verbose": "", "color": ""},
    "diff": {"verbose": ""},
    "draw": {"progress": "a map reads no payload", "verbose": "", "quiet": "it draws what was asked for"},
    "map": {"progress": "", "color": "", "verbose": ""},
    "formats": {"quiet": "", "verbose": "", "progress": "", "color": "", "limit": ""},
    "completion": {"quiet": "", "verbose": "", "progress": "", "color": "", "limit": ""},
    "help": {"quiet": "", "verbose": "", "progress": "", "color": "", "limit": ""},
}


class Shell:
    """The command in a folder. `without` is an option that is left out of what is typed: its spelling, and whether it has an argument."""

    def __init__(self, binary, spy, work, without=None):
        self.binary, self.spy, self.work, self.without, self.left_out = binary, spy, work, without, 0

    def typed(self, words):
        words, kept = [str(word) for word in words], []
        names, has_argument = self.without or ((), False)
        while words:
            word = words.pop(0)
            if word in names:
                self.left_out += 1
                if has_argument:
                    words.pop(0)
                continue
            kept.append(word)
        return kept

    def run(self, *words, environment=None):
        return subprocess.run([self.binary, *self.typed(words)], cwd=self.work, capture_output=True, text=True, errors="replace",
                              timeout=120, env={**os.environ, **(environment or {})})

    def __call__(self, *words, status=0):
        done = self.run(*words)
        assert done.returncode == status, f"{words}: exit {done.returncode} instead of {status}: {done.stderr[:300]}"
        return done

    def json(self, *words):
        return json.loads(self(*words, "--json").stdout)

    def spied(self, *words, status=0, damage=False):
        """Counts of spy.c"""
        report = self.work / "spy.txt"
        done = self.run(*words, environment={"LD_PRELOAD": self.spy, "SPY_OUTPUT": str(report)} | ({"SPY_DAMAGE": "1"} if damage else {}))
        assert done.returncode == status, f"{words}: exit {done.returncode} instead of {status}: {done.stderr[:300]}"
        return {name: int(count) for name, count in (line.split() for line in report.read_text().splitlines())}

    def read(self, verb, path, *options, status=0):
        """A verb that reads, with what else it needs."""
        shutil.rmtree(self.work / "out", ignore_errors=True)
        if verb == "commit":
            convert_parts(self, path)
        return self(*arguments_of(verb, path), *options, status=status)


def convert_parts(sh, path, *options):
    """What a commit takes up; no option is taken out of it."""
    for part in range(2):
        subprocess.run([sh.binary, "convert", path, "out", "--to", "hf", "--part", f"{part}/2", *options], cwd=sh.work, check=True,
                       capture_output=True)


def arguments_of(verb, path):
    return {"cat": ["cat", path, "w", "--as", "raw"], "convert": ["convert", path, "out", "--to", "hf"],
            "plan": ["plan", path, "--to", "hf"], "diff": ["diff", path, path, "--items", "ignore"],
            "map": ["map", "check", "-", "--source", path], "commit": ["commit", "out"],
            "salvage": ["salvage", path, "out"]}.get(verb, [verb, path])


# ---- inputs ----


def floats(count, start=0.0):
    return struct.pack(f"<{count}f", *(start + i for i in range(count)))


def safetensors(path, tensors, metadata=None, pad_to=8):
    """{key: (dtype, shape, bytes)}"""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for key, (dtype, shape, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % pad_to)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path.name


def model(sh, name="m.safetensors", start=0.0, **more):
    return safetensors(sh.work / name, {"v": ("F32", [16, 4], floats(64, start)), "w": ("F32", [16, 4], floats(64, start + 7)),
                                        "n": ("I64", [2], bytes(16))}, **more)


def large(sh, name="large.safetensors"):
    """Eight MiB in four tensors; payload begins on a page."""
    part = bytes(range(256)) * 8192
    return safetensors(sh.work / name, {key: ("F32", [len(part) // 4], part) for key in "wxyz"}, pad_to=4096)


def torch_model(sh, name="m.pt"):
    torch_stub.write_zip(sh.work / name, {"w": torch_stub.tensor("FloatStorage", [16, 4], floats(64)), "lr": 0.5, "text": "x" * 500})
    return name


def items_of(sh, path):
    return {item["key"] for item in sh.json("ls", path, "--items")["items"]}


def shapes_of(sh, path):
    return {t["key"]: (t["dtype"], t["shape"]) for t in sh.json("ls", path)["tensors"]}


def made(sh, verb, *words):
    """What convert wrote and plan tells: {key: (dtype, shape)} of the target, and the report."""
    if verb == "plan":
        return None, sh.json("plan", *words)
    if verb == "draw":
        after = sh.json("draw", *words)["maps"][1]
        keys = {"".join(part + str(number) for part, number in zip(row["p"], [*numbers, ""])): (row["d"], row["s"])
                for row in after["rows"] for numbers in row["t"]}
        return keys, {"to": after["format"], "tensors": after["tensors"], "target_chunks": after["chunks"], "write_bytes": after["bytes"],
                      "files": after["units"] + 1}  # and one without tensors: .metadata, or the index
    source, *rest = words
    shutil.rmtree(sh.work / "out", ignore_errors=True)
    report = sh.json("convert", source, "out", *rest)
    return shapes_of(sh, "out"), report


def equal(found, expected):
    assert found == expected, f"{str(found)[:300]} instead of {str(expected)[:300]}"


# ---- what is written ----


def option_to(sh, verb):
    source = model(sh)
    _, report = made(sh, verb, source, "--to", "torch-dcp")
    equal(report["to"], "torch-dcp")


def option_like(sh, verb):
    source = model(sh)
    sh("convert", source, "reference", "--to", "torch-dcp", "--layout", "ranks=3")
    _, report = made(sh, verb, source, "--like", "reference")
    equal((report["to"], report["target_chunks"]),
          ("torch-dcp", sh.json("plan", source, "--to", "torch-dcp", "--layout", "ranks=3")["target_chunks"]))
    # What of a reference is not made is said.
    names = [tensor["key"] for tensor in sh.json("ls", source)["tensors"]]
    (sh.work / "bins").mkdir()
    files = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for file, some in zip(files, (names[:1], names[1:])):
        sh("convert", source, f"bins/{file}", "--to", "torch", *(word for name in some for word in ("--include", name)))
    (sh.work / "bins" / "pytorch_model.bin.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {name: files[name != names[0]] for name in names}}))
    assert "changed: files: the reference is 2, this is one" in sh("convert", source, "one.bin", "--like", "bins").stderr


def option_layout(sh, verb):
    _, report = made(sh, verb, model(sh), "--to", "torch-dcp", "--layout", "ranks=4")
    equal(report["files"], 5)
    for to in ("torch", "zarr", "paddle", "safetensors"):  # which would not heed it
        assert "has no 'ranks'" in sh("convert", model(sh), "x", "--to", to, "--layout", "ranks=2", status=5).stderr
    # Words win over how a reference is cut.
    rows = {f"h.{i}.w": ("F32", [12, 4], floats(48)) for i in range(4)}
    safetensors(sh.work / "rows.safetensors", rows | {"e": ("F32", [24], floats(24))})
    for to, was, words in (("torch-dcp", "ranks=3", "ranks=2"), ("torch-dcp", "ranks=3", "ranks=1"), ("torch_dcp", "ranks=3", "ranks=2"),
                           ("torch_dist", "tp=2", "tp=3"), ("hf", "ranks=3", "ranks=2"), ("hf", "ranks=2", "ranks=1"),
                           ("paddle-flex", "dp=2", "dp=4"), ("fsdp-ranks", "ranks=2", "ranks=4"), ("atorch", "ranks=2", "ranks=4")):
        if verb == "draw":
            continue
        sh("convert", "rows.safetensors", "was", "--to", to, "--layout", was, "--overwrite")
        like = ["rows.safetensors", "--like", "was", "--layout", words, "--to", to]
        if verb == "plan":
            expected = sh.json("plan", "rows.safetensors", "--to", to, "--layout", words)
            equal(sh.json("plan", *like)["target_chunks"], expected["target_chunks"])
            continue
        for name, options in (("wanted", ["--to", to, "--layout", words]), ("cut", like[1:])):
            sh("convert", "rows.safetensors", name, *options, "--overwrite")
        equal(*(sh.json("ls", "--chunks", name)["tensors"] for name in ("wanted", "cut")))


def two_that_differ_in_w(sh):
    numbers = struct.pack("<2f", 1.0, 2.0)
    for name, w in (("a", numbers), ("b", bytes(8))):
        safetensors(sh.work / f"{name}.safetensors", {"w": ("F32", [2], w), "v": ("F32", [2], numbers)})
    sh("diff", "a.safetensors", "b.safetensors", status=1)
    return "a.safetensors", "b.safetensors"


def seen(sh, verb, *words):
    """The keys that a verb which looks shows."""
    return [t["key"] for t in sh.json(verb, model(sh), *words)["tensors"]]


def counted(sh, *words):
    """How many tensors inspect counts."""
    return sh.json("inspect", model(sh), *words)["tensors"]


def rescued(sh, *words):
    """The keys that salvage writes, and how many it speaks of."""
    report = sh.json("salvage", model(sh), "rescued", "--overwrite", *words)
    return [t["key"] for t in sh.json("ls", "rescued")["tensors"]], report["tensors"]


def a_prefix_apart(sh):
    """A model whose names begin with "a.", and the same without."""
    sh("convert", model(sh), "named", "--to", "safetensors", "--add-prefix", "a.")
    return "named", "--against", "m.safetensors"


def option_include(sh, verb):
    if verb == "draw":
        for words in ([], ["--to", "hf"]):
            drawn = sh.json("draw", model(sh), *words, "--include", "[vw]")
            equal([part["tensors"] for part in drawn["maps"]], [2] * (2 if words else 1))
        return
    if verb == "verify":
        sh("convert", model(sh), "part", "--to", "safetensors", "--exclude", "w")
        sh("verify", "part", "--against", "m.safetensors", status=1)
        sh("verify", "part", "--against", "m.safetensors", "n", "--include", "v")
        assert "include 'vv' matches no key" in sh(verb, model(sh), "vv", status=2).stderr
        assert "--latest-good looks at whole" in sh(verb, ".", "--latest-good", "--include", "v", status=2).stderr
        equal(sh.json("verify", "part", "--include", "v", "--deep")["proved"]["tensors"], 1)
        return
    if verb in ("ls", "hash"):
        equal(sorted(seen(sh, verb, "n", "--include", "{v,x,w}")), ["n", "v", "w"])
        assert "include 'vv' matches no key" in sh(verb, model(sh), "vv", status=2).stderr
        return
    if verb == "diff":
        sh("diff", *two_that_differ_in_w(sh), "--include", "v")
        sh("diff", *two_that_differ_in_w(sh), "v", "--include", "v*")
        sh("diff", *two_that_differ_in_w(sh), "v", "w", status=1)
        return
    if verb == "stats":
        equal([t["key"] for t in sh.json("stats", model(sh), "n", "--include", "[vw]")["tensors"]], ["n", "v", "w"])
        return
    if verb == "inspect":
        equal([counted(sh, "n", "--include", "[vw]"), counted(sh, "w")], [3, 1])
        assert "include 'vv' matches no key" in sh(verb, model(sh), "vv", status=2).stderr
        return
    if verb == "salvage":
        equal(rescued(sh, "--include", "{w,x}"), (["w"], 1))
        return
    _, report = made(sh, verb, model(sh), "--to", "hf", "--include", "{v,w}", "--include", "n*")
    equal(report["tensors"], 3)
    _, report = made(sh, verb, model(sh), "--to", "hf", "--include", "[vw]")
    equal(report["tensors"], 2)
    nothing = sh(verb, model(sh), *(["bad"] if verb == "convert" else []), "--to", "hf", "--include", "none", status=2).stderr
    assert "include 'none' matches no key" in nothing, nothing


def option_exclude(sh, verb):
    if verb == "verify":
        sh("convert", model(sh), "part", "--to", "safetensors", "--include", "w")
        sh("verify", "m.safetensors", "--against", "part", "--exclude", "[nv]")
        return
    if verb in ("ls", "hash"):
        equal(seen(sh, verb, "--exclude", "[vw]"), ["n"])
        return
    if verb == "diff":
        sh("diff", *two_that_differ_in_w(sh), "--exclude", "w")
        return
    if verb == "stats":
        equal([t["key"] for t in sh.json("stats", model(sh), "--exclude", "[vw]")["tensors"]], ["n"])
        return
    if verb == "inspect":
        equal(counted(sh, "--exclude", "w"), 2)
        return
    if verb == "salvage":
        equal(rescued(sh, "--exclude", "[vw]"), (["n"], 1))
        return
    _, report = made(sh, verb, model(sh), "--to", "hf", "--exclude", "w")
    equal(report["tensors"], 2)


def option_dtype(sh, verb):
    found, report = made(sh, verb, model(sh), "--to", "hf", "--dtype", "w=bf16")
    equal(report["write_bytes"], 256 + 128 + 16)
    if found:
        equal({key: dtype for key, (dtype, _) in found.items()}, {"v": "F32", "w": "BF16", "n": "I64"})


def option_items(sh, verb):
    source = torch_model(sh)
    if verb == "ls":
        assert "lr" in sh("ls", source, "--items").stdout
    elif verb == "diff":
        torch_stub.write_zip(sh.work / "other.pt",
                             {"w": torch_stub.tensor("FloatStorage", [16, 4], floats(64)), "lr": 0.25, "text": "x" * 500})
        sh("diff", source, "other.pt", "--items", "ignore")
    else:
        _, report = made(sh, verb, source, "--to", "torch-dcp", "--items", "drop")
        equal(report["items"], 0)


def option_max_shard_size(sh, verb):
    _, report = made(sh, verb, model(sh), "--to", "hf", "--max-shard-size", "256")
    equal(report["files"], 4)  # three shards and the index
    for to in ("torch", "paddle", "fsdp-ranks"):  # which would not heed it
        done = sh("convert", model(sh), "x", "--to", to, "--max-shard-size", "256", status=2)
        assert "--max-shard-size says nothing to it" in done.stderr, done.stderr


def option_wrap(sh, verb):
    safetensors(sh.work / "blocks.safetensors", {f"h.{i}.w": ("F32", [4], floats(4)) for i in range(2)} | {"e": ("F32", [4], floats(4))})
    made(sh, verb, "blocks.safetensors", "--to", "atorch", "--wrap", "h.*", "--layout", "ranks=2")
    if verb == "convert":
        data = (sh.work / "out" / "flat_param.00001-00002").read_bytes()
        units = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        equal({name: unit["shape"] for name, unit in units.items()}, {"": [2], "h.0": [2], "h.1": [2]})
    else:
        rows = sh.json("plan", "blocks.safetensors", "--to", "atorch", "--wrap", "h.*", "--layout", "ranks=2", "--ranks")["targets"]
        assert next(r for r in rows if r["file"] == "flat_param.00000-00002")["chunks"] == 3, rows
    assert sh(verb, "blocks.safetensors", *(["bad"] if verb == "convert" else []), "--to", "atorch", "--wrap", "(h", status=2)


def option_missing(sh, verb):
    safetensors(sh.work / "more.safetensors", {"w": ("F32", [16, 4], floats(64)), "x": ("BF16", [3], bytes(6))})
    found, report = made(sh, verb, model(sh), "--like", "more.safetensors", "--exclude", "n", "--missing", "2.5")
    equal(report["tensors"], 3)
    if found:
        equal(found["x"], ("BF16", [3]))
        equal(sh("cat", "out", "x").stdout.split(), ["2.5"] * 3)
    target = ["bad"] if verb == "convert" else []
    assert "'x'" in sh(verb, "m.safetensors", *target, "--like", "more.safetensors", "--missing", "error", status=5).stderr
    for lacking in (2, 3, 4):  # no more than three are named
        safetensors(sh.work / "many.safetensors", {f"m{i}": ("F32", [1], floats(1)) for i in range(lacking)})
        said = sh(verb, "m.safetensors", *target, "--like", "many.safetensors", "--missing", "error", status=5).stderr
        named = ", ".join(["'m0'", "'m1'", "'m2'", "…"][:lacking])
        assert f"the source lacks {lacking} tensors of the reference: {named}\n" in said, said
    # Out of a third one, of another format and type.
    safetensors(sh.work / "third.safetensors", {"w": ("F32", [16, 4], floats(64)), "x": ("F32", [3], struct.pack("<3f", 5, 6, 7))})
    sh("convert", "third.safetensors", "third", "--to", "torch-dcp")
    like = ["--like", "more.safetensors", "--exclude", "n", "--missing"]
    found, report = made(sh, verb, "m.safetensors", *like, "third", *(["--overwrite", "--verify"] if verb == "convert" else []))
    equal(report["tensors"], 3)
    if found:
        equal(found["x"], ("BF16", [3]))
        equal(sh("cat", "out", "x").stdout.split(), ["5", "6", "7"])
    assert "stands in" in sh(verb, "m.safetensors", *target, *like, "m.safetensors", status=5).stderr
    safetensors(sh.work / "fourth.safetensors", {"x": ("F32", [4], floats(4))})
    assert "[4]" in sh(verb, "m.safetensors", *target, *like, "fourth.safetensors", status=5).stderr
    assert "nowhere" in sh(verb, "m.safetensors", *target, *like, "nowhere", status=3).stderr
    safetensors(sh.work / "fifth.safetensors", {"x": ("C64", [3], floats(6))})
    assert "no cast from C64 to BF16" in sh(verb, "m.safetensors", *target, *like, "fifth.safetensors", status=5).stderr
    filled = ["--like", "fifth.safetensors", "--missing", "2.5"]
    assert "'x': C64 cannot be filled with 2.5" in sh(verb, "m.safetensors", *target, *filled, status=5).stderr


def names_agree(sh, *words):
    """Two checkpoints that differ in names alone, but for the words' change."""
    sh("convert", model(sh), "named", "--to", "safetensors", "--add-prefix", "a.")
    sh("diff", "named", model(sh), "--items", "ignore", status=1)
    sh("diff", "named", model(sh), "--items", "ignore", *words)


def option_strip_prefix(sh, verb):
    if verb == "verify":
        sh("verify", *a_prefix_apart(sh), "--strip-prefix", "a.")
        return
    if verb == "diff":
        return names_agree(sh, "--strip-prefix", "a.")
    new_names = "compared with the new names"
    if verb in ("ls", "hash", "stats"):
        sh("convert", model(sh), "named", "--to", "safetensors", "--add-prefix", "a.")
        equal(sorted(t["key"] for t in sh.json(verb, "named", "--strip-prefix", "a.")["tensors"]), ["n", "v", "w"])
        assert new_names in sh(verb, "named", "a.*", "--strip-prefix", "a.", status=2).stderr
        assert new_names not in sh(verb, "named", "b.*", status=2).stderr
        return
    if verb == "inspect":
        sh("convert", model(sh), "named", "--to", "safetensors", "--add-prefix", "a.")
        equal(sh.json("inspect", "named", "w", "--strip-prefix", "a.")["tensors"], 1)
        return
    safetensors(sh.work / "long.safetensors", {"glm.w": ("F32", [2], floats(2)), "w": ("F32", [2], floats(2))})
    target = ["bad"] if verb == "convert" else []
    said = sh(verb, "long.safetensors", *target, "--to", "hf", "--strip-prefix", "glm.", status=2).stderr
    assert "'glm.w' and 'w' would both be called 'w'" in said, said
    said = sh(verb, "long.safetensors", *target, "--to", "hf", "--strip-prefix", "gl", "--include", "glm.w", status=2).stderr
    assert new_names in said, said
    found, _ = made(sh, verb, "long.safetensors", "--to", "hf", "--exclude", "w", "--strip-prefix", "gl")
    assert found is None or set(found) == {"m.w"}, found


def option_rename(sh, verb):
    if verb == "verify":
        sh("verify", *a_prefix_apart(sh), "--rename", "s/^a\\.(.)$/h.$1/", "--rename", "h.* -> *")
        return
    if verb == "diff":
        return names_agree(sh, "--rename", "a.* -> *")
    if verb in ("ls", "hash", "stats"):
        equal(sorted(seen(sh, verb, "--rename", "s/^(.)$/h.\\1/", "--rename", "h.w -> h.u")), ["h.n", "h.u", "h.v"])
        return
    if verb == "inspect":
        equal(counted(sh, "h.w", "--rename", "s/^(.)$/h.\\1/"), 1)
        return
    found, report = made(sh, verb, model(sh), "--to", "hf", "--rename", "s/^(.)$/layers.\\1/", "--include", "layers.*")
    equal(report["tensors"], 3)
    assert found is None or set(found) == {"layers.v", "layers.w", "layers.n"}, found


def option_add_prefix(sh, verb):
    if verb == "verify":
        a_prefix_apart(sh)
        sh("verify", "m.safetensors", "a.w", "--against", "named", "--add-prefix", "a.")
        return
    if verb == "diff":
        names_agree(sh, "--strip-prefix", "a.")
        sh("diff", model(sh), "named", "--items", "ignore", "--add-prefix", "a.")
        return
    if verb in ("ls", "hash", "stats"):
        equal(sorted(seen(sh, verb, "--add-prefix", "b.")), ["b.n", "b.v", "b.w"])
        return
    if verb == "inspect":
        equal(counted(sh, "b.*", "--add-prefix", "b."), 3)
        return
    found, report = made(sh, verb, model(sh), "--to", "hf", "--add-prefix", "a.", "--include", "a.*")
    equal(report["tensors"], 3)
    assert found is None or set(found) == {"a.v", "a.w", "a.n"}, found


def option_option(sh, verb):
    _, report = made(sh, verb, model(sh), "--to", "hf", "--max-shard-size", "256", "-o", "stem=part")
    if verb == "convert":
        assert (sh.work / "out/part-00001-of-00003.safetensors").exists()
    else:
        rows = sh.json("plan", "m.safetensors", "--to", "hf", "--max-shard-size", "256", "-o", "stem=part", "--ranks")["targets"]
        assert rows[0]["file"].startswith("part-"), rows


def llama(sh, name):
    """As Megatron names them, and as Hugging Face does."""
    folder = sh.work / name
    folder.mkdir()
    layer = "model.layers.0."
    shapes = {"model.embed_tokens": [8, 4], "model.norm": [4], f"{layer}input_layernorm": [4], f"{layer}post_attention_layernorm": [4],
              f"{layer}mlp.gate_proj": [4, 4], f"{layer}mlp.up_proj": [4, 4],
              f"{layer}mlp.down_proj": [4, 4]} | {f"{layer}self_attn.{x}_proj": [4, 4] for x in "qkvo"}
    safetensors(folder / "model.safetensors",
                {f"{key}.weight": ("F32", shape, floats(4 * (shape + [1])[1] * (shape[0] // 4))) for key, shape in shapes.items()})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 4, "intermediate_size": 4,
                                                    "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1,
                                                    "vocab_size": 8, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}))
    return name


def option_rules(sh, verb):
    source = llama(sh, "llama")
    if verb == "diff":
        sh("convert", source, "mg", "--to", "torch_dcp", "--layout", "tp=1")
        done = sh("diff", source, "mg", "--items", "ignore", "--rules", "none", status=1)
        assert "model.norm.weight" in done.stdout
        return
    if verb == "draw":
        assert "model.norm.weight" in made(sh, verb, source, "--to", "torch_dcp", "--rules", "none")[0]
        return
    report = sh.json("plan", source, "--to", "torch_dcp", "--rules",
                     "none") if verb == "plan" else sh.json("convert", source, "out", "--to", "torch_dcp", "--rules", "none")
    assert not [line for line in report["changed"] if line.startswith("names:")], report["changed"]


JOIN = "v, w -> b, axis=0"


def mapped(sh, verb, *options):
    """The mapping joins `v` and `w`."""
    source = model(sh)
    if verb == "diff":
        safetensors(sh.work / "b.safetensors", {"b": ("F32", [32, 4], floats(64) + floats(64, 7)), "n": ("I64", [2], bytes(16))})
        sh("diff", source, "b.safetensors", *options)
        return
    found, report = made(sh, verb, source, "--to", "hf", *options)
    equal(report["tensors"], 2)
    if found:
        equal(set(found), {"b", "n"})


def option_map(sh, verb):
    (sh.work / "m.map").write_text(JOIN)
    mapped(sh, verb, "--map", "m.map")


def option_mapping(sh, verb):
    mapped(sh, verb, "-m", JOIN)


def option_set(sh, verb):
    by_condition(sh, verb, "rows", "--set", "rows=3")


def option_config(sh, verb):
    (sh.work / "config.json").write_text('{"rows": 3}')
    by_condition(sh, verb, "rows", "--config", "config.json")


def by_condition(sh, verb, name, *options):
    """A statement that a number from outside keeps."""
    (sh.work / "when.map").write_text(f'{JOIN}, when="{name} == 3"\n')
    if verb == "map":
        equal(len(json.loads(sh("map", "parse", "when.map", *options).stdout)["statements"]), 1)
    else:
        mapped(sh, verb, "--map", "when.map", *options)


def option_strict_aoa(sh, verb):
    (sh.work / "ours.map").write_text('w -> b, unless="other"\n')
    source = model(sh)
    words = {"map": ["map", "check", "ours.map", "--source", source], "diff": ["diff", source, source, "--map", "ours.map"],
             "plan": ["plan", source, "--to", "hf", "--map", "ours.map"],
             "draw": ["draw", source, "--to", "hf", "--map", "ours.map"],
             "convert": ["convert", source, "out", "--to", "hf", "--map", "ours.map"]}[verb]
    done = sh.run(*words, "--strict-aoa")
    assert done.returncode == 2 and "unless" in done.stderr + done.stdout, f"exit {done.returncode}: {done.stderr[:200]}"


def option_source(sh, verb):
    (sh.work / "m.map").write_text("w -> b\n")
    assert "w -> b" in sh("map", "expand", "m.map", "--source", model(sh)).stdout


def option_target(sh, verb):
    (sh.work / "m.map").write_text("w -> b\n")
    source = model(sh)
    safetensors(sh.work / "t.safetensors", {"b": ("F32", [16, 4], floats(64)), "absent": ("F32", [1], floats(1))})
    done = sh.run("map", "check", "m.map", "--source", source, "--target", "t.safetensors")
    assert "absent" in done.stdout + done.stderr, done.stdout + done.stderr


def option_reverse(sh, verb):
    (sh.work / "m.map").write_text("b -> w\n")
    sh("map", "check", "m.map", "--source", model(sh), "--reverse")


# ---- how it is written ----


def option_diff(sh, verb):
    found = sh("draw", "--diff", *two_that_differ_in_w(sh), "--json", status=1)
    equal(json.loads(found.stdout)["diff"]["verdict"], "1 of 2 tensors differ")


def option_columns(sh, verb):
    sh("convert", model(sh), "dcp", "--to", "torch-dcp", "--layout", "ranks=3")
    equal(sh.json("draw", "dcp", "--columns", "files")["maps"][0]["unit"], "file")


def option_checksum(sh, verb):
    sh("convert", model(sh), "out", "--to", "hf", "--checksum", "sha256")
    sidecar = json.loads((sh.work / "out/reshard.json").read_text())
    assert "sha256" in json.dumps(sidecar)


def option_overwrite(sh, verb):
    if verb == "draw":
        sh("draw", model(sh), "out.html")
        before = (sh.work / "out.html").read_text()
        sh("draw", "m.safetensors", "out.html", status=2)
        sh("draw", "m.safetensors", "out.html", "--to", "hf", "--overwrite")
        assert (sh.work / "out.html").read_text() != before
        return
    sh("convert", model(sh), "out", "--to", "hf")
    sh("convert", model(sh, "n.safetensors", 5.0), "out", "--to", "hf", "--overwrite")
    sh("diff", "n.safetensors", "out", "--items", "ignore")


def option_no_space_check(sh, verb):
    """A file of 8 TB, with a hole for its values, does not fit on any disk that tests run on."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [1 << 43], "data_offsets": [0, 1 << 43]}}).encode()
    with open(sh.work / "huge.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + (1 << 43))
    if verb == "plan":
        words = ["plan", "huge.safetensors", "out", "--to", "torch-dcp", "--json"]
        assert "not enough space" in subprocess.run([sh.binary, *words], cwd=sh.work, capture_output=True, text=True).stdout
        equal(json.loads(sh(*words, "--no-space-check").stdout)["warnings"], [])
        return
    words = sh.typed(["convert", "huge.safetensors", "out", "--to", "torch-dcp", "--no-space-check"])
    done = subprocess.run([sh.binary, *words], cwd=sh.work, capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    equal(done.returncode, 3)
    assert "File too large" in done.stderr, done.stderr
    large(sh)  # a disk of one MiB is written to as far as it goes
    script = f"""mount -t tmpfs -o size=1M none small && exec "{sh.binary}" {" ".join(sh.typed(["convert", "large.safetensors", "small/out",
                                                                                   "--to", "torch-dcp", "--no-space-check"]))}"""
    (sh.work / "small").mkdir(exist_ok=True)
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", sh.work / "small"], capture_output=True).returncode == 0:
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], cwd=sh.work, capture_output=True, text=True)
        equal(done.returncode, 3)
        assert "No space left" in done.stderr and "are free" not in done.stderr, done.stderr


def option_resume(sh, verb):
    """An interrupted run leaves its parts only with --resume, and the next one goes on from there."""
    source = large(sh)
    subprocess.run([sh.binary, *sh.typed(["convert", source, "out", "--to", "torch-dcp", "--resume", "--memory", "1MiB", "--io",
                                          "buffered"])], cwd=sh.work, capture_output=True,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20)))
    assert list(sh.work.glob(".out*")) or list(sh.work.glob("*partial*")), sorted(os.listdir(sh.work))
    sh("convert", source, "out", "--to", "torch-dcp", "--resume", "--memory", "1MiB", "--io", "buffered")
    sh("diff", source, "out", "--items", "ignore")


def option_verify(sh, verb):
    source = large(sh)
    sh.spied("convert", source, "out", "--to", "hf", "--io", "buffered", "--verify", status=1, damage=True)
    assert not (sh.work / "out").exists()


def option_no_sync(sh, verb):
    equal(sh.spied("convert", model(sh), "out", "--to", "hf", "--no-sync")["syncs"], 0)


def option_part(sh, verb):
    sh("convert", model(sh), "out", "--to", "hf", "--part", "0/2")
    assert not (sh.work / "out").exists()


def option_dry_run(sh, verb):
    sh("convert", model(sh), "out", "--to", "hf", "--dry-run")
    assert not (sh.work / "out").exists()


def option_ranks(sh, verb):
    assert "__2_0.distcp" in sh("plan", model(sh), "--to", "torch-dcp", "--layout", "ranks=3", "--ranks").stdout


# ---- what is shown ----


def option_chunks(sh, verb):
    sh("convert", model(sh), "dcp", "--to", "torch-dcp", "--layout", "ranks=2")
    assert "__1_0.distcp" in sh("ls", "dcp", "--chunks").stdout


def layered(sh):
    """Two layers that are alike, a third that is not, and one large tensor."""
    return safetensors(sh.work / "layered.safetensors", {
        **{f"model.layers.{i}.{w}": ("F32", [4], floats(4)) for i in range(2) for w in "vw"}, "model.layers.2.w": ("F64", [4], floats(8)),
        "model.embed": ("F32", [64], floats(64))})


def option_tree(sh, verb):
    lines = [line.split("\t") for line in sh("ls", layered(sh), "--tree").stdout.splitlines()]
    equal(lines, [["model", "", "", "6", "352"], ["model.embed", "F32", "[64]", "1", "256"], ["model.layers", "", "", "5", "96"],
                  ["model.layers.{0,1}", "", "", "4", "64"], ["model.layers.{0,1}.v", "F32", "[4]", "2", "32"],
                  ["model.layers.{0,1}.w", "F32", "[4]", "2", "32"], ["model.layers.2.w", "F64", "[4]", "1", "32"],
                  ["(all)", "", "", "6", "352"]])
    sh("ls", "layered.safetensors", "--tree", "--chunks", status=2)
    shown = sh.json("ls", "layered.safetensors", "--tree")
    equal((shown["count"], shown["bytes"], shown["tree"][3]), (6, 352, {"name": "model.layers.{0,1}", "depth": 2, "count": 4, "bytes": 64}))


def option_depth(sh, verb):
    equal(len(sh("ls", layered(sh), "--tree", "--depth", "2").stdout.splitlines()), 4)
    sh("ls", "layered.safetensors", "--depth", "2", status=2)


def option_sort(sh, verb):
    first = [sh("ls", layered(sh), "--sort", order).stdout.split("\t")[0] for order in ("key", "size", "dtype")]
    last = [sh("ls", "layered.safetensors", "--sort", order).stdout.splitlines()[-1].split("\t")[0]
            for order in ("key", "size", "dtype")]
    equal((first, last), (["model.embed", "model.embed", "model.layers.0.v"], ["model.layers.2.w", "model.layers.1.w", "model.layers.2.w"]))
    tree = [[line.split("\t")[0] for line in sh("ls", "layered.safetensors", "--tree", "--sort", order).stdout.splitlines()]
            for order in ("size", "dtype")]
    equal([names[3:5] for names in tree], [["model.layers.{0,1}"] + ["model.layers.{0,1}.v"], ["model.layers.2.w", "model.layers.{0,1}"]])


def option_digest(sh, verb):
    equal({len(line.split()[0]) for line in sh("hash", model(sh), "--digest", "crc32c").stdout.splitlines()}, {8})


def option_slice(sh, verb):
    for text, values in (("1:3,2", [13, 17]), ("-2:,-1", [66, 70]), ("::8,0", [7, 39]), ("...,-1,:2", [67, 68]),
                         ("-1,...", [67, 68, 69, 70]), ("0,...,1::2", [8, 10]), ("...,0,0,0", None), ("0,1::2", [8, 10]), ("3:3,:", []),
                         ("::0", None), ("16", None), ("-17", None)):
        said = sh("cat", model(sh), "w", "--slice", text, status=0 if values is not None else 2).stdout.split()
        equal([float(value) for value in said], values or [])
    assert "did you mean 'w --slice 1:3,2'?" in sh("cat", model(sh), "w[1:3,2]", status=2).stderr
    assert "--slice" not in sh("cat", model(sh), "no[1]", status=2).stderr
    data = sh.json("cat", model(sh), "w", "--slice", "::8,0")
    equal((data["shape"], data["data"]), ([2, 1], [7, 39]))


def option_as(sh, verb):
    done = subprocess.run([sh.binary, *sh.typed(["cat", model(sh), "w", "--as", "npy"])], cwd=sh.work, capture_output=True)
    assert done.stdout.startswith(b"\x93NUMPY")
    for key in ("lr", "text"):
        for words in (["--as", "npy"], ["--as", "raw"], ["--slice", "0:1"]):
            said = sh("cat", torch_model(sh), key, *words, status=2)
            assert not said.stdout and "is an item" in said.stderr, said
        sh("cat", "m.pt", key, "--as", "text")


def option_deep(sh, verb):
    safetensors(sh.work / "nan.safetensors", {"w": ("F32", [2], struct.pack("<2f", float("nan"), 1.0))})
    assert "nan" in sh.run("verify", "nan.safetensors", "--deep", "--verbose").stdout.lower()


def option_expect_optimizer(sh, verb):
    one = ("F32", [2], struct.pack("<2f", 1.0, 2.0))
    states = {f"optimizer.state.{state}.w": one for state in ("exp_avg", "exp_avg_sq")}
    safetensors(sh.work / "whole.safetensors", {"w": one, **states})
    safetensors(sh.work / "half.safetensors", {"w": one, "optimizer.state.exp_avg.w": one})
    sh("verify", "whole.safetensors", "--expect-optimizer")
    assert "second moment is missing for 1 of 1" in sh("verify", "half.safetensors", "--expect-optimizer", status=1).stdout


def option_latest_good(sh, verb):
    root = two_iterations(sh)
    assert "iter_0000001" in sh("verify", root, "--latest-good").stdout
    # The run's options count, and a reference that is not there is no checkpoint's fault.
    (sh.work / "steps").mkdir(exist_ok=True)
    for number in (1, 2):
        sh("convert", large(sh), f"steps/step_{number}", "--to", "torch-dcp", "--overwrite")
    few, many = (sh.spied("verify", "steps", "--latest-good", "--deep", "--io", "buffered", "-j", n)["threads"] for n in (1, 6))
    assert sh.left_out or few < many, (few, many)
    assert sh.left_out or sh.spied("verify", "steps", "--latest-good", "--deep", "--io", "mmap")["maps"] > 0
    assert sh.left_out or '"reshard-progress/1"' in sh("verify", "steps", "--latest-good", "--deep", "--progress", "json").stderr
    said = sh("verify", "steps", "--latest-good", "--against", "nofile", status=3).stderr
    assert sh.left_out or "nofile" in said, said


def option_tolerance(sh, verb):
    safetensors(sh.work / "a.safetensors", {"w": ("F32", [2], struct.pack("<2f", 1.0, 2.0))})
    safetensors(sh.work / "b.safetensors", {"w": ("F32", [2], struct.pack("<2f", 1.25, 2.0))})
    sh("diff", "a.safetensors", "b.safetensors", "--tolerance", "0.5")
    sh("diff", "a.safetensors", "b.safetensors", "--tolerance", "0.125,0.05", status=1)
    sh("diff", "a.safetensors", "b.safetensors", "--tolerance", "0,0.3")


def option_ignore_dtype(sh, verb):
    source = model(sh)
    sh("convert", source, "b.safetensors", "--dtype", "bf16", "--add-prefix", "x.")
    sh("diff", source, "b.safetensors", "--add-prefix", "x.", "--ignore-dtype")
    safetensors(sh.work / "c.safetensors", {"x.v": ("F16", [16, 4], bytes(128))})
    done = sh("diff", source, "c.safetensors", "--add-prefix", "x.", "--ignore-dtype", "--include", "x.v", status=1)
    assert "dtype" not in done.stdout and "63 elements" in done.stdout, done.stdout


def option_against(sh, verb):
    source = model(sh)
    safetensors(sh.work / "ref.safetensors", {"v": ("F32", [16, 4], floats(64)), "w": ("BF16", [16, 4], bytes(128)),
                                              "n": ("I64", [1], bytes(8)), "x": ("F32", [1], bytes(4))})
    found = json.loads(sh("verify", source, "--against", "ref.safetensors", "--json", status=1).stdout)["findings"]
    equal({(f["kind"], f["key"]) for f in found if f["severity"] != "note"}, {("dtype", "w"), ("shape", "n"), ("missing", "x")})


def option_fail_on(sh, verb):
    safetensors(sh.work / "nan.safetensors", {"w": ("F32", [2], struct.pack("<2f", 1.0, float("nan"))), "z": ("F32", [2], bytes(8))})
    sh("verify", "nan.safetensors", "--fail-on", "inf")
    assert "failure\tnan\tw" in sh("verify", "nan.safetensors", "--fail-on", "inf,nan", status=1).stdout
    assert "failure\tzero\tz" in sh("verify", "nan.safetensors", "--fail-on", "zero", status=1).stdout
    sh("verify", "nan.safetensors", "--fail-on", "nan,big", status=2)


def option_stat(sh, verb):
    for name, start in (("a", 0.0), ("b", 1.0)):
        safetensors(sh.work / f"{name}.safetensors",
                    {f"layers.{i}.{w}": ("F32", [4], floats(4, start * i)) for i in range(2) for w in "vw"})
    said = sh("diff", "a.safetensors", "b.safetensors", "--stat", status=1).stdout.splitlines()
    assert said[0].startswith("layer\tlayers.0\t0 of 2 differ\t0 %"), said
    assert said[3].startswith("module\tlayers.*.w\t1 of 2 differ\t50 %"), said
    equal(len(said), 5)


def option_max(sh, verb):
    said = sh("diff", model(sh), model(sh, "other.safetensors", 1.0), "--max", "1", status=1).stdout.splitlines()
    equal([line.split("\t")[0] for line in said[:1]], ["failure"])
    assert said[1].startswith("… and ") and said[2].startswith("different: "), said
    sh("diff", "m.safetensors", "other.safetensors", "--max", "100000", status=1)
    sh("diff", "m.safetensors", "other.safetensors", "--max", str(1 << 32), status=2)
    sh("diff", "m.safetensors", "other.safetensors", "--threads", "4097", status=2)


def option_limits(sh, verb):
    assert "pickle_depth" in sh("formats", "--limits").stdout


# ---- what is opened ----


def two_iterations(sh):
    """The latest one is damaged."""
    model(sh)
    (sh.work / "root").mkdir()
    for name in ("iter_0000001", "iter_0000002"):
        sh("convert", "m.safetensors", f"root/{name}", "--to", "torch-dcp")
    (sh.work / "root/iter_0000002/.metadata").write_bytes(b"\x80\x02}.")
    return "root"


def option_format(sh, verb):
    done = sh.run(*arguments_of(verb, model(sh)), "--format", "zarr")
    assert done.returncode in (2, 4, 5), f"exit {done.returncode}"


def option_iteration(sh, verb):
    root = two_iterations(sh)
    if verb == "map":
        (sh.work / "m.map").write_text("w -> b\n")
        sh("map", "expand", "m.map", "--source", root, "--iteration", "1")
    else:
        sh.read(verb, root, "--iteration", "1")


def option_follow_links(sh, verb):
    outside = sh.work / "blobs"
    outside.mkdir()
    model(sh)
    os.rename(sh.work / "m.safetensors", outside / "blob")
    (sh.work / "linked").mkdir()
    (sh.work / "linked/model.safetensors").symlink_to("../blobs/blob")
    sh.read(verb, "linked", "--follow-links")


def option_lenient(sh, verb):
    entry = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    text = b'{"w":' + entry + b',"w":' + entry + b"}"
    (sh.work / "twice.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + floats(2))
    sh.read(verb, "twice.safetensors", "--lenient")


# ---- how it runs ----


def option_memory(sh, verb):
    source = large(sh)
    if verb == "plan":
        assert sh.json("plan", source, "--to", "torch-dcp", "--memory", "1MiB")["peak_memory_bytes"] < 2 << 20
    elif verb == "verify":
        # Replicas are compared within the budget, in larger reads than checksums are.
        safetensors(sh.work / "norm.safetensors", {"decoder.final_layernorm.weight": ("F32", [1 << 20], bytes(4 << 20))})
        sh("convert", "norm.safetensors", "mg", "--to", "megatron", "--layout", "tp=2", "--rules", "none")
        counts = sh.spied("verify", "mg", "--memory", "1MiB", "--io", "buffered")
        assert counts["largest_read"] <= 1 << 19, counts
    else:
        counts = sh.spied(*arguments_of(verb, source), "--memory", "1MiB", "--io", "buffered")
        assert counts["largest_read"] <= 1 << 19, counts


def option_threads(sh, verb):
    source = large(sh)
    if verb == "plan":
        one = sh.json("plan", source, "--to", "torch-dcp", "--threads", "1")["peak_memory_bytes"]
        assert sh.json("plan", source, "--to", "torch-dcp", "--threads", "7")["peak_memory_bytes"] > one
        return
    options = {"verify": ["--deep"], "convert": ["--io", "buffered", "--no-sync", "--overwrite"],
               "salvage": ["--io", "buffered", "--no-sync", "--overwrite", "--to", "torch-dcp"]}.get(verb, [])
    few, many = (sh.spied(*arguments_of(verb, source), *options, "--threads", n)["threads"] for n in (1, 6))
    assert few < many, (few, many)


def option_io(sh, verb):
    source = large(sh)
    options = {"verify": ["--deep"], "convert": ["--overwrite"], "salvage": ["--overwrite"]}.get(verb, [])
    counts = {io: sh.spied(*arguments_of(verb, source), *options, "--io", io) for io in ("buffered", "mmap", "direct")}
    assert counts["mmap"]["maps"] > 0, counts["mmap"]
    assert counts["direct"]["direct_reads"] > 0, counts["direct"]
    assert counts["buffered"]["maps"] == counts["buffered"]["direct_reads"] == 0, counts["buffered"]


def option_limit(sh, verb):
    if verb == "map":
        (sh.work / "m.map").write_text("w -> b\n")
        sh("map", "expand", "m.map", "--source", model(sh), "--limit", "map_text_bytes=2", status=6)
    else:
        sh.read(verb, model(sh), "--limit", "tensors=1", status=6)


def option_progress(sh, verb):
    lines = sh.read(verb, large(sh), "--progress", "json", *(["--deep"] if verb == "verify" else [])).stderr.splitlines()
    assert lines and json.loads(lines[-1])["schema"] == "reshard-progress/1", lines[:3]


def option_color(sh, verb):
    if verb == "diff":
        done = sh("diff", model(sh), model(sh, "other.safetensors", 1.0), "--color", "always", status=1)
    elif verb == "salvage":
        (sh.work / model(sh)).write_bytes((sh.work / "m.safetensors").read_bytes()[:-8])
        done = sh("salvage", "m.safetensors", "out", "--color", "always", status=1)
    elif verb == "verify":
        safetensors(sh.work / "nan.safetensors", {"w": ("F32", [2], struct.pack("<2f", float("nan"), 1.0))})
        done = sh.run("verify", "nan.safetensors", "--deep", "--color", "always", "--verbose")
    else:
        done = sh.read(verb, model(sh), "--color", "always")
    assert "\x1b[" in done.stdout


def option_json(sh, verb):
    if verb == "map":
        (sh.work / "m.map").write_text("w -> b\n")
        done = sh("map", "expand", "m.map", "--source", model(sh), "--json")
    elif verb == "draw":
        done = sh("draw", model(sh), "out.html", "--json", "--overwrite")
        assert "</html>" in (sh.work / "out.html").read_text()
    elif verb in ("formats", "help", "completion"):
        done = sh(verb, *(["zsh"] if verb == "completion" else []), "--json")
    elif verb == "cat":
        done = sh("cat", model(sh), "absent", "--json", status=2)
        equal(json.loads(done.stderr)["schema"], "reshard-error/1")
        sh("cat", model(sh), "w", "--json", "--as", "npy", status=2)
        shown = json.loads(sh("cat", model(sh), "w", "--json").stdout)
        equal(list(shown), ["schema", "key", "dtype", "shape", "data"])
        equal([shown["schema"], shown["key"]], ["reshard-cat/1", "w"])
        equal(shown["data"], [float(x) for x in sh("cat", model(sh), "w").stdout.split()])
        return
    else:
        done = sh.read(verb, model(sh), "--json")
    assert json.loads(done.stdout)["schema"].startswith("reshard-"), done.stdout[:100]


def option_quiet(sh, verb):
    if verb == "diff":
        done = sh("diff", model(sh), model(sh, "other.safetensors", 1.0), "--quiet", status=1)
        equal(done.stdout.count("\n"), 1)
        assert done.stdout.startswith("different: of 3 tensors 2 have other values"), done.stdout
        return
    elif verb == "map":
        (sh.work / "m.map").write_text("v -> b\nw -> b\n")
        done = sh("map", "check", "m.map", "--source", model(sh), "--quiet")
        equal(done.stderr, "")
        return
    else:
        done = sh.read(verb, model(sh), "--quiet")
    equal(done.stdout.strip(), "")


def option_verbose(sh, verb):
    if verb == "verify":
        assert "iter_0000002" in sh("verify", two_iterations(sh), "--latest-good", "--verbose").stdout
    elif verb == "ls":
        assert "x" * 500 in sh("ls", torch_model(sh), "--items", "--verbose").stdout
    elif verb == "commit":
        torch_stub.write_zip(sh.work / "m.pt",
                             {"w": torch_stub.tensor("FloatStorage", [4], floats(4)), **{f"item{i}": {i} for i in range(14)}})
        equal(sh.read("commit", "m.pt", "--verbose").stderr.count("dropped:"), 14)
    elif verb == "inspect":
        (sh.work / "hf").mkdir()
        safetensors(sh.work / "hf/model.safetensors", {f"t{i}": ("U8", [1], b"x") for i in range(15)})
        (sh.work / "hf/model.safetensors.index.json").write_text('{"metadata": {}, "weight_map": {"t0": "model.safetensors"}}')
        equal(sh("inspect", "hf", "--verbose").stdout.count("is not in the index"), 14)
    else:
        torch_stub.write_zip(sh.work / "m.pt",
                             {"w": torch_stub.tensor("FloatStorage", [4], floats(4)), **{f"{c}{c}": {c} for c in "abc"},
                              "deep": {"t": torch_stub.tensor("FloatStorage", [1], bytes(4)), **{f"item{i}": {i} for i in range(14)}}})
        target = [*(["out"] if verb == "convert" else []), "--to", "zarr"]
        done = sh(verb, "m.pt", *target, "--verbose")
        equal(done.stdout.count("dropped") + done.stderr.count("dropped"), 17)
        done = sh(verb, "m.pt", *target, *(["--overwrite"] if verb == "convert" else []))
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("dropped")]
        equal([line.split(":")[0 if verb == "plan" else 1].split("\t")[-1].strip() for line in said], ["aa", "bb", "cc", "deep.* (14)"])


def option_help(sh, verb):
    assert sh(verb, "--help").stdout.startswith(f"usage: reshard {verb} ")


def option_version(sh, verb):
    assert re.match(r"reshard \d+\.\d+\.\d+", sh(verb, "--version").stdout)


# ---- the table ----


def options_of(binary, verb):
    """[(spellings, has an argument)] of `reshard VERB --help`"""
    text = subprocess.run([binary, verb, "--help"], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        match = re.match(r"\s+(?:(-\w), )?(--[\w-]+)(?: (\S+))?\s{2,}", line)
        if match:
            yield [word for word in (match[1], match[2]) if word], match[3] is not None


def verbs_of(binary):
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  (\w+) ", text, re.M)


def attempt(case, binary, spy, verb, without=None):
    """What went wrong, or None; and how often the option was left out."""
    with tempfile.TemporaryDirectory(prefix="reshard-options-") as folder:
        sh = Shell(binary, spy, pathlib.Path(folder), without)
        try:
            case(sh, verb)
        except (AssertionError, KeyError, OSError, ValueError, StopIteration, IndexError) as problem:
            return str(problem) or repr(problem), sh.left_out
        return None, sh.left_out


VALUES = {"threads": "6", "progress": "json", "color": "always", "limit": "tensors=1", "io": "mmap", "checksum": "sha256"}


def without_effect(binary, verb, spellings, has_argument):
    """It is accepted, and the output is the same."""
    with tempfile.TemporaryDirectory(prefix="reshard-options-") as folder:
        sh = Shell(binary, "", pathlib.Path(folder))
        source = model(sh)
        option = [spellings[-1]] + ([VALUES[spellings[-1][2:]]] if has_argument else [])
        words = {"map": ["map", "expand", "m.map", "--source", source], "completion": ["completion", "bash"], "help": ["help", "ls"],
                 "formats": ["formats"]}
        (sh.work / "m.map").write_text(JOIN)
        outputs = []
        for more in ([], option):
            shutil.rmtree(sh.work / "out", ignore_errors=True)
            (sh.work / "out").unlink(missing_ok=True)
            done = sh.run(*words.get(verb, arguments_of(verb, source)), *more)
            outputs.append((done.returncode, re.sub(r"peak memory.*", "", done.stdout), done.stderr))
        if outputs[0][0] not in (0, 1) or outputs[0] != outputs[1]:
            return f"changes something: {str(outputs)[:300]}"
    return None


def check(binary, spy, verb, spellings, has_argument):
    name = spellings[-1][2:]
    case = globals().get("option_" + name.replace("-", "_"))
    if name in NO_EFFECT.get(verb, {}):
        return without_effect(binary, verb, spellings, has_argument)
    if not case:
        return "has no case"
    problem, _ = attempt(case, binary, spy, verb)
    if problem:
        return problem
    ignored, left_out = attempt(case, binary, spy, verb, (spellings, has_argument))
    if left_out == 0:
        return "its case does not type it"
    return None if ignored else "its case passes when the option is ignored"


def stale(binary, verb):
    """What NO_EFFECT says of options that the verb does not take."""
    taken = {spellings[-1][2:] for spellings, _ in options_of(binary, verb)}
    return sorted(NO_EFFECT.get(verb, {}).keys() - taken)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--spy", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    binary, spy, number, failed = str(args.bin.resolve()), str(args.spy.resolve()), 0, 0
    for verb in verbs_of(binary):
        if stale(binary, verb):
            number, failed = number + 1, failed + 1
            print(f"not ok {number} - {verb} takes what NO_EFFECT lists\n# {stale(binary, verb)}", flush=True)
        for spellings, has_argument in options_of(binary, verb):
            if args.only not in spellings[-1]:
                continue
            problem = check(binary, spy, verb, spellings, has_argument)
            number, failed = number + 1, failed + bool(problem)
            print(f"{'not ok' if problem else 'ok'} {number} - {verb} {spellings[-1]}" + (f"\n# {problem[:500]}" if problem else ""),
                  flush=True)
    print(f"1..{number}")
    return failed > 0


sys.exit(main())
