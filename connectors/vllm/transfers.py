"""Which way a group's blocks are copied: by where vLLM's caches lie."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridkv.connectors.vllm.layout import GroupLayout
from hybridkv.connectors.vllm.transfer import HostTransfer, Transfer
from hybridkv.tiers.errors import FailedPreconditionError

if TYPE_CHECKING:
    import torch


def transfer_for(layout: GroupLayout, caches: "Sequence[torch.Tensor]") -> Transfer:
    """Raises FailedPreconditionError for a kind of device that there is no way to."""
    kind = caches[0].device.type
    if kind == "cpu":
        return HostTransfer(layout, caches)
    if kind == "cuda":
        from hybridkv.connectors.vllm.cuda_transfer import CudaTransfer, Streams

        return CudaTransfer(layout, caches, Streams(caches[0].device))
    raise FailedPreconditionError(f"hybridkv cannot serve KV caches on {kind}: only cpu and cuda are known here")
