#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""salvage: what it writes is what was there, whatever was cut off, flipped or lost. Prints TAP, a test a case.

usage: salvage_test.py --bin PATH --fixtures DIR [--damages N] [--seed N] [--case NAME]

Damages are made one at a time. What salvage lists as proved must have the digest it had; what has another one must be listed as unproved,
be lost, or come from files whose names no checksum covers. It never crashes, and a run that fails writes nothing.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import tempfile
import zipfile

import small_models
import zip_crcs

NAMES = "unproved-names"
NAMELESS = "what it would name is lost"
# Name, fixture, files whose bytes say which tensor is which.
CASES = [
    ("DCP of FSDP2", "torch-dcp/dcp-fsdp2-4", [".metadata"]),
    ("DCP, compressed", "torch-dcp/dcp-zstd", [".metadata"]),
    ("safetensors", "safetensors/safetensors-hf-sharded", ["*"]),
    ("a torch file", "torch-file/torch-file-training", []),
    ("files of ranks", "torch-file/torch-file-fsdp2-ranks", []),
]


def run(*command):
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, errors="replace", timeout=60)
    return done.returncode, done.stdout, done.stderr


class Test:
    def __init__(self, args, work):
        self.bin, self.work, self.args = args.bin, work, args

    def hashes(self, path):
        code, out, err = run(self.bin, "hash", "--json", path)
        assert code == 0, f"hash of {path}: exit {code}: {err}"
        return {t["key"]: (t["hash"], t["dtype"], t["shape"]) for t in json.loads(out)["tensors"]}

    def salvage(self, source, *options):
        """(exit status, report or None, what was written); checks what holds for every run."""
        target = self.work / "rescued"
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()
        code, out, err = run(self.bin, "salvage", source, target, "--json", "--no-sync", *options)
        assert code in (0, 1, 3, 4, 5, 6), f"exit {code}: {err[-300:]}"
        assert (code <= 1) == target.exists(), f"exit {code}, and the target is {'there' if target.exists() else 'missing'}: {err}"
        return code, json.loads(out) if code <= 1 else None, self.hashes(target) if code <= 1 and json.loads(out)["tensors"] else {}

    def check(self, before, report, after, may_rename):
        unproved = {f["key"] for f in report["findings"] if f["kind"] == "unproved"}
        lost = {f["key"] for f in report["findings"] if f["kind"] == "lost"}
        is_lost = report["lost"] + report["lost_items"] > 0
        is_told = "damage" in {f["kind"] for f in report["findings"]}  # what was lost there has no name
        assert not report["ok"] if is_lost else report["ok"] or is_told, report
        for key, found in after.items():
            if key in unproved or may_rename:
                continue
            assert before.get(key) == found, f"{key} is called proved, and is {found} instead of {before.get(key)}"
        if any(NAMELESS in f["reason"] for f in report["findings"]):  # names stood in what is gone
            return
        missing = set(before) - set(after) - lost
        assert not missing or may_rename, f"neither written nor listed as lost: {sorted(missing)[:3]}"


def damages(folder, count, rng):
    """(file, what was done) for each damage, made and undone."""
    files = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    for i in range(count):
        path = rng.choice(files)
        good = path.read_bytes()
        at = rng.randrange(len(good))
        if i % 3 == 0:
            path.write_bytes(good[:at])
        elif i % 3 == 1:
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1:])
        else:
            path.write_bytes(good[:at] + bytes(min(64, len(good) - at)) + good[at + 64:])
        yield path, f"{['cut off', 'flipped', 'zeroed'][i % 3]} at {at}"
        path.write_bytes(good)


def copy_of(test, fixture):
    manifest = json.loads((pathlib.Path(test.args.fixtures) / fixture / "manifest.json").read_text())
    source = pathlib.Path(test.args.fixtures) / fixture / manifest["path"]
    target = test.work / ("damaged" + "".join(source.suffixes[-1:]))
    if target.is_dir():
        shutil.rmtree(target)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755)
    return target


