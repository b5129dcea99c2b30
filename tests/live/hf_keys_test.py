#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tiny models of tests/models have the keys and shapes that Transformers writes for their config.json. Prints TAP, a test a model;
needs a Python with transformers and torch.

usage: hf_keys_test.py FOLDER-OF-families.py [--share N] [--seed N]
"""
import argparse
import json
import pathlib
import sys
import tempfile

sys.path[:0] = [sys.argv[1], str(pathlib.Path(__file__).resolve().parent.parent)]
import draw  # noqa: E402
import families  # noqa: E402


def written(c):
    """Keys and shapes of what save_pretrained writes. Layers of multi-token prediction are no part of its models."""
    import transformers
    from safetensors import safe_open
    settings = {key: value for key, value in c.items() if key not in ("model_type", "copies", "num_nextn_predict_layers")}
    config = transformers.AutoConfig.for_model(c["model_type"], **settings, pad_token_id=None, bos_token_id=1, eos_token_id=2)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = json.loads(pathlib.Path(folder, "config.json").read_text())
        with safe_open(f"{folder}/model.safetensors", "pt") as file:
            return {key: file.get_slice(key).get_shape() for key in file.keys()}, saved


def check(c):
    shapes, saved = written(c)
    expected = families.hf_shapes({**c, "num_nextn_predict_layers": 0, "copies": False})
    assert set(shapes) == set(expected), (f"generator lacks {sorted(set(shapes) - set(expected))[:3]}, has "
                                          f"{sorted(set(expected) - set(shapes))[:3]}")
    for key, shape in expected.items():
        assert list(shapes[key]) == shape, f"{key}: {shape}, Transformers writes {list(shapes[key])}"
    # The numbers that mapping texts take from config.json stand there under these names.
    for name in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "n_head"):
        assert name not in c or saved.get(name) == c[name], f"config.json: {name} is {saved.get(name)}, expected {c[name]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("families")
    draw.add_options(parser, 0.3)
    # ChatGLM's code comes with its checkpoints, not with Transformers.
    names = draw.Draw(parser.parse_args()).of(name for name, case in families.CASES.items() if case[0]["model_type"] != "chatglm")
    print(f"1..{len(names)}")
    for number, name in enumerate(names, 1):
        try:
            check(families.CASES[name][0])
            print(f"ok {number} - {name}")
        except Exception as error:  # whatever Transformers finds wrong with a configuration is a failure of the case
            print(f"not ok {number} - {name}\n# {type(error).__name__}: {str(error)[:500]}".replace("\n# ", "\n# "))


main()
