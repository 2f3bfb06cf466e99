"""`hybridkv replay`: what a config, a policy or a model of three tiers would have served of a recorded workload."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hybridkv.service.cli.failures import failing_plainly
from hybridkv.service.cli.options import JsonOption, loaded
from hybridkv.tiers.errors import InvalidArgumentError

if TYPE_CHECKING:
    from hybridkv.migration.simulate_tiers import Model
    from hybridkv.service.config import Config
    from hybridkv.service.replay.runs import Replay

DEFAULT_BLOCK_BYTES = 64 * 1024

Served = Callable[[], None]
Run = Callable[["Replay", Served], None]


class Switch(StrEnum):
    """A word for yes and one for no."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that say what is to be run."""

    configs: Sequence[Path]
    policies: Sequence[str]
    capacities: str | None
    model: str | None
    chain_order: Switch | None
    block_bytes: int | None


def replay(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="JSON lines with hash_ids or hash_runs; gzip or plain.")
    ],
    config: Annotated[
        list[Path] | None, typer.Option("--config", metavar="FILE", help="A config to try; several are compared.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="One tier without a config; with --model NAME or GPU,CPU,DISK."),
    ] = None,
    capacity_blocks: Annotated[
        str | None, typer.Option("--capacity-blocks", metavar="N", help="Blocks it holds; with --model GPU,CPU,DISK.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Three plain tiers instead: exclusive or inclusive.")
    ] = None,
    chain_order: Annotated[
        Switch | None,
        typer.Option("--chain-order", help="off: with --policy, blocks are independent, as in textbooks."),
    ] = None,
    block_bytes: Annotated[
        int | None,
        typer.Option("--block-bytes", metavar="N", help=f"A block's bytes, with --config ({DEFAULT_BLOCK_BYTES})."),
    ] = None,
    block_tokens: Annotated[
        int | None, typer.Option("--block-tokens", metavar="N", help="Tokens of a block; by default the trace tells.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Only the first N requests.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw a comparison, as PNG.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a recorded workload against configs: the daemon's own decisions on a simulated clock, no bytes moved."""
    with failing_plainly():
        runs = _planned(_Asked(config or (), policy or (), capacity_blocks, model, chain_order, block_bytes))
        if block_tokens is not None and block_tokens < 1:
            raise InvalidArgumentError("--block-tokens", f"{block_tokens}: at least 1")
        from hybridkv.migration.trace import read_trace
        from hybridkv.service.replay.plot import check_plot, draw
        from hybridkv.service.replay.runs import Replay

        if plot is not None:
            check_plot(plot)
        replaying = Replay.of(read_trace(trace, limit), block_tokens)
        with _progress(len(runs), len(replaying.trace.requests)) as begin:
            for name, run in runs:
                run(replaying, begin(name))
            begin("optimum")
            figures = replaying.figures()
        if plot is not None:
            draw(replaying, plot)
    _print({"trace": str(trace), **figures}, as_json)


# ---------------------------------------------------------------------------------------------------- what to run


def _planned(asked: _Asked) -> list[tuple[str, Run]]:
    """The runs, by name. Refuses what does not fit together before anything is read."""
    if asked.configs and (asked.policies or asked.capacities):
        raise InvalidArgumentError("--config", "a config has policies and capacities of its own: no --policy with it")
    if not asked.configs and asked.block_bytes is not None:
        raise InvalidArgumentError("--block-bytes", "only with --config: elsewhere capacities are in blocks")
    if asked.chain_order is not None and (asked.configs or asked.model is not None):
        raise InvalidArgumentError(
            "--chain-order", "only with --policy for one tier: a directory keeps chains in order"
        )
    if asked.model is not None:
        return _models(asked, _checked_model(asked.model))
    if asked.configs:
        return [(str(path), _config_run(path, asked.block_bytes)) for path in asked.configs]
    if not asked.policies:
        raise InvalidArgumentError("--config", "give at least one, or --policy NAME with --capacity-blocks N")
    (capacity,) = _capacities(asked.capacities, 1)
    in_order = asked.chain_order is not Switch.OFF
    return [(name, _policy_run(_checked_policy(name), capacity, in_order)) for name in asked.policies]


def _models(asked: _Asked, model: "Model") -> list[tuple[str, Run]]:
    if asked.configs:
        return [(str(path), _config_model_run(path, model, asked.block_bytes)) for path in asked.configs]
    capacities = _capacities(asked.capacities, 3)
    runs: list[tuple[str, Run]] = []
    for given in asked.policies or ["lru"]:
        names = [_checked_policy(name) for name in given.split(",")]
        if len(names) not in (1, 3):
            raise InvalidArgumentError("--policy", f"{given}: with --model one name, or three: GPU,CPU,DISK")
        runs.append((given, _model_run(model, names * (3 // len(names)), capacities)))
    return runs


def _config_run(path: Path, block_bytes: int | None) -> Run:
    config = _config(path)

    def run(replaying: "Replay", served: Served) -> None:
        with _about(path):
            replaying.run_config(config, str(path), _checked_bytes(block_bytes), served)

    return run


def _config_model_run(path: Path, model: "Model", block_bytes: int | None) -> Run:
    config = _config(path)

    def run(replaying: "Replay", served: Served) -> None:
        with _about(path):
            capacities = replaying.capacities_of(config, _checked_bytes(block_bytes))
        policies = [config.gpu.policy, config.cpu.policy, config.disk.policy]
        replaying.run_model(model, policies, capacities, served, str(path))

    return run


def _policy_run(name: str, capacity: int, in_order: bool) -> Run:
    return lambda replaying, served: replaying.run_policy(name, capacity, served, chain_order=in_order)


def _model_run(model: "Model", names: Sequence[str], capacities: Sequence[int]) -> Run:
    return lambda replaying, served: replaying.run_model(model, names, capacities, served)


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Errors are about this config."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(path), str(error)) from error


def _config(path: Path) -> "Config":
    return loaded(path, None, None).config


def _checked_bytes(block_bytes: int | None) -> int:
    return DEFAULT_BLOCK_BYTES if block_bytes is None else block_bytes


def _checked_model(name: str) -> "Model":
    from hybridkv.migration.simulate_tiers import Model

    for known in get_args(Model):
        if known == name:
            return known  # type: ignore[no-any-return]
    raise InvalidArgumentError("--model", f"{name!r}: must be one of {', '.join(get_args(Model))}")


def _checked_policy(name: str) -> str:
    from hybridkv.migration.policies import POLICY_NAMES

    if name not in POLICY_NAMES:
        raise InvalidArgumentError("--policy", f"{name!r}: must be one of {', '.join(POLICY_NAMES)}")
    return name


def _capacities(text: str | None, count: int) -> list[int]:
    shape = "N" if count == 1 else "GPU,CPU,DISK"
    if text is None:
        raise InvalidArgumentError("--capacity-blocks", f"is needed: {shape}, in blocks")
    parts = text.split(",")
    if len(parts) != count or not all(part.strip().isdecimal() for part in parts):
        raise InvalidArgumentError("--capacity-blocks", f"{text!r}: must be {shape}, in whole blocks")
    if not all(int(part) for part in parts):
        raise InvalidArgumentError("--capacity-blocks", f"{text}: a tier holds at least 1 block")
    return [int(part) for part in parts]


# ---------------------------------------------------------------------------------------------------- what is shown


@contextmanager
def _progress(runs: int, requests: int) -> Iterator[Callable[[str], Served]]:
    """A bar on stderr, where that is a terminal: begin a run by its name, then call what is returned for each request."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=runs * requests)

        def begin(name: str) -> Served:
            progress.update(task, description=name)
            return lambda: progress.advance(task)

        yield begin


def _print(figures: Mapping[str, Any], as_json: bool) -> None:
    from hybridkv.service.cli import tables

    if as_json:
        tables.print_json(figures)
    else:
        tables.print_replay(figures)
