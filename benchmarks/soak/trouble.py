"""What is done to the processes of a soak, and when: made from the seed alone."""

import random
from dataclasses import dataclass
from enum import StrEnum

GAP_S = 3.0
"""Between two troubles, on average; a sixteenth of the whole where that is less."""
LAST_DAEMON_SHARE = 0.4
"""Of the time: the daemon that runs then lives to the end."""
STOP_S = (0.3, 5.0)
"""How long a worker is stopped: some less than a lease lives, some longer, with the grace after it."""


class Kind(StrEnum):
    """KILL: SIGKILL. STOP: SIGSTOP, and SIGCONT later. RESTART: SIGTERM, and a new start."""

    KILL_WORKER = "kill worker"
    STOP_WORKER = "stop worker"
    KILL_DAEMON = "kill daemon"
    RESTART_DAEMON = "restart daemon"
    CONFIG = "config change"
    CLEAR = "clear"


_WEIGHTS = {
    Kind.KILL_WORKER: 30,
    Kind.STOP_WORKER: 20,
    Kind.KILL_DAEMON: 12,
    Kind.RESTART_DAEMON: 6,
    Kind.CONFIG: 28,
    Kind.CLEAR: 2,
}
_ENDS_THE_DAEMON = (Kind.KILL_DAEMON, Kind.RESTART_DAEMON)


@dataclass(frozen=True, slots=True)
class Trouble:
    """`at_s` after the start; `draw` chooses which worker, which change, how long: in [0, 1)."""

    at_s: float
    kind: Kind
    draw: float


def troubles(seed: int, total_s: float) -> list[Trouble]:
    """Troubles of a soak of `total_s`, in order. Every kind comes early; then the daemon lives on, so that in the second
    half it has warmed up, and its memory can be compared with itself."""
    rng = random.Random(seed)
    gap_s = min(GAP_S, total_s / 16)
    first = rng.sample(list(Kind), len(Kind))
    found, at_s = [], 0.0
    while (at_s := at_s + rng.expovariate(1 / gap_s) if not first else at_s + gap_s) < total_s - gap_s:
        late = at_s >= total_s * LAST_DAEMON_SHARE
        kinds = {kind: weight for kind, weight in _WEIGHTS.items() if not (late and kind in _ENDS_THE_DAEMON)}
        kind = first.pop() if first else rng.choices(list(kinds), list(kinds.values()))[0]
        found.append(Trouble(at_s, kind, rng.random()))
    return found
