#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mapping texts of model families against what their rules say in words (families.py). Prints TAP, a test a case and a target.

usage: models_test.py --bin PATH --models DIR [--case GLOB]

Every element of a model is another number. `map eval` must give exactly the tensors, shapes and numbers of the rules; the same text read
backwards, and the text that `map invert` derives, must give the first model again; `map check` must find the mapping bijective. Where a
mapping leaves tensors behind, all of this holds for the rest. Checkpoints of random bytes are converted with the text, and back with its
inverse, and must come out byte by byte. The lines that say how a text recognises a model must fit the models of its family, and no others;
then converting to a format of Megatron and back needs no text at all.
"""
import argparse
import fnmatch
import itertools
import json
import pathlib
import pickle
import random
import re
import struct
import subprocess
import sys
import tempfile
import types
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import families  # noqa: E402


class Trial:
    def __init__(self, binary, work, c):
        self.binary, self.work, self.c, self.count = binary, work, c, 0
        self.numbers = ["--set", "make_vocab_size_divisible_by=4"]
        self.config = self.put({key: value for key, value in c.items() if key != "copies"})

    def put(self, value):
        self.count += 1
        path = self.work / f"{self.count}.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def describe(self, model):
        return self.put({"tensors": {key: {"dtype": "F32", "shape": families.shape_of(tensor), "data": families.flat(tensor)} for key,
                                     tensor in model.items()}})

    def map(self, verb, text, source, *more):
        done = subprocess.run([self.binary, "map", verb, text, "--source", source, "--config", self.config, "--json", *more],
                              capture_output=True, timeout=300)
        assert done.returncode == 0, f"map {verb} {text} {' '.join(map(str, more))}: exit {done.returncode}: {done.stderr.decode()[:1500]}"
        assert not done.stderr, f"map {verb} {text} {' '.join(map(str, more))}: {done.stderr.decode()[:1500]}"
        return json.loads(done.stdout)

    def convert(self, source, target, *more):
        done = subprocess.run([self.binary, "convert", source, target, "--quiet", *more], capture_output=True, timeout=300)
        assert done.returncode == 0, f"convert {' '.join(map(str, more))}: exit {done.returncode}: {done.stderr.decode()[:1500]}"

    def evaluate(self, text, source, *more):
        found = self.map("eval", text, source, *more)["tensors"]
        return {key: families.fill(t["shape"], iter(t["data"])) for key, t in found.items()}


def must_be(what, found, expected):
    assert set(found) == set(expected), (f"{what}: lacks {sorted(set(expected) - set(found))[:3]}, has "
                                         f"{sorted(set(found) - set(expected))[:3]}")
    for key, tensor in expected.items():
        assert families.shape_of(found[key]) == families.shape_of(tensor), (f"{what}: {key}: shape {families.shape_of(found[key])}, "
                                                                            f"expected {families.shape_of(tensor)}")
        assert found[key] == tensor, f"{what}: {key}: {families.flat(found[key])[:8]}, expected {families.flat(tensor)[:8]}"


# ---- bytes ----


def write_checkpoint(path, model):
    """Safetensors of a model whose elements are two bytes each."""
    header, parts, at = {}, [], 0
    for key, tensor in model.items():
        data = b"".join(families.flat(tensor))
        header[key] = {"dtype": "BF16", "shape": families.shape_of(tensor), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def read_checkpoint(path):
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header, payload = json.loads(data[8:8 + size]), data[8 + size:]
    header.pop("__metadata__", None)
    assert all(t["dtype"] == "BF16" for t in header.values())
    return {key: families.fill(t["shape"], (payload[at:at + 2] for at in range(*t["data_offsets"], 2))) for key, t in header.items()}


def converted(trial, text, source):
    """What `convert` makes of a Hugging Face folder, which finds the numbers that the text names in config.json itself."""
    folder, target = trial.work / f"{trial.count}.hf", trial.work / f"{trial.count}.safetensors"
    trial.count += 1
    folder.mkdir()
    write_checkpoint(folder / "model.safetensors", source)
    (folder / "config.json").write_bytes(trial.config.read_bytes())
    trial.convert(folder, target, "--to", "safetensors", "--map", text)
    return read_checkpoint(target)


def random_elements(seed):
    draw = random.Random(seed)
    return (draw.randbytes(2) for _ in itertools.count())


def try_bytes(trial, text, source, expected, whole):
    must_be("converted", converted(trial, text, source), expected)
    if all(map(whole, source)):
        inverse = trial.put("\n".join(trial.map("invert", text, trial.put({"tensors": {
            key: {"dtype": "BF16", "shape": families.shape_of(tensor)} for key, tensor in source.items()}}))["statements"]))
        must_be("converted back", converted(trial, inverse, expected), source)


# ---- numbers ----


def try_text(trial, text, source, expected, whole):
    """source: the model to start with; whole(key): the tensor is not left behind."""
    start, rest = trial.describe(source), {key: t for key, t in source.items() if whole(key)}
    must_be("forwards", trial.evaluate(text, start), expected)
    end = trial.describe(expected)
    must_be("backwards", trial.evaluate(text, end, "--reverse"), rest)
    must_be("backwards, knowing the target", trial.evaluate(text, end, "--reverse", "--target", trial.describe(rest)), rest)
    if len(rest) < len(source):
        return
    checked = trial.map("check", text, start)
    assert checked["bijective"] is True, f"check: {json.dumps(checked)[:500]}"
    inverse = trial.put("\n".join(trial.map("invert", text, start)["statements"]))
    must_be("by the inverse text", trial.evaluate(inverse, end), source)


def tests_of(name, models):
    """Name of the test, text, name of the model to start with, and the function that makes the model to end with."""
    c, megatron, paddle, unfused = families.CASES[name]
    yield "megatron", models / f"{megatron}.hf-megatron.map", None, lambda hf: families.megatron_model(c, hf)
    local = lambda hf: families.megatron_model(c, hf, te=False)
    yield "megatron's local modules", models / "megatron.te-local.map", families.megatron_model, local
    if paddle:
        yield "paddle", models / f"{paddle}.hf-paddle.map", None, lambda hf: families.paddle_model(c, hf)
    if unfused:
        yield "paddle, not fused", models / f"{unfused}.hf-paddle-unfused.map", None, lambda hf: families.paddle_model(c, hf, fused=False)


def forwards_only(binary, models):
    """Texts of one direction: name of the test, and the test."""
    def of(text, c, source, expected):
        with tempfile.TemporaryDirectory() as work:
            trial = Trial(binary, pathlib.Path(work), c)
            must_be("forwards", trial.evaluate(text, trial.describe(source)), expected)
    for name in ("llama", "qwen2", "gpt2"):
        c = families.CASES[name][0]
        megatron = families.megatron_model(c, families.hf_model(c, itertools.count()))
        for age, names in families.OLD_NAMES.items():
            yield f"{name}: megatron {age}", lambda a=(models / "megatron.old-te.map", c, families.megatron_old_model(megatron, names),
                                                       megatron): of(*a)
    for name in ("gpt2", "gpt2-old"):
        c = families.CASES[name][0]
        hf = families.hf_model(c, itertools.count())
        yield f"{name}: without its prefix", lambda a=(models / "gpt2.bare-hf.map", c, families.without_prefix(hf), hf): of(*a)


def run(binary, name, text, start, make):
    c = families.CASES[name][0]
    to_megatron = text.name.endswith("-megatron.map")

    def whole(key):
        return not families.is_left_behind(c, key) and not (to_megatron and "mtp_" in key)

    with tempfile.TemporaryDirectory() as work:
        trial = Trial(binary, pathlib.Path(work), c)
        for attempt, elements in ((try_text, itertools.count()), (try_bytes, random_elements(name))):
            hf = families.hf_model(c, elements)
            attempt(trial, text, start(c, hf) if start else hf, make(hf), whole)


# ---- from format to format ----


def through(binary, name, to):
    """Hugging Face's folder to a format of Megatron and back; names change by themselves."""
    c = families.CASES[name][0]
    hf = families.hf_model(c, random_elements(name))
    with tempfile.TemporaryDirectory() as work:
        trial = Trial(binary, pathlib.Path(work), c)
        folder, there, back = (trial.work / part for part in ("hf", "there", "back"))
        folder.mkdir()
        write_checkpoint(folder / "model.safetensors", hf)
        (folder / "config.json").write_bytes(trial.config.read_bytes())
        # Tensors in Megatron's spelling do not tell ChatGLM and GLM from Llama with biases: the family has to be named.
        trial.convert(folder, there, "--to", to)
        trial.convert(there, back, "--to", "hf", "--rules", c["model_type"] if name in ("chatglm", "glm") else "auto", "--config",
                      trial.config)
        must_be("back", read_folder(back), {key: t for key, t in hf.items() if not families.is_left_behind(c, key) and "mtp_" not in key})


