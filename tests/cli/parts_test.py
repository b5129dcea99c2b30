#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""convert --part and commit: any number of parts, in any order and at once, give the bytes of one conversion. Prints TAP, a test a case.

usage: parts_test.py --bin PATH --fixtures DIR

Also: parts that are killed and run again, parts that are missing or of another run, a commit beside a part that still runs, and that the
target is invisible until the commit.
"""
import argparse
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

FORMATS = [
    ("torch-dcp/dcp-fsdp2-4", ["--to", "hf", "--max-shard-size", "1000"]),
    ("torch-dcp/dcp-fsdp2-4", ["--to", "torch-dcp", "--layout", "ranks=3"]),
    ("torch-dcp/dcp-fsdp2-4", ["--to", "torch"]),
    ("torch-dcp/dcp-zstd", ["--to", "zarr"]),
    ("safetensors/safetensors-hf-sharded", ["--to", "safetensors"]),
    ("safetensors/safetensors-hf-sharded", ["--to", "torch-dcp", "--checksum", "sha256", "--verify"]),
    ("megatron/megatron-sem-async", ["--to", "hf", "--rules", "none"]),
]


def source_of(fixtures, name):
    case = fixtures / name
    return next(p for p in sorted(case.iterdir()) if p.name != "manifest.json")


class Test:
    def __init__(self, args, work):
        self.bin, self.fixtures, self.work = str(pathlib.Path(args.bin).resolve()), pathlib.Path(args.fixtures), work

    def start(self, *words):
        return subprocess.Popen([self.bin, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words):
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def good(self, *words):
        code, _, err = self.run(*words)
        assert code == 0, f"{words}: exit {code}: {err}"

    def part(self, source, target, words, i, n):
        return ("convert", source, target, *words, "--quiet", "--part", f"{i}/{n}")

    def whole(self, source, words):
        """The same by one run; files may hold the name of their target, so that it is the same."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        target = folder / "out"
        self.good("convert", source, target, *words, "--quiet")
        return target


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tree(path):
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def bytes_of_one_run(test, case, rng):
    name, words = case
    source = source_of(test.fixtures, name)
    whole = tree(test.whole(source, words))
    for n in (1, 2, 5):
        target = test.work / str(n) / "out"
        target.parent.mkdir()
        order = list(range(n))
        rng.shuffle(order)
        running = [test.start(*test.part(source, target, words, i, n)) for i in order]
        for process in running:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
        assert not target.exists(), "the target is visible before the commit"
        test.good("commit", target, "--quiet")
        assert tree(target) == whole, f"{n} parts give other bytes than one run"
        assert not list(target.parent.glob(".*")), "something is left beside the target"


def missing_parts_are_named(test):
    source, words = source_of(test.fixtures, "torch-dcp/dcp-fsdp2-4"), ["--to", "hf"]
    target = test.work / "out"
    code, _, err = test.run("commit", target)
    assert code == 1 and "no part" in err, err
    for i in (2, 0):
        test.good(*test.part(source, target, words, i, 3))
    code, _, err = test.run("commit", target)
    assert code == 1 and "part 1 of 3 is missing (2 are there)" in err and not target.exists(), err
    test.good(*test.part(source, target, words, 1, 3))
    test.good("commit", target, "--quiet")
    assert tree(target) == tree(test.whole(source, words))


def all_missing_parts_are_named(test):
    source, target = source_of(test.fixtures, "torch-dcp/dcp-fsdp2-4"), test.work / "out"
    for i in (0, 4, 6):
        code, out, err = test.run("convert", source, target, "--to", "hf", "--part", f"{i}/9")
        assert code == 0 and f"part {i} of 9 is written; 'reshard commit {target}'" in out, (code, out, err)
    code, _, err = test.run("commit", target)
    assert code == 1 and "parts 1-3, 5, 7-8 of 9 are missing (3 are there)" in err and "run them" in err, err


