#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sidecar of digests that `convert --checksum` writes: verify reads it again, whatever the format. Digests are counted here by Python.
Prints TAP.

usage: sidecar_test.py --bin PATH --fixtures DIR
"""
import functools
import hashlib
import json
import struct

import small_models

CONFIG = {"model_type": "none", "hidden_size": 4}
TENSORS = {"a.weight": [8, 8], "b.weight": [8, 8], "c.weight": [16, 4]}

# How each writable format is asked for, and what its folder or file is called.
WRITTEN = {
    "safetensors": ["--to", "safetensors"], "hf": ["--to", "hf"], "torch": ["--to", "torch"], "torch-dcp": ["--to", "torch-dcp"],
    "torch_dist": ["--to", "torch_dist"], "torch_dcp": ["--to", "torch_dcp"], "fsdp_dtensor": ["--to", "fsdp_dtensor"],
    "zarr": ["--to", "zarr"], "zarr-3": ["--to", "zarr", "-o", "zarr-format=3"],
    "zarr-megatron": ["--to", "zarr", "-o", "flavour=megatron"], "megatron": ["--to", "megatron", "--layout", "tp=2"],
}


def failures(shell, path, *options):
    found = json.loads(shell.any("verify", "--json", path, *options).stdout)
    return {(f["kind"], f["key"]) for f in found["findings"] if f["severity"] == "failure"}


class Work(small_models.Shell):
    """The command in a folder with a model of three tensors, as a file and as a folder with a configuration beside it."""

    def __init__(self, shell, fixtures):
        super().__init__(shell.binary, shell.work)
        self.fixtures = fixtures
        small_models.write(self.work / "model.safetensors", TENSORS)
        (self.work / "source").mkdir()
        (self.work / "model.safetensors").rename(self.work / "source" / "model.safetensors")
        (self.work / "source" / "config.json").write_text(json.dumps(CONFIG))

    def write(self, name, *options, target=None):
        source = self.fixtures / "megatron" / "megatron-dense-legacy-tp1" / "ckpt" if name == "megatron" else "source"
        self("convert", source, target or name, *WRITTEN[name], "--quiet", *options)
        return target or name

    def sidecar(self, target):
        beside = self.work / f"{target}.reshard.json"
        found = [beside] if beside.exists() else list((self.work / target).rglob("reshard.json"))
        assert len(found) == 1, found
        return found[0]

    def edit(self, target, change):
        path = self.sidecar(target)
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))
        return value


def wrong_digests(work, name):
    """Every digest of a tensor and of an item is looked at, and each wrong one is told by name."""
    target = work.write(name, "--checksum", "sha256")
    assert failures(work, target) == set(), failures(work, target)
    listed = {t["key"]: t for t in json.loads(work("ls", "--json", "--items", target))["tensors"]}
    sidecar = json.loads(work.sidecar(target).read_text())
    assert sidecar["schema"] == "reshard-sidecar/2" and set(sidecar["tensors"]) == set(sidecar["types"]) == set(listed), sidecar
    for key, tensor in listed.items():
        assert sidecar["types"][key] == f"{tensor['dtype']} [{','.join(map(str, tensor['shape']))}]", sidecar["types"][key]
    some = sorted(listed)[1]
    assert sidecar["tensors"][some] == hashlib.sha256(work.bytes_of(target, some)).hexdigest(), some
    for key in sorted(sidecar["tensors"])[:4]:
        good = work.sidecar(target).read_text()
        work.edit(target, lambda value: value["tensors"].update({key: "0" * 64}))
        assert failures(work, target) == {("checksum", key)}, (key, failures(work, target))
        work.sidecar(target).write_text(good)
    for key in sorted(sidecar["items"])[:4]:
        good = work.sidecar(target).read_text()
        work.edit(target, lambda value: value["items"].update({key: value["items"][key][:-1] + "x"}))
        assert failures(work, target) == {("checksum", key)}, (key, failures(work, target))
        work.sidecar(target).write_text(good)


def every_format(work):
    """Whatever format is written: a sidecar's names are those that a plain verify sees."""
    writable = [f["name"] for f in json.loads(work("formats", "--json"))["formats"] if f["writes"]]
    for name in writable:
        source = work.fixtures / "megatron/megatron-dense-legacy-tp1/ckpt" if name == "megatron" else "source"
        also = {"atorch": ["--layout", "ranks=2"], "fsdp-ranks": ["--layout", "ranks=2"], "megatron": []}.get(name, ["--dtype", "f32"])
        for options in ([], ["--verify"]):
            work("convert", source, f"every-{name}", "--to", name, "--checksum", "sha256", "--overwrite", "--quiet", *also, *options)
            assert failures(work, f"every-{name}") == set(), (name, options, failures(work, f"every-{name}"))
    assert {"paddle-uc", "hf", "npy"} <= set(writable), writable


