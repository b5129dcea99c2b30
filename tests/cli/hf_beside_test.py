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
        ("state of a training run", training),
        ("JSON as Python writes it", python_json)])


if __name__ == "__main__":
    sys.exit(main())
