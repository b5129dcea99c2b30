# SPDX-License-Identifier: Apache-2.0
"""One rank of a Megatron run whose optimizer's state breaks a rule, or keeps one that no fixture needs: for tests and seeds of fuzzing."""
import collections
import random
import struct

import moe_layouts_test

TORCH = moe_layouts_test.TORCH
MODEL = dict(layers=1, experts=2, frequency=[0], hidden=2, kv=1, groups=1, heads=2, ffn=2, expert_ffn=2, gated=True, vocabulary=4, shared=0,
             spelling="numbered", router_bias=False)

# kind: where the state lies; change: what is done to the content of that file; status, text: how it is refused, 0 and "" if it is not
Case = collections.namedtuple("Case", "kind name change status text")
FORMAT, UNSUPPORTED = 4, 5


# ---- states by number, as a run without the distributed optimizer has them ----

def group(number, **changes):
    return lambda content: content["optimizer"]["optimizer"]["param_groups"][number].update(changes)


def outer(**changes):
    return lambda content: content["optimizer"].update(changes)


def inner(**changes):
    return lambda content: content["optimizer"]["optimizer"].update(changes)


def state(number, value):
    return lambda content: content["optimizer"]["optimizer"]["state"].update({number: value})


def without(word):
    def change(content):
        for each in content["optimizer"]["optimizer"]["param_groups"]:
            del each[word]
    return change


def of_old(*decays):
    """Groups as they were before they had multipliers."""
    def change(content):
        for each, decay in zip(content["optimizer"]["optimizer"]["param_groups"], decays):
            del each["wd_mult"]
            each["weight_decay"] = decay
    return change


def fewer_masters(content):
    content["optimizer"]["fp32_from_fp16_params"][0].pop()


def more_masters(content):
    masters = content["optimizer"]["fp32_from_fp16_params"]
    masters[1].append(masters[1][0])


def exchanged(content):
    states = content["optimizer"]["optimizer"]["state"]
    states[0], states[1] = states[1], states[0]


def empty(content):
    content["optimizer"] = {"optimizer": {"state": {}, "param_groups": [dict(params=[], wd_mult=1.0)]}}


def steps(kind, form, count=lambda number: 2, elements=1):
    """A step in a tensor with every parameter, as torch's own optimizers have it."""
    def change(content):
        for number, entry in content["optimizer"]["optimizer"]["state"].items():
            entry["step"] = moe_layouts_test.Tensor(kind, (), struct.pack(form, count(number)) * elements)
    return change


def nothing(content):
    pass


