"""The Sequences service as the wire has it: batches, packed fields, and every wrong form refused by the field's name."""

import json
from typing import Any

import numpy as np
import pytest

from hybridkv.paging.states import PageState, PublishOutcome
from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import (
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.pools import SLOT_DTYPE
from tests.service.wire import ROOM_S, TIMEOUT_S, Stream, Wire, key, write

TOKENS = 16
U32 = 2**32 - 1


class Calls:
    """The service's stub for one session."""

    def __init__(self, wire: Wire, session: int) -> None:
        self.stub: Any = pb_grpc.SequencesStub(wire.channel)  # type: ignore[no-untyped-call]
        self.session = session

    def open(self, *lengths: int, keys: bytes = b"") -> list[int]:
        new = [pb.NewSequence(tokens=length, keys=keys) for length in lengths]
        request = pb.OpenRequest(session=self.session, key_bytes=16, sequences=new)
        return [opened.sequence for opened in self.stub.Open(request, timeout=TIMEOUT_S).opened]

    def fault(self, *wants: tuple[int, list[int], bool], **fields: Any) -> Any:
        packed = [pb.Want(sequence=s, blocks=np.array(b, "<u4").tobytes(), write=w) for s, b, w in wants]
        request = pb.FaultRequest(session=self.session, wants=packed, wait_s=ROOM_S, **fields)
        return self.stub.Fault(request, timeout=TIMEOUT_S)


@pytest.fixture
def stream(wire: Wire, space: Namespace) -> Stream:
    return wire.attach(space)


@pytest.fixture
def calls(wire: Wire, stream: Stream) -> Calls:
    return Calls(wire, stream.session)


def test_several_sequences_by_one_call(calls: Calls, daemon: DaemonThread) -> None:
    first, second = calls.open(40, 0)
    extended = calls.stub.Extend(
        pb.ExtendRequest(session=calls.session, sequences=[second, first], more_tokens=[5, 8]), timeout=TIMEOUT_S
    )
    assert list(extended.tokens) == [5, 48]
    reply = calls.fault((first, [2, 0], True), (second, [0], True), (first, [1], False))
    assert list(reply.states) == [PageState.FRESH] * 3 + [PageState.UNMAPPED]
    slots = np.frombuffer(reply.slots, SLOT_DTYPE)
    assert len(set(slots["offset"][:3].tolist())) == 3
    assert (slots["generation"][:3] % 2 == 1).all()
    assert slots["generation"][3] == 0
    assert (reply.minor, reply.major, list(reply.leases)) == (3, 0, [0, 0, 0])
    assert reply.epoch == daemon.host.epoch
    calls.stub.Close(pb.CloseRequest(session=calls.session, sequences=[first, second]), timeout=TIMEOUT_S)
    assert daemon.host.stats()["paging"]["sequences"]["open"] == 0  # type: ignore[index]


def test_a_prefix_is_attached_published_and_described(wire: Wire, calls: Calls) -> None:
    write(wire, calls.session, 1, 2)
    (sequence,) = calls.open(3 * TOKENS, keys=key(1) + key(2) + key(3))
    reply = calls.fault((sequence, [0, 1], False), hold=True)
    assert list(reply.states) == [PageState.READABLE] * 2
    assert reply.leases[0] > 0
    wire.kv.Release(pb.ReleaseRequest(session=calls.session, lease=reply.leases[0]), timeout=TIMEOUT_S)
    calls.fault((sequence, [2], True))
    published = calls.stub.Publish(
        pb.PublishRequest(
            session=calls.session,
            sequence=sequence,
            first_block=2,
            keys=key(3),
            key_bytes=16,
            parent=key(2),
            wait_s=ROOM_S,
        ),
        timeout=TIMEOUT_S,
    )
    assert list(published.outcomes) == [PublishOutcome.SEALED]
    described = calls.stub.Describe(pb.DescribeRequest(session=calls.session, sequence=sequence), timeout=TIMEOUT_S)
    assert json.loads(described.json)["mapped_blocks"] == 3
    looked = calls.stub.Translate(
        pb.TranslateRequest(session=calls.session, sequence=sequence, blocks=np.array([0, 2], "<u4").tobytes()),
        timeout=TIMEOUT_S,
    )
    assert list(looked.states) == [PageState.READABLE] * 2


def test_all_are_opened_or_none(wire: Wire, calls: Calls, daemon: DaemonThread) -> None:
    limit = daemon.host.config.paging.positions_count
    request = pb.OpenRequest(
        session=calls.session,
        key_bytes=16,
        sequences=[pb.NewSequence(tokens=5), pb.NewSequence(tokens=limit + 1), pb.NewSequence(tokens=5)],
    )
    assert isinstance(wire.error(calls.stub.Open, request), InvalidArgumentError)
    assert daemon.host.stats()["paging"]["sequences"]["open"] == 0  # type: ignore[index]


def test_a_fault_that_finds_no_room_changes_nothing(wire: Wire, calls: Calls) -> None:
    (sequence,) = calls.open(5000 * TOKENS)
    for start in range(0, 1024, 128):  # all of the 4 MiB tier
        calls.fault((sequence, list(range(start, start + 128)), True))
    describe = pb.DescribeRequest(session=calls.session, sequence=sequence)
    before = calls.stub.Describe(describe, timeout=TIMEOUT_S).json
    wants = [pb.Want(sequence=sequence, blocks=np.arange(2000, 2128, dtype="<u4").tobytes(), write=True)]
    request = pb.FaultRequest(session=calls.session, wants=wants, wait_s=ROOM_S)
    assert isinstance(wire.error(calls.stub.Fault, request), ResourceExhaustedError)
    assert calls.stub.Describe(describe, timeout=TIMEOUT_S).json == before


def test_the_window_the_page_size_and_stickiness(calls: Calls) -> None:
    (sequence,) = calls.open(20 * TOKENS)
    calls.fault((sequence, list(range(20)), True))
    window = pb.AttentionWindow(window_tokens=32, sink_tokens=16, ahead_tokens=16)
    here: Any = {"session": calls.session, "sequence": sequence}
    advanced = calls.stub.Advance(pb.AdvanceRequest(**here, position=100, window=window), timeout=TIMEOUT_S)
    assert advanced.kept > 0
    sized = calls.stub.AdjustPageSize(pb.AdjustPageSizeRequest(**here, page_blocks=4, wait_s=ROOM_S), timeout=TIMEOUT_S)
    assert (sized.page_blocks, sized.entries_before, sized.copied_bytes) == (4, 20, 0)
    stuck = calls.stub.SetSticky(pb.SetStickyRequest(**here, first_block=0, count=2, sticky=True), timeout=TIMEOUT_S)
    assert 0 < stuck.sticky_bytes <= stuck.limit_bytes
    forked = calls.stub.Fork(pb.ForkRequest(**here, count=2, wait_s=ROOM_S), timeout=TIMEOUT_S)
    assert len(forked.sequences) == 2


@pytest.mark.parametrize(
    ("method", "request_of", "field"),
    [
        ("Open", lambda s, q: pb.OpenRequest(session=s, key_bytes=16), "sequences"),
        ("Open", lambda s, q: _open_for(s, keys=b"123"), "sequences.keys"),
        ("Open", lambda s, q: _open_for(s, tier=9), "tier"),
        ("Extend", lambda s, q: pb.ExtendRequest(session=s, sequences=[q], more_tokens=[1, 2]), "more_tokens"),
        ("Fault", lambda s, q: pb.FaultRequest(session=s), "wants"),
        ("Fault", lambda s, q: pb.FaultRequest(session=s, wants=[pb.Want(sequence=q, blocks=b"123")]), "wants.blocks"),
        ("Fault", lambda s, q: pb.FaultRequest(session=s, wants=[pb.Want(sequence=q, blocks=bytes(4))], wait_s=-1), "wait_s"),
        ("Translate", lambda s, q: pb.TranslateRequest(session=s, sequence=q, blocks=b"1"), "blocks"),
        ("Publish", lambda s, q: pb.PublishRequest(session=s, sequence=q, keys=b"1", key_bytes=16), "keys"),
        ("Advance", lambda s, q: pb.AdvanceRequest(session=s, sequence=q, window=pb.AttentionWindow()), "window.window_tokens"),
        ("AdjustPageSize", lambda s, q: pb.AdjustPageSizeRequest(session=s, sequence=q, page_blocks=3), "page_blocks"),
        ("SetSticky", lambda s, q: pb.SetStickyRequest(session=s, sequence=q, first_block=90, count=1, sticky=True), None),
    ],
)  # fmt: skip
def test_wrong_forms_are_refused_by_name(
    wire: Wire, calls: Calls, method: str, request_of: Any, field: str | None
) -> None:
    (sequence,) = calls.open(5 * TOKENS)
    error = wire.error(getattr(calls.stub, method), request_of(calls.session, sequence))
    assert isinstance(error, InvalidArgumentError)
    assert field is None or error.field == field


def test_who_is_not_there_is_not_found(wire: Wire, calls: Calls) -> None:
    (sequence,) = calls.open(5)
    close = pb.CloseRequest(session=calls.session, sequences=[sequence])
    calls.stub.Close(close, timeout=TIMEOUT_S)
    assert isinstance(wire.error(calls.stub.Close, close), NotFoundError)
    describe = pb.DescribeRequest(session=calls.session, sequence=sequence)
    assert isinstance(wire.error(calls.stub.Describe, describe), NotFoundError)
    assert isinstance(wire.error(calls.stub.Open, _open_for(calls.session + 1)), NotFoundError)


def test_a_session_that_detaches_leaves_no_sequence(calls: Calls, stream: Stream, daemon: DaemonThread) -> None:
    (sequence,) = calls.open(5 * TOKENS)
    calls.fault((sequence, [0, 1], True))
    stream.detach()
    figures: Any = daemon.host.stats()
    assert figures["paging"]["sequences"]["open"] == 0
    assert figures["tiers"]["cpu"]["reserved_bytes"] == 0


def _open_for(session: int, count: int = 1, **fields: Any) -> pb.OpenRequest:
    return pb.OpenRequest(session=session, key_bytes=16, sequences=[pb.NewSequence(**{"tokens": 1, **fields})] * count)


@pytest.mark.parametrize(
    ("method", "request_of", "field"),
    [
        ("SetSticky", lambda s, q: pb.SetStickyRequest(session=s, sequence=q, count=U32, sticky=True), "blocks"),
        ("SetSticky", lambda s, q: pb.SetStickyRequest(session=s, sequence=q, first_block=U32, count=U32), "blocks"),
        ("Translate", lambda s, q: pb.TranslateRequest(session=s, sequence=q, blocks=bytes(4 * 5000)), "blocks"),
        ("Fork", lambda s, q: pb.ForkRequest(session=s, sequence=q, count=513), "count"),
        ("Extend", lambda s, q: pb.ExtendRequest(session=s, sequences=[q] * 513, more_tokens=[0] * 513), "sequences"),
        ("Close", lambda s, q: pb.CloseRequest(session=s, sequences=[q] * 513), "sequences"),
        ("Suspend", lambda s, q: pb.SuspendRequest(session=s, sequences=[q] * 513), "sequences"),
        ("Resume", lambda s, q: pb.ResumeRequest(session=s, sequences=[q] * 513), "sequences"),
        ("Open", lambda s, q: pb.OpenRequest(session=s, sequences=[pb.NewSequence()] * 513, key_bytes=16), "sequences"),
        ("Open", lambda s, q: _open_for(s, 2, tokens=10**6, keys=bytes(16 * 2500)), "sequences.keys"),
    ],
)
def test_one_call_names_so_many_and_no_more(calls: Calls, wire: Wire, method: str, request_of: Any, field: str) -> None:
    (sequence,) = calls.open(40)
    error = wire.error(getattr(calls.stub, method), request_of(calls.session, sequence))
    assert isinstance(error, InvalidArgumentError)
    assert error.field == field
    calls.fault((sequence, [0], True))


def test_the_limit_of_a_session_counts_what_is_open(calls: Calls, wire: Wire, daemon: DaemonThread) -> None:
    daemon.host.update_config({"paging.sequences_per_session_count": 5})
    first, second, _, _ = calls.open(1, 1, 1, 1)
    fork = pb.ForkRequest(session=calls.session, sequence=first, count=2)
    assert isinstance(wire.error(calls.stub.Fork, fork), ResourceExhaustedError)
    calls.stub.Close(pb.CloseRequest(session=calls.session, sequences=[second]), timeout=TIMEOUT_S)
    assert len(calls.stub.Fork(fork, timeout=TIMEOUT_S).sequences) == 2
    other = Calls(wire, wire.attach(Namespace(model="o", layout=BlockLayout.opaque(4096, 16, "o"))).session)
    assert len(other.open(1, 1, 1, 1, 1)) == 5
