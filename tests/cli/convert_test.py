#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each option of convert does what it says: the checks look at what was written. Prints TAP.

usage: convert_test.py --bin PATH
"""
import argparse
import json
import signal
import struct
import subprocess
import sys
import time
import zipfile

import small_models


def write_safetensors(path, tensors):
    """tensors: {key: (dtype, shape, bytes)}"""
    header, at = {}, 0
    for key, (dtype, shape, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {key: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for key,
            t in header.items()}


class Shell:
    """The command in a folder that holds `source`: eight tensors of 1 KiB each, and two small ones."""

    def __init__(self, binary, work):
        self.binary, self.work = binary, work
        self.tensors = {f"model.layers.{i}.weight": ("F32", [16, 16], struct.pack("<256f", *(x / 7 + i for x in range(256))))
                        for i in range(8)}
        self.tensors["model.norm.weight"] = ("F32", [4], struct.pack("<4f", 1, 1.5, -2, 1e30))
        self.tensors["step"] = ("I64", [], struct.pack("<q", 77))
        write_safetensors(work / "source.safetensors", self.tensors)

    def __call__(self, *arguments, status=0):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, errors="replace", timeout=120,
                              cwd=self.work)
        assert status in (done.returncode, None), f"{arguments}: exit {done.returncode}, not {status}: {done.stderr.strip()[:300]}"
        return done

    def convert(self, target, *options, status=0, source="source.safetensors"):
        return self("convert", source, target, *options, status=status)

    def types(self, path):
        return {t["key"]: t["dtype"] for t in json.loads(self("ls", "--json", path).stdout)["tensors"]}

    def same(self, a, b):
        self("diff", "--items", "ignore", a, b)

    def names(self):
        return sorted(p.name for p in self.work.iterdir())


# A model alone is the same files in both.
SAME_FILES = {("fsdp_dtensor", "torch_dcp"), ("paddle-uc", "hf")}


def to_every_format(shell):
    formats = [f["name"] for f in json.loads(shell("formats", "--json").stdout)["formats"] if f["writes"]]
    for name in formats:
        if name == "megatron":
            assert "no key is one of a Megatron model" in shell.convert("as-megatron", "--to", name, "--quiet", status=5).stderr
            continue
        shell.convert(f"as-{name}", "--to", name, "--quiet", "--verify")
        found = json.loads(shell("ls", "--json", f"as-{name}").stdout)["format"]
        # Megatron-FSDP's checkpoints are told from torch_dcp by the keys of its models, which these are not.
        assert found == name or (name, found) in SAME_FILES, f"{found} instead of {name}"
        shell.same("source.safetensors", f"as-{name}")
    return " ".join(formats)


def nothing_in_every_format(shell):
    """What is written of a checkpoint without anything in it opens again. A folder of arrays without one is not written."""
    (shell.work / "nothing.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    known = json.loads(shell("formats", "--json").stdout)["formats"]
    formats = [f["name"] for f in known if f["writes"] and f["name"] not in ("megatron", "npy")]
    for name in formats:
        shell("convert", "nothing.safetensors", f"nothing-{name}", "--to", name, "--quiet", "--verify")
        assert json.loads(shell("ls", "--json", f"nothing-{name}").stdout)["tensors"] == [], name
    return " ".join(formats)


def unknown_format(shell):
    done = shell.convert("out", "--to", "torch_dpc", status=2)
    assert "'torch-dcp'" in done.stderr and "hint: did you mean" in done.stderr, done.stderr
    done = shell.convert("out", "--to", "hff", "--json", status=2)
    assert json.loads(done.stderr)["hint"] == "did you mean 'hf'?", done.stderr
    done = shell.convert("out", status=2)
    assert "--to" in done.stderr and "--like" in done.stderr, done.stderr
    assert "out" not in shell.names()


def dtype(shell):
    shell.convert("a.safetensors", "--to", "safetensors", "--dtype", "bf16")
    found = read_safetensors(shell.work / "a.safetensors")
    assert {t[0] for key, t in found.items() if key != "step"} == {"BF16"} and found["step"][0] == "I64", found.keys()
    assert found["model.norm.weight"][2] == bytes.fromhex("803fc03f00c04a71"), found["model.norm.weight"]
    shell.convert("b.safetensors", "--to", "safetensors", "--dtype", "f16", "--dtype", "*.norm.*=f32")
    types = shell.types("b.safetensors")
    assert types["model.norm.weight"] == "F32" and types["model.layers.3.weight"] == "F16", types
    done = shell.convert("c.safetensors", "--to", "safetensors", "--dtype", "f23", status=2)
    assert "f23" in done.stderr, done.stderr
    done = shell.convert("c.safetensors", "--to", "safetensors", "--dtype", "model.norm.weight=c64", status=5)
    assert "tensor 'model.norm.weight': no cast from F32 to C64" in done.stderr, done.stderr


def dtype_names(shell):
    """What others call a type is understood well enough to say its name; whole numbers are for tensors that are named."""
    for said, meant in (("fp16", "F16"), ("fp32", "F32"), ("fp8", "F8_E4M3"), ("torch.bfloat16", "BF16")):
        done = shell.convert("a.safetensors", "--dtype", said, status=2)
        assert f"unknown dtype '{said}'" in done.stderr and f"did you mean '{meant}'?" in done.stderr, done.stderr
    done = shell.convert("a.safetensors", "--dtype", "f23", status=2)
    assert "F64" in done.stderr and "BF16" in done.stderr and "I64" not in done.stderr, done.stderr
    for whole in ("int8", "u16", "BOOL"):
        done = shell.convert("a.safetensors", "--dtype", whole, status=2)
        assert f"--dtype GLOB={whole} casts the tensors that are named" in done.stderr, done.stderr
    shell.convert("a.safetensors", "--dtype", "model.norm.weight=i8")
    assert shell.types("a.safetensors")["model.norm.weight"] == "I8"


def packed(shell):
    """F4 is, to torch, bytes of two: the last dimension is half as long, wherever it is cut."""
    data = bytes(range(48))
    write_safetensors(shell.work / "f4.safetensors", {"w": ("F4", [6, 16], data), "b": ("F32", [1], b"1234")})
    for number, words in enumerate((["torch"], ["torch-dcp"], ["torch-dcp", "--layout", "ranks=4"], ["fsdp-ranks"])):
        out, back = f"p{number}", f"p{number}.safetensors"
        done = shell("convert", "f4.safetensors", out, "--to", *words, "--verify")
        assert "w: F4 becomes float4_e2m1fn_x2, its last dimension half as long" in done.stderr, done.stderr
        found = {t["key"]: t for t in json.loads(shell("ls", "--json", out).stdout)["tensors"]}
        assert (found["w"]["dtype"], found["w"]["shape"]) == ("float4_e2m1fn_x2", [6, 8]), found
        shell("convert", out, back, "--to", "safetensors", "--verify")
        assert read_safetensors(shell.work / back)["w"] == ("F4", [6, 16], data), words
    write_safetensors(shell.work / "odd.safetensors", {"w": ("F4", [2, 3], b"123"), "none": ("F4", [0, 3], b""),
                                                       "x": ("F6_E2M3", [4], b"123")})
    in_pairs = "two in a byte along an even last dimension: this one cannot be written so"
    for to in ("torch", "torch-dcp", "fsdp-ranks"):
        for key, why in (("w", in_pairs), ("none", in_pairs), ("x", "no type F6_E2M3")):
            done = shell("convert", "odd.safetensors", "odd", "--to", to, "--include", key, status=5)
            assert why in done.stderr and "--exclude" in done.stderr and "--dtype" not in done.stderr, (to, done.stderr)


def long_names(shell):
    """Of names nothing is cut off, however long they are and whatever bytes are in them."""
    stem = "n" * 2400
    names = [stem + ".a", stem + ".b", "x\0y.a", "x\0y.b"]
    write_safetensors(shell.work / "names.safetensors", {name: ("F32", [1], struct.pack("<i", i)) for i, name in enumerate(names)})
    for to in ("hf", "torch", "torch-dcp", "torch_dist", "torch_dcp", "fsdp_dtensor", "fsdp-ranks", "atorch", "paddle-flex", "paddle-uc",
               "paddle"):
        shell("convert", "names.safetensors", "n-" + to, "--to", to, "--verify")
        shell("diff", "names.safetensors", "n-" + to, "--items", "ignore")


def scales(shell):
    """Values that lie in blocks with scales beside them are not those of the model: who casts them is warned, once."""
    tensors = {}
    for name, scale in (("a.weight", "a.weight_scale_inv"), ("b.weight", "b.weight_scale"), ("c.weight", "c.scale")):
        tensors |= {name: ("F8_E4M3", [2, 2], b"abcd"), scale: ("F32", [1, 1], b"1234")}
    write_safetensors(shell.work / "f8.safetensors", tensors)
    said = "becomes BF16, like 1 more, with the values as they are stored: the scales beside it, 'a.weight_scale_inv', are not applied"
    done = shell("convert", "f8.safetensors", "f8", "--to", "hf", "--dtype", "bf16", "--json")
    assert json.loads(done.stdout)["warnings"] == ["a.weight: " + said], done.stdout
    assert f"a.weight: {said}" in shell("plan", "f8.safetensors", "--to", "hf", "--dtype", "bf16").stdout
    for words in ([], ["--dtype", "c.weight=f32"], ["--dtype", "*_scale_inv=bf16"], ["--dtype", "*.weight=F8_E5M2"]):
        done = shell("convert", "f8.safetensors", "f8", "--to", "hf", "--json", "--overwrite", *words)
        assert not json.loads(done.stdout)["warnings"], (words, done.stdout)


def selection(shell):
    shell.convert("a", "--to", "hf", "--include", "model.layers.*", "--include", "step", "--exclude", "*.[3-7].*")
    found = sorted(shell.types("a"))
    assert found == ["model.layers.0.weight", "model.layers.1.weight", "model.layers.2.weight", "step"], found
    done = shell("diff", "source.safetensors", "a", "--items", "ignore", "--json", status=1)
    assert {f["kind"] for f in json.loads(done.stdout)["findings"]} == {"missing"}, done.stdout


def max_shard_size(shell):
    shell.convert("a", "--to", "hf", "--max-shard-size", "3000")
    files = sorted(p.name for p in (shell.work / "a").glob("*.safetensors"))
    index = json.loads((shell.work / "a" / "model.safetensors.index.json").read_text())
    assert len(files) >= 4 and set(index["weight_map"].values()) == set(files), files
    for file in files:
        data = sum(len(t[2]) for t in read_safetensors(shell.work / "a" / file).values())
        assert data <= 3000, f"{file}: {data} bytes"
    shell.same("source.safetensors", "a")
    return f"{len(files)} files"


def checksum(shell):
    for word in ("crc32c", "sha256"):
        shell.convert(word, "--to", "hf", "--checksum", word)
        sidecar = json.loads((shell.work / word / "reshard.json").read_text())
        assert sidecar["digest"] == word and set(sidecar["tensors"]) == set(shell.tensors), sidecar
        shell("verify", word)
        file = next((shell.work / word).glob("*.safetensors"))
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        done = shell("verify", "--json", word, status=1)
        failures = [f for f in json.loads(done.stdout)["findings"] if f["severity"] == "failure"]
        last = max(read_safetensors(file).items(), key=lambda item: data.find(item[1][2]) if item[1][2] else -1)[0]
        assert [f["key"] for f in failures] == [last] and failures[0]["kind"] == "checksum", failures
    shell.convert("none", "--to", "hf", "--checksum", "none")
    assert not (shell.work / "none" / "reshard.json").exists()
    shell.convert("one.safetensors", "--to", "safetensors", "--checksum", "sha256")
    assert "one.safetensors.reshard.json" in shell.names(), shell.names()
    shell("verify", "one.safetensors")


def verify(shell):
    shell.convert("a", "--to", "torch-dcp", "--layout", "ranks=3", "--verify", "--dtype", "bf16")
    assert set(shell.types("a").values()) == {"BF16", "I64"}


def dry_run(shell):
    before = shell.names()
    done = shell.convert("out", "--to", "hf", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert plan["schema"] == "reshard-plan/1" and plan["tensors"] == 10 and plan["write_bytes"] == 8 * 1024 + 16 + 8, plan
    assert shell.names() == before, shell.names()


def layout(shell):
    shell.convert("a", "--to", "torch-dcp", "--layout", "ranks=4")
    files = sorted(p.name for p in (shell.work / "a").glob("*.distcp"))
    assert len(files) == 4, files
    listing = json.loads(shell("ls", "--json", "--chunks", "a").stdout)["tensors"]
    for tensor in listing:
        if tensor["key"].startswith("model.layers"):
            assert [c["extent"] for c in tensor["chunks"]] == [[4, 16]] * 4, tensor
            assert len({c["file"] for c in tensor["chunks"]}) == 4, tensor
    shell.same("source.safetensors", "a")
    done = shell.convert("b", "--to", "torch-dcp", "--layout", "ranks=many", status=2)
    assert "ranks=many" in done.stderr, done.stderr
    shell.convert("c", "--to", "torch", "--layout", "tp=1,pp=1")  # says nothing to this format, but is no mistake
    done = shell.convert("d", "--to", "torch-dcp", "--layout", "rank=1", status=5)
    assert "has no 'rank'" in done.stderr and "ranks=N" in done.stderr, done.stderr


def torch_archives(shell):
    """The folder in a torch file has the name that torch.save 2.13 gives it: the file's without its last suffix, if it is plain ASCII."""
    for name, top in (("model.v1.pt", "model.v1"), ("model", "model"), ("a b.pt", "a b"), ("x..pt", "x."), ("-.pt", "-"),
                      ("plain.bin", "plain"), (".hidden.pt", ".hidden"), ("\u00e9.pt", "archive"), ("pr\u00e9 fixe.v2.bin", "archive"),
                      (".pt", "archive"), ("..pt", "archive"), ("tab\t.pt", "archive")):
        shell.convert(f"./{name}", "--to", "torch", "--quiet")
        with zipfile.ZipFile(shell.work / name) as archive:
            tops = {member.split("/")[0] for member in archive.namelist()}
        assert tops == {top}, f"{name!r}: {tops}"


