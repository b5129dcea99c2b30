#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the figures of the README: ratios of medians, measured side by side in interleaved rounds of one run.

usage: bench.py --reshard PATH [--before PATH] [--dir DIR] [--disk DIR] [--rounds N] [--gigabytes 1,4] [--only WORD,…]
With --before every command that an earlier build knows is also run by it, in the same rounds; what it took is printed behind the rows.
--disk is a folder on a disk, for the rows where storage counts; it defaults to the temporary directory, unless that is in memory.
DIR defaults to /dev/shm when it has room (then storage does not hide the program), else to the temporary directory.
The checkpoints are written by real torch; RESHARD_TEST_PYTHON names a Python that has it, with safetensors.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BEFORE = " before"
TORCH_TO_HF = """
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from safetensors.torch import save_file
dcp_to_torch_save({src!r}, {dst!r} + '/x.pt')
state = torch.load({dst!r} + '/x.pt', mmap=True)
save_file({{k: v.contiguous() for k, v in state.items()}}, {dst!r} + '/model.safetensors')
"""
PADDLE_MERGE = """
from paddle.distributed.flex_checkpoint.dcp.load_state_dict import merge_sharded_state_dict
merge_sharded_state_dict({src!r}, {dst!r} + '/merged')
"""


class Bench:
    def __init__(self, args, root):
        self.args, self.root, self.out = args, root, os.path.join(root, "out")
        self.rows, self.before = [], []

    def wants(self, *words):
        return not self.args.only or any(word in self.args.only.split(",") for word in words)

    def program(self, name):
        """A program of the bench folder of the build that the command is from."""
        folder = os.path.dirname(self.args.reshard)
        places = [os.path.join(build, "bench", name) for build in (folder, os.path.dirname(folder))]
        return next((place for place in places if os.path.exists(place)), places[0])

    def make(self, kind, *numbers):
        path = os.path.join(self.root, "-".join([kind, *map(str, numbers)]))
        subprocess.run([self.args.python, os.path.join(HERE, "make_checkpoints.py"), kind, path, *map(str, numbers)], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return path

    def time_one(self, command, may_fail=False):
        """(seconds, most MiB, seconds of CPU), or None of a command that failed and may."""
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)
        started = time.monotonic()
        process = subprocess.Popen(command, shell=isinstance(command, str), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        message = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        if status and may_fail:
            return None
        if status:
            sys.exit(f"{command}: {message.decode()[-500:]}")
        return seconds, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime

    def with_before(self, commands):
        """The commands, and behind each that is ours the same of the earlier build."""
        both = {}
        for name, command in commands.items():
            both[name] = command
            if self.args.before and not isinstance(command, str) and command[0] == self.args.reshard:
                both[name + BEFORE] = [self.args.before, *command[1:]]
        return both

    def note_before(self, commands, times, cpu):
        for name in commands:
            if times.get(name + BEFORE):
                what = " ".join(part.replace(self.root + "/", "") for part in commands[name][1:])
                medians = [statistics.median(found[which]) for found in (times, cpu) for which in (name + BEFORE, name)]
                self.before.append((what, *medians))

    def side_by_side(self, commands, rounds=None):
        """{name: (median seconds, most MiB, median seconds of CPU)}; one warming round is not counted."""
        asked, commands = commands, self.with_before(commands)
        times, cpu, memory = {name: [] for name in commands}, {name: [] for name in commands}, dict.fromkeys(commands, 0)
        for turn in range((rounds or self.args.rounds) + 1):
            for name, command in list(commands.items()):
                took = self.time_one(command, may_fail=name.endswith(BEFORE) and not turn)
                if not took: # the earlier build does not know this verb or format
                    del commands[name]
                    continue
                seconds, mib, used = took
                if turn:
                    times[name].append(seconds)
                    cpu[name].append(used)
                    memory[name] = max(memory[name], mib)
        shutil.rmtree(self.out, ignore_errors=True)
        self.note_before(asked, times, cpu)
        return {name: (statistics.median(times[name]), memory[name], statistics.median(cpu[name])) for name in commands}

    def row(self, what, figure, must, aim, detail):
        self.rows.append((what, figure, must, aim, detail))
        print(f"| {what} | {figure} | {must} | {aim} | {detail} |", flush=True)

    def looking(self, source, to_hf, gigabytes):
        """Statistics against a digest of the same bytes; a comparison of two layouts against reading both files."""
        reshard, kept = self.args.reshard, self.out + "-hf"
        subprocess.run([*to_hf[:3], kept, *to_hf[4:]], check=True)
        found = self.side_by_side({"xxh3": [reshard, "hash", source, "--digest", "xxh3"], "stats": [reshard, "stats", source],
                                   "cat": f"cat {source}/*.distcp {kept}/*.safetensors > /dev/null",
                                   "diff": [reshard, "diff", source, kept, "--items", "ignore", "--stat"]})
        seconds = {name: value[0] for name, value in found.items()}
        self.row(f"stats, {gigabytes} GB of BF16, time against `hash --digest xxh3`", f"{seconds['stats'] / seconds['xxh3']:.2f}x", "1.5x",
                 "1.1x", f"{seconds['stats']:.2f} s; {found['stats'][2] / found['xxh3'][2]:.2f}x its CPU time")
        for dtype in ("F16", "F8_E4M3", "F32"):
            cast = f"{self.out}-{dtype}"
            subprocess.run([reshard, "convert", kept, cast, "--to", "hf", "--quiet", "--dtype", dtype], check=True)
            other = self.side_by_side({"xxh3": [reshard, "hash", cast, "--digest", "xxh3"], "stats": [reshard, "stats", cast]})
            self.row(f"the same of {dtype}", f"{other['stats'][0] / other['xxh3'][0]:.2f}x", "1.5x", "1.1x",
                     f"{other['stats'][0]:.2f} s; {other['stats'][2] / other['xxh3'][2]:.2f}x its CPU time")
            shutil.rmtree(cast)
        self.row(f"diff --stat of two layouts, {gigabytes} GB each, against `cat` of both", f"{seconds['cat'] / seconds['diff']:.2f}x",
                 "0.6x", "0.9x", f"{seconds['diff']:.2f} s")
        shutil.rmtree(kept)

    def convert(self, gigabytes):
        reshard, source = self.args.reshard, self.make("dcp", gigabytes, 4)
        size = sum(os.path.getsize(os.path.join(source, name)) for name in os.listdir(source))
        to_hf = [reshard, "convert", source, self.out + "/hf", "--to", "hf", "--quiet"]
        commands = {
            "cp": ["cp", "-r", source, self.out + "/copy"], "reshard": to_hf, "nosync": [*to_hf, "--no-sync"],
            "cp+sync": f"cp -r {source} {self.out}/copy && sync -f {self.out}",
            "small": [*to_hf, "--memory", "64MiB"],
            "cat": f"cat {source}/*.distcp > /dev/null",
            "xxh3": [reshard, "hash", source, "--digest", "xxh3"], "deep": [reshard, "verify", "--deep", source],
        }
        found = self.side_by_side(commands)
        seconds = {name: value[0] for name, value in found.items()}
        rate = size / 1e9 / seconds["nosync"]
        self.row(f"DCP to hf, {gigabytes} GB, against `cp -r` (neither synced)", f"{seconds['cp'] / seconds['nosync']:.2f}x",
                 "0.7x", "0.95x", f"{rate:.2f} GB/s")
        self.row(f"DCP to hf, {gigabytes} GB, against `cp -r` then `sync`", f"{seconds['cp+sync'] / seconds['reshard']:.2f}x", "", "",
                 f"{size / 1e9 / seconds['reshard']:.2f} GB/s")
        self.row(f"peak RSS of it, {gigabytes} GB", f"{found['reshard'][1]:.0f} MiB", "256 MiB", "", "default budget")
        self.row(f"peak RSS of it, {gigabytes} GB, --memory 64MiB", f"{found['small'][1]:.0f} MiB", "", "64 MiB", "")
        self.row(f"hash xxh3, {gigabytes} GB, against `cat`", f"{seconds['cat'] / seconds['xxh3']:.2f}x", "0.7x", "0.95x",
                 f"{size / 1e9 / seconds['xxh3']:.2f} GB/s")
        self.row(f"verify --deep, {gigabytes} GB, against `cat`", f"{seconds['cat'] / seconds['deep']:.2f}x", "0.7x", "0.95x",
                 f"{size / 1e9 / seconds['deep']:.2f} GB/s")
        self.looking(source, to_hf, gigabytes)
        if gigabytes <= 1:
            torch = [self.args.python, "-c", TORCH_TO_HF.format(src=source, dst=self.out)]
            found = self.side_by_side({"torch": torch, "reshard": to_hf}, rounds=2)
            self.row(f"DCP to hf, {gigabytes} GB, against torch's own path", f"{found['torch'][0] / found['reshard'][0]:.1f}x", "8x", "14x",
                     f"torch {found['torch'][0]:.1f} s and {found['torch'][1]:.0f} MiB, reshard {found['reshard'][0]:.2f} s and "
                     f"{found['reshard'][1]:.0f} MiB")
        shutil.rmtree(source)

    def metadata(self):
        reshard, source = self.args.reshard, self.make("metadata", 1000, 1000, 2048)
        chunks = 1_000_000
        found = self.side_by_side({"inspect": [reshard, "inspect", source],
                                   "plan": [reshard, "plan", source, "--to", "torch-dcp", "--layout", "ranks=500"]})
        page = os.path.join(self.root, "map.html")
        drawn = self.side_by_side({"draw": ["sh", "-c", f"rm -f {page}; exec {reshard} draw {source} {page}"],
                                   "tree": [reshard, "ls", source, "--tree"]})
        seconds, mib, _ = drawn["draw"]
        self.row("draw of 1,000,000 chunks as a page", f"{seconds:.2f} s", "3 s", "1 s",
                 f"{os.path.getsize(page) / 1e6:.2f} MB of page; must 3, aim 1; {mib:.0f} MiB of memory")
        self.row("`ls --tree` of 1,000,000 chunks in 1,000 tensors", f"{drawn['tree'][0]:.2f} s", "1 s", "0.7 s",
                 f"{drawn['tree'][1]:.0f} MiB")
        decode = subprocess.run([self.program("bench_metadata"), source + "/.metadata"], capture_output=True, text=True)
        self.row(".metadata of 1,000,000 chunks: decode", decode.stdout.strip() or "not built", "1 M/s", "10 M/s",
                 "median of 5 in one process")
        flex = os.path.join(self.root, "flex.metadata")
        maker = os.path.join(HERE, "..", "tests", "formats", "make_flex_vectors.py")
        subprocess.run([self.args.python, maker, "--bench", str(chunks), flex], check=True)
        decode = subprocess.run([self.program("bench_metadata"), "--flex", flex], capture_output=True, text=True)
        self.row("Flex Checkpoint metadata of 1,000,000 shards: decode", decode.stdout.strip() or "not built", "1 M/s", "10 M/s",
                 "half of them flattened; median of 5 in one process")
        os.remove(flex)
        self.row("the same of DCP: whole `inspect`", f"{chunks / found['inspect'][0] / 1e6:.1f} M chunks/s", "", "",
                 f"{found['inspect'][0]:.2f} s, {found['inspect'][1]:.0f} MiB")
        self.row("the same: whole `plan` into another layout", f"{found['plan'][0]:.2f} s", "", "", "with opening it")
        program = self.program("bench_plan")
        for line in subprocess.run([program], capture_output=True, text=True).stdout.splitlines() if os.path.exists(program) else []:
            found = re.match(r"(.*?)\s+(\d+) -> +(\d+) chunks: +(\d+) steps in ([\d.]+) s", line)
            if found and int(found[2]) >= chunks:
                self.row(f"plan alone, {found[1]}", f"{found[5]} s", "1 s", "0.1 s",
                         f"{int(found[2]):,} to {int(found[3]):,} chunks, {int(found[4]):,} steps")
        program = self.program("bench_save")
        if os.path.exists(program):
            found = subprocess.run([program], capture_output=True, text=True).stdout.splitlines()
            self.row("planning a save of 405B over 8,960 ranks", found[-1].rpartition("in all ")[2], "10 s", "1 s",
                     "as each rank does; " + found[0])
            self.row("the same for the next save, with what is kept", found[1].rpartition("same: ")[2], "10 ms", "1 ms",
                     "of the same tensors; where objects or values are others, laid out anew as above")
        shutil.rmtree(source)
        source = self.make("metadata", 1000, 64, 4_000_000)
        size = sum(os.path.getsize(os.path.join(source, name)) for name in os.listdir(source))
        found = self.side_by_side({"inspect": [reshard, "inspect", source]}, rounds=7)
        self.row(f"`inspect` of {size / 1e12:.2f} TB (64,000 chunks, sparse files)", f"{found['inspect'][0]:.3f} s", "0.3 s", "0.05 s",
                 f"{found['inspect'][1]:.0f} MiB")
        shutil.rmtree(source)

    def reading(self):
        """The library's reads into callers' memory."""
        program, source = self.program("bench_read"), self.make("dcp", 1, 4)
        if not os.path.exists(program):
            return
        subprocess.run([self.args.reshard, "convert", source, self.root + "/read-hf", "--to", "hf", "--quiet"], check=True)
        for line in subprocess.run([program, self.root + "/read-hf"], capture_output=True, text=True, check=True).stdout.splitlines():
            found = re.match(r"(.*?): (\d+) boxes, (\d+) MB: ([\d.]+x) of pread \((.*)\)", line)
            what = f"`reshard_read_many`, {found[1]}: {int(found[2]):,} boxes, {found[3]} MB, warm, against pread of the same ranges"
            self.row(what, found[4], "0.7x", "0.95x", found[5])
        shutil.rmtree(self.root + "/read-hf")
        shutil.rmtree(source)

    def writing(self):
        """The library's writer, fed from memory in pieces of 1 MiB, beside dd; both synced."""
        program, folder = self.program("bench_writer"), self.out + "-writer"
        if not os.path.exists(program):
            return
        os.makedirs(folder)
        for line in subprocess.run([program, folder, "1"], capture_output=True, text=True, check=True).stdout.splitlines():
            found = re.match(r"(.*?): (\d+) MB: ([\d.]+x) of dd \((.*)\)", line)
            if found:
                what = f"writer fed in pieces of 1 MiB, {found[1]}, {found[2]} MB, against dd, both synced"
                self.row(what, found[3], "0.8x", "1.0x", found[4])
        grown = re.match(r"resident memory: (\d+) MB", line)
        self.row("resident memory of it beyond the pieces", f"{grown[1]} MiB", "64 MiB", "16 MiB", "")
        shutil.rmtree(folder)

    def background(self):
        """How long a save in the background holds up the job, against one memcpy of the same bytes."""
        program, folder = self.program("bench_async"), self.out + "-background"
        if not os.path.exists(program):
            return
        saver = os.path.join(os.path.dirname(os.path.dirname(program)), "cli", "reshard-saver")
        environment = {**os.environ, "RESHARD_SAVER_PROGRAM": saver}
        output = subprocess.run([program, folder, "1024"], capture_output=True, text=True, check=True, env=environment).stdout
        for line in output.splitlines():
            found = re.match(r"(\w+): ([\d.]+) ms a save, ([\d.]+) ms a memcpy of (\d+) MiB, ratio ([\d.]+)", line)
            what = f"stall of a save in the background ({found[1]}), warm, {found[4]} MiB, against one memcpy"
            self.row(what, found[5] + "x", "1.5x", "1.1x", f"{found[2]} ms, memcpy {found[3]} ms")
        shutil.rmtree(folder)

    def moving(self, megabytes):
        """Layouts changed in the memory of four ranks, against memcpy of the bytes and against gloo's all_gather and slices of it."""
        program, gloo = self.program("bench_redistribute"), os.path.join(HERE, "gloo_redistribute.py")
        if not os.path.exists(program):
            return
        for kind in ("tp", "ep"):
            theirs = subprocess.run([self.args.python, gloo, kind, str(megabytes)], capture_output=True, text=True, check=True).stdout
            for how in ("threads", "processes", "shared"):
                line = subprocess.run([program, kind, how, str(megabytes)], capture_output=True, text=True, check=True).stdout
                found = re.match(r"(.*), \w+: (.*): ([\d.]+)x of memcpy \(([\d.]+) s, memcpy ([\d.]+) s;.*, (\d+) MiB", line)
                named = "processes, sources in memory of the group" if how == "shared" else how
                what = f"in-memory reshard, {found[1]}, {named}: {found[2]}"
                self.row(what + ", against memcpy", found[3] + "x", "0.5x", "0.95x", f"{found[4]} s, memcpy {found[5]} s")
                self.row("the same against gloo's all_gather and slices", f"{float(theirs) / float(found[4]):.0f}x", "5x", "20x",
                         f"gloo {float(theirs):.2f} s")
                if how == "processes":  # threads' shards are one process's, and shared ones are each process's that looks at them
                    self.row("scratch of it (resident memory beyond the shards)", f"{found[6]} MiB", "64 MiB a rank", "16 MiB", "")

    def ranks(self, megabytes, where):
        """Four local ranks save, beside dd, and load another layout into memory that is there, beside pread."""
        program, folder = self.program("bench_ranks"), self.out + "-ranks"
        if not os.path.exists(program):
            return
        os.makedirs(folder)
        for line in subprocess.run([program, folder, str(megabytes)], capture_output=True, text=True, check=True).stdout.splitlines():
            found = re.match(r"(save|load, .*?): (\d+) MB(?: wanted)?: ([\d.]+x) of (?:dd|pread) \((.*?)\)(?:, read amplification (.*))?",
                             line)
            if found[1] == "save":
                self.row(f"save by 4 local ranks {where}, {found[2]} MB, synced, against a dd of each rank, synced", found[3], "0.7x",
                         "0.95x", found[4])
                continue
            what = f"{found[1]} {where}, TP 4 into TP 2 with replicas, {found[2]} MB wanted, warm, against pread of the same"
            once = "once" in found[1]
            self.row(what, found[3], "0.7x", "0.95x", found[4])
            self.row("read amplification of it", found[5], "1.00" if once else "", "", "" if once else "every byte is wanted twice")
        shutil.rmtree(folder)

    def machines(self, gigabytes, where, *sync):
        """A conversion by two processes, over MPI and as parts without it, against the same by one."""
        reshard, source = self.args.reshard, self.make("dcp", gigabytes, 4)
        options = ["--to", "hf", "--quiet", *sync]
        convert = lambda program, target, *more: [program, "convert", source, f"{self.out}/{target}", *options, *more]
        parts = [" ".join(convert(reshard, "parts", "--part", f"{i}/2")) for i in range(2)]
        commands = {"one": convert(reshard, "one"),
                    "`--part` twice side by side": f"{parts[0]} & {parts[1]} && wait && {reshard} commit {self.out}/parts"}
        launchers = {"": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "-mpich": ["mpirun.mpich"]}
        for suffix, launcher in launchers.items():
            if shutil.which(launcher[0]) and os.path.exists(reshard + "-mpi" + suffix):
                commands[f"`{launcher[0]} -n 2`"] = [*launcher, "-n", "2", *convert(reshard + "-mpi" + suffix, "mpi")]
                commands["start of " + launcher[0]] = [*launcher, "-n", "2", reshard + "-mpi" + suffix, "verify", "--quiet", source]
        found = self.side_by_side(commands)
        for name in [name for name in commands if name[0] == "`"]:
            start = found.get("start of " + name.strip("`").split()[0])
            ratio = found["one"][0] / found[name][0]
            self.row(f"DCP to hf, {gigabytes} GB {where}, {name}, against one process", f"{ratio:.2f}x", "1.0x", "",
                     f"{found[name][0]:.2f} s, one {found['one'][0]:.2f} s" +
                     (f"; MPI's start and a `verify` {start[0]:.2f} s" if start else ""))
        shutil.rmtree(source)

    def mapping(self):
        """50 statements over a million keys; Paddle's own engine over a part of them, where PADDLE_PYTHON names a Python that has it."""
        program = self.program("bench_mapping")
        if not os.path.exists(program):
            return
        pattern = re.compile(r"with target .*sum +([\d.]+) s")
        seconds = lambda *size: float(pattern.search(subprocess.run([program, *map(str, size)], capture_output=True, text=True,
                                                                    check=True).stdout)[1])
        self.row("mapping of 1,000,000 keys by 50 statements", f"{statistics.median(seconds() for _ in range(3)):.2f} s", "10 s", "1 s",
                 "parse, expand, execute")
        python = os.environ.get("PADDLE_PYTHON")
        if python:
            layers, experts = 20, 20
            output = subprocess.run([python, os.path.join(HERE, "aoa_upstream.py"), str(layers), str(experts)], capture_output=True,
                                    text=True).stdout
            found = re.search(r"^(\d+) ([\d.]+)$", output, re.M)
            if found:
                ours = seconds(layers, experts)
                self.row(f"the same over {int(found[1]):,} keys, against Paddle's engine", f"{float(found[2]) / ours:.0f}x", "", "",
                         f"Paddle {float(found[2]):.1f} s, reshard {ours:.3f} s")

    def zarr(self, gigabytes):
        """Compressed chunks read, against zarr-python reading the same arrays, where ZARR_PYTHON names a Python that has zarr 3."""
        python = os.environ.get("ZARR_PYTHON")
        if not python:
            return
        for codec in ("blosc", "zstd"):
            store = os.path.join(self.root, "zarr-" + codec)
            subprocess.run([python, os.path.join(HERE, "make_zarr.py"), store, codec, str(gigabytes)], check=True)
            read = f"import zarr\nfor _, array in zarr.open_group({store!r}, mode='r').arrays(): array[...]"
            found = self.side_by_side({"zarr": [python, "-c", read], "reshard": [self.args.reshard, "hash", store, "--digest", "xxh3"]})
            self.row(f"reading zarr chunks ({codec}), {gigabytes} GB, against zarr-python",
                     f"{found['zarr'][0] / found['reshard'][0]:.1f}x", "3x", "10x",
                     f"zarr-python {found['zarr'][0]:.2f} s and {found['zarr'][1]:.0f} MiB, reshard (with xxh3) {found['reshard'][0]:.2f} "
                     f"s and {found['reshard'][1]:.0f} MiB")
            shutil.rmtree(store)

    def megatron(self, gigabytes):
        """Legacy rank files into another layout, and torch_dist to Hugging Face names, against a copy of the same bytes."""
        reshard, legacy = self.args.reshard, self.make("legacy", gigabytes, 4, 2)
        found = self.side_by_side({"cp": ["cp", "-r", legacy, self.out + "/copy"],
                                   "reshard": [reshard, "convert", legacy, self.out + "/x", "--to", "megatron", "--layout", "tp=2,pp=4",
                                               "--quiet", "--no-sync"]})
        self.row(f"legacy Megatron TP4 PP2 to TP2 PP4, {gigabytes} GB, against `cp -r`", f"{found['cp'][0] / found['reshard'][0]:.2f}x",
                 "0.5x", "0.95x", f"{found['reshard'][0]:.2f} s, {found['reshard'][1]:.0f} MiB")
        shutil.rmtree(legacy)
        source = self.make("torch_dist", gigabytes, 4)
        found = self.side_by_side({"cp": ["cp", "-r", source, self.out + "/copy"],
                                   "reshard": [reshard, "convert", source, self.out + "/x", "--to", "hf", "--rules", "llama", "--quiet",
                                               "--no-sync"]})
        self.row(f"torch_dist to hf, QKV and gate/up split, {gigabytes} GB, against `cp -r`",
                 f"{found['cp'][0] / found['reshard'][0]:.2f}x", "0.6x", "0.95x",
                 f"{found['reshard'][0]:.2f} s, {found['reshard'][1]:.0f} MiB")
        shutil.rmtree(source)

    def flat(self, gigabytes):
        """Flat parameters with optimizer state for another number of ranks, to Hugging Face, and one tensor of them, against a copy."""
        reshard, plain, source = self.args.reshard, os.path.join(self.root, "flat.safetensors"), os.path.join(self.root, "flat")
        blocks, header, at = max(1, round(gigabytes * 1e9 / 12 / (5 << 20))), {}, 0
        shapes = {f"h.{i}.{name}": shape for i in range(blocks) for name, shape in (("attn", [1024, 3072]), ("mlp", [2048, 1024]))}
        for key, shape in [(key + state, shape) for key, shape in shapes.items() for state in ("", "-exp_avg", "-exp_avg_sq")]:
            size = 4 * shape[0] * shape[1]
            header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text, block = json.dumps(header).encode(), os.urandom(1 << 24)
        with open(plain, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            while at > 0:
                at -= file.write(block[:at])
        subprocess.run([reshard, "convert", plain, source, "--to", "atorch", "--wrap", "h.*", "--layout", "ranks=8", "--quiet",
                        "--no-sync"], check=True)
        os.unlink(plain)
        recut = [reshard, "convert", source, self.out + "/x", "--to", "atorch", "--layout", "ranks=6", "--quiet", "--no-sync"]
        found = self.side_by_side({"cp": ["cp", "-r", source, self.out + "/copy"], "ranks": recut,
                                   "hf": [reshard, "convert", source, self.out + "/hf", "--to", "hf", "--quiet", "--no-sync"],
                                   "one": f"{reshard} cat {source} h.0.attn --as raw > /dev/null"})
        seconds = {name: value[0] for name, value in found.items()}
        self.row(f"atorch W=8 to W=6 with optimizer, {gigabytes} GB, against `cp -r`", f"{seconds['cp'] / seconds['ranks']:.2f}x", "0.5x",
                 "0.95x", f"{seconds['ranks']:.2f} s, {found['ranks'][1]:.0f} MiB")
        self.row(f"atorch to hf, {gigabytes} GB, against `cp -r`", f"{seconds['cp'] / seconds['hf']:.2f}x", "0.6x", "0.95x",
                 f"{seconds['hf']:.2f} s, {found['hf'][1]:.0f} MiB")
        self.row(f"one tensor by name out of {gigabytes} GB of atorch", f"{seconds['one'] * 1000:.0f} ms", "", "5 ms", "12 MiB of payload")
        shutil.rmtree(source)

    def paddle(self, gigabytes):
        """Flex Checkpoint of four ranks to Hugging Face: against a copy, and against Paddle itself, where PADDLE_PYTHON names a Python."""
        reshard, made, source = self.args.reshard, self.make("dcp", gigabytes, 4), os.path.join(self.root, "flex")
        subprocess.run([reshard, "convert", made, source, "--to", "paddle-flex", "--layout", "tp=4", "--quiet", "--no-sync"], check=True)
        shutil.rmtree(made)
        commands = {"cp": ["cp", "-r", source, self.out + "/copy"],
                    "reshard": [reshard, "convert", source, self.out + "/hf", "--to", "hf", "--quiet", "--no-sync"]}
        found = self.side_by_side(commands)
        ratio = found["cp"][0] / found["reshard"][0]
        self.row(f"Flex Checkpoint (4 ranks) to hf, {gigabytes} GB, against `cp -r`", f"{ratio:.2f}x", "0.6x", "0.95x",
                 f"{found['reshard'][0]:.2f} s, {found['reshard'][1]:.0f} MiB")
        python = os.environ.get("PADDLE_PYTHON")
        if python:
            merge = [python, "-W", "ignore", "-c", PADDLE_MERGE.format(src=source, dst=self.out)]
            found = self.side_by_side({"paddle": merge, "reshard": commands["reshard"]}, rounds=2)
            self.row("the same, against Paddle's merge_sharded_state_dict", f"{found['paddle'][0] / found['reshard'][0]:.1f}x", "5x", "15x",
                     f"Paddle {found['paddle'][0]:.1f} s and {found['paddle'][1]:.0f} MiB")
        shutil.rmtree(source)

    def disk(self, gigabytes):
        """Synced, on a disk: the ways to read against each other, and against a copy."""
        reshard, source = self.args.reshard, self.make("dcp", gigabytes, 4)
        ways = ("auto", "buffered", "direct", "mmap")
        commands = {io: [reshard, "convert", source, self.out + "/hf", "--to", "hf", "--quiet", "--io", io] for io in ways}
        commands["cp"] = f"cp -r {source} {self.out}/copy && sync -f {self.out}"
        found = self.side_by_side(commands)
        seconds = {name: value[0] for name, value in found.items()}
        best = min(ways[1:], key=seconds.get)
        self.row(f"DCP to hf, {gigabytes} GB, on a disk, synced, against `cp -r` then `sync`", f"{seconds['cp'] / seconds['auto']:.2f}x",
                 "", "", f"{seconds['auto']:.2f} s")
        self.row("the same, `--io auto` against the best of the others", f"{seconds[best] / seconds['auto']:.2f}x", "1.0x", "",
                 ", ".join(f"{io} {seconds[io]:.2f} s" for io in ways))
        shutil.rmtree(source)

    def small(self):
        reshard, count, size = self.args.reshard, 100_000, 16 * 1024
        source, single = self.make("small", count, size), os.path.join(self.root, "single")
        with open(single, "wb") as file:
            for _ in range(count * size // (1 << 20)):
                file.write(os.urandom(1 << 20))
        found = self.side_by_side({"cp": ["cp", single, self.out + "/copy"],
                                   "reshard": [reshard, "convert", source, self.out + "/hf", "--to", "hf", "--quiet", "--no-sync"]})
        self.row("100,000 tensors of 16 KiB: convert, against `cp` of one file", f"{found['cp'][0] / found['reshard'][0]:.2f}x",
                 "0.3x", "0.8x", f"{found['reshard'][0]:.2f} s, {found['reshard'][1]:.0f} MiB")
        shutil.rmtree(source)
        os.unlink(single)


def disk_folder(args):
    """Where the rows on a disk are measured; None if there is no disk."""
    if args.disk:
        return args.disk
    folder = tempfile.gettempdir()
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout.strip()
    return None if kind in ("tmpfs", "ramfs") else folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reshard", required=True)
    parser.add_argument("--before")
    parser.add_argument("--dir")
    parser.add_argument("--disk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", default="1,4")
    parser.add_argument("--only", default="")
    parser.add_argument("--python", default=os.environ.get("RESHARD_TEST_PYTHON", sys.executable))
    args = parser.parse_args()
    args.reshard, args.before = os.path.abspath(args.reshard), args.before and os.path.abspath(args.before)
    if subprocess.run([args.python, "-c", "import torch, safetensors"], stderr=subprocess.DEVNULL).returncode:
        sys.exit("bench: the checkpoints are written by torch; set RESHARD_TEST_PYTHON to a Python that has torch and safetensors")
    base = args.dir or ("/dev/shm" if shutil.disk_usage("/dev/shm").free > 14e9 else tempfile.gettempdir())
    root, on_disk = tempfile.mkdtemp(prefix="reshard-bench-", dir=base), None
    try:
        print(f"in {base}, {args.rounds} interleaved rounds, {os.cpu_count()} CPUs\n\n| what | measured | must | aim | "
              f"|\n|---|---|---|---|---|", flush=True)
        bench = Bench(args, root)
        if bench.wants("convert"):
            for gigabytes in args.gigabytes.split(","):
                bench.convert(int(gigabytes))
        if bench.wants("metadata"):
            bench.metadata()
        if bench.wants("reading"):
            bench.reading()
        if bench.wants("writing"):
            bench.writing()
        if bench.wants("background"):
            bench.background()
        if bench.wants("moving"):
            bench.moving(int(float(args.gigabytes.split(",")[-1]) * 500))
        if bench.wants("ranks"):
            bench.ranks(1000, "in memory")
        if bench.wants("machines"):
            bench.machines(int(args.gigabytes.split(",")[-1]), "in memory", "--no-sync")
        if bench.wants("mapping"):
            bench.mapping()
        if bench.wants("megatron"):
            bench.megatron(int(args.gigabytes.split(",")[-1]))
        if bench.wants("paddle"):
            bench.paddle(int(args.gigabytes.split(",")[-1]))
        if bench.wants("flat"):
            bench.flat(int(args.gigabytes.split(",")[-1]))
        if bench.wants("zarr"):
            bench.zarr(int(args.gigabytes.split(",")[0]))
        if bench.wants("small"):
            bench.small()
        if bench.wants("disk", "ranks", "machines") and disk_folder(args):
            bench.root = on_disk = tempfile.mkdtemp(prefix="reshard-bench-", dir=disk_folder(args))
            bench.out = os.path.join(on_disk, "out")
            if bench.wants("disk"):
                bench.disk(int(args.gigabytes.split(",")[0]))
            if bench.wants("ranks"):
                bench.ranks(1000, "on a disk")
            if bench.wants("machines"):
                roomy = shutil.disk_usage(on_disk).free > 32e9 # so much that MPI's start, of half a second, counts for little
                bench.machines(10 if roomy else int(args.gigabytes.split(",")[-1]), "on a disk, synced")
        if args.before:
            print("\n| command | before, s | now, s | ratio | ratio of CPU time |\n|---|---|---|---|---|")
            for what, was, now, cpu_was, cpu_now in bench.before:
                print(f"| `{what}` | {was:.3f} | {now:.3f} | {was / now:.2f}x | {cpu_was / cpu_now:.2f}x |")
    finally:
        shutil.rmtree(root, ignore_errors=True)
        if on_disk:
            shutil.rmtree(on_disk, ignore_errors=True)


main()
