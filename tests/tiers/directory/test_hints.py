"""Hints: who goes first and who goes last, for how long, and what is everybody's stays where it was."""

import numpy as np
import pytest

from hybridkv.tiers.directory.hinting import DEFAULT_FAR_S
from hybridkv.tiers.directory.standings import Standing
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.hints import NO_HINTS, Hints, Importance
from tests.tiers.directory.conftest import CPU, GPU, Kit, key

ENDED = Hints(end_of_session=True)
LOW, HIGH = Hints(priority=Importance.LOW), Hints(priority=Importance.HIGH)


def use(kit: Kit, *numbers: int, hints: Hints = NO_HINTS, request: int = 7) -> None:
    """One request on blocks that are here, a second after what came before."""
    kit.clock.advance(1)
    kit.directory.accesses.join(kit.session, request, np.array(kit.rows(*numbers)), 30.0)
    kit.directory.accesses.end(kit.session, request, hints)


def test_what_an_ended_session_had_alone_goes_first_tail_first(kit: Kit) -> None:
    kit.seal(9)
    kit.seal(1, 2, 3)
    use(kit, 9)
    use(kit, 1, 2, 3, hints=ENDED)
    assert kit.victims(GPU) == [key(3), key(2), key(1), key(9)]
    assert kit.directory.state.counters["blocks_cooled"] == 3
    assert kit.directory.check() == []


def test_what_another_chain_builds_on_stays(kit: Kit) -> None:
    kit.seal(9)
    kit.seal(1, 2, 3)
    kit.seal(4, parent=key(1))
    use(kit, 4)
    use(kit, 1, 2, 3, hints=ENDED)
    assert kit.victims(GPU) == [key(3), key(2), key(9), key(4), key(1)]


def test_what_another_request_uses_stays(kit: Kit) -> None:
    kit.seal(9)
    kit.seal(1, 2)
    kit.directory.accesses.join(kit.session, 8, np.array(kit.rows(1, 2)), 30.0)
    use(kit, 1, 2, hints=ENDED)
    kit.directory.accesses.end(kit.session, 8)
    assert kit.victims(GPU) == [key(9), key(2), key(1)]


def test_sessions_that_ended_earlier_go_earlier(kit: Kit) -> None:
    for number in (1, 2, 3):
        kit.seal(number)
    for number in (2, 3, 1):
        use(kit, number, hints=ENDED)
    assert kit.victims(GPU) == [key(2), key(3), key(1)]


def test_an_access_takes_the_block_back(kit: Kit) -> None:
    kit.seal(9)
    kit.seal(1)
    use(kit, 1, hints=ENDED)
    use(kit, 1)
    assert kit.victims(GPU) == [key(9), key(1)]
    assert kit.directory.state.standings.count(GPU, Standing.COLD) == 0


def test_the_standing_goes_down_with_the_block(kit: Kit) -> None:
    kit.seal(9, pool=CPU)
    kit.seal(1)
    use(kit, 1, hints=ENDED)
    kit.move([1], GPU, CPU)
    assert kit.victims(CPU) == [key(1), key(9)]
    assert kit.directory.state.standings.count(GPU, Standing.COLD) == 0
    kit.directory.copies.drop(np.array(kit.rows(1)), CPU)
    assert kit.directory.state.standings.count(CPU, Standing.COLD) == 0
    assert kit.directory.check() == []


def test_low_priority_goes_first_and_high_goes_last(kit: Kit) -> None:
    for number in (1, 2, 3):
        kit.seal(number)
    use(kit, 1, hints=HIGH)
    use(kit, 2)
    use(kit, 3, hints=LOW)
    assert kit.victims(GPU) == [key(3), key(2), key(1)]
    kit.clock.advance(DEFAULT_FAR_S)
    assert kit.victims(GPU) == [key(3), key(1), key(2)], "kept as long as an idle block stays, no longer"


def test_high_priority_is_never_among_the_first(kit: Kit) -> None:
    kit.seal(9)
    for number, hints in ((1, ENDED), (2, Hints(expected_next_use_s=1e6))):
        kit.seal(number)
        use(kit, number, hints=hints.over(HIGH))
    assert kit.victims(GPU)[0] == key(9)
    assert kit.directory.state.counters["blocks_cooled"] == 0