def lists(work):
    """Types, names that are missing and names that are not listed; items as well; the configuration's own digest."""
    target = work.write("hf", "--checksum", "sha256")
    sidecar = json.loads(work.sidecar(target).read_text())
    digest = hashlib.sha256((work.work / target / "config.json").read_bytes()).hexdigest()
    assert sidecar["items"] == {"config.json": f"bytes:{digest}"}, sidecar["items"]
    good = work.sidecar(target).read_text()
    for change, expected in (
            (lambda v: v["types"].update({"a.weight": "F16 [8,8]"}), {("dtype", "a.weight")}),
            (lambda v: v["types"].update({"a.weight": "BF32 [8,8]"}), {("dtype", "a.weight")}),
            (lambda v: v["types"].update({"a.weight": "BF16X [8,8]"}), {("dtype", "a.weight")}),
            (lambda v: v["types"].update({"a.weight": "BF16"}), {("dtype", "a.weight")}),
            (lambda v: v["types"].update({"a.weight": "BF16 [64]"}), {("shape", "a.weight")}),
            (lambda v: (v["types"].pop("a.weight"), v["tensors"].pop("a.weight")), {("unexpected", "a.weight")}),
            (lambda v: v["tensors"].update({"d.weight": "0"}), {("missing", "d.weight")}),
            (lambda v: v["items"].update({"d.json": "bytes:0"}), {("missing", "d.json")})):
        work.edit(target, change)
        assert failures(work, target) == expected, (expected, failures(work, target))
        work.sidecar(target).write_text(good)
    (work.work / target / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 5}))
    assert failures(work, target) == {("checksum", "config.json")}
    (work.work / target / "config.json").unlink()
    assert failures(work, target) == {("missing", "config.json")}
    (work.work / target / "config.json").write_text(json.dumps(CONFIG))
    (work.work / target / "generation_config.json").write_text("{}")
    found = json.loads(work("verify", "--json", target))
    assert [(f["severity"], f["kind"], f["key"])
            for f in found["findings"] if f["severity"] != "note"] == [("warning", "unexpected", "generation_config.json")], found


def values_are_covered(work):
    """What the file's own format has no checksum for: a flipped value, a file that went away, an item of a torch file."""
    target = work.write("hf", "--checksum", "crc32c", "--max-shard-size", "130")
    shards = sorted((work.work / target).glob("*.safetensors"))
    assert len(shards) == 3, shards
    data = bytearray(shards[0].read_bytes())
    data[-3] ^= 4
    shards[0].write_bytes(data)
    assert failures(work, target) == {("checksum", "a.weight")}
    data[-3] ^= 4
    shards[0].write_bytes(data)
    (work.work / target / "model.safetensors.index.json").unlink()
    for shard, number in zip(shards, (1, 2, 3)):
        shard.rename(shard.with_name(f"part{number}.safetensors"))
    assert failures(work, target) == set()
    (work.work / target / "part3.safetensors").unlink()
    assert failures(work, target) == {("missing", "c.weight")}, failures(work, target)


def paths_to_it(work):
    """The index, the metadata file and the folder of the iteration name the same checkpoint as the folder."""
    for name, inside in (("hf", "model.safetensors.index.json"), ("torch-dcp", ".metadata"), ("torch_dist", "release"),
                         ("zarr-megatron", "release")):
        target = work.write(name, "--checksum", "crc32c", *(["--max-shard-size", "130"] if name == "hf" else []))
        work.edit(target, lambda value: value["tensors"].update({"b.weight": "00000000"}))
        for path in (target, f"{target}/{inside}"):
            assert failures(work, path) == {("checksum", "b.weight")}, (path, failures(work, path))
    one = work.write("safetensors", "--checksum", "crc32c", target="hf/other.safetensors")
    assert failures(work, one) == set(), "a file has its own"


def old_ones(work):
    """Version 1 has digests of tensors alone, in the root; it counts while the root has one iteration only."""
    target = work.write("torch_dist", "--checksum", "crc32c")
    value = json.loads(work.sidecar(target).read_text())
    work.sidecar(target).unlink()
    old = {"schema": "reshard-sidecar/1", "digest": value["digest"], "tensors": value["tensors"]}
    root = work.work / target / "reshard.json"
    root.write_text(json.dumps(old))
    assert failures(work, target) == set()
    root.write_text(json.dumps(old | {"tensors": old["tensors"] | {"a.weight": "00000000"}}))
    assert failures(work, target) == {("checksum", "a.weight")}
    (work.work / target / "iter_0000007").mkdir()
    assert failures(work, target) == set()
    for schema, status in (("reshard-sidecar/3", 5), (None, 4)):
        root.write_text(json.dumps(old | {"schema": schema} if schema else {"tensors": {}}))
        (work.work / target / "iter_0000007").rmdir() if schema else None
        done = work.any("verify", target)
        assert done.returncode == status and "reshard.json" in done.stderr, (done.returncode, done.stderr)


