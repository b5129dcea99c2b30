#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What lies beside the weights of a Hugging Face folder, and under which names weights are looked for. Prints TAP.

usage: hf_beside_test.py --bin PATH
"""
import argparse
import json
import math
import sys

import small_models


def folder(shell, name, weights="model.safetensors", **texts):
    """A folder with weights, and files; a `/` in a name makes a folder."""
    made = shell.work / name
    made.mkdir()
    small_models.write(made / weights, {"a.weight": [4, 2], "b.weight": [3]})
    for file, text in texts.items():
        (made / file).parent.mkdir(exist_ok=True)
        (made / file).write_text(text)
    return made


def converted(shell, source, to="hf", *words):
    target = shell.work / f"{source.name}.out"
    report = json.loads(shell("convert", source, target, "--to", to, "--json", "--no-sync", *words))
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}, report


def stems(shell):
    """PEFT and diffusers look for names of their own; a name that is said wins, as does a reference's."""
    for stem in ("adapter_model", "diffusion_pytorch_model"):
        source = folder(shell, stem, f"{stem}.safetensors")
        assert set(converted(shell, source)[0]) == {f"{stem}.safetensors"}, stem
        small = shell.work / f"{stem}.small"
        shell("convert", source, small, "--to", "hf", "--max-shard-size", "10", "--no-sync")
        names = {path.name for path in small.iterdir()}
        assert names == {f"{stem}-0000{i}-of-00002.safetensors" for i in (1, 2)} | {f"{stem}.safetensors.index.json"}, names
        shell("convert", small, shell.work / f"{stem}.whole", "--to", "hf", "--no-sync")
        assert [path.name for path in (shell.work / f"{stem}.whole").iterdir()] == [f"{stem}.safetensors"]
        shell("convert", source, shell.work / f"{stem}.said", "--to", "hf", "-o", "stem=part", "--no-sync")
        assert [path.name for path in (shell.work / f"{stem}.said").iterdir()] == ["part.safetensors"]
    other = folder(shell, "other", "weights.safetensors")
    assert set(converted(shell, other)[0]) == {"model.safetensors"}


def folders(shell):
    """Chat templates by name and modules come along; of other folders it is said that they do not."""
    source = folder(shell, "model", **{
        "chat_template.jinja": "d", "additional_chat_templates/rag.jinja": "r", "additional_chat_templates/tool_use.jinja": "t",
        "1_Pooling/config.json": "{}", "2_Dense/model.safetensors": "weights of a module", "onnx/model.onnx": "x", ".cache/file": "c"})
    files, report = converted(shell, source)
    assert set(files) == {"model.safetensors", "chat_template.jinja", "additional_chat_templates/rag.jinja",
                          "additional_chat_templates/tool_use.jinja", "1_Pooling/config.json", "2_Dense/model.safetensors"}, set(files)
    assert files["additional_chat_templates/rag.jinja"] == b"r" and files["2_Dense/model.safetensors"] == b"weights of a module"
    assert report["dropped"] == ["onnx: a folder beside the weights, which is not copied"], report["dropped"]
    shell("convert", source, f"{source.name}.out", "--to", "hf", "--overwrite", "--no-sync")  # its own folders are no strangers
    assert b"onnx" in shell("convert", folder(shell, "next"), source, "--to", "hf", "--overwrite", exit_status=2)
    (source / "additional_chat_templates" / "away.jinja").symlink_to("/etc/hostname")
    listed = json.loads(shell("ls", "--items", "--json", source))["items"]
    assert "additional_chat_templates/away.jinja" not in {item["key"] for item in listed}


def config_types(shell):
    """The type that config.json names follows the weights, wherever it stands; all else stays as it was typed."""
    text = '{ "torch_dtype": "float32",\n  "text_config": {"dtype": "bfloat16"},\n  "q": {"bnb_dtype": "float32"}, "x": NaN }'
    source = folder(shell, "typed", **{"config.json": text})
    shell("convert", source, "f32", "--to", "hf", "--dtype", "f32")
    assert (shell.work / "f32" / "config.json").read_text() == text.replace("bfloat16", "float32")
    files, report = converted(shell, source, "hf", "--dtype", "f16")
    halves = text.replace('"torch_dtype": "float32"', '"torch_dtype": "float16"').replace("bfloat16", "float16")
    assert files["config.json"].decode() == halves
    assert "config.json: the type that it names is float16, as the weights are" in report["changed"], report["changed"]
    for words in ((), ("--dtype", "a.weight=bf16"), ("--dtype", "b.weight=f32")):
        shell("convert", source, "same", "--to", "hf", "--overwrite", *words)
        assert (shell.work / "same" / "config.json").read_text() == text, words
    broken = folder(shell, "broken", **{"config.json": '{"dtype": "float32"'})
    assert converted(shell, broken, "hf", "--dtype", "f16")[0]["config.json"] == b'{"dtype": "float32"'


