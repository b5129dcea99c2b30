#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flex Checkpoints that no fixture is: a trainer's folder without weights, several saves, left-over files, old protocols, and what the
messages about bad ones name. Prints TAP.

usage: flex_reading_test.py --bin PATH --fixtures DIR
"""
import argparse
import base64
import hashlib
import json
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import types

MODULE = "paddle.distributed.flex_checkpoint.dcp.metadata"

# paddle.save of {"w": float32 (2,3) values 1 to 6, "b": bfloat16 1, 2}, in protocols 2, 4 and 5.
ARRAYS = {
    2: "gAJ9cQAoWAEAAAB3cQFjbnVtcHkuY29yZS5tdWx0aWFycmF5Cl9yZWNvbnN0cnVjdApxAmNudW1weQpuZGFycmF5CnEDSwCFcQRjX2NvZGVjcwplbmNvZGUK"
       "cQVYAQAAAGJxBlgGAAAAbGF0aW4xcQeGcQhScQmHcQpScQsoSwFLAksDhnEMY251bXB5CmR0eXBlCnENWAIAAABmNHEOiYiHcQ9ScRAoSwNYAQAAADxxEU5O"
       "Tkr/////Sv////9LAHRxEmKJaAVYHAAAAAAAwoA/AAAAQAAAQEAAAMKAQAAAwqBAAADDgEBxE2gHhnEUUnEVdHEWYlgBAAAAYnEXaAJoA0sAhXEYaAmHcRlS"
       "cRooSwFLAoVxG2gNWAIAAAB1MnEciYiHcR1ScR4oSwNoEU5OTkr/////Sv////9LAHRxH2KJaAVYBQAAAMKAPwBAcSBoB4ZxIVJxInRxI2JYGwAAAFN0cnVj"
       "dHVyZWRUb1BhcmFtZXRlck5hbWVAQHEkfXElKGgBWAwAAABsaW5lYXJfMC53XzBxJmgXWAwAAABsaW5lYXJfMC5iXzBxJ3V1Lg==",
    4: "gASVNgEAAAAAAAB9lCiMAXeUjBVudW1weS5jb3JlLm11bHRpYXJyYXmUjAxfcmVjb25zdHJ1Y3SUk5SMBW51bXB5lIwHbmRhcnJheZSTlEsAhZRDAWKUh5RS"
       "lChLAUsCSwOGlGgFjAVkdHlwZZSTlIwCZjSUiYiHlFKUKEsDjAE8lE5OTkr/////Sv////9LAHSUYolDGAAAgD8AAABAAABAQAAAgEAAAKBAAADAQJR0lGKM"
       "AWKUaARoB0sAhZRoCYeUUpQoSwFLAoWUaA6MAnUylImIh5RSlChLA2gSTk5OSv////9K/////0sAdJRiiUMEgD8AQJR0lGKMG1N0cnVjdHVyZWRUb1BhcmFt"
       "ZXRlck5hbWVAQJR9lChoAYwMbGluZWFyXzAud18wlGgWjAxsaW5lYXJfMC5iXzCUdXUu",
    5: "gAWVHAEAAAAAAAB9lCiMAXeUjBJudW1weS5jb3JlLm51bWVyaWOUjAtfZnJvbWJ1ZmZlcpSTlCiWGAAAAAAAAAAAAIA/AAAAQAAAQEAAAIBAAACgQAAAwECU"
       "jAVudW1weZSMBWR0eXBllJOUjAJmNJSJiIeUUpQoSwOMATyUTk5OSv////9K/////0sAdJRiSwJLA4aUjAFDlHSUUpSMAWKUaAQolgQAAAAAAAAAgD8AQJRo"
       "CIwCdTKUiYiHlFKUKEsDaAxOTk5K/////0r/////SwB0lGJLAoWUaA90lFKUjBtTdHJ1Y3R1cmVkVG9QYXJhbWV0ZXJOYW1lQECUfZQoaAGMDGxpbmVhcl8w"
       "LndfMJRoEowMbGluZWFyXzAuYl8wlHV1Lg==",
}

# What the message about a bad case must name, beside its exit status, which refusals.json pins.
NAMED = {
    "bad-paddle-empty-distcp": ["0_0.distcp", "0 bytes"], "bad-paddle-evil-distcp": ["0_0.distcp", "posix.system"],
    "bad-paddle-evil-metadata": ["0.metadata", "posix.system"], "bad-paddle-flat-beyond": ["0.metadata", "w1.moment1_0", "[17, 32]"],
    "bad-paddle-flat-gap": ["w1.moment1_0", "1:17"], "bad-paddle-flat-overlap": ["1_0.distcp", "3_0.distcp", "overlap"],
    "bad-paddle-gap": ["q_proj", "nothing holds"], "bad-paddle-global-shapes": ["0.metadata", "[13, 7] and [15, 7]"],
    "bad-paddle-missing-file": ["1_0.distcp", "not there"], "bad-paddle-missing-key": ["0_0.distcp", "q_proj"],
    "bad-paddle-mixed-dtype": ["0.metadata", "bfloat16 and int16"], "bad-paddle-mixed-files": ["0_0.distcp", "1_0.safetensors"],
    "bad-paddle-negative": ["0.metadata", "[-1, 0]"], "bad-paddle-no-metadata": ["<uid>.metadata", "0_0.distcp"],
    "bad-paddle-object-array": ["0_0.distcp", "array"], "bad-paddle-outside": ["0.metadata", "outside"],
    "bad-paddle-same-file": ["0_0.distcp", "two shards"], "bad-paddle-short-array": ["0_0.distcp", "66 bytes"],
    "bad-paddle-stale-metadata": ["0_0.distcp", "stale", "[5, 7]", "[6, 7]"], "bad-paddle-traversal": ["../outside_0.distcp"],
    "bad-paddle-truncated-distcp": ["1_0.distcp", "3028"], "bad-paddle-truncated-metadata": ["0.metadata", "7020"],
    "bad-paddle-two-metadata": ["0.metadata", "1.metadata", "q_proj"], "bad-paddle-unknown-dtype": ["0.metadata", "float7_e3m3"],
    "bad-paddle-wrong-dtype": ["0_0.distcp", "F64", "F32"], "bad-paddle-wrong-shape": ["0_0.distcp", "[5, 7]", "[7, 5]"],
}


def stubs():
    """The classes of the metadata, as pickle finds them by name."""
    made = types.ModuleType(MODULE)
    for name in ("Metadata", "LocalTensorMetadata", "LocalTensorIndex"):
        setattr(made, name, type(name, (), {"__module__": MODULE, "__qualname__": name}))
    parts = MODULE.split(".")
    for i in range(1, len(parts)):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    sys.modules[MODULE] = made
    return made


def metadata(tensors, empty=None, ranks=1):
    """Pickle of tensors in 0_0.distcp: {key: (dtype, shape)}; with more ranks in as many files, each of which has such a shard, below those
    before. empty, {key: shape}: as 3.2 writes it, where indexes have no shape, with a shard of another rank that has no element, first
    among the key's shards."""
    m = stubs()

    def new(cls, **attributes):
        made = cls()
        made.__dict__.update(attributes)
        return made

    state, storage = {}, {}
    for key, (dtype, shape) in tensors.items():
        offsets = [(rank * shape[0], *(0 for _ in shape[1:])) for rank in range(ranks)]
        state[key] = [new(m.LocalTensorMetadata, global_offset=offset, local_shape=local, dtype=dtype,
                          global_shape=(ranks * shape[0], *shape[1:]), is_flattened=False, flattened_range=None)
                      for offset in offsets for local in [(empty or {}).get(key), tuple(shape)] if local]
        newer = {} if empty else {"replica_id": None, "local_shape": tuple(shape)}
        for rank, offset in enumerate(offsets):
            index = new(m.LocalTensorIndex, tensor_key=key, global_offset=offset, is_flattened=False, flattened_range=None, **newer)
            storage[index] = f"{rank}_0.distcp"
    return pickle.dumps(new(m.Metadata, state_dict_metadata=state, storage_metadata=storage, flat_mapping={k: (k,) for k in tensors}), 4)