def parts_are_not_removed_unasked(test):
    """A conversion of its own says that parts are there; what a plan says, too. One that was asked to overwrite begins anew."""
    source, words, target = source_of(test.fixtures, "torch-dcp/dcp-fsdp2-4"), ["--to", "hf"], test.work / "out"
    test.good(*test.part(source, target, words, 0, 2))
    for more in ([], ["--dtype", "bf16", "--resume"]):
        code, _, err = test.run("convert", source, target, *words, *more)
        assert code == 2 and "parts of" in err and "'reshard commit'" in err and "--overwrite begins anew" in err, f"exit {code}: {err}"
    assert "parts of" in test.run("plan", source, target, *words)[1]
    test.good(*test.part(source, target, words, 1, 2))
    test.good("commit", target, "--quiet")
    test.good(*test.part(source, test.work / "anew", words, 0, 2))
    test.good("convert", source, test.work / "anew", *words, "--overwrite", "--quiet")
    assert tree(test.work / "anew") == tree(target) and not (test.work / ".anew.reshard-partial").exists()


def other_runs_are_refused(test):
    source, target = source_of(test.fixtures, "torch-dcp/dcp-fsdp2-4"), test.work / "out"
    test.good(*test.part(source, target, ["--to", "torch-dcp"], 0, 2))
    for words in (["--to", "torch-dcp", "--layout", "ranks=2"], ["--to", "hf"]):
        code, _, err = test.run(*test.part(source, target, words, 1, 2))
        assert code == 1 and "another run" in err, f"exit {code}: {err}"
    record = test.work / ".out.reshard-partial" / ".part-0-of-2"
    good = record.read_bytes()
    for damaged in (good[:-1], good[:20] + bytes([good[20] ^ 1]) + good[21:], b""):
        record.write_bytes(damaged)
        code, _, err = test.run("commit", target)
        assert code == 1 and "damaged" in err, f"exit {code}: {err}"
    forged = good[:8] + bytes([good[8] ^ 1]) + good[9:-4]
    record.write_bytes(forged + crc32c(forged).to_bytes(4, "little"))
    code, _, err = test.run("commit", target)
    assert code == 1 and "is of another run" in err, f"exit {code}: {err}"
    record.write_bytes(good)
    test.good(*test.part(source, target, ["--to", "torch-dcp"], 1, 2))
    test.good("commit", target, "--quiet")


def another_number_of_parts_is_refused(test):
    """When such a part begins, before it has written anything; two that ran at once are told apart by the commit."""
    source, target, folder = source_of(test.fixtures, "torch-dcp/dcp-fsdp2-4"), test.work / "out", test.work / ".out.reshard-partial"
    words = ["--to", "torch-dcp"]
    test.good(*test.part(source, target, words, 0, 2))
    before = tree(folder)
    code, _, err = test.run(*test.part(source, target, words, 1, 3))
    assert code == 1 and "'.part-0-of-2' is there" in err and f"remove '{folder}'" in err, f"exit {code}: {err}"
    assert tree(folder) == before, "something was written"
    (test.work / "beside").mkdir()
    test.good(*test.part(source, test.work / "beside" / "out", words, 1, 3))
    shutil.copy(test.work / "beside" / ".out.reshard-partial" / ".part-1-of-3", folder)
    code, _, err = test.run("commit", target)
    assert code == 1 and "another number of parts" in err and "remove it" in err and str(folder) in err, f"exit {code}: {err}"
    (folder / ".part-1-of-3").unlink()
    test.good(*test.part(source, target, words, 1, 2))
    test.good("commit", target, "--quiet")


