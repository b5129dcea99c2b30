#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mixture-of-experts models of Megatron under random layouts: into a layout and back gives the bytes of before. Prints TAP.

usage: moe_layouts_test.py --bin PATH [--count N] [--seed N]

Each round writes a legacy checkpoint of one rank, with experts as modules, as one matrix or as Transformer Engine's numbered weights, with
shared experts or without, in all layers or some, and with the state of an optimizer, distributed or not. It is converted into a random
layout (TP, PP, VPP, EP, ETP), from there into the other spelling of experts, and back; then every tensor of both rank files must be what it
was.
"""
import argparse
import collections
import json
import pathlib
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import types
import zipfile

ALIGNMENT = 64  # of a parameter in a buffer of the distributed optimizer
SIZES = {"BFloat16Storage": 2, "FloatStorage": 4}


def stand_in_torch():
    """What pickles of torch name; only names matter."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    class Dtype:
        def __init__(self, name):
            self.name, self.__module__ = name, "torch"

        def __reduce__(self):
            return self.name

    for name in ("bfloat16", "float32"):
        setattr(torch, name, Dtype(name))
    for name in SIZES:
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def rebuild(*_):
        raise NotImplementedError

    rebuild.__module__, rebuild.__name__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild
    torch._utils = utils
    sys.modules.update({"torch": torch, "torch._utils": utils})
    return torch


TORCH = stand_in_torch()


class Tensor:
    def __init__(self, kind, shape, data):
        self.kind, self.shape, self.data = kind, tuple(shape), data
        self.count = len(data) // SIZES[kind]

    def __reduce__(self):
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.insert(0, step)
            step *= size
        return TORCH._utils._rebuild_tensor_v2, (Storage(self), 0, self.shape, tuple(strides), False, collections.OrderedDict())


class Storage:
    def __init__(self, tensor):
        self.tensor = tensor


def write(path, top, root):
    """A file as torch.save makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = []

    class Pickler(pickle._Pickler):
        def persistent_id(self, value):
            if not isinstance(value, Storage):
                return None
            records.append(value.tensor.data)
            return "storage", getattr(TORCH, value.tensor.kind), str(len(records) - 1), "cpu", value.tensor.count

    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        with tempfile.TemporaryFile() as file:
            Pickler(file, 2).dump(root)
            file.seek(0)
            archive.writestr(top + "/data.pkl", file.read())
        archive.writestr(top + "/byteorder", "little")
        for number, data in enumerate(records):
            archive.writestr(f"{top}/data/{number}", data)
        archive.writestr(top + "/version", "3\n")


def random_bytes(chance, count):
    return bytes(chance.getrandbits(8) for _ in range(count))


def weight(chance, *shape):
    count = 1
    for size in shape:
        count *= size
    return Tensor("BFloat16Storage", shape, random_bytes(chance, 2 * count))


def random_model(chance):
    tp = chance.choice([1, 2, 2, 3])
    stages, virtual = chance.choice([(1, 1), (2, 1), (2, 2), (3, 1)])
    layers = stages * virtual * chance.choice([1, 2])
    experts = chance.choice([2, 4, 6])
    frequency = [chance.choice([0, 1]) for _ in range(layers)] if chance.random() < 0.5 else 1
    if frequency != 1 and 1 not in frequency:
        frequency[chance.randrange(layers)] = 1
    ep = chance.choice([n for n in (1, 2, 3) if experts % n == 0])
    model = dict(layers=layers, experts=experts, frequency=frequency, hidden=2 * chance.randint(1, 4), kv=chance.randint(1, 3), groups=tp,
                 heads=tp * chance.choice([1, 2]), ffn=tp * chance.randint(1, 3), expert_ffn=tp * chance.randint(1, 3),
                 gated=chance.random() < 0.7, vocabulary=6 * chance.randint(2, 4), shared=tp * chance.randint(1, 2) if chance.random() < 0.5
                 else 0, spelling=chance.choice(["modules", "matrix", "numbered"]), router_bias=chance.random() < 0.5,
                 optimizer=chance.choice(["none", "distributed", "plain"]))
    return model, dict(tp=tp, pp=stages, vp=virtual, ep=ep, etp=chance.choice([1, tp]))


def has_engine(model):
    """Whether layers are Transformer Engine's: where nothing else is said, those of numbered experts are."""
    return model.get("engine", model["spelling"] == "numbered")