def empty_tensors(shell):
    """A tensor without elements is one of those that are counted, whether a format stores something of it or not."""
    write_safetensors(shell.work / "empty.safetensors", {"a": ("F32", [2, 0], b""), "b": ("F32", [1], bytes(4))})
    for target in ("torch", "hf", "torch-dcp", "zarr", "paddle"):
        done = shell.convert(target, "--to", target, "--json", source="empty.safetensors")
        assert json.loads(done.stdout)["tensors"] == len(shell.types(target)) == 2, (target, done.stdout)


WRONG = ("--to nothing", "--to torch --layout x=1", "--to torch --layout ranks=0", "--to torch --part 3/2",
         "--to torch --missing nowhere", "--to torch --wrap root", "--to torch --map nowhere", "--to torch --rules nothing",
         "--to torch --config nowhere", "--like nowhere", "--to torch --set a", "--to torch -m w->", "--to torch --include zz",
         "--to torch --exclude zz", "--to torch --dtype nothing", "--to torch --dtype zz=f32", "--to torch -o nothing=1",
         "--to torch --limit nothing=1", "--to torch --checksum md5", "--to torch --rename s/x",
         "--to torch --rename s/model.norm.weight/step/", "--to torch --strip-prefix zz --include yy", "--to torch --threads x",
         "--to torch --memory x", "--to torch --io x", "--to torch --iteration 7", "--to torch --format hf",
         "--to torch --max-shard-size x", "--to torch --items x", "--to megatron --layout tp=3")


