"""Bad input and dead handles: typed errors that name the field, and nothing lost."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hybridkv.service.client import KV, connect
from hybridkv.tiers.errors import (
    ExpiredError,
    FailedPreconditionError,
    HybridKVError,
    InvalidArgumentError,
    UnavailableError,
)
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from tests.service.client.conftest import BLOCK_BYTES, Backend, chain_of, check_content, store

WIDE = Keys(bytes(64), 32)
EMPTY = Keys(b"", 16)


@pytest.mark.parametrize(
    "call",
    [
        lambda kv: kv.lookup(WIDE),
        lambda kv: kv.acquire(WIDE),
        lambda kv: kv.reserve([b"short"]),
        lambda kv: kv.read(WIDE, np.zeros((2, BLOCK_BYTES), np.uint8)),
        lambda kv: kv.touch([b"x" * 16, b"y" * 8]),
        lambda kv: kv.remove("not keys"),
        lambda kv: kv.prefetch(b"x" * 16),
        lambda kv: kv.lookup(EMPTY),
        lambda kv: kv.acquire(EMPTY),
        lambda kv: kv.reserve(EMPTY),
    ],
)
def test_wrong_keys_are_refused(kv: KV, call: Callable[[KV], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^key"):
        call(kv)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda kv, keys: kv.acquire(keys, tier="ram"), "tier"),
        (lambda kv, keys: kv.acquire(keys, timeout_s=-1.0), "timeout_s"),
        (lambda kv, keys: kv.acquire(keys, timeout_s=float("nan")), "timeout_s"),
        (lambda kv, keys: kv.reserve(keys, parent=b"short"), "parent"),
        (lambda kv, keys: kv.reserve(keys, tier="l2"), "tier"),
        (lambda kv, keys: kv.read(keys, np.zeros((1, BLOCK_BYTES), np.uint8)), "out"),
        (lambda kv, keys: kv.keys(["a"]), "tokens"),
        (lambda kv, keys: kv.keys([1], parent=b"short"), "parent"),
    ],
)
def test_wrong_values_name_their_field(kv: KV, call: Callable[[KV, Keys], Any], field: str) -> None:
    keys = chain_of(kv, 2)
    with pytest.raises(InvalidArgumentError) as caught:
        call(kv, keys)
    assert caught.value.field == field


def test_device_without_a_pool_is_refused(kv: KV, backend: Backend) -> None:
    if not backend.mapped:
        pytest.skip("payload streams take any tier")
    store(kv, chain_of(kv, 1))
    with pytest.raises(HybridKVError) as caught:
        kv.acquire(chain_of(kv, 1), tier="gpu", device=3)
    assert isinstance(caught.value, InvalidArgumentError | UnavailableError | FailedPreconditionError)


def test_after_close_every_call_says_so(kv: KV) -> None:
    keys = chain_of(kv, 1)
    store(kv, keys)
    lease = kv.acquire(keys)
    slots = kv.reserve(chain_of(kv, 1, first_token=9000))
    kv.close()
    kv.close()
    calls: list[Callable[[], Any]] = [
        kv.stats,
        lambda: kv.lookup(keys),
        lambda: kv.acquire(keys),
        lambda: kv.session,
    ]
    for call in calls:
        with pytest.raises(FailedPreconditionError, match="closed"):
            call()
    deads: list[Callable[[], Any]] = [lambda: lease.array(0), lambda: slots.array(0), slots.seal]
    for dead in deads:
        with pytest.raises(ExpiredError):
            dead()
    assert (lease.valid, slots.valid) == (False, False)
    lease.release()
    slots.abort()


def test_views_outlive_their_handle(kv: KV) -> None:
    keys = chain_of(kv, 1)
    store(kv, keys)
    lease = kv.acquire(keys)
    array, tensor = lease.array(0), lease.view(0)
    kv.close()
    check_content(keys, array[None])
    check_content(keys, tensor.numpy()[None])


def test_closing_gives_everything_back(backend: Backend, space: Namespace) -> None:
    gone, kept = backend.connect(space), backend.connect(space)
    keys = chain_of(gone, 2)
    gone.reserve(keys)
    gone.close()
    store(kept, keys)
    assert kept.lookup(keys).prefix == 2


def test_nobody_there_is_unavailable_within_the_deadline(space: Namespace) -> None:
    with pytest.raises(UnavailableError, match="attach"):
        connect("unix:///nonexistent/kv.sock", space, timeout_s=0.1)


def test_wrong_arguments_of_connect(space: Namespace) -> None:
    for address, timeout_s, field in (("", 1.0, "address"), ("unix:///x", 0.0, "timeout_s")):
        with pytest.raises(InvalidArgumentError) as caught:
            connect(address, space, timeout_s=timeout_s)
        assert caught.value.field == field
