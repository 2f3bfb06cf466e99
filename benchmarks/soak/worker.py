"""A worker process of the soak: `python -m hybridkv.benchmarks.soak.worker ADDRESS SPACE SEED TALLY`, until stdin ends."""

import faulthandler
import random
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import hybridkv
from hybridkv.benchmarks.soak.operations import Operations
from hybridkv.benchmarks.soak.sequences import SequenceOperations
from hybridkv.benchmarks.soak.tally import ERROR, OPERATION, Tally
from hybridkv.benchmarks.soak.universe import space_of
from hybridkv.service.client import KV
from hybridkv.tiers.errors import (
    DeadlineExceededError,
    ExpiredError,
    ResourceExhaustedError,
    UnavailableError,
)

CALL_S = 10.0
THINK_S = 0.04
RECONNECT_SHARE = 0.002
EXIT_WRONG = 3
EXPECTED = (UnavailableError, DeadlineExceededError, ExpiredError, ResourceExhaustedError)
"""What a worker must expect of a cache whose daemon is killed and whose tiers are full. Anything else ends the soak."""


def main(arguments: list[str]) -> int:
    """Work until stdin ends; EXIT_WRONG with the reason on stderr when something is not as it must be."""
    address, space, seed, tally_path = arguments
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    tally, rng = Tally(Path(tally_path)), random.Random(int(seed))
    try:
        while _handle(address, int(space), rng, tally):
            pass
    except Exception:
        traceback.print_exc()
        return EXIT_WRONG
    finally:
        tally.tell(now=True)
    return 0


def _handle(address: str, space: int, rng: random.Random, tally: Tally) -> bool:
    """Work over one handle; False when stdin has ended."""
    try:
        kv = hybridkv.connect(address, space_of(space), timeout_s=CALL_S)
    except EXPECTED as error:  # no room: a tier may be full of what others hold, and lanes need a slot of every size
        tally.note(f"{ERROR}connect.{type(error).__name__}")
        tally.tell()
        return not stdin_ended(0.2)
    with kv:
        verbs = _verbs(kv, space, rng, tally)
        while rng.random() >= RECONNECT_SHARE:
            _step(rng.choices(list(verbs), list(verbs.values()))[0], tally)
            if stdin_ended(rng.random() * THINK_S):
                return False
    return True


def _verbs(kv: KV, space: int, rng: random.Random, tally: Tally) -> dict[Callable[[], None], int]:
    verbs = dict(Operations(kv, space, rng, tally).verbs)
    return verbs | SequenceOperations(kv, space, rng, tally).verbs if kv.mapped else verbs


def _step(verb: Callable[[], None], tally: Tally) -> None:
    tally.note(OPERATION + verb.__name__)
    try:
        verb()
    except EXPECTED as error:
        tally.note(f"{ERROR}{verb.__name__}.{type(error).__name__}")
    tally.tell()


def stdin_ended(wait_s: float) -> bool:
    """Wait so long, or until this process is told to end."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and not sys.stdin.read(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
