#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/users/ work as they stand: each is typed in a folder that has what the page speaks of. Prints TAP, a test a command.

usage: users_test.py --bin RESHARD --fixtures DIR
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

PAGES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "users"
LAYERS, HIDDEN, INNER, WORDS = 2, 16, 32, 256  # words as many as padding for two ranks makes them


# What the commands of a page must have made, all of it: an export without its lm_head ends with status 0, too.
PROOFS = {
    "huggingface": ["reshard verify hf-model --against hf-model/config.json", "grep bfloat16 hf-model/config.json"],
    "fsdp": ["reshard diff hf-llama hf-model --items ignore", "cmp hf-llama/config.json hf-model/config.json",
             "reshard diff step-1000 model.pt --items ignore",
             "reshard diff step-1000 for-8-ranks --items ignore", "reshard verify rescued"],
    "megatron": ["reshard diff hf-llama mcore --items ignore", "reshard verify hf-again --against hf-again/config.json",
                 "reshard diff megatron-run dist --items ignore"],
    "keepers": [f"reshard diff archive {made} --items ignore" for made in ("hf", "scratch")],
}


def llama():
    """{key: shape} of a small Llama."""
    shapes = {"model.embed_tokens.weight": [WORDS, HIDDEN], "model.norm.weight": [HIDDEN], "lm_head.weight": [WORDS, HIDDEN]}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{n}_proj.weight": [HIDDEN, HIDDEN] for n in "qkvo"}
        shapes |= {prefix + "mlp.gate_proj.weight": [INNER, HIDDEN], prefix + "mlp.up_proj.weight": [INNER, HIDDEN],
                   prefix + "mlp.down_proj.weight": [HIDDEN, INNER], prefix + "input_layernorm.weight": [HIDDEN],
                   prefix + "post_attention_layernorm.weight": [HIDDEN]}
    return shapes


def safetensors(path, shapes):
    header, data = {}, b""
    for number, (key, shape) in enumerate(shapes.items()):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *((i * 7 + number) % 61 / 8 - 3 for i in range(count)))
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def run(work, binary, *words):
    subprocess.run([binary, *map(str, words)], cwd=work, check=True, capture_output=True, text=True)


def prepare(page, work, binary, fixtures):
    """What the page's commands find. A training checkpoint has its weights below `model.` and optimizer state beside them."""
    hf = work / "hf-llama"
    hf.mkdir()
    safetensors(hf / "model.safetensors", llama())
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS, "hidden_size": HIDDEN,
              "intermediate_size": INNER, "vocab_size": WORDS, "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
              "hidden_act": "silu", "tie_word_embeddings": False, "dtype": "float32"}
    (hf / "config.json").write_text(json.dumps(config))
    trained = {"model." + key: shape for key, shape in llama().items()} | {"optimizer.state.model.norm.weight.exp_avg": [HIDDEN]}
    safetensors(work / "trained.safetensors", trained)
    run(work, binary, "convert", "trained.safetensors", "step-1000", "--to", "torch-dcp", "--layout", "ranks=4")
    (work / "trained.safetensors").unlink()
    if page == "huggingface":
        shutil.copy(fixtures / "torch-file/odd-torch-file-hostile-os-system/ckpt.pt", work / "model.pt")
    if page == "fsdp":
        shutil.copytree(work / "step-1000", work / "crashed")
        last = sorted((work / "crashed").glob("*.distcp"))[-1]
        last.write_bytes(last.read_bytes()[:-200])
    if page == "megatron":
        run(work, binary, "convert", "hf-llama", "megatron-run", "--to", "megatron", "--layout", "tp=2,pp=2")
    if page == "keepers":
        (work / "runs" / "a").mkdir(parents=True)
        shutil.copytree(work / "step-1000", work / "runs" / "a" / "iter_0000001")
        (work / "step-1000").rename(work / "runs" / "a" / "iter_0000002")


def commands(page):
    text = (PAGES / f"{page}.md").read_text()
    return [line for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines() if line.strip()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    args = parser.parse_args()
    binary, number, failed = args.bin.resolve(), 0, 0
    for page in sorted(p.stem for p in PAGES.glob("*.md")):
        with tempfile.TemporaryDirectory(prefix="reshard-users-") as folder:
            work = pathlib.Path(folder)
            prepare(page, work, str(binary), args.fixtures.resolve())
            jobs = len(re.findall(r"^## \d\.", (PAGES / f"{page}.md").read_text(), re.M))
            number += 1
            failed += jobs != 5
            print(f"{'ok' if jobs == 5 else 'not ok'} {number} - {page} has five jobs", flush=True)
            for command in commands(page) + PROOFS[page]:
                number += 1
                environment = {**os.environ, "PATH": f"{binary.parent}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
                done = subprocess.run(["bash", "-c", command], cwd=work, env=environment, capture_output=True, text=True, timeout=120)
                usage = "usage:" in done.stderr or "unknown" in done.stderr or "--help" in done.stderr
                is_good = done.returncode == 0 and not usage
                failed += not is_good
                print(f"{'ok' if is_good else 'not ok'} {number} - {page}: {command}", flush=True)
                if not is_good:
                    print("# " + "\n# ".join((done.stdout + done.stderr)[-800:].splitlines()))
    print(f"1..{number}")
    return failed > 0


sys.exit(main())
