# SPDX-License-Identifier: Apache-2.0
"""Memory: arrays that the library fills, and what it takes of other packages' arrays without a copy."""

import sys

from . import _reshard
from ._devices import DeviceTensor, PaddleDeviceTensor
from ._errors import CancelledError, UsageError

_DTYPES = {name: (torch_name, bits) for name, torch_name, bits in _reshard.dtypes()}
_TORCH_DTYPES = {torch_name: name for name, (torch_name, _) in _DTYPES.items() if torch_name}
# Kinds of numpy's array interface and formats of the buffer protocol.
_NUMPY_DTYPES = {"b1": "BOOL", "u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "u4": "U32", "i4": "I32", "u8": "U64", "i8": "I64",
                 "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "c16": "C128"}
_BUFFER_DTYPES = {"?": "BOOL", "b": "I8", "B": "U8", "c": "U8", "h": "I16", "H": "U16", "i": "I32", "I": "U32", "q": "I64", "Q": "U64",
                  "l": "I64", "L": "U64", "e": "F16", "f": "F32", "d": "F64", "Zf": "C64", "Zd": "C128"}
# What numpy has with ml_dtypes only, under torch's names.
_EXTENSION_DTYPES = {name: _TORCH_DTYPES[name] for name in (
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")}
# Of tensors that torch makes with a scale and a zero point only: made without them, it reads memory that is not there.
_QUANTISED = {name for name in _DTYPES if name.startswith(("qint", "quint"))}
_NUMPY_KINDS = {name: kind for kind, name in _NUMPY_DTYPES.items()}


def dtype_name(dtype):
    """The library's name for a type: of "bf16", "bfloat16", torch.bfloat16, paddle.bfloat16, numpy.float32, …"""
    text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    upper = text.upper()
    name = upper if upper in _DTYPES else _TORCH_DTYPES.get(text.lower().removeprefix("torch.").removeprefix("paddle."))
    if name is None:
        raise UsageError(f"no element type is called {text!r}: reshard.dtypes() lists them")
    return name


def framework_dtype(framework, name):
    """The type of torch or paddle, which is given, for one of the library's."""
    if not hasattr(framework, _DTYPES[name][0] or "-"):
        raise UsageError(f"this {framework.__name__} has no type for {name}: Array.raw shows the bytes")
    if name in _QUANTISED:
        raise UsageError(f"{name} has no values without a scale and a zero point, and the checkpoint has none: Array.raw shows the bytes")
    return getattr(framework, _DTYPES[name][0])


def element_count(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def bytes_of(dtype, shape):
    """Bytes of a whole tensor, row-major."""
    return (element_count(shape) * _DTYPES[dtype][1] + 7) // 8


class Array(_reshard.Array):
    """Values in memory: a dtype, a shape, row-major.

    The buffer protocol and DLPack show it without a copy: numpy.asarray(a), memoryview(a), torch.from_dlpack(a). The buffer protocol has
    no BF16 and no 8-bit floats: numpy() makes those with ml_dtypes, torch() has them all, raw shows the bytes.
    """

    __slots__ = ("dtype", "shape")

    def __new__(cls, dtype, shape, _owner=None):
        name = dtype_name(dtype)
        shape = tuple(shape)
        size = bytes_of(name, shape)
        if not 0 <= size < 1 << 63 or any(extent < 0 for extent in shape):
            raise ValueError(f"no array has the shape {list(shape)}")
        self = super().__new__(cls, name, max(_DTYPES[name][1] // 8, 1), shape, size, _owner)
        self.dtype = name
        self.shape = shape
        return self

    @property
    def raw(self):
        """The same memory as a flat array of bytes."""
        return Array("U8", (self.nbytes,), self)

    def __len__(self):
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __dlpack__(self, *, stream=None, **unused):
        return self._dlpack(self.dtype)

    def __dlpack_device__(self):
        return (1, 0)  # the host's memory

    def numpy(self):
        """As a numpy array of the same memory. BF16 and 8-bit floats need ml_dtypes."""
        import numpy

        if self.dtype in _NUMPY_KINDS:
            return numpy.frombuffer(self.raw, dtype="<" + _NUMPY_KINDS[self.dtype]).reshape(self.shape)
        if self.dtype not in _EXTENSION_DTYPES.values():
            raise UsageError(f"numpy has no type for {self.dtype}: raw shows the bytes")
        try:
            import ml_dtypes
        except ImportError:
            raise UsageError(f"numpy has {self.dtype} with the package ml_dtypes only: read it as dtype='F32', or take raw") from None
        return numpy.frombuffer(self.raw, dtype=getattr(ml_dtypes, _DTYPES[self.dtype][0])).reshape(self.shape)

    def torch(self):
        """As a torch tensor of the same memory."""
        import torch

        dtype = framework_dtype(torch, self.dtype)
        if not self.nbytes:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(self.raw, dtype=dtype).reshape(self.shape)

    def __repr__(self):
        return f"reshard.Array({self.dtype!r}, {list(self.shape)})"


_NOTHING = Array("U8", (0,))


class Values:
    """Values that lie where the library cannot read or write: in a GPU's memory, in another process. They take the place of an array in
    what is saved, loaded or opened as a checkpoint; tensors of torch on devices need none of this.

    dtype, shape  of the array, whose bytes are in row-major order
    read          read(offset, memory) fills a memoryview with the bytes from offset on. Several threads may call it at once
    write         write(offset, memory) takes these bytes. A load gives each once, in order, to the thread that loads

    The memory is the library's again when the function returns: the memoryview is released, and its slices must not be kept. What a
    function raises ends the call, which raises it.
    """

    __slots__ = ("dtype", "shape", "read", "write")

    def __init__(self, dtype, shape, *, read=None, write=None):
        if read is None and write is None:
            raise UsageError("values without read and write can neither be saved nor loaded")
        self.dtype, self.shape, self.read, self.write = dtype_name(dtype), tuple(shape), read, write


class Reached:
    """What the extension calls of an object with functions, and where it leaves what they raise."""

    __slots__ = ("read", "write", "failures")

    def __init__(self, functions, failures):
        self.read, self.write = functions.read, functions.write
        self.failures = failures


class Owners(list):
    """What keeps memory there during a call. Within `with`, what functions of values have raised is raised in place of CancelledError."""

    def __init__(self):
        self.failures = []

    def __enter__(self):
        self.failures.clear()
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, CancelledError) and self.failures:
            raise self.failures[0]


class Memory:
    """Where the values of an array of any package lie: address, bytes, dtype, shape, strides in elements (None: row-major). owner keeps
    them there. functions: in place of an address, Values or a tensor on a device."""

    __slots__ = ("address", "nbytes", "dtype", "shape", "strides", "owner", "functions")

    def __init__(self, address, dtype, shape, strides, owner, functions=None):
        self.address, self.dtype, self.shape, self.owner, self.functions = address, dtype, tuple(shape), owner, functions
        self.strides = None if strides is None or 0 in self.shape or _is_row_major(self.shape, strides) else tuple(strides)
        self.nbytes = bytes_of(dtype, self.shape) if self.strides is None else self._span()
        if not self.nbytes:
            self.address, self.functions = _NOTHING.address, None  # no values: any place will do
        elif not self.address and functions is None:
            raise UsageError("the array has no memory: it only says what it would be")

    def _span(self):
        if 0 in self.shape:
            return 0
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))
        return ((last + 1) * _DTYPES[self.dtype][1] + 7) // 8


    def apart(self):
        """The same values where no two elements have one place, as those of expanded tensors and of windows have: a copy, of torch's,
        Paddle's and numpy's arrays."""
        if self.strides is None or _are_apart(self.shape, self.strides):
            return self
        copied = getattr(self.owner, "contiguous", None) or getattr(self.owner, "copy", None)
        return self if copied is None else memory_of(copied())


def _are_apart(shape, strides):
    reach = 0
    for stride, extent in sorted(zip(strides, shape)):
        if extent > 1:
            if stride <= reach:
                return False
            reach += stride * (extent - 1)
    return True


def _is_row_major(shape, strides):
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _in_elements(strides, itemsize, what):
    for stride in strides:
        if stride < 0 or stride % itemsize:
            raise UsageError(f"{what} has strides {tuple(strides)} in bytes: none may be negative, and all are whole elements")
    return [stride // itemsize for stride in strides]


def memory_of(array, writable=False):
    """The memory of an Array, a numpy array, a torch tensor, Values, or whatever has the buffer protocol. Nothing is copied."""
    if isinstance(array, Memory):
        return array
    if isinstance(array, Values):
        if writable and array.write is None:
            raise UsageError("the values have no function that takes them (write)")
        return Memory(0, array.dtype, array.shape, None, array, array)
    if isinstance(array, Array):
        return Memory(array.address, array.dtype, array.shape, None, array)
    if "torch" in sys.modules and isinstance(array, sys.modules["torch"].Tensor):
        return _memory_of_torch(array)
    if "paddle" in sys.modules and isinstance(array, sys.modules["paddle"].Tensor):
        return _memory_of_paddle(array)
    if hasattr(array, "__array_interface__"):
        return _memory_of_numpy(array, writable)
    try:
        lent = _reshard.Buffer(array, writable)
    except TypeError:
        if hasattr(array, "__dlpack__"):
            return _memory_of_dlpack(array)
        raise TypeError(f"no array: {type(array).__name__} has no buffer protocol, no array interface and no DLPack") from None
    address, _, form, itemsize, shape, strides = lent.layout()
    dtype = _BUFFER_DTYPES.get(form.lstrip("<=@"))
    if dtype is None or form.startswith((">", "!")):
        raise UsageError(f"elements of the buffer protocol's format {form!r} are no tensor's")
    return Memory(address, _sized(dtype, itemsize), shape, _in_elements(strides, itemsize, "the buffer"), lent)


def _sized(dtype, itemsize):
    """C's long has four bytes on some machines."""
    return dtype if dtype not in ("I64", "U64") or itemsize == 8 else dtype[0] + "32"


def _memory_of_torch(tensor):
    if hasattr(tensor, "to_local") and hasattr(tensor, "placements"):
        raise UsageError("the tensor is a DTensor: reshard.torch.save and load take those")
    if str(tensor.layout) != "torch.strided" or tensor.is_conj() or tensor.is_neg():
        raise UsageError("the tensor is sparse, conjugated or negated: what is stored are plain values")
    if tensor.is_quantized:
        raise UsageError("the tensor is quantised: its scale and zero point would be lost. tensor.dequantize() has its values, and "
                         "tensor.int_repr() its integers")
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    if tensor.device.type in ("cpu", "meta"):
        return Memory(tensor.data_ptr(), dtype, shape, tensor.stride(), tensor)
    functions = DeviceTensor(tensor)
    return Memory(0, dtype, shape, None, functions, functions)


def _memory_of_paddle(tensor):
    if tensor.is_dist():
        raise UsageError("the tensor is distributed: reshard.paddle.save and load take those")
    if not tensor.is_dense():
        raise UsageError("the tensor is sparse: what is stored are plain values")
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    if tensor.place.is_cpu_place() or tensor.place.is_cuda_pinned_place() or 0 in shape:
        return Memory(tensor.data_ptr(), dtype, shape, tensor.strides, tensor)
    functions = PaddleDeviceTensor(tensor)
    return Memory(0, dtype, shape, None, functions, functions)


def _memory_of_dlpack(array):
    kind, number = array.__dlpack_device__()
    if kind not in (1, 3):  # the host's memory, pinned or not
        raise UsageError(f"the array lies on a device ({kind}:{number} of DLPack): copy it to the host, or reach it by reshard.Values")
    capsule = (array.detach() if hasattr(array, "detach") else array).__dlpack__()
    address, dtype, shape, strides = _reshard.dlpack_layout(capsule)
    if dtype is None:
        raise UsageError(f"elements of {type(array).__name__}'s type are no tensor's")
    return Memory(address, dtype, shape, None if strides is None else _in_elements(strides, 1, "the array"), (array, capsule))


def _memory_of_numpy(array, writable):
    facts = array.__array_interface__
    address, is_readonly = facts["data"]
    kind = facts["typestr"]
    name = getattr(getattr(array, "dtype", None), "name", "")
    dtype = _EXTENSION_DTYPES.get(name) or (_NUMPY_DTYPES.get(kind[1:]) if kind[0] in "<|=" else None)
    if dtype is None:
        raise UsageError(f"elements of numpy's type {name or kind!r} are no tensor's"
                         + (": array.astype(array.dtype.newbyteorder('<')) copies them" if kind[0] == ">" else ""))
    if writable and is_readonly:
        raise UsageError("the array is read-only")
    itemsize = _DTYPES[dtype][1] // 8
    strides = facts.get("strides")
    return Memory(address, dtype, facts["shape"], None if strides is None else _in_elements(strides, itemsize, "the array"), array)