def has_experts(model, layer):
    return model["frequency"] == 1 or model["frequency"][layer] == 1


def expert_tensors(model, chance, at):
    """The experts of a layer, in the order in which their modules register them."""
    hidden, ffn, times, count = model["hidden"], model["expert_ffn"], 2 if model["gated"] else 1, model["experts"]
    if model["spelling"] == "matrix":
        return [(at + "weight1", weight(chance, hidden, count * times * ffn)), (at + "weight2", weight(chance, count * ffn, hidden))]
    one, two = [weight(chance, times * ffn, hidden) for _ in range(count)], [weight(chance, hidden, ffn) for _ in range(count)]
    if model["spelling"] == "numbered":
        return [(f"{at}linear_fc1.weight{i}", one[i]) for i in range(count)] + [(f"{at}linear_fc2.weight{i}", two[i]) for i in range(count)]
    return [pair for i in range(count)
            for pair in ((f"{at}local_experts.{i}.linear_fc1.weight", one[i]), (f"{at}local_experts.{i}.linear_fc2.weight", two[i]))]


def make_parameters(model, chance):
    """The model in order of registration: name -> tensor. Buffers, which have no state, are float32."""
    hidden, kv, times, is_local = model["hidden"], model["kv"], 2 if model["gated"] else 1, not has_engine(model)
    made = [("embedding.word_embeddings.weight", weight(chance, model["vocabulary"], hidden))]
    for layer in range(model["layers"]):
        at = f"decoder.layers.{layer}."
        if is_local:
            made.append((at + "input_layernorm.weight", weight(chance, hidden)))
        made.append((at + "self_attention.linear_proj.weight", weight(chance, hidden, model["heads"] * kv)))
        if not is_local:
            made.append((at + "self_attention.linear_qkv.layer_norm_weight", weight(chance, hidden)))
        made.append((at + "self_attention.linear_qkv.weight", weight(chance, (model["heads"] + 2 * model["groups"]) * kv, hidden)))
        if is_local or has_experts(model, layer):
            made.append((at + "pre_mlp_layernorm.weight", weight(chance, hidden)))
        if not has_experts(model, layer):
            if not is_local:
                made.append((at + "mlp.linear_fc1.layer_norm_weight", weight(chance, hidden)))
            made += [(at + "mlp.linear_fc1.weight", weight(chance, times * model["ffn"], hidden)),
                     (at + "mlp.linear_fc2.weight", weight(chance, hidden, model["ffn"]))]
            continue
        made.append((at + "mlp.router.weight", weight(chance, model["experts"], hidden)))
        if model["router_bias"]:
            made.append((at + "mlp.router.expert_bias",
                         Tensor("FloatStorage", [model["experts"]], random_bytes(chance, 4 * model["experts"]))))
        made += expert_tensors(model, chance, at + "mlp.experts.")
        if model["shared"]:
            made += [(at + "mlp.shared_experts.linear_fc1.weight", weight(chance, times * model["shared"], hidden)),
                     (at + "mlp.shared_experts.linear_fc2.weight", weight(chance, hidden, model["shared"]))]
    made += [("decoder.final_layernorm.weight", weight(chance, hidden)),
             ("output_layer.weight", weight(chance, model["vocabulary"], hidden))]
    return made