def write_folder(folder, hf, config):
    folder.mkdir()
    write_checkpoint(folder / "model.safetensors", hf)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def by_settings(binary, name):
    """config.json becomes the arguments of a run, and these become config.json again; the padding of the vocabulary comes and goes."""
    c = families.CASES[name][0]
    hf = families.hf_model(c, random_elements(name))
    config = {key: value for key, value in c.items() if key != "copies"}
    with tempfile.TemporaryDirectory() as work:
        trial = Trial(binary, pathlib.Path(work), c)
        folder, there, back = write_folder(trial.work / "hf", hf, config), trial.work / "there", trial.work / "back"
        trial.convert(folder, there, "--to", "megatron", "--layout", "tp=1", *trial.numbers)
        trial.convert(there, back, "--to", "hf", "--rules", c["model_type"])
        must_be("back", read_folder(back), {key: t for key, t in hf.items() if not families.is_left_behind(c, key) and "mtp_" not in key})
        found = json.loads((back / "config.json").read_text())
        assert found.pop("torch_dtype") == "bfloat16", found
        if c["model_type"] == "ernie4_5_moe":
            config.pop("num_nextn_predict_layers", None)   # its predictor has no counterpart in Megatron
        wrong = {key: (value, found.get(key)) for key, value in config.items() if found.get(key) != value and (value or key in found)}
        assert not wrong, f"config.json: {wrong} in {found}"


