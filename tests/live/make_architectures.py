#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the fixtures of Megatron's architectures other than plain GPT: MLA, MTP, Mamba, gated delta nets, BERT and T5.

usage: make_architectures.py --make FOLDER --out FOLDER [--only NAME,…]
FOLDER of --make has megatron_model.py and megatron_lib.py, which made the other cases of Megatron (tests/fixtures/README.md): they run the
real Megatron-LM on CPU, from MEGATRON_TREES (folder with core_v0.16.1/megatron). This adds models to theirs. A seed checkpoint is filled
with random weights and saved at TP1 PP1; every other layout loads it with the real load_checkpoint and saves it again, and is read back.
`mtp-state` and `moe-state`, which --only names, are runs at PP2 with their optimizer's state, by bucket and in legacy files.
Layers are those of --transformer-impl local; kernels of mamba_ssm and of flash-linear-attention, which only a forward pass calls, are stood
in for.
"""
import argparse
import hashlib
import os
import pathlib
import sys
import tempfile
import types

LLAMA = "--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights --bf16"
BASE = "--hidden-size 12 --ffn-hidden-size 20 --vocab-size 21 --make-vocab-size-divisible-by 6 "
MODELS = {
    "mla": LLAMA + " " + BASE
    + "--num-layers 2 --num-attention-heads 4 --multi-latent-attention --q-lora-rank 8 --kv-lora-rank 6 --qk-head-dim 4 "
      "--qk-pos-emb-head-dim 2 --v-head-dim 5", "mtp": LLAMA + " " + BASE + "--num-layers 2 --num-attention-heads 4 --kv-channels 3 "
                                                                            "--mtp-num-layers 1",
    "moe-mixed": LLAMA + " " + BASE
    + "--num-layers 2 --num-attention-heads 4 --kv-channels 3 --num-experts 4 --moe-ffn-hidden-size 6 --moe-layer-freq [1,0]",
    "mtp-moe": LLAMA + " " + BASE
    + "--num-layers 1 --num-attention-heads 4 --kv-channels 3 --mtp-num-layers 1 --num-experts 2 --moe-ffn-hidden-size 4",
    "mamba": LLAMA + " " + BASE
    + "--num-layers 4 --num-attention-heads 4 --kv-channels 3 --hybrid-override-pattern M*M- --is-hybrid-model --mamba-state-dim 4 "
      "--mamba-head-dim 3 --mamba-num-groups 2", "gdn": LLAMA + " " + BASE + "--num-layers 4 --num-attention-heads 4 --kv-channels 3 "
                                                                             "--experimental-attention-variant gated_delta_net "
                                                                             "--linear-attention-freq 2 --linear-conv-kernel-dim 3"
           " --linear-key-head-dim 4 --linear-value-head-dim 3 --linear-num-key-heads 2 --linear-num-value-heads 4",
    "bert": BASE + "--num-layers 2 --num-attention-heads 4",
    "t5": BASE + "--encoder-num-layers 2 --decoder-num-layers 3 --num-attention-heads 4 --encoder-seq-length 16 --decoder-seq-length 12",
}
CUT = {"mla": ("tp2", "tp2pp2"), "mtp": ("tp2", "pp2"), "mamba": ("tp2", "pp2"), "gdn": ("tp2", "pp2"), "bert": ("tp2", "pp2"),
       "t5": ("tp2",), "mtp-moe": ()}
RELEASES = {"mtp-moe": "0.17.1"}  # others are of the maker's
NOTES = {"mla": "multi-latent attention", "moe-mixed": "experts on the first of two stages alone",
         "mtp": "a layer of multi-token prediction", "mtp-moe": "the same with experts, of a release that calls its inner layer otherwise",
         "mamba": "hybrid of Mamba, attention and MLP layers",
         "gdn": "gated delta nets and attention by turns", "bert": "BERT with its binary head", "t5": "encoder and decoder"}


# ---- what a rank does: a server of megatron_lib forks it and calls train_save ----

def stand_in_kernels():
    import importlib
    import megatron.core.ssm.gated_delta_net as delta
    import megatron.core.ssm.mamba_mixer as mamba
    import torch

    class GatedNorm(torch.nn.Module):
        def __init__(self, size, *_, device=None, dtype=None, **__):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(size, dtype=dtype))
    import contextlib
    import inspect
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    build = DotProductAttention.__init__
    known = inspect.signature(build).parameters
    # It has no parameters; MLA tells it the widths of its channels, which only Transformer Engine's takes.
    DotProductAttention.__init__ = lambda self, *a, **k: build(self, *a, **{name: value for name, value in k.items() if name in known})
    multi_latent_attention.TELinear = type("TELinear", (), {})
    CudaRNGStatesTracker.fork = lambda self, *_: contextlib.nullcontext()  # the seed's values are written over what it draws
    delta.HAVE_FLA = True
    for module, names in {"ops.triton.layernorm_gated": ["RMSNorm"],
                          "ops.triton.ssd_combined": ["mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"]}.items():
        stand_in = types.ModuleType("mamba_ssm." + module)
        for name in names:
            setattr(stand_in, name, GatedNorm)
        sys.modules["mamba_ssm." + module] = stand_in
    importlib.reload(mamba)  # a class of it derives from the norm


def mamba_model(args, config, **common):
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.mamba import MambaModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.ssm.mamba_block import MambaStack, MambaStackSubmodules
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core.ssm.mlp_layer import MLPLayer
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
    import megatron.core.ssm.mamba_block as block
    block.TENorm = WrappedTorchNorm
    layer = get_gpt_layer_local_spec(normalization=args.normalization).submodules
    mixer = ModuleSpec(module=MambaMixer, submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear))
    spec = ModuleSpec(module=MambaStack, submodules=MambaStackSubmodules(
        mamba_layer=ModuleSpec(module=MambaLayer,
                               submodules=MambaLayerSubmodules(norm=WrappedTorchNorm, mixer=mixer, mamba_bda=get_bias_dropout_add)),
        attention_layer=ModuleSpec(module=TransformerLayer, submodules=TransformerLayerSubmodules(
            input_layernorm=layer.input_layernorm, self_attention=layer.self_attention, self_attn_bda=get_bias_dropout_add)),
        mlp_layer=ModuleSpec(module=MLPLayer, submodules=TransformerLayerSubmodules(pre_mlp_layernorm=layer.pre_mlp_layernorm,
                                                                                    mlp=layer.mlp, mlp_bda=get_bias_dropout_add))))
    return MambaModel(config=config, mamba_stack_spec=spec, hybrid_override_pattern=args.hybrid_override_pattern,
                      position_embedding_type=args.position_embedding_type, **common)


def delta_spec(args, config):
    """Layers as Transformer Engine names them, for which alone Megatron builds gated delta nets: a linear layer holds the norm before
    it."""
    import copy
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    class NormedLinear(ColumnParallelLinear):
        def __init__(self, input_size, *arguments, **named):
            super().__init__(input_size, *arguments, **named)
            self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=self.weight.dtype))
    attention = get_gpt_layer_local_spec(normalization=args.normalization)
    parts = attention.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = IdentityOp
    parts.self_attention.submodules.linear_qkv = parts.mlp.submodules.linear_fc1 = NormedLinear
    parts.sharded_state_dict_keys_map = {}
    linear = copy.deepcopy(attention)
    linear.submodules.self_attention = ModuleSpec(module=GatedDeltaNet, submodules=GatedDeltaNetSubmodules(
        in_proj=NormedLinear, out_norm=WrappedTorchNorm, out_proj=RowParallelLinear))
    first = get_transformer_layer_offset(config)
    count = args.num_layers // args.pipeline_model_parallel_size
    return TransformerBlockSubmodules(layer_specs=[attention if (first + i) % 2 else linear for i in range(count)],
                                      layer_norm=WrappedTorchNorm)


def gpt_model(args, config, vp_stage, **common):
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization=args.normalization, multi_latent_attention=args.multi_latent_attention,
                                                    qk_layernorm=args.multi_latent_attention)
    more = {}
    if args.num_experts:
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization,
                                                          vp_stage=vp_stage)
    if args.experimental_attention_variant:
        spec = delta_spec(args, config)
    if args.mtp_num_layers:
        more["mtp_block_spec"] = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=vp_stage)
    return GPTModel(config=config, transformer_layer_spec=spec, position_embedding_type=args.position_embedding_type, vp_stage=vp_stage,
                    **more, **common)


def bert_model(args, config, vp_stage, **common):
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel
    return BertModel(config=config, num_tokentypes=2, transformer_layer_spec=bert_layer_local_spec, add_binary_head=True,
                     vp_stage=vp_stage, **common)


def t5_model(args, config, **common):
    from copy import deepcopy
    from megatron.core.models.T5 import t5_spec
    from megatron.core.models.T5.t5_model import T5Model
    encoder = deepcopy(config)
    encoder.num_layers = args.encoder_num_layers
    return T5Model(config=config, encoder_config=encoder,
                   transformer_encoder_layer_spec=t5_spec.get_t5_encoder_with_local_block_spec(args.encoder_num_layers),
                   transformer_decoder_layer_spec=t5_spec.get_t5_decoder_with_local_block_spec(config.num_layers),
                   position_embedding_type="learned_absolute", **common)


def provide(kind):
    """From now on lib builds models of this kind."""
    import megatron_lib as lib
    stand_in_kernels()

    def model_provider(fill_seed=None):
        from megatron.training import get_args
        from megatron.training.arguments import core_transformer_config_from_args
        args = get_args()

        def provider(pre_process=True, post_process=True, vp_stage=None, config=None, pg_collection=None, **_):
            config = config or core_transformer_config_from_args(args)
            common = dict(vocab_size=args.padded_vocab_size, max_sequence_length=args.max_position_embeddings, pre_process=pre_process,
                          post_process=post_process, fp16_lm_cross_entropy=False, parallel_output=True,
                          share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights, pg_collection=pg_collection)
            if kind in ("mamba", "t5"):
                model = {"mamba": mamba_model, "t5": t5_model}[kind](args, config, **common)
            else:
                model = (bert_model if kind == "bert" else gpt_model)(args, config, vp_stage=vp_stage, **common)
            if fill_seed is not None:
                lib.fill(model, fill_seed)
            return model
        return provider
    lib.model_provider = model_provider


def train_save(kind, argv, seed=None, **named):
    import megatron_lib as lib
    provide(kind)
    if kind == "gdn":
        named["save_args"] = dict(named.get("save_args") or {}, transformer_impl="transformer_engine")  # what its names say
    return lib.train_save(argv=argv, seed=seed, **named)


def train_state(kind, argv, **named):
    """A run that steps or loads, and saves. Of each parameter that this rank has: its key and place in a distributed checkpoint, and what
    the rank's live optimizer has of its state: state -> (start, values)."""
    import megatron_lib as lib
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    provide(kind)
    models, build = [], lib.model_provider

    def watched(fill_seed=None):
        provider = build(fill_seed)

        def built(*arguments, **options):
            models.append(provider(*arguments, **options))
            return models[-1]
        return built
    lib.model_provider = watched
    _, shards = lib.train_shards(argv=argv, **named)
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    entries = [entry for model in models for entry in model.sharded_state_dict(metadata=metadata).values() if hasattr(entry, "data")]
    places = {entry.data.data_ptr(): entry for entry in entries if isinstance(entry, ShardedTensor)}
    for entry in entries:
        if isinstance(entry, ShardedTensorFactory):  # of what TP does not cut the first part begins where the whole does
            places[entry.data.data_ptr()] = next(iter(entry.build()))
    found = []
    for model in models:
        for name, parameter in model.named_parameters():
            place = places[parameter.data_ptr()]
            found.append((place.key, list(place.global_shape), list(place.global_offset), list(parameter.shape), shards.get(name, {})))
    return found


