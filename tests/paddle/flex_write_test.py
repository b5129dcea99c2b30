#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `convert --to paddle-flex` writes, looked at with Python's own unpickler: each generation of the metadata,
who keeps what of replicas, paths, names, items, the layout of a reference, and what is refused."""
import argparse
import collections
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import strategies as S

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

OLD, NEW = "paddle.distributed.checkpoint.metadata", "paddle.distributed.flex_checkpoint.dcp.metadata"
SHARD = ["global_offset", "local_shape", "dtype", "global_shape", "is_flattened", "flattened_range"]
INDEX = ["tensor_key", "global_offset", "is_flattened", "flattened_range", "replica_id", "local_shape"]
GENERATIONS = {  # option: module, members of a shard, of an index, whether there are paths
    "2.6": (OLD, SHARD[:2], INDEX[:2], False), "3.0": (OLD, SHARD[:3], INDEX[:2], True), "v0": (OLD, SHARD[:3], INDEX[:2], True),
    "3.2": (NEW, SHARD, INDEX[:4], True), "v1": (NEW, SHARD, INDEX[:4], True), "3.3": (NEW, SHARD, INDEX, True), "v2": (NEW, SHARD,
        INDEX, True),
}
number, failed = 0, 0


def tap(name, problem):
    global number, failed
    number += 1
    failed += bool(problem)
    print(f"{'not ok' if problem else 'ok'} {number} - {name}" + (f"\n#   {problem}" if problem else ""), flush=True)


def safetensors(path, tensors):
    """tensors: key -> shape, of float32 zeros and on."""
    header, data = {}, b""
    for key, shape in tensors.items():
        count = 1
        for extent in shape:
            count *= extent
        value = struct.pack(f"<{count}f", *(len(data) + i for i in range(count)))
        header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Modules(S.InertUnpickler):
    """Notes which modules the classes are of."""
    seen = set()

    def find_class(self, module, name):
        if name.startswith("Local") or name == "Metadata":
            self.seen.add(module)
        return super().find_class(module, name)


class Shell:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work

    def run(self, *words):
        done = subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def convert(self, source, *options):
        """The folder that was written, or the message."""
        out = self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        code, _, message = self.run("convert", source, out, "--to", "paddle-flex", "--quiet", *options)
        return (out, "") if code == 0 else (None, f"exit {code}: {message.strip()}")

    def chunks(self, path):
        code, text, message = self.run("ls", "--chunks", "--json", path)
        if code:
            return message
        return {(t["key"], tuple(c["start"]), tuple(c["extent"]), str(c.get("flat")), c["file"], c["replica"])
                for t in json.loads(text)["tensors"] for c in t["chunks"]}


def metadata_of(folder):
    Modules.seen = set()
    with open(folder / "0.metadata", "rb") as stream:
        return Modules(stream).load()


def check_generation(shell, source, option):
    module, shard, index, has_paths = GENERATIONS[option]
    out, message = shell.convert(source, "--layout", "sharding=2,stage=1v2" if len(shard) > 3 else "dp=2", "-o", f"generation={option}")
    if message:
        return message
    found = metadata_of(out)
    members = {k for k in found.__dict__ if k != "args"}
    shards = [s for of_key in found.state_dict_metadata.values() for s in of_key]
    if Modules.seen != {module}:
        return f"classes of {Modules.seen}"
    if ("flat_mapping" in members) != has_paths or members - {"flat_mapping"} != {"state_dict_metadata", "storage_metadata"}:
        return f"members {members}"
    for objects, wanted in ((shards, shard), (found.storage_metadata, index)):
        for one in objects:
            if [k for k in one.__dict__ if k != "args"] != wanted:
                return f"{one.__dict__} instead of {wanted}"
    code, text, message = shell.run("diff", source, out)
    return text + message if code else ""


def files_of(folder):
    """key -> files that the metadata names, with replica ids."""
    found = {}
    for index, file in metadata_of(folder).storage_metadata.items():
        found.setdefault(index.tensor_key, {})[index.replica_id] = file.replace(".distcp", "")
    return found


def check_dedupe(shell, source, option, wanted, words="dp=2"):
    out, message = shell.convert(source, "--layout", words, "-o", f"dedupe={option}")
    if message:
        return message
    found = {k: v for k, v in files_of(out).items() if k in wanted}
    if found != wanted:
        return f"{found} instead of {wanted}"
    for key, files in wanted.items():
        for file in files.values():
            if key not in S.unpickle(out / f"{file}.distcp"):
                return f"{file} lacks {key}"
    return ""


def check_names(shell, model):
    """The framework's own names are taken from the table of the source."""
    out, message = shell.convert(model, "--layout", "tp=2")
    if message:
        return message
    table = {}
    for file in out.glob("*.distcp"):
        table.update(S.unpickle(file)["StructuredToParameterName@@"])
    return "" if table else "no table of names"


