#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every fixture of Paddle is written again like itself and like each of the same content; Paddle and PaddleFormers load what comes out.

usage: paddle_linked.py --bin RESHARD --root DIR [--share N] [--every N]     of DCP's and Hugging Face's, one in N (4) is
                                                                       loaded by two processes too
Needs paddlepaddle 3.3, PaddleFormers 1.2 and numpy. DIR/paddle has what Paddle wrote, with the digests of all tensors. Prints TAP: a line
a pair. Files that are byte by byte those of an earlier pair are not loaded again.

Flex Checkpoints: one process loads every tensor whole, then two load rows of it. Paddle 3.3.1 cannot load some of what it wrote itself:
metadata of 2.6 to 3.2, and flat ranges that it merges wrongly. What it gets wrong in its own files is known by loading those first; such
tensors are put together here, from the arrays that paddle.load gives and the format's definition. Unified checkpoints: PaddleFormers'
own look at the index, and its load_state_dict of every file. Others: paddle.load. In folders, pieces lie where the reference has them.
"""
import argparse
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import zlib
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402
from fixtures_test import is_good, links, load_cases, may_refuse, remove  # noqa: E402
from paddle_test import TYPES, Test, differences, digest, loaded, loaded_by_two, seen, spelled  # noqa: E402

import numpy as np  # noqa: E402
import paddle  # noqa: E402

logging.disable(logging.WARNING)
EXCHANGED = ("BF16", "F16", "F32", "F64", "I32", "I64", "U8", "BOOL")  # what gloo carries and paddle_test.py knows
NEW_MODULE = "paddle.distributed.flex_checkpoint.dcp.metadata"
OLD_MODULE = "paddle.distributed.checkpoint.metadata"  # of 2.6 to 3.1


# ---- Flex Checkpoint ----


def name_old_classes():
    """Paddle 3.3 has no module of the old name: without it paddle.load cannot name the classes in old metadata."""
    new = importlib.import_module(NEW_MODULE)
    package, module = types.ModuleType(OLD_MODULE.rpartition(".")[0]), types.ModuleType(OLD_MODULE)
    for name in ("Metadata", "LocalTensorMetadata", "LocalTensorIndex"):
        setattr(module, name, type(name, (getattr(new, name),), {}))
    sys.modules |= {package.__name__: package, OLD_MODULE: module}


class Flex:
    """A folder as its newest metadata describe it."""

    def __init__(self, folder):
        self.folder = folder
        files = sorted(folder.glob("*.metadata"), key=lambda p: int(p.stem) if p.stem.isdigit() else -1)
        self.uid = int(files[-1].stem) if len(files) > 1 else None
        self.metadata = paddle.load(str(files[-1]))
        self.is_safetensors = any(name.endswith(".safetensors") for name in self.metadata.storage_metadata.values())

    def shape(self, key):
        return [max(ends) for ends in zip(*([offset + extent for offset, extent in zip(s.global_offset, s.local_shape)]
                                            for s in self.metadata.state_dict_metadata[key]))]

    def load(self, wanted):
        return loaded(self.folder, wanted, unique_id=self.uid, safetensors=self.is_safetensors)

    def loadable(self, wanted):
        """The keys of which Paddle loads the right values out of this folder, which it wrote itself."""
        def right(part):
            with contextlib.suppress(Exception):
                found = self.load(part)
                return {key for key in part if found[key] == part[key]}
            return set()
        together = right(wanted)
        return together if together else set().union(*(right({key: value}) for key, value in wanted.items()))

    def assembled(self, keys):
        """The same of some tensors, by the format's definition: a flat range counts the elements of its shard, row-major."""
        wholes, filled, names, files = {}, {}, {}, {}
        for index, name in self.metadata.storage_metadata.items():
            key, flat = index.tensor_key, getattr(index, "flattened_range", None)
            if key not in keys or getattr(index, "replica_id", None):
                continue
            if name not in files:
                path = self.folder / name
                files[name] = paddle.load(str(path), safetensors=path.read_bytes()[:1] != b"\x80")
            array = np.array(files[name][key])
            flat = tuple(map(int, flat)) if flat is not None else None
            shard = next(s for s in self.metadata.state_dict_metadata[key] if tuple(s.global_offset) == tuple(index.global_offset)
                         and (flat is None or tuple(map(int, s.flattened_range)) == flat)
                         and getattr(index, "local_shape", None) in (None, s.local_shape))
            if key not in wholes:
                wholes[key], filled[key] = np.zeros(self.shape(key), array.dtype), np.zeros(self.shape(key), bool)
                said = getattr(shard, "dtype", None)
                names[key] = spelled(said or str(array.dtype))
            box = tuple(slice(offset, offset + extent) for offset, extent in zip(shard.global_offset, shard.local_shape))
            for whole, part in ((wholes[key], array), (filled[key], np.ones(array.shape, bool))):
                if flat:
                    inside = whole[box].reshape(-1)
                    inside[slice(*flat)] = part.reshape(-1)
                    part = inside
                whole[box] = part.reshape(shard.local_shape)
        return {key: (names[key], list(whole.shape), digest(whole)) for key, whole in wholes.items() if filled[key].all()}


