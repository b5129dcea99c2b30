#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""State of Megatron's optimizers, whichever layout and kind of optimizer it comes from and goes to: tensors, steps, groups, scalers, and
what belongs to ranks. Prints TAP.

usage: optimizer_test.py --bin PATH --fixtures DIR
"""
import json
import pathlib
import resource
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import small_models
import torch_stub

COMMON, METADATA, RANK = "iter_0000010/common.pt", "iter_0000010/.metadata", "iter_0000010/mp_rank_00/model_optim_rng.pt"
REFERENCES = ("dense-dpr-dp2", "dense-full-tp2dp2", "old-modelspace-v0.14.0-dp2", "old-gather-v0.12.3-dp2", "plain-dist-tp1",
              "dense-legacy-dp2", "plain-legacy-tp1")


def fixture(fixtures, case):
    return fixtures / "megatron" / f"megatron-{case}" / "ckpt"


def copied(shell, fixtures, case, target):
    """A copy of a checkpoint that may be changed."""
    made = shell.work / target
    shutil.copytree(fixture(fixtures, case), made)
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return made


def item(shell, path, key):
    return json.loads(shell("cat", path, key))


def item_keys(shell, path):
    """Those that one sees without --json, which has a row for each leaf beside."""
    return [line.split("\t")[0] for line in shell("ls", "--items", path).decode().splitlines()]


def converted(shell, source, target, *words):
    """What is said of a conversion that succeeds."""
    done = shell.any("convert", source, target, *words)
    assert done.returncode == 0, (words, done.stderr)
    return done.stderr


def refused(shell, source, target, *words, status=5):
    said = shell("convert", source, target, *words, exit_status=status).decode()
    assert not (shell.work / target).exists(), said
    return said


def by_parameter(shell, path):
    """{key: digest} with one tensor for each parameter and kind of state, and one name for masters."""
    shell("convert", path, "by-parameter", "--to", "torch_dist", "-o", "optimizer=fully_reshardable", "--overwrite", "--quiet")
    return {key.replace(".fp32_param.", ".param."): (t["dtype"], t["shape"], t["hash"]) for key, t in shell.tensors("by-parameter").items()}


# ---- references ----

def references_have_their_own_layout(shell, fixtures):
    """State in the layout and under the names of the reference is all of it: nothing is missing, and what is read back is what was."""
    for case in ("dense-full-tp2dp2", "dense-dpr-dp2", "plain-dist-tp1"):
        source = fixture(fixtures, f"optim-{case}")
        before = by_parameter(shell, source)
        for like in REFERENCES:
            for number, missing in enumerate(([], ["--missing", "error"], ["--missing", "zeros"])):
                said = converted(shell, source, "out", "--like", fixture(fixtures, f"optim-{like}"), "--overwrite", "--verify", *missing)
                assert "not written" not in said, (case, like, said)
                found = shell.tensors("out")
                assert number == 0 or found == first, (case, like, missing, sorted(found.keys() ^ first.keys())[:4])
                first = found
            assert by_parameter(shell, "out") == before, (case, like)
            wanted = {key for key in shell.tensors(fixture(fixtures, f"optim-{like}"))}
            if "legacy" not in like:
                assert "tp2" in like or {key for key in found if "optimizer" in key} == {key for key in wanted if "optimizer" in key}, like


def a_layout_that_is_asked_for(shell, fixtures):
    """Masters of an optimizer that is not distributed become those of one that is, whose layout the option names."""
    for case in ("plain-dist-tp1", "plain-legacy-tp1", "dense-full-tp2dp2"):
        source = fixture(fixtures, f"optim-{case}")
        before = by_parameter(shell, source)
        converted(shell, source, "out", "--to", "torch_dist", "-o", "optimizer=fully_sharded_model_space", "--overwrite")
        state = [t for key, t in shell.tensors("out").items() if key.startswith("optimizer.state.")]
        assert state and all(len(t["shape"]) == 1 for t in state), case
        assert by_parameter(shell, "out") == before, case
        assert all(group["step"] == 2 for group in item(shell, "out", "optimizer")["optimizer"]["param_groups"]), case


def lacks_are_told_by_parameter(shell, fixtures):
    """What the source lacks of a reference by bucket are the states of parameters, and zeros in their place are the buckets."""
    source, like = fixture(fixtures, "dense-dist-tp1"), fixture(fixtures, "optim-dense-dpr-dp2")
    said = converted(shell, source, "out", "--like", like)
    assert "27 tensors of the reference are not written, as the source lacks them: 'optimizer.state." in said, said
    said = refused(shell, source, "none", "--like", like, "--missing", "error")
    assert "the source lacks 27 tensors of the reference: 'optimizer.state." in said, said


def state_that_is_stored_twice(shell, fixtures):
    """Where a state is there by bucket and by parameter, nobody knows which of the two counts."""
    folder = copied(shell, fixtures, "optim-dense-dpr-dp2", "twice")
    old, new = "decoder.final_layernorm.weight", "optimizer.state.param.decoder.final_layernorm.weight"

    def both(metadata):
        state = metadata.state
        state["state_dict_metadata"][new] = state["state_dict_metadata"][old].remade()
        for index in [index for index in state["storage_data"] if index.state["fqn"] == old]:
            state["storage_data"][index.remade(fqn=new)] = state["storage_data"][index]
    torch_stub.edit_pickle(folder / METADATA, both)
    assert new in shell.tensors("twice")
    said = refused(shell, "twice", "out", "--to", "torch_dist", "-o", "optimizer=fully_reshardable", status=4)
    assert f"'{new}' is stored by bucket and by parameter" in said, said


# ---- steps ----

def step_tensor(count):
    return torch_stub.tensor("FloatStorage", [], struct.pack("<f", count))


def with_steps(shell, fixtures, target, steps):
    """A legacy checkpoint whose optimizer is one of torch, which counts its steps with every parameter."""
    def change(content):
        inner = content["optimizer"]["optimizer"]
        for number, entry in inner["state"].items():
            entry["step"] = steps(number)
        for group in inner["param_groups"]:
            del group["step"]
    torch_stub.edit(copied(shell, fixtures, "optim-plain-legacy-tp1", target) / RANK, change)
    return target


def steps_in(shell, path):
    """Those of each parameter, of all parameters, and of groups."""
    entries, commons, groups = [], [], []
    for file in sorted((shell.work / path).rglob("model_optim_rng.pt")):
        optimizer = torch_stub.load(file)["optimizer"]["optimizer"]
        entries += [entry.get("step") for entry in optimizer.get("state", {}).values()]
        groups += [group.get("step") for group in optimizer["param_groups"]]
    if not entries and not groups:
        optimizer = item(shell, path, "optimizer").get("optimizer", {"param_groups": []})
        commons = [optimizer["state"]["common_step"]] if optimizer.get("state") else []
        groups = [group.get("step") for group in optimizer["param_groups"]]
        for key in item_keys(shell, path):
            if key.endswith(".optimizer/shard_0_1"):
                groups += [group.get("step") for group in item(shell, path, key)[0]["param_groups"]]
    return entries, commons, groups


def steps_of_parameters_are_kept(shell, fixtures):
    """The step that torch's optimizers count with every parameter arrives where the target's kind of optimizer looks for it."""
    with_steps(shell, fixtures, "legacy", lambda number: step_tensor(2))

    def common(content):
        content["optimizer"]["optimizer"]["state"] = {"common_step": step_tensor(2)}
        for group in content["optimizer"]["optimizer"]["param_groups"]:
            del group["step"]
    torch_stub.edit(copied(shell, fixtures, "optim-plain-dist-tp1", "dist") / COMMON, common)
    nothing, groups = [None, None], [2, 2]
    for source in ("legacy", "dist"):
        for words, expected in (
                (["--to", "megatron"], ([2.0] * 15, [], nothing)),
                (["--to", "megatron", "--layout", "tp=2"], ([2.0] * 30, [], 2 * nothing)),
                (["--to", "torch_dist"], ([], [2.0], nothing)),
                (["--to", "torch_dist", "-o", "optimizer=dp_reshardable"], ([], [], groups)),
                (["--like", fixture(fixtures, "optim-dense-full-tp2dp2")], ([], [], groups)),
                (["--like", fixture(fixtures, "optim-old-gather-v0.12.3-dp2")], ([], [], groups)),
                (["--like", fixture(fixtures, "optim-dense-legacy-dp2")], ([], [], groups))):
            converted(shell, source, "out", *words, "--overwrite", "--verify")
            found = steps_in(shell, "out")
            if source == "dist" and expected[1]:  # the tensor is left as it is
                assert found[1] and "_rebuild_tensor_v2" in str(found[1][0]), found
                found = (found[0], [2.0], found[2])
            assert found == expected, (source, words, found)
    shell("convert", "legacy", "there", "--to", "torch_dist", "--quiet")
    shell("convert", "there", "back", "--to", "megatron", "--quiet")
    shell("diff", "--items", "ignore", "legacy", "back")
    assert item(shell, "legacy", "optimizer") == item(shell, "back", "optimizer")
    # A number in place of a tensor, as older releases of torch have it.
    with_steps(shell, fixtures, "number", lambda number: 7)
    shell("convert", "number", "seven", "--to", "torch_dist", "--quiet")
    assert steps_in(shell, "seven") == ([], [7], nothing)


def steps_that_differ_are_refused(shell, fixtures):
    """Megatron knows one step for all parameters of an optimizer, and refuses others."""
    with_steps(shell, fixtures, "differing", lambda number: step_tensor(3 if number == 4 else 2))
    text = "'mp_rank_00/model_optim_rng.pt': the optimizer's step is 2 for one parameter and 3 for another; Megatron knows one for all"
    assert text in shell.any("ls", "differing").stderr
    for words in (["--to", "torch_dist"], ["--to", "megatron", "--layout", "tp=2"]):
        said = refused(shell, "differing", "out", *words)
        assert text in said, said

    def no_number(content):
        content["optimizer"]["optimizer"]["state"] = {"common_step": "two"}
    torch_stub.edit(copied(shell, fixtures, "optim-plain-dist-tp1", "text") / COMMON, no_number)
    said = refused(shell, "text", "out", "--to", "megatron")
    assert "the step of an optimizer is neither a number nor a tensor of one element" in said, said


# ---- state in torch's spelling ----

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16, "tie_word_embeddings": False, "rms_norm_eps": 1e-05,
         "rope_theta": 10000.0, "max_position_embeddings": 64, "hidden_act": "silu"}
LLAMA_LAYER = {"self_attn.q_proj.weight": [8, 8], "self_attn.k_proj.weight": [4, 8], "self_attn.v_proj.weight": [4, 8],
               "self_attn.o_proj.weight": [8, 8], "mlp.gate_proj.weight": [12, 8], "mlp.up_proj.weight": [12, 8],
               "mlp.down_proj.weight": [8, 12], "input_layernorm.weight": [8], "post_attention_layernorm.weight": [8]}
LLAMA_SHAPES = {"model.embed_tokens.weight": [16, 8], "model.norm.weight": [8], "lm_head.weight": [16, 8]} | {
    f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in LLAMA_LAYER.items()}
STACKED = {"embedding.word_embeddings.weight", "output_layer.weight", "decoder.final_layernorm.weight"} | {
    f"decoder.layers.{name}" for name in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.layer_norm_weight",
                                          "self_attention.linear_proj.weight", "mlp.linear_fc1.weight",
                                          "mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc2.weight")}
LISTED = {name for name in STACKED if "layers" not in name} | {
    f"decoder.layers.{i}.{name}" for i in range(2) for name in (
        "self_attention.linear_qkv.weight", "self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_proj.weight",
        "mlp.linear_fc1.weight_w", "mlp.linear_fc1.weight_v", "mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc2.weight")}
OPTIONS = {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-08, "amsgrad": False, "maximize": False, "foreach": None, "capturable": False,
           "differentiable": False, "fused": None, "decoupled_weight_decay": True}


def torch_llama(shell, target, steps=lambda name: 3, decays=(0.1, 0.0), kind="FloatStorage", rows=()):
    """A DCP with Hugging Face's names and what get_optimizer_state_dict says, whose numbers are all different."""
    counter = iter(range(1, 1 << 20))

    def numbers(shape, kind="FloatStorage"):
        count = 1
        for extent in shape:
            count *= extent
        made = [next(counter) for _ in range(count)]
        packed = struct.pack(f"<{count}f", *made) if kind == "FloatStorage" else struct.pack(f"<{count}H", *made)
        return torch_stub.tensor(kind, shape, packed)
    content = {name: numbers(shape, kind) for name, shape in LLAMA_SHAPES.items()}
    state = {name: {"step": step_tensor(steps(name)), "exp_avg": numbers(shape), "exp_avg_sq": numbers(shape)}
             for name, shape in LLAMA_SHAPES.items()}
    for name in rows:
        state[name]["exp_avg_sq_row"] = numbers(LLAMA_SHAPES[name][:1])
    members = [[name for name in LLAMA_SHAPES if len(decays) == 1 or (len(LLAMA_SHAPES[name]) == 1) == is_vector]
               for is_vector in (False, True)]
    groups = [{"weight_decay": decay, **OPTIONS, "params": names} for decay, names in zip(decays, members)]
    content["optimizer"] = {"state": state, "param_groups": groups}
    torch_stub.write_zip(shell.work / f"{target}.pt", content)
    (shell.work / "config.json").write_text(json.dumps(LLAMA))
    shell("convert", f"{target}.pt", target, "--to", "torch-dcp", "--quiet")
    return target