def wrong_options_come_first(shell):
    """What is wrong with the options is said before that something is there already."""
    (shell.work / "there").write_bytes(b"kept")
    for words in WRONG:
        new, there = (shell("convert", "source.safetensors", name, *words.split(), status=None) for name in ("new", "there"))
        assert new.returncode not in (0, 1) and "File exists" not in there.stderr, (words, new.stderr, there.stderr)
        assert new.stderr.replace("new", "there") == there.stderr.replace("new", "there"), (words, new.stderr, there.stderr)
    assert (shell.work / "there").read_bytes() == b"kept" and not (shell.work / "new").exists()


def format_option(shell):
    shell.convert("a", "--to", "hf", "-o", "stem=weights")
    assert [p.name for p in (shell.work / "a").glob("*.safetensors")] == ["weights.safetensors"]
    done = shell.convert("b", "--to", "hf", "-o", "steam=weights", status=2)
    assert "steam" in done.stderr and "reshard formats hf" in done.stderr, done.stderr
    done = shell.convert("b", "--to", "hf", "-o", "stem", status=2)
    assert "NAME=VALUE" in done.stderr, done.stderr
    done = shell.convert("b", "--to", "hf", "-o", "stem=weights", "-o", "tied=drop", "-o", "stem=part", status=2)
    assert "option 'stem' is said twice" in done.stderr, done.stderr
    done = shell.convert("b", "--to", "torch-dcp", "--layout", "ranks=2,ranks=3", status=2)
    assert "layout 'ranks=2,ranks=3': ranks is said twice" in done.stderr, done.stderr
    done = shell.convert("b", "--to", "torch-dcp", "--part", "0/5000000000", status=2)
    assert "--part: a number is above 2^32 - 1" in done.stderr, done.stderr


