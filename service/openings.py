"""Opening several sequences by one call: all of them, or none."""

from collections.abc import Sequence

from hybridkv.paging.replies import OpenReply
from hybridkv.service.facade import Host
from hybridkv.service.sequence_codec import Opening
from hybridkv.tiers.errors import HybridKVError


def open_all(host: Host, session: int, openings: Sequence[Opening]) -> list[OpenReply]:
    """Raises what the first that cannot be opened is refused with; those before it are closed then."""
    host.sequences.check_opening(session, sum(len(one.keys) for one in openings))
    opened: list[OpenReply] = []
    for one in openings:
        try:
            reply = host.sequences.open(
                session,
                one.keys,
                tokens=one.tokens,
                tier=one.tier,
                device=one.device,
                page_blocks=one.page_blocks,
            )
        except HybridKVError:
            if opened:
                host.sequences.close(session, [before.sequence for before in opened])
            raise
        opened.append(reply)
    return opened