def state_keys(shell, path):
    return {key for key in shell.tensors(path) if key.startswith("optimizer.state.")}


def state_of_torch_becomes_megatrons(shell, fixtures):
    """What torch calls optimizer.state.NAME.exp_avg is what Megatron looks for, and comes back bit by bit."""
    source, config = torch_llama(shell, "torch"), ("--config", "config.json")
    expected = shell.tensors(source)
    stacked = {f"optimizer.state.{state}.{name}" for state in ("exp_avg", "exp_avg_sq", "param") for name in STACKED}
    below = {f"optimizer.state.module.module.module.{name}.{state}" for state in ("exp_avg", "exp_avg_sq") for name in LISTED}
    for words, keys, steps in (
            (["--to", "torch_dist", "--layout", "tp=2"], stacked, [3, 3]), (["--to", "fsdp_dtensor"], below, []),
            (["--to", "megatron"], stacked, [3, 3]), (["--to", "megatron", "--layout", "tp=2,pp=2"], stacked, [3, 3] * 4),
            (["--to", "torch_dist", "-o", "optimizer=dp_reshardable", "--layout", "dp=2"], None, [3, 3])):
        said = converted(shell, source, "there", *words, *config, "--overwrite", "--verify")
        assert "dropped" not in said and "warning" not in said, said
        assert keys in (None, state_keys(shell, "there")), (words, state_keys(shell, "there") ^ keys)
        found = steps_in(shell, "there")[2] if steps else []
        assert found == steps, (words, found)
        said = converted(shell, "there", "back", "--to", "torch-dcp", "--rules", "auto", *config, "--overwrite", "--verify")
        assert "step" not in said and "param_groups" not in said, said
        if keys: # state by bucket stays so where only a reference says the names
            said = converted(shell, "there", "like", "--like", source, "--overwrite")
            assert shell.tensors("like") == shell.tensors("back") and "not written" not in said, (words, said)
        found = {key: tensor for key, tensor in shell.tensors("back").items() if not key.endswith(".param")}
        assert found == expected, (words, set(found) ^ set(expected), [k for k in found if found[k] != expected.get(k)])
        for number in range(2):
            for member in ("lr", "betas", "weight_decay", "decoupled_weight_decay"):
                key = f"optimizer.param_groups.{number}.{member}"
                assert item(shell, source, key) == item(shell, "back", key), (words, key)
            key = f"optimizer.param_groups.{number}.params"
            assert sorted(item(shell, source, key)) == sorted(item(shell, "back", key)), words
        meta = "optimizer.param_to_group_meta.module.module.module.decoder.final_layernorm.weight."
        assert steps or (item(shell, "there", meta + "step"), item(shell, "there", meta + "wd_mult")) == (3, 0)
    wanted = item(shell, "torch", "optimizer.param_groups.0.lr")
    shell("convert", source, "dist", "--to", "torch_dist", *config, "--quiet")
    first, second = item(shell, "dist", "optimizer")["optimizer"]["param_groups"]
    identity = ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr")    # by which Megatron finds a group again
    assert [first[key] for key in identity] == [1, 1, False, False] and [second[key] for key in identity] == [0, 1, False, False]
    assert first["lr"] == wanted and "params" not in first, first
    for key in (key for key in state_keys(shell, "dist") if key.startswith("optimizer.state.param.")):
        assert shell.bytes_of("dist", key) == shell.bytes_of("dist", key.removeprefix("optimizer.state.param.")), key


