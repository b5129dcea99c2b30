#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdp-ranks: trees of verl and accelerate written for other numbers of ranks, and as a reference lies. Prints TAP, a test a case.

usage: ranks_test.py --bin PATH --fixtures DIR [--case GLOB]
"""
import argparse
import fnmatch
import json
import math
import pathlib
import re
import shutil
import subprocess
import tempfile


def run(*command, status=0):
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, f"{' '.join(str(x) for x in command[1:])}: exit {done.returncode}: {done.stderr[-400:]}"
    return done.stdout, done.stderr


class Test:
    def __init__(self, args, case):
        self.bin, self.case = args.bin, case
        folder = pathlib.Path(args.fixtures) / case
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.source = folder / self.manifest["path"]
        self.ranks = self.manifest["world"]["ranks"]
        self.also = self.manifest["also"]

    def hashes(self, *path):
        out, _ = run(self.bin, "hash", "--json", *path)
        return {t["key"]: {"dtype": t["dtype"], "shape": t["shape"], "sha256": t["hash"]} for t in json.loads(out)["tensors"]}

    def same_values(self, target):
        assert self.hashes(target) == self.manifest["tensors"], "the model has other values"
        optimizer = next((p for p in sorted(target.rglob("optim*rank*0.*"))), None)
        want = {f"state.{k}.{s}": v for k, states in self.also.get("optimizer_tensors", {}).items() for s, v in states.items()}
        if want and "dcp" not in self.case:
            assert optimizer and self.hashes("--format", "fsdp-ranks", optimizer) == want, "the optimizer has other values"
        return optimizer

    def pieces(self, tree):
        """What each rank's own file of the optimizer holds."""
        return {p.name: self.hashes("--format", "torch", p) for p in sorted(tree.rglob("optim*rank*"))}

    def files(self, target, ranks):
        names = sorted(p.name for p in target.rglob("*rank*") if p.is_file())
        kinds = {n.split("_world")[0].split("_0_rank")[0] for n in names}
        assert len(names) == ranks * len(kinds), f"{ranks} ranks: {names}"

    def other_ranks(self, work):
        for ranks in (1, 2, 3, 5, 24):
            target = work / str(ranks)
            to = ["--to", "fsdp-ranks", "--no-sync", "--layout"]
            _, err = run(self.bin, "convert", self.source, target, *to, f"ranks={ranks}", "--verify")
            optimizer = self.same_values(target)
            self.files(target, ranks)
            run(self.bin, "verify", target)
            is_flat = bool(self.also.get("optimizer_local_shapes_rank0"))
            assert "flat pieces" not in err and (optimizer or not is_flat), f"flat pieces: {err}"
            back = work / f"{ranks}-back"
            run(self.bin, "convert", target, back, *to, f"ranks={self.ranks}", "--quiet")
            self.same_values(back)
            if is_flat and ranks > 1:
                assert self.pieces(back) == self.pieces(self.source), "the optimizer's pieces"
            extra = list(back.glob("extra_state*rank_0.pt"))
            assert bool(extra) == ("extra_state.rng" in self.manifest["items"]), "extra state"

    def chunks(self, path):
        out, _ = run(self.bin, "ls", "--json", "--chunks", path)
        place = lambda c: (pathlib.Path(c["file"]).name, c["start"], c["extent"], c["replica"])
        return {t["key"]: sorted(map(place, t["chunks"])) for t in json.loads(out)["tensors"]}

    def as_reference(self, work):
        target = work / "like"
        run(self.bin, "convert", self.source, target, "--like", self.source, "--verify", "--quiet", "--no-sync")
        self.same_values(target)
        assert self.chunks(target) == self.chunks(self.source), "pieces lie elsewhere"
        names = lambda p: sorted(x.name for x in p.rglob("*") if x.is_file())
        assert names(target) == names(self.source), f"{names(target)} instead of {names(self.source)}"
        config = next(self.source.rglob("fsdp_config.json"), None)
        assert not config or json.loads((target / "fsdp_config.json").read_text()) == json.loads(config.read_text())
        items = lambda p: sorted(i["key"] for i in json.loads(run(self.bin, "ls", "--json", "--items", p)[0])["items"])
        assert items(target) == items(self.source), "items"

    def lone_file(self, work):
        """One rank's file alone is no checkpoint of ranks: its pieces are left out by name, and what is written opens."""
        shutil.copy(next(p for p in sorted(self.source.rglob("*model*rank*0.*"))), work / "lone.pt")
        options = ["--to", "fsdp-ranks", "--layout", "ranks=2", "--verify", "--no-sync", "--verbose"]
        _, err = run(self.bin, "convert", work / "lone.pt", work / "out", *options)
        pieces = [line for line in err.splitlines() if line.startswith("dropped: ") and "one rank's piece of a tensor" in line]
        whole = len(json.loads(run(self.bin, "ls", "--json", work / "out")[0])["tensors"])
        assert pieces and len(pieces) + whole == len(self.manifest["tensors"]), f"{len(pieces)} + {whole}: {err}"

    def cut_files(self, work):
        """A file of a rank that is cut off, or another rank's, is refused by name."""
        shutil.copytree(self.source, work / "bad")
        path = next(p for p in sorted((work / "bad").rglob("*model*rank*1.*")))
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-700])
        _, err = run(self.bin, "hash", work / "bad", status=4)
        assert path.name in err, err
        if "shardedtensor" in self.case:
            return
        shutil.copy(next(self.source.rglob(path.name.replace("1.", "0."))), path)
        _, err = run(self.bin, "hash", work / "bad", status=4)
        assert "a file of rank 0, whose name says rank 1" in err, err

    def stale_files(self, work):
        """Files that another number of ranks left are refused by name, whatever kind they are of."""
        more = ["--layout", f"ranks={self.ranks + 1}", "--no-sync", "--quiet"]
        run(self.bin, "convert", self.source, work / "other", "--to", "fsdp-ranks", *more)
        if self.case.startswith("accelerate"):  # names do not tell the number: what is there more than once is not the same
            shutil.rmtree(work / "other")
            run(self.bin, "convert", self.source, work / "other", "--like", self.source, *more)
        place = next(self.source.rglob("*model*rank*0.*")).parent.relative_to(self.source)
        for kind in {p.name.split("_world")[0].split("_0_rank")[0] for p in (work / "other").rglob("*rank*")}:
            shutil.copytree(self.source, work / kind)
            for path in [work / kind, *(work / kind).rglob("*")]:
                path.chmod(0o755)
            last = [p for p in (work / "other").rglob(f"{kind}*rank*") if p.stem.endswith(str(self.ranks))]
            assert len(last) == 1, last
            shutil.copy(last[0], work / kind / place)
            _, err = run(self.bin, "hash", work / kind, status=4)
            assert last[0].name in err, err

    def lost_first_file(self, work):
        """Where rank 0's file of a kind is gone, what the others of that kind hold is said to be lost, and verify is not content."""
        for number, path in enumerate(p for p in sorted(self.source.rglob("*rank_0.*")) if not p.name.startswith("model")):
            folder = work / str(number)
            shutil.copytree(self.source, folder)
            (folder / path.relative_to(self.source)).unlink()
            out, _ = run(self.bin, "verify", folder, status=1)
            beside = path.name.replace("rank_0.", "rank_1.")
            assert "the file of rank 0 beside" in out and beside in out, out


    def further_models(self, work):
        """Where a run prepared several models the first opens, with its own optimizer, and the others are told."""
        def copy(folder, number):
            for path in next(self.source.rglob("pytorch_model_fsdp*")).parent.iterdir():
                kind = re.match("pytorch_model_fsdp|optimizer", path.name)
                rest = path.name[kind.end():].removeprefix("_0") if kind else ""
                name = f"{kind[0]}_{number}{rest}" if kind and (number or rest != ".bin") else path.name
                if path.is_dir():
                    shutil.copytree(path, work / folder / name, dirs_exist_ok=True)
                else:
                    shutil.copy(path, work / folder / name)

        def told(folder):
            return re.findall("holds further models: '([a-z_]*[0-9]+)", run(self.bin, "ls", work / folder)[1])

        items = lambda path: run(self.bin, "ls", "--json", "--items", path)[0].split('"items":')[1].split('"warnings"')[0]
        for folder, numbers in (("one", (0,)), ("two", (0, 1, 10)), ("later", (2, 3))):
            (work / folder).mkdir()
            for number in numbers:
                copy(folder, number)
            if folder == "later" and self.case.endswith("-dcp"):
                continue
            assert self.hashes(work / folder) == self.manifest["tensors"], folder
            assert items(work / folder) == items(work / "one"), folder
            assert sorted(told(folder)) == [f"pytorch_model_fsdp_{number}" for number in numbers[1:]], told(folder)


