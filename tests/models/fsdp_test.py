#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the relation to Megatron-FSDP's names does with the optimizer's masters. Prints TAP.

usage: fsdp_test.py --bin PATH

Small models with optimizer state, as safetensors under the names of either side; elements are random bytes, and every result is read
tensor by tensor.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

LAYERS, HIDDEN, FFN = 2, 4, 6
SIZES = {"F32": 4, "BF16": 2, "U8": 1}
STATES = "optimizer.state.module.module.module."


def tensor(name, dtype, *shape):
    count = SIZES[dtype]
    for extent in shape:
        count *= extent
    return dtype, list(shape), random.Random(name).randbytes(count)


def write(path, model):
    header, data = {}, b""
    for key, (dtype, shape, content) in model.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], content[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for k,
            t in header.items()}


def parameters():
    """Of a gated model of local modules: (name, shape)."""
    yield "embedding.word_embeddings.weight", (8, HIDDEN)
    for layer in range(LAYERS):
        yield f"decoder.layers.{layer}.input_layernorm.weight", (HIDDEN,)
        yield f"decoder.layers.{layer}.self_attention.linear_qkv.weight", (3 * HIDDEN, HIDDEN)
        yield f"decoder.layers.{layer}.self_attention.linear_proj.weight", (HIDDEN, HIDDEN)
        yield f"decoder.layers.{layer}.pre_mlp_layernorm.weight", (HIDDEN,)
        for half in "wv":
            yield f"decoder.layers.{layer}.mlp.linear_fc1.weight_{half}", (FFN, HIDDEN)
        yield f"decoder.layers.{layer}.mlp.linear_fc2.weight", (HIDDEN, FFN)


def fsdp(states, dtype="F32"):
    model = {"model.module." + name: tensor(name, dtype, *shape) for name, shape in parameters()}
    for name, shape in parameters():
        for state in states:
            model[f"{STATES}{name}.{state}"] = tensor(name + state, "F32", *shape)
    return model


class Trial:
    def __init__(self, binary):
        self.binary = binary

    def convert(self, model, to, *more):
        """Converts the model, and what comes out to safetensors under its names."""
        with tempfile.TemporaryDirectory() as work:
            source, there, back = (pathlib.Path(work) / name for name in ("a.safetensors", "there", "b.safetensors"))
            write(source, model)
            for command in ([source, there, "--to", to, *more], [there, back, "--to", "safetensors"]):
                done = subprocess.run([self.binary, "convert", "--quiet", *command], capture_output=True, text=True, timeout=100)
                assert done.returncode == 0, f"convert to {command[3]}: exit {done.returncode}: {done.stderr[:800]}"
            return read(back)


def stacked(model, prefix, name, suffix=""):
    """A parameter of all layers along a leading axis, the halves of gated matrices together."""
    parts = [model[f"{prefix}decoder.layers.{layer}.{name}{suffix}"][2] for layer in range(LAYERS)]
    return b"".join(parts)


def must_be(what, found, expected):
    assert found == expected, f"{what}: {str(found)[:200]}, expected {str(expected)[:200]}"


def weights_are_masters(trial):
    """With other state, but no master of its own, a weight is one."""
    model = fsdp(["exp_avg", "exp_avg_sq"])
    out = trial.convert(model, "torch_dist")
    for name, theirs in (("self_attention.linear_proj.weight", "self_attention.linear_proj.weight"),
                         ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight")):
        expected = stacked(model, "model.module.", name)
        must_be(f"weight {name}", out[f"decoder.layers.{theirs}"][2], expected)
        must_be(f"master {name}", out[f"optimizer.state.param.decoder.layers.{theirs}"][2], expected)
        must_be(f"state {name}", out[f"optimizer.state.exp_avg.decoder.layers.{theirs}"][2], stacked(model, STATES, name, ".exp_avg"))
    halves = b"".join(model[f"model.module.decoder.layers.{layer}.mlp.linear_fc1.weight_{half}"][2] for layer in range(LAYERS)
                      for half in "wv")
    must_be("master of halves", out["optimizer.state.param.decoder.layers.mlp.linear_fc1.weight"],
            ("F32", [LAYERS, 2 * FFN, HIDDEN], halves))


def masters_are_kept(trial):
    model = fsdp(["exp_avg", "param"], "BF16")
    out = trial.convert(model, "torch_dist")
    name = "self_attention.linear_proj.weight"
    must_be("master", out[f"optimizer.state.param.decoder.layers.{name}"][2], stacked(model, STATES, name, ".param"))
    must_be("weight", out[f"decoder.layers.{name}"][:2], ("BF16", [LAYERS, HIDDEN, HIDDEN]))


def no_state_no_master(trial):
    out = trial.convert(fsdp([]), "torch_dist")
    must_be("states", [key for key in out if key.startswith("optimizer.")], [])


def random_states_stay_behind(trial):
    model = fsdp([])
    model["rng_state.(0, 0).0.torch_rng_state"] = tensor("rng", "U8", 16)
    out = trial.convert(model, "torch_dist")
    must_be("RNG states", [key for key in out if key.startswith("rng_state")], [])


def masters_become_weights(trial):
    model = fsdp(["exp_avg", "param"], "BF16")
    there = trial.convert(model, "torch_dist")
    for more, has_state in (([], True), (["--set", "masters=1"], False)):
        out = trial.convert(there, "fsdp_dtensor", *more)
        weight = next(key for key in out if key.endswith("layers.1.mlp.linear_fc1.weight_v") and key.startswith("model.module."))
        must_be("states of masters", any(key.endswith(".param") for key in out), has_state)
        of_model, of_state = "model.module.decoder.layers.1.mlp.linear_fc1.weight_v", "decoder.layers.1.mlp.linear_fc1.weight_v.param"
        kept = model[of_model] if has_state else model[STATES + of_state]
        must_be("weight", out[weight], kept)


def names_of_torch_dcp(trial):
    """Those of the model's modules below model."""
    model = {"model." + name.replace("weight_w", "weight"): tensor(name, "BF16", *shape) for name,
             shape in parameters() if not name.endswith("_v")}
    there = trial.convert(model, "torch_dist")
    must_be("names", sorted(key for key in there if "layers" not in key), ["embedding.word_embeddings.weight"])
    name = "self_attention.linear_qkv.weight"
    must_be("weight", there[f"decoder.layers.{name}"][2], stacked(model, "model.", name))
    must_be("back", {key.split(".")[0] for key in trial.convert(there, "torch_dcp")}, {"model"})


TESTS = (weights_are_masters, masters_are_kept, no_state_no_master, random_states_stay_behind, masters_become_weights, names_of_torch_dcp)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    trial = Trial(parser.parse_args().bin)
    print(f"1..{len(TESTS)}")
    failed = 0
    for number, test in enumerate(TESTS, 1):
        try:
            test(trial)
            print(f"ok {number} - {test.__name__.replace('_', ' ')}", flush=True)
        except (AssertionError, KeyError, StopIteration, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"not ok {number} - {test.__name__.replace('_', ' ')}\n# {error!r}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