def damaged(test, fixture, names):
    source = copy_of(test, fixture)
    before = test.hashes(source)
    options = ["--to", "torch-dcp"] if "ranks" in fixture else []
    code, report, after = test.salvage(source, *options)
    assert code == 0 and after == before, f"of a good checkpoint: exit {code}, {report}"
    rng = random.Random(test.args.seed)
    for path, what in damages(source, test.args.damages, rng):
        code, report, after = test.salvage(source, *options)
        if report is None:
            continue
        may_rename = any(path.match(n) for n in names)
        assert not may_rename or NAMES in {f["kind"] for f in report["findings"]}, f"{path.name} {what}: names are not called unproved"
        try:
            test.check(before, report, after, may_rename)
        except AssertionError as failure:
            raise AssertionError(f"{path.name} {what}: {failure}") from failure


def without_metadata(test):
    """The files that say where things lie are gone: a sibling's stand in, and nothing is proved then."""
    source = copy_of(test, "torch-dcp/dcp-fsdp2-4")
    before, sibling = test.hashes(source), test.work / "sibling"
    shutil.rmtree(sibling, ignore_errors=True)
    shutil.copytree(source, sibling)
    for path in sibling.glob("*.distcp"):  # a sibling's values count for nothing
        path.write_bytes(bytes(path.stat().st_size))
    (source / ".metadata").unlink()
    code, report, after = test.salvage(source)
    assert code == 5, f"without metadata: exit {code}"
    code, out, err = run(test.bin, "salvage", source, test.work / "rescued")
    assert "--like" in err and "neither names nor places" in err, err
    code, report, after = test.salvage(source, "--like", sibling)
    assert code == 0 and after == before, f"exit {code}: {report}"
    assert report["proved"] == 0 and report["unproved"] == len(before), report
    assert "sibling" in {f["kind"] for f in report["findings"]}
    megatron = copy_of(test, "megatron/megatron-dense-dist-tp2") / "iter_0000010"
    shutil.rmtree(sibling)
    shutil.copytree(megatron, sibling)
    values = test.hashes(megatron)
    for name in (".metadata", "metadata.json"):  # one of them, then both
        (megatron / name).unlink()
        assert test.salvage(megatron)[0] == 5
        code, report, after = test.salvage(megatron, "--like", sibling)
        assert code == 0 and after == values and report["proved"] == 0, f"torch_dist: exit {code}: {report}"
    source = copy_of(test, "torch-dcp/dcp-fsdp2-4")
    (source / ".metadata").unlink()
    shutil.rmtree(sibling)
    shutil.copytree(pathlib.Path(test.args.fixtures) / "torch-dcp/dcp-fsdp2-4/ckpt", sibling)
    (source / "__1_0.distcp").unlink()
    code, report, after = test.salvage(source, "--like", sibling)
    assert code == 1 and 0 < len(after) < len(before), f"exit {code}: {report}"
    assert all(before[k] == v for k, v in after.items())
    assert all("missing" in f["reason"] for f in report["findings"] if f["kind"] == "lost"), report


def with_digests_and_without_a_file(test):
    """A file that reshard.json has digests of is gone: what is left is proved by them, of tensors and of items."""
    source = test.work / "digested"
    shutil.rmtree(source, ignore_errors=True)
    small = pathlib.Path(test.args.fixtures) / "torch-dcp/dcp-small/ckpt"
    code, _, err = run(test.bin, "convert", small, source, "--to", "torch-dcp", "--max-shard-size", "64", "--checksum", "sha256", "--quiet")
    assert code == 0, err
    before, files = test.hashes(source), sorted(source.glob("*.distcp"))
    assert len(files) > 2
    for gone in files:
        good = gone.read_bytes()
        gone.unlink()
        code, report, after = test.salvage(source)
        gone.write_bytes(good)
        lost = {f["key"] for f in report["findings"] if f["kind"] == "lost"}
        reasons = {f["reason"] for f in report["findings"] if f["kind"].startswith("lost")}
        assert code == 1 and lost == set(before) - set(after) and all(before[k] == v for k, v in after.items()), report
        assert report["proved"] == len(after) and reasons and all(gone.name in reason for reason in reasons), report