def test_a_use_expected_far_away_is_cold_until_then(kit: Kit) -> None:
    kit.seal(9)
    kit.seal(1)
    use(kit, 9)
    use(kit, 1, hints=Hints(expected_next_use_s=DEFAULT_FAR_S + 1))
    assert kit.victims(GPU) == [key(1), key(9)]
    kit.clock.advance(DEFAULT_FAR_S + 1)
    assert kit.victims(GPU) == [key(9), key(1)]


def test_a_use_expected_soon_is_kept_for_twice_that_time(kit: Kit) -> None:
    kit.seal(1)
    kit.seal(9)
    use(kit, 1, hints=Hints(expected_next_use_s=20))
    use(kit, 9)
    assert kit.victims(GPU) == [key(9), key(1)]
    kit.clock.advance(39)
    assert kit.victims(GPU) == [key(1), key(9)]


def test_a_next_use_is_far_beyond_the_idle_timeout_in_force(kit: Kit) -> None:
    kit.directory.accesses.hinting.far_s = lambda: 10.0
    kit.seal(1)
    kit.seal(9)
    use(kit, 9)
    use(kit, 1, hints=Hints(expected_next_use_s=11))
    assert kit.victims(GPU) == [key(1), key(9)]


def test_hints_given_with_a_call_are_followed_at_the_requests_end(kit: Kit) -> None:
    kit.seal(9)
    held = kit.reserve(1, request=5)
    kit.directory.accesses.hinted(kit.session, held, LOW)
    kit.directory.writes.seal(held, np.arange(1), None)
    use(kit, 9)
    assert kit.victims(GPU) == [key(9)]
    kit.directory.accesses.end(kit.session, 5)
    assert kit.victims(GPU) == [key(1), key(9)]


def test_a_call_of_its_own_is_its_own_request(kit: Kit) -> None:
    kit.seal(9)
    lease = kit.directory.leases.open(kit.session, np.array(kit.rows(9)), views=True, request=None, life_s=30.0)
    kit.directory.accesses.hinted(kit.session, lease, HIGH)
    kit.directory.leases.hold(lease, np.arange(1), GPU)
    kit.directory.leases.release(lease)
    held = kit.reserve(1)
    kit.directory.accesses.hinted(kit.session, held, LOW)
    kit.directory.writes.seal(held, np.arange(1), None)
    kit.seal(2)
    assert kit.victims(GPU) == [key(1), key(2), key(9)]


def test_first_victims_of_the_directory_stay_first(kit: Kit) -> None:
    kit.seal(9, pool=CPU)
    kit.seal(1, pool=CPU)
    use(kit, 1, hints=ENDED)
    kit.clock.advance(1)
    kit.seal(3)
    kit.move([3], GPU, CPU, keep_source=True)
    assert kit.victims(CPU) == [key(3), key(1), key(9)]


def test_every_row_is_scanned_once(kit: Kit) -> None:
    for number in range(1, 8):
        kit.seal(number)
    use(kit, 1, 2, hints=HIGH)
    use(kit, 3, 4, hints=ENDED)
    use(kit, 5, hints=Hints(expected_next_use_s=1e6))
    scanned = np.concatenate(list(kit.directory.choice.scan(GPU))).tolist()
    assert sorted(scanned) == sorted(kit.rows(*range(1, 8)))


def test_classes_are_counted(kit: Kit) -> None:
    kit.seal(1)
    kit.directory.accesses.hinting.asked(Hints(request_class=3), asked=4, found=1)
    use(kit, 1, hints=Hints(request_class=3))
    counts = kit.directory.accesses.hinting.classes[3]
    assert (counts.requests, counts.asked, counts.found) == (1, 4, 1)


def test_later_hints_win_over_earlier_ones_field_by_field() -> None:
    earlier = Hints(priority=Importance.LOW, expected_next_use_s=5.0, end_of_session=True)
    later = Hints(priority=Importance.HIGH, request_class=2)
    assert later.over(earlier) == Hints(Importance.HIGH, 5.0, 2, end_of_session=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 3),
        ("priority", -1),
        ("priority", True),
        ("request_class", 256),
        ("request_class", 1.5),
        ("expected_next_use_s", -0.1),
        ("expected_next_use_s", float("nan")),
        ("expected_next_use_s", "soon"),
    ],
)
def test_a_hint_that_makes_no_sense_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        Hints(**{field: value})  # type: ignore[arg-type]
