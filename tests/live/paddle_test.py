#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What reshard writes for Paddle, Paddle itself loads; what Paddle writes, reshard reads. Prints TAP.

usage: paddle_test.py --bin RESHARD --root DIR
Needs paddlepaddle 3.3 and numpy. DIR/paddle has what Paddle wrote, with the digests of all tensors.
"""
import argparse
import hashlib
import json
import os
import pathlib
import pickle
import socket
import subprocess
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("GLOG_minloglevel", "2")
import numpy as np  # noqa: E402
import paddle  # noqa: E402
from paddle.distributed.fleet.utils.log_util import logger  # noqa: E402

import forks  # noqa: E402

logger.setLevel("ERROR")
# The array that Paddle keeps a type in, and its own name of it.
TYPES = {"F32": ("float32", "float32"), "F64": ("float64", "float64"), "F16": ("float16", "float16"), "BF16": ("uint16", "bfloat16"),
         "I64": ("int64", "int64"), "I32": ("int32", "int32"), "I16": ("int16", "int16"), "I8": ("int8", "int8"), "U8": ("uint8", "uint8"),
         "BOOL": ("bool", "bool"), "C64": ("complex64", "complex64"), "C128": ("complex128", "complex128"),
         "F8_E4M3": ("int8", "float8_e4m3fn"), "F8_E5M2": ("int8", "float8_e5m2")}
MODEL = "paddle-strategy-dp1"
# Paddle 3.3.1 merges some flat ranges wrongly: those layouts are compared file by file with what Paddle wrote.
LAYOUTS = ["dp=2", "tp=2", "tp=4", "pp=2", "tp=2,dp=2", "sharding=2,stage=1v1", "sharding=4,stage=1v1"]


class Test:
    def __init__(self, args, work):
        self.bin, self.root, self.work, self.number = args.bin, pathlib.Path(args.root), work, 0

    def report(self, name, bad):
        self.number += 1
        print(f"{'not ok' if bad else 'ok'} {self.number} - {name}", flush=True)
        for line in "\n".join(map(str, bad[:5])).splitlines():
            print(f"# {line}", flush=True)
        return bool(bad)

    def convert(self, source, target, *options):
        done = subprocess.run([self.bin, "convert", source, target, "--quiet", *options], capture_output=True, text=True)
        assert done.returncode == 0, f"convert {options}: exit {done.returncode}: {done.stderr}"
        return target

    def tensors(self, path):
        """{key: (dtype, shape, sha256)} as reshard reads them."""
        out = subprocess.run([self.bin, "hash", "--json", path], capture_output=True, text=True, check=True).stdout
        return {t["key"]: (t["dtype"], t["shape"], t["hash"]) for t in json.loads(out)["tensors"]}

    def manifest(self, case):
        given = json.loads((self.root / "paddle" / case / "manifest.json").read_text())
        return self.root / "paddle" / case / given["path"], {k: (t["dtype"], t["shape"], t["sha256"]) for k, t in given["tensors"].items()}


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def differences(found, wanted):
    bad = [f"{key} is missing" for key in wanted if key not in found] + [f"{key} is too much" for key in found if key not in wanted]
    return bad + [f"{key}: {found[key]} instead of {wanted[key]}" for key in wanted if key in found and found[key] != wanted[key]]


def spelled(dtype):
    return next((name for name, (kept, own) in TYPES.items() if dtype in (kept, own)), dtype)


def seen(tensor):
    """(type, shape, digest) of a tensor of Paddle's or an array."""
    return spelled(str(tensor.dtype).split(".")[-1]), list(tensor.shape), digest(np.array(tensor))


def shown(state):
    return {key: seen(tensor) for key, tensor in state.items()}


def patterned(dtype, shape):
    """A tensor in which what a loader leaves alone shows."""
    kept, own = TYPES[dtype]
    pattern = b"\1" * (int(np.prod(shape, dtype=np.int64)) * np.dtype(kept).itemsize)
    tensor = paddle.to_tensor(np.frombuffer(pattern, kept).reshape(shape).copy())
    return tensor.view(own) if own.startswith("float8") else tensor