def like(shell):
    shell.convert("reference", "--to", "hf", "--max-shard-size", "3kb", "-o", "stem=part")
    shell.convert("bf16.safetensors", "--to", "safetensors", "--dtype", "bf16")
    shell.convert("a", "--like", "reference", source="bf16.safetensors")
    files = {p.name for p in (shell.work / "a").iterdir()}
    assert files == {p.name for p in (shell.work / "reference").iterdir()}, files
    assert set(shell.types("a").values()) == {"BF16", "I64"}, "values and types come from the source"
    shell.same("bf16.safetensors", "a")


def remarks(shell):
    """What the reference has and the source lacks is counted once, and a target that is called as the iteration in it is told."""
    shell.convert("reference", "--to", "hf")
    lacking = "tensors of the reference are not written, as the source lacks them: "
    for options, said in (([], None), (["--exclude", "step"], None), (["--add-prefix", "q."], len(shell.types("reference"))),
                          (["--rename", "s/step/steps/"], 1), (["--rename", "s/step/steps/", "--exclude", "step*"], None),
                          (["--rename", "s/step/steps/", "--missing", "zeros"], None)):
        done = shell.convert("a", "--like", "reference", "--overwrite", *options)
        assert done.stderr.count(lacking) == bool(said) and (not said or f"warning: {said} {lacking}'" in done.stderr), done.stderr
    for name, options in (("iter_0000010", ["-o", "iteration=10"]), ("iter_0000011", ["-o", "iteration=10"]),
                          ("iter_0000012", ["-o", "root=none", "-o", "iteration=12"])):
        done = shell.convert(name, "--to", "torch_dist", *options)
        warning = f"warning: the target is the folder of all iterations: '{name}' gets a folder '{name}'"
        assert (warning in done.stderr) == (name == "iter_0000010"), done.stderr


