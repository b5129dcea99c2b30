#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the command over fixtures that the real frameworks wrote and compares with their manifests. Prints TAP.

usage: fixtures_test.py --bin PATH --check {hash,items,bad,verify,pairs,roundtrip,relayout,verified} --root DIR [--root DIR]...
                        [--family F] [--case GLOB] [--share N] [--seed N]
Where a Python with torch and safetensors is found (tests/live/live.py says how), roundtrip also lets the real library read what was
written. A case that an earlier root has too is run once.

How a bad case is refused, and what a strict reader does with a case that it may refuse, is pinned: refusals.json has the exit status of
each, and what is said of a bad one; and which formats cannot hold what a good case has. A case that is not in it (others than those of the
repository) must be refused in some way. `verified` and `roundtrip` try a fifth of the formats, or the share that is said, others for each
case. --pin writes the file anew; read the difference before you keep it.
"""
import argparse
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / "live"))
import draw
import live as live_judges

REFUSALS = (4, 5, 6)
PINS = pathlib.Path(__file__).with_name("refusals.json")
FAMILIES = {"atorch-fsdp", "bytecheckpoint", "deepspeed", "gguf", "numpy", "orbax", "torch-dcp", "torch-file", "safetensors", "zarr",
            "megatron", "paddle", "torch_checkpointing", "torchsnapshot", "verl", "accelerate"}

# Types without a safetensors name: the manifests of the families spell them differently, and torch counts packed F4 in pairs.
TORCH_SPELLINGS = {"COMPLEX32": "complex32", "F4_E2M1FN_X2": "float4_e2m1fn_x2"}  # some manifests spell torch's own types in capitals
UNNAMED_TYPES = {"complex32", "float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "F4", "F6_E2M3", "F6_E3M2"}


def load_cases(roots, families):
    seen = {}
    for root in roots:
        for manifest in sorted(pathlib.Path(root).resolve().glob("*/*/manifest.json")):
            case = json.loads(manifest.read_text())
            if case.get("family") in families and case["case"] not in seen:
                case["folder"] = manifest.parent
                if case["family"] == "gguf":  # quantised tensors are shown as what they mean
                    blocks = (case.get("also") or {}).get("blocks") or {}
                    case["tensors"] |= {key: block["dequantized"] for key, block in blocks.items()}
                for tensor in case["tensors"].values():
                    tensor["dtype"] = TORCH_SPELLINGS.get(tensor["dtype"], tensor["dtype"])
                seen[case["case"]] = case
    return seen


class Unseen(Exception):
    """Nothing about the case could be checked, for the reason given."""


class Pins:
    """Exit statuses of the commands over cases that are, or may be, refused, and what is said of bad ones."""

    def __init__(self, is_kept):
        self.wanted = json.loads(PINS.read_text()) if PINS.exists() else {}
        self.found, self.is_kept = {}, is_kept

    def __call__(self, case, among=None, **exits):
        """among: of a list of words, those that were tried; None: all."""
        self.found.setdefault(case["case"], {}).update(exits)
        pinned = {} if self.is_kept else self.wanted.get(case["case"], {})
        wanted = {verb: pinned[verb] for verb in exits if verb in pinned}
        if among is not None:
            wanted = {verb: " ".join(word for word in words.split() if word in among) for verb, words in wanted.items()}
        return [f"{verb}: {found!r} instead of {wanted[verb]!r}, which refusals.json has" for verb,
                found in exits.items() if wanted.get(verb, found) != found]

    def keep(self):
        for name, exits in self.found.items():
            self.wanted.setdefault(name, {}).update(exits)
        rows = [f'  {json.dumps(name)}: {json.dumps(found, sort_keys=True, ensure_ascii=False)}'
                for name, found in sorted(self.wanted.items())]
        PINS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


class Runner:
    def __init__(self, binary, work, pins, drawn):
        self.binary, self.work, self.pins, self.drawn = os.path.abspath(binary), pathlib.Path(work), pins, drawn

    def __call__(self, *arguments, timeout=120):
        started = time.monotonic()
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, errors="replace", timeout=timeout,
                              cwd=self.work)
        done.seconds = time.monotonic() - started
        return done

    @functools.cached_property
    def writable(self):
        return [words[0] for words in (line.split("\t") for line in self("formats").stdout.splitlines()) if "w" in words[1]]

    def digests(self, path):
        """({key: (dtype, shape, digest)}, complaint)"""
        done = self("hash", "--json", path)
        self.status = done.returncode
        if done.returncode:
            return None, f"hash exit {done.returncode}: {done.stderr.strip()[:300]}"
        found = {}
        for tensor in json.loads(done.stdout)["tensors"]:
            found[tensor["key"]] = (tensor["dtype"], list(tensor["shape"]), tensor["hash"])
        return found, None


def plain_digests(case):
    return {key: (t["dtype"], list(t["shape"]), t["sha256"]) for key, t in case["tensors"].items()}


def wanted_digests(case):
    """Without tensors whose value is a sum over ranks: a tool that cannot add leaves them out by name."""
    also = case.get("also") or {}
    if case["case"].startswith("ds-uc-"):  # what is not trained is as it was in the checkpoint that this was made of, and not cast
        folder = case["folder"].parent / case["case"].replace("ds-uc-", "ds-")
        origin = wanted_digests(json.loads((folder / "manifest.json").read_text()))
        return origin | {key: value for key, value in plain_digests(case).items() if key in also["optimizer_tensors"]}
    summed = also.get("needs_sum") or []
    wanted = {key: value for key, value in plain_digests(case).items() if key not in summed}
    # One name for a tensor of each expert rank of atorch.
    for key, experts in (also.get("expert_tensors") or {}).items():
        wanted |= {f"ckpt_meta.expert_{t['expert_rank']}.{key}": (t["dtype"], list(t["shape"]), t["sha256"]) for t in experts}
    # What zero_to_fp32.py leaves out: frozen parameters and buffers as the model file has them, a tied weight as what it is tied to.
    for key in also.get("only_in_module") or ():
        shared, own = also["shared_params"].get(key), also["module_tensors"][key]
        wanted[key] = wanted[shared] if shared else (own["dtype"], list(own["shape"]), own["sha256"])
    return wanted


def extra_keys(case):
    """Keys that the files of single ranks have and the manifest's list of full tensors leaves out."""
    per_file = (case.get("also") or {}).get("per_file")
    return {key for entries in per_file.values() for key in entries} if isinstance(per_file, dict) else set()


