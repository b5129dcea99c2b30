#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of .pdparams and .pdopt files that ranks wrote before Flex Checkpoint: one logical checkpoint under any strategy. Prints TAP.

Each rank numbers its own modules, so that the framework's names differ between ranks and stages; the optimizer knows only these names.
States
of sharding V2 end in padding. What the files hold together is what the generator's model holds.

usage: family_test.py --bin PATH
"""
import argparse
import hashlib
import json
import pathlib
import pickle
import re
import sys
import tempfile

import strategies as S
from matrix_test import Command, Tap, digest_problems

SLICED = {s.name: s for s in S.MET}     # stage 3
NAMES = (*SLICED, "dp1", "dp2", "tp2", "tp4", "pp2", "pp4", "vpp", "sharding2-v1", "sharding4-v1", "sharding2-v2", "sharding4-v2",
         "tp2pp2", "tp2sd2-v2", "dp2ep2", "sd2ep2", "sd2ep2-v2", "tp2ep2", "tp2ep2sd2")
# An expert's state is shared by sharding ranks of several tensor-parallel ones, since these are more than the places of experts.
ACROSS = tuple(S.Strategy(f"tp4ep2sd2-{stage[1:]}", tp=4, ep=2, sharding=2, stage=stage) for stage in ("1v1", "1v2"))
SHARED = (S.BY_NAME["sharding2-v1"], S.Strategy("pp2sd2-v1", pp=2, sharding=2, stage="1v1"), S.BY_NAME["sharding4-v2"],
          S.Strategy("tp2sd2-v1", tp=2, sharding=2, stage="1v1"), S.BY_NAME["tp2sd2-v2"], S.BY_NAME["sd2ep2"], S.BY_NAME["tp2ep2sd2"],
          *ACROSS)
SCHEDULER = {"last_epoch": 7, "last_lr": 0.125}
TABLE = "StructuredToParameterName@@"


class OrderedPairs:
    """(name, array), as paddle.save writes a tensor in a nested object."""
    def __init__(self, name, array):
        self.pair = (name, array)

    def __reduce__(self):
        return tuple, (self.pair,)


def infix(s, place, with_shard, separator):
    """Where the trainer spreads experts over all ranks of a stage, the names of the states do not say whose experts they are of; over those
    of data parallelism they do."""
    is_spread = s.dp == 1
    parts = [f"tp{place.tp:02d}"] * (s.tp > 1) + [f"pp{place.pp:02d}"] * (s.pp > 1)
    parts += [f"moe{'_sharding' * is_spread}{place.ep:02d}"] * (s.ep > 1 and not (is_spread and with_shard))
    parts += [f"shard{place.sharding:02d}"] * (s.sharding > 1 and with_shard)
    return separator + "_".join(parts) if parts else ""


def local_key(s, model, key, has_places=False):
    """Expert-parallel ranks number their own experts, or leave the places of others' empty."""
    each = model.experts // s.ep
    return key if has_places else re.sub(r"experts\.(\d+)", lambda m: f"experts.{int(m.group(1)) % each}", key) if s.ep > 1 else key


def local_names(model, s, place):
    """Structured name -> the framework's name on this rank."""
    found = {}
    for parameter, _ in S.held_weights(model, s, place):
        kind, leaf = parameter.name.rsplit("_", 2)[0], parameter.name.rsplit(".", 1)[1]
        found.setdefault(parameter.name, f"{kind}_{len(found)}.{leaf}")
    return {p.key: found[p.name] for p, _ in S.held_weights(model, s, place)}