def bfloat16_bits(value):
    """Of a float32's bits, to nearest even."""
    if value & 0x7FFFFFFF > 0x7F800000:
        return value >> 16 | 0x40
    return (value + 0x7FFF + (value >> 16 & 1)) >> 16 & 0xFFFF


class Test:
    def __init__(self, binary, fixtures, work):
        self.binary, self.fixtures, self.work = binary, fixtures / "paddle", work

    def run(self, *arguments, binary=False):
        return subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=not binary)

    def digests(self, path):
        done = self.run("hash", "--json", path)
        assert done.returncode == 0, done.stderr
        return {t["key"]: (t["dtype"], t["shape"], t["hash"]) for t in json.loads(done.stdout)["tensors"]}

    def manifest(self, case):
        return json.loads((self.fixtures / case / "manifest.json").read_text())

    def wanted(self, tensors):
        return {k: (t["dtype"], t["shape"], t["sha256"]) for k, t in tensors.items()}

    def copy(self, case, name):
        target = self.work / name
        shutil.copytree(self.fixtures / case / "ckpt", target)
        return target

    # ---- cases ----

    def weights_of_a_trainer_are_cast_from_masters(self):
        source, target = self.fixtures / "paddle-strategy-trainer-tp2" / "ckpt", self.work / "trainer"
        before, masters = self.digests(source), self.digests(source / "master_weight")
        lone = [k for k in self.digests(source / "model_state") if k + ".w_0" not in masters]
        target.mkdir()
        for folder in ("optimizer_state", "master_weight"):
            shutil.copytree(source / folder, target / folder)
        done = self.run("convert", source / "model_state", target / "model_state", "--to", "paddle-flex", "--quiet",
                        *[word for k in lone for word in ("--include", k)])
        assert done.returncode == 0, done.stderr
        after = self.digests(target)
        assert set(after) == set(before), set(after) ^ set(before)
        missing = [k[:-4] for k in masters]
        bits = {}
        for key in missing:
            raw = self.run("cat", source, key + ".w_0", "--as", "raw", binary=True).stdout
            bits[key] = [bfloat16_bits(v) for v in struct.unpack(f"<{len(raw) // 4}I", raw)]
            want = hashlib.sha256(struct.pack(f"<{len(bits[key])}H", *bits[key])).hexdigest()
            assert after[key] == ("BF16", before[key][1], want), key
        assert f"{len(missing)} weights are not stored" in self.run("inspect", target).stdout
        wide = self.work / "wide"
        done = self.run("convert", target, wide, "--to", "torch-dcp", "--dtype", "f32", "--verify", "--quiet")
        assert done.returncode == 0, done.stderr
        widened = self.digests(wide)
        for key in missing:  # rounded to bfloat16 first
            want = hashlib.sha256(struct.pack(f"<{len(bits[key])}I", *[v << 16 for v in bits[key]])).hexdigest()
            assert widened[key][2] == want, key
        assert self.run("verify", "--deep", target).returncode == 0
        assert self.run("diff", target, target).returncode == 0

    def moving_averages_of_a_trainer_have_keys_of_their_own(self):
        target, parts = self.copy("paddle-strategy-trainer-tp2", "averaged"), self.work / "averaged-parts"
        before = self.digests(target)
        done = self.run("convert", target / "optimizer_state", target / "ema_state", "--to", "paddle-flex", "--quiet", "--layout", "tp=2",
                        "--include", "*.w_0", "--rename", "s/moment1_0$/w_0/")
        assert done.returncode == 0, done.stderr
        averages = {k.replace(".moment1_0", ".w_0"): v for k, v in before.items() if k.endswith(".moment1_0")}
        assert self.digests(target / "ema_state") == averages
        assert self.digests(target) == {**before, **{f"ema_state.{k}": v for k, v in averages.items()}}
        done = self.run("verify", "--deep", target)
        assert done.returncode == 0 and "not assigned" not in done.stdout, done.stdout
        ways = {"like": ("--like", target), "one": ("--to", "paddle-flex"), "uc": ("--to", "paddle-uc", "--rules", "auto")}
        parts.mkdir()
        for name, words in ways.items():
            done = self.run("convert", target, parts / name, *words, "--quiet", "--verify")
            assert done.returncode == 0, done.stderr
        assert self.digests(parts / "like" / "ema_state") == averages
        for folder in ("model_state", "optimizer_state", "master_weight"):
            assert self.digests(parts / "like" / folder) == self.digests(target / folder), folder
        assert self.digests(parts / "like") == self.digests(parts / "one") == self.digests(target)
        found = {k: v for k, v in self.digests(parts / "uc").items() if "ema_state" in k}
        assert found == {f"model:ema_state.{k}": v for k, v in averages.items()}, sorted(found)[:3]
        assert self.run("diff", target, parts / "uc").returncode == 0

    def every_uid_can_be_opened(self):
        case = self.manifest("paddle-fc-uids")
        for uid, tensors in case["also"]["uids"].items():
            assert self.digests(self.fixtures / "paddle-fc-uids" / "ckpt" / f"{uid}.metadata") == self.wanted(tensors), uid

    def metadata_of_the_loader_can_be_opened(self):
        found = self.digests(self.fixtures / "paddle-hf-auto" / "ckpt" / "flex-ckpt.auto_generated.metadata")
        assert found == self.wanted(self.manifest("paddle-hf-auto")["tensors"])

    def locks_and_signals_mean_nothing(self):
        folder = self.copy("paddle-fc-2ranks-uneven", "locked")
        for name in ("0.metadata.lock", "saved_signal_0", "saved_signal_1"):
            (folder / name).write_text("1")
        done = self.run("verify", folder)
        assert done.returncode == 0 and "0.metadata.lock" in done.stdout, done.stdout + done.stderr
        assert self.digests(folder) == self.wanted(self.manifest("paddle-fc-2ranks-uneven")["tensors"])

    def damage_is_told_behind_any_number_of_warnings(self):
        folder = self.copy("paddle-fc-2ranks-uneven", "crowded")
        for i in range(1003):
            (folder / f"{i}.metadata.lock").write_text("1")
        done = self.run("verify", folder)
        assert done.returncode == 0 and "warning\twarning\t\t3 more warnings\n" in done.stdout, done.stdout[-500:]
        (folder / "1_0.distcp").unlink()
        done = self.run("verify", folder)
        assert done.returncode == 1 and "data file '1_0.distcp'" in done.stdout and "more damages" not in done.stdout, done.stdout[-500:]

    def arrays_of_protocol(self, protocol):
        folder = self.work / f"protocol{protocol}"
        folder.mkdir()
        (folder / "0_0.distcp").write_bytes(base64.b64decode(ARRAYS[protocol]))
        (folder / "0.metadata").write_bytes(metadata({"w": ("float32", (2, 3)), "b": ("bfloat16", (2,))}))
        values = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
        assert self.digests(folder) == {"w": ("F32", [2, 3], hashlib.sha256(values).hexdigest()),
                                        "b": ("BF16", [2], hashlib.sha256(b"\x80\x3f\x00\x40").hexdigest())}
        assert self.run("verify", "--deep", folder).returncode == 0

    def empty_shards_hide_no_others(self):
        folder = self.work / "empty"
        folder.mkdir()
        (folder / "0_0.distcp").write_bytes(base64.b64decode(ARRAYS[4]))
        (folder / "0.metadata").write_bytes(metadata({"w": ("float32", (2, 3)), "b": ("bfloat16", (2,))}, {"w": (0, 3)}))
        assert self.digests(folder)["w"] == ("F32", [2, 3], hashlib.sha256(struct.pack("<6f", 1, 2, 3, 4, 5, 6)).hexdigest())
        assert self.run("verify", "--deep", folder).returncode == 0
        (folder / "0.metadata").write_bytes(metadata({"w": ("float32", (2, 3)), "b": ("bfloat16", (2,))}, {"w": (1, 3)}))
        done = self.run("hash", folder)
        assert done.returncode == 4 and "says nothing about its shard at [0, 0]" in done.stderr, done.stderr

    def every_protocol_is_read(self):
        for protocol in ARRAYS:
            self.arrays_of_protocol(protocol)

    def arrays_in_slices_are_one(self):
        case, folder = self.manifest("paddle331-bigsplit"), self.work / "slices"
        names = {"F32": "float32", "F64": "float64", "I64": "int64", "I32": "int32", "BF16": "bfloat16", "F16": "float16", "I8": "int8",
                 "U8": "uint8", "BOOL": "bool", "I16": "int16"}
        folder.mkdir()
        shutil.copy(self.fixtures / "paddle331-bigsplit" / case["path"], folder / "0_0.distcp")
        (folder / "0.metadata").write_bytes(metadata({k: (names[t["dtype"]], t["shape"]) for k, t in case["tensors"].items()}))
        assert self.digests(folder) == self.wanted(case["tensors"])
        listed = json.loads(self.run("ls", "--chunks", "--json", folder).stdout)["tensors"]
        assert max(len(t["chunks"]) for t in listed) > 1
        shutil.copy(folder / "0_0.distcp", folder / "1_0.distcp")  # the same once more, below
        tensors = {k: (names[t["dtype"]], t["shape"]) for k, t in case["tensors"].items()}
        (folder / "0.metadata").write_bytes(metadata(tensors, ranks=2))
        for key in tensors:
            whole = self.run("cat", self.fixtures / "paddle331-bigsplit" / case["path"], key, "--as", "raw", binary=True).stdout
            found = self.run("cat", folder, key, "--as", "raw", binary=True).stdout
            assert whole and found == 2 * whole, key

    def values_that_are_no_tensors_are_items(self):
        folder = self.copy("paddle-fc-emptyrank", "items")
        (folder / "1_0.distcp").write_bytes(pickle.dumps({"late": 1, "StructuredToParameterName@@": {}}, 4))
        first = (folder / "0_0.distcp").read_bytes()
        body, end = first[: first.rindex(b"\x8c\x1bStructured")], first[first.rindex(b"\x8c\x1bStructured") :]
        assert body[2] == 0x95
        more = b"\x8c\x04stepK\x07\x8c\x03run\x8c\x03abc"  # "step": 7, "run": "abc"; in the same frame
        grown = struct.pack("<Q", struct.unpack("<Q", body[3:11])[0] + len(more))
        (folder / "0_0.distcp").write_bytes(body[:3] + grown + body[11:] + more + end)
        items = {i["key"]: i["value"] for i in json.loads(self.run("ls", "--items", "--json", folder).stdout)["items"]}
        assert items == {"step": 7, "run": "abc"}, items
        assert "'late'" in self.run("verify", folder).stdout

    def messages_name_file_and_cause(self):
        for case, words in NAMED.items():
            done = self.run("hash", self.fixtures / case / self.manifest(case)["path"])
            assert done.returncode in (4, 5), f"{case}: exit {done.returncode}"
            for word in words:
                assert word in done.stderr, f"{case}: no '{word}' in: {done.stderr}"


CASES = ["weights_of_a_trainer_are_cast_from_masters", "moving_averages_of_a_trainer_have_keys_of_their_own", "every_uid_can_be_opened",
         "metadata_of_the_loader_can_be_opened",
         "locks_and_signals_mean_nothing", "damage_is_told_behind_any_number_of_warnings",
         "empty_shards_hide_no_others", "every_protocol_is_read",
         "arrays_in_slices_are_one", "values_that_are_no_tensors_are_items",
         "messages_name_file_and_cause"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    args = parser.parse_args()
    print(f"1..{len(CASES)}")
    failed = 0
    for number, name in enumerate(CASES, 1):
        with tempfile.TemporaryDirectory() as work:
            try:
                getattr(Test(args.bin, args.fixtures, pathlib.Path(work)), name)()
                print(f"ok {number} - {name}")
            except (AssertionError, OSError, KeyError, ValueError) as error:
                failed += 1
                print(f"not ok {number} - {name}\n# " + f"{type(error).__name__}: {error}".replace("\n", "\n# "))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
