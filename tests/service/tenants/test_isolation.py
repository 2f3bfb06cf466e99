"""One tenant and another's blocks, sessions and holds: not seen, not leased, not removed, not explained, not touched."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.proto import hybridkv_pb2_grpc as pb_grpc
from hybridkv.service.facade import Host
from hybridkv.tiers.errors import HybridKVError, NotFoundError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import FINGERPRINT_BYTES, owned_fingerprint, owner_tag
from tests.service.client.conftest import content
from tests.service.tenants.conftest import BLOCK_BYTES, TOKENS, Rig, chain_of, make_space, store, tenant_config
from tests.service.wire import TIMEOUT_S, Wire, some_keys, wired


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {TOKENS[name]}"),)


def test_one_namespace_of_two_tenants_is_two(rig: Rig) -> None:
    """The same model, layout, salt and tokens: each finds its own bytes only."""
    alice, bob = rig.connect("alice"), rig.connect("bob")
    keys = chain_of(alice, 4)
    store(alice, keys, b"a")
    assert bob.lookup(keys).prefix == 0
    store(bob, keys, b"b")
    for kv, salt in ((alice, b"a"), (bob, b"b")):
        rows = np.zeros((4, BLOCK_BYTES), np.uint8)
        assert kv.read(keys, rows).all()
        assert all(np.array_equal(row, content(salt + key)) for row, key in zip(rows, keys, strict=True))


def test_nothing_that_bob_asks_tells_whether_alice_has_a_block(rig: Rig) -> None:
    """Every verb answers the same for a key that alice has and for one that nobody has."""
    alice, bob = rig.connect("alice"), rig.connect("bob")
    store(alice, hers := chain_of(alice, 2, first_token=5000))
    nobodys = chain_of(bob, 2, first_token=9000)

    def answers(keys: Keys) -> list[object]:
        with bob.acquire(keys) as lease:
            leased = lease.prefix
        with rig.admin("bob") as admin:
            explained = [admin.explain(keys[0]), admin.explain(keys[0], make_space().fingerprint)]
        found = bob.lookup(keys)
        return [
            found.prefix,
            found.states.tolist(),
            leased,
            bob.prefetch(keys),
            bob.touch(keys),
            bob.remove(keys),
            explained,
        ]

    assert answers(hers) == answers(nobodys) == [0, [3, 3], 0, 0, 0, 0, [[], []]]
    assert alice.lookup(hers).prefix == 2


def test_bob_clears_and_explains_his_own(rig: Rig) -> None:
    alice, bob = rig.connect("alice"), rig.connect("bob")
    keys = chain_of(alice, 3)
    store(alice, keys)
    store(bob, keys)
    mine = owned_fingerprint("bob", make_space().fingerprint)
    hers = owned_fingerprint("alice", make_space().fingerprint)
    with rig.admin("bob") as admin:
        for prefix in (b"", owner_tag("bob"), mine, mine[:3], make_space().fingerprint):
            assert [one["fingerprint"] for one in admin.explain(keys[0], prefix)] == [mine.hex()]
        for prefix in (hers, hers[:3], owner_tag("alice")):
            assert admin.explain(keys[0], prefix) == []
        assert admin.clear(hers) == 0
        assert admin.clear(make_space().fingerprint) == 3
        store(bob, keys)
        assert admin.clear() == 3
    assert alice.lookup(keys).prefix == 3
    with rig.admin("root") as admin:
        assert [one["fingerprint"] for one in admin.explain(keys[0], owner_tag("alice"))] == [hers.hex()]


def test_the_figures_of_a_worker_are_its_own(rig: Rig) -> None:
    alice, bob = rig.connect("alice"), rig.connect("bob")
    before = bob.stats()
    store(alice, chain_of(alice, 4))
    after = bob.stats()
    assert {**before, "uptime_s": 0} == {**after, "uptime_s": 0}
    assert "alice" not in repr(after)


# ------------------------------------------------------------------------------------------------ sessions


def _of_session(message: Any, extra: dict[str, int], session: int, _hold: int) -> Any:
    return message(session=session, **extra)


def calls_of(wire: Wire) -> dict[str, tuple[Any, Callable[[int, int], Any]]]:
    """Every call that names a session, with a message that names a session and a hold or sequence of it."""
    sequences = pb_grpc.SequencesStub(wire.channel)  # type: ignore[no-untyped-call]
    keys = some_keys(1)
    found: dict[str, tuple[Any, Callable[[int, int], Any]]] = {
        "Acquire": (wire.kv.Acquire, lambda s, n: pb.AcquireRequest(session=s, lease=n)),
        "Lookup": (wire.kv.Lookup, lambda s, n: pb.LookupRequest(session=s, **keys)),
        "Renew": (wire.kv.Renew, lambda s, n: pb.RenewRequest(session=s, holds=[n], requests=[n])),
        "Release": (wire.kv.Release, lambda s, n: pb.ReleaseRequest(session=s, lease=n)),
        "Reserve": (wire.kv.Reserve, lambda s, n: pb.ReserveRequest(session=s, **keys)),
        "Seal": (wire.kv.Seal, lambda s, n: pb.SealRequest(session=s, reservation=n)),
        "Abort": (wire.kv.Abort, lambda s, n: pb.AbortRequest(session=s, reservation=n)),
        "Prefetch": (wire.kv.Prefetch, lambda s, n: pb.PrefetchRequest(session=s, **keys)),
        "Touch": (wire.kv.Touch, lambda s, n: pb.TouchRequest(session=s, **keys)),
        "Remove": (wire.kv.Remove, lambda s, n: pb.RemoveRequest(session=s, **keys)),
        "EndRequest": (wire.kv.EndRequest, lambda s, n: pb.EndRequestRequest(session=s, request_id=n)),
        "Read": (wire.kv.Read, lambda s, n: pb.ReadRequest(session=s, **keys)),
        "Write": (wire.kv.Write, lambda s, n: iter([pb.WritePart(session=s, **keys)])),
    }
    for method in pb.DESCRIPTOR.services_by_name["Sequences"].methods:
        message = getattr(pb, method.input_type.name)
        extra = {"sequence": 1} if method.name == "AdjustPageSize" else {}
        found[method.name] = (getattr(sequences, method.name), partial(_of_session, message, extra))
    return found


@pytest.fixture
def wire(rig: Rig) -> Iterator[Wire]:
    with wired(rig.address) as connected:
        yield connected


def refusal(method: Any, request: Any, name: str) -> tuple[grpc.StatusCode, str, tuple[Any, ...]]:
    try:
        reply = method(request, timeout=TIMEOUT_S, metadata=bearer(name))
        if hasattr(reply, "__next__"):
            list(reply)
    except grpc.RpcError as error:
        return error.code(), error.details() or "", tuple(error.trailing_metadata())
    raise AssertionError("answered")


def test_a_session_of_another_is_as_unknown_as_one_that_never_was(rig: Rig, wire: Wire) -> None:
    """Alice's session, lease and reservation in bob's hands: each call is refused in the words for a session that nobody
    has, and nothing of hers changes."""
    alice = rig.connect("alice")
    rig.connect("bob")
    store(alice, keys := chain_of(alice, 2))
    with alice.acquire(keys) as lease, alice.reserve(chain_of(alice, 1, first_token=500)) as slots:
        number = alice.session
        holds = [*rig.host.directory.state.ledger.leases, *rig.host.directory.state.ledger.reservations]
        assert len(holds) == 2
        calls = calls_of(wire)
        named = {m.name for s in ("KVCache", "Sequences") for m in pb.DESCRIPTOR.services_by_name[s].methods}
        assert named == set(calls)
        for name, (method, message) in calls.items():
            for hold in holds:
                foreign = refusal(method, message(number, hold), "bob")
                unknown = refusal(method, message(999_999, hold), "bob")
                assert foreign[0] is grpc.StatusCode.NOT_FOUND, name
                assert foreign[1].replace(str(number), "N") == unknown[1].replace("999999", "N"), name
                assert foreign[2] == unknown[2], name
        slots.array(0)[:] = 1
        slots.seal()
        assert lease.prefix == 2
        assert alice.lookup(keys).prefix == 2


def test_an_operator_has_no_way_into_a_workers_session(rig: Rig, wire: Wire) -> None:
    alice = rig.connect("alice")
    code, _, _ = refusal(wire.kv.Lookup, pb.LookupRequest(session=alice.session, **some_keys(1)), "root")
    assert code is grpc.StatusCode.NOT_FOUND


def test_a_token_of_bob_does_not_open_the_regions_of_alice(rig: Rig) -> None:
    """The side socket hands a session's regions to whoever has that session's own secret."""
    from hybridkv.service.listening import side_socket_path, socket_path
    from hybridkv.service.side.client import fetch_regions
    from hybridkv.tiers.errors import ForeignHoldError

    alice, bob = rig.connect("alice"), rig.connect("bob")
    side = side_socket_path(socket_path(rig.address))
    secret = bob._link.live.attached.token if bob._link.live else b""
    with pytest.raises(ForeignHoldError):
        fetch_regions(side, alice.session, secret, 5.0)


def test_a_session_that_maps_nothing_cannot_publish_what_it_never_wrote(rig: Rig, wire: Wire) -> None:
    """Reserve, seal unwritten, read: that would show what the slot held before, which may have been another's."""
    alice = rig.connect("alice")
    store(alice, keys := chain_of(alice, 8))
    alice.remove(keys)
    call = wire.session.Attach(iter([pb.AttachRequest(space=_wire_space())]), metadata=bearer("bob"), timeout=TIMEOUT_S)
    session = next(call).session
    for name in ("Reserve", "Seal", "Open", "Fault", "Publish"):
        method, message = calls_of(wire)[name]
        code, said, _ = refusal(method, message(session, 1), "bob")
        assert (code, "maps no memory" in said) == (grpc.StatusCode.FAILED_PRECONDITION, True), name
    call.cancel()
    rig.host._sessions.detach(session)