def state_by_bucket(test):
    """Optimizer state that is stored by bucket, in objects or flattened is told and written by parameter: the rest of a bucket is left."""
    for name in ("dense-dpr-dp2", "old-gather-v0.12.3-dp2", "old-modelspace-v0.14.0-dp2"):
        source, converted = copy_of(test, f"megatron/megatron-optim-{name}"), test.work / "converted"

        def convert():
            shutil.rmtree(converted, ignore_errors=True)
            code = run(test.bin, "convert", source, converted, "--to", "torch_dist", "--rules", "none", "--no-sync")[0]
            return test.hashes(converted) if code == 0 else None

        before, checked = convert(), 0
        code, report, after = test.salvage(source)
        assert code == 0 and after == before and report["proved"] == len(before), f"{name}: of a good checkpoint: exit {code}, {report}"
        for path, at in bytes_of_states(test, source):
            good = path.read_bytes()
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
            converts, (code, report, after) = convert(), test.salvage(source)
            path.write_bytes(good)
            if converts is None:
                continue
            changed = {k for k, v in converts.items() if v != before[k]}
            lost = {f["key"] for f in report["findings"] if f["kind"] == "lost"}
            checked += len(changed)
            assert changed <= lost == set(before) - set(after) and all(before[k] == v for k, v in after.items()), \
                f"{name}: {path.name} at {at}: {changed} have the byte, {lost} are lost"
            kinds = [{k.split(".")[2] for k in keys} for keys in (lost, changed)]
            assert "gather" in name or kinds[0] == kinds[1], f"{name}: {path.name} at {at}: {lost} instead of {changed}"
        assert checked > 2, f"{name}: {checked}"


