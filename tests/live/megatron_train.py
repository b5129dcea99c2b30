#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM goes on training with what reshard makes of its checkpoints.

usage: megatron_train.py --bin PATH [--count N] [--seed N] [--only N,…] [--releases 0.16.1,…] [--keep FOLDER]
Each round: a random model at a random layout A takes two optimizer steps and saves (legacy or torch_dist); `reshard convert --layout`
writes layout B in either format, without a reference; the real load_checkpoint reads that at B as strictly as it can, and saves as
torch_dist. The tensors must be those that the first run held, and so must iteration, consumed samples, schedule and parameter groups.
Needs RESHARD_MEGATRON_TREES (folder with core_v<release>/megatron), RESHARD_MEGATRON_LIB (folder of megatron_lib.py, which runs Megatron on
CPU) and a Python with torch and what Megatron imports: skipped without. Prints TAP.
"""
import argparse
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
COMMON = ("--seq-length 16 --max-position-embeddings 16 --micro-batch-size 1 --global-batch-size 24 --train-iters 20 --lr 0.01 --min-lr "
          "0.001 --lr-decay-style cosine "
          "--tokenizer-type NullTokenizer --use-cpu-initialization --transformer-impl local --distributed-backend gloo "
          "--no-gradient-accumulation-fusion "
          "--no-masked-softmax-fusion --no-bias-swiglu-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion "
          "--no-persist-layer-norm --save-interval 10 "
          "--log-interval 1 --eval-iters 1 --eval-interval 10").split()


def number(release):
    return tuple(int(n) for n in release.split("."))


def random_layout(chance, has_experts):
    tp, pp = chance.choice([1, 1, 2, 2, 3, 4]), chance.choice([1, 1, 2, 2, 3])
    layout = dict(tp=tp, pp=pp, vp=chance.choice([1, 1, 2]) if pp > 1 else 1, ep=1, etp=tp)
    if has_experts:
        layout.update(ep=chance.choice([1, 2, 2, 3]), etp=chance.choice([tp, tp, 1]))
    each = math.lcm(tp, layout["ep"] * layout["etp"])
    layout["world"] = pp * each * chance.choice([1, 1, 2])
    return layout if layout["world"] <= 6 else random_layout(chance, has_experts)


def random_model(chance, a, b, has_experts):
    """A model that both layouts can cut."""
    tp, stages = math.lcm(a["tp"], b["tp"]), math.lcm(a["pp"] * a["vp"], b["pp"] * b["vp"])
    groups = tp * chance.choice([1, 1, 2])
    model = dict(layers=stages * (chance.choice([1, 2]) if stages <= 3 else 1), heads=groups * chance.choice([1, 2, 3]), groups=groups,
                 kv=2 * chance.randint(1, 3), hidden=2 * tp * chance.randint(1, 2), ffn=tp * chance.randint(1, 6),
                 vocabulary=chance.randint(7, 50), divisible=chance.randint(1, 12), gated=chance.random() < 0.7,
                 bias=not has_experts and chance.random() < 0.4, norm=chance.choice(["RMSNorm", "RMSNorm", "LayerNorm"]),
                 learned=chance.random() < 0.3, tied=chance.random() < 0.35, precision=chance.choice(["bf16", "bf16", "bf16", "fp16", ""]),
                 qk=chance.random() < 0.2, mtp=chance.choice([0, 0, 0, 1, 2]))
    if has_experts:
        model.update(experts=math.lcm(a["ep"], b["ep"], 2) * chance.choice([1, 2]), expert_ffn=tp * chance.randint(1, 4),
                     shared=chance.choice([0, 0, tp * 2]), expert_bias=chance.random() < 0.3, mixed=chance.random() < 0.25)
    return model


def model_flags(model):
    flags = ["--num-layers", model["layers"], "--hidden-size", model["hidden"], "--ffn-hidden-size", model["ffn"], "--num-attention-heads",
             model["heads"], "--kv-channels", model["kv"], "--vocab-size", model["vocabulary"], "--make-vocab-size-divisible-by",
             model["divisible"], "--normalization", model["norm"], "--position-embedding-type",
             "learned_absolute" if model["learned"] else "rope"]
    if model["groups"] != model["heads"]:
        flags += ["--group-query-attention", "--num-query-groups", model["groups"]]
    for is_set, flag in ((model["gated"], "--swiglu"), (not model["bias"], "--disable-bias-linear"),
                         (not model["tied"], "--untie-embeddings-and-output-weights"), (model["precision"], "--" + model["precision"]),
                         (model["qk"], "--qk-layernorm")):
        flags += [flag] if is_set else []
    flags += ["--mtp-num-layers", model["mtp"]] if model["mtp"] else []
    if "experts" in model:
        flags += ["--num-experts", model["experts"], "--moe-ffn-hidden-size", model["expert_ffn"], "--moe-router-topk", 2]
        if model["shared"]:
            flags += ["--moe-shared-expert-intermediate-size", model["shared"]]
        if model["expert_bias"]:
            flags += ["--moe-router-enable-expert-bias", "--moe-router-score-function", "sigmoid"]
        if model["mixed"]:
            flags += ["--moe-layer-freq", str([1 - i % 2 for i in range(model["layers"])]).replace(" ", "")]
    return [str(flag) for flag in flags]


def layout_flags(layout, model, release):
    flags = ["--tensor-model-parallel-size", layout["tp"], "--pipeline-model-parallel-size", layout["pp"]]
    if layout["vp"] > 1:
        flags += ["--num-layers-per-virtual-pipeline-stage", model["layers"] // (layout["pp"] * layout["vp"])]
    if "experts" in model:
        flags += ["--expert-model-parallel-size", layout["ep"]]
        flags += ["--expert-tensor-parallel-size", layout["etp"]] if number(release) >= (0, 9, 0) else []
        flags += ["--sequence-parallel"] if layout["tp"] > 1 else []
    return [str(flag) for flag in flags] + layout.get("extra", [])


def random_unevenness(chance, layout, model):
    """Sometimes another split of the layers over the stages than the even one."""
    if layout["pp"] < 2 or layout["vp"] > 1 or chance.random() < 0.6:
        return
    layers, pp = model["layers"], layout["pp"]
    firsts = [n for n in range(1, layers) if (layers - n) % (pp - 1) == 0 and layers - n >= pp - 1 and n != layers // pp]
    if firsts:
        layout["extra"] = ["--decoder-first-pipeline-num-layers", str(chance.choice(firsts))]


def draw(chance, releases):
    """Everything that one round is about."""
    has_experts = chance.random() < 0.4
    a, b = random_layout(chance, has_experts), random_layout(chance, has_experts)
    model = random_model(chance, a, b, has_experts)
    drawn = dict(release=chance.choice(releases), a=a, b=b, model=model,
                 optimizer=chance.choice(["none", "distributed", "distributed", "plain"]), source=chance.choice(["torch", "torch_dist"]),
                 target=chance.choice(["torch", "torch_dist"]), stored=chance.choice(["full", "default"]),
                 checkpoint_args=chance.random() < 0.4, rng=chance.random() < 0.5,
                 strict=chance.choice(["raise_all", "raise_all", "assume_ok_unexpected"]))
    random_unevenness(chance, a, model)
    if drawn["target"] == "torch_dist":
        random_unevenness(chance, b, model)
    elif (a["pp"], a["vp"]) == (b["pp"], b["vp"]) and "extra" in a:
        b["extra"] = a["extra"]  # the split of as many stages stays
    if number(drawn["release"]) < (0, 15, 0) and drawn["optimizer"] == "distributed":
        drawn["optimizer"] = "plain"  # the truth is a fully_reshardable save
    if number(drawn["release"]) < (0, 16, 0) and has_experts and model["precision"] == "fp16":
        model["precision"] = "bf16"  # refused there
    if has_experts and a["etp"] * a["ep"] < a["tp"]:
        # Megatron writes the legacy file of the first expert-data-parallel rank only, and loses tensor-parallel parts
        drawn["source"] = "torch_dist"
    if number(drawn["release"]) < (0, 14, 0) and has_experts and drawn["target"] == "torch_dist" and a["ep"] + b["ep"] > 2:
        drawn["optimizer"] = "none"  # state is named after the number of an optimizer
    if number(drawn["release"]) < (0, 15, 0):
        model["mtp"] = 0
    if model["mtp"]:
        model["learned"] = False  # refused
        model["tied"] = model["tied"] and a["pp"] == b["pp"] == 1  # saved by no release
    if drawn["optimizer"] == "distributed":
        model["precision"] = model["precision"] or "bf16"  # Megatron cannot load fp32 parameters from distrib_optim.pt
    if not model["precision"] and drawn["optimizer"] == "plain":
        drawn["optimizer"] = "fp32"
    # An embedding that stages share has a bucket of its own: Megatron itself saves such state wrongly as fully_reshardable.
    drawn["buckets"] = chance.choice([0, 0, 0, 2000, 9000]) if drawn["optimizer"] == "distributed" and drawn["stored"] == "default" else 0
    drawn["has_buckets"] = drawn["optimizer"] == "distributed" and (drawn["buckets"] > 0 or bool(model["tied"] or model["mtp"]) and
                                                                    max(a["pp"], b["pp"]) > 1)
    if drawn["has_buckets"]:
        drawn["stored"] = "default"
        added = number(drawn["release"]) < (0, 19, 0)  # by the tokenizer
        # Legacy files have padding of the vocabulary; Megatron refuses to save buckets that are small, or
        # end in padding. They are of one split of the layers, and lack parts where experts are cut for fewer ranks than the rest.
        model.update(vocabulary=2 * model["divisible"] * math.lcm(a["tp"], b["tp"]) - added, hidden=32 * model["hidden"])
        for layout in (a, b):
            layout.pop("extra", None)
            if layout["etp"] * layout["ep"] < layout["tp"]:
                layout.update(ep=1, etp=layout["tp"])
    return drawn


class Round:
    def __init__(self, drawn, seed, get, work, binary):
        self.drawn, self.seed, self.server, self.work, self.binary = drawn, seed, get(drawn["release"]), work, binary

    def flags(self, which):
        drawn = self.drawn
        flags = COMMON + model_flags(drawn["model"]) + layout_flags(drawn[which], drawn["model"],
                                                                    drawn["release"]) + ["--seed", str(1000 + self.seed)]
        flags += {"none": ["--no-save-optim", "--no-load-optim"],
                  "distributed": ["--use-distributed-optimizer"]}.get(drawn["optimizer"], [])
        flags += ["--overlap-grad-reduce", "--ddp-bucket-size", str(drawn["buckets"])] if drawn["buckets"] else []
        return flags

    def run(self):
        drawn = self.drawn
        has_state, kind = drawn["optimizer"] != "none", drawn["source"]
        sources = [["source", kind, drawn["stored"]]] + [["legacy", "torch", ""]] * drawn["has_buckets"]
        truth, before = self.server.run("megatron_rank.seed_run", world=drawn["a"]["world"], cwd=str(self.work),
                                        argv=self.flags("a") + ["--ckpt-format", kind, "--save", "truth"], seed=self.seed,
                                        steps=2 if has_state else 0, sources=sources,
                                        truth=None if drawn["has_buckets"] else "truth")[0]
        convert = ["convert", "source", "target", "--to", {"torch": "megatron"}.get(drawn["target"], drawn["target"]), "--layout",
                   self.layout_words()]
        if drawn["has_buckets"] and drawn["target"] == "torch_dist":
            convert += ["-o", "optimizer=" + ("dp_reshardable" if self.seed % 2 else "fully_reshardable")]
        wrong = self.reshard(["verify", "source"], convert, ["verify", "target"])
        if wrong:
            return wrong
        results = self.server.run("megatron_rank.load_run", world=drawn["b"]["world"], cwd=str(self.work),
                                  argv=self.flags("b") + self.load_flags() + ["--save", "back"], back="back",
                                  kind="torch" if drawn["has_buckets"] else "torch_dist")
        if drawn["has_buckets"]:  # legacy files are right; in them each rank has its own parameters in the order of its own model
            wrong = self.reshard(["diff", "legacy", "source", "--items", "ignore"], ["diff", "legacy", "back", "--items", "ignore"])
            return wrong or compare({}, before, [({}, *result[1:]) for result in results], False)
        # Releases from 0.19 on have groups for experts without expert parallelism too, where they are cut for other ranks than the rest.
        is_new = number(drawn["release"]) >= (0, 19, 0)
        is_apart = [drawn[which]["ep"] > 1 or (is_new and drawn[which]["etp"] != drawn[which]["tp"]) for which in "ab"]
        return compare(truth, before, results, is_apart[0] == is_apart[1])

    def reshard(self, *commands):
        for words in commands:
            result = subprocess.run([self.binary, *words], cwd=self.work, capture_output=True, text=True)
            if result.returncode:
                return f"reshard {' '.join(words)}: exit {result.returncode}: {(result.stderr or result.stdout).strip()[-600:]}"
        return None

    def layout_words(self):
        b = self.drawn["b"]
        words = [f"{word}={b[word]}" for word in ("tp", "pp", "vp", *(("ep", "etp") if "experts" in self.drawn["model"] else ()))]
        # This release asks for an RNG state of each data-parallel rank.
        if ((0, 16, 0) <= number(self.drawn["release"]) < (0, 17, 0) and b["ep"] > 1) or self.drawn["has_buckets"]:
            words.append(f"dp={b['world'] // (b['tp'] * b['pp'])}")
        return ",".join(words)

    def load_flags(self):
        drawn = self.drawn
        flags = ["--ckpt-format", drawn["target"], "--load", "target", "--exit-on-missing-checkpoint"]
        flags += ["--use-checkpoint-args"] if drawn["checkpoint_args"] else []
        # Strictness wants the states to be asked for where they are stored. Releases up to 0.13 stop without the flag when TP or PP has
        # changed, and say so.
        is_moved = drawn["target"] == "torch_dist" and any(drawn["a"][word] != drawn["b"][word] for word in ("tp", "pp", "vp", "ep", "etp"))
        flags += [] if (drawn["rng"] or (drawn["strict"] == "raise_all"
                                         and not is_moved)) and not (is_moved
                                                                     and number(drawn["release"]) < (0, 14, 0)) else ["--no-load-rng"]
        flags += ["--dist-ckpt-strictness", drawn["strict"]] if drawn["target"] == "torch_dist" else []
        return flags


def bare(entry):
    return {k: v for k, v in entry.items() if k != "chunks"}


def without_experts(groups):
    """Only with expert parallelism do experts have groups of their own."""
    return sorted({tuple(pair for pair in group if pair[0] != "is_expert_parallel") for group in groups})


def unnumbered(tensors):
    """Releases up to 0.13 put the number of the optimizer before names of state where there are two."""
    return {re.sub(r"^chained_\d+\.", "", key): value for key, value in tensors.items()}


def compare(truth, before, results, is_grouping_kept):
    tensors, after, _ = results[0]
    truth, tensors = unnumbered(truth), unnumbered(tensors)
    for state in (before, after):
        if "groups" in state and not is_grouping_kept:
            state["groups"] = without_experts(state["groups"])
    refused = [text for result in results for text in result[2]]
    if refused:
        return "a strict load failed: " + refused[0]
    wrong = sorted(k for k in set(truth) | set(tensors) if bare(truth.get(k, {})) != bare(tensors.get(k, {})))
    padded = [k for k in wrong if k in truth and k in tensors and truth[k]["shape"][0] != tensors[k]["shape"][0]
              and ("word_embeddings" in k or "output_layer" in k)]
    if [k for k in wrong if k not in padded]:
        return f"other tensors: {wrong[:6]}, {truth.get(wrong[0])} became {tensors.get(wrong[0])}"
    differing = {k: (before[k], after.get(k)) for k in before if before[k] != after.get(k)}
    return f"other progress: {differing}" if differing else None


def skip(reason):
    print(f"ok 1 - megatron_train.py # SKIP {reason}\n1..1")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="numbers of rounds")
    parser.add_argument("--releases", default="0.16.1")
    parser.add_argument("--keep", help="folder that keeps the files of rounds that fail")
    options = parser.parse_args()
    folder = os.environ.get("RESHARD_MEGATRON_LIB")
    if not folder or not os.environ.get("RESHARD_MEGATRON_TREES"):
        return skip("needs RESHARD_MEGATRON_TREES and RESHARD_MEGATRON_LIB")
    os.environ["MEGATRON_TREES"], os.environ["MEGATRON_EXTRA_PATH"] = os.environ["RESHARD_MEGATRON_TREES"], str(HERE)
    sys.path.insert(0, folder)
    import megatron_lib
    seeds = [int(n) for n in options.only.split(",")] if options.only else range(options.seed, options.seed + options.count)
    failed = 0
    with megatron_lib.servers() as get:
        for count, seed in enumerate(seeds, 1):
            drawn = draw(random.Random(seed), options.releases.split(","))
            work, start = pathlib.Path(tempfile.mkdtemp(prefix="reshard-train-", dir=options.keep)), time.monotonic()
            try:
                wrong = Round(drawn, seed, get, work, os.path.abspath(options.bin)).run()
            except RuntimeError as problem:
                wrong = str(problem)[-1200:]
            print(f"{'not ok' if wrong else 'ok'} {count} - round {seed}: {json.dumps(drawn)}, {time.monotonic() - start:.0f} s",
                  flush=True)
            if wrong:
                failed += 1
                print("# " + wrong.replace("\n", "\n# "), flush=True)
            if not wrong or not options.keep:
                shutil.rmtree(work)
    print(f"1..{len(seeds)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
