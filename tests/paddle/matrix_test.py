#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The strategy matrix of Paddle: one model under every parallel strategy, each converted to each other one and back. Prints TAP.

strategies.py makes the trees from the rules of the frameworks, without Paddle and without reshard; what it says about the layout of real
checkpoints is compared with them first. What is written is read by Python's own unpickler and compared with the tree that the generator
makes of the target: which file has which box or flat run of what, and every byte.

usage: matrix_test.py --bin PATH --fixtures DIR [--only GLOB] [--share N] [--seed N] [--keep DIR]
A fifth of the pairs is tried, or the share that is said.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402
import strategies as S  # noqa: E402

FAILURES_SHOWN = 3


class Tap:
    def __init__(self, only="*", drawn=None):
        self.only, self.drawn, self.count, self.failed = only, drawn, 0, 0

    def wants(self, name):
        return fnmatch.fnmatch(name, self.only)

    def __call__(self, name, problems):
        self.count += 1
        self.failed += bool(problems)
        print(f"{'not ok' if problems else 'ok'} {self.count} - {name}")
        for problem in problems[:FAILURES_SHOWN]:
            print(f"#   {problem}")
        if len(problems) > FAILURES_SHOWN:
            print(f"#   and {len(problems) - FAILURES_SHOWN} more")
        sys.stdout.flush()


class Command:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work

    def __call__(self, *arguments):
        """Standard output, or a sentence that says how it failed."""
        try:
            done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, errors="replace", timeout=120)
        except subprocess.TimeoutExpired:
            return "", f"{arguments[0]}: no end in 120 s"
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return done.stdout, f"{arguments[0]}: exit {done.returncode}: {said[0][:300] if said else ''}" if done.returncode else None

    def convert(self, source, target, *options):
        return self("convert", source, target, "--no-sync", "--quiet", *options)[1]


# ---- comparing ----

def shown(index):
    key, start, extent, flat = index
    box = ", ".join(f"{a}:{a + n}" for a, n in zip(start, extent))
    return f"{key} [{box}]" + (f" run {flat[0]}:{flat[1]}" if flat else "")


def table_problems(found, expected):
    """Both: index -> file."""
    for index in expected.keys() | found.keys():
        if found.get(index) != expected.get(index):
            yield f"{shown(index)} is in {found.get(index, 'no file')}, not in {expected.get(index, 'any')}"


def tree_problems(model, tree, folder):
    """What of a written flex checkpoint is not as the generator lays it out."""
    try:
        table, values = S.read_flex(folder)
    except (OSError, ValueError, KeyError, AttributeError, EOFError, StopIteration, S.pickle.UnpicklingError) as error:
        return [f"cannot be read: {type(error).__name__}: {error}"]
    expected = {index: f"{rank}_0.distcp" for index, rank in tree.table.items()}
    problems = sorted(table_problems(table, expected))
    for index, file in expected.items():
        if table.get(index) == file and values.get((index[0], file)) != S.shard_bytes(model, tree.shards[index]):
            problems.append(f"{shown(index)} in {file}: other bytes")
    files = {f"{rank}_0.distcp" for rank in range(len(tree.files))} | {"0.metadata"}
    present = {path.name for path in folder.iterdir()}
    return problems + [f"{name}: {'missing' if name in files else 'unexpected'}" for name in sorted(files ^ present)]


def digest_problems(said, wanted):
    found = {t["key"]: t for t in json.loads(said)["tensors"]}
    for key in sorted(found.keys() | wanted.keys()):
        if key not in found or key not in wanted:
            yield f"{key} is {'missing' if key in wanted else 'unexpected'}"
            continue
        is_same = found[key]["hash"] == wanted[key]["sha256"]
        if (found[key]["dtype"], found[key]["shape"]) != (wanted[key]["dtype"], wanted[key]["shape"]) or not is_same:
            yield f"{key} is {found[key]['dtype']}{found[key]['shape']} {'with other bytes' if not is_same else ''}"


def as_listed(index):
    """A run that is all of its box is a box for `ls`."""
    key, start, extent, flat = index
    return (key, start, extent, None if flat == (0, S.math.prod(extent)) else flat)


def listed_chunks(said):
    """index -> file of `ls --chunks --json`, replicas left out."""
    for tensor in json.loads(said)["tensors"]:
        for chunk in tensor["chunks"]:
            run = chunk.get("flat")
            flat = (run[0], run[0] + run[1]) if run else None
            if not chunk.get("replica"):
                yield as_listed((tensor["key"], tuple(chunk["start"]), tuple(chunk["extent"]), flat)), chunk["file"]


