"""Calls about sequences over gRPC. See `SequenceCalls`."""

import json
from collections.abc import Sequence
from typing import Any

from hybridkv.paging.replies import (
    AdvanceReply,
    FaultReply,
    OpenReply,
    ResizeReply,
    ResumeReply,
    StickyReply,
    SuspendReply,
    TranslateReply,
    Want,
)
from hybridkv.paging.windows import Window
from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.client.calls import Calls
from hybridkv.service.client.memory import Events
from hybridkv.service.client.sequence_calls import Checksums
from hybridkv.service.client.transport import Indices, LostError, States
from hybridkv.service.codec import checksums_to_wire, events_to_wire, keys_to_wire, states_from_wire
from hybridkv.service.sequence_codec import (
    Opening,
    advanced_from_wire,
    blocks_to_wire,
    fault_from_wire,
    opened_from_wire,
    opening_to_wire,
    resized_from_wire,
    translate_from_wire,
    wants_to_wire,
    window_to_wire,
)
from hybridkv.tiers.errors import NotFoundError
from hybridkv.tiers.keys import Keys


class RpcSequenceCalls:
    """On one channel, for one session."""

    def __init__(self, channel: Any, calls: Calls, session: int) -> None:
        self._stub = pb_grpc.SequencesStub(channel)  # type: ignore[no-untyped-call]
        self._calls = calls
        self._session = session

    def open(self, openings: Sequence[Opening], *, timeout_s: float) -> list[OpenReply]:
        request = pb.OpenRequest(
            session=self._session,
            key_bytes=openings[0].keys.width,
            sequences=[opening_to_wire(one) for one in openings],
        )
        try:
            reply: pb.OpenReply = self._calls(self._stub.Open, request, timeout_s)
        except NotFoundError as error:  # the only thing that may be unknown here is the session
            raise LostError(str(error)) from error
        return [opened_from_wire(one) for one in reply.opened]

    def attach(self, sequence: int, first_block: int, keys: Keys, *, timeout_s: float) -> int:
        packed, width = keys_to_wire(keys)
        request = pb.AttachBlocksRequest(
            session=self._session, sequence=sequence, first_block=first_block, keys=packed, key_bytes=width
        )
        reply: pb.AttachBlocksReply = self._calls(self._stub.AttachBlocks, request, timeout_s)
        return reply.attached

    def extend(self, more: Sequence[tuple[int, int]], *, timeout_s: float) -> list[int]:
        request = pb.ExtendRequest(
            session=self._session, sequences=[one for one, _ in more], more_tokens=[tokens for _, tokens in more]
        )
        reply: pb.ExtendReply = self._calls(self._stub.Extend, request, timeout_s)
        return list(reply.tokens)

    def fault(self, wants: Sequence[Want], *, hold: bool, wait_s: float, timeout_s: float) -> FaultReply:
        request = pb.FaultRequest(session=self._session, wants=wants_to_wire(wants), hold=hold, wait_s=wait_s)
        reply: pb.FaultReply = self._calls(self._stub.Fault, request, timeout_s, wait_s=wait_s)
        return fault_from_wire(reply, sum(len(one.blocks) for one in wants))

    def translate(self, sequence: int, blocks: Indices, *, timeout_s: float) -> TranslateReply:
        request = pb.TranslateRequest(session=self._session, sequence=sequence, blocks=blocks_to_wire(blocks))
        reply: pb.TranslateReply = self._calls(self._stub.Translate, request, timeout_s)
        return translate_from_wire(reply, len(blocks))

    def publish(
        self,
        sequence: int,
        first_block: int,
        keys: Keys,
        *,
        parent: bytes,
        checksums: Checksums | None,
        events: Events,
        wait_s: float,
        timeout_s: float,
    ) -> States:
        packed, width = keys_to_wire(keys)
        request = pb.PublishRequest(
            session=self._session,
            sequence=sequence,
            first_block=first_block,
            keys=packed,
            key_bytes=width,
            parent=parent,
            checksums=b"" if checksums is None else checksums_to_wire(checksums),
            events=events_to_wire(events),
            wait_s=wait_s,
        )
        reply: pb.PublishReply = self._calls(self._stub.Publish, request, timeout_s, wait_s=wait_s)
        return states_from_wire(reply.outcomes, len(keys), "outcomes")

    def fork(self, sequence: int, count: int, *, events: Events, wait_s: float, timeout_s: float) -> tuple[int, ...]:
        request = pb.ForkRequest(
            session=self._session, sequence=sequence, count=count, events=events_to_wire(events), wait_s=wait_s
        )
        reply: pb.ForkReply = self._calls(self._stub.Fork, request, timeout_s, wait_s=wait_s)
        return tuple(reply.sequences)

    def suspend(self, sequences: Sequence[int], *, events: Events, wait_s: float, timeout_s: float) -> SuspendReply:
        request = pb.SuspendRequest(
            session=self._session, sequences=sequences, events=events_to_wire(events), wait_s=wait_s
        )
        reply: pb.SuspendReply = self._calls(self._stub.Suspend, request, timeout_s, wait_s=wait_s)
        return SuspendReply(reply.left, reply.stayed)

    def resume(self, sequences: Sequence[int], *, wait_s: float, timeout_s: float) -> ResumeReply:
        request = pb.ResumeRequest(session=self._session, sequences=sequences, wait_s=wait_s)
        reply: pb.ResumeReply = self._calls(self._stub.Resume, request, timeout_s, wait_s=wait_s)
        return ResumeReply(reply.blocks, reply.lost)

    def close(self, sequences: Sequence[int], *, events: Events, timeout_s: float) -> None:
        request = pb.CloseRequest(session=self._session, sequences=sequences, events=events_to_wire(events))
        self._calls(self._stub.Close, request, timeout_s)

    def advance(self, sequence: int, position: int, window: Window | None, *, timeout_s: float) -> AdvanceReply:
        request = pb.AdvanceRequest(
            session=self._session, sequence=sequence, position=position, window=window_to_wire(window)
        )
        return advanced_from_wire(self._calls(self._stub.Advance, request, timeout_s))

    def adjust_page_size(
        self, page_blocks: int, sequence: int | None, *, wait_s: float, timeout_s: float
    ) -> ResizeReply:
        request = pb.AdjustPageSizeRequest(
            session=self._session, sequence=sequence, page_blocks=page_blocks, wait_s=wait_s
        )
        return resized_from_wire(self._calls(self._stub.AdjustPageSize, request, timeout_s, wait_s=wait_s))

    def set_sticky(self, sequence: int, first_block: int, count: int, sticky: bool, *, timeout_s: float) -> StickyReply:
        request = pb.SetStickyRequest(
            session=self._session, sequence=sequence, first_block=first_block, count=count, sticky=sticky
        )
        reply: pb.SetStickyReply = self._calls(self._stub.SetSticky, request, timeout_s)
        return StickyReply(reply.sticky_bytes, reply.limit_bytes)

    def note_translations(self, hits: int, misses: int, invalidations: int, *, timeout_s: float) -> None:
        request = pb.NoteTranslationsRequest(
            session=self._session, hits=hits, misses=misses, invalidations=invalidations
        )
        self._calls(self._stub.NoteTranslations, request, timeout_s)

    def describe(self, sequence: int, *, timeout_s: float) -> dict[str, Any]:
        request = pb.DescribeRequest(session=self._session, sequence=sequence)
        reply: pb.DescribeReply = self._calls(self._stub.Describe, request, timeout_s)
        info: dict[str, Any] = json.loads(reply.json)
        return info