def loaded(folder, wanted, **options):
    """What Paddle's loader puts into whole tensors of a pattern."""
    state = {key: patterned(dtype, shape) for key, (dtype, shape, _) in wanted.items()}
    kept = dict(state)  # the loader may take tensors out
    paddle.distributed.load_state_dict(state, str(folder), **options)
    return shown(kept)


def flex_layouts_load(test):
    source, wanted = test.manifest(MODEL)
    failed = 0
    for layout in LAYOUTS:
        folder = test.convert(source, test.work / layout, "--to", "paddle-flex", "--layout", layout)
        failed += test.report(f"Flex Checkpoint, {layout}", differences(loaded(folder, wanted), wanted))
    return failed


def trainers_folders_load(test):
    """As PaddleFormers' _load_flex_checkpoint does: one metadata file in each of three folders, looked at if it tells nothing, too."""
    trainer, kept = test.manifest("paddle-strategy-trainer-tp2")
    source, wanted = test.manifest(MODEL)
    weights = {key: value for key, value in wanted.items() if not key.endswith("_0")}
    only = [word for key in weights for word in ("--include", key)]
    given = (("of one folder", source, wanted, ["--layout", "tp=2", "-o", "folders=trainer"]),
             ("of states that are shared", source, wanted, ["--layout", "sharding=2,stage=1v1", "-o", "folders=trainer"]),
             ("of weights alone", source, weights, ["-o", "folders=trainer", *only]),
             ("of a trainer's", trainer, kept, ["--layout", "tp=4"]))
    failed = 0
    for name, path, tensors, words in given:
        folder, bad = test.convert(path, test.work / f"trainer {name}", "--to", "paddle-flex", *words), []
        rest = dict(tensors)
        for part, suffix in (("master_weight", ".w_0"), ("optimizer_state", "_0"), ("model_state", "")):
            metadata = [file for file in os.listdir(folder / part) if file.endswith(".metadata")]
            told = paddle.load(str(folder / part / metadata[0])).state_dict_metadata
            own = {key: rest.pop(key) for key in [*rest] if key.endswith(suffix)}
            bad += [f"{part}: {len(metadata)} metadata files"] * (len(metadata) != 1) + differences(dict.fromkeys(told), dict.fromkeys(own))
            bad += differences(loaded(folder / part, own), own) if own else []
        failed += test.report(f"a trainer's folders, {name}", bad)
    return failed


def plain(entry):
    """Its attributes; the bounds of ranges are integers of NumPy in what Paddle writes."""
    values = {key: value for key, value in vars(entry).items()}
    if values.get("flattened_range") is not None:
        values["flattened_range"] = tuple(map(int, values["flattened_range"]))
    return tuple(sorted((key, repr(value)) for key, value in values.items()))


def metadata_of(folder):
    found = paddle.load(str(next(folder.glob("*.metadata"))))
    shards = {key: sorted(map(plain, value)) for key, value in found.state_dict_metadata.items()}
    return shards, {plain(index): name for index, name in found.storage_metadata.items()}, found.flat_mapping


def arrays_of(path):
    arrays = {key: np.array(value) for key, value in paddle.load(str(path)).items() if not key.endswith("@@")}
    return {key: (str(array.dtype), array.shape, digest(array)) for key, array in arrays.items()}


def files_are_paddles(test):
    """Written like what Paddle wrote: the same metadata, and in each file the same arrays."""
    source, _ = test.manifest(MODEL)
    failed = 0
    for case in sorted(p.name for p in (test.root / "paddle").glob("paddle-strategy-*")):
        real, _ = test.manifest(case)
        if case == MODEL or not list(real.glob("*.metadata")):
            continue
        folder = test.convert(source, test.work / case, "--like", real)
        bad = [] if metadata_of(folder) == metadata_of(real) else ["other metadata"]
        names = [sorted(p.name for p in f.glob("*.distcp")) for f in (folder, real)]
        bad += [] if names[0] == names[1] else [f"files {names[0]} instead of {names[1]}"]
        for name in names[1] if not bad else []:
            bad += [f"{name}: {line}" for line in differences(arrays_of(folder / name), arrays_of(real / name))]
        failed += test.report(f"files like {case}", bad)
    return failed


