#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What --json prints holds to the schemas of docs/schemas: every verb, with the options that change it. Prints TAP, a test a schema.

Schemas name every member (additionalProperties is false), so that one that is added, lost or renamed is seen here.

usage: schemas_test.py --bin PATH --fixtures DIR
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

SCHEMAS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schemas"
try:
    import jsonschema
except ImportError:
    print("1..0 # SKIP no Python module jsonschema (Debian: python3-jsonschema)")
    sys.exit(0)

# What the cases below need.
PREPARED = """
convert $F/torch-dcp/dcp-fsdp2-4 dcp --to torch-dcp
convert $F/torch-dcp/dcp-fsdp2-4 other.pt --to torch --dtype *weight=bf16
convert $F/torch-dcp/dcp-fsdp2-4 shards --to hf --max-shard-size 800B
convert shards pieces --to hf --layout ranks=3
"""
# By schema, command lines; `2>` says that the object is looked for on standard error.
CASES = {
    "ls": ["ls $F/torch-dcp/dcp-fsdp2-4", "ls --chunks --items dcp", "ls --items other.pt", "ls --tree shards", "ls lost",
           "ls --chunks $F/torch-dcp/dcp-zstd",
           "ls --items $F/megatron/megatron-optim-dense-full-tp2dp2", "ls --chunks --items $F/torch-file/torch-file-tied-legacy",
           "ls --chunks --items $F/torch-file/torch-file-ambiguous-keys"],
    "inspect": ["inspect dcp", "inspect lost", "inspect pieces", "inspect other.pt"],
    "hash": ["hash dcp", "hash --digest xxh3 shards", "hash --digest crc32c $F/torch-dcp/dcp-dots"],
    "cat": ["cat dcp model.proj.weight", "cat dcp model.proj.weight --slice 0:2,1", "cat numbers.safetensors bool",
            "cat numbers.safetensors nan", "cat numbers.safetensors complex",
            "cat dcp lr_scheduler.gamma"],
    "plan": ["plan dcp --to hf", "plan --ranks dcp --to torch-dcp --layout ranks=3", "plan dcp --to safetensors --dtype f16"],
    "convert": ["convert dcp out1 --to hf", "convert shards out2.pt", "convert pieces out3 --to torch-dcp --layout ranks=2 --verify",
                "convert dcp out4 --to hf --part 0/1"],
    "commit": ["commit out4"],
    "verify": ["verify dcp", "verify --deep lost", "verify --against shards pieces", "verify --against shards lost",
               "verify --fail-on nan,inf,zero numbers.safetensors", "verify --latest-good .",
               "verify --expect-optimizer shards"],
    "diff": ["diff dcp dcp", "diff --stat dcp other.pt", "diff --max 1 dcp other.pt", "diff --items ignore shards dcp",
             "diff --stat numbers.safetensors shards"],
    "salvage": ["salvage lost rest", "salvage dcp rest2"],
    "stats": ["stats dcp", "stats numbers.safetensors", "stats other.pt model.*"],
    "draw": ["draw dcp", "draw dcp --to torch-dcp --layout ranks=2", "draw lost", "draw numbers.safetensors"],
    "draw-diff": ["draw --diff dcp other.pt", "draw --diff shards pieces"],
    "formats": ["formats", "formats torch_dist"],
    "limits": ["formats --limits"],
    "help": ["help", "help convert"],
    "completion": ["completion bash", "completion fish",
                   "completion words -- convert dcp out --layout tp=2,", "completion words -- cat dcp model"],
    "map-parse": ["map parse m.aoa"],
    "map-expand": ["map expand m.aoa --source s.json --target t.json"],
    "map-check": ["map check m.aoa --source s.json --target t.json"],
    "map-invert": ["map invert turn.aoa --source s.json"],
    "map-eval": ["map eval m.aoa --source s.json --target t.json"],
    "error": ["2> ls nowhere", "2> convert shards out5 --to nothing", "2> hash lost", "2> map parse broken.aoa",
              "2> cat dcp model.proj.weigh", "2> ls bad.safetensors"],
    "progress": ["2> convert dcp out6 --to hf --progress json --overwrite"],
}


