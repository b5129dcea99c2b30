#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around a conversion, planted in conversions of a checkpoint that Megatron wrote, in several formats: ranks in the
wrong order, a lost shard, layers in each other's place, a transposed weight, a lost entry, a shard of another step. diff or
verify --against names each without help. Prints TAP.

usage: planted_test.py --bin RESHARD --fixtures DIR
"""
import argparse
import itertools
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile

MEGATRON = "megatron/megatron-dense-legacy-tp1/ckpt"
DIST = "megatron/megatron-dense-dist-tp2/ckpt"
# Of the same shapes: its heads of 3 have no halves, which this family wants.
CONFIG = {"model_type": "llama", "hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 6, "num_hidden_layers": 4, "vocab_size": 50, "tie_word_embeddings": False}
SWAP = [word for step in ("s/layers\\.1\\./layers.X./", "s/layers\\.2\\./layers.1./", "s/layers\\.X\\./layers.2./")
        for word in ("--rename", step)]
# format: what is converted to it and how, its shards, a square weight and how its layers are called
FORMATS = {
    "hf": ("weights", ["--to", "hf", "--max-shard-size", "4kB"], "*.safetensors", "model.layers.2.self_attn.k_proj.weight"),
    "torch-dcp": ("weights", ["--to", "torch-dcp", "--layout", "ranks=4"], "*.distcp", "model.layers.2.self_attn.k_proj.weight"),
    "paddle-flex": ("weights", ["--to", "paddle-flex", "--layout", "tp=2", "-o", "dedupe=none"], "[01]_0.distcp",
                    "model.layers.2.self_attn.k_proj.weight"),
    "megatron": ("legacy", ["--to", "megatron", "--layout", "tp=2"], "iter*/mp_rank_*/*.pt", "decoder.layers.2.mlp.linear_fc2.weight"),
}
CUT = [name for name in FORMATS if name != "hf"]


class Work:
    def __init__(self, binary, folder, fixtures):
        self.binary, self.folder = binary, folder
        self.sources = {"legacy": fixtures / MEGATRON, "dist": fixtures / DIST}
        self.run("convert", self.sources["legacy"], "weights", "--to", "hf", "--rules", "auto", "--items", "drop")
        self.sources["weights"] = folder / "weights"
        (folder / "model.json").write_text(json.dumps(CONFIG))

    def run(self, *words, status=0):
        done = subprocess.run([self.binary, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, f"{words}: exit {done.returncode} instead of {status}: {done.stdout[-300:]}{done.stderr[:300]}"
        return done

    def findings(self, *words):
        return json.loads(self.run(*words, "--json", status=1).stdout)["findings"]

    def other_step(self, first=0, end=None):
        """Weights of which each, or some, are a little other: the low bits of each BF16."""
        path = self.folder / "weights/model.safetensors"
        data = bytearray(path.read_bytes())
        start = 8 + struct.unpack("<Q", data[:8])[0]
        where = slice(start + 2 * first, None if end is None else start + 2 * end, 2)
        data[where] = bytes(byte ^ 1 + at % 31 for at, byte in enumerate(data[where]))
        path.write_bytes(data)

    def made(self, name, kind, *words):
        """A conversion of the real weights to a format, and the shards of it."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        source, options, shards, _ = FORMATS[kind]
        self.run("convert", self.sources[source], name, *options, "--items", "keep", *words)
        found = sorted((self.folder / name).glob(shards))
        assert len(found) >= 2, f"{kind}: {found}"
        return found

    def causes(self, first, second):
        found = self.findings("diff", first, second, "--items", "ignore")
        wrong = {f["key"] for f in found if f["kind"] in ("values", "shape")}
        causes = {f["key"]: f["text"] for f in found if f["kind"] == "cause"}
        assert wrong and set(causes) == wrong, f"no cause is told for {sorted(wrong - set(causes))}"
        return causes


def case_wrong_order_of_ranks(work):
    for kind in CUT:
        work.made("good", kind)
        shards = work.made("bad", kind)
        first, second = next((a, b) for a, b in itertools.combinations(shards, 2) if a.stat().st_size == b.stat().st_size)
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
        causes = work.causes("good", "bad")
        others = {text for text in causes.values() if "shards are in another rank's place" not in text}
        assert not others, f"{kind}: {others}"


def case_lost_shard(work):
    for kind in FORMATS:
        work.made("good", kind)
        lost = work.made("bad", kind)[1]
        lost.unlink()
        name = str(lost.relative_to(work.folder / "bad"))
        for words in ("verify", "bad"), ("verify", "bad", "--against", "good"):
            found = [f for f in work.findings(*words) if f["severity"] == "failure"]
            told = [f for f in found if lost.name in f["text"] or name in f["text"]]
            assert told, f"{kind}: {found[:3]}"


