#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What verify says of damage that hides, and of what no checksum covers. Prints TAP.

usage: verify_test.py --bin PATH --fixtures DIR --spy LIBRARY
"""
import argparse
import io
import json
import math
import pathlib
import re
import shutil
import struct
import sys
import zipfile
import zlib

import small_models
import zip_crcs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

TENSORS = {"a.weight": [8, 8], "b.weight": [8, 8], "c.weight": [16, 4]}


def fixture(fixtures, name):
    return fixtures / name / json.loads((fixtures / name / "manifest.json").read_text())["path"]


def verified(shell, path, *options):
    done = shell.any("verify", "--json", *options, path)
    return done.returncode, json.loads(done.stdout)


def failures(found):
    return [f for f in found["findings"] if f["severity"] == "failure"]


def blobs(data):
    """Where zip archives begin in a .distcp file, each behind the end record of another."""
    at, found = 0, []
    while at < len(data) and data[at:at + 4] == b"PK\3\4":
        found.append(at)
        at = data.index(b"PK\5\6", at) + 22
    assert at == len(data), (at, len(data))
    return found


def damaged_signature(shell, fixtures):
    """A blob that ends as a zip archive and does not begin as one is damage, be it an item or a tensor."""
    shell("convert", fixture(fixtures, "torch-file/torch-file-training"), "dcp", "--to", "torch-dcp", "--quiet")
    path = shell.work / "dcp" / "__0_0.distcp"
    good = path.read_bytes()
    items = {i["key"]: i for i in json.loads(shell("ls", "--json", "--items", "dcp"))["items"]}
    starts, hidden = blobs(good), 0
    for start in starts:
        for byte in range(4):
            data = bytearray(good)
            data[start + byte] ^= 1 << (start + byte) % 8
            path.write_bytes(data)
            assert shell.any("verify", "--quiet", "dcp").returncode in (1, 4), f"blob at {start}, byte {byte}"
        found = shell.any("ls", "--json", "--items", "dcp")
        hidden += found.returncode == 0 and any("bytes" in i.get("kind", "") and items[i["key"]]["kind"] != "bytes"
                                                for i in json.loads(found.stdout)["items"])
    assert not hidden, f"{hidden} items are shown as raw bytes"
    path.write_bytes(good)
    assert failures(verified(shell, "dcp")[1]) == []
    return f"{len(starts)} blobs"


def nearly_legacy(shell, fixtures):
    """The same for an item that was a legacy stream: a few bits of the magic number away from one."""
    stream = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03." + bytes(64)
    shell("convert", fixture(fixtures, "torch-file/torch-file-training"), "dcp", "--to", "torch-dcp", "--quiet")
    path = shell.work / "dcp" / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    starts = blobs(bytes(data)) + [len(data)]
    items = next((a, b) for a, b in zip(starts, starts[1:]) if b - a > len(stream))
    for byte in (3, 10):
        broken = bytearray(stream)
        broken[byte] ^= 8
        data[items[0]:items[1]] = broken + bytes(items[1] - items[0] - len(broken))
        path.write_bytes(data)
        assert shell.any("verify", "--quiet", "dcp").returncode in (1, 4), byte


def crc_of_zero(shell, fixtures):
    """CRC-32s of 0 mean that there is none if no member has one, or if the content is a hole; else they are wrong."""
    small_models.write(shell.work / "s.safetensors", TENSORS)
    for forget, status, uncovered in ((lambda name: False, 0, 0), (lambda name: True, 0, 3), (lambda name: "/data/" in name, 1, 3),
                                      *((lambda name, i=i: name.endswith(f"/data/{i}"), 1, 0) for i in range(3))):
        shell("convert", "s.safetensors", "x.pt", "--to", "torch", "--overwrite", "--quiet")
        zip_crcs.without(shell.work / "x.pt", forget)
        code, found = verified(shell, "x.pt")
        assert code == status and found["uncovered"]["tensors"] == uncovered, (code, found)
    shutil.copyfile(fixture(fixtures, "torch-file/torch-file-skip-data"), shell.work / "holes.pt")
    code, found = verified(shell, "holes.pt")
    assert code == 0 and found["uncovered"]["tensors"] == 5, found


def uncovered(shell, fixtures):
    """Every payload flip of a format without checksums goes unnoticed, so verify says how many values there are."""
    small_models.write(shell.work / "s.safetensors", TENSORS)
    for options, tensors, names in ((["safetensors"], 3, True), (["hf"], 3, True), (["zarr"], 3, True),
                                    (["zarr", "-o", "codec=lz4"], 3, True), (["zarr", "-o", "codec=blosc"], 3, True),
                                    (["zarr", "-o", "codec=zstd"], 0, True), (["zarr", "-o", "codec=gzip"], 0, True),
                                    (["zarr", "-o", "zarr-format=3", "-o", "codec=zstd"], 0, True), (["torch"], 0, False),
                                    (["torch-dcp"], 0, True)):
        shell("convert", "s.safetensors", "out", "--to", *options, "--overwrite", "--quiet")
        code, found = verified(shell, "out")
        wanted = {"tensors": tensors, "bytes": tensors * 128, "items": 0, "names": names, "keys": sorted(TENSORS)[:tensors]}
        assert code == 0 and found["uncovered"] == wanted, (options, found)
        proved = found["proved"]
        assert (proved["tensors"], proved["bytes"], proved["checksum_tensors"]) == (3, 384, 3 - tensors), (options, proved)
        lines = shell("verify", "out").decode().splitlines()
        assert lines[-1] == "ok" and (f"the values of {tensors} of 3 tensors" in lines[-2] if tensors else True), lines
    for name, tensors in (("torch-file/torch-file-crc-off", 5), ("torch-file/torch-file-proto2-legacy", None),
                          ("megatron/megatron-sem-integrity", 0)):
        found = verified(shell, fixture(fixtures, name))[1]
        assert found["uncovered"]["tensors"] == (found["proved"]["tensors"] if tensors is None else tensors), (name, found)
        items = found["proved"]["items"] if tensors is None else 0
        assert found["uncovered"]["items"] == items and found["proved"]["checksum_items"] == found["proved"]["items"] - items, (name, found)
        assert items or tensors is not None, "the legacy stream has items"
    found = verified(shell, fixture(fixtures, "megatron/megatron-sem-integrity"))[1]
    assert found["uncovered"] == {"tensors": 0, "bytes": 0, "items": 0, "names": False, "keys": []}


def checked_without_deep(shell, fixtures):
    """Checksums of zarr codecs are compared without --deep too."""
    small_models.write(shell.work / "s.safetensors", TENSORS)
    for codec, byte in (("zstd", -2), ("gzip", -6), ("zlib", -2)):
        shell("convert", "s.safetensors", "out", "--to", "zarr", "-o", f"codec={codec}", "--overwrite", "--quiet")
        path = shell.work / "out" / "b.weight" / "0.0"
        data = bytearray(path.read_bytes())
        data[byte] ^= 1
        path.write_bytes(data)
        assert shell.any("verify", "--quiet", "out").returncode == 1, codec


def all_damaged_chunks(shell, fixtures):
    """What cannot be decoded is a finding like any other: the next ones are told, and what else is asked for.

    No values are claimed of what is gone."""
    small_models.write(shell.work / "s.safetensors", TENSORS)
    for options in (["codec=zstd"], ["codec=gzip"], ["codec=zlib"], ["codec=zstd", "-o", "zarr-format=3"],
                    ["codec=zstd", "--checksum", "sha256"], ["codec=blosc", "--checksum", "crc32c"]):
        shell("convert", "s.safetensors", "out", "--to", "zarr", "--overwrite", "--quiet", "-o", *options)
        for key, cut in ("a.weight", "codec=blosc" in options), ("b.weight", True):
            path = shell.work / "out" / key / ("c/0/0" if "zarr-format=3" in options else "0.0")
            data = bytearray(path.read_bytes())
            data[-9] ^= 4
            path.write_bytes(data[:-3] if cut else data)
        for words in ([], ["--deep"], ["--deep", "--fail-on", "zero,nan"], ["--against", "s.safetensors"]):
            code, found = verified(shell, "out", *words)
            told = sorted((f["kind"], f["key"]) for f in failures(found))
            assert code == 1 and told == [("damage", "a.weight"), ("damage", "b.weight")], (options, words, code, found["findings"])
            lines = shell.any("verify", *words, "out").stdout.splitlines()
            assert sum("damage" in line for line in lines) == 2, (options, lines)


def missing_shard(shell, fixtures):
    """Files whose names say that there are more of them, with and without other files beside them."""
    small_models.write(shell.work / "s.safetensors", TENSORS)
    shell("convert", "s.safetensors", "whole", "--to", "hf", "--max-shard-size", "130", "--quiet")
    (shell.work / "whole" / "model.safetensors.index.json").unlink()
    assert verified(shell, "whole")[0] == 0
    for number in (1, 2, 3):
        for extra in (None, "adapter.safetensors", "zebra.safetensors"):
            shutil.rmtree(shell.work / "part", ignore_errors=True)
            shutil.copytree(shell.work / "whole", shell.work / "part")
            if extra:
                small_models.write(shell.work / "part" / extra, {"extra.weight": [4]})
                assert verified(shell, "part")[0] == 0, "all are there"
            (shell.work / "part" / f"model-0000{number}-of-00003.safetensors").unlink()
            assert shell.any("verify", "--quiet", "part").returncode in (1, 4), (number, extra)


def hidden_integrity(shell, fixtures):
    """integrity.json is compared even if metadata.json no longer says whose folder it is."""
    shutil.copytree(fixture(fixtures, "megatron/megatron-sem-integrity"), shell.work / "c", copy_function=shutil.copyfile)
    path = shell.work / "c" / "metadata.json"
    path.write_text(path.read_text().replace("sharded_backend\"", "sharded_cackend\""))
    code, found = verified(shell, "c")
    assert code == 1 and any("metadata.json" in f["text"] for f in failures(found)), found


def records_of_items(shell, fixtures):
    """Files that hold items of Megatron's zarr: every record's CRC-32 is compared, not the pickle's alone."""
    shutil.copytree(fixture(fixtures, "megatron/megatron-core-zarr-v0.8.0"), shell.work / "c", copy_function=shutil.copyfile)
    path = shell.work / "c" / "rng_state" / "shard_0.1_2.2.pt"
    good = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        records = [m for m in archive.infolist() if "/data/" in m.filename and m.file_size]
    assert records and shell.any("verify", "--quiet", "c").returncode == 0
    for record in records:
        sizes = struct.unpack("<HH", good[record.header_offset + 26:record.header_offset + 30])
        data = bytearray(good)
        data[record.header_offset + 30 + sum(sizes)] ^= 1
        path.write_bytes(data)
        code, found = verified(shell, "c")
        assert code == 1 and any("shard_0.1_2.2.pt" in f["text"] for f in failures(found)), (code, found)