def arguments(model):
    return argparse.Namespace(
        num_layers=model["layers"], hidden_size=model["hidden"], num_attention_heads=model["heads"], num_query_groups=model["groups"],
        group_query_attention=True, kv_channels=model["kv"], swiglu=model["gated"], add_bias_linear=False,
        untie_embeddings_and_output_weights=True, num_experts=model["experts"], moe_layer_freq=model["frequency"],
        moe_grouped_gemm=model["spelling"] != "modules", moe_use_legacy_grouped_gemm=model["spelling"] == "matrix",
        transformer_impl="transformer_engine" if has_engine(model) else "local", tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1, virtual_pipeline_model_parallel_size=None, expert_model_parallel_size=1,
        expert_tensor_parallel_size=1, world_size=1, data_parallel_size=1, vocab_size=model["vocabulary"],
        padded_vocab_size=model["vocabulary"], make_vocab_size_divisible_by=1, bf16=True,
        use_distributed_optimizer=model["optimizer"] == "distributed", accumulate_allreduce_grads_in_fp32=True)


def state_of(chance, tensor):
    return Tensor("FloatStorage", tensor.shape, random_bytes(chance, 4 * tensor.count))


def groups(params):
    return [dict(wd_mult=decay, lr_mult=1.0, is_expert_parallel=False, is_decoupled_lr=False, step=2,
                 **({"params": params[i]} if params else {}))
            for i, decay in enumerate((1.0, 0.0))]


def plain_optimizer(chance, parameters):
    dealt = [[p for p in parameters if (len(p.shape) > 1) == has_decay] for has_decay in (True, False)]
    numbers = [list(range(len(dealt[0]))), list(range(len(dealt[0]), len(parameters)))]
    state = {n: {"exp_avg": state_of(chance, p), "exp_avg_sq": state_of(chance, p)} for n, p in enumerate(dealt[0] + dealt[1])}
    return {"optimizer": {"state": state, "param_groups": groups(numbers)},
            "fp32_from_fp16_params": [[state_of(chance, p) for p in group] for group in dealt]}


def buffers(chance, parameters):
    """distrib_optim.pt: parameters in reverse order, zero between them."""
    vectors = {name: b"" for name in ("param", "exp_avg", "exp_avg_sq")}
    for parameter in reversed(parameters):
        for name, data in vectors.items():
            gap = -(len(data) // 4) % ALIGNMENT
            vectors[name] = data + bytes(4 * gap) + random_bytes(chance, 4 * parameter.count)
    count = len(vectors["param"]) // 4
    states = {name: Tensor("FloatStorage", [count], data) for name, data in vectors.items()}
    return {"buckets_coalesced": True, 0: {(TORCH.bfloat16, TORCH.float32): dict(states, numel_unpadded=count)}}


def write_checkpoint(root, model, chance, said=None, change=lambda content: None, made=None):
    """change: what is done to the content of the file that has the optimizer's state. made: the parameters, if they are others."""
    made = made or make_parameters(model, chance)
    parameters = [tensor for _, tensor in made if tensor.kind == "BFloat16Storage"]
    content = {"args": said or arguments(model), "checkpoint_version": 3.0, "iteration": 10, "model": collections.OrderedDict(made)}
    folder = root / "iter_0000010" / "mp_rank_00"
    if model["optimizer"] == "plain":
        content["optimizer"] = plain_optimizer(chance, parameters)
        change(content)
    elif model["optimizer"] == "distributed":
        content["optimizer"] = {"optimizer": {"param_groups": groups(None)}}
        vectors = buffers(chance, parameters)
        change(vectors)
        write(folder / "distrib_optim.pt", "distrib_optim", vectors)
    write(folder / "model_optim_rng.pt", "model_optim_rng", content)
    (root / "latest_checkpointed_iteration.txt").write_text("10")


class Shell:
    def __init__(self, binary):
        self.binary = binary

    def __call__(self, *words):
        done = subprocess.run([self.binary, *map(str, words)], capture_output=True, timeout=120)
        assert done.returncode == 0, f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.decode()[:600]}"
        return done.stdout.decode()

    def digests(self, root):
        return {f"{file.relative_to(root)}:{t['key']}": (t["dtype"], t["shape"], t["hash"]) for file in sorted(root.rglob("*.pt"))
                for t in json.loads(self("hash", "--json", file))["tensors"]}