TABLE = "StructuredToParameterName@@"


def tables_of(folder):
    """key -> the framework's name, of all files."""
    found = {}
    for file in sorted(folder.glob("*.distcp")):
        found.update(S.unpickle(file)[TABLE])
    return found


def flex_with_tables(folder, *tables):
    """A checkpoint of one file a table, in which every tensor has a name."""
    folder.mkdir()
    keys = [*dict.fromkeys(key for table in tables for key in table)]
    model = S.Model([S.Parameter(key, (4, 4)) for key in keys], 0, 0)
    held = [[S.Shard(key, "bfloat16", (4, 4), (0, 0), (4, 4), name=name) for key, name in table.items()] for table in tables]
    S.write_flex(model, S.stored(model, S.BY_NAME[f"dp{len(tables)}"], held), folder)
    return folder


def check_kept_names(shell, work):
    """They stay in other layouts and formats, and a reference gives them; what two files call alike has no name."""
    wanted = {"a": "linear_0.w_0", "b": "linear_1.w_0", "tied": "linear_1.w_0", "mine": "linear_7.w_0", "yours": "linear_7.w_0"}
    source = flex_with_tables(work / "named", {key: wanted[key] for key in ("a", "b", "tied", "mine")}, {"yours": wanted["yours"]})
    wanted.update(mine="mine", yours="yours")
    for words in ("dp=1", "dp=2", "pp=2"):
        out, message = shell.convert(source, "--layout", words)
        if message or tables_of(out) != wanted:
            return f"{words}: {message or tables_of(out)}"
    out.rename(work / "again")
    code, _, message = shell.run("convert", work / "again", work / "named.pdparams", "--to", "paddle", "--quiet")
    if code or S.unpickle(work / "named.pdparams")[TABLE] != wanted:
        return message or f"table {S.unpickle(work / 'named.pdparams')[TABLE]}"
    out, message = shell.convert(work / "named.pdparams", "--layout", "dp=2")
    if message or tables_of(out) != wanted:
        return f"of a .pdparams: {message or tables_of(out)}"
    code, _, message = shell.run("convert", source, work / "bare.safetensors", "--to", "safetensors", "--quiet")
    out, message = (None, message) if code else shell.convert(work / "bare.safetensors", "--like", source)
    if message or tables_of(out) != wanted:
        return f"of a reference: {message or tables_of(out)}"
    (source / "1_0.distcp").write_bytes((source / "1_0.distcp").read_bytes()[:-9])
    code, _, message = shell.run("convert", work / "bare.safetensors", work / "cut", "--like", source, "--quiet")
    return "" if code == 0 and tables_of(work / "cut")["a"] == wanted["a"] else f"of a broken reference: exit {code}: {message}"


def check_side_files(shell, work, model):
    """What a trainer leaves beside a model comes along, there and back."""
    folder, files = work / "hf", {"config.json": b'{"a": 1}', "tokenizer.model": bytes(range(9)), "rng_state_0.pth": b"x" * 3}
    folder.mkdir()
    shutil.copy(model, folder / "model.safetensors")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    out, message = shell.convert(folder, "--layout", "tp=2")
    if message:
        return message
    again, message = shell.convert(out.rename(work / "once"), "--layout", "dp=2")
    if message:
        return message
    for name in ("config.json", "tokenizer.model"):
        if (again / name).read_bytes() != files[name]:
            return f"{name}: other bytes"
    return ""


