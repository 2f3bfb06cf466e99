"""Bad input to every verb of the facade: a typed error that names the field and the limit, and nothing lost."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridkv.tiers.errors import (
    ExpiredError,
    ForeignHoldError,
    HybridKVError,
    InvalidArgumentError,
    NamespaceMismatchError,
    NotFoundError,
    ResourceExhaustedError,
)
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Tier
from tests.migration.hosts import BLOCK, HIT, MISS, NEW, Rig, checksums, key, keys

LIMIT = 64
EMPTY = Keys(b"", 16)
NARROW = Keys.of([b"8 bytes!"])


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A host that holds blocks 1 and 2; whatever a test does to it, they are still there and the laws hold."""
    made = Rig(
        tmp_path,
        disk_bytes=16 << 20,
        limits__keys_per_call_count=LIMIT,
        limits__holds_per_session_count=8,
        limits__sessions_count=4,
        limits__namespaces_count=3,
    )
    made.worker.put([1, 2])
    try:
        yield made
        made.settle()
        reader = made.host.attach(made.space()).session
        states = made.host.lookup(reader, keys([1, 2])).states
        assert states.tolist() == [HIT, HIT]
    finally:
        made.close()


Verb = Callable[[Rig, int, Keys], object]

KEYED: dict[str, Verb] = {
    "lookup": lambda rig, session, some: rig.host.lookup(session, some),
    "acquire": lambda rig, session, some: rig.host.acquire(session, some),
    "reserve": lambda rig, session, some: rig.host.reserve(session, some),
    "prefetch": lambda rig, session, some: rig.host.prefetch(session, some),
    "touch": lambda rig, session, some: rig.host.touch(session, some),
    "remove": lambda rig, session, some: rig.host.remove(session, some),
}
keyed = pytest.mark.parametrize("verb", KEYED.values(), ids=KEYED.keys())


def refused(error: type[HybridKVError], match: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=match):
        call()


# ---------------------------------------------------------------------------------------------------- keys


@keyed
def test_an_empty_list_of_keys(rig: Rig, verb: Verb) -> None:
    refused(InvalidArgumentError, "keys: the list is empty", lambda: verb(rig, rig.worker.session, EMPTY))


@keyed
def test_too_many_keys(rig: Rig, verb: Verb) -> None:
    many = keys(range(100, 101 + LIMIT))
    refused(InvalidArgumentError, f"keys: {LIMIT + 1} .*limit is {LIMIT}", lambda: verb(rig, rig.worker.session, many))


@keyed
def test_keys_of_another_width(rig: Rig, verb: Verb) -> None:
    refused(InvalidArgumentError, "keys: 8 bytes wide.* are 16", lambda: verb(rig, rig.worker.session, NARROW))


@keyed
def test_an_unknown_session(rig: Rig, verb: Verb) -> None:
    refused(NotFoundError, "session: 999", lambda: verb(rig, 999, keys([1])))


@keyed
def test_a_session_that_ended(rig: Rig, verb: Verb) -> None:
    other = rig.attach()
    rig.host.detach(other.session)
    refused(NotFoundError, "session", lambda: verb(rig, other.session, keys([1])))


def test_keys_that_are_not_there_are_no_error(rig: Rig) -> None:
    session = rig.worker.session
    assert rig.host.lookup(session, keys([77])).states.tolist() == [MISS]
    assert rig.worker.read([77]) == [MISS]
    assert rig.host.prefetch(session, keys([77])) == 0
    assert rig.host.touch(session, keys([77])) == 0
    assert rig.host.remove(session, keys([77])) == 0


def test_duplicate_keys_change_nothing_twice(rig: Rig) -> None:
    session = rig.worker.session
    rig.worker.put([3])
    assert rig.host.prefetch(session, keys([3, 3]), tier=Tier.GPU) == 1
    assert rig.worker.read([3, 3]) == [HIT, HIT]
    assert rig.host.remove(session, keys([3, 3])) == 1


