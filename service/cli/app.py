"""The commands. Each imports what it needs when it runs, so that `--help` and `stats` answer at once."""

import importlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridkv.service.cli.bench import bench
from hybridkv.service.cli.doctoring import doctor
from hybridkv.service.cli.failures import EXIT_FOUND, fail, failing_plainly, talking_to
from hybridkv.service.cli.options import (
    ConfigOption,
    JsonOption,
    SetOption,
    SocketOption,
    TokenFileOption,
    address_of,
    loaded,
    split,
)
from hybridkv.service.cli.replay import replay
from hybridkv.version import __version__

if TYPE_CHECKING:
    from hybridkv.service.admin_client import AdminClient

DEMO_MODULE = "hybridkv.benchmarks.demo"
MIN_WATCH_S = 0.2

app = typer.Typer(
    name="hybridkv",
    help="The memory manager for LLM KV caches.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
config_app = typer.Typer(name="config", help="Show, check and change the config.", no_args_is_help=True)
app.add_typer(config_app)


def _version(asked: bool) -> None:
    if asked:
        print(f"hybridkv {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The memory manager for LLM KV caches."""


@app.command()
def serve(
    config: ConfigOption = None,
    assignments: SetOption = None,
    socket: SocketOption = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Discard what a daemon before this one left in host memory.")
    ] = False,
) -> None:
    """Run the daemon until SIGTERM or Ctrl-C; a second signal skips the drain. SIGHUP reloads the config."""
    with failing_plainly():
        found = loaded(config, assignments, socket)
        from hybridkv.service.serving import run

        run(found.config, found.sources, lambda: loaded(config, assignments, socket), cold=cold)


@app.command()
def discard(config: ConfigOption = None, assignments: SetOption = None, socket: SocketOption = None) -> None:
    """Free the host memory that a stopped daemon left for the next one. Refused while a daemon runs."""
    with failing_plainly():
        found = loaded(config, assignments, socket)
        from hybridkv.service.host_base import discard_left

        freed = discard_left(found.config)
    print(f"freed {freed} bytes")


@app.command()
def stats(
    socket: SocketOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    watch_s: Annotated[
        float | None, typer.Option("--watch", metavar="SECONDS", help="Print again each so many seconds.")
    ] = None,
) -> None:
    """Figures of a running daemon: use and hits per tier, moves, lanes, holds."""
    if watch_s is not None and not watch_s >= MIN_WATCH_S:
        fail(f"--watch: {watch_s:g} is below {MIN_WATCH_S:g} seconds")
    with _client(socket, config, token_file) as (client, address):
        _print_stats(client, address, as_json)
        while watch_s is not None:
            time.sleep(watch_s)
            _print_stats(client, address, as_json)


@app.command()
def check(
    socket: SocketOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the laws of a running daemon's accounting; exits 1 when one is broken."""
    from hybridkv.service.cli import tables

    with _client(socket, config, token_file) as (client, address), talking_to(address):
        violations = client.check()
    if as_json:
        tables.print_json({"violations": violations})
    else:
        tables.print_violations(violations)
    if violations:
        raise typer.Exit(EXIT_FOUND)


_HANDED_OVER = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
app.command(context_settings=_HANDED_OVER, add_help_option=False)(bench)
app.command()(replay)
app.command()(doctor)


@app.command(context_settings=_HANDED_OVER, add_help_option=False)
def demo(context: typer.Context) -> None:
    """A daemon, four workers and a real workload on this machine; takes the demo's own options (see demo --help)."""
    try:
        module = importlib.import_module(DEMO_MODULE)
    except ModuleNotFoundError as error:
        if error.name != DEMO_MODULE:
            raise
        fail("the demo is not part of this installation")
    with failing_plainly():
        code = module.main(context.args)
    raise typer.Exit(int(code or 0))


@config_app.command("show")
def config_show(
    config: ConfigOption = None,
    assignments: SetOption = None,
    socket: SocketOption = None,
    running: Annotated[
        bool, typer.Option("--running", help="What the daemon runs with now, with what `config set` has changed.")
    ] = False,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print every key with its value and where the value comes from."""
    from hybridkv.service.cli import tables

    if running and assignments:
        fail("--set: says what a daemon would start with, --running what one runs with")
    values, sources = _running(socket, config, token_file) if running else _given(config, assignments, socket)
    if as_json:
        tables.print_json({key: {"value": value, "source": sources[key]} for key, value in values.items()})
    else:
        tables.print_config(values, sources)


def _given(
    config: Path | None, assignments: list[str] | None, socket: str | None
) -> tuple[dict[str, object], Mapping[str, str]]:
    """Values and sources by file, environment and flags."""
    from hybridkv.service.config import config_values

    with failing_plainly():
        found = loaded(config, assignments, socket)
    return config_values(found.config), found.sources


def _running(
    socket: str | None, config: Path | None, token_file: Path | None
) -> tuple[dict[str, object], Mapping[str, str]]:
    """Values and sources of the daemon."""
    with _client(socket, config, token_file) as (client, address), talking_to(address):
        entries = client.config()
    return {entry.key: entry.value for entry in entries}, {entry.key: entry.source for entry in entries}


@config_app.command("check")
def config_check(
    config: ConfigOption = None, assignments: SetOption = None, socket: SocketOption = None, as_json: JsonOption = False
) -> None:
    """Check the config without starting anything; exits 2 and names the key when it is bad."""
    from hybridkv.service.cli import tables

    with failing_plainly():
        loaded(config, assignments, socket)
    if as_json:
        tables.print_json({"ok": True})
    else:
        print("config is valid")


@config_app.command("set")
def config_set(
    assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Keys and their new values.")],
    config: ConfigOption = None,
    socket: SocketOption = None,
    token_file: TokenFileOption = None,
    expected_version: Annotated[
        int | None, typer.Option("--expected-version", help="Change nothing when another version is in force.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change keys of the running daemon, all or none, until it restarts; the config file stays as it is."""
    from hybridkv.service.cli import tables

    changes = dict(split(assignment, "config set") for assignment in assignments)
    if len(changes) < len(assignments):
        fail("config set: a key is given twice")
    with _client(socket, config, token_file) as (client, address), talking_to(address):
        update = client.update_config(changes, expected_version)
    if as_json:
        tables.print_json(tables.update_tree(update))
    else:
        tables.print_update(update)


@app.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The block's key, in hex.")],
    namespace: Annotated[
        str, typer.Option("--namespace", help="Beginning of the namespace's fingerprint, in hex.")
    ] = "",
    config: ConfigOption = None,
    socket: SocketOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Where a block's copies are, what became of it and why, and what comes next; exits 1 when nothing is known of it."""
    from hybridkv.service.cli import explaining, tables

    wanted, prefix = explaining.from_hex("KEY", key), explaining.from_hex("--namespace", namespace)
    with _client(socket, config, token_file) as (client, address), talking_to(address):
        accounts = client.explain(wanted, prefix)
    if as_json:
        tables.print_json(accounts)
    else:
        explaining.print_accounts(accounts)
    if not accounts:
        raise typer.Exit(EXIT_FOUND)


@app.command()
def top(
    config: ConfigOption = None,
    socket: SocketOption = None,
    token_file: TokenFileOption = None,
    interval_s: Annotated[
        float, typer.Option("--interval-s", metavar="SECONDS", help="Time between two frames.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
) -> None:
    """Live view of a running daemon: tiers, lanes, hits and moves a second, waiting calls, faults."""
    if not interval_s >= MIN_WATCH_S:
        fail(f"--interval-s: {interval_s:g} is below {MIN_WATCH_S:g} seconds")
    from hybridkv.service.cli.live import watch

    with _client(socket, config, token_file) as (client, address), talking_to(address):
        watch(client.stats, address, interval_s, once=once)


@app.command("watch")
def watch_events(
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", metavar="FINGERPRINT", help="Only its blocks; its beginning will do. Repeatable."),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="sealed, moved, evicted, removed or cleared; repeatable."),
    ] = None,
    from_sequence: Annotated[
        int | None, typer.Option("--from", min=0, metavar="SEQUENCE", help="Begin with an event that is remembered.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many lines.")] = None,
    config: ConfigOption = None,
    socket: SocketOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """What becomes of blocks, as it happens: one line an event, until interrupted."""
    from hybridkv.service.cli import explaining, watching

    asked = watching.kinds_named(kinds or [])
    wanted = [explaining.from_hex("--namespace", text) for text in namespaces or []]
    with _client(socket, config, token_file) as (client, address), talking_to(address), suppress(KeyboardInterrupt):
        events = client.watch(fingerprints=watching.whole(wanted), kinds=asked, from_sequence=from_sequence)
        watching.print_events(watching.of_namespaces(events, wanted), count, as_json=as_json)


@contextmanager
def _client(socket: str | None, config: Path | None, token_file: Path | None) -> Iterator[tuple["AdminClient", str]]:
    with failing_plainly():
        address = address_of(config, socket)
        from hybridkv.service.admin_client import AdminClient

        with AdminClient(address, token_file=token_file) as client:
            yield client, address


def _print_stats(client: "AdminClient", address: str, as_json: bool) -> None:
    from hybridkv.service.cli import tables

    with talking_to(address):
        found = client.stats()
    if as_json:
        tables.print_json(found)
    else:
        tables.print_stats(found)


def main() -> None:
    """Entry point of the `hybridkv` script."""
    app()