def bytes_of_states(test, source):
    """(file, offset) in the middle of pieces of optimizer state, or of the objects that hold it: four a file at most."""
    code, out, err = run(test.bin, "ls", "--chunks", "--json", source)
    assert code == 0, err
    found = {}
    for tensor in json.loads(out)["tensors"]:
        for chunk in tensor["chunks"]:
            if tensor["key"].startswith("optimizer.") and chunk["bytes"] > 2000:
                found.setdefault(chunk["file"], []).append(chunk["offset"] + 1100)
    if found:
        return [(source / name, at) for name, places in sorted(found.items()) for at in sorted(places)[:4]]
    return [(path, at) for path in sorted(source.rglob("*.distcp"))
            for at in range(path.stat().st_size // 8, path.stat().st_size, path.stat().st_size // 4)]


def views_without_checksums(test):
    """What no checksum covers where it is stored is unproved in the view that is written, and nothing else is."""
    source = copy_of(test, "megatron/megatron-moe-gmm-legacy-ep2")
    paths = sorted(source.rglob("model_optim_rng.pt"))
    zip_crcs.without(paths[0])
    before = test.hashes(source)
    experts = {k for k in before if ".experts." in k}
    found = {t["key"]: {c["file"] for c in t["chunks"] if not c["replica"]}
             for t in json.loads(run(test.bin, "ls", "--chunks", "--json", source)[1])["tensors"]}
    first = {k for k, files in found.items() if str(paths[0].relative_to(source)) in files}
    code, report, after = test.salvage(source, "--to", "torch_dist")
    unproved = {f["key"] for f in report["findings"] if f["kind"] == "unproved"}
    assert code == 0 and experts & first and set(after) - set(before), report
    assert first - experts <= unproved and unproved - set(before) and unproved < set(after), report
    proved = set(after) - unproved
    numbers = {k.split(".experts.")[1].split(".")[1] for k in proved if ".experts." in k}
    assert report["proved"] == len(proved) and numbers == {"2", "3"}, proved


def digests_by_bucket(test):
    """reshard.json has digests of what is stored: of a bucket that goes against its own, every state in it is lost."""
    source, like = test.work / "buckets", pathlib.Path(test.args.fixtures) / "megatron/megatron-optim-dense-dpr-dp2/ckpt"
    shutil.rmtree(source, ignore_errors=True)
    code, _, err = run(test.bin, "convert", like, source, "--to", "torch_dist", "--like", like, "--checksum", "sha256", "--quiet")
    assert code == 0, err
    _, _, before = test.salvage(source)
    sidecar = next(source.rglob("reshard.json"))
    known = json.loads(sidecar.read_text())
    bucket = next(key for key in known["tensors"] if key.endswith("bucket_idx_0.exp_avg"))
    known["tensors"][bucket] = known["tensors"][bucket][::-1]
    sidecar.write_text(json.dumps(known))
    code, report, after = test.salvage(source)
    lost = {f["key"] for f in report["findings"] if f["kind"] == "lost"}
    assert code == 1 and lost == {k for k in before if k.startswith("optimizer.state.exp_avg.")}, report
    assert all(before[k] == v for k, v in after.items()) and set(after) == set(before) - lost, report


def what_nobody_reads(test):
    """Arrays of types that are not supported are left out, and listed as lost."""
    code, report, after = test.salvage(copy_of(test, "zarr/zarr2-rare"))
    assert code == 1 and set(after) == {"plain"} and report["lost"] == 5, f"exit {code}: {report}"
    assert {f["key"] for f in report["findings"] if f["kind"] == "lost"} == {"M8", "S5", "U4", "V3", "record"}, report


def shards_that_cannot_be_read(test):
    """A shard of zarr without its index costs its array; what is not stored beside it is not made up."""
    source = copy_of(test, "zarr/zarr3-sharding")
    _, _, before = test.salvage(source)
    shards = [p for p in sorted(source.glob("*/c/**/*")) if p.is_file()]
    for path in shards[::7]:
        good, name = path.read_bytes(), path.relative_to(source).parts[0]
        path.write_bytes(good[:len(good) // 2])
        code, report, after = test.salvage(source)
        path.write_bytes(good)
        lost = {f["key"] for f in report["findings"] if f["kind"] == "lost"}
        assert code == 1 and lost == {name} and after == {k: v for k, v in before.items() if k != name}, f"{path}: {report}"
    assert len(shards[::7]) > 5


def of_what_is_asked_for(test):
    """Globs choose: nothing else is written, counted or told of."""
    source = copy_of(test, "torch-dcp/dcp-fsdp2-4")
    before = test.hashes(source)
    (source / "__1_0.distcp").unlink()
    _, whole, _ = test.salvage(source)
    code, report, after = test.salvage(source, "--include", "model.*", "--exclude", "*.{bias,counts}")
    wanted = {k for k in before if k.startswith("model.") and not k.endswith((".bias", ".counts"))}
    told = {f["key"] for f in report["findings"] if f["key"]}
    lost = {f["key"] for f in whole["findings"] if f["kind"] == "lost"} & wanted
    assert code == 1 and told <= wanted and set(after) == wanted - lost, report
    assert report["tensors"] == len(wanted) and report["lost"] == len(lost) and report["items"] == 0, report
    unhurt = min(set(before) - {f["key"] for f in whole["findings"] if f["kind"] == "lost"})
    code, report, after = test.salvage(source, "--include", unhurt)
    assert code == 0 and set(after) == {unhurt} and after[unhurt] == before[unhurt] and report["ok"], report
    code, _, err = run(test.bin, "salvage", source, test.work / "never", "--include", "nothing.*")
    assert code == 2 and "matches no key" in err and not (test.work / "never").exists(), err


def without_a_rank(test):
    """Of files of ranks one is gone: what all ranks have is left, and what that rank alone had is not made up."""
    for fixture, name in (("verl/verl-fsdp2", "model_world_size_4_rank_2.pt"),
                          ("accelerate/accelerate-ranks", "pytorch_model_fsdp_0_rank1.bin")):
        source = copy_of(test, fixture)
        before = test.hashes(source)
        path = next(source.rglob(name))
        path.write_bytes(b"PK\3\4 no archive")
        for _ in range(2):
            code, report, after = test.salvage(source)
            lost = {f["key"] for f in report["findings"] if f["kind"] == "lost"}
            assert code == 1 and {"running", "count"} <= set(after) and "embed.weight" in lost, f"exit {code}: {report}"
            assert all(before[k] == v for k, v in after.items()) and lost == set(before) - set(after), report
            path.unlink(missing_ok=True)


def with_a_good_copy(test):
    """What several ranks hold is lost only where all of them have lost it."""
    source = copy_of(test, "verl/verl-fsdp2")
    before = test.hashes(source)
    tensors = json.loads(run(test.bin, "ls", "--chunks", "--json", source)[1])["tensors"]
    copies = next(t for t in tensors if t["key"] == "running")["chunks"]
    assert len(copies) == 4
    for number, chunk in enumerate(copies, 1):
        path = source / chunk["file"]
        good = path.read_bytes()
        path.write_bytes(good[:chunk["offset"]] + bytes([good[chunk["offset"]] ^ 1]) + good[chunk["offset"] + 1:])
        code, report, after = test.salvage(source)
        kinds = {f["key"]: f["kind"] for f in report["findings"] if f["key"] == "running"}
        if number < 4:
            assert code == 0 and after == before and kinds == {"running": "replaced"}, f"{number} bad copies: exit {code}, {kinds}"
        else:
            assert code == 1 and set(before) - set(after) == {"running"} and kinds == {"running": "lost"}, f"exit {code}, {kinds}"


def without_state_of_the_first_rank(test):
    """Rank 0's random state is damaged: the other ranks' is written where it was, in their files of extra state."""
    for fixture in ("verl/verl-fsdp1-shardedtensor", "verl/verl-fsdp2"):
        source = copy_of(test, fixture)
        before = test.hashes(source)
        path = next(source.rglob("extra_state*rank_0.pt"))
        with zipfile.ZipFile(path) as archive:
            record = max((i for i in archive.infolist() if "/data/" in i.filename), key=lambda i: i.file_size)
            payload = archive.read(record)
        data = bytearray(path.read_bytes())
        data[data.index(payload) + 5] ^= 1
        path.write_bytes(data)
        code, report, after = test.salvage(source)
        lost = [f["key"] for f in report["findings"] if f["kind"] == "lost-item"]
        assert code == 1 and lost == ["extra_state.rng"] and after == before, f"{fixture}: exit {code}: {lost}"
        for other in sorted(source.rglob("extra_state*rank_[1-9].pt")):
            written = test.work / "rescued" / other.name
            assert run(test.bin, "diff", other, written)[0] == 0, f"{fixture}: {other.name}: {run(test.bin, 'diff', other, written)[1]}"


def torch_file_without_its_end(test):
    source = copy_of(test, "torch-file/torch-file-training")
    before, good = test.hashes(source), source.read_bytes()
    kept = []
    for share in (40, 60, 80, 95):
        source.write_bytes(good[:len(good) * share // 100])
        code, report, after = test.salvage(source)
        assert report is not None, f"{share} %: exit {code}"
        test.check(before, report, after, False)
        assert all(before[k] == v for k, v in after.items()), f"{share} %: bytes that were never there"
        kept.append(report["proved"])
    assert kept == sorted(kept) and kept[0] < kept[-1] and kept[-1] > len(before) // 2, kept


def with_a_gap(test):
    """Metadata that lacks a piece of a tensor: what is there of it is not the tensor."""
    source = copy_of(test, "torch-dcp/bad-dcp-gap")
    code, report, after = test.salvage(source)
    lost = [f["key"] for f in report["findings"] if f["kind"] == "lost"]
    assert code == 1 and lost == ["aa.weight"] and "aa.weight" not in after and after, f"exit {code}: {report}"


def metadata_in_a_folder_below(test):
    """Names and places that stand in a folder below the path are the checkpoint's own: its checksums prove them."""
    source = copy_of(test, "accelerate/accelerate-dcp")
    before = test.hashes(source)
    code, report, after = test.salvage(source)
    assert code == 0 and after == before and report["proved"] == len(before) and report["unproved"] == 0, report


def with_digests_and_without_metadata(test):
    """What digests say of values says nothing of shapes and places that were made of data files alone."""
    whole, source = test.work / "whole.safetensors", test.work / "flex"
    small_models.write(whole, {"w": [2, 4]})
    code, _, err = run(test.bin, "convert", whole, source, "--to", "paddle-flex", "--checksum", "crc32c", "--no-sync")
    assert code == 0, err
    code, report, _ = test.salvage(source)
    assert code == 0 and report["proved"] == 1, report
    next(source.glob("*.metadata")).unlink()
    code, report, after = test.salvage(source)
    reasons = [f["reason"] for f in report["findings"] if f["kind"] == "unproved"]
    assert code == 0 and set(after) == {"w"} and report["proved"] == 0 and "the only file that has it" in reasons[0], report


def more_holes_than_warnings(test):
    """Tensors whose hole no warning tells any more, as there were a thousand, are lost as the others are."""
    whole, source = test.work / "whole.safetensors", test.work / "of-two-ranks"
    small_models.write(whole, {f"t{i:04}": [2, 4] for i in range(1101)})
    code, _, err = run(test.bin, "convert", whole, source, "--to", "fsdp-ranks", "--layout", "ranks=2", "--no-sync")
    assert code == 0, err
    (source / "model_world_size_2_rank_1.pt").unlink()
    code, _, err = run(test.bin, "salvage", source, test.work / "never")
    assert code == 4 and "no tensor can be recovered" in err and not (test.work / "never").exists(), f"exit {code}: {err}"
    code, out, _ = run(test.bin, "verify", source)
    assert code == 1 and "failure\tdamage\t\t101 more damages\n" in out, out[-500:]


def every_byte(test):
    """A byte of each stored value: exactly that tensor is lost."""
    source = copy_of(test, "torch-dcp/dcp-fsdp2-4")
    code, out, err = run(test.bin, "ls", "--json", "--chunks", source)
    tensors = json.loads(out)["tensors"]
    for tensor in tensors[::4]:
        chunk = next((c for c in tensor["chunks"] if c.get("bytes", c.get("length", 0))), None)
        if not chunk:
            continue
        path = source / pathlib.Path(chunk["file"]).name
        good = path.read_bytes()
        at = chunk["offset"]
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        code, report, after = test.salvage(source)
        path.write_bytes(good)
        lost = [f["key"] for f in report["findings"] if f["kind"] == "lost"]
        assert code == 1 and lost == [tensor["key"]], f"{tensor['key']}: exit {code}, lost {lost}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--damages", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", default="")
    args = parser.parse_args()
    tests = [(name, lambda test, f=fixture, n=names: damaged(test, f, n)) for name, fixture, names in CASES]
    tests += [("without metadata", without_metadata), ("with a gap", with_a_gap), ("more holes than warnings", more_holes_than_warnings),
              ("metadata in a folder below", metadata_in_a_folder_below),
              ("digests, and no metadata", with_digests_and_without_metadata),
              ("without a rank", without_a_rank),
              ("with digests, without a file", with_digests_and_without_a_file), ("state by bucket", state_by_bucket),
              ("digests by bucket", digests_by_bucket), ("views without checksums", views_without_checksums),
              ("what nobody reads", what_nobody_reads),
              ("shards that cannot be read", shards_that_cannot_be_read), ("what is asked for", of_what_is_asked_for),
              ("with a good copy", with_a_good_copy), ("state of the first rank", without_state_of_the_first_rank),
              ("a torch file without its end", torch_file_without_its_end), ("a byte of each value", every_byte)]
    tests = [t for t in tests if args.case in t[0]]
    print(f"1..{len(tests)}")
    failed = 0
    for number, (name, body) in enumerate(tests, 1):
        with tempfile.TemporaryDirectory() as work:
            try:
                body(Test(args, pathlib.Path(work)))
                print(f"ok {number} - {name}")
            except Exception as failure:
                failed += 1
                print(f"not ok {number} - {name}\n# {type(failure).__name__}: {str(failure)[:600]}")
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