def family_named_wrong(binary, name, family, others):
    """A family that is not the model's is refused, whether --rules or config.json names it, with those that it could be."""
    c = families.CASES[name][0]
    hf = families.hf_model(c, random_elements(name))
    config = {key: value for key, value in c.items() if key != "copies"}
    with tempfile.TemporaryDirectory() as work:
        trial = Trial(binary, pathlib.Path(work), c)
        folder, there = write_folder(trial.work / "hf", hf, config), trial.work / "there"
        trial.convert(folder, there, "--to", "megatron")
        wrong = write_folder(trial.work / "wrong", hf, {**config, "model_type": family})
        # Llama's tensors and ERNIE's are alike: only arguments tell them apart.
        for words in ((there, "--to", "hf", "--rules", family), (wrong, "--to", "torch_dist"))[:1 if family == "ernie4_5" else 2]:
            done = subprocess.run([binary, "convert", words[0], trial.work / "out", *words[1:]], capture_output=True, text=True,
                                  timeout=300)
            assert done.returncode == 2, f"{words}: exit {done.returncode}: {done.stderr}"
            said = done.stderr.splitlines()[0]
            assert family in said and all(other in said for other in others), said
            assert not (trial.work / "out").exists()


def given_config(binary):
    """A config.json that the caller or the reference gives goes as it is; one that the source carries stays."""
    c = families.CASES["llama"][0]
    hf = families.hf_model(c, random_elements("llama"))
    config = {key: value for key, value in c.items() if key != "copies"}
    with tempfile.TemporaryDirectory() as work:
        trial = Trial(binary, pathlib.Path(work), c)
        folder = write_folder(trial.work / "hf", hf, {**config, "ours": [1]})
        trial.convert(folder, trial.work / "there", "--to", "megatron")
        trial.convert(folder, trial.work / "dist", "--to", "torch_dist")
        text = (folder / "config.json").read_bytes()
        for number, words in enumerate(((trial.work / "there", "--to", "hf", "--rules", "auto", "--config", folder / "config.json"),
                                        (trial.work / "there", "--like", folder), (trial.work / "dist", "--to", "hf", "--rules", "llama"))):
            trial.convert(words[0], trial.work / f"out{number}", *words[1:])
            found = (trial.work / f"out{number}" / "config.json").read_bytes()
            assert found == text, f"{words}: {found}"
        trial.convert(trial.work / "there", trial.work / "none", "--to", "hf", "--rules", "auto", "--items", "drop", "--set",
                      "num_attention_heads=6", "--set", "num_key_value_heads=2")
        assert not (trial.work / "none" / "config.json").exists()
        trial.convert(trial.work / "there", trial.work / "set", "--to", "hf", "--rules", "auto", "--set", "bos_token_id=5")
        assert json.loads((trial.work / "set" / "config.json").read_text())["bos_token_id"] == 5


