"""`hybridkv bench serving`: time to the first token in vLLM, by where the prefix comes from. See docs/performance.md."""

from hybridkv.benchmarks.bench import Bench, Setting, Step
from hybridkv.benchmarks.harness import Laps, interleaved
from hybridkv.benchmarks.panels import Panel
from hybridkv.benchmarks.report import Better, Row, skipped
from hybridkv.benchmarks.serving_rig import PREFIX_TOKENS, TOKEN_BYTES, Rig, dtype, rig
from hybridkv.tiers.errors import UnavailableError

UNIT = "ms"
FIGURES = {
    "recompute": ("recompute", None, None),
    "own_hit": ("vLLM's own prefix hit", None, None),
    "cpu_hit": ("hit in the CPU tier", "own_hit", 1.25),
    "disk_hit": ("hit on disk, page cache", "own_hit", 1.6),
    "restarted": ("first hit after a daemon restart", "own_hit", None),
    "miss": ("miss, nothing stored", "recompute", 1.02),
    "storing": ("miss, stored", "miss", 1.03),
    "lmcache_hit": ("LMCache's hit, gRPC and shared memory", "own_hit", None),
}
"""Of each of the rig's subjects: its row's name, the subject that is its floor, and the bound of the ratio."""

BESIDE_LMCACHE = ("hit in the CPU tier beside LMCache's", 0.75)


def first_tokens(setting: Setting) -> list[Row]:
    """All figures, from one run in which the subjects take turns."""
    try:
        with rig(setting.folder) as started:
            return [_prefix(), *rows(_measured(started, setting.pairs), started.without_lmcache)]
    except UnavailableError as error:
        return [skipped(name, UNIT, str(error), target) for name, _, target in FIGURES.values()] + [
            skipped(BESIDE_LMCACHE[0], UNIT, str(error), BESIDE_LMCACHE[1])
        ]


def _prefix() -> Row:
    """How much a hit has to bring."""
    return Row(f"KV of the cached prefix, {dtype()}", PREFIX_TOKENS * TOKEN_BYTES[dtype()] / 1e6, "MB")


def rows(laps: dict[str, Laps], without_lmcache: str) -> list[Row]:
    """Medians beside their floors; without LMCache its rows are skipped."""
    found = []
    for subject, (name, floor, target) in FIGURES.items():
        if subject not in laps:
            found.append(skipped(name, UNIT, without_lmcache))
            continue
        beside = None if floor is None else _ms(laps[floor])
        found.append(Row(name, _ms(laps[subject]), UNIT, beside, target, Better.LOWER))
    name, target = BESIDE_LMCACHE
    if "lmcache_hit" in laps:
        return [*found, Row(name, _ms(laps["cpu_hit"]), UNIT, _ms(laps["lmcache_hit"]), target, Better.LOWER)]
    return [*found, skipped(name, UNIT, without_lmcache, target)]


def _measured(started: Rig, pairs: int) -> dict[str, Laps]:
    subjects = [name for name in FIGURES if name != "lmcache_hit" or started.lmcache is not None]
    return interleaved({name: getattr(started, name) for name in subjects}, pairs)


def _ms(laps: Laps) -> float:
    return laps.wall_s * 1e3


_HITS = ("own_hit", "cpu_hit", "disk_hit", "restarted", "lmcache_hit")
_COSTS = ("recompute", "miss", "storing")

BENCH = Bench(
    "serving",
    "hybridkv bench serving",
    (Step("first tokens", first_tokens),),
    (
        Panel("First token on a hit of 2,048 tokens", UNIT, list(_HITS), {"median": [FIGURES[s][0] for s in _HITS]}),
        Panel("First token without a hit", UNIT, list(_COSTS), {"median": [FIGURES[s][0] for s in _COSTS]}),
    ),
)