def numbers(path):
    """Values that JSON has no numbers for."""
    parts = {"bool": ("BOOL", [2], b"\0\1"), "complex": ("C64", [1], bytes(8)), "nan": ("F32", [3],
    b"\0\0\xc0\x7f" + b"\0\0\x80\x7f" + bytes(4)), "none": ("F32", [0, 3], b"")}
    header, data = {}, b""
    for key, (dtype, shape, content) in parts.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def prepare(run, work, fixtures):
    for line in PREPARED.split("\n"):
        if line:
            done = run(line)
            assert done.returncode == 0, f"{line}: {done.stderr}"
    numbers(work / "numbers.safetensors")
    (work / "bad.safetensors").write_bytes(b"\5\0\0\0\0\0\0\0{{}}}")
    lost = work / "lost"
    assert run("convert shards lost --to hf --max-shard-size 800B").returncode == 0
    sorted(lost.glob("model-*"))[1].unlink()
    (work / "m.aoa").write_text("a -> b, dtype='bfloat16'\nc^T -> d\ne, f -> g, axis=1\n")
    (work / "turn.aoa").write_text("a -> b\nc^T -> d\n")
    (work / "broken.aoa").write_text("a -> \n")
    tensor = {"dtype": "F32", "shape": [2, 2], "data": [1, 2, 3, 4]}
    (work / "s.json").write_text(json.dumps({"tensors": {k: tensor for k in "acef"}}))
    (work / "t.json").write_text(json.dumps({"tensors": {"b": {"dtype": "BF16", "shape": [2, 2]}, "d": {"dtype": "F32", "shape": [2, 2]},
    "g": {"dtype": "F32", "shape": [2, 4]}}}))


def check(run, name, lines):
    schema = json.loads((SCHEMAS / f"reshard-{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for line in lines:
        on_error = line.startswith("2> ")
        done = run(f"--json {line}" if " -- " in line else f"{line.removeprefix('2> ')} --json")
        text = done.stderr if on_error else done.stdout
        found = [json.loads(one) for one in text.splitlines()]
        assert found and (name == "progress" or len(found) == 1), f"{line}: exit {done.returncode}: {done.stdout[:200]}{done.stderr[:300]}"
        assert list(found[0])[0] == "schema", f"{line}: 'schema' is not the first member"
        assert on_error or done.returncode in (0, 1), f"{line}: exit {done.returncode}: {done.stderr[:300]}"
        for one in found:
            for error in validator.iter_errors(one):
                raise AssertionError(f"{line}: {error.json_path}: {error.message[:300]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        paths = {}

        def word_of(word):
            if not word.startswith("$F/"):
                return word
            case = arguments.fixtures.resolve() / word[3:]
            if word not in paths:
                paths[word] = str(case / json.loads((case / "manifest.json").read_text())["path"])
            return paths[word]

        def run(line):
            return subprocess.run([arguments.bin.resolve(), *map(word_of, line.split())],
            cwd=work, capture_output=True, text=True, timeout=120)

        prepare(run, work, arguments.fixtures)
        kept = {path.name for path in SCHEMAS.glob("*.json")}
        print(f"1..{len(CASES) + 1}")
        for number, (name, lines) in enumerate(CASES.items(), 1):
            try:
                check(run, name, lines)
                print(f"ok {number} - {name}")
            except (AssertionError, OSError, ValueError) as error:
                failed += 1
                print(f"not ok {number} - {name}\n# " + str(error).replace("\n", "\n# "))
        tried = {f"reshard-{name}.json" for name in CASES}
        failed += kept != tried
        print("not " * (kept != tried) + f"ok {len(CASES) + 1} - every schema is tried\n# {sorted(kept ^ tried)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
