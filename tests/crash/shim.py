# SPDX-License-Identifier: Apache-2.0
"""Runs of the command under the interposer (interpose.c): counted, failed, killed and logged; and small checkpoints of every format for
them."""
import concurrent.futures
import dataclasses
import errno
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile

BATCH = 64
PROCESSES = 2
SIGNALS = {-6: "abort", -7: "bus error", -9: "kill", -11: "segmentation fault", -14: "no end", -24: "no end"}


@dataclasses.dataclass
class Outcome:
    number: int
    status: int  # exit status, or minus the signal
    was_hit: bool
    calls: int  # that the rule was about
    live_blocks: int
    open_files: int
    leak: str  # offset in the library of the allocation that was not given back
    what: str  # the call that was hit, and its file
    directory: pathlib.Path  # that it ran in
    out: bytes
    err: str


def work_directory():
    """A folder for many small files, in memory where that is possible: the calls are what counts, not the disk."""
    memory = pathlib.Path("/dev/shm")
    return pathlib.Path(tempfile.mkdtemp(prefix="reshard-crash-", dir=memory if os.access(memory, os.W_OK) else None))


def link_tree(source, target):
    """A copy that shares the bytes; nobody may write into a published target, and content_of() would show it."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        os.link(source, target)


def content_of(path):
    """{relative name: bytes, or None for a folder}; {} where there is nothing."""
    if path.is_symlink() or not path.exists():
        return {}
    if path.is_file():
        return {".": path.read_bytes()}
    return {".": None} | {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


def partial_of(target):
    """The folder beside a target in which a run works."""
    return f".{target}.reshard-partial"


def write_layers(path, tensors, elements, seed):
    """A safetensors file of many small tensors, so that a run with little memory has many steps."""
    header = {f"layers.{i}.weight": {"dtype": "F32", "shape": [elements // 64, 64],
                                     "data_offsets": [4 * elements * i, 4 * elements * (i + 1)]}
              for i in range(tensors)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + random.Random(seed).randbytes(4 * elements * tensors))
    return path


# What a kernel, a sandbox or a file system may not offer.
REFUSED = ",".join(f"{name}={number}" for name, number in
                   {"copy_file_range": errno.EXDEV, "RENAME_EXCHANGE": errno.EINVAL, "RENAME_NOREPLACE": errno.EINVAL,
                    "openat2": errno.ENOSYS, "O_DIRECT": errno.EINVAL}.items())


class Shim:
    def __init__(self, binary, module):
        self.binary, self.module = os.path.abspath(binary), os.path.abspath(module)

    def environment(self, **settings):
        """SHIM_ settings by their names in small letters."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SHIM_")}
        # Functions are bound once, not in each fork.
        environment |= {"LD_PRELOAD": self.module, "LD_BIND_NOW": "1", "LC_ALL": "C.UTF-8", "COLUMNS": "100"}
        return environment | {f"SHIM_{key.upper()}": str(value) for key, value in settings.items() if value is not None}

    def run(self, arguments, directory, **settings):
        """One run of its own, as subprocess.run returns it."""
        return subprocess.run([self.binary, *map(str, arguments)], cwd=directory, env=self.environment(**settings), capture_output=True,
                              timeout=300)

    def plain(self, arguments, directory):
        """Without the interposer; it must succeed."""
        done = subprocess.run([self.binary, *map(str, arguments)], cwd=directory, capture_output=True, timeout=300)
        assert done.returncode == 0, (f"{' '.join(map(str, arguments))}: exit {done.returncode}: "
                                      f"{done.stderr.decode(errors='replace')[-600:]}")
        return done.stdout

    def serve(self, arguments, directory, first, last, **settings):
        """Runs number first to last, each in directory/NUMBER, from one process."""
        report = directory / "report"
        report.unlink(missing_ok=True)
        done = subprocess.run([self.binary, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                              env=self.environment(runs=f"{first}-{last}", directory=directory, report=report, **settings))
        assert done.returncode == 0, f"the interposer cannot serve: {done.returncode} {done.stderr.decode(errors='replace')[-300:]}"
        return [self.outcome(line, directory) for line in report.read_text(errors="replace").splitlines()]

    @staticmethod
    def outcome(line, directory):
        number, status, hit, calls, blocks, files, leak, what = line.split("\t", 7)
        out, err = directory / f"{number}.out", directory / f"{number}.err"
        return Outcome(int(number), int(status), hit == "1", int(calls), int(blocks), int(files), leak, what, directory / number,
                       out.read_bytes(), err.read_text(errors="replace"))

    def count(self, arguments, work, prepare, **settings):
        """How many calls a run makes that the rule is about."""
        directory = pathlib.Path(tempfile.mkdtemp(dir=work))
        (directory / "1").mkdir()
        prepare(directory / "1")
        outcome, = self.serve(arguments, directory, 1, 1, all=1, nth=0, **settings)
        shutil.rmtree(directory)
        return outcome.calls

    def each(self, arguments, work, numbers, prepare, check, **settings):
        """One run for each of the numbers, several at a time. [(outcome, complaint)] of those that check() complains about, and the number
        of hits."""
        def batch(first, last):
            directory = pathlib.Path(tempfile.mkdtemp(dir=work))
            for number in range(first, last + 1):
                (directory / str(number)).mkdir()
                prepare(directory / str(number))
            outcomes = self.serve(arguments, directory, first, last, all=1, **settings)
            complaints = [(outcome, complaint) for outcome in outcomes for complaint in check(outcome)]
            shutil.rmtree(directory)
            return sum(outcome.was_hit for outcome in outcomes), complaints
        hits, complaints = 0, []
        with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
            for count, found in pool.map(lambda span: batch(*span), spans(numbers)):
                hits += count
                complaints += found
        return hits, complaints


def spans(numbers):
    """(first, last) of neighbours among sorted numbers, none longer than a batch."""
    out = []
    for number in numbers:
        if out and out[-1][1] + 1 == number and number - out[-1][0] < BATCH:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return out


def sample(count, share, chance):
    """All of 1..count, or that share of them in a few runs of neighbours."""
    if share >= 1 or count == 0:
        return range(1, count + 1)
    length = min(32, count)
    blocks = range(0, max(1, -(-count // length)))
    kept = [block for block in blocks if chance.random() < share] or [chance.choice(blocks)]
    return [number for block in kept for number in range(block * length + 1, min(count, (block + 1) * length) + 1)]


# ---- small checkpoints ----

# Format name and what its target is called; files are what the rest of the options make of the small source.
WRITERS = {
    "safetensors": ["--to", "safetensors"],
    "hf": ["--to", "hf", "--max-shard-size", "4kB"],
    "torch": ["--to", "torch"],
    "torch-dcp": ["--to", "torch-dcp", "--layout", "ranks=2"],
    "torch_dist": ["--to", "torch_dist", "--rules", "none"],
    "torch_dcp": ["--to", "torch_dcp", "--rules", "none"],
    "fsdp_dtensor": ["--to", "fsdp_dtensor", "--rules", "none"],
    "zarr": ["--to", "zarr", "-o", "codec=zstd"],
    "zarr3": ["--to", "zarr", "-o", "zarr-format=3"],
    "megatron": ["--to", "megatron", "--layout", "tp=2"],
    "paddle": ["--to", "paddle"],
    "paddle-flex": ["--to", "paddle-flex", "--layout", "sharding=2,stage=1v2"],
    "paddle-uc": ["--to", "paddle-uc", "--layout", "tp=2"],
    "atorch": ["--to", "atorch", "--layout", "ranks=2"],
    "fsdp-ranks": ["--to", "fsdp-ranks", "--layout", "ranks=2"],
    "npz": ["--to", "npz"],
    "npy": ["--to", "npy"],
}


def left_out(shim, work):
    """Formats that can be written and are not in the list above."""
    written = {options[options.index("--to") + 1] for options in WRITERS.values()}
    known = json.loads(shim.plain(["formats", "--json"], work))["formats"]
    return sorted(one["name"] for one in known if one["writes"] and one["name"] not in written)


def source_for(fixtures, writer):
    """A small checkpoint of a real framework that this writer can write."""
    own = {"megatron": "megatron/megatron-dense-legacy-tp1", "paddle": "paddle/paddle331-train",
           "paddle-flex": "paddle/paddle-strategy-tp2", "paddle-uc": "paddle/paddle-uc-tp1",
           "atorch": "atorch-fsdp/atorch-channels-last", "npz": "bytecheckpoint/bytecheckpoint-ddp",
           "npy": "bytecheckpoint/bytecheckpoint-ddp"}
    name = own.get(writer, "torch-dcp/dcp-small") + "/ckpt"
    return pathlib.Path(fixtures).resolve() / name


def write_all(shim, fixtures, work, writers=None):
    """{writer: path} of one checkpoint for each writer."""
    out = {}
    for name in writers or WRITERS:
        out[name] = work / f"small-{name}"
        shim.plain(["convert", source_for(fixtures, name), out[name], *WRITERS[name], "--quiet"], work)
    return out
