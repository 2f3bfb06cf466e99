"""Reads the config: file < environment < flags, validated together, every bad key named with its limit."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from hybridkv.service.config.model import TENANTS, Config, config_values, default_rows, section_of
from hybridkv.service.config.tenants import TenantConfig
from hybridkv.tiers.errors import InvalidArgumentError

ENV_PREFIX = "HYBRIDKV_"
ENV_NESTING = "__"
ENV_CONFIG_PATH = "HYBRIDKV_CONFIG"

_NOT_KEYS = frozenset({ENV_CONFIG_PATH, "HYBRIDKV_CRASH_AT", "HYBRIDKV_TOKEN_FILE"})
# Kubernetes sets these in every pod beside a Service called "hybridkv"; they are not ours to refuse.
_SERVICE_LINK = re.compile(r"HYBRIDKV_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)")


@dataclass(frozen=True)
class LoadedConfig:
    """A config, and for each key where its value came from ("default", "file …", "environment …", "flag")."""

    config: Config
    sources: Mapping[str, str]


@dataclass(frozen=True)
class _Given:
    value: object
    source: str


def load_config(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
) -> Config:
    """The config of file, environment and flags; see `load_config_with_sources`."""
    return load_config_with_sources(path, overrides, env).config


def load_config_with_sources(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Read `path` (None: the file that HYBRIDKV_CONFIG names, or no file), then `env`, then `overrides`.

    `env` is the process's environment unless given; pass {} to depend on nothing outside. `overrides` maps dotted
    keys ("cpu.capacity_bytes") to values; None means not given. Raises InvalidArgumentError: its field is the bad
    key, or "config" where several are bad, and its message lists all of them.
    """
    env = os.environ if env is None else env
    if path is None and env.get(ENV_CONFIG_PATH):
        path = Path(env[ENV_CONFIG_PATH])
    given = {**_from_file(path), **_from_environment(env), **_from_flags(overrides or {})}
    config = _checked(given)
    return LoadedConfig(
        config, {key: given[key].source if key in given else "default" for key in config_values(config)}
    )


def revised_config(config: Config, changes: Mapping[str, object], sources: Mapping[str, str] | None = None) -> Config:
    """`config` with `changes` (dotted keys to values, or to text as the environment has it), checked as a whole.

    Raises InvalidArgumentError as `load_config_with_sources` does; `sources` tells where the unchanged values are from.
    """
    kept = {key: value for key, value in config_values(config).items() if not _is_cut_floor(config, key)}
    given = {key: _Given(value, (sources or {}).get(key, "in force")) for key, value in kept.items()}
    return _checked({**given, **{key: _Given(value, "asked for") for key, value in changes.items()}})


def _is_cut_floor(config: Config, key: str) -> bool:
    """A floor nobody gave follows the capacity, also when that changes."""
    section, _, name = key.partition(".")
    tier = getattr(config, section)
    return name == "min_bytes" and tier.min_bytes == min(type(tier).model_fields[name].default, tier.capacity_bytes)


def _checked(given: Mapping[str, _Given]) -> Config:
    sections, problems = _arranged(given)
    try:
        config = Config.model_validate(sections)
    except ValidationError as error:
        _refuse(problems | _problems(error, given))
    if problems:
        _refuse(problems)
    return config


def _from_file(path: Path | None) -> dict[str, _Given]:
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidArgumentError("config file", f"{path}: {reason}") from error
    source = f"file {path}"
    found: dict[str, _Given] = {}
    for section, table in tables.items():
        if isinstance(table, dict):
            for name, value in table.items():
                tenant = value if section == TENANTS and isinstance(value, dict) else {"": value}
                found |= {
                    f"{section}.{name}.{key}".removesuffix("."): _Given(one, source) for key, one in tenant.items()
                }
        else:
            found[section] = _Given(table, source)
    return found


def _from_environment(env: Mapping[str, str]) -> dict[str, _Given]:
    return {
        name.removeprefix(ENV_PREFIX).replace(ENV_NESTING, ".").lower(): _Given(value, f"environment {name}")
        for name, value in env.items()
        if name.startswith(ENV_PREFIX) and name not in _NOT_KEYS and not _SERVICE_LINK.fullmatch(name)
    }


def _from_flags(overrides: Mapping[str, object]) -> dict[str, _Given]:
    return {key: _Given(value, "flag") for key, value in overrides.items() if value is not None}


def _arranged(given: Mapping[str, _Given]) -> tuple[dict[str, dict[str, object]], dict[str, str]]:
    """The known keys by section, and a line for each that is not known."""
    known = [row.key for row in default_rows()]
    sections: dict[str, dict[str, object]] = {section: {} for section in Config.model_fields}
    tenants: dict[str, dict[str, object]] = {}
    problems = {}
    for key, one in given.items():
        section, *tenant = section_of(key)
        name = key.rpartition(".")[2]
        if tenant and key.count(".") == 2 and name in TenantConfig.model_fields:
            tenants.setdefault(tenant[0], {})[name] = one.value
        elif key in known:
            sections[section][name] = one.value
        else:
            problems[key] = f"{_unknown(key, known)} ({one.source})"
    return {**sections, TENANTS: dict(tenants)}, problems


def _unknown(key: str, known: Iterable[str]) -> str:
    if key in Config.model_fields or (section_of(key)[0] == TENANTS and key.count(".") < 2):
        return "is a section and must be a table"
    if section_of(key)[0] == TENANTS:
        known = [f"{'.'.join(section_of(key))}.{name}" for name in TenantConfig.model_fields]
    near = difflib.get_close_matches(key, known, n=1)
    return "unknown key" + (f", did you mean {near[0]}?" if near else "")


def _problems(error: ValidationError, given: Mapping[str, _Given]) -> dict[str, str]:
    """One line per bad key: the limit, the value and where it came from."""
    found = {}
    for detail in error.errors(include_url=False, include_context=False):
        where = [*map(str, detail["loc"])]
        key = ".".join(where[: 1 + len(section_of(".".join(where)))])
        limit = detail["msg"].removeprefix("Value error, ").replace("Input should", "must")
        one = given.get(key, _Given(detail["input"], "default"))
        # A table is bad as a whole: what it holds says nothing that the limit does not.
        found[key] = limit if isinstance(one.value, dict) else f"{limit}, got {one.value!r} ({one.source})"
    return found


def _refuse(problems: Mapping[str, str]) -> NoReturn:
    if len(problems) == 1:
        raise InvalidArgumentError(*next(iter(problems.items())))
    raise InvalidArgumentError("config", "; ".join(f"{key}: {line}" for key, line in sorted(problems.items())))
