"""The committed protobuf code is what protoc makes of the .proto, and `--check` tells when it is not."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "proto" / "regenerate.py"


@pytest.fixture
def regenerate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_code_is_up_to_date(regenerate: ModuleType) -> None:
    assert regenerate.main(["--check"]) == 0


def test_a_difference_is_named_and_nothing_is_changed(
    regenerate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = SCRIPT.with_name("hybridkv.proto").read_text()
    (tmp_path / "hybridkv.proto").write_text(proto)
    (tmp_path / "hybridkv_pb2.py").write_text("old")
    (tmp_path / "gone_pb2.py").write_text("left over")
    monkeypatch.setattr(regenerate, "FOLDER", tmp_path)
    assert regenerate.main(["--check"]) == 1
    told = capsys.readouterr().err
    for name in ("gone_pb2.py", "hybridkv_pb2.py", "hybridkv_pb2.pyi", "hybridkv_pb2_grpc.py"):
        assert name in told
    assert (tmp_path / "hybridkv_pb2.py").read_text() == "old"

    assert regenerate.main([]) == 0
    assert not (tmp_path / "gone_pb2.py").exists()
    assert regenerate.main(["--check"]) == 0
