"""docs/map.md names every file there is, and only those."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("tiers", "migration", "paging", "proto", "service", "connectors", "benchmarks")


def _files() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = (name for name in listed.stdout.splitlines() if (ROOT / name).is_file())
    return {name for name in names if name.split("/")[0] in FOLDERS and not name.endswith("__init__.py")}


def test_every_file_has_its_line_in_the_map_and_every_line_its_file() -> None:
    text = (ROOT / "docs" / "map.md").read_text()
    named = {f"{folder}/{name}" for folder, name in _entries(text)}
    files = {name for name in _files() if "/data/" not in name and "/results/" not in name}
    assert named == files


def _entries(text: str) -> list[tuple[str, str]]:
    """(folder, file) of every table row; a heading names the folder."""
    entries, folder = [], ""
    for line in text.splitlines():
        if heading := re.match(r"#+ `([^`]+)/`", line):
            folder = heading.group(1)
        elif row := re.match(r"\| `([^`]+)` \|", line):
            entries.append((folder, row.group(1)))
    return entries


def test_every_folder_has_its_link_in_the_package() -> None:
    for folder in FOLDERS:
        link = ROOT / "src" / "hybridkv" / folder
        assert link.is_symlink()
        assert link.resolve() == ROOT / folder
