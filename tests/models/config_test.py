#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where config.json, or the arguments of a run, do not go with the tensors of a model: that is said, or refused, and no plausible
configuration is made of arguments that it cannot say. Prints TAP, a test a case.

usage: config_test.py --bin PATH
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).resolve().parent.parent)]
import families  # noqa: E402
import models_test  # noqa: E402
import torch_stub as torch  # noqa: E402


def case(name, **more):
    return {key: value for key, value in {**families.CASES[name][0], **more}.items() if key != "copies"}


class Work:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.count = binary, pathlib.Path(folder), 0

    def hf(self, config, change=lambda tensors: None, **said):
        """A folder with the tensors of one config.json, changed, beside another config.json. ...: it does not say that."""
        self.count += 1
        tensors = families.hf_model({**config, "copies": False}, models_test.random_elements(str(config)))
        change(tensors)
        said = {key: value for key, value in {**config, **said}.items() if value is not ...}
        return models_test.write_folder(self.folder / f"hf{self.count}", tensors, said)

    def convert(self, source, *words, status=0):
        """Where the target is, and what was said."""
        self.count += 1
        target = self.folder / f"out{self.count}"
        done = subprocess.run([self.binary, "convert", source, target, "--no-sync", *words], capture_output=True, text=True, timeout=300)
        said = done.stdout + done.stderr
        assert done.returncode == status, f"convert {' '.join(map(str, words))}: exit {done.returncode}, not {status}: {said[:1500]}"
        assert status == 0 or not target.exists(), "something was written all the same"
        return target, said

    def megatron(self, source, *words, status=0):
        return self.convert(source, "--to", "megatron", "--layout", "tp=1", *words, status=status)

    def rank_file(self, config, **arguments):
        """A legacy file of the model, with the arguments that its config.json gives, but for these."""
        there = self.megatron(self.hf(config))[0]
        path = next(there.rglob("model_optim_rng.pt"))
        state = torch.load(path)
        members = {key: torch.Named("torch", value.__name__) if isinstance(value, type) else value
                   for key, value in {**state["args"].state, **arguments}.items()}
        torch.write_zip(path, {**state, "args": argparse.Namespace(**{k: v for k, v in members.items() if v is not ...})})
        return there

    def arguments(self, source):
        there, said = self.megatron(source)
        return torch.load(next(there.rglob("model_optim_rng.pt")))["args"].state, said

    def back(self, source, status=0):
        """config.json as it is made of arguments, None if it is not, and what was said."""
        target, said = self.convert(source, "--to", "hf", "--rules", "auto", status=status)
        path = target / "config.json"
        return json.loads(path.read_text()) if path.exists() else None, said


# ---- Hugging Face to Megatron ----


def says(work, source, *words, status=0, more=()):
    said = work.megatron(source, *more, status=status)[1]
    for word in words:
        assert word in said, f"'{word}' is not said: {said}"
    return said


def numbers_that_contradict(work):
    """Shapes that are not config.json's are refused: with wrong numbers of heads the rows of q, k and v would be put together wrongly."""
    llama = case("llama", head_dim=4)
    for member, value in (("num_key_value_heads", 6), ("num_key_value_heads", 1), ("num_attention_heads", 2), ("num_attention_heads", 12),
                          ("head_dim", 8), ("vocab_size", 15), ("intermediate_size", 12)):
        source = work.hf(llama, **{member: value})
        says(work, source, status=4)
        says(work, source, more=("--set", f"{member}={llama[member]}"))
    said = says(work, work.hf(llama, vocab_size=15), "config.json: 2 tensors have another shape than it asks for: "
                "'model.embed_tokens.weight' has shape [13,24], expected is [15,24]", "--config FILE", "--set NAME=NUMBER", status=4)
    assert "warning" not in said, said
    says(work, work.hf(llama, num_key_value_heads=...), "k_proj.weight' has shape [8,24], expected is [24,24]", status=4)
    says(work, work.hf(llama, num_key_value_heads=...), more=("--set", "num_key_value_heads=2"))
    says(work, work.hf(case("ernie4_5-moe"), num_key_value_heads=3), "k_proj.weight' has shape [12,24], expected is [18,24]", status=4)
    said = work.convert(work.hf(llama, num_key_value_heads=6), "--to", "paddle-flex", "--rules", "llama", status=4)[1]
    assert "k_proj.weight' has shape [8,24], expected is [24,24]" in said, said