def in_halves(entry):
    """Formats of torch count F4 in pairs along the last dimension."""
    dtype, shape, digest = entry
    return ("F4", [*shape[:-1], 2 * shape[-1]], digest) if dtype == "float4_e2m1fn_x2" and shape else entry


def differences(found, wanted):
    lines = [f"missing {key!r}" for key in wanted.keys() - found.keys()]
    lines += [f"unexpected {key!r}" for key in found.keys() - wanted.keys()]
    lines += [f"{key!r}: {found[key]} instead of {wanted[key]}" for key in found.keys() & wanted.keys()
              if in_halves(found[key]) != in_halves(wanted[key])]
    return lines


def without_extra(found, case):
    return {key: value for key, value in found.items() if key in case["tensors"] or key not in extra_keys(case)}


def of_optimizer(found, case):
    """What the tensors of the item `optimizer` of DeepSpeed became where a target holds it, taken out of found: state by name is known."""
    if case["family"] != "deepspeed":
        return []
    states = {key: found.pop(key) for key in list(found) if key.startswith("optimizer.")}
    wanted = {f"optimizer.state.{name}.{state}": (t["dtype"], list(t["shape"]), t["sha256"])
              for name, members in (case["also"].get("optimizer_tensors") or {}).items() for state, t in members.items()}
    return [f"{key!r}: {states.get(key)} instead of {wanted[key]}" for key in wanted if states and states.get(key) != wanted[key]]


def is_good(case):
    return not (case.get("expect") or {}).get("error")


def may_refuse(case):
    return bool((case.get("also") or {}).get("may_refuse"))


def links(case):
    also = case.get("also") or {}
    names = []
    for field in ("same_content_as", "same_weights_as"):
        value = also.get(field) or []
        names += [value] if isinstance(value, str) else [v if isinstance(v, str) else v.get("case", "") for v in value]
    return sorted(set(names))


def canaries(run):
    hits = list(run.work.glob("RESHARD-EXECUTED-*"))
    for hit in hits:
        hit.unlink()
    return [f"executed: {hit.name}" for hit in hits]


def has_names_of_its_own(case):
    """Manifests of two cases name optimizer state by stage and without the format's prefix; others of the kind cover such files."""
    return case["family"] == "megatron" and any(re.match(r"(pp\d\.)?exp_avg\.", key) for key in case["tensors"])


def check_hash(run, case, cases, live):
    if not is_good(case) or any(t["sha256"] is None for t in case["tensors"].values()) or has_names_of_its_own(case):
        return None
    found, complaint = run.digests(case["folder"] / case["path"])
    pinned = run.pins(case, hash=run.status) if may_refuse(case) else []
    if complaint:
        return canaries(run) + (pinned if run.status in REFUSALS and may_refuse(case) else [complaint])
    return canaries(run) + pinned + differences(without_extra(found, case), wanted_digests(case))