class Flat(Test):
    """The optimizer as FSDP1 cuts it: other wrappings, references, and what cannot be told. The bytes are judged by tests/live."""

    def convert(self, target, *options, source=None, status=0):
        return run(self.bin, "convert", source or self.source, target, "--to", "fsdp-ranks", "--no-sync", *options, status=status)[1]

    def wrappings(self, work):
        is_original = self.case.endswith("fsdp1")
        self.convert(work / "root", "--wrap", "root", "--layout", "ranks=4")
        shapes = [v["shape"] for v in self.pieces(work / "root")["optim_world_size_4_rank_2.pt"].values() if v["shape"]]
        elements = sum(math.prod(v["shape"]) for k, v in self.manifest["tensors"].items() if k not in ("running", "count"))
        assert shapes == [[-(-elements // 4)]] * 2 if not is_original else len({s[0] for s in shapes}) > 1, shapes
        self.convert(work / "back", "--layout", f"ranks={self.ranks}", "--wrap", "layers.*", source=work / "root")
        assert self.pieces(work / "back") == self.pieces(self.source), "back from another wrapping"
        self.convert(work / "like", "--like", self.source, source=work / "root")
        assert self.pieces(work / "like") == self.pieces(self.source), "like a reference"

    def no_module(self, work):
        """A rule for modules that the model does not have is a mistake."""
        said = self.convert(work / "out", "--wrap", "layers.*|layer.*", "--layout", "ranks=4", status=2)
        assert "wrap 'layer.*' names no module" in said and "'layers.*'" in said and not (work / "out").exists(), said

    def other_names(self, work):
        """The state goes with its parameter, whatever that is called; a reference that lacks one is told."""
        self.convert(work / "renamed", "--rename", r"s/^layers\.(\d+)\.up/blocks.\1.up/", "--wrap", "layers.*", "--layout", "ranks=3")
        self.convert(work / "like", "--like", self.source, "--rename", r"s/^blocks\./layers./", source=work / "renamed")
        assert self.pieces(work / "like") == self.pieces(self.source), "renamed there and back"
        said = self.convert(work / "bad", "--like", self.source, source=work / "renamed", status=5)
        assert "the reference has no parameter 'blocks.0.up.weight'" in said, said

    def to_fsdp2(self, work):
        """A reference of FSDP2 wants DTensors, which name the parts of the very same wholes."""
        other = self.source.parents[1] / "verl-fsdp2"
        self.convert(work / "fsdp2", "--like", other / "ckpt")
        optimizer = next((work / "fsdp2").rglob("optim*rank_0.pt"))
        listed = self.hashes("--format", "fsdp-ranks", optimizer)
        assert listed["state.0.exp_avg"]["shape"] == [3, 8, 5], listed
        out, _ = run(self.bin, "ls", "--json", "--chunks", "--format", "fsdp-ranks", optimizer)
        copied = [t["key"] for t in json.loads(out)["tensors"] if t["shape"] and any(c["replica"] for c in t["chunks"])]
        assert not copied, f"whole on several ranks: {copied}"
        self.convert(work / "back", "--like", self.source, source=work / "fsdp2")
        assert self.pieces(work / "back") == self.pieces(self.source), "from FSDP2 to FSDP1"
        if self.case.endswith("fsdp1"):
            self.convert(work / "flat", "--like", self.source, source=other / "ckpt")
            names = lambda p: {n: sorted((k, tuple(v["shape"])) for k, v in f.items()) for n, f in self.pieces(p).items()}
            assert names(work / "flat") == names(self.source), "real FSDP2 to FSDP1"
        else:
            said = self.convert(work / "flat", "--like", self.source, source=other / "ckpt", status=5)
            assert "'exp_avg'" in said and "that of 'frozen' is not there" in said, said

    def one_rank(self, work):
        """One rank's state has the shapes of parameters: a reference shows how they are flattened."""
        self.convert(work / "one", "--layout", "ranks=1")
        if self.case.endswith("fsdp1"):
            self.convert(work / "back", "--like", self.source, source=work / "one")
            assert self.pieces(work / "back") == self.pieces(self.source), "back from one rank"
        said = self.convert(work / "two", "--layout", "ranks=2", "--verbose", source=work / "one")
        assert "one rank of FSDP1 does not tell" in said and not list((work / "two").rglob("optim*")), said

    def copies_of_shards(self, work):
        """HYBRID_SHARD without a mesh: further ranks hold the shards of the first ones once more, which no file says."""
        (work / "hybrid").mkdir()
        for path in next(self.source.rglob("optim*rank_0.pt")).parent.glob("*_rank_*.pt"):
            kind, rank = re.match(r"(.*)_world_size_\d+_rank_(\d+)", path.name).groups()
            for copy in (0, 1):
                name = f"{kind}_world_size_{2 * self.ranks}_rank_{int(rank) + copy * self.ranks}.pt"
                shutil.copy(path, work / "hybrid" / name)
        said = self.convert(work / "back", "--layout", f"ranks={self.ranks}", "--verify", source=work / "hybrid")
        assert "flat pieces" not in said and self.pieces(work / "back") == self.pieces(self.source), said
        self.same_values(work / "back")
        more = self.ranks + 2
        self.convert(work / "more", "--layout", f"ranks={more}", source=work / "hybrid")
        self.convert(work / "once", "--layout", f"ranks={more}")
        assert self.pieces(work / "more") == self.pieces(work / "once"), "pieces of other ranks"

    def cannot_be_told(self, work):
        """Files that do not go together are kept rank by rank, with the reason."""
        shutil.copytree(self.source, work / "in")
        folder = next((work / "in").rglob("optim*rank_0.pt")).parent
        folder.chmod(0o755)
        first, second = sorted(folder.glob("optim*"))[:2]
        first.write_bytes(second.read_bytes())
        out, _ = run(self.bin, "inspect", work / "in")
        assert "kept rank by rank" in out and "rank_1.optimizer" in run(self.bin, "ls", "--items", work / "in")[0], out
        said = self.convert(work / "out", "--layout", "ranks=7", "--verbose", source=work / "in")
        assert "only the ranks that saved them" in said, said
        said = self.convert(work / "out", "--wrap", "root", source=work / "in", status=2)
        assert "--wrap" in said and "no flat pieces" in said, said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--case", default="*")
    args = parser.parse_args()
    fixtures = pathlib.Path(args.fixtures)
    cases = [f"{f}/{p.name}" for f in ("verl", "accelerate") for p in sorted((fixtures / f).iterdir()) if not p.name.startswith("bad-")]
    tests = [(c, "other_ranks") for c in cases]
    of_ranks = ("as_reference", "cut_files", "lone_file", "stale_files")
    tests += [(c, what) for c in cases if not c.endswith(("-dcp", "-full")) for what in of_ranks]
    tests += [(c, "further_models") for c in cases if c.startswith("accelerate/")]
    tests += [(c, "lost_first_file") for c in cases if c.startswith("verl/")]
    flat = ("wrappings", "no_module", "other_names", "to_fsdp2", "one_rank", "cannot_be_told")
    tests += [(c, what) for c in cases if c.startswith("verl/verl-fsdp1") for what in flat]
    tests.append(("verl/verl-fsdp1-shardedtensor", "copies_of_shards"))
    tests.remove(("verl/verl-fsdp1-shardedtensor", "cannot_be_told"))  # pieces of units have one length on all ranks
    tests = [t for t in tests if fnmatch.fnmatch(t[0], args.case)]
    print(f"1..{len(tests)}")
    failed = 0
    for number, (case, what) in enumerate(tests, 1):
        with tempfile.TemporaryDirectory() as work:
            try:
                getattr(Flat(args, case), what)(pathlib.Path(work))
                print(f"ok {number} - {case} {what}")
            except Exception as failure:
                failed += 1
                print(f"not ok {number} - {case} {what}\n# {type(failure).__name__}: {str(failure)[:600]}")
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