def padded(array, is_run):
    """The last run of a parameter goes on with zeros up to the end of what the rank owns."""
    if is_run:
        array.value += bytes(64)
        array.shape = (array.shape[0] + 64 // S.WIDTH["float32"],)
    return array


def slices(model, s, place):
    """What a rank of stage 3 has: as many elements of each flattened parameter as every other, behind its end zeros."""
    for parameter, w in S.held_weights(model, s, place):
        if parameter.is_buffer or S.state_owner(model, parameter) != parameter.key:
            continue
        count, block = S.math.prod(w.extent), S.BLOCK_BYTES // S.WIDTH[w.dtype]
        part = -(-(-(-count // block) * block) // s.sharding)
        begin, end = min(count, place.sharding * part), min(count, (place.sharding + 1) * part)
        for state in [*S.STATES, *["w_0"] * (parameter.dtype == "bfloat16")]:
            if "pow" in state:
                shard, length = S.Shard(f"{w.key}.{state}", "float32", (1,), (0,), (1,)), 1
            else:
                shard, length = S.Shard(f"{w.key}.{state}", "float32", w.shape, w.start, w.extent, (begin, end)), part
            value = S.shard_bytes(model, shard)
            yield shard, S.Array("f4", (length,), value + bytes(4 * length - len(value)))


def arrays(model, s, place, first):
    if s.stage == "3":
        yield from slices(model, s, place)
        return
    for shard in S.shards_of(model, s, place)[first:]:
        ends = shard.flat and shard.flat[1] == S.math.prod(shard.extent)
        yield shard, padded(S.array_of(model, shard), ends and "pow" not in shard.key)


def optimizer_state(model, s, place, protocol):
    """Stage 3 calls what it cuts slice@NAME, but the states of a master weight of it NAME_moment1_0: that has its parameter's name."""
    names, state, masters = local_names(model, s, place), {}, {}
    if s.stage == "3":
        plain, names = names, {key: "slice@" + name for key, name in names.items()}
    for shard, array in arrays(model, s, place, len(names)):
        key, kind = shard.key.rsplit(".", 1)
        if kind == "w_0":
            masters[names[key]] = OrderedPairs(names[key], array)
        else:
            has_master = next(p for p in model.parameters if p.key == key).dtype == "bfloat16"
            static = f"{names[key]}_fp32_master_0_{kind}" if has_master else f"{names[key]}_{kind}"
            if has_master and s.stage == "3":
                static = f"{plain[key]}_{kind}"
            state[static] = OrderedPairs(static, array)
    return {**state, "master_weights": masters, "LR_Scheduler": SCHEDULER}


def as_one_file(state):
    return {"optimizer{}.pdopt": state}


def with_masters(change):
    """Files of a state whose master weights stand elsewhere, or are called otherwise."""
    def make(state):
        masters = state["master_weights"]
        return change({key: value for key, value in state.items() if key != "master_weights"}, masters)
    return make


def renamed(masters, before="", after=""):
    return {before + name + after: value for name, value in masters.items()}


MASTER = "_fp32_master_0"
SPELLINGS = {
    "behind the states": lambda state, masters: as_one_file({**state, **renamed(masters, after=MASTER)}),
    "one level up, with their member's name": lambda state, masters: as_one_file({**state, **renamed(masters, before="master_weights.")}),
    "with both names": lambda state, masters: as_one_file({**state, "master_weights": renamed(masters, after=MASTER)}),
    "in a file": lambda state, masters: {**as_one_file(state), "master_weights{}.pdparams": masters},
    "in a file, with the state's name":
        lambda state, masters: {**as_one_file(state), "master_weights{}.pdparams": renamed(masters, after=MASTER)},
}
KEPT = 3    # gradients of each parameter that ASGD keeps


def with_kept(state):
    """States of ASGD: y_0 has the last gradients along an axis before the parameter's, m_0 is how many there are."""
    more = {}
    for name, pair in state.items():
        if name.endswith("_moment1_0"):
            array, name = pair.pair[1], name.removesuffix("moment1_0")
            more[name + "y_0"] = OrderedPairs(name + "y_0", S.Array("f4", (KEPT, *array.shape), KEPT * array.value))
            more[name + "m_0"] = OrderedPairs(name + "m_0", S.Array("f4", (1,), bytes(4)))
    return as_one_file({**state, **more})


def check_kept(command, model, folder):
    wanted = S.manifest(model)
    for key, (_, shape, value) in list(S.contents(model).items()):
        if key.endswith(".moment1_0"):
            stem = key.removesuffix("moment1_0")
            wanted[stem + "y_0"] = {"dtype": "F32", "shape": [KEPT, *shape], "sha256": hashlib.sha256(KEPT * value).hexdigest()}
            wanted[stem + "m_0"] = {"dtype": "F32", "shape": [1], "sha256": hashlib.sha256(bytes(4)).hexdigest()}
    said, failed = command("hash", "--json", folder)
    return [failed] if failed else list(digest_problems(said, wanted))


def write_family(model, s, folder, protocol=4, separator=".", files_of=as_one_file, has_places=False, stem="model_state"):
    folder.mkdir(parents=True)
    with S.Pickles():
        for place in S.places(s):
            if place.dp and s.ep == 1:
                continue
            names = local_names(model, s, place)
            weights = {local_key(s, model, w.key, has_places): S.array_of(model, w) for _, w in S.held_weights(model, s, place)}
            weights[TABLE] = {local_key(s, model, key, has_places): name for key, name in names.items()}
            name = f"{stem}{infix(s, place, False, separator)}.pdparams"
            if not (folder / name).exists():
                (folder / name).write_bytes(pickle.dumps(weights, protocol))
            for name, content in files_of(optimizer_state(model, s, place, protocol)).items():
                (folder / name.format(infix(s, place, True, separator))).write_bytes(pickle.dumps(content, protocol))


def held_masters(model, s, place):
    """Names of the parameters whose master weights the sharding group of a rank has."""
    names = local_names(model, s, place)
    return {names[p.key] for p, _ in S.held_weights(model, s, place)
            if p.dtype == "bfloat16" and not p.is_buffer and S.state_owner(model, p) == p.key}


def write_shared(model, s, folder, has_meta=True):
    """What save_sharding_stage1_model leaves: weights without master weights, dealt over the sharding ranks, and model_meta.json."""
    folder.mkdir(parents=True)
    metas = {}
    with S.Pickles():
        for place in S.places(s):
            names, masters = local_names(model, s, place), held_masters(model, s, place)
            held = [(p, w, local_key(s, model, w.key)) for p, w in S.held_weights(model, s, place)]
            own = [(w, key) for i, (p, w, key) in enumerate(held) if names[p.key] not in masters and i % s.sharding == place.sharding]
            weights = {**{key: S.array_of(model, w) for w, key in own}, TABLE: {key: names[w.key] for w, key in own}}
            suffix = infix(s, place, True, ".")
            (folder / f"model_state{suffix}.pdparams").write_bytes(pickle.dumps(weights, 4))
            (folder / f"optimizer{suffix}.pdopt").write_bytes(pickle.dumps(optimizer_state(model, s, place, 4), 4))
            rank = f"tp{place.tp:02d}_pp{place.pp:02d}" + (f"_ep{place.ep:02d}" if s.ep > 1 else "")
            metas[rank] = {"param2rank": {}, "structure_name_mapping": {key: names[p.key] for p, _, key in held},
                           "param_meta": {key: [list(w.extent), 22, w.extent != w.shape, False] for _, w, key in held}}
    if has_meta:
        (folder / "model_meta.json").write_text(json.dumps({"parallel_config": {}, "sharding_metas": metas}))


def check_strays(command, model, s, folder):
    """Without model_meta.json nobody knows the parameters: each stage's states are listed for themselves."""
    write_shared(model, s, folder, has_meta=False)
    wanted = set()
    for place in S.places(s):
        state = optimizer_state(model, s, place, 4)
        masters = {f"master_weights.{name}": value for name, value in state.pop("master_weights").items()}
        wanted |= {f"pp{place.pp:02d}.{name}" for name in {**state, **masters} if "master" in name}
    said, failed = command("ls", "--json", folder)
    found = set() if failed else {t["key"] for t in json.loads(said)["tensors"]}
    found = {key for key in found if key.startswith("pp")}
    failed = failed or command("verify", folder)[1]
    return ([failed] if failed else []) + [f"only one side has {key}" for key in sorted(wanted ^ found)[:3]]


def write_parts(model, folder, has_index):
    """A model in numbered files, as save_pretrained leaves one that is too large for one file."""
    write_family(model, S.BY_NAME["dp1"], folder)
    with S.Pickles():
        weights = {w.key: S.array_of(model, w) for _, w in S.held_weights(model, S.BY_NAME["dp1"], next(S.places(S.BY_NAME["dp1"])))}
        names = local_names(model, S.BY_NAME["dp1"], next(S.places(S.BY_NAME["dp1"])))
        files = {}
        for number in range(3):
            part = {key: value for i, (key, value) in enumerate(weights.items()) if i % 3 == number}
            name = f"model_state-{number + 1:05d}-of-00003.pdparams"
            (folder / name).write_bytes(pickle.dumps({**part, TABLE: {key: names[key] for key in part}}, 4))
            files |= {key: name for key in part}
    (folder / "model_state.pdparams").unlink()
    if has_index:
        (folder / "model_state.pdparams.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return files


def check_parts(command, model, folder, has_index):
    files = write_parts(model, folder, has_index)
    problems = check_reading(command, model, folder)
    (folder / "optimizer.pdopt").unlink()
    (folder / "model_state-00002-of-00003.pdparams").unlink()
    lost = [key for key, name in files.items() if "-00002-" in name]
    said = command("hash", folder)[1] or ""
    problems += [] if "file 2 of 3 is missing" in said else [f"'{said}' does not name the file"]
    said, _ = command("verify", folder)
    problems += [] if "file 2 of 3 is missing" in said else ["verify does not name the file"]
    return problems + [f"{key} is not named" for key in lost if has_index != (f"tensor '{key}' is lost" in said)]


def adapter_model(layers=2, experts=2, hidden=12, rank=4, heads=16):
    """LoRA beside column-parallel layers has its second matrix cut, beside row-parallel ones its first."""
    parameters = []
    def add(layer, module, shape, is_row, expert=None):
        for part, size, axis in (("A", (shape[0], rank), 0 if is_row else None), ("B", (rank, shape[1]), None if is_row else 1)):
            parameters.append(S.Parameter(f"model.layers.{layer}.{module}.lora_{part}", size, axis=axis, layer=layer, expert=expert,
                                          name=f"lora_linear_{len(parameters) // 2}.w_{'AB'.index(part)}"))
    for layer in range(layers):
        for module in ("q_proj", "k_proj", "qkv_proj"):
            add(layer, f"self_attn.{module}", (hidden, heads), False)
        add(layer, "self_attn.o_proj", (heads, hidden), True)
        for expert in range(experts):
            add(layer, f"mlp.experts.{expert}.up_proj", (hidden, heads), False, expert)
            add(layer, f"mlp.experts.{expert}.down_proj", (heads, hidden), True, expert)
        add(layer, "mlp.gate_proj", (hidden, heads), False)
        add(layer, "mlp.down_proj", (heads, hidden), True)
    return S.Model(parameters, layers, experts)


def check_reading(command, model, folder):
    said, failed = command("hash", "--json", folder)
    if failed:
        return [failed]
    problems = list(digest_problems(said, S.manifest(model)))
    said, failed = command("ls", "--json", "--items", folder)
    items = {} if failed else {i["key"]: i.get("value") for i in json.loads(said)["items"]}
    problems += [] if items.get("LR_Scheduler.last_epoch") == 7 else [f"items: {failed or sorted(items)[:5]}"]
    failed = command("verify", folder)[1]
    return problems + ([failed] if failed else [])


def check_border(command, folder):
    """Sharding V2 gives a parameter of 64 numbers 128 in its buffer, of which each of two ranks may have half."""
    model = S.Model([S.Parameter("norm.weight", (64,))], 0, 0)
    S.number_names(model.parameters)
    s = S.BY_NAME["sharding2-v1"]
    write_family(model, s, folder)
    owner = next(p for p in S.places(s) if any(".moment1_0" in shard.key for shard in S.shards_of(model, s, p)))
    paths = [folder / f"optimizer.shard{number:02d}.pdopt" for number in (0, 1)]
    data = paths[owner.sharding].read_bytes()
    state = {**pickle.loads(data), "LR_Scheduler": SCHEDULER}
    paths[0].write_bytes(data)
    with S.Pickles():
        padding = {name: OrderedPairs(name, S.Array("f4", (64,), bytes(256))) for name in state if "moment" in name}
        paths[1].write_bytes(pickle.dumps({**padding, "master_weights": {}, "LR_Scheduler": SCHEDULER}, 4))
    return check_reading(command, model, folder)


def damaged_copy(command, model, folder):
    """Copies of a run are compared with that run: a flipped bit in one shows, with the two files that have it."""
    write_family(model, SLICED["stage3-cut-tp2"], folder)
    key, file = "model.layers.2.mlp.gate.weight.moment1_0", "optimizer.tp01_shard01.pdopt"
    said, failed = command("ls", "--chunks", "--json", folder)
    if failed:
        return [failed]
    chunks = next(t for t in json.loads(said)["tensors"] if t["key"] == key)["chunks"]
    offset = next(c["offset"] for c in chunks if c["file"] == file)
    with open(folder / file, "r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))
    said, _ = command("verify", folder)
    told = [line for line in said.splitlines() if line.startswith("failure")]
    fits = len(told) == 1 and key in told[0] and file in told[0] and "optimizer.tp00_shard01.pdopt" in told[0]
    return [] if fits else told or ["nothing is told"]


def check_whole(tap, command, work):
    """What a model leaves whole on every tensor-parallel rank, though such weights are cut elsewhere: their bytes are the same. Of constant
    ones that tells nothing: a bias is as its weight is, and the rule holds for others."""
    for title, pattern in (("experts", r"experts\.\d"), ("query, key and value projections", r"\.[qkv]_proj\."),
                           ("embeddings", "embed_tokens")):
        model = S.language_model()
        for parameter in model.parameters:
            parameter.axis = None if re.search(pattern, parameter.key) else parameter.axis
            if parameter.key.endswith("q_proj.bias"):
                for key in (parameter.key, parameter.key + ".w_0"):
                    dtype, shape, value = S.contents(model)[key]
                    model.contents[key] = dtype, shape, bytes(len(value))
        for s, write in ((S.BY_NAME["tp2"], write_family), (S.BY_NAME["tp2sd2-v2"], write_family), (SHARED[4], write_shared)):
            folder = work / f"whole-{title}-{s.name}-{write.__name__}"
            write(model, s, folder)
            tap(f"{title} that no rank cuts, {s.name}, {write.__name__}", check_reading(command, model, folder))
            if write is write_family:
                said = command("inspect", folder)[0]
                tap(f"{title} that no rank cuts, {s.name}: told", [] if "same on all tensor-parallel ranks" in said else [said])


def check_two_stages(command, folder):
    """PaddleNLP's GPT has its embedding on the first and on the last stage, whose sharding ranks share its state apart."""
    model = S.Model([S.Parameter("gpt.embeddings.word_embeddings.weight", (32, 16), axis=0)], 0, 0)
    S.number_names(model.parameters)
    write_family(model, S.BY_NAME["sharding2-v2"], folder)
    for path in list(folder.iterdir()):
        stem, rest = path.name.split(".", 1)
        rest = rest if rest == "pdparams" else "_" + rest
        for stage in ("pp00", "pp01"):
            (folder / f"{stem}.{stage}{'.' * (rest == 'pdparams')}{rest}").write_bytes(path.read_bytes())
        path.unlink()
    problems = check_reading(command, model, folder)
    (folder / "optimizer.pp01_shard01.pdopt").unlink()
    said = command("hash", folder)[1] or "it is read"
    return problems + ([] if "sharding ranks have" in said else [f"with a file too few: {said}"])


def write_group(model, s, folder):
    """As save_group_sharded_model leaves the first rank's."""
    write_family(model, s, folder)
    (folder / "model_state.pdparams").rename(folder / "model.pdmodel")
    (folder / ("optimizer.shard00.pdopt" if s.sharding > 1 else "optimizer.pdopt")).rename(folder / "model.pdopt")
    for path in folder.glob("optimizer*"):
        path.unlink()
    (folder / "program.pdmodel").write_bytes(b"\x0a\x04\x08\x00\x10\x00" * 9)


def check_group(tap, command, model, work):
    folder = work / "group"
    write_group(model, S.BY_NAME["dp1"], folder)
    tap("save_group_sharded_model", check_reading(command, model, folder))
    said = command("inspect", folder)[0]
    tap("a program for inference beside it", [] if "'program.pdmodel' is left out" in said else [said])
    (folder / "other.pdopt").write_bytes((folder / "model.pdopt").read_bytes())
    (folder / "model.pdmodel").rename(folder / "weights.pdmodel")
    said, failed = command("ls", "--json", folder)
    keys = set() if failed else {t["key"] for t in json.loads(said)["tensors"]}
    wanted = {f"weights.pdmodel.{p.key}" for p in model.parameters}
    tap("a .pdmodel of another name", [failed] if failed else [] if wanted <= keys else sorted(wanted - keys)[:3])
    said = command("inspect", folder)[0]
    tap("a program for inference in a folder of files", [] if "'program.pdmodel' is left out" in said else [said])
    folder = work / "group-of-slices"
    write_group(model, SLICED["stage3-cut"], folder)
    said, failed = command("hash", "--json", folder)
    listed = [] if failed else json.loads(said)["tensors"]
    weights = {p.key for p in model.parameters}
    problems = [failed] if failed else list(digest_problems(json.dumps({"tensors": [t for t in listed if t["key"] in weights]}),
                                                            {key: S.manifest(model)[key] for key in weights}))
    problems += [] if any(t["key"].startswith("slice@") for t in listed) else ["no state has the framework's name"]
    said = command("inspect", folder)[0]
    tap("save_group_sharded_model, states of stage 3", problems + ([] if "one rank of sharding stage 3" in said else [said]))


def check_side_files(command, model, folder):
    write_family(model, S.BY_NAME["tp2pp2"], folder)
    names = ("trainer_state.bin", "trainer_state.json", "training_args.bin", "rng_state_0.pth", "config.json")
    for name in names:
        (folder / name).write_text(f'{{"{name}": 2}}')
    problems = []
    for kind in ("paddle-uc", "paddle-flex"):
        there = folder.with_name(f"side-{kind}")
        failed = command.convert(folder, there, "--to", kind)
        problems += [failed] if failed else [f"{kind}: {name} is left behind" for name in names if not (there / name).exists()]
    return problems


def refusals(model, work):
    """name, what is done to a folder, a word of the message."""
    def drop(s, name):
        def make(folder):
            write_family(model, s, folder)
            (folder / name).unlink()
        return make

    def strange(folder):
        odd = S.Model([S.Parameter("strange.matrix", (8, 6), axis=1)], 0, 0)
        S.number_names(odd.parameters)
        write_family(odd, S.BY_NAME["tp2"], folder)

    yield "a tensor-parallel rank is missing", drop(S.BY_NAME["tp4"], "model_state.tp02.pdparams"), "missing"
    def three(folder):
        write_family(model, SLICED["stage3-cut"], folder)
        (folder / "optimizer.shard03.pdopt").unlink()

    def last(folder):
        write_family(model, S.BY_NAME["tp2"], folder)
        for path in folder.glob("*.tp01.*"):
            path.unlink()
        (folder / "config.json").write_text(json.dumps({"tensor_model_parallel_size": 2}))

    yield "the last tensor-parallel rank is missing", last, "as config.json says"
    yield "a rank of stage 3 is missing", three, "sharding ranks"
    yield "a sharding rank is missing", drop(S.BY_NAME["sharding4-v2"], "optimizer.shard01.pdopt"), "sharding ranks"
    yield "no rule tells how ranks share a parameter", strange, "along which axis"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--keep")
    options = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(options.keep or scratch)
        command = Command(options.bin, work)
        for is_tied in (False, True):
            small, wide = (S.language_model(is_tied=is_tied, heads=heads) for heads in (16, 32))
            for name in NAMES:
                model = wide if name in SLICED else small   # of which a slice of a bias is as long as that
                folder = work / f"{name}-{'tied' if is_tied else 'untied'}"
                write_family(model, SLICED.get(name) or S.BY_NAME[name], folder, protocol=2 if name == "tp2" else 4,
                             separator="_" if name == "pp2" else ".")
                tap(f"rank files of {name}, {'tied' if is_tied else 'untied'}", check_reading(command, model, folder))
        model = S.language_model()
        large = S.language_model(layers=6, experts=2, hidden=40, middle=24)     # of which ranks' borders lie within experts
        for s in ACROSS:
            write_family(large, s, work / s.name)
            tap(f"rank files of {s.name}", check_reading(command, large, work / s.name))
        check_whole(tap, command, work)
        tap("a tied weight of two stages, whose states are runs", check_two_stages(command, work / "two-stages"))
        check_group(tap, command, model, work)
        tap("files of the trainer", check_side_files(command, model, work / "side"))
        for name in ("dp2ep2", "sd2ep2", "tp2ep2"):
            write_family(model, S.BY_NAME[name], work / f"places-{name}", has_places=True)
            tap(f"experts with the model's numbers, {name}", check_reading(command, model, work / f"places-{name}"))
        for s in SHARED:
            for is_tied in (False, True):
                model, folder = S.language_model(is_tied=is_tied), work / f"shared-{s.name}-{'tied' if is_tied else 'untied'}"
                write_shared(model, s, folder)
                tap(f"master weights alone, {s.name}, {'tied' if is_tied else 'untied'}", check_reading(command, model, folder))
        model = S.language_model()
        for stem, name in (("lora", "dp1"), ("lora", "tp2"), ("lora", "pp2"), ("lora", "tp2sd2-v2"), ("vera", "pp2"), ("lokr", "dp1"),
                           ("prefix", "sharding2-v1")):
            adapter, folder = adapter_model(), work / f"{stem}-{name}"
            write_family(adapter, S.BY_NAME[name], folder, stem=stem + "_model_state")
            tap(f"rank files of adapters, {stem}, {name}", check_reading(command, adapter, folder))
        for has_index in (False, True):
            title = f"numbered files, {'with an' if has_index else 'without'} index"
            tap(title, check_parts(command, model, work / title.replace(" ", "-"), has_index))
        tap("states of stages that nobody knows", check_strays(command, model, SHARED[1], work / "strays"))
        tap("the padding of a vector that is as long as it", check_border(command, work / "border"))
        for title, make, word in refusals(model, work):
            folder = work / title.replace(" ", "-")
            make(folder)
            _, failed = command("hash", folder)
            tap(title, [] if failed and word in failed else [f"'{failed}' does not say '{word}'"])
        for title, change in SPELLINGS.items():
            folder = work / title.replace(" ", "-")
            write_family(model, S.BY_NAME["tp2"], folder, files_of=with_masters(change))
            tap(f"master weights {title}", check_reading(command, model, folder))
        for name in ("dp1", "tp2"):
            write_family(model, S.BY_NAME[name], work / f"kept-{name}", files_of=with_kept)
            tap(f"states with an axis of their own, {name}", check_kept(command, model, work / f"kept-{name}"))
        tap("a copy of a run that differs", damaged_copy(command, model, work / "damaged"))
    print(f"1..{tap.count}")
    return tap.failed > 0


if __name__ == "__main__":
    sys.exit(main())