def state_of_torch_that_megatron_has_not(shell, fixtures):
    """Steps that differ, groups that Megatron has none of, and layouts that need masters are told."""
    config = ("--config", "config.json")
    source = torch_llama(shell, "steps", steps=lambda name: 4 if "norm" in name else 3)
    said = refused(shell, source, "out", "--to", "torch_dist", *config)
    assert "Megatron knows one for all" in said and "hint: --exclude 'optimizer.*' leaves the state out" in said, said
    said = converted(shell, source, "without", "--to", "torch_dist", *config, "--exclude", "optimizer.*")
    assert not state_keys(shell, "without"), said
    converted(shell, source, "stepless", "--to", "torch_dist", *config, "--exclude", "optimizer.state.*.step")
    assert steps_in(shell, "stepless")[2] == [None, None] and not [key for key in state_keys(shell, "stepless") if "step" in key]
    source = torch_llama(shell, "one", decays=(0.1,))
    said = converted(shell, source, "out", "--to", "torch_dist", *config)
    assert "warning: param_groups: vectors and biases get a group without weight decay" in said, said
    assert [group["weight_decay"] for group in item(shell, "out", "optimizer")["optimizer"]["param_groups"]] == [0.1, 0]
    source = torch_llama(shell, "two", decays=(0.1, 0.2))
    said = converted(shell, source, "two-out", "--to", "torch_dist", *config)
    assert "dropped: param_groups: Megatron has one group with weight decay and one without" in said, said
    source = torch_llama(shell, "half", kind="BFloat16Storage")
    converted(shell, source, "half-out", "--to", "torch_dist", *config)
    assert not [key for key in state_keys(shell, "half-out") if ".param." in key]
    assert steps_in(shell, "half-out")[1] == [3], steps_in(shell, "half-out")
    said = refused(shell, source, "none", "--to", "torch_dist", "-o", "optimizer=dp_reshardable", *config)
    assert "option optimizer=dp_reshardable: 'optimizer.state." in said and "has no masters beside it" in said, said
    said = converted(shell, source, "numbers", "--to", "torch_dcp", *config)
    assert "the optimizer's state is in torch's spelling and is kept so" in said, said
    source = torch_llama(shell, "rows", rows=["lm_head.weight"])
    said = converted(shell, source, "rows-out", "--to", "fsdp_dtensor", *config)
    assert "warning: optimizer.state.lm_head.weight.exp_avg_sq_row: is state in torch's spelling" in said, said
    assert "optimizer.state.lm_head.weight.exp_avg_sq_row" in state_keys(shell, "rows-out"), state_keys(shell, "rows-out")
    torch_llama(shell, "sums")
    text = "states of the optimizer keep the names that weights had"
    torch_stub.edit(shell.work / "sums.pt", lambda content: [state.update(sum=state.pop("exp_avg_sq"))
                                                             for state in content["optimizer"]["state"].values()])
    for form, pattern in (("torch_dist", "sum.*"), ("fsdp_dtensor", "*.sum")):
        said = converted(shell, "sums.pt", "sums-out", "--to", form, *config, "--overwrite")
        assert f": {len(LLAMA_SHAPES)} {text}" in said and f"--exclude 'optimizer.state.{pattern}' leaves" in said, said
        said = converted(shell, "sums.pt", "sums-out", "--to", form, *config, "--exclude", f"optimizer.state.{pattern}", "--overwrite")
        assert not [key for key in state_keys(shell, "sums-out") if "sum" in key], state_keys(shell, "sums-out")
        assert text not in converted(shell, "sums.pt", "sums-out", "--to", form, "--rules", "none", "--overwrite")
    (shell.work / "trained").mkdir()
    shell("convert", source, "trained/pytorch_model_fsdp_0", "--to", "torch-dcp", "--exclude", "model.optimizer.*",
          "--add-prefix", "model.")
    said = converted(shell, source, "alone", "--like", "trained", "--exclude", "optimizer.*")
    assert "the reference is a folder of accelerate's, and what is written is the DCP of the model alone" in said, said