# ---- the maker ----

def state_of(ranks):
    """The whole state, as a fully_reshardable save names it, of what all ranks have; copies must be equal."""
    import numpy
    whole, covered = {}, {}
    for found in ranks:
        for key, shape, offset, local, states in found:
            for state, (start, values) in states.items():
                name = f"optimizer.state.{state}.{key}"
                array = whole.setdefault(name, numpy.zeros(shape, numpy.float32))
                seen = covered.setdefault(name, numpy.zeros(shape, bool))
                place = numpy.arange(start, start + values.size)
                index = (numpy.unravel_index(place, local) if local else ())
                lead = len(shape) - len(local)
                index = tuple(numpy.full(values.size, o) for o in offset[:lead]) + tuple(i + o for i, o in zip(index, offset[lead:]))
                if not numpy.array_equal(array[index][seen[index]], values[seen[index]]):
                    raise RuntimeError(f"{name}: ranks have different values of the same elements")
                array[index], seen[index] = values, True
    holes = [name for name, seen in covered.items() if not seen.all()]
    if holes:
        raise RuntimeError(f"no rank has all of {holes}")
    return {name: {"dtype": "F32", "shape": list(array.shape), "sha256": hashlib.sha256(array.tobytes()).hexdigest()}
            for name, array in sorted(whole.items())}