# ---- the tests ----

REAL = {
    "dp1": S.Strategy("dp1"), "dp2": S.Strategy("dp2", dp=2), "tp2": S.Strategy("tp2", tp=2), "tp4": S.Strategy("tp4", tp=4),
    "pp2": S.Strategy("pp2", pp=2), "tp2-dp2": S.Strategy("tp2-dp2", tp=2, dp=2),
    "tp2-sdv2-2": S.Strategy("tp2-sdv2-2", tp=2, sharding=2, stage="1v2"),
    **{f"sdv1-{n}": S.Strategy(f"sdv1-{n}", sharding=n, stage="1v1") for n in (2, 4)},
    **{f"sdv2-{n}": S.Strategy(f"sdv2-{n}", sharding=n, stage="1v2") for n in (2, 4, 8)},
}


def real_model():
    """The model of the checkpoints that Paddle 3.3.1 wrote."""
    parameters = [
        S.Parameter("embed_tokens.weight", (28, 52), axis=0), S.Parameter("layers.0.up_proj.weight", (52, 44), axis=1, layer=0),
        S.Parameter("layers.0.up_proj.bias", (44,), axis=0, layer=0), S.Parameter("layers.0.down_proj.weight", (44, 52), axis=0, layer=1),
        S.Parameter("layers.0.down_proj.bias", (52,), layer=1), S.Parameter("layers.1.conv.weight", (13, 11, 17), layer=1),
        S.Parameter("layers.1.conv.bias", (13,), layer=1), S.Parameter("norm.weight", (52,), "float32", is_last=True),
        S.Parameter("norm.bias", (52,), "float32", is_last=True),
    ]
    S.number_names(parameters)
    return S.Model(parameters, 2, 0)


def check_generator(tap, fixtures):
    """What the rules say of the real checkpoints: shards, files, and the order of the metadata."""
    model = real_model()
    for case, strategy in REAL.items():
        found, _ = S.read_flex(fixtures / f"paddle/paddle-strategy-{case}/ckpt")
        made = {index: f"{rank}_0.distcp" for index, rank in S.stored(model, strategy).table.items()}
        problems = sorted(table_problems(made, found)) or ([] if [*found] == [*made] else ["another order of shards"])
        tap(f"generator: as Paddle wrote {case}", problems)


def check_reading(tap, command, name, model, tree, folder):
    said, failure = command("hash", "--json", folder)
    problems = [failure] if failure else list(digest_problems(said, S.manifest(model)))
    said, failure = command("ls", "--chunks", "--json", folder)
    expected = {as_listed(index): f"{rank}_0.distcp" for index, rank in tree.table.items()}
    problems += [failure] if failure else sorted(table_problems(dict(listed_chunks(said)), expected))
    tap(f"{name}: read as it was made", problems)


class Matrix:
    """The trees of one model, and the conversions between them."""

    def __init__(self, command, name, model, work):
        self.command, self.name, self.model, self.work = command, name, model, work
        self.trees = {s.name: S.stored(model, s) for s in S.STRATEGIES}
        for strategy in S.STRATEGIES:
            S.write_flex(model, self.trees[strategy.name], work / strategy.name)

    def one_way(self, a, b):
        """a to b: what is wrong with it. The pair of b and a goes back, from the tree that this is like."""
        target = self.work / f"{a.name}-{b.name}"
        failure = self.command.convert(self.work / a.name, target, "--to", "paddle-flex", "--layout", b.words)
        problems = [failure] if failure else tree_problems(self.model, self.trees[b.name], target)
        shutil.rmtree(target, ignore_errors=True)
        return problems

    def pair(self, a, b):
        """a to b and back to a: what is wrong on the way."""
        there, back = self.work / f"{a.name}-{b.name}", self.work / f"{a.name}-{b.name}-{a.name}"
        problems = []
        for source, target, strategy in ((self.work / a.name, there, b), (there, back, a)):
            failure = self.command.convert(source, target, "--to", "paddle-flex", "--layout", strategy.words)
            problems += [f"to {strategy.name}: {failure}"] if failure else [
                f"to {strategy.name}: {p}" for p in tree_problems(self.model, self.trees[strategy.name], target)]
            if failure:
                break
        for folder in (there, back):
            shutil.rmtree(folder, ignore_errors=True)
        return problems


