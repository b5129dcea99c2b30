# SPDX-License-Identifier: Apache-2.0
"""torch.save files without torch: writes them and reads them back with Python's own zipfile and pickle. Nothing is imported by name.

Tensors are Tensor tuples over Storage objects; whether two tensors share a storage shows as the same key, as in torch.
"""
import collections
import io
import pickle
import struct
import zipfile

Tensor = collections.namedtuple("Tensor", "storage offset size stride is_parameter", defaults=[False])

ELEMENT_BYTES = {"BoolStorage": 1, "ByteStorage": 1, "CharStorage": 1, "ShortStorage": 2, "HalfStorage": 2, "BFloat16Storage": 2,
                 "IntStorage": 4, "FloatStorage": 4, "LongStorage": 8, "DoubleStorage": 8, "ComplexFloatStorage": 8,
                 "ComplexDoubleStorage": 16, "UntypedStorage": 1}


class Storage:
    def __init__(self, kind, data, key=None):
        self.kind, self.data, self.key = kind, data, key  # kind: as FloatStorage; data: the bytes as they lie in the file

    @property
    def count(self):
        return len(self.data) // ELEMENT_BYTES[self.kind]


class Named:
    """A global that is written or was read by its name."""

    def __init__(self, module, name):
        self.module, self.name = module, name


Call = collections.namedtuple("Call", "function arguments")  # what a Named makes of arguments, as an object's __reduce__ says it

Object = collections.namedtuple("Object", "made_of state")  # one of a class that is Named, with its attributes


class Made:
    """An object of a class that is not here: how it was made, and its state."""

    def __new__(cls, *arguments, **more):
        made = super().__new__(cls)
        made.arguments, made.more, made.state, made.is_called = arguments, more, None, False
        return made

    def __init__(self, *arguments, **more):
        self.is_called = True  # not by NEWOBJ, which is content with __new__

    def __setstate__(self, state):
        self.state = state

    def remade(self, **changes):
        """Another one like it, with other attributes."""
        made = type(self).__new__(type(self), *self.arguments)
        made.is_called, made.state = self.is_called, {**self.state, **changes}
        return made

    @property
    def name(self):
        return f"{type(self).__module__}.{type(self).__name__}"

    def __repr__(self):
        return f"{self.name}{self.arguments}{self.state or ''}"