def real(shell, path, key):
    return struct.unpack("<f", shell.bytes_of(path, key))[0]


def state_becomes_paddles(shell, fixtures):
    """With Paddle's names state gets those that Paddle's trainer asks for, and steps become the powers of both betas."""
    endings = {"exp_avg": "moment1_0", "exp_avg_sq": "moment2_0", "param": "w_0"}
    for case in ("optim-dense-legacy-tp1", "optim-dense-full-tp2dp2", "optim-dense-dpr-dp2", "optim-plain-dist-tp1"):
        for words in (["--to", "paddle-flex", "-o", "folders=trainer"], ["--to", "paddle-uc"]):
            said = converted(shell, fixture(fixtures, case), "out", "--rules", "auto", *words, "--overwrite", "--verify")
            assert "warning" not in said, (case, words, said)
            keys = {key for key in shell.tensors("out") if ":" in key or key.count("_0")}
            name = (lambda key, ending: f"optimizer:{key}/{ending}") if "paddle-uc" in words else "{}.{}".format
            for ending in ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0"):
                assert name("model.layers.1.mlp.up_gate_proj.weight", ending) in keys, (case, words, keys)
            assert abs(real(shell, "out", name("lm_head.weight", "beta1_pow_acc_0")) / 0.9 ** 3 - 1) < 1e-6, (case, words)
            assert ("master_weights:lm_head.weight" if "paddle-uc" in words else "lm_head.weight.w_0") in keys, (case, words, keys)
        shell("convert", fixture(fixtures, case), "dist", "--to", "torch_dist", "--overwrite", "--quiet")
        converted(shell, fixture(fixtures, case), "out", "--to", "paddle-flex", "--rules", "auto", "--overwrite")
        for state, ending in endings.items():
            key = "fp32_param" if state == "param" and "plain" in case else state
            stored = shell.bytes_of("dist", f"optimizer.state.{key}.decoder.final_layernorm.weight")
            assert stored == shell.bytes_of("out", f"model.norm.weight.{ending}"), (case, state)
        converted(shell, fixture(fixtures, case), "like", "--like", "out", "--overwrite")
        assert shell.tensors("like") == shell.tensors("out"), case
        shell("convert", fixture(fixtures, case), "wrapped", "--to", "fsdp_dtensor", "--overwrite", "--quiet")
        converted(shell, "wrapped", "like", "--to", "paddle-flex", "--rules", "auto", "--overwrite")
        assert shell.tensors("like") == shell.tensors("out"), case
    config, folder = ("--config", "config.json"), ("--to", "paddle-flex", "--rules", "auto", "--overwrite")
    source = torch_llama(shell, "torch", steps=lambda name: 4 if "norm" in name else 3)
    said = converted(shell, source, "out", *folder, *config)
    assert "warning" not in said, said
    powers = {key: real(shell, "out", f"{key}.beta2_pow_acc_0") for key in ("model.norm.weight", "lm_head.weight")}
    assert abs(powers["model.norm.weight"] / 0.999 ** 5 - 1) < 1e-6 and abs(powers["lm_head.weight"] / 0.999 ** 4 - 1) < 1e-6, powers
    for state, ending in (("exp_avg", "moment1_0"), ("exp_avg_sq", "moment2_0")):
        stored = shell.bytes_of(source, f"optimizer.state.model.norm.weight.{state}")
        assert shell.bytes_of("out", f"model.norm.weight.{ending}") == stored, state
    said = converted(shell, source, "out", *folder, *config, "--exclude", "optimizer.state.*.step")
    assert "beta powers of 21 weights (beta1_pow_acc_0, beta2_pow_acc_0), which Paddle's Adam asks for, are not made: " \
        "the source does not say its step" in said, said


def state_that_nobody_looks_for(shell, fixtures):
    """Between Paddle's spelling of state and the others it is told where keys stay that the target's runs do not ask for."""
    megatrons, paddles = fixture(fixtures, "optim-dense-legacy-tp1"), fixtures / "paddle" / "paddle-strategy-dp1" / "ckpt"
    torchs, files = torch_llama(shell, "torch"), fixtures / "paddle" / "paddle331-train" / "ckpt"
    for source, target, names in ((megatrons, "paddle-flex", "other frameworks"), (torchs, "paddle-flex", "other frameworks"),
                                  (megatrons, "paddle-uc", "other frameworks"), (torchs, "out.pdparams", "other frameworks"),
                                  (paddles, "torch-dcp", "Paddle"), (paddles, "out.pt", "Paddle"), (paddles, "torch_dist", "Paddle"),
                                  (paddles, "fsdp-ranks", "Paddle"), (files, "torch-dcp", "Paddle"), (paddles, "paddle-uc", None),
                                  (megatrons, "torch-dcp", None), (files, "paddle-flex", None)):
        words = [target] if "." in target else ["out", "--to", target]
        said = converted(shell, source, *words, "--overwrite")
        assert f"tensors of optimizer state keep the names that {names} give" in said or not names, (source, target, said)
        assert names or "of optimizer state" not in said, (source, target, said)
    for words in (["--exclude", "optimizer.*"], ["--rules", "none"], ["--rename", r"s/optimizer\.state\.(.*)\.exp_avg$/$1.moment1_0/",
                   "--exclude", "*.step", "--exclude", "*.exp_avg_sq"]):
        said = converted(shell, torchs, "out", "--to", "paddle-flex", "--overwrite", *words)
        assert "of optimizer state" not in said, (words, said)
    converted(shell, torchs, "named", "--to", "paddle-flex", "--rules", "auto", "--config", "config.json")
    said = converted(shell, "named", "out", "--to", "atorch", "--overwrite")
    assert "tensors of optimizer state keep the names that Paddle gives them" in said, said
    small_models.write(shell.work / "dashes.safetensors", {"a": [2], "a-b": [2], "c": [2], "c-exp_avg": [2]})
    said = converted(shell, "dashes.safetensors", "out", "--to", "paddle-flex", "--overwrite")
    assert "1 tensors of optimizer state" in said and "'c-exp_avg';" in said, said