def flex_folders(path):
    return sorted({p.parent for p in path.rglob("*.metadata")})


def inside_view(folder, work):
    """Links to its files: the loader may write metadata of its own, and does so beside what it reads."""
    view = pathlib.Path(tempfile.mkdtemp(dir=work))
    for each in folder.iterdir():
        (view / each.name).symlink_to(each.resolve())
    return view


class Linked(Test):
    def __init__(self, args, work):
        super().__init__(args, work)
        self.known, self.to_share, self.every = {}, {}, args.every

    def loadable(self, case):
        """{folder below it: keys that Paddle loads} of a fixture."""
        if case["case"] not in self.known:
            path, wanted = case["folder"] / case["path"], case["wanted"]
            self.known[case["case"]] = {}
            for folder in flex_folders(path):
                flex = Flex(inside_view(folder, self.work))
                own = {key: value for key, value in wanted.items() if key in flex.metadata.state_dict_metadata}
                self.known[case["case"]][folder.relative_to(path)] = flex.loadable(own)
        return self.known[case["case"]]

    def flex_complaints(self, target, case):
        bad, rest, known = [], dict(case["wanted"]), self.loadable(case)
        folders = flex_folders(target)
        if {f.relative_to(target) for f in folders} != set(known):
            return [f"metadata in {folders} in place of {list(known)}"]
        for folder in folders:
            view = inside_view(folder, self.work)
            flex = Flex(view)
            own = {key: rest.pop(key) for key in list(rest) if key in flex.metadata.state_dict_metadata}
            right = {key: own[key] for key in own if key in known[folder.relative_to(target)]}
            bad += differences(flex.load(right), right) if right else []
            others = {key: own[key] for key in own if key not in right}
            bad += [f"put together: {line}" for line in differences(flex.assembled(others), others)]
            shared = {key: value for key, value in right.items() if value[0] in EXCHANGED and 0 not in value[1]}
            if shared and flex.uid is None and not flex.is_safetensors:
                self.to_share[case["case"], folder.name] = str(view), shared  # of all that are written like it, the last
        return bad + [f"{key} is missing" for key in rest]

    def share(self):
        """What was loaded by one process is loaded by two."""
        folders = dict(self.to_share.values())
        found, bad = loaded_by_two(self.work / "two", folders)
        bad += [f"{folder}: {line}" for folder in found for line in differences(found[folder], folders[folder])]
        return self.report(f"two processes load {len(folders)} folders", bad)


# ---- Unified Checkpoint ----


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that PaddleFormers imports, that are not here, and that reading files does not call: whatever is asked of one is there."""

    def find_spec(self, name, path, target=None):
        top = name.split(".")[0]
        is_own = top in sys.stdlib_module_names or top in ("paddle", "paddleformers", "numpy", "safetensors")
        return None if is_own else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": lambda self, *args, **named: None}) if name[0].isupper() else mock.MagicMock()
        module = types.ModuleType(spec.name)
        module.__path__, module.__version__, module.__file__, module.__getattr__ = [], "0", "absent", attribute
        return module

    def exec_module(self, module):
        pass


def unified_complaints(folder, wanted):
    """`wanted` names tensors model:, optimizer: or master_weights:, or is a model's alone."""
    from paddleformers.trainer.unified_checkpoint.utils import get_optimizer_shard_files
    from paddleformers.transformers.model_utils import load_state_dict
    found, bad = {}, []
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    listed = set()
    for path in indexes:
        family, index = path.name.split(".")[0], json.loads(path.read_text())
        files, _ = get_optimizer_shard_files(optimizer_path=str(folder), index_filename=str(path))
        listed |= set(files)
        total = 0
        for file in files:
            for key, tensor in load_state_dict(file, None, None, convert_from_hf=False).items():
                if index["weight_map"].get(key) != os.path.basename(file):
                    bad.append(f"{path.name}: {key} is in {os.path.basename(file)}, not in {index['weight_map'].get(key)}")
                found[f"{family}:{key}"] = seen(tensor)
                total += np.array(tensor).nbytes
        bad += [f"{path.name}: {key} is in no file" for key in index["weight_map"] if f"{family}:{key}" not in found]
        bad += [] if index["metadata"]["total_size"] == total else [f"{path.name}: total_size is not {total}"]
    bad += [f"{p.name} is in no index" for p in folder.glob("*.safetensors") if str(p) not in listed]
    has_families = any(key.split(":")[0] in ("model", "optimizer", "master_weights") for key in wanted)
    return bad + differences(found if has_families else {key.split(":", 1)[1]: value for key, value in found.items()}, wanted)


# ---- others ----


