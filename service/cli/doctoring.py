"""`hybridkv doctor`: asks the daemon and the host, and prints what to change."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridkv.service.cli.failures import EXIT_FOUND, fail, failing_plainly
from hybridkv.service.cli.options import ConfigOption, JsonOption, SocketOption, TokenFileOption, loaded

if TYPE_CHECKING:
    from hybridkv.service.doctor.examination import Examination
    from hybridkv.service.doctor.host import HostFacts


def doctor(
    config: ConfigOption = None,
    socket: SocketOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval-s", metavar="SECONDS", help="Judge what happens in so many seconds, not since the start."
        ),
    ] = 0.0,
) -> None:
    """What to change: faults, evictions, slow moves, and the host's limits; exits 1 when something is bad.

    Without a daemon only the host is looked at, for the config that is given.
    """
    if not 0 <= interval_s <= 3600:
        fail(f"--interval-s: {interval_s:g} is not within 0 and 3600 seconds")
    with failing_plainly():
        found = _examined(config, socket, token_file, interval_s)
    if as_json:
        from hybridkv.service.cli.tables import print_json

        print_json(found.as_dict())
    else:
        _print(found)
    if found.bad:
        raise typer.Exit(EXIT_FOUND)


def _examined(config: Path | None, socket: str | None, token_file: Path | None, interval_s: float) -> "Examination":
    from hybridkv.service.admin_client import AdminClient
    from hybridkv.service.config import config_values
    from hybridkv.service.doctor.examination import examine
    from hybridkv.service.doctor.host import read_host
    from hybridkv.tiers.errors import UnavailableError

    settings = loaded(config, None, socket).config
    address = settings.daemon.socket
    values: dict[str, Any] = config_values(settings)
    now = before = None
    why = ""
    try:
        with AdminClient(address, token_file=token_file) as client:
            now = client.stats()
            values = {entry.key: entry.value for entry in client.config()}
            if interval_s:
                time.sleep(interval_s)
                before, now = now, client.stats()
    except UnavailableError as error:
        now, why = None, str(error)
    return examine(address, values, read_host(values), now=now, before=before, why_no_daemon=why)


def _print(found: "Examination") -> None:
    if found.seconds is None:
        print(f"no daemon answers on {found.address}: only the host was looked at")
    else:
        print(f"daemon at {found.address}, figures of {found.seconds:.0f} s")
    _print_facts(found.facts)
    for finding in found.findings:
        print(f"\n{finding.severity.upper()} {finding.rule}, {finding.where}: {finding.what}")
        print(f"  {finding.advice}")
        if finding.keys:
            print(f"  config: {', '.join(finding.keys)}")
        if finding.figures:
            print(f"  figures: {', '.join(f'{name}={value:,.6g}' for name, value in finding.figures.items())}")
    if not found.findings:
        print("nothing to change")


def _print_facts(facts: "HostFacts") -> None:
    from hybridkv.service.cli.tables import size_text

    for name, place in (("shared memory", facts.shared_memory), ("disk", facts.disk)):
        if place is not None:
            free = "?" if place.free_bytes is None else size_text(place.free_bytes)
            print(f"{name}: {place.path} on {place.file_system or 'an unknown file system'}, {free} free")
    for reading in facts.memory:
        print(f"memory, {reading.source}: {size_text(reading.free_bytes)} of {size_text(reading.limit_bytes)} free")
    locked = "no limit" if facts.locked_bytes is None or facts.may_lock_more else size_text(facts.locked_bytes)
    cpus = "no quota" if facts.cpus is None else f"{facts.cpus:.2g}"
    print(f"locked memory: {locked}; open files: {facts.files}; processors: {cpus}; {facts.machine}")