def memory_and_threads(shell):
    for options in (["--memory", "1MiB", "--threads", "1"], ["--memory", "64MiB", "--threads", "4"], ["--io", "buffered"], ["--io", "mmap"],
                    ["--io", "direct"]):
        target = "out-" + "-".join(options).strip("-")
        shell.convert(target, "--to", "torch-dcp", "--layout", "ranks=2", *options)
        shell.same("source.safetensors", target)


def compressed_chunks(shell):
    """Chunks that are decoded as a whole: side by side or whole rows, shared by any number of workers, with room for many of them or for
    one."""
    rows, columns = 1024, 512
    values = struct.pack(f"<{rows * columns}I", *(i * 2654435761 % 2**32 & 0xffff0000 for i in range(rows * columns)))
    write_safetensors(shell.work / "large.safetensors", {"w": ("F32", [rows, columns], values)})
    wanted = shell("hash", "large.safetensors").stdout
    for number, chunks in enumerate(("100,300", "256,512", "1024,64")):
        store = f"zarr-{number}"
        shell.convert(store, "--to", "zarr", "-o", f"chunks={chunks}", "-o", "codec=zstd", "-o", "level=1", source="large.safetensors")
        for i, options in enumerate((["--threads", "1"], ["--threads", "2"], ["--threads", "7"], ["--threads", "3", "--memory", "1MiB"])):
            assert shell("hash", store, *options).stdout == wanted, options
            shell.convert(f"{store}-{i}", "--to", "safetensors", *options, source=store)
            assert read_safetensors(shell.work / f"{store}-{i}")["w"][2] == values, options


