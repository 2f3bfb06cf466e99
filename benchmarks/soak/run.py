"""A soak while it runs: starts daemon and crew, makes trouble when it is due, samples, and stops at the first thing wrong."""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from hybridkv.benchmarks.demo_setup import Places
from hybridkv.benchmarks.soak import stage
from hybridkv.benchmarks.soak.crew import Member, Role, SoakError
from hybridkv.benchmarks.soak.trouble import STOP_S, Kind, Trouble, troubles
from hybridkv.benchmarks.soak.universe import space_of
from hybridkv.benchmarks.soak.watch import CHECK_EVERY, SAMPLE_S, Samples, private_bytes
from hybridkv.service.admin_client import AdminClient
from hybridkv.tiers.disk.folder import bytes_on_disk

_TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, from which seed, and with how many workers (of six roles, in turn)."""

    total_s: float
    seed: int
    workers: int = 6


@dataclass(slots=True)
class Course:
    """What happened. `counters` are added up over the daemon's lives, as far as they were asked for before it ended."""

    troubles: Counter[str] = field(default_factory=Counter)
    samples: Samples = field(default_factory=Samples)
    counters: Counter[str] = field(default_factory=Counter)
    moves: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0


class Soak:
    """One soak on `places`. A context manager that leaves no process behind. Not thread-safe."""

    def __init__(self, plan: Plan, places: Places) -> None:
        self.plan, self.places, self.course = plan, places, Course()
        self.daemon = stage.make_daemon(places)
        self.tallies = places.work / "workers"
        self.tallies.mkdir()
        self.crew: list[Member] = []
        self._stack = ExitStack()
        self._starts = 0
        self._figures: dict[str, Any] = {}

    def __enter__(self) -> "Soak":
        self._stack.callback(self.daemon.close)
        self._start_daemon()
        roles = roles_of(self.places)
        for number in range(self.plan.workers):
            member = Member(number, roles[number % len(roles)], self.plan.seed, self.tallies)
            self._stack.callback(member.close)
            self.crew.append(member)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, on_tick: Callable[[float], None] = lambda _: None) -> None:
        """Until the time is over, and no trouble left out; `on_tick` hears the seconds since the start.

        Raises SoakError, and what the daemon raises."""
        began, due = time.monotonic(), troubles(self.plan.seed, self.plan.total_s)
        sample_at, number = 0.0, 0
        while (at_s := time.monotonic() - began) < self.plan.total_s or due:
            for member in self.crew:
                member.look(time.monotonic())
            if self.daemon.has_ended():
                raise SoakError(f"the daemon ended by itself:\n{self.daemon.said()}")
            if due and due[0].at_s <= at_s:
                self._make(due.pop(0))
            if at_s >= sample_at:
                self._sample(at_s, number)
                sample_at, number = time.monotonic() - began + SAMPLE_S, number + 1
                on_tick(at_s)
            time.sleep(_TICK_S)
        self.course.took_s = time.monotonic() - began

    def end_crew(self) -> None:
        """Every worker finishes what it does and detaches."""
        for member in self.crew:
            member.go_on()
        for member in self.crew:
            member.end()

    # ------------------------------------------------------------------------------------------------ troubles

    def _make(self, trouble: Trouble) -> None:
        self.course.troubles[trouble.kind] += 1
        rng = random.Random(trouble.draw)
        member = rng.choice(self.crew)
        match trouble.kind:
            case Kind.KILL_WORKER:
                member.kill()
                member.start()
            case Kind.STOP_WORKER:
                member.stop(time.monotonic() + rng.uniform(*STOP_S))
            case Kind.KILL_DAEMON:
                self._ask_figures()
                self._bank_figures()
                self.daemon.kill()
                self._start_daemon()
            case Kind.RESTART_DAEMON:
                self._ask_figures()
                self._bank_figures()
                if code := self.daemon.stop():
                    raise SoakError(f"the daemon stopped with {code}:\n{self.daemon.said()}")
                self._start_daemon()
            case Kind.CONFIG:
                self.admin.update_config(rng.choice(stage.LIVE_CHANGES))
            case Kind.CLEAR:
                self.admin.clear(space_of(member.role.space).fingerprint)

    def _start_daemon(self) -> None:
        self.daemon.start()
        self._starts += 1
        self.admin = AdminClient(self.places.address)
        self._stack.callback(self.admin.close)

    # ------------------------------------------------------------------------------------------------ samples

    def _sample(self, at_s: float, number: int) -> None:
        samples, pid = self.course.samples, self.daemon.pid
        samples.disk_max_bytes = max(samples.disk_max_bytes, bytes_on_disk(self.places.disk))
        if pid is not None:
            samples.memory.append((at_s, private_bytes(pid), self._starts))
        if samples.disk_max_bytes > stage.DISK_BYTES:
            raise SoakError(f"{samples.disk_max_bytes} bytes on disk; disk.capacity_bytes is {stage.DISK_BYTES}")
        if number % CHECK_EVERY == 0:
            samples.checks += 1
            if broken := self.admin.check():
                raise SoakError("check found: " + "; ".join(broken))
            self._ask_figures()

    def _ask_figures(self) -> None:
        self._figures = self.admin.stats()

    def _bank_figures(self) -> None:
        """Keep what the daemon counted, before it ends or when the soak does."""
        self.course.counters.update(self._figures["counters"])
        for move in self._figures["moves"]:
            self.course.moves[f"{move['from']} → {move['to']}, {move['outcome']}"] += move["count"]
        self._figures = {"counters": {}, "moves": []}

    def bank(self) -> None:
        """At the end: the last daemon's figures, too."""
        self._ask_figures()
        self._bank_figures()


def roles_of(places: Places) -> list[Role]:
    """One that maps, one with asyncio, one that streams; then more that map, beside them in the same namespaces."""
    direct, streams = places.address, stage.streaming_address(places)
    return [
        Role("worker", 0, direct),
        Role("aio_worker", 1, direct),
        Role("worker", 2, streams),
        Role("worker", 2, direct),
        Role("worker", 1, direct),
        Role("worker", 2, direct),
    ]