def change_record(path, start, size, offset=None):
    """Flips a bit of the first byte of a record of the archive at start (of the one whose payload is at offset), and makes its CRC-32 right
    again."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(io.BytesIO(data[start:start + size])) as archive:
        for member in archive.infolist():
            at = start + member.header_offset
            payload = at + 30 + sum(struct.unpack("<HH", data[at + 26:at + 30]))
            if "/data/" in member.filename and member.file_size and offset in (None, payload):
                data[payload] ^= 1
                zip_crcs.set_crc(data, start, member, zlib.crc32(data[payload:payload + member.file_size]))
                path.write_bytes(data)
                return
    raise AssertionError(f"{path.name}: no record at {offset}")


def differing_replicas(shell, fixtures):
    """Two copies of one chunk that differ while every checksum holds: the tensor and both files are named."""
    for name in ("torch-dcp/dcp-per-rank", "megatron/megatron-dense-legacy-tp2"):
        shutil.rmtree(shell.work / "c", ignore_errors=True)
        shutil.copytree(fixture(fixtures, name), shell.work / "c", copy_function=shutil.copyfile)
        whole = verified(shell, "c")[1]
        assert whole["proved"]["replicas"] > 0 and failures(whole) == []
        listing = json.loads(shell("ls", "--json", "--chunks", "c"))["tensors"]
        tensor, copy = next((t, c) for t in listing for c in t["chunks"] if c["replica"] and c["bytes"])
        path = shell.work / "c" / copy["file"]
        if copy.get("container"):
            change_record(path, copy["offset"], copy["bytes"])
        else:
            change_record(path, 0, path.stat().st_size, copy["offset"])
        code, found = verified(shell, "c")
        told = failures(found)
        assert code == 1 and [(f["kind"], f["key"]) for f in told] == [("replica", tensor["key"])], (code, found)
        original = next(c["file"] for c in tensor["chunks"] if not c["replica"])
        assert f"'{original}' and '{copy['file']}' differ: 1 elements" in told[0]["text"], told


def padding_of_a_vocabulary(shell, fixtures):
    """convert --verify compares the rows that both sides have, where a vocabulary gains or loses rows of padding."""
    source = fixture(fixtures, "megatron/megatron-dense-legacy-pp2")
    for path, rows, target in (source, 512, "more"), ("more", 256, "fewer"):
        words = ("--to", "megatron", "--layout", "tp=2", "-o", f"padded-vocab={rows}", "--verify", "--quiet")
        shell("convert", path, target, *words)
        found = {t["key"]: t["shape"] for t in json.loads(shell("ls", "--json", target))["tensors"]}
        assert found["embedding.word_embeddings.weight"][0] == rows, found
    said = shell("convert", source, "lost", "--to", "megatron", "-o", "padded-vocab=2", exit_status=2)
    assert b"tokens, whose rows would be lost" in said, said


def state_within_an_item(shell, fixtures):
    """convert --verify compares an optimizer's tensors within the item that the target keeps them in, and says which it cannot compare."""
    source, words = fixture(fixtures, "torch-file/torch-file-training"), ("--to", "fsdp-ranks", "--verify")
    for path, target, ranks in (source, "two", 2), ("two", "three", 3):
        report = json.loads(shell("convert", path, target, *words, "--layout", f"ranks={ranks}", "--json"))
        assert report["verified_tensors"] == report["tensors"] >= 47 and report["verified_bytes"] >= 6440, report
    assert b"\noptimizer\tdict\t" in shell("ls", "--items", "three")
    said = shell("convert", fixture(fixtures, "verl/verl-fsdp2"), "verl", *words, "--layout", "ranks=2")
    assert said.endswith(b"verified: 59 tensors, 10.94 kB read back and compared with the source, bit by bit; not the 2 that lie within "
                         b"items\n"), said
    said = shell("convert", source, "copies", *words, "--include", "optimizer*.step", "--items", "drop", "--layout", "ranks=2")
    assert b"verified: 7 tensors" in said and b"not the" not in said, said  # ranks have the same, and of the model nothing
    lone = ("--include", "optimizer*.step", "--include", "model.*", "--items", "drop", "--layout", "ranks=2")
    said = shell("convert", source, "lone", *words, *lone, exit_status=5)
    assert b"'optimizer.state.0.step' lies within the item 'optimizer'" in said and b"without --verify it is written" in said, said
    shell("convert", source, "lone", *words[:2], *lone)