def missing_tensors(work):
    """What config.json asks for and is not there is said, and what nobody asks for."""
    llama = case("llama", head_dim=4)

    def without(*ends):
        return lambda tensors: [tensors.pop(key) for key in list(tensors) if key.endswith(ends)]

    for ends, count in (((".1.mlp.down_proj.weight",), 1), ((".1.input_layernorm.weight",), 1), (("lm_head.weight",), 1),
                        (tuple(f".1.self_attn.{x}_proj.weight" for x in "qkv"), 3)):
        says(work, work.hf(llama, without(*ends)), f"{count} tensors that it asks for are missing: 'model.layers.1" if count > 1 or
             "lm_head" not in ends[0] else "1 tensors that it asks for are missing: 'lm_head.weight'")
    says(work, work.hf(llama, num_hidden_layers=3), "9 tensors that it asks for are missing: 'model.layers.2.input_layernorm.weight'")
    biased = case("qwen2")
    says(work, work.hf(biased, without(".0.self_attn.q_proj.bias")),
         "1 tensors that it asks for are missing: 'model.layers.0.self_attn.q_proj.bias'")
    said = says(work, work.hf(llama, num_hidden_layers=1), "9 tensors are none that it asks for")
    assert "missing" not in said, said
    assert "it asks for" not in says(work, work.hf(llama)) and "missing" not in says(work, work.hf(llama, without("lm_head.weight")),
                                                                                   more=("--exclude", "decoder.final_layernorm.weight"))


def models_as_they_are(work):
    """Nothing is said of models that go with their config.json, of any family."""
    for name in families.CASES:
        for to in (["--to", "megatron", "--layout", "tp=1"], ["--to", "torch_dist"]):
            said = work.convert(work.hf(case(name)), *to)[1]
            assert "it asks for" not in said and "held against" not in said, f"{name}: {said}"


