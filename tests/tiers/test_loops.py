"""Loops go on after any error, and tell what they do to whoever asks."""

import threading

from hybridkv.tiers.loops import LAST_PAUSE_S, Loop, Pulse

PATIENCE_S = 10.0


def test_no_error_ends_a_loop() -> None:
    errors: list[BaseException] = [RuntimeError("one"), SystemExit("two"), KeyboardInterrupt(), MemoryError()]
    pulse, done, rested = Pulse("test"), threading.Event(), list[float]()

    def body() -> None:
        if errors:
            raise errors.pop(0)
        pulse.well()
        done.set()

    loop = Loop(pulse, body, rested.append)
    assert pulse.trouble == "", "it was not started, and need not run"
    loop.start()
    assert done.wait(PATIENCE_S)
    loop.thread.join(PATIENCE_S)
    assert not loop.thread.is_alive()  # the body returned: its owner closed
    assert pulse.trouble == "test is dead"
    assert (pulse.errors, pulse.failures_in_a_row, pulse.last_failure) == (4, 0, "MemoryError: ")
    assert rested == sorted(rested)
    assert rested[1] == 2 * rested[0]


def test_rests_have_an_end() -> None:
    pulse = Pulse("test")
    for _ in range(2000):
        pulse.failed(RuntimeError("again"))
    assert pulse.pause_s == LAST_PAUSE_S


def test_a_round_that_takes_too_long_is_told() -> None:
    pulse = Pulse("test")
    pulse.stuck_after_s = 0.0
    assert pulse.trouble == ""  # it waits for work
    pulse.begin()
    assert "in one round" in pulse.trouble
    assert pulse.figures["busy_s"] > 0
    pulse.end()
    assert pulse.trouble == ""
    assert (pulse.rounds, pulse.busy_s) == (1, 0.0)


def test_a_loop_that_should_have_been_heard_of_is_told() -> None:
    pulse = Pulse("test", within_s=0.0)
    pulse.stuck_after_s = 0.0
    assert "last heard of" in pulse.trouble
    pulse.within_s = 60.0
    assert pulse.trouble == ""
