#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints Flex Checkpoint metadata as Python pickles it, as C arrays, for test_flex_metadata.c: every generation and protocol, plain ints
and scalars of NumPy. usage: make_flex_vectors.py > flex_vectors.h (needs numpy), or make_flex_vectors.py --bench SHARDS OUT"""
import pickle
import sys
import types

import numpy

NEW, OLD = "paddle.distributed.flex_checkpoint.dcp.metadata", "paddle.distributed.checkpoint.metadata"


def classes(module):
    made = types.ModuleType(module)
    for name in ("Metadata", "LocalTensorMetadata", "LocalTensorIndex"):
        setattr(made, name, type(name, (), {"__module__": module, "__qualname__": name}))
    parts = module.split(".")
    for i in range(1, len(parts)):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    sys.modules[module] = made
    return made


def new(cls, **attributes):
    made = cls()
    made.__dict__.update(attributes)
    return made


def metadata(module, shard, index, keys=3, ranks=4, number=int, sequence=tuple):
    """shard: -1, 0, 1; index: 0, 1, 2: the generations. Odd keys are flattened where the generation can say so."""
    m = classes(module)
    state, storage, mapping = {}, {}, {}
    for i in range(keys):
        key, size = f"layers.{i}.weight", 4 * ranks
        state[key], mapping[key] = [], ("layers", f"{i}.weight")
        for rank in range(ranks):
            flat = shard == 1 and i % 2 == 1
            offset, shape = ((0, 0), (size, 6)) if flat else ((4 * rank, 0), (4, 6))
            bounds = (number(24 * rank), number(24 * rank + 24)) if flat else None
            local = {"global_offset": offset, "local_shape": shape}
            if shard >= 0:
                local["dtype"] = "bfloat16"
            if shard == 1:
                local.update(global_shape=sequence((size, 6)), is_flattened=flat, flattened_range=bounds)
            place = {"tensor_key": key, "global_offset": offset}
            if index >= 1:
                place.update(is_flattened=flat, flattened_range=bounds)
            if index == 2:
                place.update(replica_id=None, local_shape=shape)
            state[key].append(new(m.LocalTensorMetadata, **local))
            storage[new(m.LocalTensorIndex, **place)] = f"{rank}_0.distcp"
    return new(m.Metadata, state_dict_metadata=state, storage_metadata=storage, flat_mapping=mapping if shard >= 0 else None)


CASES = [("v_1_p4", (OLD, -1, 0), {}, 4), ("v0_p2", (OLD, 0, 0), {}, 2), ("v0_p4", (OLD, 0, 0), {}, 4),
         ("v1_lists", (NEW, 1, 1), {"sequence": list}, 4),
         ("v2_p3", (NEW, 1, 2), {}, 3), ("v2_p5", (NEW, 1, 2), {}, 5), ("v2_many", (NEW, 1, 2), {"keys": 14}, 4),
         ("v2_numpy", (NEW, 1, 2), {"keys": 14, "number": numpy.int64}, 4), ("v2_numpy_p2", (NEW, 1, 2), {"number": numpy.int64}, 2)]


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by make_flex_vectors.py. */")
    for name, arguments, options, protocol in CASES:
        text = pickle.dumps(metadata(*arguments, **options), protocol).hex()
        print(f"static const char {name}[] =")
        print("\n".join(f'    "{text[i:i + 128]}"' for i in range(0, len(text), 128)) + ";")


if len(sys.argv) == 4 and sys.argv[1] == "--bench":  # --bench SHARDS OUT: a large one
    count = int(sys.argv[2])
    with open(sys.argv[3], "wb") as out:
        pickle.dump(metadata(NEW, 1, 2, keys=count // 1000, ranks=1000, number=numpy.int64), out, 4)
elif __name__ == "__main__":
    main()
