"""How benchmarks measure: rounds in turn, medians, quantiles."""

import pytest

from hybridkv.benchmarks.harness import Lap, Laps, interleaved, lap, quantile


def test_rounds_take_turns_and_the_warm_up_does_not_count() -> None:
    ran: list[str] = []

    def timed(name: str) -> Lap:
        ran.append(name)
        return Lap(float(len(ran)), 0.5)

    found = interleaved({"floor": lambda: timed("f"), "subject": lambda: timed("s")}, pairs=2, warmups=1)
    assert "".join(ran) == "fssffs"
    assert [one.wall_s for one in found["floor"].taken] == [4.0, 5.0]
    assert [one.wall_s for one in found["subject"].taken] == [3.0, 6.0]


def test_laps_are_medians() -> None:
    laps = Laps((Lap(1.0, 3.0), Lap(9.0, 1.0), Lap(2.0, 2.0)))
    assert laps.wall_s == 2.0
    assert laps.gb_per_s(4_000_000_000) == 2.0
    assert laps.cpu_s_per_gb(4_000_000_000) == 0.5


def test_a_lap_is_of_its_block() -> None:
    with lap() as taken:
        sum(range(1000))
    assert 0 < taken.wall_s < 60
    assert 0 <= taken.cpu_s < 60


def test_a_lap_whose_block_failed_is_not_reported() -> None:
    with pytest.raises(ZeroDivisionError), lap() as taken:
        1 / 0  # noqa: B018
    assert taken.wall_s != taken.wall_s


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_quantiles(share: float, expected: int) -> None:
    assert quantile(list(range(100, 0, -1)), share) == expected
