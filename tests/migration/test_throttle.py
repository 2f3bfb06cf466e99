import pytest

from hybridkv.migration.throttle import TokenBucket
from hybridkv.tiers.errors import InvalidArgumentError


def test_a_burst_is_free_and_the_rest_waits_its_turn() -> None:
    bucket = TokenBucket(100.0, 50, now=0.0)
    assert bucket.take(50, 0.0) == 0.0
    assert bucket.take(10, 0.0) == pytest.approx(0.1)
    assert bucket.take(10, 0.1) == pytest.approx(0.1)


def test_the_long_run_rate_is_the_rate() -> None:
    bucket, now = TokenBucket(1000.0, 100, now=0.0), 0.0
    for _ in range(200):
        now += bucket.take(37, now)
    assert 200 * 37 / now == pytest.approx(1000.0, rel=0.02)


def test_more_than_a_burst_goes_through_and_is_waited_for() -> None:
    assert TokenBucket(100.0, 50, now=0.0).take(250, 0.0) == pytest.approx(2.0)


def test_idle_time_earns_one_burst_at_most() -> None:
    bucket = TokenBucket(100.0, 50, now=0.0)
    assert bucket.take(60, 1000.0) == pytest.approx(0.1)


def test_a_clock_that_went_back_earns_nothing_and_costs_nothing() -> None:
    bucket = TokenBucket(100.0, 50, now=10.0)
    bucket.take(50, 10.0)
    assert bucket.take(10, 5.0) == pytest.approx(0.1)
    assert bucket.take(0, 10.1) == pytest.approx(0.0, abs=1e-9)


def test_no_rate_is_no_limit_and_the_rate_changes_live() -> None:
    bucket = TokenBucket(None, 50, now=0.0)
    assert bucket.take(10**12, 0.0) == 0.0
    bucket.set_rate(100.0, now=5.0)
    assert bucket.take(150, 5.0) == pytest.approx(1.0)
    bucket.set_rate(1000.0, now=5.0)
    assert bucket.take(0, 5.0) == pytest.approx(0.1)


def test_bytes_given_back_are_not_waited_for() -> None:
    bucket = TokenBucket(100.0, 50, now=0.0)
    bucket.take(150, 0.0)
    bucket.give_back(100)
    assert bucket.take(0, 0.0) == 0.0
    bucket.give_back(10**6)
    assert bucket.take(150, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_that_is_none_at_all_is_refused(rate: float) -> None:
    with pytest.raises(InvalidArgumentError, match="rate_bytes_per_s"):
        TokenBucket(rate, 50, now=0.0)