# ---- two processes ----


def part_of(shape, rank):
    """Rows of this rank, which are not those that any layout has: (offset, count). None: every rank has all of it."""
    if not shape or shape[0] < 2:
        return None
    first = shape[0] // 3 + 1
    return (0, first) if rank == 0 else (first, shape[0] - first)


def load_part(folder, wanted, rank):
    """{key: array} of the rows of this rank, through load_state_dict."""
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
    state = {}
    for key, (dtype, shape, _) in wanted.items():
        rows = part_of(shape, rank)
        local = [rows[1], *shape[1:]] if rows else shape
        offset = (rows[0] if rows else 0,) + (0,) * (len(shape) - 1) if shape else ()
        state[key] = ShardedWeight(key, patterned(dtype, local), tuple(local), tuple(shape), offset)
    paddle.distributed.load_state_dict(dict(state), str(folder))
    return {key: np.array(weight.local_tensor) for key, weight in state.items()}


def rank_main(work):
    rank, folders = int(os.environ["PADDLE_TRAINER_ID"]), json.loads((work / "folders").read_text())
    paddle.Tensor.cuda = lambda self, *args, **named: self  # Paddle's exchange asks for a GPU, and does not need one
    paddle.distributed.init_parallel_env()
    parts = {folder: load_part(folder, wanted, rank) for folder, wanted in folders.items()}
    (work / f"part{rank}").write_bytes(pickle.dumps(parts))
    paddle.distributed.barrier()