def _wire_space() -> pb.Namespace:
    from hybridkv.service.codec import namespace_to_wire

    return namespace_to_wire(make_space())


# ------------------------------------------------------------------------------------------------ fingerprints


def test_fingerprints_of_owners_are_their_own_and_lasting() -> None:
    plain = make_space().fingerprint
    owned = {name: owned_fingerprint(name, plain) for name in ("alice", "bob", "a")}
    assert len({plain, *owned.values()}) == 4
    assert {len(one) for one in owned.values()} == {FINGERPRINT_BYTES}
    assert all(one.startswith(owner_tag(name)) for name, one in owned.items())
    assert owned["alice"].hex()[:24] == "58a52d483ed7e9b585442248"


def test_blocks_on_disk_stay_their_owners_after_a_restart(tmp_path: Any) -> None:
    config = tenant_config(tmp_path, disk__path=str(tmp_path / "disk"), disk__capacity_bytes="16MiB")
    keys: Keys | None = None
    for start in range(2):
        host = Host(config)
        session = {name: host.attach(make_space(), owner=name, in_process=True).session for name in ("alice", "bob")}
        if not start:
            keys = make_keys()
            granted = host.reserve(session["alice"], keys)
            granted.wait(5.0)
            host.seal(session["alice"], granted.reply().reservation, None, None)
            host.drain(10.0)
        else:
            assert keys is not None
            found = {name: (host.lookup(number, keys).states == 1).sum() for name, number in session.items()}
            assert found == {"alice": 3, "bob": 0}
        assert host.check() == []
        host.close()


def make_keys() -> Keys:
    return Keys(b"".join(bytes([i]) * 16 for i in range(3)), 16)


def test_a_foreign_hold_is_still_a_foreign_hold_within_a_tenant(rig: Rig) -> None:
    """Two sessions of one tenant: they share blocks, not holds."""
    one, two = rig.connect("alice"), rig.connect("alice")
    store(one, keys := chain_of(one, 1))
    assert two.lookup(keys).prefix == 1
    with one.acquire(keys):
        (number,) = rig.host.directory.state.ledger.leases
        with pytest.raises(HybridKVError) as caught:
            rig.host.release(two.session, number)
        assert not isinstance(caught.value, NotFoundError)
