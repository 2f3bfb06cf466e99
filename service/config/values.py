"""The kinds of value a config key may have, and how text becomes one."""

import re
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)}
_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?(?:e\+?\d{1,2})?)\s*([A-Za-z]*)", re.ASCII)
_SHOWN = [(_UNITS[name], name) for name in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "KB")]
_DEVICE = re.compile(r"(host|cuda):(0|[1-9]\d{0,2})", re.ASCII)
_PORT = re.compile(r"\d{1,5}", re.ASCII)
_MAX_SOCKET_PATH_BYTES = 102  # sun_path holds 107 and a zero; the side socket adds ".side"
_MAX_DEVICES = 16


def parse_bytes(value: object) -> int:
    """A number of bytes: a whole number, or text such as "8GiB" (1024), "64KB" (1000) or "1e9"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a number of bytes or text such as 8GiB, got {type(value).__name__}")
    if isinstance(value, int):
        return value
    found = _SIZE.fullmatch(str(value).strip())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"must be a number of bytes, or one with a unit of {', '.join(filter(None, _UNITS))}")
    size = Decimal(found[1]) * _UNITS[found[2]]
    if size != size.to_integral_value():
        raise ValueError("must be a whole number of bytes")
    return int(size)


def format_bytes(size: int) -> str:
    """`size` in the largest unit that divides it, binary before decimal: text that `parse_bytes` takes back."""
    return next((f"{size // unit}{name}" for unit, name in _SHOWN if size and size % unit == 0), str(size))


def _absolute_or_empty(path: str) -> str:
    if path and not PurePosixPath(path).is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _absolute(path: str) -> str:
    if not path:
        raise ValueError("must be an absolute path")
    return _absolute_or_empty(path)


def _unix_socket(address: str) -> str:
    path = address.removeprefix("unix://")
    if path == address or not path.startswith("/"):
        raise ValueError("must be unix:// followed by an absolute path")
    if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"the path must be at most {_MAX_SOCKET_PATH_BYTES} bytes, not {len(path.encode())}")
    return address


def _host_port_or_empty(address: str) -> str:
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if address and (not host or (":" in host and not bracketed) or not _PORT.fullmatch(port) or int(port) > 65535):
        raise ValueError("must be host:port (an IPv6 host in brackets) with a port within [0, 65535]")
    return address


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _devices(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > _MAX_DEVICES:
        raise ValueError(f"must be at most {_MAX_DEVICES} devices, got {len(names)}")
    if not all(map(_DEVICE.fullmatch, names)):
        raise ValueError("each must be host:N or cuda:N")
    if len(set(names)) < len(names):
        raise ValueError("must not name a device twice")
    return names


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


# A limit given here wins over one given on the field: kinds whose keys have limits of their own carry none.
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=31_536_000)]
PositiveSeconds = Annotated[float, Field(ge=0.001, le=86_400)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Port = Annotated[int, Field(ge=0, le=65535)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
OptionalPath = Annotated[str, AfterValidator(_absolute_or_empty)]
UnixSocket = Annotated[str, AfterValidator(_unix_socket)]
HostPort = Annotated[str, AfterValidator(_host_port_or_empty)]
Devices = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_devices)]
NumaNode = Annotated[Annotated[int, Field(ge=0, le=1023)] | None, BeforeValidator(_none_if_empty)]
Policy = Literal["lru", "lfu", "fifo", "clock", "arc", "s3fifo", "gdsf", "rhq"]
PageLock = Literal["auto", "on", "off"]
SocketMode = Literal["0600", "0660", "0666"]
Isolation = Literal["shared", "strict"]
LogLevel = Literal["debug", "info", "warning", "error"]