# ---------------------------------------------------------------------------------------------------- chains


def test_duplicate_keys_in_a_chain(rig: Rig) -> None:
    refused(InvalidArgumentError, "keys: 1 occur twice", lambda: rig.worker.reserve([5, 6, 5]))


def test_a_parent_of_another_width(rig: Rig) -> None:
    refused(InvalidArgumentError, "parent: 5 bytes.* are 16", lambda: rig.worker.reserve([5], parent=b"short"))


def test_a_parent_among_the_keys(rig: Rig) -> None:
    refused(InvalidArgumentError, "parent: is one of the keys", lambda: rig.worker.reserve([5, 6], parent=key(6)))


def test_a_parent_that_is_not_there_is_no_error(rig: Rig) -> None:
    assert rig.worker.write([5], parent=key(77)) == [NEW]
    assert rig.host.stats()["orphans"] == 1


# ---------------------------------------------------------------------------------------------------- places


PLACED: dict[str, Callable[..., object]] = {
    "acquire": lambda rig, **how: rig.worker.acquire([1], **how),
    "reserve": lambda rig, **how: rig.worker.reserve([5], **how),
    "prefetch": lambda rig, **how: rig.host.prefetch(rig.worker.session, keys([1]), **how),
}
BAD_PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "device without tier": ({"device": 0}, "device: needs tier gpu"),
    "device of another tier": ({"tier": Tier.CPU, "device": 0}, "device: needs tier gpu"),
    "unknown device": ({"tier": Tier.GPU, "device": 7}, "device: 7: no such device; 1 have a pool"),
    "negative device": ({"tier": Tier.GPU, "device": -1}, "device: -1: no such device"),
    "tier disk": ({"tier": Tier.DISK}, r"tier: disk: only mapped tiers \(gpu, cpu\)"),
}


@pytest.mark.parametrize("verb", PLACED.values(), ids=PLACED.keys())
@pytest.mark.parametrize(("how", "match"), BAD_PLACES.values(), ids=BAD_PLACES.keys())
def test_a_place_that_does_not_exist(rig: Rig, verb: Callable[..., object], how: dict[str, Any], match: str) -> None:
    refused(InvalidArgumentError, match, lambda: verb(rig, **how))
    assert len(rig.directory.state.ledger.leases) == 0


# ---------------------------------------------------------------------------------------------------- holds


def test_an_unknown_lease(rig: Rig) -> None:
    refused(NotFoundError, "lease: 999", lambda: rig.worker.release(999))
    refused(NotFoundError, "lease: 999", lambda: rig.worker.again(999))


def test_a_foreign_lease(rig: Rig) -> None:
    lease = rig.worker.hold([1]).lease
    other = rig.attach()
    refused(ForeignHoldError, f"lease: {lease}", lambda: other.release(lease))
    refused(ForeignHoldError, f"lease: {lease}", lambda: other.again(lease))
    assert rig.host.renew(other.session, [lease]) == [False]
    rig.worker.release(lease)
    refused(NotFoundError, f"lease: {lease}", lambda: rig.worker.release(lease))


def test_an_expired_lease(rig: Rig) -> None:
    lease = rig.worker.hold([1]).lease
    rig.clock.advance(rig.host.config.daemon.lease_s + 1)
    rig.host.tick()
    refused(ExpiredError, f"lease: {lease}", lambda: rig.worker.release(lease))
    refused(NotFoundError, f"lease: {lease}", lambda: rig.worker.release(lease))


def test_a_lease_given_with_keys(rig: Rig) -> None:
    lease = rig.worker.hold([1]).lease
    session = rig.worker.session
    refused(InvalidArgumentError, "keys: must be empty", lambda: rig.host.acquire(session, keys([1]), lease=lease))