def check_items(shell, work, beside):
    """Plain values go into a file of their own, since Paddle's loader takes what it loads for tensors, and come back."""
    table = {"w": 1.5, "state": {"step": 7, "names": ["a", "a"], "raw": b"\0\xff"}}
    (work / "items.pdparams").write_bytes(S.pickle.dumps(table, 4))
    out, message = shell.convert(work / "items.pdparams")
    if message:
        return message
    stored = {k: v for k, v in S.unpickle(out / "0_0.distcp").items() if not k.endswith("@@")}
    code, text, message = shell.run("diff", work / "items.pdparams", out)
    if code:
        return text + message
    flat = {"w": 1.5, "state.step": 7, "state.names.0": "a", "state.names.1": "a", "state.raw": b"\0\xff"}
    if stored != flat:
        return f"{stored} instead of {flat}"
    out, message = shell.convert(beside)
    if message or any(f == "1_0.distcp" for f in metadata_of(out).storage_metadata.values()):
        return message or "the file of the items has tensors"
    items = [json.loads(shell.run("ls", "--items", "--json", p)[1])["items"] for p in (beside, out)]
    values = [{i["key"]: i.get("value") for i in of_one if not i["key"].endswith("@@")} for of_one in items]
    return "" if values[0] and values[0] == values[1] and len(S.unpickle(out / "1_0.distcp")) == len(values[0]) + 1 else f"items {values}"


def check_dropped(shell, work):
    """What its unpickler would not take for data is left out, and why is said."""
    storage = lambda number: torch_stub.tensor("FloatStorage", (2,), bytes([number]) * 8)
    torch_stub.write_zip(work / "objects.pt", {"w": storage(1), "plain": {"a": (1, None, True)}, "set": {1, 2}, "class": torch_stub.Named(
        "torch", "float32"), "made": collections.defaultdict(list, k=[1]), "raw": storage(3).storage})
    shutil.rmtree(work / "out", ignore_errors=True)
    code, _, said = shell.run("convert", work / "objects.pt", work / "out", "--to", "paddle-flex")
    wanted = [f"dropped: {key}: it is an object of a class, not plain data" for key in ("set", "class", "made")]
    lacking = [line for line in (*wanted, "dropped: raw: it has tensors in it") if line not in said.splitlines()]
    return f"exit {code}: {said}" if code or lacking or said.count("dropped") != 4 else ""


def check_like(shell, path):
    out, message = shell.convert(path, "--like", path)
    if message:
        return message
    ours, theirs = shell.chunks(out), shell.chunks(path)
    if ours != theirs:
        return f"chunks differ: {sorted(set(ours) ^ set(theirs))[:2]}"
    for theirs in sorted(path.glob("**/*.metadata")):
        spelled = [table_of(f) for f in (theirs, out / theirs.relative_to(path))]
        if spelled[0] != spelled[1]:
            return f"{theirs.name}: {sorted(map(str, spelled[0] ^ spelled[1]))[:2]}"
    return ""


def table_of(path):
    """The storage table of a metadata file, and which module and members it has."""
    Modules.seen = set()
    with open(path, "rb") as stream:
        found = Modules(stream).load()
    shard = next(iter(found.state_dict_metadata.values()))[0]
    members = {(*sorted(Modules.seen), *(k for k in shard.__dict__ if k != "args"))}
    return members | {(tuple((k, tuple(v) if isinstance(v, (list, tuple)) else v) for k, v in index.__dict__.items() if k != "args"), file)
                      for index, file in found.storage_metadata.items()}


FOLDERS = {"model_state": "weight", "optimizer_state": "state", "master_weight": "master"}


def kind_of(key):
    return "master" if key.endswith(".w_0") else "state" if key.endswith("_0") else "weight"


def check_trainer(shell, source, ranks, *options):
    """Three checkpoints of that many ranks, each of what the trainer keeps there, which are one; whatever of it there is."""
    out, message = shell.convert(source, *options)
    if message:
        return message
    wanted = {f"{folder}/{name}" for folder in FOLDERS for name in ("0.metadata", *(f"{rank}_0.distcp" for rank in range(ranks)))}
    found = {str(p.relative_to(out)) for p in out.glob("**/*") if p.suffix in (".distcp", ".metadata")}
    if found != wanted:
        return f"files {sorted(found)}"
    keys = set()
    for folder, kind in FOLDERS.items():
        here = set(metadata_of(out / folder).state_dict_metadata)
        stray = [key for key in here if kind_of(key) != kind]
        if stray or {k.tensor_key for k in metadata_of(out / folder).storage_metadata} != here:
            return f"{folder}: {stray}"
        keys |= here
    if keys != {tensor["key"] for tensor in json.loads(shell.run("hash", "--json", out)[1])["tensors"]}:
        return f"keys {sorted(keys)}"
    for words in (("verify", out), ("diff", source, out, "--items", "ignore")):
        code, text, message = shell.run(*words)
        if code:
            return text + message
    return ""


