#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""salvage over every fixture: no crash, nothing called good that is not, a damaged byte of a value named exactly.

Prints TAP, a test a family.

usage: salvage_every_test.py --bin PATH --fixtures DIR [--damages N] [--seed N] [--family NAME] [--case NAME] [--below BYTES] [--share N]

With --share one of N checkpoints of a family is drawn.

Of each checkpoint a byte of a value is changed in each file (at most N of them, drawn), then a file is cut off, flipped and zeroed
anywhere, once each. A changed byte of a value: exactly what was proved and is under that byte's checksum is lost or has a good copy, what
was unproved stays so, and nothing else changes. Anywhere: what is proved has the digest that it had, or names are called unproved.
"""
import argparse
import json
import pathlib
import random
import re
import shutil
import tempfile

import salvage_test


def report_of(report, kind):
    return {f["key"] for f in report["findings"] if f["kind"] == kind}


def listed(test, source):
    code, out, err = salvage_test.run(test.bin, "ls", "--chunks", "--json", source)
    assert code == 0, f"ls: exit {code}: {err}"
    return json.loads(out)["tensors"]


def goes_with_it(report, key, at, file):
    """Whether the tensor is lost because a checksum denies a range that has the byte, or as its file cannot be read any more."""
    for finding in report["findings"]:
        if finding["kind"] != "lost" or finding["key"] != key:
            continue
        found = re.search(r"bytes \[(\d+), \+(\d+)\): CRC-32", finding["reason"])
        if found:
            return int(found[1]) <= at < int(found[1]) + int(found[2])
        is_unreadable = file and re.match(rf"'{re.escape(file)}': (pickle|byte \d+): ", finding["reason"])
        return bool(is_unreadable or re.search(r"zip member '.*': CRC-32", finding["reason"]))
    return False


def stored_ranges(test, source):
    """(file, offset, bytes, key) of each stored piece that is not coded."""
    found = []
    for tensor in listed(test, source):
        for chunk in tensor["chunks"]:
            if chunk.get("bytes") and "offset" in chunk and chunk.get("file"):
                found.append((chunk["file"], chunk["offset"], chunk["bytes"], tensor["key"]))
    return found


def path_of(source, name):
    path = source / name if source.is_dir() else source
    return path if path.is_file() else None


class Case:
    """A good copy of a fixture, and what salvage says of it."""

    def __init__(self, test, fixture):
        self.test, self.fixture = test, fixture
        self.source = salvage_test.copy_of(test, fixture)
        self.is_read = salvage_test.run(test.bin, "ls", self.source)[0] != 5
        if not self.is_read:
            return
        keys, self.ranges = [t["key"] for t in listed(test, self.source)], stored_ranges(test, self.source)
        self.twice = {k for k in keys if keys.count(k) > 1}
        self.good, self.to = {}, json.loads(salvage_test.run(self.test.bin, "inspect", "--json", self.source)[1])["format"]
        _, _, self.kept = self.salvage_to("torch-dcp")
        code, report, self.good = self.salvage()
        self.unread = report_of(report, "lost")  # what nobody reads, in a good checkpoint too
        assert code == bool(self.unread), f"the good checkpoint: exit {code}: {report and report['findings'][:3]}"
        assert not self.unread & set(keys), f"{self.unread} can be read"
        converted = self.converted("--lenient")
        assert converted == self.good, f"convert gives {sorted(set(converted or {}) ^ set(self.good))[:3]}"
        self.is_renamed = not set(self.good) <= set(keys)
        self.unproved = report_of(report, "unproved")
        self.has_file_digests = (self.source / "integrity.json").exists()
        verified = json.loads(salvage_test.run(self.test.bin, "verify", "--json", self.source)[1])
        self.torn = {f["key"] for f in verified["findings"] if f["kind"] == "replica"}  # each copy is another one's good value
        self.files = [self.source] if self.source.is_file() else \
            sorted(p for p in self.source.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size)

    def converted(self, *options):
        """What convert makes of it, which looks at no checksum of values; None: it fails."""
        target = self.test.work / "converted"
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        code = salvage_test.run(self.test.bin, "convert", self.source, target, "--to", self.written, "--rules", "none", "--no-sync",
                                *options)[0]
        return {k: v for k, v in self.test.hashes(target).items() if k not in self.twice} if code == 0 else None

    def salvage_to(self, *options):
        code, report, after = self.test.salvage(self.source, *(["--to", *options] if options else []))
        return code, report, {k: v for k, v in after.items() if k not in self.twice} if report else {}

    def salvage(self):
        """Formats that are read only, and those whose loaders want all of a model, are written as another one. self.before: what it gave of
        the good checkpoint."""
        code, report, after = self.salvage_to()
        self.written, self.before = (self.to, self.good) if code != 5 else ("torch-dcp", self.kept)
        return (code, report, after) if code != 5 else self.salvage_to("torch-dcp")

    def is_all_gone(self):
        done = salvage_test.run(self.test.bin, "salvage", self.source, self.test.work / "none", "--no-sync")
        return "no tensor can be recovered" in done[2]

    def with_bytes(self, path, damaged, check, what):
        good = path.read_bytes()
        path.write_bytes(damaged)
        try:
            code, report, after = self.salvage()
            check(code, report, after)
        except Exception as failure:
            raise AssertionError(f"{self.fixture}: {path.relative_to(self.source) if path != self.source else path.name} {what}: "
                                 f"{type(failure).__name__}: {failure}") from failure
        finally:
            path.write_bytes(good)

    def value_byte(self, path, at, keys):
        def check(code, report, after):
            if report is None:
                assert code == 4 and self.is_all_gone(), f"exit {code}: the rest is good"
                return
            lost, unproved = report_of(report, "lost") - self.twice - self.unread, report_of(report, "unproved")
            if self.is_renamed:  # what is written has other names than what has the byte
                converted = self.converted()
                keys.clear()
                keys.update(lost if converted is None else {k for k, v in converted.items() if v != self.before.get(k)})
            file = "" if path == self.source else str(path.relative_to(self.source))
            in_file = {k for name, _, _, k in self.ranges if name == file}
            beside = {k for k in lost if goes_with_it(report, k, at, file if k in in_file else None)}
            keys.update(beside)
            differs = {k for k in self.before if k in after and after[k] != self.before[k]} - self.stand_ins(report)
            assert not differs - keys, f"{sorted(differs - keys)[:3]} do not have that byte, and have changed"
            assert not differs - unproved, f"{sorted(differs - unproved)[:3]} have changed, and are called proved"
            assert not lost - keys, f"{sorted(lost - keys)[:3]} do not have that byte, and are lost"
            assert set(after) | lost >= set(self.before), f"{sorted(set(self.before) - set(after) - lost)[:3]}: neither written nor lost"
            assert unproved <= self.unproved or self.has_file_digests, f"{sorted(unproved - self.unproved)[:3]} are no longer proved"

        good = path.read_bytes()
        self.with_bytes(path, good[:at] + bytes([good[at] ^ 1]) + good[at + 1:], check, f"flipped in a value at {at}")

    def stand_ins(self, report):
        """What has the values of another copy, which were others before."""
        return report_of(report, "replaced") & self.torn

    def anywhere(self, path, rng):
        def check(code, report, after):
            if report is not None:
                for key in self.stand_ins(report):
                    after[key] = self.before[key]
                self.test.check(self.before, report, after, salvage_test.NAMES in {f["kind"] for f in report["findings"]})

        good = path.read_bytes()
        at = rng.randrange(len(good))
        for what, damaged in (("cut off", good[:at]), ("flipped", good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1:]),
                              ("zeroed", good[:at] + bytes(min(64, len(good) - at)) + good[at + 64:])):
            self.with_bytes(path, damaged, check, f"{what} at {at}")


def damage(test, fixture, count, rng):
    case = Case(test, fixture)
    if not case.is_read:
        return False
    ranges = case.ranges
    files = sorted({r[0] for r in ranges})
    for name in rng.sample(files, min(count, len(files))):
        path = path_of(case.source, name)
        if not path:
            continue
        _, begin, size, _ = rng.choice([r for r in ranges if r[0] == name])
        at = begin + rng.randrange(size)
        if at < path.stat().st_size:
            case.value_byte(path, at, {key for file, first, n, key in ranges if file == name and first <= at < first + n})
    for path in rng.sample(case.files, min(count, len(case.files))):
        case.anywhere(path, rng)
    return True


def fixtures_of(root, family, below):
    for manifest in sorted((root / family).glob("*/manifest.json")):
        known = json.loads(manifest.read_text())
        if not known.get("tensors") or (known.get("expect") or {}).get("error") or manifest.parent.name.startswith(("bad-", "odd-")):
            continue
        path = manifest.parent / known["path"]
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        if sum(p.stat().st_size for p in files) < below:
            yield f"{family}/{manifest.parent.name}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--damages", type=int, default=1)
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--below", type=int, default=1 << 20)
    parser.add_argument("--family", default="")
    parser.add_argument("--case", default="")
    args = parser.parse_args()
    root = pathlib.Path(args.fixtures)
    families = [f for f in sorted(p.name for p in root.iterdir() if p.is_dir()) if args.family in ("", f)]
    drawn = {f: [c for c in fixtures_of(root, f, args.below) if args.case in c] for f in families}
    drawn = {f: cases for f, cases in drawn.items() if cases}
    chance = random.Random(args.seed)
    drawn = {f: chance.sample(cases, -(-len(cases) // args.share)) for f, cases in drawn.items()}
    print(f"1..{len(drawn)}")
    failed = 0
    for number, (family, cases) in enumerate(drawn.items(), 1):
        wrong, read = [], 0
        for fixture in cases:
            with tempfile.TemporaryDirectory() as work:
                try:
                    rng = random.Random(f"{args.seed} {fixture}")
                    read += damage(salvage_test.Test(args, pathlib.Path(work)), fixture, args.damages, rng)
                except Exception as failure:
                    wrong.append(f"{fixture}: {type(failure).__name__}: {str(failure)[:500]}")
        failed += bool(wrong)
        print(f"{'not ' * bool(wrong)}ok {number} - {family}: {read} of {len(cases)} checkpoints are read", flush=True)
        for text in wrong:
            print("# " + text.replace("\n", " "))
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