def test_an_unknown_or_foreign_reservation(rig: Rig) -> None:
    session, other = rig.worker.session, rig.attach().session
    reservation = rig.worker.reserved([5]).reservation
    refused(NotFoundError, "reservation: 999", lambda: rig.host.seal(session, 999, None, None))
    refused(NotFoundError, "reservation: 999", lambda: rig.host.abort(session, 999, None))
    refused(ForeignHoldError, "reservation", lambda: rig.host.seal(other, reservation, None, None))
    refused(ForeignHoldError, "reservation", lambda: rig.host.abort(other, reservation, None))
    assert rig.host.renew(other, [reservation]) == [False]
    assert rig.host.renew(session, [reservation, 999]) == [True, False]


def test_seal_and_abort_of_a_session_that_is_not_there(rig: Rig) -> None:
    refused(NotFoundError, "session: 999", lambda: rig.host.seal(999, 1, None, None))
    refused(NotFoundError, "session: 999", lambda: rig.host.abort(999, 1, None))
    refused(NotFoundError, "session: 999", lambda: rig.host.release(999, 1))
    refused(NotFoundError, "session: 999", lambda: rig.host.renew(999, [1]))
    refused(NotFoundError, "session: 999", lambda: rig.host.end_request(999, 1))
    refused(NotFoundError, "session: 999", lambda: rig.host.acquire(999, EMPTY, lease=1))


def test_too_many_holds_to_renew(rig: Rig) -> None:
    session = rig.worker.session
    refused(InvalidArgumentError, f"holds: 65 .*limit is {LIMIT}", lambda: rig.host.renew(session, list(range(65))))


def test_an_unknown_request_is_over_already(rig: Rig) -> None:
    rig.host.end_request(rig.worker.session, 12345)
    assert rig.host.renew(rig.worker.session, [], [12345]) == [False]


# ---------------------------------------------------------------------------------------------------- seal and abort


BAD_INDICES: dict[str, tuple[list[int], str]] = {
    "beyond": ([3], "indices: 3.*keys 0 to 2"),
    "negative": ([-1], "indices: -1.*keys 0 to 2"),
    "negative among good ones": ([-1, 1], "indices: -1.*keys 0 to 2"),
    "twice": ([1, 1], "indices: one occurs twice"),
    "not ours": ([0], r"indices: 0 is not ours to write"),
}


@pytest.mark.parametrize(("indices", "match"), BAD_INDICES.values(), ids=BAD_INDICES.keys())
@pytest.mark.parametrize("verb", ["seal", "abort"])
def test_indices_that_are_wrong(rig: Rig, verb: str, indices: list[int], match: str) -> None:
    reply = rig.worker.reserved([1, 5, 6], tier=Tier.CPU)  # 1 is present
    wrong = np.array(indices, np.int64)

    def call() -> None:
        if verb == "abort":
            rig.host.abort(rig.worker.session, reply.reservation, wrong)
        else:
            rig.host.seal(rig.worker.session, reply.reservation, wrong, None)

    refused(InvalidArgumentError, match, call)
    for at in (1, 2):
        rig.worker.fill(4 + at, reply.slots[at])
    ours = np.array([1, 2], np.int64)
    sealed = rig.host.seal(rig.worker.session, reply.reservation, ours, checksums([5, 6]))
    assert sealed.tolist() == [1, 1]  # nothing was lost by the wrong call
    assert rig.worker.read([5, 6]) == [HIT, HIT]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_checksums_of_another_length(rig: Rig, count: int) -> None:
    reservation = rig.worker.reserved([5, 6]).reservation
    wrong = np.zeros(count, np.uint64)
    session = rig.worker.session
    match = f"checksums: {count} given for 2 blocks"
    refused(InvalidArgumentError, match, lambda: rig.host.seal(session, reservation, None, wrong))
    assert rig.worker.read([5]) == [MISS]
    rig.host.abort(session, reservation, None)


