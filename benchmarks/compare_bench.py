"""`hybridkv bench compare`: the same blocks put and got, on hybridkv and on the stores that are installed here.

Each store runs as a server with one client process; rounds of all stores take turns. A row's floor is a copy of the same
blocks within one process. `make peers` installs the others.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from statistics import median

from hybridkv.benchmarks.bench import Bench, Setting, Step
from hybridkv.benchmarks.compare_peers import FLOOR, OTHERS, OURS, Worker, working
from hybridkv.benchmarks.lane_rates import size_text
from hybridkv.benchmarks.lane_rig import KIB, MIB
from hybridkv.benchmarks.panels import Panel
from hybridkv.benchmarks.peers.work import Done, Round
from hybridkv.benchmarks.report import Row, skipped
from hybridkv.tiers.errors import InternalError, UnavailableError

SIZES = (64 * KIB, MIB, 8 * MIB)
BATCHES = (1, 64)
COUNTS = {(64 * KIB, 1): 256, (64 * KIB, 64): 512, (MIB, 1): 64, (MIB, 64): 128, (8 * MIB, 1): 16, (8 * MIB, 64): 64}
"""Blocks of a round, by block size and blocks to a call."""

UNIT = "GB/s"
PUT, GET = "put", "get"


def compared(setting: Setting, block_bytes: int, batch: int) -> list[Row]:
    """Rounds of one size in which every store runs once; the median of each."""
    count = COUNTS[block_bytes, batch]
    absent: dict[str, str] = {}
    rounds = [Round(block_bytes, count, batch, number) for number in range(setting.pairs + 1)]
    with ExitStack() as stack:
        done = _taking_turns(_started(stack, setting, absent), rounds, absent)
    gigabytes = count * block_bytes / 1e9
    rows = []
    for verb, seconds in ((PUT, attrgetter("put_s")), (GET, attrgetter("get_s"))):
        rates = {name: gigabytes / median(map(seconds, found)) for name, found in done.items()}
        rows += _rows(verb, block_bytes, batch, rates, absent)
    return [*rows, *_losses(block_bytes, batch, count, done)]


def _taking_turns(workers: dict[str, Worker], rounds: Sequence[Round], absent: dict[str, str]) -> dict[str, list[Done]]:
    """Every store runs every round, every other round in reverse order; the first is not counted. A peer that fails is
    absent from then on."""
    done: dict[str, list[Done]] = {name: [] for name in workers}
    for number, round_ in enumerate(rounds):
        for name in list(done) if number % 2 == 0 else list(done)[::-1]:
            try:
                found = workers[name].run(round_)
            except UnavailableError as error:
                _must_be_there(name, str(error))
                absent[name] = str(error)
                del done[name]
                continue
            if found.wrong:
                _must_be_there(name, f"{found.wrong} of {round_.count} blocks came back wrong")
            if number:
                done[name].append(found)
    return done


def _started(stack: ExitStack, setting: Setting, absent: dict[str, str]) -> dict[str, Worker]:
    """Those that can run; the others' reasons go to `absent`."""
    workers: dict[str, Worker] = {}
    for peer in (FLOOR, OURS, *OTHERS):
        lacks = peer.missing()
        try:
            if lacks is None:
                workers[peer.name] = stack.enter_context(working(peer, setting.folder / peer.name))
        except UnavailableError as error:
            lacks = str(error)
        if lacks is not None:
            _must_be_there(peer.name, lacks)
            absent[peer.name] = lacks
    return workers


def _must_be_there(name: str, reason: str) -> None:
    if name in (FLOOR.name, OURS.name):
        raise InternalError(f"{name}: {reason}")


def _rows(verb: str, block_bytes: int, batch: int, rates: dict[str, float], absent: dict[str, str]) -> list[Row]:
    """A row for each store beside the copy, and ours beside the best of the others."""
    rows = [Row(_name(peer, verb, block_bytes, batch), rates[peer], UNIT, rates[FLOOR.name]) for peer in _shown(rates)]
    rows += [skipped(_name(peer, verb, block_bytes, batch), UNIT, f"{peer}: {why}") for peer, why in absent.items()]
    best = max((peer for peer in rates if peer not in (FLOOR.name, OURS.name)), key=rates.__getitem__, default=None)
    name = _name(f"{OURS.name} beside the best peer", verb, block_bytes, batch)
    if best is None:
        return [*rows, skipped(name, UNIT, "no peer is installed (make peers)", 1.0)]
    return [*rows, Row(f"{name} ({best})", rates[OURS.name], UNIT, rates[best], 1.0)]


def _shown(rates: dict[str, float]) -> Sequence[str]:
    return [name for name in rates if name != FLOOR.name]


def _losses(block_bytes: int, batch: int, count: int, done: dict[str, list[Done]]) -> list[Row]:
    """Blocks that a peer did not give back as they were put, where there are any: its rate is for what it did give."""
    wrong = {name: max(found.wrong for found in rounds) for name, rounds in done.items()}
    name = "{} blocks lost or wrong of {}, {}".format
    return [Row(name(peer, count, _case(block_bytes, batch)), lost, "blocks") for peer, lost in wrong.items() if lost]


def _name(peer: str, verb: str, block_bytes: int, batch: int) -> str:
    return f"{peer}, {verb} {_case(block_bytes, batch)}"


def _case(block_bytes: int, batch: int) -> str:
    return f"{size_text(block_bytes)}, {'one' if batch == 1 else batch} a call"


def _steps() -> tuple[Step, ...]:
    return tuple(
        Step(f"compare, {_case(size, batch)}", partial(compared, block_bytes=size, batch=batch))
        for size in SIZES
        for batch in BATCHES
    )


def _panels() -> tuple[Panel, ...]:
    peers = [OURS.name, *(peer.name for peer in OTHERS)]
    ticks = [size_text(size) for size in SIZES]
    return tuple(
        Panel(
            f"{verb}, {'one' if batch == 1 else batch} a call (dashed: a copy within one process)",
            UNIT,
            ticks,
            {peer: [_name(peer, verb, size, batch) for size in SIZES] for peer in peers},
            log=True,
        )
        for verb in (PUT, GET)
        for batch in BATCHES
    )


BENCH = Bench("compare", "hybridkv bench compare", _steps(), _panels())