def numbered(content):
    """The same as torch.optim's own state_dict says it."""
    names = list(LLAMA_SHAPES)
    optimizer = content["optimizer"]
    optimizer["state"] = {names.index(name): state for name, state in optimizer["state"].items()}
    for group in optimizer["param_groups"]:
        group["params"] = [names.index(name) for name in group["params"]]


def state_without_names_is_told(shell, fixtures):
    """State by torch's numbers, and state that is one item, is looked for by no run of Megatron."""
    config, text = ("--config", "config.json"), "get_optimizer_state_dict of torch gives, becomes Megatron's"
    torch_llama(shell, "numbers")
    torch_stub.edit(shell.work / "numbers.pt", numbered)
    assert text not in converted(shell, "numbers.pt", "numbers-dcp", "--to", "torch-dcp")
    for source in ("numbers.pt", "numbers-dcp"):
        for form in ("torch_dist", "fsdp_dtensor", "torch_dcp"):
            why = "a run of Megatron " + ("numbers its own in another way" if form == "torch_dcp" else "does not look for it")
            said = converted(shell, source, "out", "--to", form, *config, "--overwrite")
            assert f"by torch's numbers of parameters and is kept so; {why}: --exclude 'optimizer.*' leaves it out, state by" in said, said
            assert said.count(text) == 1, said
            for words in (["--exclude", "optimizer.*"], ["-o", "state=as-is"], ["--like", "out"]):
                if words[0] == "--exclude" or form == "torch_dist":
                    to = [] if "--like" in words else ["--to", form]
                    said = converted(shell, source, "quiet", *to, *config, *words, "--overwrite")
                    assert text not in said, (form, words, said)
    ranks = fixtures / "verl/verl-fsdp2-tp/ckpt/global_step_2/actor"
    for form in ("torch_dist", "fsdp_dtensor", "torch_dcp"):
        said = converted(shell, ranks, "out", "--to", form, "--overwrite")
        assert "warning: optimizer: the optimizer's state lies in this item and is kept so" in said, said
        assert "--exclude 'optimizer' leaves it out" in said, said
        assert said.count(text) == 1, said
        for words in (["--exclude", "optimizer"], ["--items", "drop"]):
            assert text not in converted(shell, ranks, "out", "--to", form, *words, "--overwrite"), words
    # A module that is called `state` is no optimizer's.
    torch_stub.write_zip(shell.work / "module.pt", {f"encoder.state.{i}.weight": step_tensor(i) for i in range(2)})
    assert text not in converted(shell, "module.pt", "out", "--to", "torch_dist", "--overwrite")


def small(content, target, shell):
    """A DCP of a small model, and what convert says of it on the way to torch_dist; the groups that are written."""
    torch_stub.write_zip(shell.work / f"{target}.pt", content)
    shell("convert", f"{target}.pt", f"{target}-dcp", "--to", "torch-dcp", "--overwrite", "--quiet")
    for source in (f"{target}.pt", f"{target}-dcp"):
        said = converted(shell, source, target, "--to", "torch_dist", "--overwrite")
        optimizer = item(shell, target, "optimizer")["optimizer"] if "optimizer" in item_keys(shell, target) else {}
        yield said, optimizer.get("param_groups")


def vector(count=2):
    return torch_stub.tensor("FloatStorage", [count], struct.pack(f"<{count}f", *range(count)))


def options_that_are_tensors(shell, fixtures):
    """A learning rate that is a tensor is a number in Megatron's groups; lists of tensors are told, and weights have any name."""
    def group(rate, **more):
        return {"lr": step_tensor(rate), "weight_decay": 0.0, **more}
    for key in ("w", "param_groups.0.w"):
        state = {key: {"step": step_tensor(3), "exp_avg": vector()}}
        content = {"model": {key: vector()}, "optimizer": {"state": state, "param_groups": [group(0.5, params=[key])]}}
        for said, groups in small(content, "rate", shell):
            assert [(one["lr"], one["step"]) for one in groups] == [(0.5, 3)], (key, groups)
            found = {name for name in shell.tensors("rate")}
            assert found == {f"model.{key}", f"optimizer.state.exp_avg.model.{key}", f"optimizer.state.param.model.{key}"}, found
    by_name = {"model": {"w": vector()}, "optim.state.w.exp_avg": vector(), "optim.param_groups.w.lr": step_tensor(0.25),
               "optim.param_groups.w.eps": 0.5}
    for said, groups in small(by_name, "by-name", shell):
        assert [(one["lr"], one["eps"]) for one in groups] == [(0.25, 0.5)], groups
    odd = group(0.5, params=["w"], betas=[step_tensor(0.5), 0.75], table=vector(4))
    content = {"model": {"w": vector()}, "optimizer": {"state": {"w": {"exp_avg": vector()}}, "param_groups": [odd]}}
    for said, groups in small(content, "odd", shell):
        assert len(groups) == 1 and groups[0]["lr"] == 0.5 and not groups[0].keys() & {"0", "1", "betas", "table"}, groups
        assert "dropped: betas: this option of param_groups is a tensor" in said and "dropped: table: this option" in said, said
        assert {name for name in shell.tensors("odd") if name.startswith("optimizer.param")} == set(), said
    said = converted(shell, "odd.pt", "kept", "--to", "torch_dist", "-o", "state=as-is")
    assert "optimizer.param_groups.0.lr" in shell.tensors("kept"), said
    # Steps of a module whose name is that of the groups.
    state, groups = {"param_groups.0.w": {"step": 3, "exp_avg": vector()}}, [group(0.5, params=["param_groups.0.w"])]
    content = {"model": {"param_groups.0.w": vector()}, "optimizer": {"state": state, "param_groups": groups}}
    for said, groups in small(content, "module", shell):
        assert [(one["lr"], one["step"]) for one in groups] == [(0.5, 3)], groups


def groups_of_two_optimizers_are_told(shell, fixtures):
    """The first groups of two optimizers are not one group with the options of the last."""
    optimizers = {name: {"state": {name: {"exp_avg": vector()}}, "param_groups": [{"lr": rate, "params": [name]}]}
                  for name, rate in (("left", 0.5), ("right", 0.25))}
    content = {"model": {"left": vector(), "right": vector()}, "optim_left": optimizers["left"], "optim_right": optimizers["right"]}
    for said, groups in small(content, "two-optimizers", shell):
        assert groups is None and "dropped: param_groups: Megatron has one group with weight decay and one without" in said, (groups, said)
    for source in ("two-optimizers.pt", "two-optimizers-dcp"):
        said = converted(shell, source, "left", "--to", "torch_dist", "--exclude", "optim_right.*", "--overwrite")
        found = {key for key in shell.tensors("left") if key.startswith("opt")}
        assert found == {f"optimizer.state.{word}.model.left" for word in ("exp_avg", "param")} and "dropped" not in said, (found, said)
        assert item(shell, "left", "optimizer")["optimizer"]["param_groups"][0]["lr"] == 0.5


