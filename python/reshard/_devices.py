# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch in the memory of a device, by way of which the library reaches it: as Values of reshard._arrays."""

import contextlib
import threading
import warnings

PINNED_BYTES = 16 << 20  # of each of two buffers of a thread that loads: the CPU fills one while the GPU takes the other
PINNED_LEAST = 1 << 20   # what is smaller is not worth it

_threads = threading.local()


def _pinned():
    """[[buffer, event of the copy that reads it]] of this thread."""
    import torch

    if not hasattr(_threads, "pinned"):
        _threads.pinned = [[torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()] for _ in range(2)]
    return _threads.pinned


def _copy_pinned(target, source):
    """To a CUDA device, from memory that is not pinned, by way of some that is: several times as fast as the driver does it."""
    for number, begin in enumerate(range(0, len(source), PINNED_BYTES)):
        buffer, event = _pinned()[number % 2]
        part = source[begin : begin + PINNED_BYTES]
        event.synchronize()
        buffer[: len(part)].copy_(part)
        target[begin : begin + len(part)].copy_(buffer[: len(part)], non_blocking=True)
        event.record()
    for _, event in _pinned():
        event.synchronize()


class DeviceTensor:
    """The values of a tensor on a device, row-major. What is queued on the stream that is the thread's when prepare() is called comes
    first: values are those that tensor.cpu() would give there."""

    def __init__(self, tensor):
        self._tensor = tensor.detach()
        self._whole = self._bytes = self._module = self._stream = None

    def prepare(self):
        """In the thread that makes the call, before the functions are called. A tensor with strides gets a copy on the device."""
        import torch

        if self._bytes is None:
            self._whole = self._tensor.contiguous()
            self._bytes = self._whole.reshape(-1).view(torch.uint8)
        self._module = getattr(torch, self._tensor.device.type)
        if hasattr(self._module, "current_stream"):
            self._stream = self._module.current_stream(self._tensor.device)
        else:
            self._module.synchronize()

    def read(self, offset, memory):
        import torch

        with self._on_stream():
            torch.frombuffer(memory, dtype=torch.uint8).copy_(self._bytes[offset : offset + memory.nbytes])

    def write(self, offset, memory):
        import torch

        with warnings.catch_warnings(), self._on_stream():
            warnings.simplefilter("ignore")  # nobody writes to what is only read
            source, target = torch.frombuffer(memory, dtype=torch.uint8), self._bytes[offset : offset + memory.nbytes]
            if self._tensor.is_cuda and memory.nbytes >= PINNED_LEAST:
                _copy_pinned(target, source)
            else:
                target.copy_(source)
            if offset + memory.nbytes == self._bytes.numel() and self._whole.data_ptr() != self._tensor.data_ptr():
                self._tensor.copy_(self._whole)

    def _on_stream(self):
        return self._module.stream(self._stream) if self._stream else contextlib.nullcontext()
