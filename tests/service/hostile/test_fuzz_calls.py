"""Every call of every service, with anything: a proper status, a daemon that stays up, a neighbour who notices nothing.

`make fuzz minutes=N` (FUZZ_MINUTES) goes on with new seeds, several attackers at a time; a failure names its seed.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from hybridkv.service.in_thread import DaemonThread
from tests.service.hostile.world import METHODS, hostile_config, resident_bytes, under_fire

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
CALLS = 250
GROWTH_BYTES = 128 << 20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    with DaemonThread(hostile_config(tmp_path_factory.mktemp("hostile"))) as running:
        yield running
        assert running.host.check() == []


def attack(
    daemon: DaemonThread, seed: int, calls: int, *, disturbing: bool, salt: str = ""
) -> Counter[tuple[str, str]]:
    with under_fire(daemon, Random(seed), disturbing=disturbing, salt=salt) as (attacker, neighbour):
        for number in range(calls):
            attacker.call()
            if number % 25 == 0:
                neighbour.round()
        return attacker.codes


def test_calls_that_disturb_nobody(daemon: DaemonThread) -> None:
    before = resident_bytes()
    codes = attack(daemon, 1, CALLS, disturbing=False)
    assert resident_bytes() - before < GROWTH_BYTES
    reached = {name for name, code in codes if code == "OK"}
    assert len(reached) > len(METHODS) / 3, f"the fuzzer gets no further than the door: {reached}"


def test_calls_that_disturb_everybody(daemon: DaemonThread) -> None:
    attack(daemon, 2, CALLS // 2, disturbing=True)


@pytest.mark.skipif(not MINUTES, reason="FUZZ_MINUTES is not set")
@pytest.mark.timeout(60 * MINUTES + 120)
def test_for_a_while(daemon: DaemonThread) -> None:
    deadline, failures, codes = time.monotonic() + 60 * MINUTES, list[str](), Counter[tuple[str, str]]()
    seeds = Random().randrange(1 << 30)

    def run(lane: int) -> None:
        round_ = 0
        while time.monotonic() < deadline and not failures:
            seed = seeds + 1000 * lane + round_
            round_ += 1
            try:
                codes.update(attack(daemon, seed, 2000, disturbing=False, salt=str(lane)))
            except BaseException as error:
                failures.append(f"seed {seed}, lane {lane}: {error!r}")

    threads = [threading.Thread(target=run, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(f"{count:8} {name} {code}" for (name, code), count in sorted(codes.items())))
    assert failures == []