def tied_output_layer(work):
    """An output layer that is stored though the embedding is it stays behind, also where only the family says that it is tied."""
    def stored(key):
        return lambda tensors: tensors.update({"lm_head.weight": tensors[key]})
    for name, said in (("llama-tied", {}), ("ernie4_5", {"tie_word_embeddings": ...}), ("gpt2", {"tie_word_embeddings": ...}),
                       ("ernie4_5-moe", {"tie_word_embeddings": ...})):
        config = case(name, tie_word_embeddings=True)
        source = work.hf(config, stored("transformer.wte.weight" if name == "gpt2" else "model.embed_tokens.weight"), **said)
        there, told = work.megatron(source)
        state = torch.load(next(there.rglob("model_optim_rng.pt")))
        assert "output_layer.weight" not in state["model"], name
        assert state["args"].state["untie_embeddings_and_output_weights"] is False, name
        assert "dropped: lm_head.weight" in told and "though config.json ties it" not in told, told
    differing = work.hf(case("llama-tied"), lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"][::-1]}))
    told = work.megatron(differing)[1]
    assert "warning: lm_head.weight: is not 'model.embed_tokens.weight', though config.json ties it" in told, told
    there, told = work.megatron(differing, "--set", "tie_word_embeddings=0")
    state = torch.load(next(there.rglob("model_optim_rng.pt")))
    assert "output_layer.weight" in state["model"] and "ties it" not in told, told
    assert state["args"].state["untie_embeddings_and_output_weights"] is True, state["args"].state
    for name in ("llama", "gpt2-untied", "ernie4_5"):
        state = torch.load(next(work.megatron(work.hf(case(name)))[0].rglob("model_optim_rng.pt")))
        assert "output_layer.weight" in state["model"], name


def a_window_that_is_not_said(work):
    """Mistral's window is 4096 where config.json does not speak of it, and none where it says null."""
    config = case("mistral")
    assert work.arguments(work.hf(config))[0]["window_size"] == (4095, 0)
    assert "window_size" not in work.arguments(work.hf(config, sliding_window=None))[0]
    assert "window_size" not in work.arguments(work.hf(case("mixtral")))[0]


def ernie_routing(work):
    """Megatron has no softmax for routers with a bias: the arguments say sigmoid, and a warning that it is another routing."""
    source = work.hf(case("ernie4_5-moe"))
    made, said = work.arguments(source)
    assert made["moe_router_enable_expert_bias"] is True and made["moe_router_score_function"] == "sigmoid", made
    assert made["moe_router_pre_softmax"] is False and "warning: args: experts are weighed by" in said, said
    found, said = work.back(work.megatron(source)[0])
    assert found["model_type"] == "ernie4_5_moe" and "routing is approximated" in said, said


# ---- Megatron to Hugging Face ----

NEUTRAL = {"no_rope_freq": None, "qk_l2_norm": False, "apply_residual_connection_post_layernorm": False, "softmax_type": "vanilla",
           "window_attn_skip_freq": None, "moe_router_topk_scaling_factor": None, "moe_router_num_groups": None,
           "moe_router_group_topk": None, "moe_router_topk_limited_devices": None, "attention_output_gate": False, "moe_layer_freq": 1,
           "glu_linear_offset": 0.0, "activation_func_clamp_value": None}
CHANGED = [("llama", {"no_rope_freq": 4}), ("llama", {"no_rope_freq": [0, 1]}), ("llama", {"qk_l2_norm": True}),
           ("llama", {"apply_residual_connection_post_layernorm": True}), ("llama", {"softmax_type": "learnable"}),
           ("llama", {"glu_linear_offset": 1.0}), ("llama", {"activation_func_clamp_value": 7.0}),
           ("gpt2", {"softmax_type": "off-by-one"}), ("mistral", {"window_attn_skip_freq": 2}), ("mixtral", {"moe_layer_freq": [1, 0]}),
           ("mixtral", {"moe_router_topk_scaling_factor": 2.5}), ("qwen3-moe", {"moe_router_topk_scaling_factor": 2.5}),
           ("qwen3-moe", {"moe_router_num_groups": 2, "moe_router_group_topk": 1}), ("qwen3-moe", {"moe_layer_freq": [2, 1]}),
           ("qwen3-moe", {"moe_router_topk_limited_devices": 1}),
           ("deepseek-v3", {"moe_layer_freq": 2}), ("deepseek-v3", {"moe_layer_freq": [1, 0]}),
           ("deepseek-v2-lite", {"moe_router_pre_softmax": False}), ("ernie4_5-moe", {"moe_router_topk_scaling_factor": 2.5}),
           ("glm4-moe", {"moe_layer_freq": 2}), ("nemotron", {"squared_relu": False}), ("nemotron", {"normalization": "RMSNorm"}),
           ("nemotron", {"rotary_interleaved": True}), ("gpt-oss", {"window_attn_skip_freq": 3}), ("gpt-oss", {"softmax_type": "vanilla"}),
           ("gpt-oss", {"glu_linear_offset": 0.0}), ("gpt-oss", {"position_embedding_type": "rope"}), ("gpt-oss", {"mscale": 0.5})]


def arguments_that_change_nothing(work):
    """Arguments at the default of any release make the configuration that there is without them."""
    for name in ("llama", "mistral", "qwen3-moe", "mixtral", "gpt2", "qwen2"):
        plain = work.back(work.rank_file(case(name), **({"window_size": (31, 0)} if name == "mistral" else {})))[0]
        assert plain and plain["model_type"] == case(name)["model_type"], plain
        source = work.rank_file(case(name), **NEUTRAL, **({"window_size": (31, 0)} if name == "mistral" else {}))
        found, said = work.back(source)
        assert found == plain, f"{name}: {found}, without them {plain}: {said}"


def arguments_that_change_the_model(work):
    """No configuration is made of arguments that it could not say; tensors get their names, and it is said why."""
    for name, arguments in CHANGED:
        source = work.rank_file(case(name), **({"window_size": (31, 0)} if name == "mistral" else {}), **arguments)
        found, said = work.back(source)
        what = next(reversed(arguments))
        assert found is None and "config.json is not made" in said and f"{what} is {arguments[what]!r}" in said, f"{arguments}: {said}"
        assert "model.safetensors" in said or "tensors" in said, said


def norms_that_count_from_one(work):
    """Norms are those of Nemotron by the name of either release; without both they are another model's."""
    for said in ({"apply_layernorm_1p": ...}, {"layernorm_zero_centered_gamma": ...}):
        found, told = work.back(work.rank_file(case("nemotron"), **said))
        assert found and found["model_type"] == "nemotron", told
    found, told = work.back(work.rank_file(case("nemotron"), apply_layernorm_1p=False, layernorm_zero_centered_gamma=False))
    assert found is None and "apply_layernorm_1p is False" in told, told


def experts_in_every_so_many_layers(work):
    """Megatron's number of layers to a layer of experts becomes the layers without any."""
    for name, step, layers, plain in (("qwen2-moe", 2, 3, [1]), ("qwen3-moe", 3, 4, [1, 2]), ("qwen3-moe", 4, 4, [1, 2, 3])):
        source = work.rank_file(case(name, num_hidden_layers=layers, mlp_only_layers=plain), moe_layer_freq=step)
        found, said = work.back(source)
        assert found["mlp_only_layers"] == plain and found["decoder_sparse_step"] == 1 and "it asks for" not in said, (found, said)


def gated_attention(work):
    """Rows of q with a gate behind each head are not taken apart as q, k and v of other models."""
    source = work.rank_file(case("llama"), attention_output_gate=True)
    said = work.back(source, status=5)[1]
    assert "args: attention_output_gate is True" in said and "--rules none" in said, said
    assert "attention_output_gate is True" in work.convert(source, "--to", "paddle-flex", "--rules", "llama", status=5)[1]
    work.convert(source, "--to", "safetensors", "--rules", "none")


def families_that_are_not_known(work):
    """Names stay where nobody knows the family, and it is said which it is."""
    config = case("llama", model_type="gemma2")

    def gemma(tensors):
        for key in [key for key in tensors if "input_layernorm" in key]:
            tensors[key.replace("input_layernorm", "pre_feedforward_layernorm")] = tensors[key]
    source = work.hf(config, gemma)
    there, said = work.megatron(source)
    assert "'gemma2'" in said and "names are kept" in said, said
    assert "model.embed_tokens.weight" in torch.load(next(there.rglob("model_optim_rng.pt")))["model"]
    said = work.megatron(source, "--rules", "auto", status=2)[1]
    assert "'gemma2'" in said, said

    def delta_nets(tensors):
        for key in [key for key in tensors if ".0.self_attn." in key]:
            tensors[key.replace("self_attn.o_proj", "linear_attn.out_proj")] = tensors.pop(key)
    said = work.megatron(work.hf(case("qwen3-moe"), delta_nets, model_type="qwen3_next"))[1]
    assert "'qwen3_next'" in said and "names are kept" in said, said
    for name in ("nemotron", "gpt-oss"):
        work.convert(work.hf(case(name)), "--to", "paddle-flex", "--rules", "auto", status=2)


TESTS = [numbers_that_contradict, missing_tensors, models_as_they_are, tied_output_layer,
         a_window_that_is_not_said, ernie_routing, arguments_that_change_nothing, arguments_that_change_the_model,
         norms_that_count_from_one, experts_in_every_so_many_layers, gated_attention, families_that_are_not_known]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    binary = parser.parse_args().bin
    print(f"1..{len(TESTS)}")
    failed = 0
    for number, test in enumerate(TESTS, 1):
        try:
            with tempfile.TemporaryDirectory() as folder:
                test(Work(binary, folder))
            print(f"ok {number} - {test.__doc__.splitlines()[0]}", flush=True)
        except Exception as error:  # whatever goes wrong is a failure of the case
            failed += 1
            print(f"not ok {number} - {test.__doc__.splitlines()[0]}")
            print("".join(f"# {line}\n" for line in f"{type(error).__name__}: {error}".splitlines()), end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
