"""Opening a sequence: the longest sealed prefix of its tokens is attached, by as many calls as its keys need."""

from dataclasses import dataclass

from hybridkv.service.client.core import Budget
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.pages import Pages
from hybridkv.service.client.sequence import Sequence
from hybridkv.service.client.sequence_tokens import SequenceTokens
from hybridkv.service.client.tlb import Tlb
from hybridkv.service.sequence_codec import Opening
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.states import Tier


@dataclass(frozen=True, slots=True)
class SequenceOpening:
    """What the caller asked for."""

    tokens: SequenceTokens
    tier: Tier | None
    device: int | None
    page_blocks: int | None
    tlb_entries: int


def opened(attachment: Attachment, wanted: SequenceOpening, budget: Budget, timeout_s: float) -> Sequence:
    """The open sequence. Raises what the daemon does, FailedPreconditionError where no memory is mapped."""
    if attachment.memory is None:
        why = attachment.transport.unmapped_reason or "nothing is mapped"
        raise FailedPreconditionError(f"sequences need mapped memory: {why}")
    if wanted.tier is Tier.DISK:
        raise InvalidArgumentError("tier", "a sequence lies in gpu or cpu")
    tlb = Tlb(wanted.tlb_entries)
    tier, device = attachment.memory.place_for(wanted.tier, wanted.device)
    calls, keys = attachment.transport.sequences, wanted.tokens.keys
    limit = attachment.attached.limits.keys_per_call_count
    opening = Opening(keys[:limit], len(wanted.tokens), tier, device, wanted.page_blocks)
    (reply,) = calls.open([opening], timeout_s=budget.left_s())
    cached = reply.cached_blocks
    while cached and cached < len(keys) and cached % limit == 0:
        found = calls.attach(reply.sequence, cached, keys[cached : cached + limit], timeout_s=budget.left_s())
        if not found:
            break
        cached += found
    pages = Pages(attachment, reply.sequence, reply.pool, tlb)
    return Sequence(pages, wanted.tokens, reply.page_blocks, cached, timeout_s)