PLAIN = (
    ("good", nothing, 0, ""),
    ("old", of_old(0.1, 0.0), 0, ""),
    ("old without decay", of_old(0.0, 0.0), 0, ""),
    ("step as a number", state(0, {"step": 2}), 0, ""),
    ("steps in tensors", steps("FloatStorage", "<f"), 0, ""),
    ("steps among others", steps("FloatStorage", "<f", elements=8), 0, ""),
    ("steps that differ", steps("FloatStorage", "<f", lambda number: number // 4), UNSUPPORTED,
     "the optimizer's step is 0 for one parameter and 1 for another; Megatron knows one for all"),
    ("steps of 16 bits", steps("BFloat16Storage", "<H"), UNSUPPORTED, "a step of dtype BF16"),
    ("steps in large storages", steps("FloatStorage", "<f", elements=1025), UNSUPPORTED,
     "a step lies in a storage of 4100 bytes, expected at most 4096"),
    ("empty", empty, 0, ""),
    ("list of one", lambda content: content.update(optimizer=[content["optimizer"]]), 0, ""),
    ("list of two", lambda content: content.update(optimizer=[content["optimizer"], content["optimizer"]]), UNSUPPORTED,
     "the file holds 2 optimizers, the parameters belong to 1"),
    ("groups without params", without("params"), FORMAT, "a parameter group without a list 'params'"),
    ("groups without decay", without("wd_mult"), UNSUPPORTED, "a parameter group without 'wd_mult' and 'weight_decay'"),
    ("no groups", inner(param_groups={}), FORMAT, "the optimizer has no list 'param_groups'"),
    ("number too large", state(9, {}), FORMAT, "a key of the optimizer's 'state' is no number of one of its 9 parameters"),
    ("number below 0", state(-1, {}), FORMAT, "a key of the optimizer's 'state' is no number of one of its 9 parameters"),
    ("no number", state("a", {}), FORMAT, "a key of the optimizer's 'state' is no number of one of its 9 parameters"),
    ("state that is no dict", state(0, 5), FORMAT, "state 0 is int, expected a dict"),
    ("name that is no string", state(0, {7: 1}), FORMAT, "state 0 has a key that is no string"),
    ("state that is no tensor", state(0, {"exp_avg": "a"}), UNSUPPORTED,
     "'embedding.word_embeddings.weight': state 'exp_avg' is str, expected a tensor"),
    ("states in a list", inner(state=[]), FORMAT, "the optimizer has no dict 'state'"),
    ("no lists of masters", outer(fp32_from_fp16_params=[]), FORMAT,
     "the master parameters are not in as many lists as there are parameter groups (2)"),
    ("masters that are no lists", outer(fp32_from_fp16_params=[1, 2]), FORMAT, "master parameters of group 0 are int, expected a list"),
    ("fewer masters", fewer_masters, FORMAT, "group 0 has 5 master parameters, fewer than its parameters of 16 bits"),
    ("more masters", more_masters, FORMAT, "group 1 has 4 master parameters and 3 parameters of 16 bits"),
    ("states exchanged", exchanged, UNSUPPORTED,
     "'embedding.word_embeddings.weight': state 'exp_avg' is of another shape than the parameter"),
    ("group of experts", group(0, is_expert_parallel=True), UNSUPPORTED,
     "parameter group 0 is of experts in an optimizer of other parameters"),
    ("two groups with decay", group(1, wd_mult=1.0), UNSUPPORTED,
     "parameter group 1: a second group with weight decay: what tells them apart is not in the"),
    ("group with a learning rate", group(1, is_decoupled_lr=True, wd_mult=1.0), UNSUPPORTED,
     "parameter group 0 (with weight decay) has 6 parameters, by name and shape 4 of the model"),
    ("group of one", group(0, params=[0]), UNSUPPORTED,
     "parameter group 0 (with weight decay) has 1 parameters, by name and shape 6 of the model"),
)


# ---- vectors, as the distributed optimizer has them ----

def vectors_of(buffers):
    (vectors,) = buffers[0].values()
    return vectors


def put(**changes):
    return lambda buffers: vectors_of(buffers).update(changes)


def key(of):
    def change(buffers):
        buffers[0] = {of: vectors_of(buffers)}
    return change


def two(buffers):
    buffers[1] = dict(buffers[0])


FLAT = (
    ("good", nothing, 0, ""),
    ("size that is no number", put(numel_unpadded="a"), FORMAT, "buffer 0: 'numel_unpadded' is not a number of elements"),
    ("size too large", put(numel_unpadded=521), FORMAT, "'numel_unpadded' is 521, but the vectors have 520"),
    ("size too small", put(numel_unpadded=456), UNSUPPORTED,
     "optimizer buffer 0 has 456 elements, its 9 parameters make 520 in 1 buckets"),
    ("list of tensors", put(param=[1]), FORMAT, "buffer 0: state 'param' is not a vector"),
    ("no tensor", put(param="a"), FORMAT, "buffer 0: state 'param' is not a vector"),
    ("name that is no string", lambda buffers: vectors_of(buffers).update({7: 1}), FORMAT,
     "buffer 0: a key is not a string, expected the name of a state"),
    ("key that is no pair", key(("a", "b")), FORMAT, "buffer 0: its key is not a pair of torch dtypes"),
    ("other dtype", key((TORCH.float32, TORCH.float32)), UNSUPPORTED,
     "optimizer buffer 0 is of parameters of dtype F32, in the model they have BF16"),
    ("buffer that is no dict", lambda buffers: buffers.update({0: 5}), FORMAT, "buffer 0: expected a dict of one pair of dtypes"),
    ("states that are no dict", lambda buffers: buffers.update({0: {(TORCH.bfloat16, TORCH.float32): 5}}), FORMAT,
     "buffer 0: expected a dict of states"),
    ("numbers with a gap", lambda buffers: buffers.update({2: buffers.pop(0)}), FORMAT, "buffer 2 of 2: out of range or there twice"),
    ("two buffers", two, UNSUPPORTED, "the optimizer state has 2 buffers, the parameters make 1"),
    ("no buffer", lambda buffers: buffers.pop(0), UNSUPPORTED, "the optimizer state has 0 buffers, the parameters make 1"),
)

CASES = [Case(kind, *row) for kind, rows in (("plain", PLAIN), ("distributed", FLAT)) for row in rows]


def write(root, case):
    """The checkpoint in the folder root."""
    moe_layouts_test.write_checkpoint(root, dict(MODEL, optimizer=case.kind), random.Random(1), change=case.change)
