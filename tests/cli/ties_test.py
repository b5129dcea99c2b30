#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tied tensors through every format that can hold ties, judged by the bytes of the files: Python's pickle, zipfile and json read them.

usage: ties_test.py --bin RESHARD --fixtures DIR
"""
import argparse
import json
import pathlib
import pickle
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import small_models  # noqa: E402
import torch_stub  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "paddle"))
import strategies  # noqa: E402

HIDDEN, WIDE, WORDS = 8, 12, 256
RANK_1 = "model_world_size_2_rank_1.pt"
FIXTURES = pathlib.Path()


# ---- what is found ----


def header_of(path):
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def bytes_in(path):
    """{key: its bytes} of a safetensors file."""
    header, data = header_of(path)
    return {key: data[slice(*entry["data_offsets"])] for key, entry in header.items() if key != "__metadata__"}


def tensors_of(value, prefix=""):
    """{key: Tensor} of a nested value, with keys joined as in manifests."""
    if isinstance(value, torch_stub.Tensor):
        return {prefix: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    found = {}
    for key, member in pairs:
        found |= tensors_of(member, f"{prefix}.{key}" if prefix else str(key))
    return found


def view(tensor):
    return tensor.storage.key, tensor.offset, tensor.size, tensor.stride


def groups_by(keys, what):
    """Keys in groups of what is the same."""
    groups = {}
    for key in keys:
        groups.setdefault(what(key), set()).add(key)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


def groups_listed(sh, path):
    """Ties as `ls` lists them."""
    tied = {t["key"]: t.get("tied_to", t["key"]) for t in json.loads(sh("ls", "--json", path))["tensors"]}
    return groups_by(tied, tied.get)


def must_be(what, found, expected):
    assert found == expected, f"{what}: {str(found)[:300]} instead of {str(expected)[:300]}"


# ---- torch files ----


def tied_fixtures():
    for manifest in sorted(FIXTURES.glob("torch-file/*/manifest.json")):
        case = json.loads(manifest.read_text())
        also = case.get("also") or {}
        if also.get("tied") and not case["expect"]["error"] and not also.get("may_refuse"):
            yield case["case"], manifest.parent / case["path"], {frozenset(group) for group in also["tied"]}


def torch_to_torch(sh):
    cases = list(tied_fixtures())
    assert len(cases) >= 2, f"{len(cases)} fixtures have ties"
    for name, path, groups in cases:
        must_be(f"{name}: ls", groups_listed(sh, path), groups)
        for number, options in enumerate([[], ["-o", "views=compact"], ["--dtype", "f64"]]):
            out = f"{name}.{number}.pt"
            sh("convert", path, out, "--to", "torch", *options)
            tensors = tensors_of(torch_stub.load(sh.work / out))
            found = groups_by(tensors, lambda key: view(tensors[key]))
            assert groups <= found, f"{name} {options}: {found} instead of {groups}"
            must_be(f"{name} {options}: ls", groups_listed(sh, out), groups)


def four_names(sh):
    """One storage under four names, a view of it, and an equal tensor that is not tied."""
    data = struct.pack("<8f", *range(8))
    first = torch_stub.tensor("FloatStorage", [4, 2], data)
    same = {key: torch_stub.Tensor(first.storage, 0, (4, 2), (2, 1)) for key in ("tied", "also", "zuletzt")}
    more = {"turned": torch_stub.Tensor(first.storage, 0, (2, 4), (1, 2)), "twin": torch_stub.tensor("FloatStorage", [4, 2], data)}
    path = sh.work / "four.pt"
    torch_stub.write_zip(path, {"first": first, **same, **more})
    return path, data


def the_first_is_left_out(sh):
    path, _ = four_names(sh)
    sh("convert", path, "rest.pt", "--to", "torch", "--exclude", "first")
    tensors = torch_stub.load(sh.work / "rest.pt")
    must_be("torch", groups_by(["tied", "also", "zuletzt", "twin"], lambda key: view(tensors[key])),
            {frozenset({"tied", "also", "zuletzt"})})
    sh("convert", path, "rest.safetensors", "--to", "safetensors", "-o", "tied=drop", "--exclude", "first")
    header, _ = header_of(sh.work / "rest.safetensors")
    must_be("safetensors", header["__metadata__"], {"format": "pt", "tied": "also", "zuletzt": "also"})


def different_types_are_not_tied(sh):
    path, _ = four_names(sh)
    sh("convert", path, "types.pt", "--to", "torch", "--dtype", "tied=bf16")
    tensors = torch_stub.load(sh.work / "types.pt")
    must_be("storages", groups_by(["first", "tied", "also", "zuletzt"], lambda key: tensors[key].storage.key),
            {frozenset({"first", "also", "zuletzt"})})
    must_be("type", tensors["tied"].storage.kind, "BFloat16Storage")


# ---- safetensors ----


def drop_in_safetensors(sh):
    path, data = four_names(sh)
    for source in (path, legacy_twin(sh)):
        sh("convert", source, "drop.safetensors", "--to", "safetensors", "-o", "tied=drop", "--overwrite")
        header, _ = header_of(sh.work / "drop.safetensors")
        must_be("metadata", header["__metadata__"], {"format": "pt", "first": "also", "tied": "also", "zuletzt": "also"})
        found = bytes_in(sh.work / "drop.safetensors")
        must_be("keys", set(found), {"also", "turned", "twin"})
        must_be("bytes", found["also"], data)


def legacy_twin(sh):
    path = sh.work / "four.legacy.pt"
    torch_stub.write_legacy(path, torch_stub.load(sh.work / "four.pt"))
    return path


def drop_in_hf(sh):
    path, data = four_names(sh)
    sh("convert", path, "drop", "--to", "hf", "-o", "tied=drop", "--max-shard-size", "32")
    index = json.loads((sh.work / "drop/model.safetensors.index.json").read_text())
    must_be("index", set(index["weight_map"]), {"also", "turned", "twin"})
    must_be("ties in the index", {key: value for key, value in index["metadata"].items() if key != "total_size"},
            {"first": "also", "tied": "also", "zuletzt": "also"})
    must_be("total_size", index["metadata"]["total_size"], 96)
    must_be("bytes", bytes_in(sh.work / "drop" / index["weight_map"]["also"])["also"], data)


def copies(sh):
    path, data = four_names(sh)
    for options in ([], ["-o", "tied=copy"]):
        sh("convert", path, "copy.safetensors", "--to", "safetensors", "--overwrite", *options)
        found = bytes_in(sh.work / "copy.safetensors")
        must_be("keys", set(found), {"first", "tied", "also", "zuletzt", "turned", "twin"})
        must_be("bytes", {key for key in found if found[key] == data}, set(found) - {"turned"})
    for name in ("torch-dcp", "zarr"):
        sh("convert", path, name, "--to", name)
        hashes = {t["hash"] for key, t in sh.tensors(name).items() if key not in ("turned", "twin")}
        must_be(f"{name}: digests", len(hashes), 1)
        must_be(f"{name}: keys", set(sh.tensors(name)), {"first", "tied", "also", "zuletzt", "turned", "twin"})


def metadata_of_save_model(sh):
    """What safetensors' save_model recorded stays recorded."""
    source = FIXTURES / "safetensors/safetensors-save-model-tied/ckpt.safetensors"
    sh("convert", source, "again.safetensors", "--to", "safetensors")
    must_be("metadata", header_of(sh.work / "again.safetensors")[0]["__metadata__"], header_of(source)[0]["__metadata__"])


