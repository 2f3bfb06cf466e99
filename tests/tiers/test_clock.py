"""Clocks: a jump of the wall clock moves nothing."""

import time

import pytest

from hybridkv.tiers.clock import ManualClock, SystemClock


def test_the_system_clock_is_wall_time_at_birth() -> None:
    before = time.time()
    now = SystemClock().now()
    assert before - 0.01 <= now <= time.time() + 0.01


def test_a_jump_of_the_wall_clock_does_not_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: before + 3600)
    assert before <= clock.now() < before + 60


def test_a_manual_clock_moves_when_told_and_never_back() -> None:
    clock = ManualClock(100.0)
    clock.advance(2.5)
    assert clock.now() == 102.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
