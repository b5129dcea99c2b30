#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of the fuzz targets from tests/fixtures: small files that together reach all that the fixtures reach.

usage: make_corpus.py BUILD [TARGET]...
BUILD has been configured with -Dfuzz=true. Of all candidates libFuzzer picks those that add coverage. Files in corpus/TARGET whose names
start with "regression-" or "found-" stay.
"""
import argparse
import hashlib
import json
import pathlib
import subprocess
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "tests" / "fixtures"
TARGETS = ["convert", "dcp_metadata", "json", "mapping", "pickle", "safetensors", "torch_save", "zip"]
VECTORS = HERE.parent.parent / "shared" / "fixtures" / "aoa"
MAPPINGS = [
    "l.*.q -> s, stack=0",
    "a -> n.*.w, unstack=1\nn.{0:3}.w -> k, stack=2",
    "n = 2 * 3 - 4 / 2\nm -> p[0:n], axis=n - 3 # comment\n`m` -> `x/y`",
    "l.$LAYER_ID.q -> r.$LAYER_ID, when=\"l.$LAYER_ID.k\"\nn = 1\na -> b2, unless=\"n >= 2\"",
    "l.0.q, l.0.k, l.0.v -> qkv, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0",
    "l.0.q^T, l.0.k^T, l.0.v^T -> qkv, fused_qkv_old, num_heads=4, num_key_value_heads=2",
    "m -> m, fused_ffn",
    "l.$LAYER_ID.e.*.w -> x.$LAYER_ID, axis=0",
    "a -> c, permute=\"[2, 0, 1]\"\nc -> d, src_dtype=\"float32\", dst_dtype=\"bfloat16\"",
    '{"aoa_config": {"aoa_statements": ["a -> b\\u00e9", "m -> _"], "aoa_config_reverse": true}}',
    "aoa_statements:\n  - \"a -> c\"\n  - |\n    m -> d\n    b -> e\n  - 'l.0.q^T -> z, axis=0'\naoa_config_reverse: no\n",
    "s = [\n 'a -> '\n 'b', # c\n \"\"\"m -> n\"\"\"]",
    "_ -> new\nb -> _\nl.1.q -> a",
]
FORMATS = 4  # that can be written
SEEDS_MAX = 48
SEED_BYTES_MAX, PACKED_BYTES_MAX, CORPUS_BYTES_MAX, PACKED_CORPUS_BYTES_MAX = 6000, 26000, 100000, 350000


def cases():
    for manifest in sorted(FIXTURES.glob("*/*/manifest.json")):
        yield manifest.parent.name, manifest.parent / json.loads(manifest.read_text())["path"]


def files_of(path):
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink()) if path.is_dir() else []


def pickles_of(path):
    try:
        with zipfile.ZipFile(path) as archive:
            return [archive.read(name) for name in archive.namelist() if name.endswith("data.pkl")]
    except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError, ValueError, zipfile.zlib.error):
        return []


def pack(path, flags):
    packed = bytearray([flags])
    for file in files_of(path):
        name = (file.name if path.is_file() else str(file.relative_to(path))).encode()
        content = file.read_bytes()
        if len(name) > 255 or len(content) > PACKED_BYTES_MAX:
            return None
        repair = file.suffix in (".pt", ".bin", ".distcp", ".pth")
        packed += bytes([repair, len(name)]) + name + len(content).to_bytes(3, "little") + content
    return bytes(packed)


def header_of(content):
    size = int.from_bytes(content[:8], "little")
    return content[8 : 8 + size] if size <= len(content) else b""


def mappings():
    """The vectors of Paddle's engine where they are present, and what is only in our language."""
    for name in ("engine", "errors", "macros", "numeric"):
        path = VECTORS / f"{name}.json"
        for vector in json.loads(path.read_text())["vectors"] if path.is_file() else []:
            flags = (name == "macros") | bool(vector.get("reverse")) << 1
            source = json.dumps({"tensors": vector["source"]}, separators=(",", ":"))
            yield vector["id"], bytes([flags]) + "\n".join(vector["statements"]).encode() + b"\0" + source.encode()
    for number, text in enumerate(MAPPINGS):
        yield f"own-{number}", b"\0" + text.encode()
        yield f"own-{number}-reverse", b"\2" + text.encode()
        yield f"own-{number}-target", b"\4" + text.encode()