def state_that_is_no_tensor_is_told(shell, fixtures):
    """What an optimizer of torch keeps beside tensors, such as the momentum that is None, has no place, and is in nobody's way."""
    state = {"w": {"step": 3, "exp_avg": vector(), "momentum_buffer": None, "note": "text", "k": 7, "z": vector()}}
    content = {"model": {"w": vector()}, "optimizer": {"state": state, "param_groups": [{"lr": 0.5, "params": ["w"]}]}}
    for said, groups in small(content, "no-tensor", shell):
        assert [one["step"] for one in groups] == [3], groups
        assert "dropped: optimizer.state.w.* (3): is state of the optimizer and no tensor" in said, said
        assert "optimizer.state.z.model.w" in shell.tensors("no-tensor"), said
    said = converted(shell, "no-tensor-dcp", "stepless", "--to", "torch_dist", "--exclude", "optimizer.state.*.step", "--overwrite")
    assert "step" not in item(shell, "stepless", "optimizer")["optimizer"]["param_groups"][0], said


def names_of_a_reference_are_torchs(shell, fixtures):
    """State comes back under the names of a reference, also where weights have names that nobody knows, and a prefix that state has not."""
    names = {"a.weight": 4, "b.bias": 2, "param_groups.c.weight": 3}
    state = {name: {"step": step_tensor(3), "exp_avg": vector(count)} for name, count in names.items()}
    groups = [{"lr": 0.5, "weight_decay": 0.0, "params": list(names)}]
    for prefix in ("model.", ""):
        model = {prefix + name: vector(count) for name, count in names.items()}
        torch_stub.write_zip(shell.work / "named.pt", {**model, "optimizer": {"state": state, "param_groups": groups}})
        converted(shell, "named.pt", "named-dcp", "--to", "torch-dcp", "--overwrite")
        converted(shell, "named.pt", "there", "--to", "torch_dist", "--overwrite")
        assert f"optimizer.state.exp_avg.{prefix}a.weight" in shell.tensors("there")
        for like, back in (("named-dcp", "back-dcp"), ("named.pt", "back.pt")):
            for words in ([], ["--rules", "none"]):
                said = converted(shell, "there", back, "--like", like, *words, "--overwrite", "--verify")
                found = {key: tensor for key, tensor in shell.tensors(back).items() if not key.endswith(".param")}
                assert found == shell.tensors(like) and "not written" not in said, (prefix, like, words, found.keys(), said)
        assert item(shell, "back-dcp", "optimizer.param_groups.0.params") == list(names), prefix
        for like, back in (("named-dcp", "back-dcp"), ("named.pt", "back.pt")):
            said = converted(shell, like, "atorch", "--to", "atorch", "--overwrite", "--verify")
            assert "dropped" not in said, said
            converted(shell, "atorch", back, "--like", like, "--overwrite", "--verify")
            shell("diff", like, back)


def weights_of_atorch_may_be_called_as_states(shell, fixtures):
    """What atorch calls b-exp_avg is state of b, though a weight is called exp_avg."""
    names = ("b", "exp_avg")
    state = {name: {"step": step_tensor(3), "exp_avg": vector(count + 2), "sum": vector(count + 2)} for count, name in enumerate(names)}
    groups = [{"lr": 0.5, "weight_decay": 0.0, "params": list(names)}]
    model = {name: vector(count + 2) for count, name in enumerate(names)}
    torch_stub.write_zip(shell.work / "called.pt", {**model, "optimizer": {"state": state, "param_groups": groups}})
    shell("convert", "called.pt", "atorch", "--to", "atorch", "--quiet")
    shell("convert", "atorch", "back.pt", "--like", "called.pt", "--quiet")
    shell("diff", "called.pt", "back.pt")


def options_may_be_many(shell, fixtures):
    """Groups of very many options take memory by their number, and not by its square."""
    options = {f"option{i}": i for i in range(12000)}
    optimizer = {"state": {"w": {"exp_avg": vector()}}, "param_groups": [{**options, "params": ["w"]}]}
    content = {"model": {"w": vector()}, "optimizer": optimizer}
    torch_stub.write_zip(shell.work / "many.pt", content)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    for source, target, words in (("many.pt", "many", ["--to", "torch_dist"]), ("many", "back.pt", ["--like", "many.pt"])):
        converted(shell, source, target, *words)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        assert small_models.is_sanitized(shell.binary) or peak <= max(before, 200 << 10), (source, before, peak)
    assert len(item(shell, "many", "optimizer")["optimizer"]["param_groups"][0]) > len(options)


# ---- masters ----

def remainders_stay_beside_their_weights(shell, fixtures):
    """The low halves of masters are no masters: they go where both halves stay as they are, and nowhere else."""
    folder = copied(shell, fixtures, "optim-dense-legacy-tp1", "source")

    def shorten(buffers):
        for states in (states for buffer in buffers.values() if isinstance(buffer, dict) for states in buffer.values()):
            count = states["param"].size[0]
            states["param"] = torch_stub.tensor("ShortStorage", [count], struct.pack(f"<{count}h", *(n % 30000 for n in range(count))))
    torch_stub.edit(folder / "iter_0000010/mp_rank_00/distrib_optim.pt", shorten)
    before = shell.tensors("source")
    masters = {key for key, tensor in before.items() if key.startswith("optimizer.state.param.")}
    assert masters and {before[key]["dtype"] for key in masters} == {"I16"}, before
    text = "has the low 16 bits of fp32 masters (store_param_remainders), whose high ones are the bf16 weights"
    torch_dist = ["--to", "torch_dist", "-o"]
    for words in (["--to", "torch_dist"], ["--to", "megatron"], ["--to", "fsdp_dtensor"], ["--to", "fsdp_dtensor", "--set", "masters=1"],
                  [*torch_dist, "optimizer=dp_zero_gather_scatter"],
                  [*torch_dist, "optimizer=dp_reshardable", "--dtype", "optimizer.state.param.*=f32"],
                  [*torch_dist, "optimizer=dp_reshardable", "--dtype", "decoder.final_layernorm.weight=f32"]):
        said = refused(shell, "source", "out", *words)
        assert "'optimizer.state.param." in said and text in said, (words, said)
        assert "hint: torch_dist with optimizer=dp_reshardable or fully_sharded_model_space" in said, (words, said)
    for option in ("optimizer=dp_reshardable", "optimizer=fully_sharded_model_space"):
        shell("convert", "source", "out", *torch_dist, option, "--layout", "tp=2,dp=2", "--overwrite", "--quiet")
        shell("convert", "out", "again", *torch_dist, option, "--layout", "tp=1,dp=1", "--overwrite", "--verify", "--quiet")
        shell("diff", "--items", "ignore", "source", "again")
    shell("convert", "source", "weights", "--to", "torch_dist", "--exclude", "optimizer*", "--quiet")