def names_are_part_of_a_run(test):
    """They move no byte of the payload elsewhere, so the plans of such parts are the same."""
    source, words = test.work / "source.safetensors", ["--to", "hf", "--max-shard-size", "100"]
    big_file(source, 4, 100)
    (test.work / "m.map").write_text("t0 -> k0\n")
    others = (["--rename", "t* -> k*"], ["--add-prefix", "a."], ["--map", test.work / "m.map"], ["-m", "t0 -> k0"])
    for number, other in enumerate(others):
        target = test.work / f"out-{number}"
        test.good(*test.part(source, target, words, 0, 2))
        code, _, err = test.run(*test.part(source, target, [*words, *other], 1, 2))
        assert code == 1 and "another run" in err, f"{other}: exit {code}: {err}"
    target = test.work / "mapped"
    for i in range(2):
        test.good(*test.part(source, target, [*words, "--map", test.work / "m.map"], i, 2))
    test.good("commit", target, "--quiet")
    _, listed, _ = test.run("ls", target)
    assert listed.split()[0] == "k0", listed
    target = test.work / "changed"
    for i in range(2):
        test.good(*test.part(source, target, [*words, "--map", test.work / "m.map"], i, 2))
    (test.work / "m.map").write_text("t0 -> q0\n")
    code, _, err = test.run("commit", target)
    assert code == 1 and "another run" in err and not target.exists(), f"exit {code}: {err}"


def what_a_commit_cannot_read_again_is_refused(test):
    """Parts keep their words: those of standard input would be words of the commit's, and its names the source's."""
    source, target = test.work / "source.safetensors", test.work / "out"
    big_file(source, 2, 100)
    for word, first, more in (("--map", source, ["--map", "-"]), ("--config", source, ["--config", "-"]),
                              ("--rules", source, ["--rules", "-"]), ("SRC", "-", [])):
        with open(source, "rb") as stdin:
            done = subprocess.run([test.bin, "convert", first, target, "--to", "hf", "--part", "0/2", *more], stdin=stdin,
                                  stderr=subprocess.PIPE, text=True)
            left = stdin.read()
        assert done.returncode == 2 and word in done.stderr and "standard input" in done.stderr, f"exit {done.returncode}: {done.stderr}"
        assert left, "it was read nevertheless"
    assert [p.name for p in test.work.iterdir()] == ["source.safetensors"]


def doubled_parts_are_refused(test):
    """One part's record in place of another's; running a part again is no harm."""
    source, words = source_of(test.fixtures, "torch-dcp/dcp-fsdp2-4"), ["--to", "hf"]
    target = test.work / "out"
    for _ in range(2):
        test.good(*test.part(source, target, words, 0, 2))
    code, _, err = test.run("inspect", target)
    assert code == 3 and f"'reshard commit {target}'" in err, f"exit {code}: {err}"
    code, _, err = test.run("inspect", test.work / "other")
    assert code == 3 and "commit" not in err, f"exit {code}: {err}"
    folder = test.work / ".out.reshard-partial"
    shutil.copy(folder / ".part-0-of-2", folder / ".part-1-of-2")
    code, _, err = test.run("commit", target)
    assert code == 1 and ".part-1-of-2" in err and not target.exists(), f"exit {code}: {err}"
    test.good(*test.part(source, target, words, 1, 2))
    test.good("commit", target, "--quiet")
    assert tree(target) == tree(test.whole(source, words))


def parts_of_a_program_are_told_from_those_of_the_command(test):
    """They have no words, and do not keep what they were opened with."""
    source, target = source_of(test.fixtures, "torch-dcp/dcp-fsdp2-4"), test.work / "out"
    test.good(*test.part(source, target, ["--to", "torch-dcp"], 0, 1))
    record = test.work / ".out.reshard-partial" / ".part-0-of-1"
    data = record.read_bytes()
    words = int.from_bytes(data[24:28], "little")
    forged = data[:24] + bytes(4) + data[28 + words : -4]
    record.write_bytes(forged + crc32c(forged).to_bytes(4, "little"))
    code, _, err = test.run("commit", target)
    assert code == 5 and "their program commits them" in err and not target.exists(), f"exit {code}: {err}"


def wrong_numbers_are_refused(test):
    source = source_of(test.fixtures, "torch-dcp/dcp-fsdp2-4")
    for text in ("2/2", "1", "a/2", "-1/2", "0/0", "0/2x", "0/999999999"):
        code, _, err = test.run("convert", source, test.work / "out", "--to", "hf", "--part", text)
        assert code == 2 and "part" in err, f"{text}: exit {code}: {err}"
    assert not list(test.work.iterdir())