class Pickler(pickle._Pickler):
    """As torch's: protocol 2, storages by persistent id."""

    def __init__(self, out, is_legacy=False):
        super().__init__(out, protocol=2)
        self.storages, self.is_legacy = {}, is_legacy

    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        if value not in self.storages:
            value.key = value.key or str(len(self.storages))
            self.storages[value] = value.key
        module = "torch.storage" if value.kind == "UntypedStorage" else "torch"
        persistent = ("storage", Named(module, value.kind), value.key, "cpu", value.count)
        return persistent + (None,) if self.is_legacy else persistent

    def save(self, value, save_persistent_id=True):
        if isinstance(value, type) and issubclass(value, Made):
            value = Named(value.__module__, value.__name__)
        if isinstance(value, Made) and id(value) not in self.memo:
            return self.save_made(value)
        if isinstance(value, Named):
            self.write(b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n")
            return None
        if isinstance(value, Tensor):
            return self.save_tensor(value)
        if isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            return self.write(pickle.REDUCE)
        if isinstance(value, Object):
            self.save(value.made_of)
            self.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
            self.save(value.state)
            return self.write(pickle.BUILD)
        return super().save(value, save_persistent_id)

    def save_made(self, value):
        """As it was read."""
        self.save(type(value))
        self.save(value.arguments)
        self.write(pickle.REDUCE if value.is_called else pickle.NEWOBJ)
        self.memoize(value)
        if value.state is not None:
            self.save(value.state)
            self.write(pickle.BUILD)

    def save_tensor(self, tensor):
        if id(tensor) in self.memo:
            self.write(self.get(self.memo[id(tensor)][0]))
            return
        self.save(Named("torch._utils", "_rebuild_tensor_v2"))
        hooks = collections.OrderedDict()
        self.save((tensor.storage, tensor.offset, tuple(tensor.size), tuple(tensor.stride), False, hooks))
        self.write(pickle.REDUCE)
        self.memoize(tensor)


def tensor(kind, shape, data):
    """A tensor with a storage of its own."""
    stride, step = [], 1
    for extent in reversed(shape):
        stride.insert(0, step)
        step *= extent
    return Tensor(Storage(kind, data), 0, tuple(shape), tuple(stride))


def write_archive(path, members, method=zipfile.ZIP_STORED):
    """A zip of the torch layout: {name without the folder: bytes}."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"archive/{name}", data)


def write_zip(path, value, byteorder="little", method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    pickler = Pickler(out)
    pickler.dump(value)
    members = {"data.pkl": out.getvalue(), "byteorder": byteorder.encode()}
    members |= {f"data/{key}": storage.data for storage, key in pickler.storages.items()}
    write_archive(path, members | {"version": b"3\n"}, method)


def write_legacy(path, value, little_endian=True):
    """The stream of torch before 1.6. Its payload is little-endian on every machine."""
    body = io.BytesIO()
    pickler = Pickler(body, is_legacy=True)
    pickler.dump(value)
    with open(path, "wb") as out:
        pickle.dump(0x1950A86A20F9469CFC6C, out, protocol=2)
        pickle.dump(1001, out, protocol=2)
        pickle.dump({"protocol_version": 1001, "little_endian": little_endian, "type_sizes": {"short": 2, "int": 4, "long": 4}},
                    out, protocol=2)
        out.write(body.getvalue())
        pickle.dump([key for key in pickler.storages.values()], out, protocol=2)
        for storage in pickler.storages:
            out.write(struct.pack("<q", storage.count) + storage.data)


class InertUnpickler(pickle.Unpickler):
    """Calls nothing: classes are stood in for by Made. Notes the classes that a pickle names and what it refers to."""

    def __init__(self, data):
        super().__init__(io.BytesIO(data))
        self.classes, self.references = {}, []

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return self.classes.setdefault(f"{module}.{name}", type(name, (Made,), {"__module__": module}))

    def persistent_load(self, persistent):
        self.references.append(persistent)
        return persistent


class Rebuild(Named):
    """torch's function that makes a tensor of a storage."""

    def __call__(self, storage, offset, size, stride, *rest):
        return Tensor(storage, offset, tuple(size), tuple(stride))


class Unpickler(InertUnpickler):
    """Tensors are Tensor, storages Storage."""

    def __init__(self, data, storages):
        super().__init__(data)
        self.storages = storages

    def persistent_load(self, persistent):
        kind, key = persistent[1], str(persistent[2])
        if key not in self.storages:
            self.storages[key] = Storage(getattr(kind, "name", str(kind)), b"", key)
        return self.storages[key]

    def find_class(self, module, name):
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return Rebuild(module, name)
        if module == "torch._utils" and name.startswith("_rebuild_parameter"):
            return lambda data, *rest: data._replace(is_parameter=True)
        if module == "torch" and name.endswith("Storage"):
            return Named(module, name)
        return super().find_class(module, name)


def load(path, storages=None):
    """The value of a zip file; tensors that share a storage name the same Storage. storages: gets them, by the names of their records."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        top = names[0].split("/")[0]
        storages = {} if storages is None else storages
        value = Unpickler(archive.read(f"{top}/data.pkl"), storages).load()
        for key, storage in storages.items():
            storage.data = archive.read(f"{top}/data/{key}")
        return value


def edit(path, change):
    """Writes a zip file anew with what change makes of its value. Storages get new numbers."""
    storages = {}
    value = load(path, storages)
    for storage in storages.values():
        storage.key = None
    change(value)
    path.chmod(0o644)
    write_zip(path, value)


def edit_pickle(path, change):
    """The same of a file that is one pickle, such as .metadata of DCP."""
    value = InertUnpickler(path.read_bytes()).load()
    change(value)
    out = io.BytesIO()
    Pickler(out).dump(value)
    path.chmod(0o644)
    path.write_bytes(out.getvalue())