def state_without_its_item(shell, fixtures):
    """Optimizer state in Megatron's folders is listed where its groups were left out, and compared by the names in the files."""
    source = fixture(fixtures, "megatron/megatron-optim-dense-full-tp2dp2")
    said = shell("convert", source, "legacy", "--to", "megatron", "--layout", "tp=2", "--items", "drop", "--verify")
    assert b"verified: 60 tensors" in said and b"not the" not in said, said
    listed = shell.tensors("legacy")
    assert len(listed) == len(shell.tensors(source)) == 36 and sum(key.startswith("optimizer.state.") for key in listed) == 27


def tensors_that_share_a_storage(shell, fixtures):
    """convert counts tensors that share a storage under each name, and compares a tie that is recorded alone with the one that is kept."""
    source = fixture(fixtures, "torch-file/torch-file-tied")
    for to, options, count, size in (("torch", [], 5, 532), ("torch", ["--include", "*weight"], 2, 280),
                                     ("torch", ["-o", "views=compact"], 5, 532), ("hf", [], 5, 532),
                                     ("hf", ["-o", "tied=drop"], 4, 392), ("safetensors", ["-o", "tied=drop", "--dtype", "f64"], 4, 672)):
        report = json.loads(shell("convert", source, "shared", "--to", to, *options, "--verify", "--json", "--overwrite"))
        assert (report["tensors"], report["verified_tensors"], report["verified_bytes"]) == (count, count, size), (to, options, report)
        assert len(shell.tensors("shared")) == count, (to, options)
    said = shell("convert", fixture(fixtures, "torch-file/torch-file-storages"), "kept", "--to", "torch", "--verify")
    assert b"verified: 1 tensors" in said and b"not the 2 that lie within items" in said, said


