"""Copying reads over a scripted session: never torn, whatever happens to a slot meanwhile."""

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.service.client.core import Budget, Wish
from hybridkv.service.client.link import Attachment
from hybridkv.service.client.outputs import rows_of
from hybridkv.service.client.reading import read_asked
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import ExpiredError, NotFoundError
from hybridkv.tiers.states import Outcome
from tests.service.client.scripted import BLOCK_BYTES, Scripted, numbered

Bytes = npt.NDArray[np.uint8]
HIT, MISS = Outcome.HIT, Outcome.MISS


def read(transport: Scripted, out: Bytes, *numbers: int) -> list[int]:
    wish = Wish(numbered(*numbers), views=False, independent=True)
    target = rows_of(out, len(numbers), BLOCK_BYTES)
    states: list[int] = read_asked(
        Attachment(transport), wish, Budget(0.0, 5.0), target, np.arange(len(numbers))
    ).tolist()
    return states


def blank(rows: int) -> Bytes:
    return np.full((rows, BLOCK_BYTES), 99, np.uint8)


def test_reads_without_views_and_releases() -> None:
    transport, out = Scripted(), blank(3)
    assert read(transport, out, 4, 2, 0) == [HIT] * 3
    assert out[:, 0].tolist() == [4, 2, 0]
    assert out[:, -1].tolist() == [4, 2, 0]
    asked = transport.asked("acquire")
    assert [(a["views"], a["independent"]) for a in asked] == [(False, True)]
    assert transport.asked("release") == [11]


def test_rows_that_are_no_hit_stay_untouched() -> None:
    transport, out = Scripted(), blank(3)
    transport.states = [[MISS, HIT, MISS]]
    assert read(transport, out, 1, 2, 3) == [MISS, HIT, MISS]
    assert out[:, 0].tolist() == [99, 2, 99]


def test_a_block_revoked_in_its_copy_is_read_again_under_views() -> None:
    transport, out = Scripted(), blank(2)
    headers = transport.mapped.header

    def move_once() -> None:
        headers.generations[5] = 3 if headers.checks == 1 else 2

    headers.before_check = move_once
    assert read(transport, out, 4, 5) == [HIT, HIT]
    first, second = transport.asked("acquire")
    assert (first["views"], second["views"]) == (False, True)
    assert transport.asked("release") == [11, 12]
    assert out[:, 0].tolist() == [4, 5]


def test_a_block_that_is_gone_after_its_copy_is_a_miss() -> None:
    transport, out = Scripted(), blank(2)
    transport.states = [[HIT, HIT], [MISS]]
    transport.mapped.header.generations[5] = 3
    assert read(transport, out, 4, 5) == [HIT, MISS]
    assert out[0, 0] == 4


def test_a_block_that_never_holds_still_is_a_miss() -> None:
    transport, out = Scripted(), blank(1)
    transport.mapped.header.generations[5] = 3
    assert read(transport, out, 5) == [MISS]
    assert len(transport.asked("acquire")) == 2


def test_a_session_that_ends_in_the_middle_of_a_copy_is_lost_and_not_an_error_of_the_read() -> None:
    """Another thread of the process found it lost, attached anew and let the old mappings go."""
    transport, out = Scripted(), blank(1)

    def lost() -> None:
        raise ExpiredError("regions: they were let go with their session")

    transport.mapped.header.before_check = lost
    with pytest.raises(LostError):
        read(transport, out, 4)
    assert transport.asked("release") == [11]


@pytest.mark.parametrize("error", [NotFoundError("lease"), ExpiredError("lease")])
def test_a_lease_gone_after_the_copy_costs_nothing(error: Exception) -> None:
    transport, out = Scripted(), blank(1)
    headers = transport.mapped.header
    headers.before_check = lambda: setattr(transport, "failure", error)
    assert read(transport, out, 5) == [HIT]
    assert out[0, 0] == 5