def candidates(target):
    """(name, bytes) of everything that may become a seed."""
    if target == "mapping":
        yield from mappings()
        return
    for number, (case, path) in enumerate(cases()):
        if target == "convert":
            flags = number % FORMATS | (number // 4 % 16) << 3
            yield case, pack(path, flags)
            continue
        for index, file in enumerate(files_of(path)):
            name, content = case + (f"-{index}" if index else ""), file.read_bytes()
            is_header = file.suffix == ".safetensors"
            if target == "dcp_metadata" and file.name == ".metadata":
                yield name, content
            elif target == "json" and (is_header or file.suffix == ".json"):
                yield name, header_of(content) if is_header else content
            elif target == "pickle":
                yield from ((f"{name}-{i}", data) for i, data in enumerate(pickles_of(file)))
                if file.name == ".metadata":
                    yield name, content
            elif target == "safetensors" and (is_header or file.name.endswith("index.json")):
                yield name, (b"\2" if is_header else b"\0") + content
                if is_header and b"DCP_SHARDING_INFO" in content[:4000]:
                    try:
                        text = json.loads(header_of(content))["__metadata__"]["DCP_SHARDING_INFO"]
                        yield name + "-info", b"\1" + text.encode()
                    except (ValueError, KeyError, TypeError, AttributeError):
                        pass
            elif target in ("torch_save", "zip") and file.suffix in (".pt", ".pth", ".bin"):
                yield name, content
                if target == "torch_save":
                    yield from ((f"{name}-pickle-{i}", data) for i, data in enumerate(pickles_of(file)))


def features_by_file(control):
    """{path: features} out of the file in which libFuzzer notes what it did while merging."""
    lines = control.read_text().splitlines()
    second, count = int(lines[1]), int(lines[0])
    paths, features = lines[2 : 2 + count], {}
    assert second <= count
    for line in lines[2 + count :]:
        words = line.split()
        if words[0] == "FT":
            features[paths[int(words[1])]] = set(map(int, words[2:]))
    return features


def choose(program, target, work):
    """(name, bytes) of seeds: again and again the candidate that adds most for its size."""
    given, kept, control = work / "given", work / "kept", work / "control"
    given.mkdir()
    kept.mkdir()
    largest = PACKED_BYTES_MAX if target == "convert" else SEED_BYTES_MAX
    found = {}
    for name, content in candidates(target):
        if content and len(content) <= largest:
            found.setdefault(hashlib.sha1(content).hexdigest(), (name, content))
    for digest, (_, content) in found.items():
        (given / digest).write_bytes(content)
    subprocess.run([program, "-merge=1", f"-max_len={largest}", "-timeout=20", f"-merge_control_file={control}", kept, given], check=True,
                   cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # libFuzzer notes for each file only what the files before it, which are smaller, did not have.
    left = {pathlib.Path(path).name: new for path, new in features_by_file(control).items()}
    best = sorted((digest for digest in left if left[digest]), key=lambda digest: (-len(left[digest]) / len(found[digest][1]) ** 0.3, digest))
    return [found[digest] for digest in best[:SEEDS_MAX]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("targets", nargs="*", default=TARGETS)
    args = parser.parse_args()
    for target in args.targets:
        corpus = HERE / "corpus" / target
        corpus.mkdir(parents=True, exist_ok=True)
        for old in corpus.iterdir():
            if not old.name.startswith(("regression-", "found-")):
                old.unlink()
        total = count = 0
        limit = PACKED_CORPUS_BYTES_MAX if target == "convert" else CORPUS_BYTES_MAX
        with tempfile.TemporaryDirectory() as work:
            for name, content in choose((args.build / "fuzz" / f"fuzz_{target}").resolve(), target, pathlib.Path(work)):
                if total + len(content) > limit:
                    continue
                (corpus / name).write_bytes(content)
                total, count = total + len(content), count + 1
        print(f"{target}: {count} seeds, {total} bytes")


main()
