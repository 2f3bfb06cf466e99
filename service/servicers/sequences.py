"""Sequences: virtual KV address spaces. Thin over the facade's `sequences`; no call holds a thread."""

# ruff: noqa: N802 (the names of the methods are the protocol's)

import json
from dataclasses import asdict
from typing import Any

from hybridkv.migration.tickets import Ticket
from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.codec import (
    checksums_from_wire,
    events_from_wire,
    indices_from_wire,
    keys_from_wire,
    packed,
    wait_from_wire,
)
from hybridkv.service.facade import Host
from hybridkv.service.openings import open_all
from hybridkv.service.sequence_codec import (
    check_sequences,
    fault_to_wire,
    opened_to_wire,
    opening_from_wire,
    pairs_from_wire,
    resized_to_wire,
    translate_to_wire,
    wants_from_wire,
    window_from_wire,
)
from hybridkv.service.servicers.waiting import settled


class SequencesServicer(pb_grpc.SequencesServicer):
    """See the module. A reply that is not there when the waiting ends is the facade's to undo."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenReply:
        check_sequences(len(request.sequences), least=1)
        openings = [opening_from_wire(one, request.key_bytes) for one in request.sequences]
        opened = open_all(self._host, request.session, openings)
        return pb.OpenReply(epoch=self._host.epoch, opened=[opened_to_wire(reply) for reply in opened])

    async def AttachBlocks(self, request: pb.AttachBlocksRequest, context: Any) -> pb.AttachBlocksReply:
        keys = keys_from_wire(request.keys, request.key_bytes)
        attached = self._host.sequences.attach(request.session, request.sequence, request.first_block, keys)
        return pb.AttachBlocksReply(epoch=self._host.epoch, attached=attached)

    async def Extend(self, request: pb.ExtendRequest, context: Any) -> pb.ExtendReply:
        tokens = self._host.sequences.extend(request.session, pairs_from_wire(request))
        return pb.ExtendReply(epoch=self._host.epoch, tokens=tokens)

    async def Fault(self, request: pb.FaultRequest, context: Any) -> pb.FaultReply:
        wait_s = wait_from_wire(request.wait_s)
        ticket = self._host.sequences.fault(request.session, wants_from_wire(request.wants), hold=request.hold)
        return fault_to_wire(self._host.epoch, await _settled(ticket, wait_s, context))

    async def Translate(self, request: pb.TranslateRequest, context: Any) -> pb.TranslateReply:
        blocks = indices_from_wire(request.blocks, "blocks")
        reply = self._host.sequences.translate(request.session, request.sequence, blocks)
        return translate_to_wire(self._host.epoch, reply)

    async def Publish(self, request: pb.PublishRequest, context: Any) -> pb.PublishReply:
        wait_s = wait_from_wire(request.wait_s)
        ticket = self._host.sequences.publish(
            request.session,
            request.sequence,
            request.first_block,
            keys_from_wire(request.keys, request.key_bytes),
            parent=request.parent,
            checksums=checksums_from_wire(request.checksums) if request.checksums else None,
            events=events_from_wire(request.events),
        )
        return pb.PublishReply(epoch=self._host.epoch, outcomes=packed(await _settled(ticket, wait_s, context)))

    async def Fork(self, request: pb.ForkRequest, context: Any) -> pb.ForkReply:
        wait_s = wait_from_wire(request.wait_s)
        check_sequences(request.count, "count", least=1)
        ticket = self._host.sequences.fork(
            request.session, request.sequence, request.count, events=events_from_wire(request.events)
        )
        return pb.ForkReply(epoch=self._host.epoch, sequences=await _settled(ticket, wait_s, context))

    async def Suspend(self, request: pb.SuspendRequest, context: Any) -> pb.SuspendReply:
        wait_s = wait_from_wire(request.wait_s)
        check_sequences(len(request.sequences))
        ticket = self._host.sequences.suspend(
            request.session, list(request.sequences), events=events_from_wire(request.events)
        )
        reply = await _settled(ticket, wait_s, context)
        return pb.SuspendReply(epoch=self._host.epoch, left=reply.left, stayed=reply.stayed)

    async def Resume(self, request: pb.ResumeRequest, context: Any) -> pb.ResumeReply:
        wait_s = wait_from_wire(request.wait_s)
        check_sequences(len(request.sequences))
        ticket = self._host.sequences.resume(request.session, list(request.sequences))
        reply = await _settled(ticket, wait_s, context)
        return pb.ResumeReply(epoch=self._host.epoch, blocks=reply.blocks, lost=reply.lost)

    async def Close(self, request: pb.CloseRequest, context: Any) -> pb.CloseReply:
        check_sequences(len(request.sequences))
        self._host.sequences.close(request.session, list(request.sequences), events=events_from_wire(request.events))
        return pb.CloseReply(epoch=self._host.epoch)

    async def Advance(self, request: pb.AdvanceRequest, context: Any) -> pb.AdvanceReply:
        reply = self._host.sequences.advance(
            request.session, request.sequence, request.position, window=window_from_wire(request)
        )
        return pb.AdvanceReply(
            epoch=self._host.epoch, prefetched=reply.prefetched, cancelled=reply.cancelled, kept=reply.kept
        )

    async def AdjustPageSize(self, request: pb.AdjustPageSizeRequest, context: Any) -> pb.AdjustPageSizeReply:
        wait_s = wait_from_wire(request.wait_s)
        one = request.HasField("sequence")
        ticket = self._host.sequences.adjust_page_size(
            request.page_blocks,
            session=request.session if one else None,
            sequence=request.sequence if one else None,
        )
        return resized_to_wire(self._host.epoch, await _settled(ticket, wait_s, context))

    async def SetSticky(self, request: pb.SetStickyRequest, context: Any) -> pb.SetStickyReply:
        reply = self._host.sequences.set_sticky(
            request.session, request.sequence, request.first_block, request.count, request.sticky
        )
        return pb.SetStickyReply(epoch=self._host.epoch, sticky_bytes=reply.sticky_bytes, limit_bytes=reply.limit_bytes)

    async def NoteTranslations(self, request: pb.NoteTranslationsRequest, context: Any) -> pb.NoteTranslationsReply:
        self._host.sequences.note_tlb(request.session, request.hits, request.misses, request.invalidations)
        return pb.NoteTranslationsReply(epoch=self._host.epoch)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        info = self._host.sequences.describe(request.session, request.sequence)
        return pb.DescribeReply(epoch=self._host.epoch, json=json.dumps(asdict(info)))


async def _settled(ticket: Ticket[Any], wait_s: float, context: Any) -> Any:
    """The ticket's reply, when it is done or the waiting is over."""
    await settled(ticket, wait_s, context)
    return ticket.reply()