def ordered_pairs(strategies):
    return [(a, b) for a in strategies for b in strategies if a is not b]


def run_pairs(tap, pool, name, pairs, work):
    """work(a, b) gives problems. Says how many pairs hold."""
    wanted = [(f"{name} {a.name} to {b.name}", a, b) for a, b in pairs]
    wanted = tap.drawn.of((title, a, b) for title, a, b in wanted if tap.wants(title))
    held = 0
    for (title, _, _), problems in zip(wanted, pool.map(lambda one: work(one[1], one[2]), wanted)):
        tap(title, problems)
        held += not problems
    if wanted:
        print(f"# {name}: {len(wanted)} ordered pairs tried, {held} passed")


def check_met(tap, command, work):
    """Layouts beside the matrix: read, left, and gone to."""
    model, whole = S.language_model(), S.BY_NAME["dp1"]
    for strategy in S.MET:
        tree, folder = S.stored(model, strategy), work / strategy.name
        S.write_flex(model, tree, folder)
        check_reading(tap, command, f"flex {strategy.name}", model, tree, folder)
        failure = command.convert(folder, work / "whole", "--to", "paddle-flex", "--layout", whole.words, "--overwrite")
        tap(f"flex {strategy.name} to {whole.name}", [failure] if failure else tree_problems(model, S.stored(model, whole), work / "whole"))
        failure = command.convert(work / "whole", work / "again", "--to", "paddle-flex", "--layout", strategy.words, "--overwrite",
                                  "-o", f"segment-size={strategy.whole}")
        tap(f"flex {whole.name} to {strategy.name}", [failure] if failure else tree_problems(model, tree, work / "again"))


def check_flex(tap, pool, command, work):
    for is_tied in (False, True):
        name = "flex, tied" if is_tied else "flex"
        matrix = Matrix(command, name, S.language_model(is_tied), work / name.replace(", ", "-"))
        for strategy in S.STRATEGIES:
            title = f"{name} {strategy.name}"
            if tap.wants(f"{title}: read as it was made"):
                check_reading(tap, command, title, matrix.model, matrix.trees[strategy.name], matrix.work / strategy.name)
        run_pairs(tap, pool, name, ordered_pairs(S.STRATEGIES), matrix.one_way if is_tied else matrix.pair)


# ---- unified checkpoints ----

# Under stage 3 the trainer writes none.
UNIFIED = [strategy for strategy in S.STRATEGIES if strategy.stage != "3"]
# Where the files of each rank show which numbers its experts have in the model.
LOCAL = [S.BY_NAME[name] for name in ("dp2ep2", "dp4ep4", "tp2ep2", "tp2ep2pp2")]
HUBS = [S.BY_NAME[name] for name in ("dp1", "tp2pp2", "sharding2-v2", "sd2ep2")]


def unified_manifest(model):
    return {f"{family}:{key}": {"dtype": S.SAFETENSORS_TYPE[dtype], "shape": list(shape), "sha256": S.hashlib.sha256(value).hexdigest()}
            for family, tensors in S.unified_tensors(model).items() for key, (dtype, shape, value) in tensors.items()}


def hash_problems(command, folder, wanted, *options):
    said, failure = command("hash", "--json", *options, folder)
    return [failure] if failure else list(digest_problems(said, wanted))


def convert_problems(command, source, target, to, words, wanted, *options):
    failure = command.convert(source, target, "--to", to, "--layout", words, *options)
    return [f"to {to} {words}: {p}" for p in ([failure] if failure else hash_problems(command, target, wanted))]


def unified_tree(folder):
    """family -> (total size, key -> file) as the indexes say."""
    found = {}
    for path in folder.glob("*.safetensors.index.json"):
        index = json.loads(path.read_text())
        found[path.name.split(".")[0]] = index["metadata"]["total_size"], index["weight_map"]
    return found


def unified_tree_problems(made, wanted, is_ordered=True):
    """What of a written checkpoint is not in the files where the trainer would have it; not ordered: it may be in others of its family."""
    made, wanted = unified_tree(made), unified_tree(wanted)
    for family in sorted(made.keys() | wanted.keys()):
        (size, files), (wanted_size, wanted_files) = made.get(family, (0, {})), wanted.get(family, (0, {}))
        if size != wanted_size:
            yield f"{family}: total_size is {size}, not {wanted_size}"
        for key in sorted(files.keys() | wanted_files.keys()):
            fits = files.get(key) == wanted_files.get(key) if is_ordered else files.get(key) in wanted_files.values()
            if not fits:
                yield f"{family}: {key} is in {files.get(key, 'no file')}, not in {wanted_files.get(key, 'any')}"