def test_an_expired_reservation_publishes_nothing(rig: Rig) -> None:
    reply = rig.worker.reserved([5])
    rig.clock.advance(rig.host.config.daemon.reservation_s + 1)
    rig.host.tick()
    assert rig.host.seal(rig.worker.session, reply.reservation, None, checksums([5])).tolist() == [3]
    assert rig.worker.read([5]) == [MISS]


# ---------------------------------------------------------------------------------------------------- attach


def layout(nbytes: int) -> Namespace:
    return Namespace(model="sizes", layout=BlockLayout.opaque(nbytes, 16, "t"), key_bytes=16)


def test_a_block_larger_than_an_extent(rig: Rig) -> None:
    too_large = layout(2 * BLOCK)  # fits an extent of the CPU pool, not one of the GPU's
    refused(InvalidArgumentError, r"block_bytes: 32768: over 16384.*gpu0", lambda: rig.host.attach(too_large))
    assert len(rig.directory.state.spaces) == 1


def test_a_block_under_a_page(rig: Rig) -> None:
    refused(InvalidArgumentError, r"block_bytes: .*4096", lambda: rig.host.attach(layout(1024)))


def test_a_client_that_computes_otherwise(rig: Rig) -> None:
    space = rig.space()
    wrong = bytes(32)
    refused(NamespaceMismatchError, f"{wrong.hex()}.*{space.fingerprint.hex()}",
            lambda: rig.host.attach(space, fingerprint=wrong))  # fmt: skip
    refused(NamespaceMismatchError, "block_bytes: .*4096.*16384", lambda: rig.host.attach(space, block_bytes=4096))
    assert rig.host.session_count == 1


def test_too_many_sessions(rig: Rig) -> None:
    others = [rig.attach() for _ in range(3)]
    refused(ResourceExhaustedError, r"limits\.sessions_count: 4", rig.attach)
    rig.host.detach(others[0].session)
    rig.host.detach(rig.attach().session)


def test_too_many_namespaces(rig: Rig) -> None:
    used = [rig.attach(BLOCK, model) for model in ("a", "b")]
    refused(ResourceExhaustedError, r"limits\.namespaces_count: 3", lambda: rig.attach(BLOCK, "c"))
    rig.host.detach(rig.attach(BLOCK, "a").session)  # one that is known
    rig.host.detach(used[1].session)
    rig.attach(BLOCK, "c")  # nobody and nothing belongs to the other any more


def test_too_many_holds(rig: Rig) -> None:
    leases = [rig.worker.hold([1]).lease for _ in range(8)]
    match = r"limits\.holds_per_session_count: .*8"
    refused(ResourceExhaustedError, match, lambda: rig.worker.acquire([2]))
    refused(ResourceExhaustedError, match, lambda: rig.worker.reserve([5]))
    rig.worker.release(leases[0])
    assert rig.worker.read([2]) == [HIT]


# ---------------------------------------------------------------------------------------------------- memory, figures


def test_pools_that_cannot_be_addressed(rig: Rig) -> None:
    refused(InvalidArgumentError, "pool: 2", lambda: rig.host.pool_array(2))
    refused(InvalidArgumentError, "pool: 9", lambda: rig.host.pool_array(9))
    with pytest.raises(ValueError, match="read-only"):
        rig.host.pool_array(1)[0] = 1


def test_wrong_tokens_map_nothing(rig: Rig) -> None:
    session = rig.worker.session
    refused(ForeignHoldError, "token", lambda: rig.host.regions(session, bytes(16)))
    refused(NotFoundError, "session: 999", lambda: rig.host.regions(999, bytes(16)))
    refused(NotFoundError, "session: 999", lambda: rig.host.on_mapped(999, 1))


def test_ends_of_unknown_sessions_are_no_error(rig: Rig) -> None:
    before = rig.host.session_count
    rig.host.detach(999)
    rig.host.on_gone(999)
    rig.host.stream_broken(999)
    assert rig.host.session_count == before


def test_clearing_an_unknown_namespace_removes_nothing(rig: Rig) -> None:
    assert rig.host.clear(bytes(32)) == 0
