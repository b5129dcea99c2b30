#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the mapping of bench_mapping with Paddle's own engine and prints the seconds. usage: aoa_upstream.py LAYERS EXPERTS"""
import logging
import sys
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
from paddle.distributed.flex_checkpoint.aoa.aoa_engine import AOAEngine
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeightDesc

STATEMENTS = 50
FORMS = {1: "{a}^T -> {c}", 2: "{a} -> {c}, dtype='float32'", 3: '{a} -> {c}, permute="[1, 0]"', 4: "{a} -> {c}.x, {c}.y, axis=0",
         8: "{a}, {b} -> {c}, axis=1"}


def program(reads):
    """Statements, or with numbers for the placeholders the keys that they read. The stack, which upstream does not know, is a copy."""
    for i in range(STATEMENTS):
        a, b = (f"model.layers.$LAYER_ID.mlp.experts.$EXPERT_ID.{kind}{number}.weight" for kind,
                number in (("a", i), ("b", i + 1 if i % 10 == 8 else i)))
        a = b if i % 10 == 9 else a
        c = f"decoder.layers.$LAYER_ID.experts.$EXPERT_ID.c{i}"
        yield a if reads else FORMS.get(i % 10, "{a} -> {c}").format(a=a, b=b, c=c)


def main():
    layers, experts = map(int, sys.argv[1:3])
    keys = [key.replace("$LAYER_ID", str(layer)).replace("$EXPERT_ID", str(expert)) for layer in range(layers) for expert in range(experts)
            for key in program(True)]
    source = {key: [ShardedWeightDesc(key, (64, 64), (64, 64), (0, 0), "bfloat16")] for key in keys}
    start = time.time()
    AOAEngine(aoa_config={"aoa_statements": list(program(False)), "enable_traceback": False}, source_state_shard_info=source,
              destination_state_shard_info=None)
    print(f"{len(keys)} {time.time() - start:.3f}")


main()