def check_items(run, case, cases, live):
    if not is_good(case) or not case.get("items"):
        return None
    done = run("ls", "--json", "--items", case["folder"] / case["path"])
    pinned = run.pins(case, ls=done.returncode) if may_refuse(case) else []
    if done.returncode:
        return pinned if may_refuse(case) and done.returncode in REFUSALS else [f"ls exit {done.returncode}: {done.stderr.strip()[:300]}"]
    found = {item["key"]: item for item in json.loads(done.stdout)["items"]}
    lines = pinned + [f"missing item {key!r}" for key in case["items"].keys() - found.keys()]
    for key in case["items"].keys() & found.keys():
        wanted = case["items"][key]
        if wanted["kind"] in ("int", "bool", "str", "null") and "value" in wanted and found[key].get("value") != wanted["value"]:
            lines.append(f"item {key!r}: {found[key].get('value')!r} instead of {wanted['value']!r}")
    return lines


def complaint_of(path, read, verified):
    """What is said of a bad case, without where it lies: by hash, or by verify where hash finds nothing."""
    findings = [line for line in verified.stdout.splitlines() if line.startswith("failure")]
    said = [json.loads(read.stderr)["message"]] if read.returncode in (3, *REFUSALS) else verified.stderr.splitlines() or findings
    return (said or [""])[0].removeprefix("reshard: ").replace(f"'{path}': ", "").replace(str(path), "…")


def check_bad(run, case, cases, live):
    if is_good(case):
        return None
    path = case["folder"] / case["path"]
    read, verified = run("hash", "--json", path), run("verify", path)
    lines = canaries(run) + run.pins(case, hash=read.returncode, verify=verified.returncode, says=complaint_of(path, read, verified))
    if read.returncode not in (3, 4, 5, 6) and verified.returncode not in (1, 3, 4, 5, 6):
        lines.append(f"accepted (hash {read.returncode}, verify {verified.returncode}): {case['expect']['error']}")
    if min(read.returncode, verified.returncode) < 0 or max(read.returncode, verified.returncode) > 6:
        lines.append(f"crashed: hash {read.returncode}, verify {verified.returncode}: {read.stderr[-300:]}")
    if read.returncode and "reshard:" not in read.stderr:
        lines.append(f"no message: {read.stderr[:200]!r}")
    if max(read.seconds, verified.seconds) > 20:
        lines.append(f"took {max(read.seconds, verified.seconds):.1f} s")
    return lines


def check_verify(run, case, cases, live):
    # Of the second kind one is of a run whose tied embeddings had drifted apart: verify says so, rightly.
    if not is_good(case) or has_names_of_its_own(case):
        return None
    done = run("verify", case["folder"] / case["path"], timeout=300)
    may_differ = (1, *REFUSALS) if may_refuse(case) else (1,) if case["case"].startswith("odd-") else ()
    if done.returncode == 0 or done.returncode in may_differ:
        return run.pins(case, verify=done.returncode) if may_differ else []
    return [f"verify exit {done.returncode}: {(done.stderr or done.stdout).strip()[:300]}"]


def check_pairs(run, case, cases, live):
    lines, any_pair = [], False
    for other in links(case):
        if other in cases:
            any_pair = True
            a, b = case["folder"] / case["path"], cases[other]["folder"] / cases[other]["path"]
            done = run("diff", "--items", "ignore", a, b)
            if done.returncode:
                lines.append(f"{other}: diff exit {done.returncode}: {(done.stdout + done.stderr).strip()[:300]}")
    return lines if any_pair else None


def convert_and_compare(run, case, source, target, *arguments):
    done = run("convert", source, target, *arguments, "--quiet")
    if done.returncode:
        return done.returncode, [f"convert {' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr.strip()[:300]}"]
    found, complaint = run.digests(target)
    return 0, [complaint] if complaint else of_optimizer(found, case) + differences(without_extra(found, case), wanted_digests(case))


def remove(path):
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def items_with_tensors(case):
    also = case.get("also") or {}
    return bool(also.get("inside") or also.get("private")) or case["case"] == "dcp-single" or case["family"] == "megatron"