class UnifiedMatrix:
    def __init__(self, command, name, tied, work):
        model = S.under_each_name(tied)     # which is what goes back to flex, too
        self.command, self.name, self.model, self.work = command, name, model, work
        self.wanted, self.flex_wanted = unified_manifest(model), S.manifest(model)
        for strategy in UNIFIED:
            S.write_unified(model, strategy, work / "whole" / strategy.name)
        for strategy in LOCAL:
            S.write_unified(model, strategy, work / "local" / strategy.name, renumbered=False)
        for strategy in S.STRATEGIES:
            S.write_flex(tied, S.stored(tied, strategy), work / "flex" / strategy.name)

    def pair(self, a, b):
        """Unified to unified: the very files of the generator's tree of b, from which the pair of b and a goes back. Files of experts that
        stay with a tensor-parallel rank do not say where in the model these are, so that what is dealt out anew may come elsewhere."""
        there = self.work / f"{a.name}-{b.name}"
        problems = convert_problems(self.command, self.work / "whole" / a.name, there, "paddle-uc", b.words, self.wanted)
        problems = problems or list(unified_tree_problems(there, self.work / "whole" / b.name, not a.is_ep_over_tp))
        shutil.rmtree(there, ignore_errors=True)
        return problems

    def across(self, a, b):
        """Flex to unified and back to the same flex."""
        there, back = self.work / f"{a.name}-u-{b.name}", self.work / f"{a.name}-u-{b.name}-{a.name}"
        source, related = self.work / "flex" / a.name, ("--rules", "auto")
        problems = convert_problems(self.command, source, there, "paddle-uc", b.words, self.wanted, *related)
        problems = problems or list(unified_tree_problems(there, self.work / "whole" / b.name))
        if not problems:
            problems = convert_problems(self.command, there, back, "paddle-flex", a.words, self.flex_wanted, *related)
        if not problems and not b.is_ep_over_tp:
            problems = tree_problems(self.model, S.stored(self.model, a), back)
        for folder in (there, back):
            shutil.rmtree(folder, ignore_errors=True)
        return problems


def check_unified(tap, pool, command, work):
    model = S.language_model()
    matrix = UnifiedMatrix(command, "unified", model, work / "unified")
    for strategy in UNIFIED:
        title = f"unified {strategy.name}: read as it was made"
        if tap.wants(title):
            tap(title, hash_problems(command, matrix.work / "whole" / strategy.name, matrix.wanted))
    for strategy in LOCAL:
        title = f"unified {strategy.name}: experts numbered by each rank"
        if tap.wants(title):
            tap(title, hash_problems(command, matrix.work / "local" / strategy.name, matrix.wanted, "--lenient"))
    run_pairs(tap, pool, "unified", ordered_pairs(UNIFIED), matrix.pair)
    run_pairs(tap, pool, "flex and unified", [(a, b) for a in S.STRATEGIES for b in UNIFIED if a in HUBS or b in HUBS], matrix.across)
    tied = UnifiedMatrix(command, "unified, tied", S.language_model(is_tied=True), work / "unified-tied")
    run_pairs(tap, pool, "unified, tied", ordered_pairs(HUBS), tied.pair)
    run_pairs(tap, pool, "flex and unified, tied", [(a, b) for a in S.STRATEGIES for b in HUBS[:2]], tied.across)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--fixtures", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="*", metavar="GLOB", help="of names of tests")
    draw.add_options(parser, 0.1)
    parser.add_argument("--keep", type=pathlib.Path, help="where trees are made, and stay")
    args = parser.parse_args()
    tap = Tap(args.only, draw.Draw(args))
    with tempfile.TemporaryDirectory(prefix="reshard-paddle-") as name, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        work = args.keep or pathlib.Path(name)
        command = Command(args.bin.resolve(), work)
        check_generator(tap, args.fixtures)
        check_flex(tap, pool, command, work)
        if tap.wants("flex met"):
            check_met(tap, command, work / "met")
        check_unified(tap, pool, command, work)
    print(f"1..{tap.count}")
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
