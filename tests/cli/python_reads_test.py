#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is written for torch, read by Python's own zipfile and pickle: classes, devices, layouts and arguments that no reader of ours looks
at.

usage: python_reads_test.py --bin PATH
Classes are stood in for, so that torch itself is not needed. Prints TAP.
"""
import argparse
import pathlib
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import small_models
import torch_stub


def read(data):
    reader = torch_stub.InertUnpickler(data)
    return reader.load(), reader


def member(archive, name):
    with zipfile.ZipFile(archive) as opened:
        assert opened.testzip() is None, f"{archive}: a member is damaged"
        full = next(n for n in opened.namelist() if n.split("/", 1)[-1] == name)
        return opened.read(full)


LLAMA = {
    "model.embed_tokens.weight": [16, 8], "model.norm.weight": [8],
    "model.layers.0.input_layernorm.weight": [8], "model.layers.0.post_attention_layernorm.weight": [8],
    **{f"model.layers.0.self_attn.{n}_proj.weight": [8, 8] for n in "qkvo"},
    "model.layers.0.mlp.gate_proj.weight": [12, 8], "model.layers.0.mlp.up_proj.weight": [12, 8],
    "model.layers.0.mlp.down_proj.weight": [8, 12],
}
CONFIG = ('{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_attention_heads": 2, '
          '"num_key_value_heads": 2, "num_hidden_layers": 1,'
          ' "intermediate_size": 12, "vocab_size": 16, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "hidden_act": "silu", '
          '"tie_word_embeddings": %s}')


def write_model(shell, is_tied):
    folder = shell.work / "hf"
    folder.mkdir()
    small_models.write(folder / "model.safetensors", LLAMA if is_tied else {**LLAMA, "lm_head.weight": [16, 8]})
    (folder / "config.json").write_text(CONFIG % ("true" if is_tied else "false"))


def torch_file(shell):
    """Storages are written for the CPU, so that a machine without the writer's GPU can load them."""
    write_model(shell, False)
    shell("convert", "hf", "one.pt", "--to", "torch", "--quiet")
    state, reader = read(member(shell.work / "one.pt", "data.pkl"))
    assert set(state) == set(LLAMA) | {"lm_head.weight"}, sorted(state)
    assert set(reader.classes) == {"torch._utils._rebuild_tensor_v2", "torch.BFloat16Storage"}, sorted(reader.classes)
    assert len(reader.references) == len(state)
    for kind, storage, key, location, count in reader.references:
        assert (kind, location) == ("storage", "cpu"), (kind, location)
        assert (storage.__module__, storage.__name__) == ("torch", "BFloat16Storage"), storage
        assert key.isdecimal() and count > 0, (key, count)
    assert member(shell.work / "one.pt", "byteorder") == b"little"


def dcp_metadata(shell):
    """TensorProperties of strided tensors without gradients; sizes, chunks and places of each."""
    write_model(shell, False)
    shell("convert", "hf", "dcp", "--to", "torch-dcp", "--quiet")
    metadata, _ = read((shell.work / "dcp" / ".metadata").read_bytes())
    entries = metadata.state["state_dict_metadata"]
    shapes = {**LLAMA, "lm_head.weight": [16, 8]}
    assert set(entries) == set(shapes), sorted(entries)
    for key, entry in entries.items():
        dtype, layout, requires_grad, memory_format, pin_memory = entry.state["properties"].state
        assert entry.name.endswith(".TensorStorageMetadata"), entry.name
        assert (dtype.__module__, dtype.__name__) == ("torch", "bfloat16"), dtype
        assert (layout.name, layout.arguments) == ("torch.serialization._get_layout", ("torch.strided",)), layout
        assert (requires_grad, pin_memory) == (False, False), (requires_grad, pin_memory)
        # torch.contiguous_format
        assert memory_format.name.endswith("._MEM_FORMAT_ENCODING") and memory_format.arguments == (0,), memory_format
        assert entry.state["size"].arguments == (tuple(shapes[key]),), entry.state["size"].arguments
        (chunk,) = entry.state["chunks"]
        assert chunk.state["offsets"].arguments == ((0,) * len(shapes[key]),), chunk
        assert chunk.state["sizes"].arguments == (tuple(shapes[key]),), chunk
    assert {place.name
            for place in metadata.state["storage_data"].values()} == {"torch.distributed.checkpoint.filesystem._StorageInfo"}


