#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of MPI: resharding in memory, a late rank, a rank that fails; conversions, digests, comparisons that are those of one process."""
import argparse
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402

LIMIT = 120


class Tests:
    def __init__(self, args):
        self.args = args
        self.extra = ["--allow-run-as-root", "--oversubscribe"] if "openmpi" in args.mpirun else []

    def mpirun(self, count, *command):
        """Open MPI gives ranks a second to end where one has failed, and takes it: none here needs it."""
        environment = os.environ | {"OMPI_MCA_odls_base_sigkill_timeout": "0"}
        return subprocess.run([self.args.mpirun, *self.extra, "-n", str(count), *map(str, command)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=LIMIT, check=False, env=environment)

    def random_layouts(self, _folder):
        return self.layouts(round(self.args.cases * self.args.share))

    def random_layouts_through_files(self, _folder):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
            return self.layouts("saved", folder, round(self.args.saved_cases * self.args.share))

    def layouts(self, *words):
        for count in (2, 3, 4):
            run = self.mpirun(count, self.args.ranks, *words)
            if run.returncode or f"all good over {count} ranks" not in run.stdout:
                return f"{count} ranks: exit {run.returncode}: {run.stdout}{run.stderr}"
        return None

    def late_rank(self, _folder):
        run = self.mpirun(3, self.args.ranks, "late")
        return run.stdout if "not good" in run.stdout else None

    def conversion(self, folder):
        source = make_checkpoint(folder / "source.safetensors")
        words = ["--to", "torch-dcp", "--layout", "ranks=3"]
        for name in ("one", "many"):
            (folder / name).mkdir()
        one = subprocess.run([self.args.bin, "convert", "--quiet", source, folder / "one/same", *words], check=False)
        many = self.mpirun(3, self.args.command, "convert", "--quiet", source, folder / "many/same", *words)
        if one.returncode or many.returncode:
            return f"exit {one.returncode} and {many.returncode}: {many.stdout}{many.stderr}"
        files = {p.relative_to(folder / "one"): p.read_bytes() for p in (folder / "one").rglob("*") if p.is_file()}
        found = {p.relative_to(folder / "many"): p.read_bytes() for p in (folder / "many").rglob("*") if p.is_file()}
        return None if files == found else f"{sorted(map(str, files))} and {sorted(map(str, found))} differ"

    def looked_at(self, folder):
        """Of a checkpoint with a changed byte, NaN and zeros, all ranks together say what one process says."""
        source = make_checkpoint(folder / "source.safetensors")
        words = ["--to", "torch-dcp", "--layout", "ranks=3"]
        for name, more in (("good", ["--checksum", "sha256"]), ("bad", ["--checksum", "sha256"]), ("other", ["--include", "*[0-5]*"])):
            made = self.bin_run("convert", "--quiet", source, folder / name, *words, *more)
            if made.returncode:
                return made.stderr
        for number, file in enumerate(sorted((folder / "bad").glob("*.distcp"))):
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1 << number
            file.write_bytes(data)
        for words in (["hash", "good"], ["hash", "good", "*[1-3]*", "--json", "--digest", "xxh3"], ["verify", "good", "--deep"],
                      ["verify", "bad", "--deep", "--json"], ["verify", "bad", "--fail-on", "nan,zero"], ["diff", "good", "bad", "--stat"],
                      ["diff", "bad", "other", "--json"], ["diff", "good", "source.safetensors"], ["hash", "missing"],
                      ["hash", "good", "none*", "--json"]):
            said = self.compare([folder / word if (folder / word).exists() else word for word in words])
            if said:
                return said
        return None

    def compare(self, words):
        one = self.bin_run(*words, "-j", "1")
        for count in (2, 3):
            many = self.mpirun(count, self.args.command, *words)
            if (one.returncode, timeless(one.stdout)) != (many.returncode, timeless(many.stdout)):
                return f"{words} by {count}: exit {one.returncode} and {many.returncode}\n{one.stdout}\n{many.stdout}{many.stderr}"
            errors = [line for line in many.stderr.splitlines() if "reshard: " in line]
            if one.returncode > 1 and (len(errors) != 1 or "rank 0: " not in errors[0]):
                return f"{words} by {count}: {errors}"
        return None

    def one_rank_fails(self, folder):
        """A rank that cannot open what the others see: all end, and its name is said."""
        good = make_checkpoint(folder / "good.safetensors")
        script = folder / "ranks.sh"
        rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
        script.write_text(f'[ "{rank}" = 1 ] && set -- {folder}/nothing\nexec {self.args.command} hash "$1"\n')
        run = self.mpirun(3, "sh", script, good)
        is_good = run.returncode not in (0, 1) and "reshard: rank 1: " in run.stderr and not run.stdout
        return None if is_good else f"exit {run.returncode}: {run.stdout}{run.stderr}"

    def help(self, _folder):
        run = self.mpirun(2, self.args.command, "--help")
        is_good = run.returncode == 0 and run.stdout.count("usage: mpirun -n N reshard-mpi convert|verify|hash|diff") == 1
        return None if is_good else f"exit {run.returncode}: {run.stdout}{run.stderr}"

    def refusals(self, folder):
        for words in (["ls", folder], ["hash", "-"], ["verify", "--latest-good", folder]):
            run = self.mpirun(2, self.args.command, *words)
            if run.returncode == 0 or run.stdout or "over ranks" not in run.stderr and "one process" not in run.stderr:
                return f"{words}: exit {run.returncode}: {run.stdout}{run.stderr}"
        return None

    def bin_run(self, *words):
        return subprocess.run([self.args.bin, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)

    def example(self, _folder):
        run = self.mpirun(4, self.args.example)
        is_good = run.returncode == 0 and run.stdout == "0 wrong, 6144 bytes moved\n"
        return None if is_good else f"exit {run.returncode}: {run.stdout}{run.stderr}"

    def failure(self, folder):
        run = self.mpirun(2, self.args.command, "convert", "--quiet", folder / "nothing", folder / "none", "--to", "torch-dcp")
        if run.returncode == 0 or "of 2 failed" not in run.stderr or (folder / "none").exists():
            return f"exit {run.returncode}: {run.stderr}"
        return None


def timeless(text):
    return re.sub(r'"seconds":[0-9.]+|, in less than a second|, in [0-9]+ s', "", text)


def make_checkpoint(path):
    header, data = {}, bytearray()
    for number in range(7):
        values = bytes((number * 37 + i) % 251 for i in range(96 * 64 * 4))
        if number in (2, 5):
            values = b"\x00\x00\xc0\x7f" * (96 * 64) if number == 2 else bytes(len(values))
        header[f"layers.{number}.weight"] = {"dtype": "F32", "shape": [96, 64], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("mpirun", "ranks", "command", "example", "bin", "fixtures"):
        parser.add_argument("--" + name)
    parser.add_argument("--cases", type=int, default=500, help="random layouts in memory for each number of ranks")
    parser.add_argument("--saved-cases", type=int, default=100, help="and through files")
    parser.add_argument("--only", default="", help="tests whose names begin so")
    draw.add_share(parser, 0.1)
    tests = Tests(parser.parse_args())
    cases = [tests.random_layouts, tests.random_layouts_through_files, tests.late_rank, tests.conversion, tests.looked_at,
             tests.one_rank_fails, tests.help, tests.refusals, tests.example, tests.failure]
    cases = [case for case in cases if case.__name__.startswith(tests.args.only)]
    print(f"1..{len(cases)}")
    failed = 0
    for number, case in enumerate(cases, 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = case(pathlib.Path(folder))
            except subprocess.TimeoutExpired as hang:
                said = str(hang)
        failed += said is not None
        print(f"{'not ok' if said else 'ok'} {number} {case.__name__}")
        for line in (said or "").splitlines():
            print("# " + line)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