def leaves(value, name=""):
    if isinstance(value, (paddle.Tensor, np.ndarray)):
        yield name, seen(value)
    elif isinstance(value, paddle.base.core.DenseTensor):
        yield name, seen(np.array(value))
    elif isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{name}.{key}" if name else str(key))


def files_complaints(path, wanted):
    """A file, or a folder of them whose names begin the keys. What Hugging Face would load, load_state_dict does too."""
    found = {}
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        is_weights = file.suffix == ".safetensors"
        if path.is_dir() and not is_weights and not file.suffix.startswith(".pd"):
            continue
        name = "" if is_weights or not path.is_dir() else str(file.relative_to(path))
        found |= dict(leaves(paddle.load(str(file), safetensors=is_weights) if is_weights else paddle.load(str(file)), name))
    bad = differences(found, wanted)
    if not bad and path.is_dir() and list(path.glob("*.safetensors")):
        bad = [f"load_state_dict: {line}" for line in differences(loaded(path, wanted, safetensors=True), wanted)]
    return bad


def content(path):
    """Tells whether two checkpoints have the same files."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return hashlib.sha256(repr([(str(p.relative_to(path)), hashlib.sha256(p.read_bytes()).digest()) for p in files]).encode()).digest()


def chunks(test, path):
    """Where each piece lies: file, box, run of the box's elements, and whether it is a copy."""
    listed = json.loads(subprocess.run([test.bin, "ls", "--chunks", "--json", path], capture_output=True, text=True, check=True).stdout)
    return sorted((t["key"], c["file"], c["start"], c["extent"], c.get("flat", []), c["replica"])
                  for t in listed["tensors"] for c in t["chunks"])


def pair(test, source, like, judged):
    """Complaints about what `source` becomes, written like another; what has the files of an earlier pair has its complaints."""
    path = like["folder"] / like["path"]
    target = test.convert(source["folder"] / source["path"], test.work / f"{source['case']}-{like['case']}{path.suffix}", "--like", path)
    name = (like["case"], content(target))
    if name in judged:
        remove(target)
        return judged[name]
    if flex_folders(target):
        bad = test.flex_complaints(target, like)
    elif list(target.glob("*.safetensors.index.json")) and any(":" in key for key in like["wanted"]):
        bad = unified_complaints(target, like["wanted"])
    else:
        bad = files_complaints(target, like["wanted"])
    if target.is_dir() and chunks(test, target) != chunks(test, path):
        bad.append("pieces lie elsewhere")
    judged[name] = bad
    return bad


def fits_paddle(case):
    """Paddle has the types and axes for it."""
    tensors = case["tensors"].values()
    return is_good(case) and not may_refuse(case) and all(t["dtype"] in TYPES and len(t["shape"]) <= 9 for t in tensors)


def others_as_flex(test, roots, drawn):
    """Checkpoints of DCP and of Hugging Face, as two ranks of Paddle would have saved them."""
    failed, others = 0, sorted(load_cases(roots, {"torch-dcp", "safetensors"}).items())
    for name, case in drawn.of((name, case) for name, case in others if fits_paddle(case)):
        wanted = {key: (t["dtype"], t["shape"], t["sha256"]) for key, t in case["tensors"].items() if t["sha256"] and 0 not in t["shape"]}
        folder = test.convert(case["folder"] / case["path"], test.work / f"{name}-flex", "--to", "paddle-flex", "--layout", "ranks=2")
        try:
            bad = differences(loaded(folder, wanted), wanted) if wanted else []
        except Exception as error:
            bad = [f"{type(error).__name__}: {error}"]
        failed += test.report(f"{name} as Flex Checkpoint", bad)
        shared = {key: value for key, value in wanted.items() if value[0] in EXCHANGED}
        if shared and not bad and zlib.crc32(name.encode()) % test.every == 0:
            test.to_share[name, ""] = str(folder), shared
        else:
            shutil.rmtree(folder)
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    parser.add_argument("--root")
    parser.add_argument("--every", type=int, default=4)
    draw.add_options(parser, 0.15)
    args = parser.parse_args()
    drawn = draw.Draw(args)
    sys.meta_path.append(Absent())
    name_old_classes()
    cases = {name: case for name, case in load_cases([args.root], {"paddle"}).items() if is_good(case)}
    for case in cases.values():
        case["wanted"] = {key: (t["dtype"], t["shape"], t["sha256"]) for key, t in case["tensors"].items()}
    with tempfile.TemporaryDirectory(prefix="reshard-linked-") as work:
        test, judged, failed = Linked(args, pathlib.Path(work)), {}, 0
        pairs = [(source, name) for name, like in sorted(cases.items()) for source in [name, *links(like)] if source in cases]
        for source, name in drawn.of(pairs):
            try:
                bad = pair(test, cases[source], cases[name], judged)
            except Exception as error:
                bad = [f"{type(error).__name__}: {error}"]
            failed += test.report(f"{source} like {name}", bad)
        failed += others_as_flex(test, [args.root], drawn) + test.share()
    print(f"1..{test.number}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