def big_file(path, count, size):
    entries = [f'"t{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{i * size},{(i + 1) * size}]}}' for i in range(count)]
    header = ("{" + ",".join(entries) + "}").encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for i in range(count):
            file.write(bytes([i % 251 + 1]) * size)


def killed_parts_run_again(test, rng):
    source, target = test.work / "big.safetensors", test.work / "out"
    words = ["--to", "torch-dcp", "--layout", "ranks=2", "--io", "buffered", "--threads", "1"]
    big_file(source, 128, 1 << 20)
    whole = tree(test.whole(source, words))
    kills = 0
    for turn in range(6):
        for i in range(3):
            process = test.start(*test.part(source, target, words, i, 3))
            time.sleep(0.002 + rng.random() * 0.015)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            kills += process.returncode == -signal.SIGKILL
        code, _, _ = test.run("commit", target)
        if code == 0:
            break
        assert code == 1 and not target.exists()
    assert kills, "no part was killed"
    if not target.exists():
        for i in range(3):
            test.good(*test.part(source, target, words, i, 3))
        test.good("commit", target, "--quiet")
    assert tree(target) == whole


def a_running_part_holds_the_commit(test):
    source, target, words = test.work / "big.safetensors", test.work / "out", ["--to", "torch-dcp", "--layout", "ranks=2"]
    big_file(source, 8, 1 << 20)
    test.good(*test.part(source, target, words, 0, 2))
    process = test.start(*test.part(source, target, words, 1, 2))
    process.send_signal(signal.SIGSTOP)
    held = False
    for _ in range(200):
        code, _, err = test.run("commit", target)
        held |= code == 3 and "another run" in err
        assert code in (1, 3) and not target.exists(), f"exit {code}: {err}"
        process.send_signal(signal.SIGCONT)
        time.sleep(0.0005)
        process.send_signal(signal.SIGSTOP)
        if held or process.poll() is not None:
            break
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert held, "the part was never met while it ran"
    test.good("commit", target, "--quiet")


def relative_paths_count_from_the_parts_folder(test):
    source = test.work / "source.safetensors"
    big_file(source, 3, 100)
    for i in range(2):
        done = subprocess.run([test.bin, "convert", source.name, "out", "--to", "torch-dcp", "--part", f"{i}/2", "--quiet"], cwd=test.work)
        assert done.returncode == 0
    test.good("commit", test.work / "out", "--quiet")
    assert tree(test.work / "out") == tree(test.whole(source, ["--to", "torch-dcp"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True)
    args = parser.parse_args()
    rng = random.Random(7)
    cases = [(f"{name} {' '.join(words)}", lambda test, case=(name, words): bytes_of_one_run(test, case, rng)) for name, words in FORMATS]
    plain = (missing_parts_are_named, all_missing_parts_are_named, parts_are_not_removed_unasked, other_runs_are_refused,
             another_number_of_parts_is_refused, names_are_part_of_a_run,
             what_a_commit_cannot_read_again_is_refused, doubled_parts_are_refused,
             parts_of_a_program_are_told_from_those_of_the_command, wrong_numbers_are_refused, a_running_part_holds_the_commit,
             relative_paths_count_from_the_parts_folder)
    cases += [(f.__name__.replace("_", " "), f) for f in plain]
    cases.append(("killed parts run again", lambda test: killed_parts_run_again(test, rng)))
    print(f"1..{len(cases)}")
    failed = 0
    for number, (name, case) in enumerate(cases, 1):
        with tempfile.TemporaryDirectory(prefix="reshard-parts-") as work:
            try:
                case(Test(args, pathlib.Path(work)))
                print(f"ok {number} - {name}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"not ok {number} - {name}\n# {str(error)[:600]}", flush=True)
    return 1 if failed else 0


raise SystemExit(main())
