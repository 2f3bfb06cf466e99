"""Regenerates the protobuf code of this folder, or with `--check` tells whether the committed code is what it would be.

    python proto/regenerate.py            write proto/*_pb2*
    python proto/regenerate.py --check    exit 1 and name each file that differs

Needs grpcio-tools 1.76.0: its code runs under protobuf 6.33.5 and 7.x, that of later versions refuses the former. The
`.proto` files are addressed as `hybridkv/proto/NAME.proto`, so that the generated modules import each other as
`hybridkv.proto.NAME_pb2` wherever this folder lies.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PACKAGE = "hybridkv/proto"


def generate(out: Path) -> dict[str, bytes]:
    """Generate into `out` and return the content of each generated file by its name."""
    import grpc_tools  # type: ignore[import-untyped]
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = sorted(f"{PACKAGE}/{path.name}" for path in FOLDER.glob("*.proto"))
    code = protoc.main(
        [
            "protoc",
            f"-I{PACKAGE}={FOLDER}",
            f"-I{well_known}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            *sources,
        ]
    )
    if code != 0:
        raise SystemExit(f"protoc failed with exit code {code}")
    return {path.name: path.read_bytes() for path in sorted((out / PACKAGE).glob("*_pb2*"))}


def committed() -> dict[str, bytes]:
    """The generated files that lie in this folder now."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.glob("*_pb2*")) if path.is_file()}


def write(fresh: dict[str, bytes]) -> None:
    """Bring this folder to `fresh`; files that are no longer generated go."""
    for name in committed().keys() - fresh.keys():
        (FOLDER / name).unlink()
    for name, content in fresh.items():
        (FOLDER / name).write_bytes(content)


def differing(fresh: dict[str, bytes], present: dict[str, bytes]) -> list[str]:
    """Names of the files that are missing, left over or other than generated."""
    return sorted(name for name in fresh.keys() | present.keys() if fresh.get(name) != present.get(name))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Regenerate the protobuf code.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the committed code differs")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
    if not options.check:
        write(fresh)
        return 0
    names = differing(fresh, committed())
    for name in names:
        print(f"proto/{name} differs from what protoc generates: run `python proto/regenerate.py`", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    raise SystemExit(main())