def check_roundtrip(run, case, cases, live):
    # Keys that collide when joined cannot be told apart by name; tests/cli covers them by path.
    if (not is_good(case) or not case["tensors"] or may_refuse(case) or has_names_of_its_own(case)
            or (case.get("also") or {}).get("ambiguous")):
        return None
    if any(t["sha256"] is None for t in case["tensors"].values()) or (case.get("also") or {}).get("logical_bytes"):
        return None
    lines, unseen = [], []
    tried = run.drawn.of(("hf", "torch", "torch-dcp"))
    for to in tried:
        target = run.work / f"{case['case']}.{to}{'.pt' if to == 'torch' else ''}"
        status, complaints = convert_and_compare(run, case, case["folder"] / case["path"], target, "--to", to)
        # Tensors inside items of the source are opened by torch files; that is more, not less.
        complaints = [line for line in complaints if not (to == "torch" and line.startswith("unexpected ") and items_with_tensors(case))]
        if status == 5 and any(t["dtype"] in UNNAMED_TYPES or to == "hf" for t in case["tensors"].values()):
            unseen.append(f"{to} has no such types")
        elif complaints or not live:
            lines += [f"{to}: {line}" for line in complaints]
        else:
            try:
                lines += [f"{to}: {line}" for line in read_with_real_library(case, to, target, live)]
            except Unseen as reason:
                unseen.append(f"{to}: {reason}")
        remove(target)
    if len(unseen) == len(tried):
        raise Unseen("; ".join(unseen))
    return lines


# Rows of a vocabulary's padding that a mapping changes on the way are not compared.
UNCOMPARED = "lost rows of padding on a way that changes it"


def check_verified(run, case, cases, live):
    """Into every format, read back and compared: what is written is what the source has, or the target is refused before it is begun."""
    if not is_good(case) or may_refuse(case):
        return None
    lines, refused = [], []
    tried = run.drawn.of(run.writable)
    for to in tried:
        target = run.work / f"{case['case'][:100]}.{to}"
        done = run("convert", case["folder"] / case["path"], target, "--to", to, "--verify", "--quiet", "--no-sync")
        if done.returncode == 5:
            refused.append(to)
        if done.returncode not in (0, 5) or ("reading the result back" in done.stderr and UNCOMPARED not in done.stderr):
            lines.append(f"{to}: exit {done.returncode}: {done.stderr.strip()[:300]}")
        if target.exists() != (done.returncode == 0):
            lines.append(f"{to}: exit {done.returncode}, and what is there is {sorted(run.work.iterdir())}")
        remove(target)
    return lines + run.pins(case, among=tried, refused=" ".join(refused))


