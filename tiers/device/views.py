"""Torch tensors over memory that is already there."""

from typing import TYPE_CHECKING

from hybridkv.tiers.device.base import Bytes

if TYPE_CHECKING:
    import torch


def tensor_of(array: Bytes) -> "torch.Tensor":
    """A NumPy array as torch.uint8, without a copy; also a read-only one, and then without a warning.

    Torch has no read-only tensors: a write into a view of a read-only mapping is a SIGSEGV of the writer, which is
    what keeps sealed blocks whole. The tensor keeps the array, and with it the mapping, alive.
    """
    from torch.utils.dlpack import from_dlpack  # only who asks for tensors needs torch

    return from_dlpack(array)  # torch.from_numpy and frombuffer warn about read-only memory