def lists_in_dcp(shell):
    """A list is told as one where all of its members are there, wherever it lies among the keys; else what is left keeps its flat names."""
    made = {name: torch_stub.tensor("FloatStorage", [2], bytes(8)) for name in "abcde"}
    torch_stub.write_zip(shell.work / "lists.pt", {"a": [made["a"], made["b"]], "b": made["c"], "c": {"d": [made["d"], made["e"]]}})
    said = shell.any("convert", "lists.pt", "whole", "--to", "torch-dcp", "--verbose").stderr
    metadata, _ = read((shell.work / "whole" / ".metadata").read_bytes())
    assert metadata.state["planner_data"] == {"a.0": ("a", 0), "a.1": ("a", 1), "b": ("b",), "c.d.0": ("c", "d", 0), "c.d.1": ("c", "d", 1)}
    assert "members left out" not in said, said
    for key, left in (("a.0", "a.1"), ("c.d.0", "c.d.1")):
        said = shell.any("convert", "lists.pt", "some", "--to", "torch-dcp", "--exclude", key, "--verbose", "--overwrite").stderr
        metadata, _ = read((shell.work / "some" / ".metadata").read_bytes())
        assert metadata.state["planner_data"][left] == (left,) and "lists with members left out" in said, (metadata.state, said)


def arguments_of(shell, source):
    """Arguments that Megatron reads from the files of two ranks, which must agree with the tensors beside them."""
    shell("convert", source, "legacy", "--to", "megatron", "--layout", "tp=2", "--quiet")
    for rank in range(2):
        state, _ = read(member(next((shell.work / "legacy").rglob(f"mp_rank_0{rank}/model_optim_rng.pt")), "data.pkl"))
        arguments = state["args"]
        assert arguments.name == "argparse.Namespace", arguments
        found = arguments.state
        assert found["untie_embeddings_and_output_weights"] is ("output_layer.weight" in state["model"]), found
        assert (found["swiglu"], found["num_layers"], found["hidden_size"], found["tensor_model_parallel_size"]) == (True, 1, 8, 2), found
    return found


def of_a_config(is_tied):
    def check(shell):
        write_model(shell, is_tied)
        found = arguments_of(shell, "hf")
        assert found["untie_embeddings_and_output_weights"] is not is_tied
        assert (found["vocab_size"], found["padded_vocab_size"], found["ffn_hidden_size"]) == (16, 256, 12), found
    return check


def of_tensors_alone(is_tied):
    """No configuration says whether the embedding is the output layer too: that there is no output layer does."""
    def check(shell):
        layer = "decoder.layers.0."
        shapes = {"embedding.word_embeddings.weight": [16, 8], "decoder.final_layernorm.weight": [8],
                  **({} if is_tied else {"output_layer.weight": [16, 8]}), layer + "self_attention.linear_qkv.weight": [24, 8],
                  layer + "self_attention.linear_qkv.layer_norm_weight": [8], layer + "self_attention.linear_proj.weight": [8, 8],
                  layer + "mlp.linear_fc1.weight": [24, 8], layer + "mlp.linear_fc1.layer_norm_weight": [8],
                  layer + "mlp.linear_fc2.weight": [8, 12]}
        small_models.write(shell.work / "model.safetensors", shapes)
        assert arguments_of(shell, "model.safetensors")["untie_embeddings_and_output_weights"] is not is_tied
    return check


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    tests = [("storages of a torch file", torch_file), ("properties in DCP metadata", dcp_metadata),
             ("lists in DCP metadata", lists_in_dcp)]
    for word, is_tied in (("untied", False), ("tied", True)):
        tests += [(f"arguments of an {word} model with a configuration".replace("an tied", "a tied"), of_a_config(is_tied)),
                  (f"arguments of {word} tensors alone", of_tensors_alone(is_tied))]
    return small_models.run(parser.parse_args().bin, tests)


if __name__ == "__main__":
    sys.exit(main())
