# SPDX-License-Identifier: Apache-2.0
"""What every rank of megatron_train.py does: functions that a server of megatron_lib forks and calls.

No two pieces of a model have equal values: a tensor that ranks cut is filled from its name and the place of the rank that holds it,
one that ranks share from its name alone. A piece that a conversion puts in a wrong place is seen then.
"""
import functools
import os
import sys

import megatron_lib as lib


def place(name, tensor, chunk):
    """What the values of a parameter depend on: its name, and the ranks along which it is cut."""
    from megatron.core import parallel_state as state
    words = [name]
    expert = not getattr(tensor, "allreduce", True) or ".local_experts." in name or name.endswith((".experts.weight1", ".experts.weight2"))
    if expert:
        words.append("ep%d" % state.get_expert_model_parallel_rank())
    cut = getattr(tensor, "tensor_model_parallel", False) or name.endswith((".experts.weight1", ".experts.weight2"))
    if cut and expert and hasattr(state, "get_expert_tensor_parallel_rank"):
        words.append("etp%d" % state.get_expert_tensor_parallel_rank())
    elif cut:
        words.append("tp%d" % state.get_tensor_model_parallel_rank())
    if "embedding" not in name and "output_layer" not in name:  # a tied embedding is the same on both stages
        words.append("pp%d.%d" % (state.get_pipeline_model_parallel_rank(), chunk))
    if getattr(tensor, "shared", False) or getattr(tensor, "shared_embedding", False):
        words[0] = "shared embedding"
    return " ".join(words)


def bare(name):
    while name.startswith("module."):
        name = name[len("module."):]
    return name


def tensors_of(chunk, index):
    """(place, tensor) of every parameter, and of every buffer that is saved, in a chunk of the model."""
    saved = [pair for pair in chunk.named_buffers() if pair[0].endswith("expert_bias")]
    for name, tensor in list(chunk.named_parameters()) + saved:
        yield place(bare(name), tensor, index), tensor


def start(argv, seed=None):
    """Model, optimizer and scheduler of the training program; with a seed, their values."""
    import torch
    filled = []

    def fill(chunk, _):
        for where, tensor in tensors_of(chunk, len(filled)):
            tensor.data.copy_(torch.randn(tensor.shape, generator=lib.generator(seed, where)))
        filled.append(chunk)
    lib.fill = fill
    watch_loading()
    predict_further()
    parse_arguments(argv)
    return lib.start(argv, fill_seed=seed)


def parse_arguments(argv):
    """From 0.18 on programs parse their arguments before they initialize Megatron."""
    from megatron.training import arguments, initialize
    if hasattr(arguments, "parse_and_validate_args") and not hasattr(initialize, "parse_args"):
        sys.argv = ["pretrain_gpt.py"] + argv
        arguments.parse_and_validate_args()


def predict_further():
    """Models of runs with --mtp-num-layers get these layers, on the stage that Megatron has them on."""
    import megatron.core.models.gpt as models
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.training import get_args
    plain = models.GPTModel

    @functools.wraps(plain)
    def made(*, config, transformer_layer_spec, vp_stage=None, **named):
        if getattr(get_args(), "mtp_num_layers", None):
            named["mtp_block_spec"] = lib.call(gpt_layer_specs.get_gpt_mtp_block_spec, config=config, spec=transformer_layer_spec,
                                               use_transformer_engine=False, vp_stage=vp_stage)
        return lib.call(plain, config=config, transformer_layer_spec=transformer_layer_spec, vp_stage=vp_stage, **named)
    models.GPTModel = made


REFUSED = []


def watch_loading():
    """Megatron loads without strictness after a strict load has failed; such a failure is noted here."""
    import torch
    load = torch.nn.Module.load_state_dict

    def watched(self, *arguments, **named):
        try:
            return load(self, *arguments, **named)
        except RuntimeError as problem:
            REFUSED.append(str(problem)[:600])
            raise
    torch.nn.Module.load_state_dict = watched


def step(model, optimizer, scheduler, seed, count):
    import torch
    for number in range(count):
        pairs = [pair for index, chunk in enumerate(model) for pair in tensors_of(chunk, index)]
        for where, parameter in pairs:
            if not isinstance(parameter, torch.nn.Parameter):
                continue
            gradient = torch.randn(parameter.shape, generator=lib.generator(seed + 100 * (number + 1), where))
            if hasattr(parameter, "main_grad"):
                parameter.main_grad.copy_(gradient)
            else:
                parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
        scheduler.step(4)


def save(model, optimizer, scheduler, folder, kind, optimizer_kind):
    """save_checkpoint in a format, with the distributed optimizer's state in a layout ("full", "dpr" or whatever the release does)."""
    from megatron.training import get_args
    from megatron.training.arguments import update_use_dist_ckpt
    from megatron.training.checkpointing import save_checkpoint
    args = get_args()
    args.save, args.ckpt_format = folder, kind
    if hasattr(args, "dist_ckpt_optim_fully_reshardable"):
        args.dist_ckpt_optim_fully_reshardable = optimizer_kind == "full"
    update_use_dist_ckpt(args)
    lib.call(save_checkpoint, iteration=args.iteration, model=model, optimizer=None if args.no_save_optim else optimizer,
             opt_param_scheduler=scheduler, num_floating_point_operations_so_far=0)


def content(folder):
    with open(os.path.join(folder, "latest_checkpointed_iteration.txt")) as file:
        return lib.plain(os.path.join(folder, "iter_%07d" % int(file.read())))


def progress(optimizer, scheduler):
    """What of the training's state is no tensor of a parameter."""
    from megatron.training import get_args
    args = get_args()
    groups = [g for one in getattr(optimizer, "chained_optimizers", [optimizer]) if one is not None for g in one.param_groups]
    kept = ("lr", "min_lr", "max_lr", "weight_decay", "wd_mult", "lr_mult", "betas", "eps", "step", "is_expert_parallel", "is_decoupled_lr")
    sets = {tuple((k, str(g[k])) for k in kept if k in g and g[k] is not None) for g in groups if g["params"]}
    found = {"iteration": args.iteration, "samples": args.consumed_train_samples, "scheduler": scheduler.num_steps if scheduler else None}
    if not args.no_load_optim:
        found["groups"] = sorted(sets)
        found["scale"] = [float(one.get_loss_scale()) for one in getattr(optimizer, "chained_optimizers", [optimizer])][:1]
    return found


def seed_run(argv, seed, steps, sources, truth=None, iteration=10):
    """A run that stops after `steps`: saved as `sources` [[folder, format, optimizer layout]], and as `truth` to be compared with."""
    from megatron.training import get_args
    model, optimizer, scheduler = start(argv, seed)
    if steps:
        step(model, optimizer, scheduler, seed, steps)
    args = get_args()
    args.iteration, args.consumed_train_samples = iteration, 12 * iteration
    for source in sources:
        save(model, optimizer, scheduler, *source)
    if truth:
        save(model, optimizer, scheduler, truth, "torch_dist", "full")
    return content(truth)["tensors"] if truth else None, progress(optimizer, scheduler)


def load_run(argv, back, kind="torch_dist"):
    """A run that loads (--load in argv) and saves what it has in a format."""
    model, optimizer, scheduler = start(argv)
    found = progress(optimizer, scheduler)
    save(model, optimizer, scheduler, back, kind, "full")
    return content(back)["tensors"] if kind == "torch_dist" else None, found, REFUSED

