# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Paddle under any parallel strategy, made without Paddle and without reshard: what each rank holds is worked out here from
the rules of the frameworks, and Python's own pickle writes it.

A strategy is a set of degrees. `shards_of` says what each rank has of a model, `stored` which file keeps what of it when replicas are dealt
out, and `write_flex` and `write_unified` write the trees. The standard library is all that is needed.
"""
import hashlib
import json
import math
import pickle
import random
import re
import struct
import sys
import types
from dataclasses import dataclass, field, replace

STATES = ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0")
WIDTH = {"bfloat16": 2, "float32": 4}
NUMPY_TYPE = {"bfloat16": "u2", "float32": "f4"}
SAFETENSORS_TYPE = {"bfloat16": "BF16", "float32": "F32"}
BLOCK_BYTES = 256


# ---- strategies ----

@dataclass(frozen=True)
class Strategy:
    name: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    vp: int = 1
    ep: int = 1
    sharding: int = 1
    stage: str = ""      # 1v1, 1v2, 2, 3
    whole: int = 1 << 20 # elements of a parameter that stage 3 does not cut

    @property
    def ranks(self):
        return self.dp * self.pp * self.sharding * self.tp

    @property
    def is_ep_over_tp(self):
        """The ranks of a stage take the places of expert parallelism in turn, those of tensor parallelism first, and each expert is whole
        where it is (PaddleFormers' trainer takes expert_model_parallel_size so)."""
        return self.ep > 1 and self.tp > 1

    @property
    def words(self):
        """As --layout takes it."""
        words = [f"{word}={getattr(self, word)}" for word in ("tp", "pp", "vp", "ep", "dp", "sharding") if getattr(self, word) > 1]
        return ",".join(words + ([f"stage={self.stage}"] if self.stage else [])) or "ranks=1"


@dataclass(frozen=True)
class Place:
    """A rank among the others: data parallel is the outermost dimension, then stages, sharding, and tensor parallel within."""
    rank: int
    dp: int
    pp: int
    sharding: int
    tp: int
    ep: int


def places(s):
    for rank in range(s.ranks):
        rest, tp = divmod(rank, s.tp)
        rest, sharding = divmod(rest, s.sharding)
        dp, pp = divmod(rest, s.pp)
        data = dp * s.sharding + sharding
        yield Place(rank, dp, pp, sharding, tp, (data * s.tp + tp) % s.ep)


STRATEGIES = [
    Strategy("dp1"), Strategy("dp2", dp=2), Strategy("dp4", dp=4), Strategy("tp2", tp=2), Strategy("tp4", tp=4), Strategy("pp2", pp=2),
    Strategy("pp4", pp=4), Strategy("vpp", pp=2, vp=2), Strategy("sharding2-v1", sharding=2, stage="1v1"),
    Strategy("sharding4-v1", sharding=4, stage="1v1"), Strategy("sharding2-v2", sharding=2, stage="1v2"),
    Strategy("sharding4-v2", sharding=4, stage="1v2"), Strategy("stage2", sharding=2, stage="2"), Strategy("stage3", sharding=2, stage="3"),
    Strategy("tp2pp2", tp=2, pp=2), Strategy("tp2dp2", tp=2, dp=2), Strategy("dp2pp2", dp=2, pp=2), Strategy("dp2ep2", dp=2, ep=2),
    Strategy("dp4ep4", dp=4, ep=4), Strategy("tp2ep2", tp=2, ep=2), Strategy("sd2ep2", sharding=2, stage="1v1", ep=2),
    Strategy("sd2ep2-v2", sharding=2, stage="1v2", ep=2), Strategy("tp2sd2-v2", tp=2, sharding=2, stage="1v2"),
    Strategy("tp2ep2sd2", tp=2, ep=2, sharding=2, stage="1v1"), Strategy("tp2ep2pp2", tp=2, ep=2, pp=2),
    Strategy("tp2ep4", tp=2, dp=2, ep=4), Strategy("tp2dp2ep2", tp=2, dp=2, ep=2),
    Strategy("tp4ep2sd2-v2", tp=4, ep=2, sharding=2, stage="1v2"),
]
# Stage 3 with a small segment size cuts every parameter.
MET = [Strategy("stage3-cut", sharding=4, stage="3", whole=0), Strategy("stage3-cut-tp2", tp=2, sharding=2, stage="3", whole=0)]
BY_NAME = {s.name: s for s in STRATEGIES}


# ---- models ----

@dataclass
class Parameter:
    key: str
    shape: tuple
    dtype: str = "bfloat16"
    axis: int = None        # that tensor parallelism cuts
    layer: int = None
    expert: int = None
    is_last: bool = False   # outside of layers: on the last stage
    name: str = ""          # the framework's own
    tied_to: str = None     # key of the parameter that it shares memory with
    is_buffer: bool = False # without optimizer state


@dataclass
class Model:
    parameters: list
    layers: int
    experts: int
    seed: str = "1"
    contents: dict = field(default_factory=dict)


def block(prefix, layer, hidden, middle, heads, experts, where):
    """One decoder layer in the order of its modules; where is what tells its stage."""
    def made(key, shape, **more):
        return Parameter(f"{prefix}.{key}", shape, **{**where, **more})
    yield made("self_attn.q_proj.weight", (hidden, heads), axis=1)
    yield made("self_attn.q_proj.bias", (heads,), axis=0)
    yield made("self_attn.k_proj.weight", (hidden, heads // 2), axis=1)
    yield made("self_attn.v_proj.weight", (hidden, heads // 2), axis=1)
    yield made("self_attn.o_proj.weight", (heads, hidden), axis=0)
    if experts:
        yield made("mlp.gate.weight", (hidden, experts), dtype="float32")
        for expert in range(experts):
            yield made(f"mlp.experts.{expert}.gate_proj.weight", (hidden, middle), axis=1, expert=expert)
            yield made(f"mlp.experts.{expert}.up_proj.weight", (hidden, middle), axis=1, expert=expert)
            yield made(f"mlp.experts.{expert}.down_proj.weight", (middle, hidden), axis=0, expert=expert)
        yield made("mlp.moe_statics.e_score_correction_bias", (1, experts), dtype="float32", is_buffer=True)
    else:
        yield made("mlp.gate_proj.weight", (hidden, 2 * middle), axis=1)
        yield made("mlp.up_proj.weight", (hidden, 2 * middle), axis=1)
        yield made("mlp.down_proj.weight", (2 * middle, hidden), axis=0)
        yield made("mlp.down_proj.bias", (hidden,))
    yield made("input_layernorm.weight", (hidden,), dtype="float32")
    yield made("post_attention_layernorm.weight", (hidden,))


def language_model(is_tied=False, layers=4, experts=4, hidden=12, middle=8, heads=16, vocab=20, has_mtp=True, seed="1"):
    """Dense layers first, then layers with experts, then a block that predicts a further token."""
    found = [Parameter("model.embed_tokens.weight", (vocab, hidden), axis=0)]
    for layer in range(layers):
        is_dense = layer < layers // 2 or not experts
        found += block(f"model.layers.{layer}", layer, hidden, middle, heads, 0 if is_dense else experts, {"layer": layer})
    found.append(Parameter("model.norm.weight", (hidden,), "float32", is_last=True))
    if has_mtp:
        found.append(Parameter("model.mtp_block.0.eh_proj.weight", (2 * hidden, hidden), is_last=True))
        found += block("model.mtp_block.0", None, hidden, middle, heads, 0, {"is_last": True})
    found.append(Parameter("lm_head.weight", (vocab, hidden), axis=0, is_last=True, tied_to="model.embed_tokens.weight") if is_tied
                 else Parameter("lm_head.weight", (hidden, vocab), axis=1, is_last=True))
    number_names(found)
    return Model(found, layers, experts, seed)


def number_names(parameters):
    """linear_0.w_0, linear_0.b_0, …: a number for each module of a kind; shared memory has one name."""
    modules, counts, by_key = {}, {}, {}
    for parameter in parameters:
        module, leaf = parameter.key.rsplit(".", 1)
        kind = "embedding" if "embed" in module else "layer_norm" if "norm" in module else "linear"
        if module not in modules:
            modules[module] = f"{kind}_{counts.get(kind, 0)}"
            counts[kind] = counts.get(kind, 0) + 1
        parameter.name = by_key[parameter.tied_to] if parameter.tied_to else modules[module] + (".b_0" if leaf == "bias" else ".w_0")
        by_key[parameter.key] = parameter.name


def round_to_bfloat16(floats):
    """To nearest, ties to even; the numbers are finite."""
    bits = struct.unpack(f"<{len(floats) // 4}I", floats)
    return struct.pack(f"<{len(bits)}H", *((b + 0x7FFF + (b >> 16 & 1)) >> 16 & 0xFFFF for b in bits))


def state_owner(model, parameter):
    """The key whose states a parameter has: of tied ones the first in sorted order."""
    same = [p.key for p in model.parameters if p.name == parameter.name]
    return min(same)


def numbers(model, key, count):
    source = random.Random(f"{model.seed}/{key}")
    return struct.pack(f"<{count}f", *(source.gauss(0, 1) for _ in range(count)))


def contents(model):
    """key -> (dtype, shape, bytes) of every whole tensor, in the order in which one rank alone would save them."""
    if model.contents:
        return model.contents
    weights, states, masters = {}, {s: {} for s in STATES}, {}
    for parameter in model.parameters:
        count = math.prod(parameter.shape)
        master = numbers(model, parameter.tied_to or parameter.key, count)
        value = round_to_bfloat16(master) if parameter.dtype == "bfloat16" else master
        weights[parameter.key] = (parameter.dtype, parameter.shape, value)
        if parameter.is_buffer or state_owner(model, parameter) != parameter.key:
            continue
        for state in STATES:
            shape = (1,) if "pow" in state else parameter.shape
            key = f"{parameter.key}.{state}"
            states[state][key] = ("float32", shape, numbers(model, key, math.prod(shape)))
        if parameter.dtype == "bfloat16":
            masters[parameter.key + ".w_0"] = ("float32", parameter.shape, master)
    model.contents = dict(weights)
    for state in STATES:
        model.contents.update(states[state])
    model.contents.update(masters)
    return model.contents


def manifest(model):
    """key -> dtype, shape and digest of the whole tensor."""
    return {key: {"dtype": SAFETENSORS_TYPE[dtype], "shape": list(shape), "sha256": hashlib.sha256(value).hexdigest()}
            for key, (dtype, shape, value) in contents(model).items()}


# ---- what a rank holds ----

@dataclass(frozen=True)
class Shard:
    key: str
    dtype: str
    shape: tuple             # of the whole
    start: tuple
    extent: tuple
    flat: tuple = None       # (begin, end) of the box
    name: str = ""

    @property
    def index(self):
        return (self.key, self.start, self.extent, self.flat)


def stage_of(model, s, parameter):
    """Which stage has it: layers are dealt out evenly, with virtual stages one part after the other."""
    if parameter.layer is None:
        return s.pp - 1 if parameter.is_last else 0
    parts = s.pp * s.vp
    if model.layers % parts:
        raise ValueError(f"{model.layers} layers do not divide by {parts} parts")
    return parameter.layer // (model.layers // parts) % s.pp


def held_weights(model, s, place):
    """(parameter, shard) of the rank's weights in the order of the modules."""
    for parameter in model.parameters:
        is_own = parameter.expert is not None and s.ep > 1
        if stage_of(model, s, parameter) != place.pp:
            continue
        if is_own and parameter.expert // (model.experts // s.ep) != place.ep:
            continue
        start, extent = [0] * len(parameter.shape), list(parameter.shape)
        if parameter.axis is not None and s.tp > 1 and not (is_own and s.is_ep_over_tp):
            if extent[parameter.axis] % s.tp:
                raise ValueError(f"{parameter.key}: axis {parameter.axis} does not divide by {s.tp}")
            extent[parameter.axis] //= s.tp
            start[parameter.axis] = place.tp * extent[parameter.axis]
        yield parameter, Shard(parameter.key, parameter.dtype, parameter.shape, tuple(start), tuple(extent), None, parameter.name)


def sharing_ranks(s, place, is_expert):
    """The ranks that share the state of what they all have: an expert's are those of its place, also of other tensor-parallel ranks."""
    if is_expert and s.ep > 1:
        return [p.rank for p in places(s) if (p.dp, p.pp, p.ep) == (place.dp, place.pp, place.ep)]
    return [p.rank for p in places(s) if (p.dp, p.pp, p.tp) == (place.dp, place.pp, place.tp)]


def greedy(params, degree, is_sorted):
    """Each parameter goes to the rank with the least so far: lists of (parameter, shard), one a rank."""
    sums, dealt = [0] * degree, [[] for _ in range(degree)]
    ordered = sorted(params, key=lambda p: -math.prod(p[1].extent)) if is_sorted else params
    for one in ordered:
        rank = sums.index(min(sums))
        sums[rank] += math.prod(one[1].extent)
        dealt[rank].append(one)
    return dealt


def packed_ranges(params, degree, rank):
    """(parameter, shard, (begin, end)) of what one rank has in the flat buffers, one buffer for each type."""
    for dtype in sorted({shard.dtype for _, shard in params}):
        unit = BLOCK_BYTES // WIDTH[dtype] * degree
        members, at = [], 0
        for parameter, shard in params:
            if shard.dtype == dtype:
                padded = -(-math.prod(shard.extent) // unit) * unit
                members.append((parameter, shard, at, padded))
                at += padded
        size = at // degree
        for parameter, shard, index, padded in members:
            begin = max(index, rank * size) - index
            end = min(min(index + padded, (rank + 1) * size) - index, math.prod(shard.extent))
            if begin < end:
                yield parameter, shard, (begin, end)


def own_ranges(params, degree, rank, whole):
    """Stage 3: each parameter is padded and cut by itself; those of up to so many elements are whole on every rank."""
    for parameter, shard in params:
        if math.prod(shard.extent) <= whole:
            yield parameter, shard, None
            continue
        block_elements, count = BLOCK_BYTES // WIDTH[shard.dtype], math.prod(shard.extent)
        part = -(-count // block_elements) * block_elements // degree
        begin, end = min(count, rank * part), min(count, (rank + 1) * part)
        if begin < end:
            yield parameter, shard, (begin, end)


def held_states(model, s, place):
    """(parameter, shard, flat range or None) whose states the rank keeps."""
    weights = [(p, w) for p, w in held_weights(model, s, place) if not p.is_buffer and state_owner(model, p) == p.key]
    if not s.stage:
        return [(p, w, None) for p, w in weights]
    found = []
    for is_expert in (False, True):
        group = sharing_ranks(s, place, is_expert)
        params = [(p, w) for p, w in weights if (p.expert is not None and s.ep > 1) == is_expert]
        at = group.index(place.rank)
        if s.stage in ("1v1", "2"):
            found += [(p, w, None) for p, w in greedy(params, len(group), s.stage == "1v1")[at]]
        else:
            found += packed_ranges(params, len(group), at) if s.stage == "1v2" else own_ranges(params, len(group), at, s.whole)
    order = {parameter.key: at for at, (parameter, _) in enumerate(weights)}
    return found if s.stage in ("1v1", "2") else sorted(found, key=lambda one: order[one[0].key])


def shards_of(model, s, place):
    """All that a rank hands to the saver, in its order."""
    shards = [w for _, w in held_weights(model, s, place)]
    states = held_states(model, s, place)
    for state in STATES:
        for parameter, w, flat in states:
            name = f"{parameter.name}_fp32_master_0_{state}" if parameter.dtype == "bfloat16" else f"{parameter.name}_{state}"
            key = f"{w.key}.{state}"
            shards.append(Shard(key, "float32", (1,), (0,), (1,), None, name) if "pow" in state
                          else Shard(key, "float32", w.shape, w.start, w.extent, flat, name))
    for parameter, w, flat in states:
        if parameter.dtype == "bfloat16":
            shards.append(Shard(w.key + ".w_0", "float32", w.shape, w.start, w.extent, flat, parameter.name + "_fp32_master_0"))
    return shards


# ---- which file keeps what ----

def deal_replicas(held):
    """Of the shards of all ranks, a list a rank, those that stay when every replica but one is dropped: each goes to the file with the
    fewest so far, of equal ones the first by name. Returns {index: rank} in the order of first appearance."""
    candidates = {}
    for rank, shards in enumerate(held):
        for shard in shards:
            candidates.setdefault(shard.index, set()).add(f"{rank}_0.distcp")
    load, chosen = {}, {}
    for index, files in candidates.items():
        best = min(sorted(files), key=lambda f: load.get(f, 0))
        load[best] = load.get(best, 0) + 1
        chosen[index] = int(best.split("_")[0])
    return chosen


@dataclass
class Tree:
    """A checkpoint as the saver leaves it: files[rank] are the shards in its file."""
    files: list
    table: dict     # index -> rank, in the order of the metadata
    shards: dict    # index -> shard


def stored(model, s, held=None):
    held = held or [shards_of(model, s, place) for place in places(s)]
    table = deal_replicas(held)
    files = [[shard for shard in shards if table[shard.index] == rank] for rank, shards in enumerate(held)]
    return Tree(files, table, {shard.index: shard for shards in held for shard in shards})


def cut(value, width, shape, start, extent, flat=None):
    """The bytes of a box of a row-major tensor, or of a flat run of it."""
    if not shape:
        return value
    row, parts = extent[-1] * width, []
    strides = [math.prod(shape[axis + 1:]) for axis in range(len(shape))]

    def walk(axis, at):
        if axis == len(shape) - 1:
            begin = (at + start[axis]) * width
            parts.append(value[begin:begin + row])
            return
        for i in range(extent[axis]):
            walk(axis + 1, at + (start[axis] + i) * strides[axis])
    walk(0, 0)
    box = b"".join(parts)
    return box if flat is None else box[flat[0] * width:flat[1] * width]


def shard_bytes(model, shard):
    dtype, shape, value = contents(model)[shard.key]
    return cut(value, WIDTH[dtype], shape, shard.start, shard.extent, shard.flat)


# ---- pickles ----

def stand_in(module, name, **members):
    """A class that pickles under a name of another package's."""
    made = type(name, (), members)
    made.__module__, made.__qualname__ = module, name
    holder = sys.modules.setdefault(module, types.ModuleType(module))
    setattr(holder, name, made)
    return made


METADATA_MODULE = "paddle.distributed.flex_checkpoint.dcp.metadata"


def by_members(self):
    return hash(tuple(self.__dict__.items()))


def stand_in_function(module, name):
    def function(*args):
        raise NotImplementedError
    function.__module__, function.__qualname__, function.__name__ = module, name, name
    holder = sys.modules.setdefault(module, types.ModuleType(module))
    setattr(holder, name, function)
    return function


class Array:
    """Pickles as a numpy array does."""
    def __init__(self, numpy_type, shape, value):
        self.numpy_type, self.shape, self.value = numpy_type, shape, value

    def __reduce__(self):
        return RECONSTRUCT, (NDARRAY, (0,), b"b"), (1, self.shape, numpy_dtype(self.numpy_type), False, self.value)


class Dtype:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        order = "|" if self.name[1] == "1" else "<"
        return DTYPE, (self.name, False, True), (3, order, None, None, None, -1, -1, 0)


DTYPES = {}


def numpy_dtype(name):
    """One object each: pickles share it."""
    return DTYPES.setdefault(name, Dtype(name))


def without_modules(names):
    """The modules that are not really there: they may not be seen by anything but pickle.dumps."""
    return {name: sys.modules.pop(name, None) for name in names}


class Pickles:
    """Writes pickles that speak of numpy's and Paddle's classes, whether or not these packages are installed."""
    MODULES = ("numpy", "numpy._core", "numpy._core.multiarray",
               *(METADATA_MODULE.rsplit(".", depth)[0] for depth in range(METADATA_MODULE.count(".") + 1)))

    def __enter__(self):
        global RECONSTRUCT, NDARRAY, DTYPE, METADATA, SHARD_METADATA, SHARD_INDEX
        self.before = without_modules(self.MODULES)
        sys.modules.update({name: types.ModuleType(name) for name in self.MODULES})
        RECONSTRUCT = stand_in_function("numpy._core.multiarray", "_reconstruct")
        NDARRAY, DTYPE = stand_in("numpy", "ndarray"), stand_in("numpy", "dtype")
        METADATA = stand_in(METADATA_MODULE, "Metadata")
        SHARD_METADATA = stand_in(METADATA_MODULE, "LocalTensorMetadata")
        SHARD_INDEX = stand_in(METADATA_MODULE, "LocalTensorIndex", __hash__=by_members, __eq__=lambda a, b: a.__dict__ == b.__dict__)
        return self

    def __exit__(self, *_):
        without_modules(self.MODULES)
        sys.modules.update({name: module for name, module in self.before.items() if module})


def filled(made, **members):
    found = made()
    found.__dict__.update(members)
    return found


def metadata_of(tree, uid):
    shards, storage = {}, {}
    for index, rank in tree.table.items():
        shard = tree.shards[index]
        flat = {"is_flattened": shard.flat is not None, "flattened_range": shard.flat}
        shards.setdefault(shard.key, []).append(filled(
            SHARD_METADATA, global_offset=shard.start, local_shape=shard.extent, dtype=shard.dtype, global_shape=shard.shape, **flat))
        storage[filled(SHARD_INDEX, tensor_key=shard.key, global_offset=shard.start, **flat, replica_id=None,
                       local_shape=shard.extent)] = f"{rank}_{uid}.distcp"
    return filled(METADATA, state_dict_metadata=shards, storage_metadata=storage, flat_mapping={key: (key,) for key in shards})


def array_of(model, shard, value=None):
    value = shard_bytes(model, shard) if value is None else value
    shape = (shard.flat[1] - shard.flat[0],) if shard.flat else shard.extent
    return Array(NUMPY_TYPE[shard.dtype], shape, value)


def write_flex(model, tree, folder, uid=0, protocol=4):
    """<rank>_<uid>.distcp of every rank, and <uid>.metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    with Pickles():
        for rank, shards in enumerate(tree.files):
            state = {shard.key: array_of(model, shard) for shard in shards}
            state["StructuredToParameterName@@"] = {shard.key: shard.name for shard in shards}
            (folder / f"{rank}_{uid}.distcp").write_bytes(pickle.dumps(state, protocol))
        (folder / f"{uid}.metadata").write_bytes(pickle.dumps(metadata_of(tree, uid), protocol))


# ---- reading back, without reshard ----

class Inert:
    """Any object of a pickle: nothing is called."""
    def __new__(cls, *args, **_):
        made = object.__new__(cls)
        made.args = args
        return made

    def __setstate__(self, state):
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.state = state


def scalar_of(_, raw):
    return int.from_bytes(raw, "little", signed=True)


class InertUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if name == "scalar":
            return scalar_of
        if name == "_reconstruct":
            return lambda *args: Inert(*args)
        return type(name, (Inert,), {})


def unpickle(path):
    with open(path, "rb") as stream:
        return InertUnpickler(stream).load()


def read_flex(folder, uid=0):
    """(table {index: file} in the metadata's order, {(key, file): bytes}) of a checkpoint that someone wrote."""
    metadata = unpickle(folder / f"{uid}.metadata")
    table, values = {}, {}
    for index, file in metadata.storage_metadata.items():
        flat = tuple(index.flattened_range) if index.is_flattened else None
        extent = index.local_shape
        if extent is None:
            extent = next(m.local_shape for m in metadata.state_dict_metadata[index.tensor_key] if m.global_offset == index.global_offset)
        table[(index.tensor_key, tuple(index.global_offset), tuple(extent), flat)] = file
    for file in {*table.values()}:
        for key, array in unpickle(folder / file).items():
            if isinstance(array, Inert):
                values[key, file] = array.state[4]
    return table, values


# ---- unified checkpoints ----

def safetensors_bytes(tensors):
    """tensors: key -> (dtype, shape, bytes)."""
    header, at = {"__metadata__": {"format": "np"}}, 0
    for key, (dtype, shape, value) in tensors.items():
        header[key] = {"dtype": SAFETENSORS_TYPE[dtype], "shape": list(shape), "data_offsets": [at, at + len(value)]}
        at += len(value)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(value for _, _, value in tensors.values())


def blocks_by_size(keys, sizes, count):
    """Which of the tensor-parallel ranks' files keeps which of the merged tensors."""
    limit, blocks, block, total = -(-sum(sizes[k] for k in keys) // count), [], [], 0
    for at, key in enumerate(keys):
        finished = len(blocks)
        is_full = total + sizes[key] > limit * (finished + 1) or len(keys) - at < count - finished
        if block and is_full and finished < count - 1:
            blocks.append(block)
            block = []
        block.append(key)
        total += sizes[key]
    blocks.append(block)
    return blocks + [[] for _ in range(count - len(blocks))]


def local_expert(model, s, key):
    """The key with the number that an expert has on its own rank, and that rank."""
    found = re.search(r"(experts\.)(\d+)", key)
    if not found or s.ep == 1:
        return key, 0
    rank, local = divmod(int(found.group(2)), model.experts // s.ep)
    return key[:found.start(2)] + str(local) + key[found.end(2):], rank


def under_each_name(model):
    """The model as a Unified Checkpoint has it: tied weights with a state under each of their names."""
    parameters = [replace(p, tied_to=None) for p in model.parameters]
    number_names(parameters)
    made = Model(parameters, model.layers, model.experts, model.seed)
    owners, known = {p.key: state_owner(model, p) for p in model.parameters}, contents(model)
    made.contents = {key: known.get(key) or known[f"{owners[key.rsplit('.', 1)[0]]}.{key.rsplit('.', 1)[1]}"] for key in contents(made)}
    return made


def unified_key(key):
    """family and key of a unified checkpoint for a key of a flex checkpoint."""
    if key.endswith(".w_0"):
        return "master_weights", key[:-4]
    for state in STATES:
        if key.endswith("." + state):
            return "optimizer", f"{key[:-len(state) - 1]}/{state}"
    return "model", key


def unified_tensors(model):
    """family -> key -> (dtype, shape, bytes): float32 parameters are their own master weights too."""
    found = {"model": {}, "optimizer": {}, "master_weights": {}}
    for key, tensor in contents(model).items():
        family, name = unified_key(key)
        found[family][name] = tensor
    for parameter in model.parameters:
        if parameter.dtype == "float32" and not parameter.is_buffer:
            found["master_weights"][parameter.key] = contents(model)[parameter.key]
    return found


def unified_held(model, s, place, family):
    """Keys that a rank hands to the trainer's saver, in its order."""
    weights = [p for p, _ in held_weights(model, s, place)]
    states = [p for p, _, _ in held_states(model, s, place)]
    if family == "model":
        return [p.key for p in weights]
    if family == "optimizer":
        return [f"{p.key}/{state}" for state in STATES for p in states]
    copied = [p for p in weights if p.dtype == "float32" and not p.is_buffer]
    return [p.key for p in states if p.dtype == "bfloat16"] + [p.key for p in copied]


def unified_places(model, s, family, tensors):
    """Each file's keys. The ranks of a place in data parallelism and pipeline deal whole tensors out among them; what several places have
    is the first one's, and an expert whose ranks are among those of tensor parallelism stays where it is."""
    is_expert = {p.key: p.expert is not None and s.ep > 1 for p in model.parameters}
    group_of = {p.rank: ((p.dp * s.sharding + p.sharding) * s.pp + p.pp, p.tp) for p in places(s)}
    held, own, seen = {}, {}, set()
    for place in sorted(places(s), key=lambda p: group_of[p.rank]):
        group, tp = group_of[place.rank]
        for key in unified_held(model, s, place, family):
            if key in seen:
                continue
            seen.add(key)
            if is_expert[key.split("/")[0]] and s.is_ep_over_tp:
                own.setdefault(group * s.tp + tp, []).append(key)
            else:
                held.setdefault(group, []).append(key)
    is_spread = s.ep > (s.tp if s.is_ep_over_tp else 1)     # over ranks of data parallelism
    groups = s.dp * s.sharding if is_spread else s.sharding if family != "model" else 1
    if family == "model" and is_spread and s.sharding > 1:
        groups = -(-s.ep // s.tp) if s.is_ep_over_tp else s.ep
    sizes, files = {k: len(tensors[k][2]) for k in tensors}, []
    for group in range(groups * s.pp):
        files += blocks_by_size(held.get(group, []), sizes, s.tp)
    for number, keys in own.items():
        files[number] += keys
    return files


def write_unified(model, s, folder, families=("model", "optimizer", "master_weights"), renumbered=True):
    """model-00001-of-0000N.safetensors and so on, with their indexes. renumbered: experts keep their global numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for family in families:
        tensors, index, size = unified_tensors(model)[family], {}, 0
        files = unified_places(model, s, family, tensors)
        for number, keys in enumerate(files, 1):
            name = f"{family}-{number:05}-of-{len(files):05}.safetensors"
            named = {k if renumbered else local_expert(model, s, k)[0]: tensors[k] for k in keys}
            (folder / name).write_bytes(safetensors_bytes(named))
            index.update({key: name for key in named})
            size += sum(len(tensors[k][2]) for k in keys)
        text = {"metadata": {"total_size": size}, "weight_map": index}
        if family == "optimizer":
            text["master_weights"] = True
        (folder / f"{family}.safetensors.index.json").write_text(json.dumps(text, indent=4))