def layers_that_predict(shell, fixtures):
    """Tensors of a rank's files have the names that its release gives them, which --verify knows."""
    source = fixture(fixtures, "megatron/megatron-mtp-moe-dist-tp1")
    for number, options in enumerate(([], ["--layout", "tp=2"], ["--layout", "tp=1,ep=2"])):
        said = shell("convert", source, f"predicts-{number}", "--to", "megatron", "--verify", *options)
        assert b"verified: 25 tensors" in said and b"not the" not in said, said
        assert "mtp.layers.0.mtp_model_layer.input_layernorm.weight" in shell.tensors(f"predicts-{number}")


def paths_that_are_no_keys(shell, fixtures):
    """convert --verify looks for a tensor under its path, where that is not its key."""
    values = torch_stub.tensor("FloatStorage", [2], struct.pack("<2f", 1, 2))
    torch_stub.write_zip(shell.work / "nested.pt", {"model": {"abc": values}})
    shell("convert", "nested.pt", "dcp", "--to", "torch-dcp", "--quiet")
    metadata = shell.work / "dcp" / ".metadata"
    said = re.sub(b"(?<=[^.])abc", b"xyz", metadata.read_bytes())
    assert said.count(b"xyz") == 1 and said.count(b"model.abc") >= 1
    metadata.write_bytes(said)
    for target in ("torch", "fsdp-ranks"):
        report = json.loads(shell("convert", "dcp", target, "--to", target, "--verify", "--json"))
        assert report["verified_tensors"] == 1 and list(shell.tensors(target)) == ["model.xyz"], report


