# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints that ask for much: parts that are shared, repeated or compressed. Pickles are written opcode by opcode.

Functions with a docstring make a checkpoint at a path and return it.
"""
import io
import random
import struct
import zipfile

MARK, STOP, NONE = b"(", b".", b"N"
EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE = b"}", b"]", b")"
TUPLE, TUPLE1, TUPLE2, APPEND, APPENDS, SETITEM, SETITEMS = b"t", b"\x85", b"\x86", b"a", b"e", b"s", b"u"
NEWOBJ, BUILD, REDUCE, BINPERSID = b"\x81", b"b", b"R", b"Q"
PROTO = b"\x80\x02"


def text(string):
    data = string.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value):
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value) if -2**31 <= value < 2**31 else \
        b"\x8a\x08" + struct.pack("<q", value)


def put(index):
    return b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)


def get(index):
    return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def named(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def ints(*values):
    return MARK + b"".join(map(integer, values)) + TUPLE


def storage_id(key, elements, kind="FloatStorage"):
    return MARK + text("storage") + named("torch", kind) + text(key) + text("cpu") + integer(elements) + TUPLE + BINPERSID


def tensor(storage, shape, strides, offset=0):
    """A tensor over the storage, whose opcodes are given."""
    return (named("torch._utils", "_rebuild_tensor_v2") + MARK + storage + integer(offset) + ints(*shape) + ints(*strides) + b"\x89" +
            named("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE + TUPLE + REDUCE)


def small_tensor():
    return tensor(storage_id("0", 4), [4], [1])


def torch_zip(path, content, storages=(), compression=zipfile.ZIP_DEFLATED):
    """A torch.save file of the pickle: content are opcodes that leave one value on the stack."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", PROTO + content + STOP, compress_type=compression)
        file.writestr("archive/byteorder", "little")
        for key, data in storages:
            file.writestr("archive/data/" + key, data)
        file.writestr("archive/version", "3\n")
    return path