def recorded_ties_are_renamed(sh):
    """Names that save_model recorded change with those of tensors; what is no tie any more is told, and left out."""
    source = FIXTURES / "safetensors/safetensors-save-model-tied/ckpt.safetensors"
    (sh.work / "words.map").write_text("embed.weight -> words.weight\nwhole -> whole\n")
    head, part = {"head.weight": "embed.weight"}, {"part": "whole"}
    for options, expected, lost in (
            (["--add-prefix", "q."], {"q.head.weight": "q.embed.weight", "q.part": "q.whole"}, None),
            (["--rename", "s/head/lm_head/"], {"lm_head.weight": "embed.weight"} | part, None),
            (["--rename", "s/embed/words/"], {"head.weight": "words.weight"} | part, None),
            (["--rename", "s/head/embed/"], part, "head.weight"), (["--exclude", "embed.*"], part, "head.weight"),
            (["--map", "words.map"], part, "head.weight"), (["--dtype", "bf16"], head | part, None)):
        done = sh.any("convert", source, "named", "--to", "torch", "--overwrite", *options)
        assert done.returncode == 0 and "dropped: __metadata__.head.weight: str" in done.stderr, done
        for to in ("safetensors", "hf"):
            done = sh.any("convert", source, "named", "--to", to, "--overwrite", *options)
            assert done.returncode == 0, done
            must_be(f"{options} {to}", json.loads(sh("cat", "named", "__metadata__")), {"format": "pt"} | expected)
            assert (f"dropped: {lost}: was recorded as tied" in done.stderr) == bool(lost), done.stderr
    path, _ = four_names(sh)
    sh("convert", path, "drop", "--to", "hf", "-o", "tied=drop", "--max-shard-size", "32")
    sh("convert", "drop", "again", "--to", "hf", "--max-shard-size", "32", "--add-prefix", "q.")
    index = json.loads((sh.work / "again/model.safetensors.index.json").read_text())
    must_be("index", index["metadata"], {"total_size": 96, "q.first": "q.also", "q.tied": "q.also", "q.zuletzt": "q.also"})