def sparse(layout, size, *indices):
    """A sparse tensor of that many rows and columns: its tensors of numbers, and as many values as the last of them has."""
    numbers = [torch_stub.tensor("LongStorage" if kind == "q" else "IntStorage", shape, struct.pack(f"<{len(row)}{kind}", *row))
               for kind, shape, row in indices]
    values = torch_stub.tensor("FloatStorage", [indices[-1][1][-1]], bytes(4 * indices[-1][1][-1]))
    call = lambda module, name, *arguments: torch_stub.Call(torch_stub.Named(module, name), arguments)
    data = (*numbers, values, call("torch", "Size", tuple(size)))
    return call("torch._utils", "_rebuild_sparse_tensor", call("torch.serialization", "_get_layout", f"torch.sparse_{layout}"), data)


def indices_of_sparse_tensors(shell, fixtures):
    """Indices of sparse tensors lie within their tensor"""
    rows, columns, pointers = ("q", [2, 3], [0, 1, 6, 4, 0, 2]), ("q", [3], [4, 0, 2]), ("q", [8], [0, 1, 1, 1, 1, 2, 2, 3])
    changed = lambda row, at, number: (*row[:2], row[2][:at] + [number] + row[2][at + 1:])
    of_columns = ("q", [6], [0, 1, 1, 2, 2, 3])
    cases = [("coo", [7, 5], [rows], None), ("coo", [7, 5], [changed(rows, 2, 7)], "sparse index 7 in a dimension of 7"),
             ("coo", [7, 5], [changed(rows, 3, 5)], "sparse index 5 in a dimension of 5"),
             ("coo", [7, 5], [changed(rows, 0, -1)], "sparse index -1 in a dimension of 7"), ("coo", [6, 4], [rows], "of 6"),
             ("csr", [7, 5], [pointers, columns], None), ("csr", [7, 5], [("i", *pointers[1:]), ("i", *columns[1:])], None),
             ("csr", [7, 5], [pointers, changed(columns, 0, 5)], "sparse index 5 where less than 5 is allowed"),
             ("csr", [7, 5], [pointers, ("i", *changed(columns, 2, -2)[1:])], "sparse index -2 where less than 5 is allowed"),
             ("csr", [7, 5], [changed(pointers, 7, 4), columns], "sparse index 4 where less than 4 is allowed"),
             ("csc", [7, 5], [of_columns, changed(columns, 0, 6)], None),
             ("csc", [7, 5], [of_columns, changed(columns, 0, 7)], "sparse index 7 where less than 7 is allowed")]
    for layout, size, numbers, text in cases:
        dense = torch_stub.tensor("FloatStorage", [1], bytes(4))
        torch_stub.write_zip(shell.work / "s.pt", {"w": dense, "s": sparse(layout, size, *numbers)})
        code, found = verified(shell, "s.pt")
        told = [f["text"] for f in failures(found)]
        assert (code, len(told)) == ((1, 1) if text else (0, 0)) and (not text or text in told[0]), (layout, size, numbers, code, found)


