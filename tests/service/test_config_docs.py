"""docs/config.md and the code name the same keys, units, defaults and meanings."""

import re
import tomllib
from pathlib import Path

import pytest

from hybridkv.service.config import Config, ConfigRow, config_values, default_rows, load_config, tenant_rows
from hybridkv.service.tuning import RESTART

GUIDE = Path(__file__).parents[2] / "docs" / "config.md"
ROW = re.compile(
    r"\| `(?P<key>[a-z_.<>]+)` \| (?P<type>.*?) \| (?P<unit>.*?) ?\| `(?P<default>.*?)` \| (?P<rest>.*) \|"
)
ROWS = [*default_rows(), *tenant_rows()]
TABLE = {found["key"]: found.groupdict() for line in GUIDE.read_text().splitlines() if (found := ROW.fullmatch(line))}


def test_the_guide_has_every_key_in_order_and_no_other() -> None:
    assert list(TABLE) == [row.key for row in ROWS]
    assert sum(line.startswith("| `") for line in GUIDE.read_text().splitlines()) == len(TABLE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_line_says_what_the_code_says(row: ConfigRow) -> None:
    line = TABLE[row.key]
    meaning, effect = line["rest"].split(" | ")
    assert (line["type"], line["unit"], line["default"]) == (row.type, row.unit, row.default_text)
    assert meaning == row.description
    assert meaning
    assert effect


def test_the_defaults_of_the_guide_load_as_the_defaults_of_the_code(tmp_path: Path) -> None:
    lines = []
    for key, line in TABLE.items():
        left_out = "#" if line["default"] == "unset" or "<" in line["default"] + key else ""
        lines.append(f"{left_out}{key} = {line['default']}")
    path = tmp_path / "hybridkv.toml"
    path.write_text("\n".join(lines))
    assert {*tomllib.loads(path.read_text()), "tenants"} == {*Config.model_fields}
    assert config_values(load_config(path, None, {})) == config_values(Config())


def test_a_number_names_its_unit() -> None:
    bare = [row.key for row in ROWS if row.type in ("int", "float") and not row.unit]
    assert bare == []


def test_the_example_of_the_guide_loads(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert example is not None
    path = tmp_path / "hybridkv.toml"
    path.write_text(example[1])
    assert load_config(path, None, {}).disk.capacity_bytes == 100 << 30


def test_the_guide_lists_the_keys_that_need_a_restart() -> None:
    listed = re.search(r"These need a restart: (.*?)\.\nAll others", GUIDE.read_text(), re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`([a-z_.]+)`", listed[1])) == RESTART