# ---- Megatron ----


def llama(sh, name, tied):
    folder = sh.work / name
    folder.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": WIDE,
              "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": WORDS, "tie_word_embeddings": tied,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 32, "hidden_act": "silu", "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [WORDS, HIDDEN],
              "model.norm.weight": [HIDDEN]} | ({} if tied else {"lm_head.weight": [WORDS, HIDDEN]})
    for i in range(2):
        layer = f"model.layers.{i}."
        for part, shape in {"input_layernorm": [HIDDEN], "self_attn.q_proj": [HIDDEN, HIDDEN], "self_attn.k_proj": [4, HIDDEN],
                            "self_attn.v_proj": [4, HIDDEN], "self_attn.o_proj": [HIDDEN, HIDDEN], "post_attention_layernorm": [HIDDEN],
                            "mlp.gate_proj": [WIDE, HIDDEN], "mlp.up_proj": [WIDE, HIDDEN], "mlp.down_proj": [HIDDEN, WIDE]}.items():
            shapes[f"{layer}{part}.weight"] = shape
    small_models.write(folder / "model.safetensors", shapes)
    return folder


def rank_of(root, tp, pp):
    folder = f"mp_rank_{tp:02}_{pp:03}" if pp is not None else f"mp_rank_{tp:02}"
    return next(root.glob(f"*/{folder}/model_optim_rng.pt"))