def check_one_folder(shell, source, *options):
    out, message = shell.convert(source, *options)
    if message or list(out.glob("*_state")) or not (out / "0.metadata").exists():
        return message or f"folders {sorted(p.name for p in out.iterdir() if p.is_dir())}"
    code, text, message = shell.run("diff", source, out, "--items", "ignore")
    return text + message if code else ""


def check_trainer_items(shell, work):
    """Values lie with the weights, in a file of their own."""
    tensors = {key: torch_stub.tensor("FloatStorage", (2,), bytes(8)) for key in ("w", "w.moment1_0")}
    torch_stub.write_zip(work / "items.pt", {"n": 7} | tensors)
    out, message = shell.convert(work / "items.pt", "-o", "folders=trainer")
    if message or not (out / "model_state/1_0.distcp").exists():
        return message or "no file of values"
    code, text, message = shell.run("diff", work / "items.pt", out)
    return text + message if code else ""


def check_like_with_words(shell, reference, words, other=None):
    """The words say how tensors are cut; the folders, the payload, the uid and the generation are the reference's."""
    source = other or reference
    out, message = shell.convert(source, "--like", reference, "--layout", words)
    if message:
        return message
    ours = shell.chunks(out.rename(shell.work / "like"))
    try:
        out, message = shell.convert(source, "--layout", words, "-o",
                                     f"folders={'trainer' if (reference / 'model_state').exists() else 'one'}")
        if message:
            return message
        theirs = shell.chunks(out)
        uid = max(int(p.name.split(".")[0]) for p in reference.glob("**/*.metadata"))
        suffix = next(p.suffix for p in reference.glob(f"**/*_{uid}.*") if p.suffix != ".metadata")
        theirs = {(*chunk[:4], chunk[4].replace("_0.distcp", f"_{uid}{suffix}"), chunk[5]) for chunk in theirs}
        if ours != theirs:
            return f"chunks differ: {sorted(set(ours) ^ set(theirs))[:4]}"
        for folder in {p.parent.relative_to(reference) for p in reference.glob("**/*.metadata")}:
            paths = [root / folder / f"{uid}.metadata" for root in (reference, shell.work / "like")]
            spelled = [sorted(members_of(path)) for path in paths]
            if spelled[0] != spelled[1]:
                return f"{folder}: {spelled}"
        return ""
    finally:
        shutil.rmtree(shell.work / "like")


def members_of(path):
    """Which module the classes of metadata are of, and what members they have."""
    Modules.seen = set()
    with open(path, "rb") as stream:
        found = Modules(stream).load()
    shard, index = next(iter(found.state_dict_metadata.values()))[0], next(iter(found.storage_metadata))
    return {*Modules.seen, *found.__dict__, *(f"shard {k}" for k in shard.__dict__), *(f"index {k}" for k in index.__dict__)}


def check_salvage(shell, path, work):
    """Metadata that is gone is taken from a checkpoint of the same layout; what a missing file had is lost, the rest is not."""
    damaged, good = work / "damaged", work / "salvaged"
    shutil.copytree(path, damaged)
    for folder in (damaged, *damaged.iterdir()):
        folder.chmod(0o755)
    (damaged / "0.metadata").unlink()
    code, _, message = shell.run("salvage", damaged, good, "--like", path)
    if code not in (0, 1):
        return f"exit {code}: {message}"
    code, text, message = shell.run("diff", good, path)
    if code:
        return text + message
    whole = shell.run("hash", path)[1].splitlines()
    (damaged / "1_0.distcp").unlink()
    shutil.rmtree(good)
    code, text, message = shell.run("salvage", damaged, good, "--like", path)
    left = shell.run("hash", good)[1].splitlines()
    if code != 1 or "1_0.distcp" not in text + message:
        return f"exit {code}: {text[-300:]}{message}"
    return "" if left and len(left) < len(whole) and set(left) < set(whole) else f"{len(left)} of {len(whole)} tensors are left"


