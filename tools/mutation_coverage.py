# SPDX-License-Identifier: Apache-2.0
"""Which tests run a line of the source: gcov after every single test, kept under build-mutants/ while the tree stays as it is."""
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys

from mutation_tree import FIXTURES, MutationError, Tree, digest_files, program_files

BUILD_OPTIONS = ["-Dtests=true", "--buildtype=plain", "-Doptimization=0", "-Ddebug=false", "-Db_lto=false", "-Db_coverage=true"]
LEFT_OUT = {"live"}  # of other environments
# One command test runs every kind of checkpoint: by family it says more about a line, and takes less time.
FAMILIES = ("torch-dcp", "torch-file", "safetensors", "zarr", "megatron", "paddle", "atorch-fsdp", "deepspeed", "gguf", "numpy", "orbax",
            "bytecheckpoint", "torch_checkpointing", "torchsnapshot", "verl", "accelerate")
LINES_BACK = 12  # a condition over several lines is counted at its first


def is_asked(name, suites, globs):
    return not suites & LEFT_OUT and (not globs or any(fnmatch.fnmatch(f"{suite}/{name}", glob) for suite in suites for glob in globs))


def specs_of(tests, globs):
    """Of the tests that the globs choose by `suite/name`, or of all."""
    for name, test in tests.items():
        if not is_asked(name, {suite.split(":")[-1] for suite in test["suite"]}, globs):
            continue
        if name.startswith("fixtures ") and "fixtures_test.py" in " ".join(test["cmd"]):
            yield from (f"{name} --family {family}" for family in FAMILIES)
        else:
            yield name


def words_of(name):
    return set(re.split(r"[\W_]+", name.lower())) - {"src", "formats", "c", "fixtures", "family", "of"}


class Coverage:
    def __init__(self, root, folder, keep, globs):
        self.folder = folder
        self.tree = Tree(root, folder, BUILD_OPTIONS)
        self.tree.prepare()
        self.state = digest_files(root, program_files(root))
        self.lines, self.seconds, self.known = {}, {}, {}
        specs = list(specs_of(self.tree.tests, globs))
        self.measure_all(specs, keep)

    def measure_all(self, specs, keep):
        missing = [spec for spec in specs if not self.load(spec, keep)]
        complaint = self.tree.ninja(sorted({FIXTURES, *(t for s in missing for t in self.tree.targets_of(s))})) if missing else None
        if complaint:
            raise MutationError(f"with coverage: {complaint}")
        for number, spec in enumerate(missing, 1):
            self.measure(spec)
            print(f"coverage {number}/{len(missing)}: {spec}, {self.seconds.get(spec, 0):.1f} s", file=sys.stderr, flush=True)

    def path(self, spec):
        return self.folder / "lines" / (re.sub(r"\W+", "-", spec) + ".json")

    def load(self, spec, keep):
        if not self.path(spec).exists():
            return False
        kept = json.loads(self.path(spec).read_text())
        if kept["tree"] != self.state and not keep:
            return False
        self.add(spec, kept)
        return True

    def add(self, spec, kept):
        if kept["count"]:
            self.seconds[spec] = kept["seconds"]
        for file, (ran, known) in kept["files"].items():
            self.known.setdefault(file, set()).update(known)
            for line in ran if kept["count"] else ():
                self.lines.setdefault((file, line), []).append(spec)

    def measure(self, spec):
        for old in self.tree.build.rglob("*.gcda"):
            old.unlink()
        outcome = self.tree.run(spec, 1200)
        count, files = outcome.count, self.read_counts()
        if outcome.failure:  # no case of this family; or a clock or a bound of memory that gcov's code does not keep: not asked then
            print(f"left out: `{spec}` is red where lines are counted: {outcome.failure}", file=sys.stderr, flush=True)
            count, files = 0, {}
        kept = {"tree": self.state, "seconds": outcome.seconds, "count": count, "files": files}
        self.path(spec).parent.mkdir(exist_ok=True)
        self.path(spec).write_text(json.dumps(kept))
        self.add(spec, kept)

    def read_counts(self):
        data = [str(path) for path in self.tree.build.rglob("*.gcda") if path.name.startswith("src_")]
        files = {}
        if not data:
            return files
        done = subprocess.run(["gcov", "--json-format", "--stdout", *data], cwd=self.tree.build, check=True, capture_output=True, text=True)
        for text in done.stdout.splitlines():
            for file in json.loads(text)["files"]:
                name = os.path.relpath(pathlib.Path(self.tree.build, file["file"]), self.tree.source)
                if name.startswith("src/") and name.endswith(".c"):
                    known = {line["line_number"] for line in file["lines"]}
                    files[name] = ([line["line_number"] for line in file["lines"] if line["count"]], sorted(known))
        return files

    def tests_of(self, file, line):
        """Those that are named like the file first, then the quickest, where one that shares words with the file's path is worth a wait."""
        known = self.known.get(file, ())
        at = next((n for n in range(line, max(0, line - LINES_BACK), -1) if n in known), line)
        stem, own = pathlib.PurePath(file).stem, words_of(file)
        return sorted(self.lines.get((file, at), []),
                      key=lambda spec: (stem not in spec, self.seconds[spec] / (1 + len(own & words_of(spec))) ** 2))