# ---- several optimizers ----

def parallel_experts(shell, fixtures):
    """One optimizer of a model with experts, which two become."""
    source = fixture(fixtures, "optim-moe-full-ep2")
    if not (shell.work / "one").exists():
        shell("convert", source, "one", "--to", "torch_dist", "--layout", "ep=1", "--quiet")
    return shell.work / "one"


def with_two(shell, source, *words):
    """What the source's optimizer becomes where experts are parallel, in both forms of checkpoints."""
    for form, name in (("torch_dist", "0"), ("megatron", 0)):
        converted(shell, source, f"two-{form}", "--to", form, "--layout", "ep=2", "--overwrite", *words)
        found = item(shell, f"two-{form}", "optimizer")
        yield form, (found[name], found["1" if name == "0" else 1])


def scalers_are_experts_too(shell, fixtures):
    """The scaler of losses is the experts' optimizer's too, where one becomes two."""
    scaler = {"scale": torch_stub.tensor("FloatStorage", [1], struct.pack("<f", 65536)), "growth_tracker": 7, "hysteresis_tracker": 2}
    torch_stub.edit(parallel_experts(shell, fixtures) / COMMON, lambda content: content["optimizer"].update(grad_scaler=scaler))
    for form, both in with_two(shell, "one"):
        assert [one["grad_scaler"]["growth_tracker"] for one in both] == [7, 7], (form, both)


def rates_of_groups_are_experts_too(shell, fixtures):
    """A group with a learning rate of its own is that of embeddings where the run decouples theirs, and else of whatever it says."""
    def rates(optimizer):
        return [group["max_lr"] for group in optimizer["optimizer"]["param_groups"]]

    def change(decoupled, **settings):
        def changed(content):
            content["args"].state["decoupled_lr"] = decoupled
            groups = content["optimizer"]["optimizer"]["param_groups"]
            groups[:] = [group for group in groups if group["max_lr"] == 0.01] + [{**groups[0], "max_lr": 0.5, **settings}]
        return changed

    for decoupled, settings, expected in ((None, dict(default_config=False), [0.01, 0.5]), (0.5, dict(default_config=False), [0.01]),
                                          (None, dict(default_config=False, is_decoupled_lr=True), [0.01])):
        torch_stub.edit(parallel_experts(shell, fixtures) / COMMON, change(decoupled, **settings))
        for form, (dense, experts) in with_two(shell, "one"):
            assert rates(dense) == [0.01, 0.01, 0.5] and rates(experts) == expected, (form, decoupled, settings, rates(experts))


def optimizers_that_are_several_are_refused(shell, fixtures):
    """Muon and Adam beside each other are not one optimizer and that of experts: none is thrown away."""
    def three(content):
        dense, experts = content["optimizer"][0], content["optimizer"][1]
        more = {**dense, "optimizer": {"param_groups": [{**group, "optimizer": "adam"} for group in dense["optimizer"]["param_groups"]]}}
        for one in (dense, experts):
            one["optimizer"]["param_groups"][0]["optimizer"] = "muon"
        content["optimizer"] = {0: dense, 1: experts, 2: more}

    def two(content):
        content["optimizer"] = {0: content["optimizer"], 1: content["optimizer"]}
    torch_stub.edit(copied(shell, fixtures, "optim-moe-full-ep2", "three") / COMMON, three)
    said = refused(shell, "three", "out", "--to", "torch_dist", "--layout", "ep=1")
    assert "3 optimizers (0 muon, 1 muon for experts, 2 adam), the target's run has none for experts" in said, said
    torch_stub.edit(parallel_experts(shell, fixtures) / COMMON, two)
    said = refused(shell, "one", "out", "--to", "torch_dist", "--layout", "ep=2")
    assert "2 optimizers (0 of no known kind, 1 of no known kind), the target's run has experts apart" in said, said
    converted(shell, "one", "out", "--to", "torch_dist")


def buckets_are_counted_for_all_parameters(shell, fixtures):
    """--ddp-num-buckets shares out all parameters of a rank, those of experts among them, and each optimizer has buckets of that size."""
    def number(content):
        content["args"].state.update(overlap_grad_reduce=True, ddp_num_buckets=2)
    torch_stub.edit(copied(shell, fixtures, "optim-moe-full-ep2", "source") / COMMON, number)
    before = by_parameter(shell, "source")
    weights = {key: shape for key, (_, shape, _) in before.items() if not key.startswith("optimizer.")}
    sizes = {True: 0, False: 0}
    for key, shape in weights.items():
        count = 1
        for extent in shape:
            count *= extent
        sizes[".mlp.experts." in key] += count
    converted(shell, "source", "buckets", "--to", "torch_dist", "-o", "optimizer=dp_reshardable")
    found = [key for key in shell.tensors("buckets") if key.endswith(".exp_avg")]
    experts, size = sizes[True] // 2, (sizes[False] + sizes[True] // 2) // 2
    assert experts < size < sizes[False], (sizes, size)  # so experts fill no bucket, and the others one
    assert sorted(key.split(".")[0] + key.split("dp_group")[1][:6] + key.split("bucket")[1][:6] for key in found) == [
        "chained_0_idx_0_idx_0", "chained_0_idx_0_idx_1", "chained_1_idx_0_idx_0", "chained_1_idx_1_idx_0"], found
    assert by_parameter(shell, "buckets") == before


# ---- what belongs to ranks ----

def named_ranks(shell, fixtures, case, target, **arguments):
    """A legacy checkpoint whose ranks' random number states say of which rank they are."""
    folder = copied(shell, fixtures, case, target)
    for path in sorted(folder.rglob("model_optim_rng.pt")):
        def change(content, name=path.parent.name):
            content["rng_state"][0]["random_rng_state"] = name
            content["args"].state.update(arguments)
        torch_stub.edit(path, change)
    return target


def rng_objects(shell, path):
    keys = sorted(key for key in item_keys(shell, path) if key.startswith("rng_state/"))
    return [(key.split("/")[1], item(shell, path, key)[0][0]["random_rng_state"]) for key in keys]


def rng_files(shell, path):
    return [torch_stub.load(file)["rng_state"][0]["random_rng_state"] for file in sorted((shell.work / path).rglob("model_optim_rng.pt"))]


def exchange(metadata, first, second):
    """Two objects lie where the other did."""
    places = metadata.state["storage_data"]
    a, b = (next(index for index in places if index.state["fqn"] == name) for name in (first, second))
    places[a], places[b] = places[b], places[a]