def config_given(shell):
    """One that is given goes beside the weights, in place of the source's; where nothing reads it, that is said."""
    (shell.work / "given.json").write_text('{"a": 1}')
    for source in (folder(shell, "without"), folder(shell, "with", **{"config.json": "{}"})):
        files, report = converted(shell, source, "hf", "--config", "given.json")
        assert files["config.json"] == b'{"a": 1}' and "config.json: as it was given" in report["changed"], (files.keys(), report)
    _, report = converted(shell, folder(shell, "away"), "torch-dcp", "--config", "given.json")
    assert report["warnings"] == ["--config is not read: no mapping runs, and torch-dcp has no config.json"], report["warnings"]
    (shell.work / "given.json").write_text("rows: 3")
    assert b"config.json: JSON" in shell("convert", "without", "x", "--to", "hf", "--config", "given.json", exit_status=4)


def config_dropped(shell):
    """`--items drop` leaves files out, and says which."""
    source = folder(shell, "model", **{"config.json": "{}", "1_Pooling/config.json": "{}"})
    files, report = converted(shell, source, "hf", "--items", "drop")
    said = "a file beside the weights, which --items drop leaves out"
    assert set(files) == {"model.safetensors"} and set(report["dropped"]) == {f"config.json: {said}", f"1_Pooling/config.json: {said}"}


def names_of_megatron(shell):
    """A folder for Transformers with Megatron's names is not what most want: it is said, unless somebody asked for names."""
    keys = ["embedding.word_embeddings.weight", "decoder.final_layernorm.weight"]
    small_models.write(shell.work / "m.safetensors", dict(zip(keys, ([4, 2], [2]))))
    shell("convert", "m.safetensors", "run", "--to", "torch_dist", "--rules", "none")
    _, report = converted(shell, shell.work / "run")
    assert [w for w in report["warnings"] if "names stay those of torch_dist" in w and "--rules auto makes them" in w], report
    shell("convert", "run", "quiet", "--to", "hf", "--rules", "none")
    for words in (("--to", "hf", "--rules", "none"), ("--to", "torch-dcp"), ("--to", "hf", "-m", f"{keys[0]} -> x")):
        assert not json.loads(shell("plan", "run", "--json", *words))["warnings"], words


def names_behind_prefix(shell):
    """Families are recognised before a prefix comes off: that is said, and not each statement that finds nothing."""
    layer = {f"self_attn.{n}_proj": [4, 4] for n in "qkvo"} | {"mlp.gate_proj": [8, 4], "mlp.up_proj": [8, 4], "mlp.down_proj": [4, 8],
                                                               "input_layernorm": [4], "post_attention_layernorm": [4]}
    shapes = {"embed_tokens": [8, 4], "norm": [4]} | {f"layers.0.{name}": shape for name, shape in layer.items()}
    small_models.write(shell.work / "trained.safetensors", {f"net.model.{name}.weight": shape for name, shape in shapes.items()})
    words = ("trained.safetensors", "out", "--to", "torch_dist", "--strip-prefix", "net.")
    heads = ("--set", "num_attention_heads=2", "--set", "num_key_value_heads=2")
    for rules in ("llama", "auto"):
        said = shell("convert", *words, "--rules", rules, *heads, exit_status=2)
        assert b"to hf with it first" in said and said.count(b"\n") <= 4, said
    report = json.loads(shell("plan", *words, "--json"))
    assert any("--strip-prefix takes 'net.' off: convert to hf with it first" in warning for warning in report["warnings"]), report
    shell("convert", "trained.safetensors", "first", "--to", "hf", "--strip-prefix", "net.")
    shell("convert", "first", "out", "--to", "torch_dist", "--rules", "llama", *heads)


