"""vLLM with models of other kinds: several KV-cache groups, ranks in processes of their own, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines import tiny_models
from tests.engines.conftest import LaunchEngine, assert_nothing_held
from tests.engines.engines import Daemon
from tests.engines.test_vllm import HIT, TOKENS, settled

PROMPT = [(i * 7919) % 40_000 + 5 for i in range(TOKENS)]
SMALL = {"max_model_len": 1024, "kv_cache_memory_bytes": 64 << 20}
GROUPS = 2
"""KV-cache groups of `tiny_models.hybrid`."""


@pytest.fixture
def settings(daemon: Daemon) -> dict[str, Any]:
    daemon.clear()
    return {"address": daemon.address}


@pytest.fixture(scope="module")
def hybrid(model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.hybrid(tmp_path_factory.mktemp("hybrid") / "model", model))


def test_full_attention_beside_a_sliding_window(
    daemon: Daemon, settings: dict[str, Any], launch: LaunchEngine, hybrid: str
) -> None:
    engine = launch(settings, model=hybrid, **SMALL).started()
    assert len(engine.do("fingerprints")) == GROUPS
    cold = engine.generate(PROMPT)[0]
    settled(daemon, 10 * GROUPS)
    assert engine.do("forget")
    warm = engine.generate(PROMPT)[0]
    assert (cold[1], warm[1]) == (0, HIT)
    assert warm[0] == cold[0]
    assert engine.do("forget")
    engine.do("fail_layer", layer=0)
    assert engine.generate(PROMPT)[0][0] == cold[0]
    engine.close()
    assert_nothing_held(daemon)


def test_two_ranks_in_processes_of_their_own(
    daemon: Daemon, settings: dict[str, Any], launch: LaunchEngine, hybrid: str
) -> None:
    ranks = 2
    arguments = {"model": hybrid, "tensor_parallel_size": ranks, "separate": True, **SMALL}
    first = launch(settings, **arguments).started()
    cold = first.generate(PROMPT)[0]
    settled(daemon, 10 * GROUPS * ranks)
    assert first.do("forget")
    assert first.generate(PROMPT)[0] == [cold[0], HIT, cold[2]]
    first.close()
    assert_nothing_held(daemon)


@pytest.mark.skipif(torch.cpu._is_amx_tile_supported(), reason="vLLM has another MLA backend where there is AMX")
def test_latent_attention_is_refused_where_it_cannot_go_on_behind_a_prefix(
    settings: dict[str, Any], launch: LaunchEngine, model: Path, tmp_path: Path
) -> None:
    refused = launch(settings, model=str(tiny_models.latent(tmp_path / "model", model)), **SMALL)
    assert "computes whole prompts only" in refused.refusal()


def test_a_model_without_attention_is_refused_at_start(
    settings: dict[str, Any], launch: LaunchEngine, model: Path, tmp_path: Path
) -> None:
    refused = launch(settings, model=str(tiny_models.mamba(tmp_path / "model", model)), block_size=None, **SMALL)
    assert "the state of a Mamba layer is not made of blocks of tokens" in refused.refusal()