def stale_ones(work):
    """A run that replaces the target and writes no digests takes the old ones away; what is no sidecar is left alone."""
    beside = work.work / "one.reshard.json"
    for name in ("safetensors", "torch"):
        work.write(name, "--checksum", "crc32c", "--overwrite", target="one")
        assert beside.exists()
        work("convert", "source", "one", *WRITTEN[name], "--exclude", "b.*", "--overwrite", "--quiet")
        assert not beside.exists() and failures(work, "one") == set()
    work.write("safetensors", "--checksum", "crc32c", "--overwrite", target="one")
    work.write("hf", "--overwrite", target="one")
    assert not beside.exists() and not list((work.work / "one").rglob("reshard.json"))
    work.write("hf", "--checksum", "crc32c", "--overwrite", target="one")
    work("convert", "source", "one", "--to", "hf", "--exclude", "b.*", "--overwrite", "--quiet")
    assert not list((work.work / "one").rglob("reshard.json")) and failures(work, "one") == set()
    # Without a target there is nothing that digests could belong to, and --overwrite has to be said.
    work.write("safetensors", "--checksum", "crc32c", target="two")
    (work.work / "two").unlink()
    for options in ([], ["--checksum", "crc32c"]):
        done = work.any("convert", "source", "two", "--to", "safetensors", *options)
        assert done.returncode == 3 and "two.reshard.json" in done.stderr and "--overwrite" in done.stderr, done.stderr
    work.write("safetensors", "--overwrite", target="two")
    assert not (work.work / "two.reshard.json").exists()


def without_files(work):
    """Files are gone that digests cover: each loss is told, the rest compared, and nothing that is lost is proved."""
    work.write("torch-dcp", "--checksum", "sha256", "--max-shard-size", "64")
    files, lost = sorted((work.work / "torch-dcp").glob("*.distcp")), set()
    assert len(files) >= len(TENSORS)
    for gone in files:
        good = gone.read_bytes()
        gone.unlink()
        done = work.any("verify", "--json", "torch-dcp")
        found = json.loads(done.stdout)
        torn = {key for key in TENSORS if any(f"tensor '{key}'" in f["text"] for f in found["findings"])}
        gone.write_bytes(good)
        assert done.returncode == 1 and not [f for f in found["findings"] if f["kind"] == "checksum"], found
        assert found["proved"]["checksum_tensors"] == len(TENSORS) - len(torn), found
        lost |= torn
    assert lost == set(TENSORS) and failures(work, "torch-dcp") == set()


def in_the_way(work):
    """A folder or a file of that name that holds something else stops the run before it writes."""
    for make in (lambda p: (p.mkdir(), (p / "precious").write_text("x")), lambda p: p.write_text('{"precious": 1}'),
                 lambda p: p.symlink_to("source/config.json")):
        path = work.work / "three.reshard.json"
        make(path)
        for options in ([], ["--overwrite"], ["--overwrite", "--checksum", "crc32c"]):
            done = work.any("convert", "source", "three", "--to", "safetensors", *options)
            assert done.returncode == 2 and "three.reshard.json" in done.stderr, (options, done.returncode, done.stderr)
            assert not (work.work / "three").exists() and path.exists(), options
        if path.is_dir():
            (path / "precious").unlink()
            path.rmdir()
        else:
            path.unlink()


def odd_names(work):
    """Keys that JSON cannot hold as they are: lone surrogates."""
    source = work.fixtures / "torch-file" / "torch-file-unicode-keys"
    path = source / json.loads((source / "manifest.json").read_text())["path"]
    work("convert", path, "odd", "--to", "torch", "--checksum", "sha256", "--quiet")
    value = json.loads((work.work / "odd.reshard.json").read_text())
    assert len(value["tensors"]) + len(value["items"]) == sum(len(v) for k, v in json.loads(work("ls", "--json", "--items", "odd")).items()
                                                              if k in ("tensors", "items"))
    assert failures(work, "odd") == set()


def ambiguous_names(work):
    """Two tensors of one key are told apart by their paths."""
    source = work.fixtures / "torch-file" / "torch-file-ambiguous-keys"
    path = source / json.loads((source / "manifest.json").read_text())["path"]
    work("convert", path, "twice", "--to", "torch", "--checksum", "sha256", "--quiet")
    value = json.loads((work.work / "twice.reshard.json").read_text())
    paths = [key for key in value["tensors"] if key.startswith("[")]
    tensors = json.loads(work("ls", "--json", "twice"))["tensors"]
    assert len(value["tensors"]) == len(tensors) and len(paths) > 1, (paths, len(tensors))
    assert failures(work, "twice") == set()
    work.edit("twice", lambda value: value["tensors"].update({paths[0]: "0" * 64}))
    assert failures(work, "twice") == {("checksum", paths[0])}, failures(work, "twice")


def main():
    args = small_models.arguments()
    tests = [(f"{name}: wrong digests are found", functools.partial(wrong_digests, name=name)) for name in WRITTEN]
    tests += [(test.__doc__.splitlines()[0], test) for test in
              (every_format, lists, values_are_covered, paths_to_it, old_ones, stale_ones, without_files, in_the_way, odd_names,
               ambiguous_names)]
    over = [(name, lambda shell, test=test: test(Work(shell, args.fixtures))) for name, test in tests]
    raise SystemExit(small_models.run(args.bin, over))


main()