def pickled(shell):
    """What PEFT, diffusers and Transformers called their files before safetensors, in one or in several: the names stay."""
    for stem in ("adapter_model", "diffusion_pytorch_model", "pytorch_model"):
        source = folder(shell, f"{stem}.new", **{"adapter_config.json": "{}"})
        old = shell.work / f"{stem}.old"
        old.mkdir()
        (old / "adapter_config.json").write_text("{}")
        files = [f"{stem}-0000{i}-of-00002.bin" for i in (1, 2)]
        for name, file in zip("ab", files):
            shell("convert", source, old / file, "--to", "torch", "--include", f"{name}.*", "--no-sync")
        (old / f"{stem}.bin.index.json").write_text(json.dumps({"weight_map": dict(zip(("a.weight", "b.weight"), files))}))
        made, _ = converted(shell, old)
        kept = stem if stem != "pytorch_model" else "model"
        assert set(made) == {f"{kept}.safetensors", "adapter_config.json"}, made.keys()
        shell("diff", source, old)
        for file in (*files, f"{stem}.bin.index.json"):
            (old / file).unlink()
        shell("convert", source, old / f"{stem}.bin", "--to", "torch", "--no-sync")
        shell("diff", source, old)
        shell("convert", source, old, "--to", "hf", "--overwrite", "--no-sync")  # it is a checkpoint's folder


def training(shell):
    """The state of a run is not read with the weights, which is said."""
    source = folder(shell, "checkpoint-500", **{
        "optimizer.pt": "o", "scheduler.pt": "s", "rng_state_0.pth": "r", "trainer_state.json": "{}",
        "global_step500/mp_rank_00_model_states.pt": "m", "latest": "global_step500"})
    told = json.loads(shell("inspect", "--json", source))["warnings"]
    assert any("global_step500" in text and "--format 'deepspeed'" in text for text in told), told
    assert any("and 2 more files are the state of a training run" in text for text in told), told
    for verb in (["ls", source], ["hash", source], ["diff", source, source]):
        assert "reshard: warning: 'global_step500'" in shell.any(*verb).stderr, verb
        assert not shell.any(*verb, "--quiet").stderr, verb
    assert not json.loads(shell("inspect", "--json", folder(shell, "plain", **{"tokenizer.json": "{}"})))["warnings"]


def python_json(shell):
    """Python writes NaN and Infinity into JSON, and reads them: in zarr's attributes and in config.json."""
    attributes = '{"loss": NaN, "best": -Infinity, "limits": [0.0, Infinity]}'
    array = json.dumps({"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "compressor": None, "fill_value": 0, "order": "C",
                        "filters": None})
    for name in ("group", "again"):
        if name == "group":
            source = shell.work / name
            (source / "w").mkdir(parents=True)
            for file, text in ((".zgroup", '{"zarr_format": 2}'), (".zattrs", attributes), ("w/.zarray", array), ("w/0", "abcd")):
                (source / file).write_text(text)
        else:
            shell("convert", "group", name, "--to", "zarr", "--no-sync")
            found = json.loads((shell.work / name / ".zattrs").read_text())
            assert math.isnan(found["loss"]) and found["best"] == -math.inf and found["limits"] == [0.0, math.inf], found
        shown = json.loads(shell("cat", name, ".zattrs"))
        assert shown == {"loss": "nan", "best": "-inf", "limits": [0.0, "inf"]}, shown
    config = folder(shell, "config", **{"config.json": '{"model_type": "unknown", "time_step_limit": [0.0, Infinity]}'})
    shell("verify", config, "--against", config / "config.json")
    header = b'{"__metadata__":{"a":NaN}}'
    (shell.work / "strict.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    shell("ls", "strict.safetensors", exit_status=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    return small_models.run(parser.parse_args().bin, [
        ("names that libraries look for", stems), ("folders beside the weights", folders), ("files of torch.save", pickled),
        ("the type that config.json names", config_types), ("a config.json that is given", config_given),
        ("files that --items drop leaves out", config_dropped), ("names of Megatron", names_of_megatron),
        ("names behind a prefix", names_behind_prefix),
        ("state of a training run", training),
        ("JSON as Python writes it", python_json)])


if __name__ == "__main__":
    sys.exit(main())