def existing_target(shell):
    (shell.work / "there").write_text("precious")
    (shell.work / "folder").mkdir()
    (shell.work / "folder" / "file").write_text("precious")
    before = shell.names()
    for target, form in (("there", "safetensors"), ("there", "hf"), ("folder", "hf"), ("folder", "safetensors")):
        done = shell.convert(target, "--to", form, status=3)
        assert "hint: --overwrite" in done.stderr and f"'{target}'" in done.stderr, done.stderr
    assert (shell.work / "there").read_text() == "precious" and (shell.work / "folder" / "file").exists() and shell.names() == before
    for target, form in (("there", "safetensors"), ("there", "hf"), ("folder", "hf"), ("folder", "safetensors")):
        done = shell.convert(target, "--to", form, "--overwrite", status=2)
        assert f"'{target}' is no checkpoint" in done.stderr and "hint: remove it" in done.stderr, done.stderr
    assert (shell.work / "there").read_text() == "precious" and (shell.work / "folder" / "file").exists() and shell.names() == before
    (shell.work / "there").unlink()
    (shell.work / "folder" / "file").unlink()
    shell.convert("there", "--to", "safetensors")
    shell.convert("there", "--to", "hf", "--overwrite")
    shell.convert("folder", "--to", "safetensors", "--overwrite")
    shell.same("there", "folder")
    assert shell.names() == before, shell.names()


def source_is_safe(shell):
    shell.convert("src", "--to", "hf")
    (shell.work / "link").symlink_to("src")
    (shell.work / "outer").mkdir()
    (shell.work / "src").rename(shell.work / "outer" / "src")
    (shell.work / "link").unlink()
    (shell.work / "link").symlink_to("outer/src")
    for source, target in (("outer/src", "outer/src"), ("outer/src", "link"), ("outer/src/", "outer/src/new"), ("link", "outer/src/new"),
                           ("outer/src", "outer"), ("source.safetensors", "./source.safetensors")):
        done = shell.convert(target, "--to", "hf", "--overwrite", source=source, status=2)
        assert done.stderr.startswith("reshard: ") and "hint: " in done.stderr, done.stderr
    shell.same("outer/src", "source.safetensors")
    assert [p.name for p in (shell.work / "outer" / "src").iterdir()] == ["model.safetensors"]


def no_folder(shell):
    done = shell.convert("no/where", "--to", "hf", status=3)
    assert "'no/where'" in done.stderr and "hint: the folder" in done.stderr, done.stderr
    done = shell.convert("source.safetensors/x", "--to", "hf", status=3)
    assert "Not a directory" in done.stderr, done.stderr
    done = shell.convert("", "--to", "hf", status=2)
    assert done.stderr.startswith("reshard: "), done.stderr


def resume(shell):
    """An interrupted run leaves its part, and the same command goes on; a run of its own does not trip over it."""
    with open(shell.work / "large.safetensors", "wb") as out:
        text = json.dumps({f"t{i}": {"dtype": "U8", "shape": [4 << 20], "data_offsets": [i << 22, i + 1 << 22]}
                           for i in range(64)}).encode()
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + (64 << 22))
    stopped = 0
    for delay in (0.02, 0.05, 0.1, 0.2):
        process = subprocess.Popen([shell.binary, "convert", "large.safetensors", "big", "--to", "torch-dcp", "--layout", "ranks=2",
                                    "--resume"],
                                   cwd=shell.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode in (130, -signal.SIGINT) and not (shell.work / "big").exists(), (process.returncode, err)
        assert not err or "the same command goes on" in err, err
        stopped += 1
    if not (shell.work / "big").exists():
        shell.convert("big", "--to", "torch-dcp", "--layout", "ranks=2", "--resume", source="large.safetensors")
    shell.same("large.safetensors", "big")
    assert shell.names() == ["big", "large.safetensors", "source.safetensors"], shell.names()
    return f"stopped {stopped} times"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    checks = (to_every_format, nothing_in_every_format, unknown_format, dtype, dtype_names, packed, long_names, scales, selection,
              max_shard_size, checksum, verify, dry_run,
              layout, torch_archives, empty_tensors, wrong_options_come_first,
              format_option, like, remarks, memory_and_threads, compressed_chunks, existing_target, source_is_safe, no_folder, resume)
    return small_models.run(args.bin,
                            [(check.__name__, lambda shell, check=check: check(Shell(shell.binary, shell.work))) for check in checks])


sys.exit(main())