def check_round(run, work, seed):
    chance = random.Random(seed)
    model, layout = random_model(chance)
    words = ",".join(f"{name}={size}" for name, size in layout.items())
    first, other, there, respelled, back = (work / name for name in ("first", "other", "there", "respelled", "back"))
    write_checkpoint(first, model, chance)
    # A run of the same model with another spelling of experts, to be taken as the reference.
    write_checkpoint(other, dict(model, spelling={"modules": "matrix", "matrix": "numbered", "numbered": "modules"}[model["spelling"]]),
                     chance)
    run("convert", first, there, "--to", "megatron", "--layout", words, "--quiet")
    run("convert", there, respelled, "--like", other, "--layout", words, "--quiet")
    run("convert", respelled, back, "--like", first, "--quiet")
    wanted, found = run.digests(first), run.digests(back)
    wrong = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
    assert not wrong, f"{model} {layout}: other content: {wrong[:4]}, {len(wrong)} in all"


def check_one_matrix(run, work):
    """Experts that make no matrix: one is missing, or is of another type, be it on another rank."""
    chance = random.Random(1)
    model = random_model(chance)[0] | {"spelling": "matrix", "optimizer": "none", "frequency": 1, "experts": 4}
    write_checkpoint(work / "whole", model, chance)
    alike = "linear_fc{}.weight': experts of one matrix must be alike"
    for words, text in ((["--exclude", "*.local_experts.1.linear_fc1*"], "experts.weight1' is to hold 4 experts, found 3"),
                        (["--exclude", "*.local_experts.3.linear_fc2*"], "experts.weight2' is to hold 4 experts, found 3"),
                        (["--dtype", "*.local_experts.3.linear_fc2*=f32"], "local_experts.3." + alike.format(2)),
                        (["--dtype", "*.local_experts.0.linear_fc1*=f32"], "local_experts.1." + alike.format(1)),
                        (["--dtype", "*.local_experts.3.linear_fc1*=f32", "--layout", "ep=4"], "local_experts.3." + alike.format(1))):
        command = [run.binary, "convert", work / "whole", work / "out", "--to", "megatron", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 5 and text in done.stderr, f"{words}: exit {done.returncode}: {done.stderr}"


def check_argument_forgotten(run, work):
    """Releases that knew one matrix alone have no argument for it: parameters tell, and state has the same names as with it."""
    for optimizer in ("plain", "distributed"):
        found = []
        for is_forgotten in (False, True):
            chance = random.Random(1)
            model = random_model(chance)[0] | {"spelling": "matrix", "engine": True, "optimizer": optimizer, "frequency": 1}
            made = arguments(model)
            if is_forgotten:
                del made.moe_use_legacy_grouped_gemm
            root = work / f"{optimizer}-{is_forgotten}"
            write_checkpoint(root, model, chance, made)
            found.append({t["key"]: t["hash"] for t in json.loads(run("hash", "--json", root))["tensors"]})
        assert found[0] == found[1], sorted(found[0].keys() ^ found[1].keys())[:4]
        assert any(key.startswith("optimizer.state.exp_avg.decoder.layers") and ".mlp.experts.experts." in key for key in found[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run, failed = Shell(options.bin), 0
    checks = [(f"seed {options.seed + i}", lambda work, seed=options.seed + i: check_round(run, work, seed)) for i in range(options.count)]
    checks.append(("experts that make no matrix", lambda work: check_one_matrix(run, work)))
    checks.append(("experts of one matrix of which the arguments say nothing", lambda work: check_argument_forgotten(run, work)))
    print(f"1..{len(checks)}")
    for number, (name, check) in enumerate(checks, 1):
        work = pathlib.Path(tempfile.mkdtemp(prefix="moe_layouts"))
        try:
            check(work)
            print(f"ok {number} - {name}")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"not ok {number} - {name}\n# {error}")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