def make_state(kind, flags, options, get, out, work):
    """The same run's optimizer state by bucket and in legacy files. The truth is what the live optimizer had, and has again after the
    framework has loaded the files."""
    import megatron_lib as lib
    import megatron_model as maker
    import megatron_optim as optim
    server, (layout_flags, world, _) = get(maker.MAIN), flags
    base = maker.COMMON + MODELS[kind].split() + optim.DIST + ["--seed", str(1000 + options.seed)] + layout_flags.split()
    for form in ("dpr", "legacy"):
        case, words = f"megatron-optim-{kind}-{form}-pp2", ["--ckpt-format", "torch" if form == "legacy" else "torch_dist"]
        folders = [os.path.join(work, case + end) for end in ("", "-back")]
        for folder in folders:
            os.makedirs(folder)
        run = dict(world=world["ranks"], kind=kind)
        truth = state_of(server.run("make_architectures.train_state", cwd=folders[0], argv=base + words, seed=options.seed, steps=2, **run))
        root = os.path.join(folders[0], "ckpt")
        again = state_of(server.run("make_architectures.train_state", cwd=folders[1],
                                    argv=base + words + ["--load", root, "--exit-on-missing-checkpoint"], **run))
        maker.same(again, truth, case)
        if form == "dpr":
            got = server.run("megatron_lib.plain", folder=maker.iteration_folder(root))[0]
            weights = {key: maker.strip(t) for key, t in got["tensors"].items() if ".distributed." not in key}
            tensors, items, more = got["tensors"], maker.items_of(got["common"]), {"objects": got["objects"]}
            notes = ["tensors: as stored; also.fully_reshardable: what the live optimizer had, and again after loading"]
        else:
            files = server.run("megatron_lib.torch_files", root=root)[0]
            tensors, more = {**weights, **truth}, {"files": {f: {"tensors": v["tensors"], "items": v["items"]} for f, v in files.items()}}
            items = {"args": {"kind": "object", "value": next(v["args"] for _, v in sorted(files.items()) if v["args"])}}
            notes = ["tensors: the whole content under the keys of a torch_dist fully_reshardable save, the state as the live optimizer "
                     "had it; also.files: each file's own tensors"]
        also = {"group": f"optim-{kind}", "holds": "weights+optimizer", "fully_reshardable": {**weights, **truth}, **more}
        lib.write_case(out, case, root, maker.MAIN, f"tests/live/make_architectures.py --only {kind}-state --seed {options.seed}", world,
                       [optim.WORDS[form], NOTES[kind], *notes], tensors, items, also=also)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--make", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default=",".join(CUT))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.variant = "a"
    sys.path.insert(0, os.path.abspath(options.make))
    os.environ["MEGATRON_EXTRA_PATH"] = os.pathsep.join([str(pathlib.Path(__file__).resolve().parent), os.path.abspath(options.make)])
    import megatron_lib as lib
    import megatron_model as maker
    layouts = {"tp1": maker.layout(), "tp2": maker.layout(tp=2), "pp2": maker.layout(pp=2), "tp2pp2": maker.layout(tp=2, pp=2)}
    maker.MODELS["a"] = {name: text for name, text in MODELS.items()}
    maker.LAYOUTS["a"] = {name: {key: layouts[key] for key in ("tp1", *CUT[name])} for name in CUT}
    maker.NOTES.update({name: [text] for name, text in NOTES.items()})
    common = list(maker.COMMON)
    real, failed, main_release = lib.Server.run, [], maker.MAIN
    states = {"mtp-state": ("mtp", maker.layout(pp=2, dp=2)), "moe-state": ("moe-mixed", maker.layout(pp=2, ep=2, dp=2))}
    with lib.servers() as get, tempfile.TemporaryDirectory(prefix="architectures") as work:
        for name in options.only.split(","):
            if name in states:
                lib.Server.run = real
                make_state(*states[name], options, get, os.path.abspath(options.out), work)
                continue
            def run(server, function, kind=name, **named):
                if function == "megatron_lib.train_save":
                    function, named = "make_architectures.train_save", dict(named, kind=kind)
                return real(server, function, **named)
            lib.Server.run, maker.MAIN = run, RELEASES.get(name, main_release)
            maker.COMMON = common[2:] if name == "t5" else common  # --seq-length comes first; T5 has two of its own
            try:
                maker.make_group(name, options, get, os.path.abspath(options.out), work)
            except Exception as problem:
                failed.append(name)
                print(f"{name}: {problem}", flush=True)
    lib.link_groups(os.path.abspath(options.out))
    return f"failed: {failed}" if failed else 0


if __name__ == "__main__":
    sys.exit(main())