def rng_states_of_expert_parallel_ranks(shell, fixtures):
    """Each rank gets the state of the first data-parallel rank at its place, of whatever grid; that of others is dropped, and told."""
    one, two = "mp_rank_00_000", "mp_rank_00_001"
    named_ranks(shell, fixtures, "moe-legacy-ep2", "legacy")
    shell("convert", "legacy", "grid", "--to", "torch_dist", "--layout", "ep=2,dp=4", "--quiet")
    assert rng_objects(shell, "grid") == [(f"shard_0.0.{i}_1.1.4", name) for i, name in enumerate((one, two, one, two))]
    said = converted(shell, "grid", "back", "--to", "megatron", "--layout", "ep=2")
    assert rng_files(shell, "back") == [one, two], rng_files(shell, "back")
    assert "dropped: rng_state: those of ranks that the target has no files of (2)" in said, said
    torch_stub.edit_pickle(shell.work / "grid" / METADATA,
                           lambda metadata: exchange(metadata, "rng_state/shard_0.0.2_1.1.4", "rng_state/shard_0.0.3_1.1.4"))
    shell("convert", "grid", "again", "--to", "megatron", "--layout", "ep=2", "--quiet")
    assert rng_files(shell, "again") == [one, two], rng_files(shell, "again")
    # Ranks of context parallelism have their cells, too.
    named_ranks(shell, fixtures, "moe-legacy-ep2", "context", context_parallel_size=2, world_size=4, data_parallel_size=2)
    shell("convert", "context", "cells", "--to", "torch_dist", "--quiet")
    assert rng_objects(shell, "cells") == [(f"shard_0.0.{i}_1.1.4", name) for i, name in enumerate((one, two, one, two))]


def rng_states_that_ranks_share_are_told(shell, fixtures):
    """Ranks that the source does not have draw the same numbers as the first one: that is said."""
    text = "changed: rng_state: 1 of 2 ranks have none of their own in the source, get the first one's and draw the same numbers"
    for case in ("optim-dense-legacy-tp1", "dense-dist-tp1"):
        assert text in converted(shell, fixture(fixtures, case), "out", "--to", "megatron", "--layout", "tp=2", "--overwrite"), case
        said = converted(shell, fixture(fixtures, case), "out", "--to", "megatron", "--overwrite")
        assert "rng_state" not in said, said


def states_of_another_world_are_dropped(shell, fixtures):
    """By buffer a run may have another number of data-parallel ranks: objects of each rank of the old world do not fit it."""
    folder = copied(shell, fixtures, "optim-dense-dpr-dp2", "source")
    rng = "rng_state/shard_0.0_1.1"

    def add(metadata):
        entries, places = metadata.state["state_dict_metadata"], metadata.state["storage_data"]
        index = next(index for index in places if index.state["fqn"] == rng)
        for rank in range(2):
            name = f"rerun_state_machine_state/shard_{rank}_2"
            entries[name] = entries[rng]
            places[index.remade(fqn=name)] = places[index]
    torch_stub.edit_pickle(folder / METADATA, add)
    torch_stub.edit(folder / COMMON, lambda content: content.update(rerun_state_machine={"mode": None, "state": None}))

    def kept(path):
        return sorted(key for key in item_keys(shell, path) if key.startswith(("rerun", "rng_state/")))

    words, all_of = ["--to", "torch_dist", "-o", "optimizer=dp_reshardable", "--overwrite"], kept("source")
    assert len(all_of) == 4, all_of
    for ranks in (2, 4):
        said = converted(shell, "source", "out", *words, "--layout", f"dp={ranks}")
        assert kept("out") == (all_of if ranks == 2 else [rng]), kept("out")
        assert item(shell, "out", "args")["world_size"] == ranks
        assert ("dropped: rerun_state_machine: it belongs to the layout" in said) == (ranks == 4), said
    said = converted(shell, "source", "out", "--like", fixture(fixtures, "optim-dense-dpr-dp2"), "--layout", "dp=4", "--overwrite")
    assert kept("out") == [rng], said
    # Megatron Core 0.16 keeps an RNG state of each of them where experts are parallel.
    for ranks in (2, 4):
        converted(shell, fixture(fixtures, "optim-moe-full-ep2"), "out", *words, "--layout", f"ep=2,dp={ranks}")
        assert len(kept("out")) == (2 if ranks == 2 else 0), kept("out")
        assert bool(item(shell, "out", "args")["no_save_rng"]) == (ranks == 4), ranks


def grids_of_ranks_have_limits(shell, fixtures):
    """Arguments that speak of many ranks ask for as many objects."""
    def many(content):
        content["args"].state.update(tensor_model_parallel_size=100, pipeline_model_parallel_size=100)
        content["rng_state"] = [{"numbers": list(range(6))}]
    torch_stub.edit(copied(shell, fixtures, "dense-dist-tp1", "many") / COMMON, many)
    said = refused(shell, "many", "out", "--to", "torch_dist", "--limit", "objects=9999", status=6)
    assert "objects: found 10000, the limit is 9999" in said, said


def groups_of_other_frameworks_are_told(shell, fixtures):
    """atorch's folders have groups of atorch; what others call an optimizer is dropped, and is no source without groups."""
    said = converted(shell, fixture(fixtures, "optim-plain-dist-tp1"), "out", "--to", "atorch")
    assert "changed: optim_meta: the source has groups of parameters in no form that is read here: one of all" in said, said


def main():
    args = small_models.arguments()
    tests = (references_have_their_own_layout, a_layout_that_is_asked_for, lacks_are_told_by_parameter, state_that_is_stored_twice,
             steps_of_parameters_are_kept, steps_that_differ_are_refused, state_of_torch_becomes_megatrons,
             state_becomes_paddles, state_that_nobody_looks_for,
             state_of_torch_that_megatron_has_not, state_without_names_is_told, options_that_are_tensors,
             groups_of_two_optimizers_are_told, state_that_is_no_tensor_is_told,
             names_of_a_reference_are_torchs, weights_of_atorch_may_be_called_as_states,
             options_may_be_many, remainders_stay_beside_their_weights,
             scalers_are_experts_too, rates_of_groups_are_experts_too, optimizers_that_are_several_are_refused,
             buckets_are_counted_for_all_parameters, rng_states_of_expert_parallel_ranks,
             rng_states_that_ranks_share_are_told, states_of_another_world_are_dropped, grids_of_ranks_have_limits,
             groups_of_other_frameworks_are_told)
    return small_models.run(args.bin, [(test.__doc__, lambda shell, test=test: test(shell, args.fixtures)) for test in tests])


if __name__ == "__main__":
    raise SystemExit(main())
