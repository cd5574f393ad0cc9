"""Tensors as memory: their types, addresses and bytes."""

import ctypes
import hashlib
import math

import torch
from torch.nn.parameter import is_lazy

from .errors import Refused

# As safetensors names them.
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_KNOWN = ", ".join(DTYPE_NAMES.values())


def view(address, dtype, shape):
    """The memory at this address as a contiguous tensor. Whoever owns the memory must outlive it."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def check(tensors):
    """Refuses tensors that cannot be moved into the engine's memory one by one."""
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise Refused(
                "UnsupportedTensor",
                f"{name} has no shape before the model's first call: make that call in build(), before the optimizer.",
            )
        if hasattr(tensor, "__tensor_flatten__"):
            raise Refused(
                "UnsupportedTensor",
                f"{name} is a {type(tensor).__name__}, which is made of other tensors (quantized, or sharded): only "
                "plain tensors can be held. Register its parts as buffers, or make it a plain attribute.",
            )
        if tensor.device.type != "cpu":
            raise Refused(
                "UnsupportedDevice", f"{name} is on {tensor.device}; this engine trains on the CPU: build it there."
            )
        if tensor.dtype not in DTYPE_NAMES or tensor.layout is not torch.strided:
            is_complex = tensor.dtype.is_complex
            way_out = " Hold torch.view_as_real() of it, or make it a plain attribute, in no buffer." * is_complex
            raise Refused(
                "UnsupportedTensor",
                f"{name} is a {tensor.layout} tensor of {tensor.dtype}: only dense tensors of {_KNOWN} can be held."
                + way_out,
            )
    extents = sorted((*extent(tensor), name) for name, tensor in tensors.items() if tensor.numel())
    for (_, end, first), (begin, _, second) in zip(extents, extents[1:]):
        if begin < end:
            raise Refused(
                "OverlappingTensors",
                f"{first} and {second} share memory. Tie weights by assigning one Parameter to both modules, and clone "
                "what is a view or a slice of another tensor: nn.Parameter(weight[:2].clone()), say.",
            )


def extent(tensor):
    """Addresses of its first byte and of the one after its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def digest(tensors, **options):
    """blake2b over the bytes of the tensors."""
    hashed = hashlib.blake2b(**options)
    for tensor in tensors:
        whole = tensor.detach().contiguous()
        if whole.numel():
            hashed.update((ctypes.c_uint8 * (whole.numel() * whole.element_size())).from_address(whole.data_ptr()))
    return hashed.digest()
