"""Options that several commands share, and how they become a config."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridkv.service.cli.failures import fail

if TYPE_CHECKING:
    from hybridkv.service.config import LoadedConfig

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Config file; by default the one that HYBRIDKV_CONFIG names, if any.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a config key; may be given several times.")
]
SocketOption = Annotated[
    str | None, typer.Option("--socket", help="The daemon's socket: a path, or unix:///path. Sets daemon.socket.")
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file", help="File (0600) with the caller's token, for a daemon with tenants; also HYBRIDKV_TOKEN_FILE."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def loaded(config: Path | None, assignments: list[str] | None, socket: str | None) -> "LoadedConfig":
    """File < environment < `--set` < `--socket`. Raises InvalidArgumentError naming the key."""
    from hybridkv.service.config import load_config_with_sources

    overrides: dict[str, object] = dict(split(assignment) for assignment in assignments or ())
    if socket is not None:
        overrides["daemon.socket"] = socket_address(socket)
    return load_config_with_sources(config, overrides)


def address_of(config: Path | None, socket: str | None) -> str:
    """The address of the daemon to talk to."""
    return loaded(config, None, socket).config.daemon.socket


def socket_address(text: str) -> str:
    """A path as it is typed becomes the address it stands for."""
    return text if text.startswith("unix:") else f"unix://{Path(text).absolute()}"


def split(assignment: str, where: str = "--set") -> tuple[str, str]:
    """Key and value of "KEY=VALUE"; ends the command, naming `where`, for anything else."""
    key, equals, value = assignment.partition("=")
    if not equals:
        fail(f"{where}: {assignment!r} is not KEY=VALUE")
    return key.strip(), value.strip()