class RealLibrary:
    """The process that reads what was written with torch or safetensors."""

    def __init__(self, python):
        reader = pathlib.Path(__file__).with_name("live") / "read_back.py"
        self.process = subprocess.Popen([python, "-W", "ignore", str(reader)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def __call__(self, kind, path):
        self.process.stdin.write(json.dumps([kind, str(path)]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def read_with_real_library(case, to, target, live):
    found = live(to, target)
    if isinstance(found, dict):
        # An item of a class that only its author has is kept, and loadable there. The library's binding knows no six-bit floats.
        if re.search(r"ModuleNotFoundError|Can't get attribute|Dtype not understood: F6", found["error"]):
            raise Unseen("no class or type of this name where the real library runs")
        return [f"real library: {found['error'][-300:]}"]
    found = {t["key"]: (t["dtype"], t["shape"], t["hash"]) for t in found}
    wanted = {key: value for key, value in wanted_digests(case).items() if value[0] not in UNNAMED_TYPES}
    # Tensors inside items are no tensors of the checkpoint, but the library shows them.
    return [f"real library: {line}" for line in differences({key: found[key] for key in wanted.keys() & found.keys()}, wanted)]


STATE_BY_BUCKET = re.compile(r"(chained_\d\.)?optimizer\.distributed\.")


def state_by_bucket(case):
    """Layouts of Megatron's optimizer state that belong to one run's buffers."""
    return any(STATE_BY_BUCKET.match(t) for t in case["tensors"]) or "old-gather" in case["case"]


def relayout_by_bucket(run, case, source, target):
    """Between parameters buckets hold whatever the memory held: they have the reference's names and sizes, and the parameters' state is
    what Megatron read."""
    reference, back = case["folder"] / case["path"], pathlib.Path(f"{target}.back")
    done = run("convert", source, target, "--like", reference, "--quiet")
    if done.returncode:
        return [f"convert exit {done.returncode}: {done.stderr.strip()[:300]}"]
    found, complaint = run.digests(target)
    if complaint:
        return [complaint]
    content = {key: value if not STATE_BY_BUCKET.match(key) else (*value[:2], "") for key, value in found.items()}
    wanted = {key: value if not STATE_BY_BUCKET.match(key) else (*value[:2], "") for key, value in wanted_digests(case).items()}
    objects = [{i["key"].split("/shard")[0] for i in json.loads(run("ls", "--json", "--items", path).stdout)["items"]
                if STATE_BY_BUCKET.match(i["key"])} for path in (target, reference)]
    lines = differences(content, wanted) + [f"object {key!r} is there or not" for key in sorted(objects[0] ^ objects[1])]
    done = run("convert", target, back, "--to", "torch_dist", "-o", "optimizer=fully_reshardable", "--quiet")
    if done.returncode:
        return lines + [f"reading it back: exit {done.returncode}: {done.stderr.strip()[:300]}"]
    found, complaint = run.digests(back)
    remove(back)
    truth = {key: (t["dtype"], t["shape"], t["sha256"]) for key, t in case["also"]["fully_reshardable"].items()}
    return lines + ([complaint] if complaint else differences(found, truth))


def rank_files(run, case, target):
    """Complaints about single files of a rank, which the manifests of Megatron's legacy cases list."""
    lines, files = [], (case.get("also") or {}).get("files")
    for name, wanted in files.items() if isinstance(files, dict) else ():
        found, complaint = run.digests(target / name)
        wanted = {key.replace("/", ".").lstrip("."): (t["dtype"], t["shape"], t["sha256"]) for key, t in wanted["tensors"].items()}
        lines += [f"{name}: {line}" for line in ([complaint] if complaint else differences(found, wanted))]
    return lines


def read_only(run, kind, target, *arguments):
    """A format that is not written is no target: that is said before anything is made."""
    done = run(*arguments)
    if done.returncode == 5 and f"format '{kind}' is read only" in done.stderr and not target.exists():
        return []
    return [f"{kind} is read only: exit {done.returncode}: {done.stderr.strip()[:300]}"]


def check_relayout(run, case, cases, live):
    peers = [cases[name] for name in links(case) if name in cases and name != case["case"]]
    if not is_good(case) or not peers:
        return None
    target = run.work / case["case"]
    peer = peers[len(case["case"]) % len(peers)]
    if state_by_bucket(case):
        lines = relayout_by_bucket(run, case, peer["folder"] / peer["path"], target)
        remove(target)
        return [f"from {peer['case']}: {line}" for line in lines]
    reference = case["folder"] / case["path"]
    kind = json.loads(run("inspect", "--json", reference).stdout)["format"]
    if kind not in run.writable:
        return read_only(run, kind, target, "convert", peer["folder"] / peer["path"], target, "--like", reference)
    _, lines = convert_and_compare(run, case, peer["folder"] / peer["path"], target, "--like", reference)
    lines = lines or rank_files(run, case, target)
    remove(target)
    return [f"from {peer['case']}: {line}" for line in lines]


def main():
    checks = {name[6:]: function for name, function in globals().items() if name.startswith("check_")}
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--check", required=True, choices=sorted(checks))
    parser.add_argument("--root", action="append", required=True)
    parser.add_argument("--family", action="append")
    parser.add_argument("--case", default="*")
    parser.add_argument("--live", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--pin", action="store_true")
    draw.add_options(parser, 0.1)
    args = parser.parse_args()
    if args.pin:
        args.share = 1  # what is not tried would not be pinned
    cases = load_cases(args.root, set(args.family or FAMILIES))
    work = tempfile.mkdtemp(prefix="reshard-test-")
    pins = Pins(args.pin)
    run = Runner(args.bin, work, pins, draw.Draw(args))
    python = live_judges.python_with("torch,safetensors") if args.live and args.check == "roundtrip" else None
    live = RealLibrary(python) if python else None
    number = failed = 0
    try:
        for name, case in cases.items():
            if not pathlib.PurePath(name).match(args.case):
                continue
            unseen = ""
            try:
                lines = checks[args.check](run, case, cases, live)
            except Unseen as reason:
                lines, unseen = [], f" # SKIP {reason}"
            except Exception as problem:
                lines = [f"{type(problem).__name__}: {problem}"]
            if lines is None:
                continue
            number += 1
            failed += bool(lines)
            print(f"{'not ok' if lines else 'ok'} {number} - {args.check} {name}{unseen}", flush=True)
            for line in "\n".join(map(str, lines[:6])).splitlines():
                print(f"# {line}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if args.check == "roundtrip" and args.live and not live:
        number += 1
        failed += live_judges.is_required()
        print(f"{'not ok' if live_judges.is_required() else 'ok'} {number} - the real "
              f"libraries{'' if live_judges.is_required() else ' # SKIP'} need torch,safetensors: make live-env")
    if number == 0:
        print(f"not ok 1 - no case of {args.family or sorted(FAMILIES)} below {args.root}\n1..1")
        return 1
    if args.pin:
        pins.keep()
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
