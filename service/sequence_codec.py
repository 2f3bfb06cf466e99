"""Between the wire's messages about sequences and plain values. Form is checked here, meaning by the facade. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.paging.replies import AdvanceReply, FaultReply, OpenReply, ResizeReply, TranslateReply, Want
from hybridkv.paging.windows import Window
from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.codec import (
    indices_from_wire,
    indices_to_wire,
    keys_from_wire,
    packed,
    slots_from_wire,
    states_from_wire,
    tier_from_wire,
    tier_to_wire,
)
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.states import Tier

MAX_BLOCK = (1 << 32) - 1
MAX_SEQUENCES = 512
"""That one call may name, or make: each costs some tenths of a millisecond, and meanwhile nobody else is answered."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a sequence is opened with: keys of its first full blocks, its length in tokens, and where its pages lie."""

    keys: Keys
    tokens: int
    tier: Tier | None = None
    device: int | None = None
    page_blocks: int | None = None


def opening_to_wire(opening: Opening) -> pb.NewSequence:
    return pb.NewSequence(
        keys=opening.keys.packed,
        tokens=opening.tokens,
        tier=tier_to_wire(opening.tier),
        device=opening.device,
        page_blocks=opening.page_blocks,
    )


def opening_from_wire(message: pb.NewSequence, key_bytes: int) -> Opening:
    return Opening(
        keys=keys_from_wire(message.keys, key_bytes, "sequences.keys"),
        tokens=message.tokens,
        tier=tier_from_wire(message.tier),
        device=message.device if message.HasField("device") else None,
        page_blocks=message.page_blocks if message.HasField("page_blocks") else None,
    )


def opened_to_wire(reply: OpenReply) -> pb.OpenedSequence:
    return pb.OpenedSequence(
        sequence=reply.sequence,
        cached_blocks=reply.cached_blocks,
        cached_tokens=reply.cached_tokens,
        tokens=reply.tokens,
        page_blocks=reply.page_blocks,
        pool=reply.pool,
        block_tokens=reply.block_tokens,
    )


def opened_from_wire(message: pb.OpenedSequence) -> OpenReply:
    return OpenReply(
        sequence=message.sequence,
        cached_blocks=message.cached_blocks,
        cached_tokens=message.cached_tokens,
        tokens=message.tokens,
        page_blocks=message.page_blocks,
        pool=message.pool,
        block_tokens=message.block_tokens,
    )


def blocks_to_wire(blocks: npt.NDArray[np.int64]) -> bytes:
    """u32 each. Raises InvalidArgumentError for one that no u32 holds."""
    if len(blocks) and not 0 <= int(blocks.min()) <= int(blocks.max()) <= MAX_BLOCK:
        raise InvalidArgumentError("blocks", f"must be within [0, {MAX_BLOCK}]")
    return indices_to_wire(blocks)


def check_sequences(count: int, field: str = "sequences", *, least: int = 0) -> None:
    """Raises InvalidArgumentError when one call names, or makes, too many."""
    if not least <= count <= MAX_SEQUENCES:
        raise InvalidArgumentError(field, f"{count} in one call; at least {least}, the limit is {MAX_SEQUENCES}")


def wants_to_wire(wants: Sequence[Want]) -> list[pb.Want]:
    return [pb.Want(sequence=one.sequence, blocks=blocks_to_wire(one.blocks), write=one.write) for one in wants]


def wants_from_wire(wants: Sequence[pb.Want]) -> list[Want]:
    """Raises InvalidArgumentError."""
    check_sequences(len(wants), "wants", least=1)
    return [Want(one.sequence, indices_from_wire(one.blocks, "wants.blocks"), one.write) for one in wants]


def fault_to_wire(epoch: int, reply: FaultReply) -> pb.FaultReply:
    return pb.FaultReply(
        epoch=epoch,
        states=packed(reply.states),
        slots=packed(reply.slots),
        leases=reply.leases,
        expires_in_s=reply.expires_in_s,
        minor=reply.minor,
        major=reply.major,
        page_blocks=reply.page_blocks,
    )


def fault_from_wire(message: pb.FaultReply, count: int) -> FaultReply:
    """Of `count` blocks. Raises InvalidArgumentError."""
    return FaultReply(
        states=states_from_wire(message.states, count),
        slots=slots_from_wire(message.slots, count),
        leases=tuple(message.leases),
        expires_in_s=message.expires_in_s,
        minor=message.minor,
        major=message.major,
        page_blocks=tuple(message.page_blocks),
    )


def translate_to_wire(epoch: int, reply: TranslateReply) -> pb.TranslateReply:
    states, slots = packed(reply.states), packed(reply.slots)
    return pb.TranslateReply(epoch=epoch, states=states, slots=slots, page_blocks=reply.page_blocks)


def translate_from_wire(message: pb.TranslateReply, count: int) -> TranslateReply:
    states, slots = states_from_wire(message.states, count), slots_from_wire(message.slots, count)
    return TranslateReply(states, slots, message.page_blocks)


def window_to_wire(window: Window | None) -> pb.AttentionWindow | None:
    if window is None:
        return None
    return pb.AttentionWindow(
        window_tokens=window.window_tokens, sink_tokens=window.sink_tokens, ahead_tokens=window.ahead_tokens
    )


def window_from_wire(request: pb.AdvanceRequest) -> Window | None:
    """`Window` checks the values."""
    if not request.HasField("window"):
        return None
    told = request.window
    return Window(told.window_tokens, told.sink_tokens, told.ahead_tokens)


def advanced_from_wire(message: pb.AdvanceReply) -> AdvanceReply:
    return AdvanceReply(message.prefetched, message.cancelled, message.kept)


def resized_to_wire(epoch: int, reply: ResizeReply) -> pb.AdjustPageSizeReply:
    return pb.AdjustPageSizeReply(
        epoch=epoch,
        page_blocks=reply.page_blocks,
        entries_before=reply.entries_before,
        entries_after=reply.entries_after,
        copied_bytes=reply.copied_bytes,
        split_pages=reply.split_pages,
    )


def resized_from_wire(message: pb.AdjustPageSizeReply) -> ResizeReply:
    return ResizeReply(
        message.page_blocks, message.entries_before, message.entries_after, message.copied_bytes, message.split_pages
    )


def pairs_from_wire(request: pb.ExtendRequest) -> list[tuple[int, int]]:
    """(sequence, more tokens). Raises InvalidArgumentError unless there are as many of the one as of the other."""
    check_sequences(len(request.sequences))
    if len(request.sequences) != len(request.more_tokens):
        detail = f"{len(request.more_tokens)} given for {len(request.sequences)} sequences"
        raise InvalidArgumentError("more_tokens", detail)
    return list(zip(request.sequences, request.more_tokens, strict=True))


def column_of(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Numbers of blocks as a caller gives them, as int64 [n]. Raises InvalidArgumentError."""
    blocks = np.asarray(values)
    if blocks.ndim != 1 or (blocks.size and blocks.dtype.kind not in "iu"):
        raise InvalidArgumentError("blocks", "must be one-dimensional integers")
    return blocks.astype(np.int64, copy=False)