def read_folder(folder):
    return {key: t for file in sorted(folder.glob("*.safetensors")) for key, t in read_checkpoint(file).items()}


def write_torch_file(path, root, storages):
    """A torch.save file without torch: modules of its names stand in for it while the pickle is written. A tensor is a Tensor below."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.BFloat16Storage = type("BFloat16Storage", (), {"__module__": "torch"})

    def rebuild():
        pass
    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", torch.BFloat16Storage, value.key, "cpu", value.count) if isinstance(value, Storage) else None

        def reducer_override(self, value):
            if not isinstance(value, Tensor):
                return NotImplemented
            strides = [1] * len(value.shape)
            for i in reversed(range(len(strides) - 1)):
                strides[i] = strides[i + 1] * value.shape[i + 1]
            return rebuild, (value.storage, 0, tuple(value.shape), tuple(strides), False, {})

    kept = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        with zipfile.ZipFile(path, "w") as archive:
            with archive.open("archive/data.pkl", "w") as file:
                Pickler(file, 2).dump(root)
            for storage in storages:
                archive.writestr(f"archive/data/{storage.key}", storage.data)
            archive.writestr("archive/version", "3\n")
    finally:
        for name, module in kept.items():
            sys.modules.pop(name)
            if module:
                sys.modules[name] = module


class Storage:
    def __init__(self, key, data):
        self.key, self.data, self.count = str(key), data, len(data) // 2


class Tensor:
    def __init__(self, shape, storage):
        self.shape, self.storage = shape, storage


def by_arguments(binary, name, **arguments):
    """A legacy Megatron file, whose arguments have the numbers that the text names; there is no config.json."""
    c = families.CASES[name][0]
    hf = families.hf_model(c, random_elements(name))
    rest = {key: t for key, t in hf.items() if not families.is_left_behind(c, key)}
    with tempfile.TemporaryDirectory() as work:
        trial = Trial(binary, pathlib.Path(work), c)
        rank = trial.work / "run" / "iter_0000010" / "mp_rank_00"
        rank.mkdir(parents=True)
        (trial.work / "run" / "latest_checkpointed_iteration.txt").write_text("10")
        model, storages = {}, []
        for key, tensor in families.megatron_model(c, hf).items():
            storages.append(Storage(len(storages), b"".join(families.flat(tensor))))
            model[key] = Tensor(families.shape_of(tensor), storages[-1])
        args = argparse.Namespace(num_layers=c["num_hidden_layers"], num_attention_heads=c["num_attention_heads"],
                                  hidden_size=c["hidden_size"], swiglu=True, tensor_model_parallel_size=1, pipeline_model_parallel_size=1,
                                  **arguments)
        write_torch_file(rank / "model_optim_rng.pt", {"args": args, "checkpoint_version": 3.0, "iteration": 10, "model": model}, storages)
        trial.convert(trial.work / "run", trial.work / "back", "--to", "hf", "--rules", "auto", "--items", "drop")
        must_be("back", read_folder(trial.work / "back"), rest)


# ---- recognising ----


def relations(models):
    """Of every text of a family: its name, the families, where it leads, and the lines of patterns for the way there and back."""
    for path in sorted(models.glob("*.map")):
        lines = [line[2:].split() for line in path.read_text().splitlines() if line.startswith("#:")]
        if any(line[0] == "family" for line in lines):
            yield (path.name, [line[1] for line in lines if line[0] == "family"], next(line[1] for line in lines if line[0] == "to"),
                   {word: [line[1:] for line in lines if line[0] == word] for word in ("keys", "back")})


def fits(lines, keys):
    def has(pattern):
        wanted = re.compile(re.escape(pattern).replace(r"\$LAYER_ID", r"\d+").replace(r"\*", r"\d+"))
        return any(wanted.fullmatch(key) for key in keys)
    return any(all(not has(word[1:]) if word.startswith("!") else has(word) for word in line) for line in lines)


def several_families(binary):
    """Tensors of Llama without a configuration are ERNIE's just as well: nobody picks one of the two unasked."""
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        c = families.CASES["llama"][0]
        write_checkpoint(work / "model.safetensors", families.hf_model(c, random_elements("llama")))
        numbers = [f"--set={name}={c[name]}" for name in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers")]
        command = [binary, "convert", work / "model.safetensors", work / "out", "--to", "megatron", *numbers]
        done = subprocess.run([*command, "--rules", "auto"], capture_output=True, timeout=300, text=True)
        assert done.returncode == 2 and "the model may be one of several families: llama, ernie4_5\n" in done.stderr, done.stderr
        assert "hint: --rules FAMILY says which" in done.stderr and not (work / "out").exists(), done.stderr


def recognise(models):
    for name, (c, megatron, paddle, unfused) in families.CASES.items():
        hf = {key: [] for key in families.hf_shapes(c)}
        filled = families.hf_model(c, itertools.count())
        spaces = {"megatron": (megatron, "megatron", families.megatron_model(c, filled)),
                  "paddle": (paddle, "paddle", paddle and families.paddle_model(c, filled)),
                  "paddle-unfused": (unfused, "paddle-unfused", unfused and families.paddle_model(c, filled, fused=False))}
        for to, (text, space, there) in spaces.items():
            if not text:
                continue
            expected = [f"{text}.hf-{space}.map"]
            found = [(file, kinds) for file, kinds, target, words in relations(models) if target == to and fits(words["keys"], hf)]
            assert [file for file, _ in found] == expected, f"{name} to {to}: {found}, expected {expected}"
            assert c["model_type"] in found[0][1], f"{name}: {expected[0]} does not name the family {c['model_type']}"
            # Tensors in Megatron's spelling do not tell ChatGLM and GLM from Llama with biases: the family has to be named.
            back = ["llama.hf-megatron.map"] if to == "megatron" and name in ("chatglm", "glm") else expected
            found = [file for file, _, target, words in relations(models) if target == to and fits(words["back"], there)]
            assert found == back, f"{name} from {to}: {found}, expected {back}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--case", default="*")
    options = parser.parse_args()
    tests = [(name, *test) for name in families.CASES if fnmatch.fnmatch(name, options.case) for test in tests_of(name, options.models)]
    tests = [(f"{name}: {what}", lambda more=more: run(options.bin, *more)) for name, what,
             *more in ((t[0], t[1], t[0], *t[2:]) for t in tests)]
    tests += [test for test in forwards_only(options.bin, options.models) if fnmatch.fnmatch(test[0].split(":")[0], options.case)]
    for name in families.CASES:
        if fnmatch.fnmatch(name, options.case):
            tests += [(f"{name}: through {to} and back", lambda a=(options.bin, name, to): through(*a))
                      for to in ("megatron", "torch_dist", "fsdp_dtensor")]
    tests += [("heads and groups from a run's arguments",
               lambda: by_arguments(options.bin, "llama", num_query_groups=2, group_query_attention=True)),
              ("groups that the run did not use",
               lambda: by_arguments(options.bin, "llama-heads-alike", num_query_groups=1, group_query_attention=False))]
    tests += [(f"{name}: the configuration comes back", lambda a=(options.bin, name): by_settings(*a))
              for name in families.CASES if fnmatch.fnmatch(name, options.case)]
    tests += [(f"{name} is not taken for {family}", lambda a=(options.bin, name, family, others): family_named_wrong(*a))
              for name, family, others in (("llama", "qwen3", ["llama"]), ("llama", "ernie4_5", ["llama"]), ("qwen2", "llama", ["qwen2"]),
                                           ("qwen3", "mistral", ["qwen3"]), ("qwen3-moe", "qwen2_moe", ["qwen3_moe"]),
                                           ("deepseek-v3", "deepseek_v2", ["deepseek_v3"]), ("glm4", "glm", ["glm4"]))]
    tests.append(("a configuration that is given stays", lambda: given_config(options.bin)))
    tests.append(("one of several families is not taken unasked", lambda: several_families(options.bin)))
    tests.append(("texts recognise the models of their families, and no others", lambda: recognise(options.models)))
    print(f"1..{len(tests)}")
    failed = 0
    for number, (what, test) in enumerate(tests, 1):
        try:
            test()
            print(f"ok {number} - {what}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"not ok {number} - {what}")
            print("".join(f"# {line}\n" for line in str(error).splitlines()), end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
