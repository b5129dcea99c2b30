# SPDX-License-Identifier: Apache-2.0
"""Tensors of many types, and whether two are the same bit by bit."""
import torch


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8).cpu(),
                                                                     b.contiguous().view(torch.uint8).cpu())


def of_every_type(types, device="cpu"):
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(0, 256, (5 * 6 * 16,), dtype=torch.uint8, generator=generator).to(device)
    tensors = {}
    for dtype in types:
        raw = bits[: 30 * dtype.itemsize].clone()
        tensors[str(dtype)] = (raw & 1 if dtype == torch.bool else raw).view(dtype).reshape(5, 6)
    return tensors
