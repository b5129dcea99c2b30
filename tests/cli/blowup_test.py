#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small inputs that ask for much: no verb may take more than 5 s of processor time or 1 GiB of memory over them. Prints TAP, a test an
input.

Each input is opened, shown, hashed, verified, compared, printed, drawn, planned, salvaged and converted to every format, each by a process
with RLIMIT_CPU and RLIMIT_AS, so that a regression fails and does not hang; peak memory is what the system says that the process had. The
seconds are those of an idle core: a run that takes more is tried again, with as many times more as a loop of Python takes longer just then.
The slowest run of an input is told. The exit status and the named limit of `hash` are pinned, and for files of shared or repeated parts
those of every verb; else verbs end with one of the documented statuses. Sanitizers get no limit on addresses, and --seconds more time.

usage: blowup_test.py --bin PATH [--only GLOB] [--runs N] [--share N] [--seed N] [--seconds N]
--runs 2 does two of an input's runs, which the seed chooses, where there is no --only.
"""
import argparse
import fnmatch
import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import blowup_inputs as inputs
import draw
import small_bombs

FORMATS = "safetensors hf torch torch-dcp torch_dist torch_dcp fsdp_dtensor megatron zarr fsdp-ranks".split()
SECONDS, BYTES = 5, 1 << 30
STATUSES = {0, 1, 2, 4, 5, 6}
MIB = 1 << 20
PACE_STEPS, PACE_SECONDS, PACE_MAX = 4_000_000, 0.28, 3  # a loop, what it takes of an idle core, and what times that is believed


def pace():
    """How many times slower than an idle core of the machine that the seconds are meant for this one is now: 1 and up."""
    began = time.process_time()
    sum(i & 3 for i in range(PACE_STEPS))
    return min(max((time.process_time() - began) / PACE_SECONDS, 1), PACE_MAX)


class Runner:
    def __init__(self, binary, work, seconds, choose=lambda runs: runs):
        self.binary, self.work, self.seconds, self.choose = binary, work, seconds, choose
        libraries = subprocess.run(["ldd", binary], capture_output=True, text=True).stdout
        self.is_sanitized = "libasan" in libraries or "libtsan" in libraries
        self.slowest = 0, ()

    def lower_resources(self, seconds):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 30, 4 << 30))
        if not self.is_sanitized:
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    def run(self, *words):
        """(exit status, peak bytes, first line of the complaint)"""
        ended = self.run_within(self.seconds, words)
        return ended if ended[0] != -signal.SIGXCPU else self.run_within(math.ceil(self.seconds * pace()), words)

    def run_within(self, seconds, words):
        shutil.rmtree(self.work / "out", ignore_errors=True)
        for left in ("out", "out.html"):
            (self.work / left).unlink(missing_ok=True)
        with tempfile.TemporaryFile() as complaint:
            child = subprocess.Popen([self.binary, *map(str, words)], stdout=subprocess.DEVNULL, stderr=complaint, cwd=self.work,
                                     preexec_fn=lambda: self.lower_resources(seconds))
            _, status, usage = os.wait4(child.pid, 0)
            self.slowest = max(self.slowest, (usage.ru_utime + usage.ru_stime, tuple(map(str, words))))
            child.returncode = os.waitstatus_to_exitcode(status)
            complaint.seek(0)
            return child.returncode, usage.ru_maxrss * 1024, complaint.read().decode(errors="replace").strip()

    def must(self, words, statuses, text=""):
        """What is wrong with the run, or nothing."""
        status, peak, complaint = self.run(*words)
        shown = f"{' '.join(map(str, words))}: exit {status}, {peak >> 20} MiB: {complaint[:300]}"
        if status not in statuses or text not in complaint:
            return [shown + f" (expected {sorted(statuses)}{' and ' + repr(text) if text else ''})"]
        return [shown] if peak > BYTES and not self.is_sanitized else []


def opening_verbs(path):
    """For what is refused as it is opened, which all verbs do alike: one for each way of opening."""
    return [["verify", "--deep", "--json", path], ["diff", path, path], ["plan", path, "--to", "hf"],
            ["convert", path, "out", "--to", "torch_dist"]]


def verbs(path, key):
    return [["inspect", path], ["inspect", "--json", path], ["ls", path], ["ls", "--items", path], ["ls", "--items", "--json", path],
            ["ls", "--tree", path], ["ls", "--chunks", "--json", path], ["verify", path], ["verify", "--deep", "--json", path],
            ["verify", path, "--against", path], ["diff", path, path], ["diff", "--stat", path, path], ["stats", path], ["draw", path],
            ["draw", "--diff", path, path, "out.html"], ["salvage", path, "out"],
            ["cat", path, key, *(["--as", "raw"] if key == "w" else [])],  # items are printed as JSON alone
            *(["plan", path, "--to", name] for name in FORMATS), *(["convert", path, "out", "--to", name] for name in FORMATS)]


class Checkpoint:
    """An input for all verbs. status and limit: what `hash` ends with."""

    def __init__(self, make, status, limit="", key="w"):
        self.make, self.status, self.limit, self.key = make, status, limit, key

    def statuses(self, words):
        return STATUSES

    def problems(self, runner):
        path = self.make(runner.work / "in") or runner.work / "in"
        found = runner.must(["hash", path], {self.status}, self.limit)
        is_refused = self.status != 0 and runner.run("inspect", path)[0] == self.status
        for words in runner.choose(opening_verbs(path) if is_refused else verbs(path, self.key)):
            found += runner.must(words, {self.status} if is_refused else self.statuses(words))
        return found


class Shared(Checkpoint):
    """A file of parts that are shared or repeated. It is refused as it is opened, or nowhere but as `others` says: {verb, or format that it
    is planned for and converted to: status}. A bomb that is no longer refused, or refused too much, is a change that says why."""

    def __init__(self, make, limit="", others=None, key="w"):
        super().__init__(self.make_within, 6 if limit else 0, limit, key)
        self.make_file, self.others = make, others or {}

    def make_within(self, folder):
        folder.mkdir()
        return self.make_file(folder / "model.pt")

    def statuses(self, words):
        return {self.others.get(words[words.index("--to") + 1] if "--to" in words else words[0], 0)}


class Pair:
    """Two files that are compared: one has the bytes as they are, the other the call that makes them, so often that the work is refused."""

    def problems(self, runner):
        made = [small_bombs.long_bytes(runner.work / "bytes.pt"), small_bombs.long_call(runner.work / "call.pt")]
        return runner.must(["diff", *made], {6}, "work") + runner.must(["diff", *reversed(made)], {6}, "work")


class Mapping:
    """A text for all verbs of `map`, and for convert. status and limit: what `map expand` ends with."""

    def __init__(self, text, status, limit=""):
        self.text, self.status, self.limit = text, status, limit

    def problems(self, runner):
        tensors = {"a": {"dtype": "float32", "shape": [4], "data": [1, 2, 3, 4]},
                   "l.0.w": {"dtype": "float32", "shape": [4], "data": [1, 2, 3, 4]}}
        (runner.work / "s.json").write_text(json.dumps({"tensors": tensors}))
        (runner.work / "t.json").write_text(json.dumps({"tensors": {"b": {"dtype": "float32", "shape": [1 << 40]}}}))
        inputs.safetensors(runner.work / "s.safetensors", {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(16))
        (runner.work / "m.map").write_text(self.text)
        given = ["m.map", "--source", "s.json"]
        found = runner.must(["map", "expand", *given], {self.status}, self.limit)
        for words in runner.choose([["map", "parse", "m.map"], ["map", "parse", "m.map", "--json"], ["map", "check", *given],
                                    ["map", "check", "--reverse", *given], ["map", "check", "--strict-aoa", *given],
                                    ["map", "expand", "--json", *given], ["map", "invert", *given], ["map", "eval", *given],
                                    ["map", "eval", *given, "--target", "t.json"],
                                    ["convert", "s.safetensors", "out", "--to", "safetensors", "--map", "m.map"]]):
            found += runner.must(words, STATUSES)
        return found


class Backwards:
    """Conditions on so many names of the left side, which is not known: each asks what the name comes from."""

    def __init__(self, count):
        self.count = count

    def problems(self, runner):
        tensors = {f"b{i}": {"dtype": "float32", "shape": [1]} for i in range(self.count)}
        (runner.work / "s.json").write_text(json.dumps({"tensors": tensors}))
        (runner.work / "m.map").write_text("".join(f'a{i} -> b{i}, when="a{i}"\n' for i in range(self.count)))
        return runner.must(["map", "expand", "--reverse", "m.map", "--source", "s.json"], {0})


class Expected:
    """A config.json of so many experts in sixty layers, which tells what tensors there should be."""

    def __init__(self, experts, status, text=""):
        self.experts, self.status, self.text = experts, status, text

    def problems(self, runner):
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "kv_lora_rank": 8,
                 "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "intermediate_size": 128,
                 "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 3}
        config = {"model_type": "deepseek_v3", "num_hidden_layers": 60, "n_routed_experts": self.experts, **sizes}
        (runner.work / "config.json").write_text(json.dumps(config))
        inputs.safetensors(runner.work / "s.safetensors", {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(16))
        return runner.must(["verify", "s.safetensors", "--against", "config.json"], {self.status}, self.text)


def sizes(name, rank="mp_rank_00"):
    """Arguments of a run whose one size is not what its files say."""
    def make(folder):
        for value in (2**31 - 1, 2**63 - 1, 0, -1):
            inputs.megatron(folder / str(value), rank, **{name: value})

    class Sizes(Checkpoint):
        def problems(self, runner):
            make(runner.work / "in")
            found = []
            for path in sorted((runner.work / "in").iterdir()):
                for words in runner.choose([["inspect", path], ["verify", path], ["inspect", "--lenient", path],
                                            ["convert", path, "out", "--to", "hf"], ["convert", path, "out", "--to", "torch_dist"],
                                            ["convert", path, "out", "--to", "megatron", "--layout", "tp=2"]]):
                    found += runner.must(words, STATUSES)
            return found
    return Sizes(None, 0)


def coded(codec, count, mebibytes, filters=None):
    return lambda folder: inputs.coded_chunks(folder, codec, count, mebibytes * MIB, filters)


def window(folder):
    inputs.array(folder / "w", [MIB], [MIB], "|u1", {"id": "zstd", "level": 1})
    (folder / "w" / "0").write_bytes(inputs.zstd_window(MIB, 31))


SHUFFLE = [{"id": "shuffle", "elementsize": 4}]
CASES = {
    "zarr without a chunk file, 64 GiB of fill value": Checkpoint(lambda folder: inputs.array(folder / "w", [1 << 34], [1 << 34]), 6,
                                                                  "tensor_expansion"),
    "three of them": Checkpoint(lambda folder: [inputs.array(folder / name, [1 << 34], [1 << 34]) for name in "uvw"] and None, 6,
                                "tensor_expansion"),
    "a thousand arrays of 64 MiB of fill value": Checkpoint(
        lambda folder: [inputs.array(folder / f"w{i}", [1 << 24], [1 << 24]) for i in range(1000)] and None, 6, "tensor_expansion", "w1"),
    "1 GiB of fill value, which is honest": Checkpoint(lambda folder: inputs.array(folder / "w", [1 << 28], [1 << 28]), 0),
    "zstd chunk of 1 GiB": Checkpoint(coded("zstd", 1, 1024), 6, "--memory"),
    "lz4 chunk of 1 GiB": Checkpoint(coded("lz4", 1, 1024), 6, "--memory"),
    "four zstd + shuffle chunks of 2 GiB": Checkpoint(coded("zstd", 4, 2048, SHUFFLE), 6, "tensor_expansion"),
    "bz2 chunk of 2 GiB": Checkpoint(coded("bz2", 1, 2048), 6, "tensor_expansion"),
    "a window of 2 GiB": Checkpoint(window, 0),
    "a coded shard that each of its inner chunks decodes": Checkpoint(lambda folder: inputs.shard_in_shard(folder, 64 * MIB, 4096), 6,
                                                                      "tensor_expansion"),
    "a deflated shard index of 40 million absent chunks": Checkpoint(lambda folder: inputs.holes(folder, 1, 20_000_000), 6, "work"),
    "index vectors that an unseeded hash takes for twins": Checkpoint(lambda folder: inputs.colliding_metadata(folder, 80_000), 4),
    "fragments that groups of DeepSpeed share": Checkpoint(inputs.shared_fragments, 6, "work"),
    "numbers that param_groups of DeepSpeed share": Checkpoint(inputs.shared_params, 6, "work"),
    "a bare storage of ByteCheckpoint that is told again and again": Checkpoint(inputs.repeated_storages, 6, "work"),
    "conditions backwards": Backwards(40000),
    "a config.json of nearly a million tensors": Expected(5800, 1),
    "a config.json of millions of tensors": Expected(65536, 6, "1000000 tensors"),
    "twenty million names": Mapping("a -> b[0:20000000], axis=0", 6, "map_bytes"),
    "long names": Mapping("a -> " + "n" * 60000 + "[0:100000], axis=0", 6, "map_bytes"),
    "arrays on many lines": Mapping("\n".join(f"a -> b{i}[0:2000000], axis=0" for i in range(100)), 6, "map_bytes"),
    "numbers inside names": Mapping("a -> `b`{0:20000000}, axis=0", 2),
    "an array on the left": Mapping("b[0:20000000] -> c, axis=0", 6, "map_bytes"),
    "millions of heads": Mapping("a -> b, fused_qkv_old, num_heads=5000000, num_key_value_groups=5000000", 6, "map_bytes"),
    "millions of groups": Mapping("a -> q, k, v, fused_qkv, num_heads=5000000, num_key_value_groups=5000000", 6, "map_bytes"),
}
for codec in ("zlib", "gzip", "lzma", "blosc"):
    CASES[f"{codec} chunks of 128 MiB, thirty-two of them"] = Checkpoint(coded(codec, 32, 128), 6, "tensor_expansion")
for size in ("pipeline_model_parallel_size", "expert_model_parallel_size"):
    CASES[f"Megatron's {size} in a file with a rank for it"] = sizes(size, "mp_rank_00_000")
for size in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
             "expert_model_parallel_size", "expert_tensor_parallel_size", "num_layers", "num_experts", "vocab_size", "padded_vocab_size",
             "make_vocab_size_divisible_by", "num_attention_heads", "num_query_groups", "kv_channels", "hidden_size", "ffn_hidden_size",
             "world_size", "data_parallel_size", "mtp_num_layers"):
    CASES[f"Megatron's {size}"] = sizes(size)


FLATTENED = {"torch_dcp": 5, "fsdp_dtensor": 5}  # their items are laid leaf by leaf: nested too deep
FOREIGN = {"megatron": 5}  # of no Megatron model
SHARED = {
    "none_flood": Shared(small_bombs.none_flood, "work"), "deep_lists": Shared(small_bombs.deep_lists, "work"),
    "equal_keys": Shared(small_bombs.equal_keys, "work"), "long_keys": Shared(small_bombs.long_keys, "work"),
    "stride_zero": Shared(small_bombs.stride_zero, "tensor_expansion"),
    "stride_zero_thousand": Shared(small_bombs.stride_zero_thousand, "tensor_expansion"),
    "wide_state": Shared(small_bombs.wide_state, "work"),
    "deep_items": Shared(small_bombs.deep_items, others=FLATTENED, key="deep"),
    "equal_keys_item": Shared(small_bombs.equal_keys_item, others={"torch_dcp": 6, "fsdp_dtensor": 6}, key="k"),
    "long_keys_item": Shared(small_bombs.long_keys_item, others={"torch_dcp": 6, "fsdp_dtensor": 6, "cat": 6}, key="d"),
    "doubling": Shared(small_bombs.doubling, others={"torch_dcp": 6, "fsdp_dtensor": 6, "cat": 6}, key="a"),
    "shared_flat_list": Shared(small_bombs.shared_flat_list, key="a",
                               others=dict.fromkeys(("torch-dcp", "torch_dist", "torch_dcp", "fsdp_dtensor", "megatron", "fsdp-ranks",
                                                     "diff"), 6)),
    "small_items": Shared(small_bombs.small_items, others={"torch-dcp": 6, "torch_dist": 6, **FOREIGN}, key="many.0"),
    "long_text": Shared(small_bombs.long_text, others={"diff": 6, "cat": 6, **FOREIGN}, key="a"),
    "long_call": Shared(small_bombs.long_call, others={"cat": 6, **FOREIGN}, key="a"), "long_bytes and long_call": Pair(),
    "same_items": Shared(small_bombs.same_items, key="k0"), "replicas": Shared(small_bombs.replicas, others=FOREIGN),
    "replica_tensors": Shared(small_bombs.replica_tensors, others=FOREIGN, key="w0"),
}
CASES.update(SHARED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--only", default="*")
    parser.add_argument("--runs", type=int)
    draw.add_options(parser, 0.5)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of a core for each run; coverage and sanitizers need more")
    args = parser.parse_args()
    cases = dict(draw.Draw(args).of((name, case) for name, case in CASES.items() if fnmatch.fnmatch(name, args.only)))
    chance = random.Random(args.seed)
    print(f"1..{len(cases)}", flush=True)
    failed = 0
    for number, (name, case) in enumerate(cases.items(), 1):
        with tempfile.TemporaryDirectory(prefix="reshard-blowup-") as work:
            few = args.runs if args.only == "*" else None
            runner = Runner(str(pathlib.Path(args.bin).resolve()), pathlib.Path(work), args.seconds,
                            lambda runs: chance.sample(runs, few) if few and few < len(runs) else runs)
            found = case.problems(runner)
        failed += bool(found)
        print(f"{'not ok' if found else 'ok'} {number} - {name}\n# slowest: {' '.join(runner.slowest[1])}, {runner.slowest[0]:.1f} s")
        print("".join(f"# {line}\n" for problem in found for line in problem.splitlines()), end="", flush=True)
    return failed > 0


sys.exit(main())