def check_rebuilt(shell, path, work, status):
    """Metadata is gone, and nothing stands in: what one file alone has is the whole tensor, all else is lost and said to be."""
    damaged, good = work / "unnamed", work / "rebuilt"
    for folder in (damaged, good):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(path, damaged)
    for folder in (damaged, *damaged.iterdir()):
        folder.chmod(0o755)
    for file in damaged.glob("*.metadata"):
        file.unlink()
    code, text, message = shell.run("salvage", damaged, good, "--json")
    if code != status or status == 5:
        return "" if code == status and "--like" in message and not good.exists() else f"exit {code}: {text[-300:]}{message}"
    report = json.loads(text)
    whole, left = ({t["key"]: t for t in json.loads(shell.run("hash", "--json", p)[1])["tensors"]} for p in (path, good))
    reasons = {f["key"]: f["reason"] for f in report["findings"] if f["kind"] == "lost"}
    lost = set(reasons)
    said = "only metadata, a sibling's for example, tells its "
    silent = [key for key, why in reasons.items() if f"'{key}' " not in why or said not in why]
    if silent:
        return f"{silent[0]} is lost: {reasons[silent[0]]}"
    if report["proved"] or any(whole[key] != tensor for key, tensor in left.items()):
        return f"{report['proved']} proved; {[key for key in left if whole[key] != left[key]][:3]} differ"
    if set(whole) - set(left) != lost or (status == 1) != bool(lost):
        return f"{len(left)} of {len(whole)} tensors are left, and {len(lost)} listed as lost"
    return shell.run("verify", good)[2] if shell.run("verify", good)[0] else ""


