# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch and Paddle in the memory of a device: the functions by which the library reaches it, as those of Values."""

import contextlib
import ctypes
import threading

from . import _reshard
from ._errors import UsageError

PINNED_BYTES = 16 << 20  # of each of two buffers of a thread that loads: the CPU fills one while the GPU takes the other
PINNED_LEAST = 1 << 20   # what is smaller is not worth it

_threads = threading.local()


def bytes_tensor(memory):
    """A tensor over the bytes of a buffer, read-only ones too, of which torch would warn."""
    import torch

    address = _reshard.Buffer(memory, False).layout()[0]
    size = memoryview(memory).nbytes
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def _pinned():
    """Two buffers of this thread. Whoever uses them leaves them unused."""
    import torch

    if not hasattr(_threads, "pinned"):
        _threads.pinned = [torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    return _threads.pinned


def _copy_pinned(target, source):
    """To a CUDA device, from memory that is not pinned, by way of some that is: about twice as fast as the driver does it."""
    import torch

    buffers, sent = _pinned(), [torch.cuda.Event(), torch.cuda.Event()]
    for number, begin in enumerate(range(0, len(source), PINNED_BYTES)):
        buffer, event = buffers[number % 2], sent[number % 2]
        part = source[begin : begin + PINNED_BYTES]
        event.synchronize()
        buffer[: len(part)].copy_(part)
        target[begin : begin + len(part)].copy_(buffer[: len(part)], non_blocking=True)
        event.record()
    for event in sent:
        event.synchronize()


class _RowMajor:
    """A tensor's values behind each other: of one with strides what make() copies, once, and until its end was read."""

    def __init__(self, tensor, make):
        self._tensor, self._make, self._copy, self._lock = tensor, make, None, threading.Lock()

    def take(self, is_last):
        if self._tensor.is_contiguous():
            return self._tensor
        with self._lock:
            rows = self._make() if self._copy is None else self._copy
            self._copy = None if is_last else rows
            return rows


class DeviceTensor:
    """The values of a tensor on a device, row-major, by functions. What was queued on the stream that is current where it is made comes
    first: values are those that tensor.cpu() would give there."""

    def __init__(self, tensor):
        import torch

        self._tensor = tensor.detach()
        self._rows = _RowMajor(self._tensor, self._tensor.contiguous)
        self._whole = None  # of a tensor with strides: what has been written of it so far
        self._module = getattr(torch, tensor.device.type, None)
        if self._module is None:
            raise UsageError(f"the tensor lies on {tensor.device}: tensor.cpu() copies it to where the library can read it")
        self._stream = self._module.current_stream(tensor.device) if hasattr(self._module, "current_stream") else None

    def read(self, offset, memory):
        with self._on_stream():
            rows = self._rows.take(offset + memory.nbytes == self._tensor.nbytes)
            bytes_tensor(memory).copy_(self._bytes(rows)[offset : offset + memory.nbytes])

    def write(self, offset, memory):
        import torch

        with self._on_stream():
            if self._whole is None:
                self._whole = self._tensor if self._tensor.is_contiguous() else torch.empty_like(
                    self._tensor, memory_format=torch.contiguous_format)
            source, target = bytes_tensor(memory), self._bytes(self._whole)[offset : offset + memory.nbytes]
            if self._tensor.is_cuda and memory.nbytes >= PINNED_LEAST:
                _copy_pinned(target, source)
            else:
                target.copy_(source)
            if offset + memory.nbytes == self._whole.nbytes:
                if self._whole is not self._tensor:
                    self._tensor.copy_(self._whole)
                self._whole = None

    @staticmethod
    def _bytes(tensor):
        import torch

        return tensor.reshape(-1).view(torch.uint8)

    def _on_stream(self):
        if self._stream is None:
            getattr(self._module, "synchronize", lambda: None)()
        return self._module.stream(self._stream) if self._stream is not None else contextlib.nullcontext()


class PaddleDeviceTensor:
    """The same for a tensor of Paddle, whose contiguous() takes views off what they are views of: clone() does not."""

    def __init__(self, tensor):
        import paddle

        if not paddle.get_flags("FLAGS_use_stride_kernel")["FLAGS_use_stride_kernel"]:
            raise UsageError(f"the tensor lies on {tensor.place}, and FLAGS_use_stride_kernel=0 leaves no way to parts of it: "
                             "tensor.cpu() copies it to where the library can read it")
        self._tensor = tensor.detach()
        self._nbytes = self._tensor.size * self._tensor.element_size()
        self._rows = _RowMajor(self._tensor, self._tensor.clone)
        self._whole = None  # of a tensor with strides: what has been written of it so far

    def read(self, offset, memory):
        rows = self._rows.take(offset + memory.nbytes == self._nbytes)
        part = self._bytes(rows)[offset : offset + memory.nbytes].cpu()
        ctypes.memmove(_reshard.Buffer(memory, True).layout()[0], part.data_ptr(), memory.nbytes)

    def write(self, offset, memory):
        import numpy
        import paddle

        if self._whole is None:
            self._whole = self._tensor if self._tensor.is_contiguous() else self._tensor.clone()
        part = paddle.to_tensor(numpy.frombuffer(memory, "u1"), place=paddle.CPUPlace())
        self._bytes(self._whole)[offset : offset + memory.nbytes].copy_(part, True)
        if offset + memory.nbytes == self._nbytes:
            if self._whole is not self._tensor:
                self._tensor.copy_(self._whole, True)
            self._whole = None

    @staticmethod
    def _bytes(tensor):
        flat = tensor.unsqueeze(0) if tensor.ndim == 0 else tensor.view([-1])
        return flat.view("uint8")  # the same memory