def megatron_copy(sh):
    llama(sh, "llama", True)
    sh("convert", "llama", "mg", "--to", "megatron", "--layout", "tp=2,pp=2")
    words = bytes_in(sh.work / "llama/model.safetensors")["model.embed_tokens.weight"]
    for tp in range(2):
        first, last = (torch_stub.load(rank_of(sh.work / "mg", tp, pp)) for pp in range(2))
        half = words[tp * len(words) // 2 :][: len(words) // 2]
        must_be("first stage", first["model"]["embedding.word_embeddings.weight"].storage.data, half)
        must_be("last stage", last["model"]["output_layer.weight"].storage.data, half)
        must_be("argument", [stage["args"].state["untie_embeddings_and_output_weights"] for stage in (first, last)], [False, False])
    assert "output_layer.weight" not in sh.tensors("mg"), "the copy is a tensor of its own"
    sh("verify", "mg")
    sh("convert", "mg", "one", "--to", "megatron", "--layout", "tp=1,pp=1")
    whole = torch_stub.load(rank_of(sh.work / "one", 0, None))
    assert "output_layer.weight" not in whole["model"], "one stage has no copy"
    sh("convert", "mg", "back", "--to", "hf", "--rules", "llama")
    must_be("there and back", bytes_in(sh.work / "back/model.safetensors"), bytes_in(sh.work / "llama/model.safetensors"))


def megatron_copy_that_differs(sh):
    llama(sh, "llama", True)
    sh("convert", "llama", "mg", "--to", "megatron", "--layout", "tp=1,pp=2")
    path = rank_of(sh.work / "mg", 0, 1)
    data = bytearray(path.read_bytes())
    at = data.index(bytes_in(sh.work / "llama/model.safetensors")["model.embed_tokens.weight"])
    data[at + 100] ^= 1
    path.write_bytes(data)
    said = sh("verify", "mg", exit_status=1).decode()
    assert "embedding.word_embeddings.weight" in said and "differ" in said, said


def megatron_untied(sh):
    llama(sh, "llama", False)
    sh("convert", "llama", "mg", "--to", "megatron", "--layout", "tp=1,pp=2")
    wanted = bytes_in(sh.work / "llama/model.safetensors")
    last = torch_stub.load(rank_of(sh.work / "mg", 0, 1))
    must_be("output layer", last["model"]["output_layer.weight"].storage.data, wanted["lm_head.weight"])
    must_be("argument", last["args"].state["untie_embeddings_and_output_weights"], True)
    assert "output_layer.weight" in sh.tensors("mg")
    sh("convert", "mg", "back", "--to", "hf", "--rules", "llama")
    must_be("there and back", bytes_in(sh.work / "back/model.safetensors"), wanted)


def megatron_without_arguments(sh):
    """Tensors alone tell whether the embedding is tied, and whether the activation is gated: it halves the rows of the first matrix."""
    layer = "decoder.layers.0."
    rest = {"embedding.word_embeddings.weight": [WORDS, HIDDEN], f"{layer}self_attention.linear_qkv.weight": [3 * HIDDEN, HIDDEN],
            f"{layer}self_attention.linear_proj.weight": [HIDDEN, HIDDEN], "decoder.final_layernorm.weight": [HIDDEN]}
    second = {f"{layer}mlp.linear_fc2.weight": [HIDDEN, WIDE]}
    plain, gated = ({f"{layer}mlp.linear_fc1.weight": [rows, HIDDEN]} for rows in (WIDE, 2 * WIDE))
    for name, shapes, is_untied, is_gated in (("tied", rest | plain | second, False, False),
                                              ("untied", rest | plain | second | {"output_layer.weight": [WORDS, HIDDEN]}, True, False),
                                              ("gated", rest | gated | second, False, True),
                                              ("gated-first", gated | second | rest, False, True),
                                              ("gated-last", second | rest | gated, False, True)):
        small_models.write(sh.work / f"{name}.safetensors", shapes)
        sh("convert", f"{name}.safetensors", name, "--to", "megatron", "--layout", "tp=1,pp=1", "--rules", "none")
        arguments = torch_stub.load(rank_of(sh.work / name, 0, None))["args"].state
        must_be(name, (arguments["untie_embeddings_and_output_weights"], arguments["swiglu"]), (is_untied, is_gated))


def ties_in_paddle(sh):
    """One array under several names of a .pdparams is one tensor with ties to the first, wherever in the file it stands."""
    shard = strategies.Array("<f4", (2, 2), bytes(range(16)))
    other = strategies.Array("<f4", (2, 2), bytes(range(16, 32)))
    with strategies.Pickles():
        state = {"a": other, "b": strategies.Array("<f4", (3,), bytes(12)), "c": shard, "d": other, "e": shard, "f": shard}
        (sh.work / "model.pdparams").write_bytes(pickle.dumps(state, 4))
    must_be("ties", groups_listed(sh, "model.pdparams"), {frozenset("ad"), frozenset("cef")})


def ties_in_files_of_ranks(sh):
    """What is the same piece of the same storage in each rank's file is tied; where one file says otherwise it is not."""
    path, data = four_names(sh)
    apart = {key: torch_stub.tensor("FloatStorage", [4, 2], data) for key in ("first", "tied", "also", "zuletzt", "twin")}
    torch_stub.write_zip(sh.work / "apart.pt", apart | {"turned": torch_stub.tensor("FloatStorage", [2, 4], data)})
    for name, source in (("ranks", path), ("apart", "apart.pt")):
        sh("convert", source, name, "--to", "fsdp-ranks", "--layout", "ranks=2")

    must_be("ranks", groups_listed(sh, "ranks"), {frozenset({"first", "tied", "also", "zuletzt"})})
    must_be("apart", groups_listed(sh, "apart"), set())
    sh("convert", "ranks", "ranks.safetensors", "--to", "safetensors", "-o", "tied=drop")
    must_be("bytes", bytes_in(sh.work / "ranks.safetensors")["also"], data)
    (sh.work / "apart" / RANK_1).replace(sh.work / "ranks" / RANK_1)
    must_be("a file that says otherwise", groups_listed(sh, "ranks"), set())


# ---- states of tied weights, beside a reference ----


def halves(sh):
    """Two names of one weight, with a state of one of them and of both; m.*: the former under other names."""
    weight, state = struct.pack("<8f", *range(8)), struct.pack("<8f", *range(8, 16))
    half = {"emb.weight": weight, "head.weight": weight, "emb.weight.moment1_0": state}
    for name, tensors in (("half", half), ("all", half | {"head.weight.moment1_0": state}),
                          ("m", {f"m.{key}": data for key, data in half.items()})):
        header, data = {}, b""
        for key, values in tensors.items():
            header[key] = {"dtype": "F32", "shape": [2, 4], "data_offsets": [len(data), len(data) + 32]}
            data += values
        text = json.dumps(header).encode()
        (sh.work / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return set(half) | {"head.weight.moment1_0"}


def convert_like(sh, source, like, *options):
    """{key: type} of what is written, which is read back."""
    sh("convert", f"{source}.safetensors", "out.safetensors", "--like", f"{like}.safetensors", "--verify", "--overwrite", *options)
    return {t["key"]: t["dtype"] for t in json.loads(sh("ls", "--json", "out.safetensors"))["tensors"]}


def spare_states(sh):
    """A state is spare only where the other one is written."""
    every = halves(sh)
    must_be("one state of both", set(convert_like(sh, "all", "half")), every - {"head.weight.moment1_0"})
    must_be("the other weight is not selected", set(convert_like(sh, "all", "half", "--include", "head*")),
            {"head.weight", "head.weight.moment1_0"})
    must_be("the other state is not selected", set(convert_like(sh, "all", "half", "--exclude", "emb.weight.moment1_0")),
            every - {"emb.weight.moment1_0"})
    must_be("neither is selected", set(convert_like(sh, "all", "half", "--exclude", "*moment1_0")), {"emb.weight", "head.weight"})


def second_states(sh):
    """The reference's names are compared with those that are written, and types are of those, too."""
    every = halves(sh)
    for source, options in (("half", []), ("m", ["--strip-prefix", "m."]), ("m", ["--rename", r"s/^m[.]//"])):
        must_be(f"{source} {options}", set(convert_like(sh, source, "all", *options)), every)
    must_be("a second state that is not selected", set(convert_like(sh, "half", "all", "--exclude", "head.weight.*")),
            every - {"head.weight.moment1_0"})
    must_be("other names than the reference's", set(convert_like(sh, "half", "all", "--add-prefix", "x.")),
            {f"x.{key}" for key in every - {"head.weight.moment1_0"}})
    must_be("one state less under the new names", set(convert_like(sh, "all", "m", "--add-prefix", "m.")),
            {f"m.{key}" for key in every - {"head.weight.moment1_0"}})
    must_be("types", convert_like(sh, "half", "all", "--dtype", "bf16"), dict.fromkeys(every, "BF16"))
    must_be("a type of one of them", convert_like(sh, "half", "all", "--dtype", "head.*=bf16"),
            {key: "BF16" if key.startswith("head") else "F32" for key in every})


TESTS = [("spare states", spare_states), ("second states", second_states),
         ("one array under several names in Paddle's files", ties_in_paddle), ("files of ranks", ties_in_files_of_ranks),
         ("torch to torch: one storage under all names", torch_to_torch),
         ("the first name is left out", the_first_is_left_out),
         ("tensors of different types are not tied", different_types_are_not_tied), ("tied=drop in safetensors", drop_in_safetensors),
         ("tied=drop in hf", drop_in_hf), ("formats without ties hold copies", copies),
         ("what save_model recorded", metadata_of_save_model),
         ("recorded names change", recorded_ties_are_renamed), ("Megatron's last stage holds a copy", megatron_copy),
         ("a copy that differs is found", megatron_copy_that_differs), ("Megatron without ties", megatron_untied),
         ("Megatron without arguments", megatron_without_arguments)]


def main():
    global FIXTURES
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", type=pathlib.Path, required=True)
    args = parser.parse_args()
    FIXTURES = args.fixtures.resolve()
    sys.exit(small_models.run(args.bin, TESTS))


main()