def case_layers_in_each_others_place(work):
    for kind in FORMATS:
        work.made("good", kind)
        work.made("bad", kind, *SWAP)
        causes = work.causes("good", "bad")
        for key, text in causes.items():
            other = key.replace("layers.1.", "layers.X.").replace("layers.2.", "layers.1.").replace("layers.X.", "layers.2.")
            assert other != key and f"it and '{other}' have changed places" in text, f"{kind}: {key}: {text}"
        assert len(causes) >= 4, f"{kind}: {causes}"


def case_transposed_weight(work):
    for kind, (_, _, _, key) in FORMATS.items():
        (work.folder / "transpose.map").write_text(f"{key}^T -> {key}\n")
        work.made("good", kind)
        if kind == "megatron":  # its shapes follow from its rules: what is transposed is no checkpoint of it
            work.run("convert", "good", "bad", "--to", "torch", "--map", "transpose.map", "--overwrite")
        else:
            work.made("bad", kind, "--map", "transpose.map")
        causes = work.causes("good", "bad")
        assert set(causes) == {key} and "transposed" in causes[key], f"{kind}: {causes}"
        shutil.rmtree(work.folder / "bad", ignore_errors=True)
        (work.folder / "bad").unlink(missing_ok=True)


def case_lost_entry(work):
    """Of an index, or of the metadata; a config.json asks for it under the names of any framework."""
    for kind, (_, _, _, key) in FORMATS.items():
        work.made("good", kind)
        work.made("bad", kind)
        hf = key if key.startswith("model.") else "model.layers.2.mlp.down_proj.weight"
        if kind == "hf":
            index = work.folder / "bad/model.safetensors.index.json"
            entries = json.loads(index.read_text())
            file = entries["weight_map"].pop(key)
            index.write_text(json.dumps(entries))
            found = json.loads(work.run("verify", "bad", "--json").stdout)["findings"]
            assert any(key in f["text"] + f["key"] and file in f["text"] for f in found), found
            continue
        shutil.rmtree(work.folder / "bad", ignore_errors=True)
        work.run("convert", "good", "bad", "--to", "torch", "--exclude", key, "--items", "drop", "--overwrite")
        for reference in "good", "model.json":
            found = [(f["kind"], f["key"]) for f in work.findings("verify", "bad", "--against", reference) if f["severity"] == "failure"]
            assert found == [("missing", hf if reference == "model.json" else key)], f"{kind}, {reference}: {found}"
        (work.folder / "bad").unlink(missing_ok=True)


def case_shard_of_another_step(work):
    """Its values are other ones everywhere. Megatron's names are in its files: there it is one of other layers."""
    for kind in FORMATS:
        work.made("good", kind)
        stale = work.made("bad", kind)[1]
        if kind != "megatron":
            work.other_step()
        work.made("old", kind, *(SWAP if kind == "megatron" else []))
        shutil.copy(work.folder / "old" / stale.relative_to(work.folder / "bad"), stale)
        if kind != "megatron":
            work.other_step()  # and back
        for order in (["good", "bad"], ["bad", "good"]):
            causes = work.causes(*order)
            others = {text for text in causes.values() if stale.name not in text}
            assert not others, f"{kind}: {others}"
            seams = [text for text in causes.values() if "begins and ends with shards of the first" in text]
            files = [text for text in causes.values() if "in the second differ, and others agree" in text]
            assert kind == "hf" or seams, f"{kind}: {causes}"
            assert all("rank 0, " not in text for text in seams) and (kind != "hf" or files), f"{kind}: {causes}"


def case_some_weights(work):
    """A part of all weights of a file, then all of some: no cause is made up."""
    work.made("good", "hf")
    for first, end in (100, 700), (1212, 1692):
        work.other_step(first, end)
        work.made("bad", "hf")
        found = work.findings("diff", "good", "bad", "--items", "ignore")
        work.other_step(first, end)  # and back
        assert len([f for f in found if f["kind"] == "values"]) == 2 and not [f for f in found if f["kind"] == "cause"], found


def case_whole(work):
    """Nothing is found where nothing is wrong, whatever the layout and the names."""
    for kind in FORMATS:
        work.made("good", kind)
        work.made("again", kind)
        work.run("diff", "good", "again")
        for reference in "again", "model.json":
            found = json.loads(work.run("verify", "good", "--against", reference, "--json").stdout)["findings"]
            assert not [f for f in found if f["severity"] == "failure"], f"{kind}, {reference}: {found}"
    for source in "legacy", "dist":
        work.run("verify", work.sources[source], "--against", "model.json")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    args = parser.parse_args()
    binary = str(pathlib.Path(args.bin).resolve())
    cases = [(name[5:], function) for name, function in globals().items() if name.startswith("case_")]
    print(f"1..{len(cases)}")
    failed = 0
    for number, (name, function) in enumerate(cases, 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                function(Work(binary, pathlib.Path(folder), args.fixtures.resolve()))
                print(f"ok {number} - {name}")
            except AssertionError as problem:
                failed += 1
                print(f"not ok {number} - {name}\n# {str(problem)[:800]}")
    raise SystemExit(failed != 0)


if __name__ == "__main__":
    main()