def none_flood(path):
    """185 million NONEs in a list, deflated to under 1 MB: strings that do not pack keep the ratio below the one that is refused."""
    draw = random.Random(1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("archive/data.pkl", "w") as member:
            member.write(PROTO + EMPTY_DICT + text("w") + EMPTY_LIST + MARK)
            for _ in range(185):
                member.write(NONE * 1_000_000 + text(draw.randbytes(3200).hex()))
            member.write(APPENDS + SETITEM + STOP)
        file.writestr("archive/version", "3\n")
    return path


def deep_lists(path):
    """Lists nested 20,000 deep around a tensor, and a reference to each."""
    depth = 20_000
    nested = b"".join(EMPTY_LIST + put(i) for i in range(depth)) + small_tensor() + APPEND * depth
    items = b"".join(get(i) for i in range(depth))
    content = EMPTY_DICT + text("deep") + nested + SETITEM + text("all") + EMPTY_LIST + MARK + items + APPENDS + SETITEM
    return torch_zip(path, content, [("0", bytes(16))])


def deep_items(path):
    """The same without a tensor: one item."""
    depth = 20_000
    nested = b"".join(EMPTY_LIST + put(i) for i in range(depth)) + APPEND * (depth - 1)
    items = b"".join(get(i) for i in range(depth))
    return torch_zip(path, EMPTY_DICT + text("deep") + nested + SETITEM + text("all") + EMPTY_LIST + MARK + items + APPENDS + SETITEM)


def keys_of(count, key):
    return EMPTY_DICT + put(1) + MARK + (key + NONE) * count + SETITEMS


def equal_keys(path):
    """A dict of 100,000 equal keys and a tensor, so that it is opened, that is referenced 100,000 times."""
    many = EMPTY_LIST + MARK + get(1) * 100_000 + APPENDS
    with_tensor = text("w") + small_tensor() + SETITEM
    return torch_zip(path, MARK + text("k") + put(0) + b"0" + keys_of(100_000, get(0)) + with_tensor + many + TUPLE, [("0", bytes(16))])


def equal_keys_item(path):
    """The same without a tensor below a key: one item."""
    many = EMPTY_LIST + MARK + get(1) * 100_000 + APPENDS
    content = EMPTY_DICT + MARK + text("k") + put(0) + keys_of(100_000, get(0)) + text("many") + many + SETITEMS
    return torch_zip(path, content, compression=zipfile.ZIP_STORED)


def long_keys(path):
    """200,000 dict keys that are one tuple with a long repr, and a tensor beside them."""
    long_tuple = MARK + text("n" * 1000) * 3 + TUPLE + put(0)
    content = EMPTY_DICT + MARK + long_tuple + small_tensor() + (get(0) + NONE) * 200_000 + text("w") + small_tensor() + SETITEMS
    return torch_zip(path, content, [("0", bytes(16))], zipfile.ZIP_STORED)


def long_keys_item(path):
    """The same without a tensor: one item."""
    long_tuple = MARK + text("n" * 1000) * 3 + TUPLE + put(0)
    content = EMPTY_DICT + MARK + text("d") + EMPTY_DICT + MARK + long_tuple + NONE + (get(0) + NONE) * 200_000 + SETITEMS + SETITEMS
    return torch_zip(path, content, compression=zipfile.ZIP_STORED)


def doubled_list():
    """A list that holds a list twice, which holds … 30 times: opcodes that leave it as memo entry 29."""
    steps = EMPTY_LIST + text("leaf") + APPEND + put(0)
    for i in range(1, 30):
        steps += b"0" + EMPTY_LIST + MARK + get(i - 1) * 2 + APPENDS + put(i)
    return steps


def doubling(path):
    """1,000 items that share one list that doubles 30 times."""
    content = EMPTY_DICT + MARK + text("a") + doubled_list() + b"".join(text(f"i{i}") + get(29) for i in range(1000)) + SETITEMS
    return torch_zip(path, content, compression=zipfile.ZIP_STORED)


def repeated(made):
    """What the opcodes leave, 100,000 times in a list, and a tensor."""
    items = EMPTY_LIST + MARK + get(0) * 100_000 + APPENDS
    return made + put(0) + b"0" + EMPTY_DICT + MARK + text("a") + items + text("w") + small_tensor() + SETITEMS


def letters(count):
    return "".join(map(chr, random.Random(1).choices(range(97, 123), k=count)))


def long_text(path):
    """A text of 600 KB that a list has 100,000 times."""
    return torch_zip(path, repeated(text(letters(600_000))), [("0", bytes(16))])


def long_bytes(path):
    """The same of bytes."""
    return torch_zip(path, repeated(b"B" + struct.pack("<I", 600_000) + letters(600_000).encode()), [("0", bytes(16))])


def long_call(path):
    """The same of bytes, as a pickle of protocol 2 makes them, by a call that takes a text."""
    call = named("_codecs", "encode") + text(letters(600_000)) + text("latin1") + TUPLE2 + REDUCE
    return torch_zip(path, repeated(call), [("0", bytes(16))])


def expanded(count, bytes_each):
    """Tensors that show one element of one storage over and over, in different shapes, so that none is tied to another."""
    storage = storage_id("0", 1)
    views = b"".join(text(f"w{i}") + tensor(storage, [bytes_each // 4 - i], [0]) for i in range(count))
    return EMPTY_DICT + MARK + views + SETITEMS


def stride_zero(path):
    """A tensor of 32 GiB that stores four bytes."""
    return torch_zip(path, expanded(1, 32 << 30), [("0", b"\0\0\x80?")], zipfile.ZIP_STORED)


def stride_zero_thousand(path):
    """A thousand tensors of 32 MiB that store four bytes."""
    return torch_zip(path, expanded(1000, 32 << 20), [("0", b"\0\0\x80?")])


def shared_flat_list(path):
    """1,000 items that share a list of 100,000 numbers."""
    numbers = EMPTY_LIST + MARK + integer(7) * 100_000 + APPENDS + put(0)
    return torch_zip(path, EMPTY_DICT + MARK + text("a") + numbers + b"".join(text(f"i{i}") + get(0) for i in range(1000)) + SETITEMS)


def small_items(path):
    """A list of a tensor and 400,000 empty dicts: where what lies beside tensors is stored leaf by leaf, each is an item. 2 KB."""
    many = EMPTY_LIST + MARK + small_tensor() + EMPTY_DICT * 400_000 + APPENDS
    return torch_zip(path, EMPTY_DICT + text("many") + many + SETITEM, [("0", bytes(16))])


# ---- Paddle ----

def same_items(path):
    """100,000 values that two ranks have alike: each of the second is looked for among those of the first. 2 MB."""
    path.mkdir()
    values = b"".join(text(f"k{i}") + NONE for i in range(100_000))
    table = text("StructuredToParameterName@@") + EMPTY_DICT
    for rank in range(2):
        (path / f"model_state.tp0{rank}.pdparams").write_bytes(PROTO + EMPTY_DICT + MARK + values + table + SETITEMS + STOP)
    return path


# ---- torch.distributed.checkpoint ----

META = "torch.distributed.checkpoint.metadata"


def size(*values):
    return named("torch", "Size") + ints(*values) + TUPLE1 + REDUCE


def built(name, state, module=META):
    return named(module, name) + EMPTY_TUPLE + NEWOBJ + state + BUILD


def state(*pairs):
    return EMPTY_DICT + MARK + b"".join(text(key) + value for key, value in pairs) + SETITEMS


def properties():
    return built("TensorProperties",
                 MARK + named("torch", "float32") + named("torch.serialization", "_get_layout") + text("torch.strided") + TUPLE1 +
                 REDUCE + b"\x89" + named(META, "_MEM_FORMAT_ENCODING") + integer(0) + TUPLE1 + REDUCE + b"\x89" + TUPLE)


def blob():
    """What torch.save writes for a tensor of four floats."""
    out = io.BytesIO()
    torch_zip(out, small_tensor(), [("0", struct.pack("<4f", 1, 2, 3, 4))], zipfile.ZIP_STORED)
    return out.getvalue()


def dcp(path, state_dict, storage_data):
    """A checkpoint of one data file with one blob: the arguments are opcodes of the two dictionaries."""
    path.mkdir()
    (path / "__0_0.distcp").write_bytes(blob())
    metadata = built("Metadata", state(("state_dict_metadata", state_dict), ("planner_data", NONE), ("storage_data", storage_data)))
    (path / ".metadata").write_bytes(PROTO + metadata + STOP)
    return path


def tensor_storage(chunks):
    return built("TensorStorageMetadata", state(("properties", properties()), ("size", size(4)), ("chunks", chunks)))


def index(key, number):
    """A MetadataIndex of the chunk at 0; number is its opcodes."""
    return built("MetadataIndex", state(("fqn", text(key)), ("offset", size(0)), ("index", number)))


def storage_info():
    return built("_StorageInfo", state(("relative_path", text("__0_0.distcp")), ("offset", integer(0)), ("length", integer(len(blob())))),
                 "torch.distributed.checkpoint.filesystem")


def chunk_at_zero(more=b""):
    return built("ChunkStorageMetadata", EMPTY_DICT + MARK + text("offsets") + size(0) + text("sizes") + size(4) + more + SETITEMS)


def replicas(path):
    """One blob that 200,000 replicas of a chunk name."""
    chunks = EMPTY_LIST + MARK + chunk_at_zero() + put(0) + get(0) * 199_999 + APPENDS
    return dcp(path, state(("w", tensor_storage(chunks))), EMPTY_DICT + MARK + index("w", integer(0)) + storage_info() + SETITEMS)


def replica_tensors(path):
    """One blob that 2,000 tensors name, a hundred replicas of each."""
    first = tensor_storage(EMPTY_LIST + MARK + chunk_at_zero() + put(0) + get(0) * 99 + APPENDS)
    names = [f"w{i}" for i in range(2_000)]
    entries = text(names[0]) + first + put(1) + b"".join(text(name) + get(1) for name in names[1:])
    stored = storage_info() + put(2) + b"".join(index(name, integer(0)) + get(2) for name in names[1:])
    return dcp(path, EMPTY_DICT + MARK + entries + SETITEMS, EMPTY_DICT + MARK + index(names[0], integer(0)) + stored + SETITEMS)


def wide_state(path):
    """A chunk whose state has 150,000 pairs, named 100,000 times."""
    wide = chunk_at_zero(text("x") + put(1) + NONE + (get(1) + NONE) * 150_000)
    chunks = EMPTY_LIST + MARK + wide + put(0) + get(0) * 99_999 + APPENDS
    return dcp(path, state(("w", tensor_storage(chunks))), EMPTY_DICT + MARK + index("w", integer(0)) + storage_info() + SETITEMS)
