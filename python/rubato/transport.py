"""Objects between this process and one that it forked. The bytes of tensors and arrays lie in a file in memory, so the
sender waits for nobody and the receiver copies nothing.

A file: the buffers, each on a multiple of 64 bytes, then the pickle of (places of the buffers, pickle of the object).
A message on the link: where the latter begins, and the file's descriptor.
"""

import ctypes
import io
import mmap
import os
import pickle
import socket
import struct

import torch

from .tensors import DTYPE_NAMES, extent

_ALIGNMENT = 64  # of PyTorch's own memory
_HEAD = struct.Struct("<Q")


def link():
    """Two connected sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def pack(value):
    """The file, for send()."""
    buffers, pickled = [], io.BytesIO()
    _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(value)
    file, end, places = open(os.memfd_create("rubato"), "w+b"), 0, []
    for buffer in buffers:
        begin = end + file.write(bytes(-end % _ALIGNMENT))
        end = begin + file.write(buffer.raw())
        places.append((begin, end))
    file.write(pickle.dumps((places, pickled.getvalue())))
    file.flush()
    return file, end


def send(link, packed):
    file, end = packed
    with file:
        socket.send_fds(link, [_HEAD.pack(end)], [file.fileno()])


def receive(link):
    """EOFError: the other side is gone."""
    head, descriptors, _, _ = socket.recv_fds(link, _HEAD.size, 1)
    if not head:
        raise EOFError
    with open(descriptors[0], "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE))
    places, pickled = pickle.loads(memory[_HEAD.unpack(head)[0] :])
    return pickle.loads(pickled, buffers=[memory[begin:end] for begin, end in places])


class _Pickler(pickle.Pickler):
    def reducer_override(self, value):
        """Plain tensors keep strides and alignment, on which the bits of sums may depend; others go as PyTorch says."""
        is_plain = (
            type(value) is torch.Tensor
            and value.device.type == "cpu"
            and value.layout is torch.strided
            and value.dtype in DTYPE_NAMES
            and value.numel() > 0
            and not (value.requires_grad or value.is_neg())
        )
        if not is_plain:
            return NotImplemented
        begin, end = extent(value)
        memory = pickle.PickleBuffer((ctypes.c_uint8 * (end - begin)).from_address(begin))
        offset = begin % _ALIGNMENT // value.itemsize * value.itemsize
        return _tensor, (memory, offset, value.dtype, value.shape, value.stride())


def _tensor(memory, offset, dtype, shape, strides):
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    if offset:
        flat = torch.empty(offset + len(flat), dtype=torch.uint8)[offset:].copy_(flat)
    return flat.view(dtype).as_strided(shape, strides)