def check_refusal(shell, source, code, text, *options):
    out, message = shell.convert(source, *options)
    if out:
        return "was written"
    return "" if message.startswith(f"exit {code}:") and text in message else message


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        shell = Shell(arguments.bin, work)
        five, cut = work / "five.safetensors", work / "cut.safetensors"
        safetensors(five, {k: (2, 3) for k in "ABCDE"})
        states = {f"fc.weight{s}": s and (1,) if "pow" in s else (24, 100) for s in ("", ".moment1_0", ".beta1_pow_acc_0")}
        safetensors(cut, {**states, "lm_head.weight": (6, 9), "layers.0.mlp.experts.0.w1.weight": (4, 8),
            "layers.0.mlp.experts.1.w1.weight": (4, 8)})
        for option in GENERATIONS:
            tap(f"generation {option}", check_generation(shell, cut, option))
        ab = {"A": "0_0", "B": "1_0", "C": "0_0", "D": "1_0", "E": "0_0"}
        other = {"0_0": "1_0", "1_0": "0_0"}
        tap("replicas are dealt out evenly", check_dedupe(shell, five, "balanced", {k: {None: f} for k, f in ab.items()}))
        tap("the first rank keeps replicas", check_dedupe(shell, five, "first-rank", {k: {None: "0_0"} for k in "ABCDE"}))
        tap("replicas are kept, with numbers", check_dedupe(shell, five, "none", {k: {0: f, 1: other[f]} for k, f in ab.items()}))
        tap("files sort as texts: 10_0 before 1_0", check_dedupe(shell, five, "balanced", {"A": {None: "0_0"}, "B": {None: "10_0"},
            "C": {None: "1_0"}}, "dp=11"))
        tap("names of the framework", check_names(shell, arguments.fixtures / "paddle/paddle331-params-p4/ckpt.pdparams"))
        tap("names of the framework stay", check_kept_names(shell, work))
        tap("files beside tensors", check_side_files(shell, work, five))
        tap("values beside tensors", check_items(shell, work, arguments.fixtures / "paddle/paddle331-numpy/ckpt.pdparams"))
        tap("values that are no plain data", check_dropped(shell, work))
        for case in ("paddle-fc-replicas", "paddle-fc-safetensors", "paddle-fc-flat-nd", "paddle-fc-nested", "paddle262-mesh4",
            "paddle311-mesh2",
                     "paddle322-fc-flat", "paddle-strategy-trainer-tp2", "paddle-fc-emptyrank", "paddle-strategy-tp2-sdv2-2"):
            tap(f"as {case} lies", check_like(shell, arguments.fixtures / "paddle" / case / "ckpt"))
        paddle = arguments.fixtures / "paddle"
        trainer, flat, weights = paddle / "paddle-strategy-trainer-tp2/ckpt", paddle / "paddle-strategy-tp2/ckpt", work / "five.safetensors"
        tap("a trainer's folders stay in another layout", check_trainer(shell, trainer, 4, "--layout", "tp=4"))
        tap("and without one", check_trainer(shell, trainer, 1))
        tap("and of states that are shared", check_trainer(shell, trainer, 4, "--layout", "tp=2,sharding=2,stage=1v2"))
        tap("a trainer's folders of one folder", check_trainer(shell, flat, 2, "--layout", "tp=2", "-o", "folders=trainer"))
        tap("a trainer's folders of weights alone", check_trainer(shell, weights, 2, "--layout", "dp=2", "-o", "folders=trainer"))
        tap("a trainer's folders by size", check_trainer(shell, weights, 1, "-o", "folders=trainer", "--max-shard-size", "1GB"))
        tap("a trainer's folders of a Unified Checkpoint", check_trainer(shell, paddle / "paddle-uc-tp2/ckpt", 2, "--layout", "tp=2", "-o",
                                                                        "folders=trainer", "--rules", "auto"))
        tap("a trainer's folders with values", check_trainer_items(shell, work))
        tap("one folder of a trainer's", check_one_folder(shell, trainer, "--layout", "tp=4", "-o", "folders=one"))
        tap("one folder of one", check_one_folder(shell, flat, "--layout", "tp=4", "-o", "folders=kept"))
        for case, words in ((trainer, "tp=4"), (trainer, "tp=2,dp=2"), (paddle / "paddle-fc-safetensors/ckpt", "dp=3"),
                            (paddle / "paddle-fc-uids/ckpt", "dp=3"), (paddle / "paddle262-mesh4/ckpt", "dp=2"),
                            (paddle / "paddle-strategy-tp2-sdv2-2/ckpt", "sharding=4,stage=1v2"), (flat, "tp=4")):
            tap(f"as {case.parent.name} lies, but {words}", check_like_with_words(shell, case, words))
        tap("as a trainer's, of one folder", check_like_with_words(shell, trainer, "tp=4", flat))
        tap("folders that the reference does not have", check_refusal(shell, flat, 2, "the reference has a trainer's folders", "--like",
                                                                    trainer, "-o", "folders=one"))
        tap("three folders where the reference has one", check_refusal(shell, flat, 2, "the reference has one folder", "--like", flat,
                                                                     "--layout", "tp=2", "-o", "folders=trainer"))
        tap("folders that are none", check_refusal(shell, flat, 2, "folders=two: one of kept, one, trainer", "-o", "folders=two"))
        auto = paddle / "paddle-hf-auto/ckpt/flex-ckpt.auto_generated.metadata"
        tap("ranks like a folder of Hugging Face", check_refusal(shell, flat, 2, "which are of no ranks", "--like", auto, "--layout",
                                                               "tp=2"))
        tap("runs that the reference's metadata cannot name", check_refusal(
            shell, flat, 2, "before Paddle 3.2", "--like", paddle / "paddle311-mesh2/ckpt", "--layout", "sharding=2,stage=1v2"))
        tap("metadata that is gone", check_salvage(shell, arguments.fixtures / "paddle/paddle-strategy-tp2-sdv2-2/ckpt", work))
        for case, status in (("paddle-fc-1rank-many", 0), ("paddle-strategy-sdv1-2", 0), ("paddle-strategy-tp2-sdv2-2", 1),
                             ("paddle-fc-flat-nd", 1), ("paddle-fc-replicas", 5)):
            tap(f"metadata that is gone, and no sibling: {case}",
                check_rebuilt(shell, arguments.fixtures / "paddle" / case / "ckpt", work, status))
        tap("an axis that tp does not divide", check_refusal(shell, cut, 5, "axis 1 has 9 elements", "--layout", "tp=2"))
        tap("a stage that does not exist", check_refusal(shell, cut, 2, "stage is one of 1v1, 1v2, 2, 3", "--layout", "sharding=2,stage=4"))
        tap("a word that is none", check_refusal(shell, cut, 5, "sharding= and stage=1v1|1v2|2|3", "--layout", "etp=2"))
        tap("ranks that are no multiple", check_refusal(shell, cut, 2, "ranks=3", "--layout", "ranks=3,sharding=2"))
        tap("experts that ep does not divide", check_refusal(shell, cut, 5, "2 experts", "--layout", "ep=4"))
        tap("copies that old metadata cannot name", check_refusal(shell, five, 2, "before Paddle 3.3", "--layout", "dp=2", "-o",
            "dedupe=none", "-o", "generation=3.2"))
        tap("runs that old metadata cannot name", check_refusal(shell, cut, 2, "before Paddle 3.2", "--layout", "sharding=2,stage=1v2",
            "-o", "generation=3.0"))
        tap("a generation that is none", check_refusal(shell, five, 2, "generation=1.8", "-o", "generation=1.8"))
        safetensors(work / "key.safetensors", {"x@@": (1,)})
        tap("a key that Paddle keeps for itself", check_refusal(shell, work / "key.safetensors", 5, "x@@"))
    print(f"1..{number}")
    return failed != 0


sys.exit(main())