def start_ranks(size, work, function, arguments):
    """Whether all processes ended well; gloo sometimes fails to connect on a busy machine."""
    sockets = [socket.socket() for _ in range(size + 1)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    *ends, master = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    together = {"PADDLE_TRAINERS_NUM": str(size), "PADDLE_TRAINER_ENDPOINTS": ",".join(ends), "PADDLE_MASTER": master,
                "PADDLE_DISTRI_BACKEND": "gloo"}
    return forks.all_ended_well([
        forks.start(work / f"log{rank}", function, work, *arguments,
                    environment=together | {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": ends[rank]})
        for rank in range(size)], 240)


def failures_of_two(work, function, *arguments):
    """The ends of the logs of two processes that call function(work, *arguments), if three attempts failed."""
    if any(start_ranks(2, work, function, arguments) for _ in range(3)):
        return []
    return [(work / f"log{rank}").read_text(errors="replace")[-1500:] for rank in (0, 1)]


def loaded_by_two(work, folders):
    """({path: what two processes load, each its rows, put together}, why they failed); folders: {path: {key: (type, shape, digest)}}"""
    work.mkdir(exist_ok=True)
    (work / "folders").write_text(json.dumps(folders))
    failures = failures_of_two(work, rank_main)
    if failures:
        return {}, failures
    parts, found = [pickle.loads((work / f"part{rank}").read_bytes()) for rank in (0, 1)], {}
    for folder, wanted in folders.items():
        found[folder] = {}
        for key, (dtype, shape, _) in wanted.items():
            a, b = (part[folder][key] for part in parts)
            same = part_of(shape, 0) or a.tobytes() == b.tobytes()
            whole = digest(np.concatenate([a, b]) if part_of(shape, 0) else a) if same else "other on each process"
            found[folder][key] = (dtype, shape, whole)
    return found, []


def two_processes_load(test):
    """Each asks for its rows of every tensor; together they have what the manifest says."""
    source, wanted = test.manifest(MODEL)
    work = test.work / "two"
    work.mkdir()
    folders = {str(test.convert(source, work / layout, "--to", "paddle-flex", "--layout", layout)): wanted for layout in LAYOUTS}
    found, failures = loaded_by_two(work, folders)
    if failures:
        return test.report("two processes load", failures)
    return sum(test.report(f"two processes load {pathlib.Path(path).name}", differences(values, wanted)) for path, values in found.items())


def params_load(test):
    source, wanted = test.manifest(MODEL)
    failed = 0
    for protocol in ("4", "5"):
        path = test.convert(source, test.work / f"{protocol}.pdparams", "--to", "paddle", "-o", f"protocol={protocol}")
        failed += test.report(f".pdparams of protocol {protocol}", differences(shown(paddle.load(str(path))), wanted))
    return failed


def paddles_files_are_read(test):
    rng = np.random.default_rng(5)
    state = {"b": paddle.to_tensor(rng.random((3, 4), np.float32)),
             "h": paddle.to_tensor(rng.random((70, 300), np.float32)).cast("bfloat16"),
             "scalar": paddle.to_tensor(3.5), "n": paddle.to_tensor(np.arange(6).reshape(2, 3))}
    wanted, failed = shown(state), 0
    for protocol in (2, 3, 4):
        path = test.work / f"real-{protocol}.pdparams"
        paddle.save(state, str(path), protocol=protocol)
        failed += test.report(f"paddle.save of protocol {protocol} is read", differences(test.tensors(path), wanted))
    folder = test.work / "real-flex"
    paddle.distributed.save_state_dict(state, str(folder))
    return failed + test.report("save_state_dict is read", differences(test.tensors(folder), wanted))


def auto_parallel_is_read(test):
    """An auto-parallel script saves the optimizer under Paddle's own names, and loads it by them: they stay. --rename gives other ones."""
    distributed, folder = paddle.distributed, test.work / "auto-parallel"
    mesh = distributed.ProcessMesh([0], dim_names=["x"])
    model = distributed.shard_layer(paddle.nn.Linear(6, 5), mesh)
    optimizer = distributed.shard_optimizer(paddle.optimizer.AdamW(0.1, parameters=model.parameters()))
    model(distributed.shard_tensor(paddle.rand([3, 6]), mesh, [distributed.Replicate()])).sum().backward()
    optimizer.step()
    states = {key: value for key, value in optimizer.state_dict().items() if key != "LR_Scheduler"}
    distributed.save_state_dict({"model": model.state_dict(), "optimizer": states}, str(folder))
    whole = {f"model.{key}": value for key, value in model.state_dict().items()}
    whole |= {f"optimizer.{key}": value for key, value in states.items()}
    wanted = shown(whole)
    failed = test.report("optimizer of auto parallel", differences(test.tensors(folder), wanted))
    again = test.convert(folder, test.work / "auto-again", "--to", "paddle-flex")
    failed += test.report("and Paddle loads it by its names", differences(loaded(again, wanted), wanted))
    words, renamed = ["--strip-prefix", "model."], {}
    for key, weight in model.state_dict().items():
        words += ["--rename", f"s/optimizer\\.{weight.name}_(.*)/{key}.\\1/".replace(".w_0", "\\.w_0").replace(".b_0", "\\.b_0")]
        renamed |= {name.replace(f"optimizer.{weight.name}_", f"{key}.").removeprefix("model."): value for name, value in wanted.items()
                    if name == f"model.{key}" or name.startswith(f"optimizer.{weight.name}_")}
    named = test.convert(folder, test.work / "auto-named", "--to", "paddle-flex", *words)
    bad = differences(loaded(named, renamed), renamed) + ([len(renamed)] if len(renamed) != 2 * 5 else [])
    return failed + test.report("and by those of the weights", bad)


def optimizer_of(model):
    """An AdamW with master weights of the bfloat16 ones, whose states have values, though no step was made: a CPU lacks its kernels."""
    optimizer = paddle.optimizer.AdamW(learning_rate=paddle.optimizer.lr.StepDecay(0.1, 3), parameters=model.parameters(),
                                       multi_precision=True)
    optimizer._create_accumulators(paddle.base.framework.default_main_program().global_block(), model.parameters())
    state = optimizer.state_dict()
    for tensor in [*state.values(), *state["master_weights"].values()]:
        if isinstance(tensor, paddle.Tensor):
            tensor.set_value(paddle.rand(tensor.shape))
    return optimizer.state_dict()


def trainers_files_are_read(test):
    """Weights and states under the names of a trainer's files: the optimizer's static names become those of the weights."""
    # Not .bfloat16(), which does nothing on a CPU that cannot compute with it.
    layers = [layer.to(dtype="bfloat16") for layer in (paddle.nn.Embedding(9, 6), paddle.nn.Linear(6, 5))]
    model = paddle.nn.Sequential(*layers, paddle.nn.LayerNorm(5))
    weights, state = model.state_dict(), optimizer_of(model)
    wanted = shown(weights)
    for key, weight in weights.items():
        own = {name[len(weight.name) + 1:].removeprefix("fp32_master_0_"): tensor for name, tensor in state.items()
               if name.startswith(weight.name + "_")}
        if weight.name in state["master_weights"]:
            own["w_0"] = state["master_weights"][weight.name]
        wanted |= {f"{key}.{name}": value for name, value in shown(own).items()}
    failed = test.report("every state is a weight's", [len(wanted)] if len(wanted) != 5 * 5 + 3 else [])
    for name, infix in (("one process", ""), ("a rank of pipeline and sharding", ".pp00_shard00")):
        folder = test.work / name
        folder.mkdir()
        paddle.save(weights, str(folder / f"model_state{infix.replace('_shard00', '')}.pdparams"))
        paddle.save(state, str(folder / f"optimizer{infix}.pdopt"))
        failed += test.report(f"files of a trainer, {name}", differences(test.tensors(folder), wanted))
        path = test.convert(folder, test.work / f"{name}.pdparams", "--to", "paddle")
        loaded = paddle.load(str(path))
        bad = [] if loaded["LR_Scheduler"] == state["LR_Scheduler"] else [loaded["LR_Scheduler"]]
        bad += [f"{key}: {loaded[key].name}" for key, weight in weights.items() if loaded[key].name != weight.name]
        failed += test.report(f"and names and scheduler come back, {name}", bad)
    return failed


def optimizers(parameters):
    optimizer = paddle.optimizer
    options = {"Adam": {"amsgrad": True}, "RMSProp": {"centered": True, "momentum": 0.9}, "ASGD": {"batch_num": 3}}
    for name in ("SGD", "Momentum", "Adam", "AdamW", "Adamax", "RMSProp", "Adagrad", "Adadelta", "Lamb", "NAdam", "RAdam", "Rprop", "ASGD"):
        yield name, getattr(optimizer, name)(0.1, parameters=parameters, **options.get(name, {}))


def optimizers_are_read(test):
    """Two steps of each of Paddle's optimizers: every state is one of a weight, under the weight's name."""
    model = paddle.nn.Sequential(paddle.nn.Linear(6, 5), paddle.nn.LayerNorm(5), paddle.nn.Linear(5, 1))
    failed = 0
    for name, optimizer in optimizers(model.parameters()):
        for _ in range(2):
            model(paddle.rand([3, 6])).square().sum().backward()
            optimizer.step()
            optimizer.clear_grad()
        weights, state = model.state_dict(), optimizer.state_dict()
        wanted, count = shown(weights), 0
        for key, weight in weights.items():
            own = {word.removeprefix(weight.name + "_"): tensor for word, tensor in state.items() if word.startswith(weight.name + "_")}
            wanted |= {f"{key}.{word}": value for word, value in shown(own).items()}
            count += len(own)
        folder = test.work / name
        folder.mkdir()
        paddle.save(weights, str(folder / "model_state.pdparams"))
        paddle.save(state, str(folder / "optimizer.pdopt"))
        bad = [] if count == sum(isinstance(value, paddle.Tensor) for value in state.values()) else [f"{count} of {list(state)}"]
        failed += test.report(f"states of {name}", bad + differences(test.tensors(folder), wanted))
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    parser.add_argument("--root")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reshard-paddle-") as work:
        test = Test(args, pathlib.Path(work))
        parts = (flex_layouts_load, trainers_folders_load, two_processes_load, files_are_paddles, params_load, paddles_files_are_read,
                 auto_parallel_is_read, trainers_files_are_read, optimizers_are_read)
        failed = sum(part(test) for part in parts)
    print(f"1..{test.number}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
