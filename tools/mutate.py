#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the source on purpose, one small change at a time, and shows whether a test notices.

usage: mutate.py [--only GLOB]... [--list] [--jobs N] [--wide]          the kept list, tests/mutants.json
       mutate.py --sample N [--seed S] [--only GLOB]... [--jobs N]      general operators over src/ (mutation_operators.py)

Works in copies of the tree under build-mutants/, never in the checkout. A mutation of the list is an object with
  file, what     the file, and what the change breaks
  old, new       the text, which must occur once in the file, and its replacement
  tests          the tests that should notice: names of meson tests, with arguments that narrow them (`fixtures hash --family zarr`)
  excused        for a second line of defence: the `what` of the first line, which must be a killed mutation itself
Each is killed (a test turned red), survived, or an error of the list: its text is not found, it does not build, it changes nothing.
"""
import argparse
import concurrent.futures
import fnmatch
import hashlib
import json
import pathlib
import queue
import re
import sys
import threading
import time

import mutation_coverage
import mutation_operators
from mutation_tree import FIXTURES, SECONDS_FACTOR, SECONDS_FLOOR, MutationError, Tree, digest_files, program_files

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build-mutants"
KEPT = ROOT / "tests" / "mutants.json"
EXCUSED_MAX = 3
SANITIZED_SECONDS = 120
QUICK_SUITES = ("unit", "cli", "command", "models")
# Of a sample: those that say what is wrong within seconds.
QUICK_TESTS = [
    "fuzz/*", "unit/*", "models/*", "command/mapping*", "fixtures/fixtures hash", "fixtures/fixtures items", "fixtures/fixtures bad",
    "fixtures/fixtures relayout", "cli/Flex*", "cli/atorch", "cli/blobs*", "cli/byte order", "cli/convert options", "cli/differences",
    "cli/escapes", "cli/files of ranks", "cli/flex*", "cli/found again", "cli/items of Megatron", "cli/layouts of experts", "cli/limits",
    "cli/links", "cli/mappings", "cli/mistakes", "cli/names of *", "cli/*of Paddle", "cli/options", "cli/parts", "cli/planted*",
    "cli/read by Python", "cli/replicas", "cli/salvage", "cli/shards of torch", "cli/sidecars", "cli/targets", "cli/tars of torch",
    "cli/ties", "cli/transcripts", "cli/unified*", "cli/verify", "cli/what is told"]
# As `make` builds: the compiler cache knows the objects that stay as they are.
BUILD_OPTIONS = ["-Dtests=true", "--buildtype=release", "-Db_lto=false"]
# A check of memory that is taken away shows where its own allocation fails, and not where every tenth does; memory that nobody has
# written shows where it is not zero by chance.
SAMPLE_ENVIRONMENT = {"RESHARD_EVERY_FAULT": "1", "MALLOC_PERTURB_": "165"}
# As `make asan` builds.
SANITIZED_OPTIONS = ["-Dtests=true", "-Db_sanitize=address,undefined", "-Db_lundef=false", "--buildtype=plain", "-Doptimization=1"]


class Sanitized:
    """A tree whose programs see what others do not: one element too many, a number that ran over. Survivors are asked again there, by the
    unit tests and corpora that run their line."""

    def __init__(self, tests):
        self.tests, self.tree, self.lock, self.is_good = tests, None, threading.Lock(), {}

    def is_asked(self, spec):
        return spec in self.tests and bool({"unit", "fuzz"} & set(suite_names(self.tests[spec])))

    def outcome(self, spec):
        """Of the program as it is now."""
        complaint = self.tree.ninja(sorted({FIXTURES} | self.tree.targets_of(spec)))
        if complaint:
            raise MutationError(f"does not build with sanitizers: {complaint}")
        return self.tree.run(spec, SANITIZED_SECONDS, True)

    def killer(self, mutation, specs, budget):
        """(the test that turns red, why), or None; the tests may take that long, builds not counted."""
        with self.lock:
            if not self.tree:
                self.tree = Tree(ROOT, WORK / "sanitized", SANITIZED_OPTIONS)
                self.tree.prepare()
            for spec in filter(self.is_asked, specs):
                if budget <= 0:
                    break
                if spec not in self.is_good:
                    self.is_good[spec] = not self.outcome(spec).failure
                if not self.is_good[spec]:
                    continue
                self.tree.apply(mutation["file"], lambda text: mutated(mutation, text))
                try:
                    outcome = self.outcome(spec)
                finally:
                    self.tree.restore()
                budget -= outcome.seconds
                if outcome.failure:
                    return spec, outcome.failure
        return None


class Result:
    """`state` is killed, survived, unfinished (not all tests were asked in the time for it), equal, or what is wrong with the mutation.
    `spec`: the test that killed it."""

    def __init__(self, mutation, state, detail="", seconds=0.0, spec=None):
        self.mutation, self.state, self.detail, self.seconds, self.spec = mutation, state, detail, seconds, spec

    def line(self, number, total):
        name = f"{self.mutation['file']}: {self.mutation['what']}"
        return f"{number}/{total} {self.state:<10} {name} [{self.detail}; {self.seconds:.1f} s]"


class Bench:
    """Trees of the jobs, and how long each test takes on the unchanged source."""

    def __init__(self, jobs, wide, env=None):
        self.trees, self.wide, self.seconds, self.sanitized = queue.Queue(), wide, {}, None
        self.all = [Tree(ROOT, WORK / str(i), BUILD_OPTIONS, env) for i in range(jobs)]
        for tree in self.all:
            tree.prepare()
            self.trees.put(tree)

    def build_all(self, specs):
        """What the mutations will be built upon: afterwards a build is one object and a few links."""
        for tree in self.all:
            complaint = tree.ninja(sorted({FIXTURES, *(target for spec in specs for target in tree.targets_of(spec))}))
            if complaint:
                raise MutationError(f"the unchanged source does not build: {complaint}")

    def measure(self, specs):
        """Every test is green before anything is changed. Known times are kept while the tree stays as it is."""
        path, state = WORK / "baseline.json", digest_files(ROOT, program_files(ROOT))
        kept = json.loads(path.read_text()) if path.exists() else {}
        known = kept.get("seconds", {}) if kept.get("tree") == state else {}
        not_green = []
        with concurrent.futures.ThreadPoolExecutor(len(self.all)) as pool:
            waiting = {pool.submit(self.run_unchanged, spec): spec for spec in specs if spec not in known}
            for done in concurrent.futures.as_completed(waiting):
                spec, outcome = waiting[done], done.result()
                if outcome.failure or not outcome.count:
                    not_green.append(f"`{spec}` on the unchanged source: {outcome.failure or 'judges nothing'}")
                    continue
                known[spec] = outcome.seconds
                path.write_text(json.dumps({"tree": state, "seconds": known}))
        if not_green:
            raise MutationError("; ".join(not_green))
        self.seconds.update(known)

    def run_unchanged(self, spec):
        tree = self.trees.get()
        try:
            return tree.run(spec, 900)
        finally:
            self.trees.put(tree)

    def limit(self, spec):
        return SECONDS_FLOOR + SECONDS_FACTOR * self.seconds.get(spec, 60)


def mutated(mutation, text):
    if "start" in mutation:  # of an operator: it knows the place
        return text[:mutation["start"]] + mutation["new"] + text[mutation["end"]:]
    count = text.count(mutation["old"])
    if count != 1:
        raise MutationError("text not found" if not count else f"text found {count} times")
    return text.replace(mutation["old"], mutation["new"])


def run_specs(tree, bench, specs, until):
    """(state, detail, the test that killed it)"""
    for spec in specs:
        if time.monotonic() > until:
            return "unfinished", f"{specs.index(spec)} of {len(specs)} tests asked", None
        complaint = tree.ninja(sorted(tree.targets_of(spec)))
        if complaint:
            raise MutationError(f"does not build: {complaint}")
        if tree.is_unchanged():
            return "equal", "", None
        outcome = tree.run(spec, bench.limit(spec))
        if outcome.failure:
            return "killed", f"{spec}: {outcome.failure}", spec
    return "survived", ", ".join(specs[:4]), None


def try_mutation(bench, mutation, specs, budget=float("inf")):
    tree, started = bench.trees.get(), time.monotonic()
    try:
        tree.apply(mutation["file"], lambda text: mutated(mutation, text))
        if not specs:
            return Result(mutation, "survived", "no test reaches the line")
        state, detail, spec = run_specs(tree, bench, specs, started + budget)
        wide = [s for s in bench.wide or () if s not in specs]
        if state == "survived" and wide:
            state, detail, spec = run_specs(tree, bench, wide, started + budget)
        if state == "survived" and bench.sanitized:
            killer = bench.sanitized.killer(mutation, specs, budget)
            state, detail, spec = ("killed", f"{killer[0]}: {killer[1]} with sanitizers", spec) if killer else (state, detail, spec)
        return Result(mutation, state, detail, time.monotonic() - started, spec)
    except MutationError as problem:
        return Result(mutation, "error", str(problem), time.monotonic() - started)
    finally:
        tree.restore()
        bench.trees.put(tree)


def run_all(bench, mutations, specs_of, jobs, budget=float("inf"), keep=lambda result: None):
    results = [None] * len(mutations)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(try_mutation, bench, m, specs_of(m), budget): i for i, m in enumerate(mutations)}
        for number, done in enumerate(concurrent.futures.as_completed(waiting), 1):
            results[waiting[done]] = done.result()
            keep(done.result())
            print(done.result().line(number, len(mutations)), flush=True)
    return results


def check_list(mutations):
    names = [(m["file"], m["what"]) for m in mutations]
    if len(set(names)) != len(names):
        raise MutationError("two mutations of a file have one name")
    for m in mutations:
        if not m.get("tests"):
            raise MutationError(f"{m['file']}: {m['what']}: names no test that should notice")


def excuse(results):
    """Second lines of defence are excused while their first line holds, at most three of them."""
    killed = {r.mutation["what"] for r in results if r.state == "killed"}
    excused = [r for r in results if r.state == "survived" and r.mutation.get("excused") in killed]
    for result in excused[:EXCUSED_MAX]:
        result.state = "excused"


def with_first_lines(chosen, mutations):
    wanted = {m["excused"] for m in chosen if "excused" in m}
    return chosen + [m for m in mutations if m["what"] in wanted and m not in chosen]


def is_chosen(args, text):
    return not args.only or any(fnmatch.fnmatch(text, glob) for glob in args.only)


def run_kept(args):
    mutations = json.loads(KEPT.read_text())
    check_list(mutations)
    chosen = [m for m in mutations if is_chosen(args, f"{m['file']}: {m['what']}")]
    if args.list:
        for m in chosen:
            print(f"{m['file']}: {m['what']} [{', '.join(m['tests'])}]")
        return 0
    chosen = with_first_lines(chosen, mutations)
    bench = Bench(args.jobs, None)
    wide = sorted(name for name, test in bench.all[0].tests.items() if set(suite_names(test)) & set(QUICK_SUITES)) if args.wide else []
    bench.wide = wide
    specs = sorted({spec for m in chosen for spec in m["tests"]} | set(wide))
    bench.build_all(specs)
    bench.measure(specs)
    # Side by side in the build are those of one file, and the quickest test is asked first.
    chosen.sort(key=lambda m: m["file"])
    results = run_all(bench, chosen, lambda m: sorted(m["tests"], key=lambda s: bench.seconds[s]), args.jobs)
    excuse(results)
    return summary(results, {"equal": "error"})


def suite_names(test):
    return [suite.split(":")[-1] for suite in test["suite"]]


def summary(results, names):
    states = [names.get(r.state, r.state) for r in results]
    for result, state in zip(results, states):
        if state in ("survived", "unfinished", "error", "excused"):
            print(f"{state.upper()} {result.mutation['file']}: {result.mutation['what']} ({result.detail})")
    count = {state: states.count(state) for state in ("killed", "survived", "unfinished", "excused", "error")}
    words = {"unfinished": "not asked of all tests", "excused": "excused", "error": "errors of the list"}
    more = "".join(f", {count[state]} {text}" for state, text in words.items() if count[state])
    print(f"{count['killed']} killed, {count['survived']} survived{more}")
    return 1 if count["survived"] or count["unfinished"] or count["error"] or not count["killed"] else 0


# Where each failing allocation and call of a format's verbs passes through; gcov does not count there.
FAILURES = {"formats/dcp": "torch-dcp", "formats/mcore": "torch_dist", "formats/megatron": "megatron", "formats/zarr": "zarr3",
            "formats/paddle": "paddle-flex", "formats/torch": "torch", "formats/safetensors": "safetensors", "": "hf"}


def specs_of(coverage, mutation):
    """Tests that run its line; where a check is taken away, also those in which all fails once."""
    specs = coverage.tests_of(mutation["file"], mutation["line"])
    if mutation["operator"] != "removed check":  # where all fails once it takes long, and looks at errors alone
        return sorted(specs, key=lambda spec: "faults" in spec)
    if specs:
        folder = next(folder for folder in FAILURES if mutation["file"].startswith(f"src/{folder}"))
        specs += [f"failures --share 1 --only '{verb} {FAILURES[folder]}'" for verb in ("verify of", "convert to")]
    return specs


class Kept:
    """What earlier runs of a sample have found out, mutation by mutation: nothing is tried twice on one tree, and on another the test that
    killed a mutation is asked first."""

    def __init__(self, state):
        self.path, self.state = WORK / "sample.json", state
        self.found = json.loads(self.path.read_text()) if self.path.exists() else {}

    @staticmethod
    def name(mutation):
        """Holds as long as the lines around stay as they are."""
        text = (ROOT / mutation["file"]).read_text()
        around = text[max(0, mutation["start"] - 200):mutation["end"] + 200]
        what = re.sub(r" at line \d+", "", mutation["what"])
        return f"{mutation['file']}: {what}: {hashlib.sha256((around + mutation['new']).encode()).hexdigest()[:16]}"

    def result(self, mutation, specs, keeps_killed):
        """What is known, if the same tests would be asked on the same tree; of any tree that it was killed, where that is to count."""
        known = self.found.get(self.name(mutation))
        if known and keeps_killed and known["state"] == "killed":
            return Result(mutation, known["state"], known["detail"], 0.0, known["spec"])
        if not known or known["tree"] != self.state or known["asked"] != sorted(specs) or known["state"] in ("unfinished", "error"):
            return None
        return Result(mutation, known["state"], known["detail"], 0.0, known["spec"])

    def killer_first(self, mutation, specs):
        killer = self.found.get(self.name(mutation), {}).get("spec")
        return sorted(specs, key=lambda spec: spec != killer)

    def keep(self, result, specs):
        self.found[self.name(result.mutation)] = {"tree": self.state, "asked": sorted(specs), "state": result.state,
                                                  "detail": result.detail, "spec": result.spec}
        self.path.write_text(json.dumps(self.found, indent=1))


def run_sample(args):
    candidates = [m for m in mutation_operators.all_candidates(ROOT) if is_chosen(args, m["file"])]
    bench = Bench(args.jobs, None, SAMPLE_ENVIRONMENT)
    coverage = mutation_coverage.Coverage(ROOT, WORK / "coverage", args.keep_coverage, args.ask)
    bench.seconds = coverage.seconds
    bench.sanitized = None if args.plain else Sanitized(bench.all[0].tests)
    chosen = mutation_operators.sample(candidates, args.sample, args.seed)[args.skip:]
    kept = Kept(coverage.state)
    specs = {id(m): kept.killer_first(m, specs_of(coverage, m)) for m in chosen}
    results = [result for result in (kept.result(m, specs[id(m)], args.keep_killed) for m in chosen) if result]
    known = {id(result.mutation) for result in results}
    rest = [m for m in chosen if id(m) not in known]
    every = sorted({s for m in rest for s in specs[id(m)]})
    bench.build_all(every)
    bench.measure(every)
    results += run_all(bench, rest, lambda m: specs[id(m)], args.jobs, args.budget,
                       lambda result: kept.keep(result, specs[id(result.mutation)]))
    counted = [r for r in results if r.state in ("killed", "survived", "unfinished")]
    status = summary(results, {"error": "does not build"})
    killed = sum(r.state == "killed" for r in counted)
    print(f"{100 * killed / max(1, len(counted)):.1f} % of {len(counted)} killed; of {len(chosen)} drawn from {len(candidates)} places, "
          f"{len(chosen) - len(counted)} make no other program or do not compile")
    return 0 if killed >= 0.85 * len(counted) else status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="GLOB",
                        help="of `file: what` in the list, of the file in a sample; several may be given")
    parser.add_argument("--list", action="store_true", help="print the kept list")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--wide", action="store_true", help="where no listed test notices, ask all of the quick suites too")
    parser.add_argument("--sample", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first of the sample, which an earlier run has tried")
    parser.add_argument("--budget", type=float, default=120, metavar="SECONDS", help="of a sample: tests for one mutation end after this")
    parser.add_argument("--ask", action="append", metavar="GLOB",
                        help="of a sample: only tests whose `suite/name` is so are asked; several may be given")
    parser.add_argument("--quick", action="store_const", dest="ask", const=QUICK_TESTS, help="of a sample: only quick tests are asked")
    parser.add_argument("--plain", action="store_true", help="of a sample: survivors are not asked again with sanitizers")
    parser.add_argument("--keep-coverage", action="store_true", help="use the map of lines to tests although files have changed since")
    parser.add_argument("--keep-killed", action="store_true", help="of a sample: what an earlier run has killed is not tried again")
    args = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    started = time.monotonic()
    try:
        return run_sample(args) if args.sample else run_kept(args)
    except MutationError as problem:
        print(f"mutate: {problem}", file=sys.stderr)
        return 2
    finally:
        print(f"took {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