def damage_within_an_item(shell, spy):
    """convert --verify finds a byte that arrives wrong in an optimizer's state within its item, and nothing becomes visible."""
    mark = b"what is looked for"
    moment = torch_stub.tensor("FloatStorage", [16], mark + bytes(range(200, 246)))
    value = {"w": torch_stub.tensor("FloatStorage", [2], bytes(8)), "optimizer": {"state": {0: {"exp_avg": moment}}}}
    torch_stub.write_zip(shell.work / "a.pt", value)
    words = ("--to", "fsdp-ranks", "--verify", "--io", "buffered", "--layout")
    for path, target, ranks, key in ("a.pt", "two", 2, "optimizer.state.0.exp_avg"), ("two", "one", 1, "optimizer:state.0.exp_avg"):
        said = shell("convert", path, target, *words, f"ranks={ranks}", exit_status=1,
                     environment={"LD_PRELOAD": spy, "SPY_DAMAGE": mark.decode()})
        assert f"tensor '{key}': digest".encode() in said and not (shell.work / target).exists(), said
        shell("convert", path, target, *words, f"ranks={ranks}")


def sizes_that_are_called_otherwise(shell, fixtures):
    """.metadata whose records end or go on where torch.Size is called is refused, wherever in it that is."""
    good = (fixture(fixtures, "torch-dcp/dcp-fsdp2-4") / ".metadata").read_bytes()
    folder = shell.work / "dcp"
    shutil.copytree(fixture(fixtures, "torch-dcp/dcp-fsdp2-4"), folder)
    places = [m.start() for m in re.finditer(rb"\x85\x94R\x94", good)]
    assert len(places) > 200, len(places)
    for number, place in enumerate(places):
        if number % 16 == 3:
            for at, byte in ((place, b"\x86"), (place + 2, b"."), (place + 2, b"\x85"), (place + 1, b"R")):
                (folder / ".metadata").write_bytes(good[:at] + byte + good[at + 1:])
                done = shell.any("ls", "dcp")
                assert done.returncode == 4 and ".metadata" in done.stderr, (place, at, byte, done.returncode, done.stderr)


def weights_that_share_states(shell, _):
    """--expect-optimizer: the same bytes as a weight with states needs none of its own, and is told once; another weight does."""
    shapes = {"a": [2, 3], "b": [2, 3], "tied": [2, 3], "turned": [3, 2], "alone": [2, 3], "bias": [3], "buffer.running_mean": [2, 3]}
    for weight in "ab":
        for state in ("exp_avg", "exp_avg_sq"):
            shapes[f"optimizer.state.{state}.{weight}"] = [2, 3]
    same = ("a", "b", "tied", "turned")
    tensors = {key: torch_stub.tensor("FloatStorage", shape, (b"same" if key in same else b"else") * math.prod(shape))
               for key, shape in shapes.items()}
    torch_stub.write_zip(shell.work / "a.pt", tensors)
    found = json.loads(shell("verify", "a.pt", "--expect-optimizer", "--json", exit_status=1))["findings"]
    aliases = [(f["key"], f["text"]) for f in found if f["kind"] == "alias"]
    assert aliases == [("tied", "the same bytes as 'a', whose states it shares")], found
    missing = [f["text"] for f in found if f["severity"] == "failure"]
    assert len(missing) == 2 and all(" is missing for 3 of 5 " in text for text in missing), found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--spy", required=True)
    args = parser.parse_args()
    fixtures = pathlib.Path(args.fixtures).resolve()
    tests = (damaged_signature, nearly_legacy, crc_of_zero, uncovered, checked_without_deep, all_damaged_chunks,
             missing_shard, hidden_integrity, records_of_items, differing_replicas, padding_of_a_vocabulary, state_within_an_item,
             state_without_its_item, tensors_that_share_a_storage, layers_that_predict, paths_that_are_no_keys, indices_of_sparse_tensors,
             sizes_that_are_called_otherwise, weights_that_share_states)
    cases = [(test.__doc__.splitlines()[0], lambda shell, test=test: test(shell, fixtures)) for test in tests]
    cases.append((damage_within_an_item.__doc__, lambda shell: damage_within_an_item(shell, pathlib.Path(args.spy).resolve())))
    raise SystemExit(small_models.run(args.bin, cases))


main()
