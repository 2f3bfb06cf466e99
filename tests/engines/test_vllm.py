"""vLLM with a real model in fp32: the same tokens whatever serves the prefix, and the hits that are expected."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.conftest import LaunchEngine, Prompt, assert_nothing_held
from tests.engines.engines import Daemon, EngineProcess

BLOCK = 32
TOKENS = 10 * BLOCK + 5
HIT = 10 * BLOCK


def ready(condition: Callable[[], Any], what: str, within_s: float = 300.0) -> Any:
    """Wait for another process."""
    until = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < until, f"never came: {what}"
        time.sleep(0.05)
    return found


def tokens_of(answer: list[Any]) -> list[int]:
    return list(answer[0])


def settled(daemon: Daemon, blocks: int) -> None:
    """Wait until the engine has sealed that many blocks: it stores behind the answer."""
    ready(lambda: daemon.stats()["blocks"] >= blocks, f"{blocks} blocks")


@pytest.mark.usefixtures("clean")
class TestHits:
    def test_cold_warm_and_another_process(
        self, daemon: Daemon, engine: EngineProcess, other: EngineProcess, prompt: Prompt
    ) -> None:
        ids = prompt(1, TOKENS)
        cold = engine.generate(ids)[0]
        settled(daemon, 10)
        own = engine.generate(ids)[0]
        assert engine.do("forget")
        warm = engine.generate(ids)[0]
        fresh = other.generate(ids)[0]
        assert [answer[1] for answer in (cold, own, warm, fresh)] == [0, HIT, HIT, HIT]
        assert tokens_of(cold) == tokens_of(own) == tokens_of(warm) == tokens_of(fresh)

    def test_after_a_restart_of_the_daemon(self, daemon: Daemon, engine: EngineProcess, prompt: Prompt) -> None:
        ids = prompt(2, TOKENS)
        cold = engine.generate(ids)[0]
        settled(daemon, 10)
        daemon.stop()
        assert engine.do("forget")
        daemon.start()
        ready(lambda: engine.do("attached"), "the engine attached again")
        again = engine.generate(ids)[0]
        assert again[1] == HIT
        assert tokens_of(again) == tokens_of(cold)

    def test_zeroed_bytes_change_the_answer(self, daemon: Daemon, engine: EngineProcess, prompt: Prompt) -> None:
        ids = prompt(3, TOKENS)
        right = engine.generate(ids, max_tokens=16)[0]
        settled(daemon, 10)
        assert engine.do("forget")
        assert daemon.zero_cpu_tier() > 0
        zeroed = engine.generate(ids, max_tokens=16)[0]
        assert zeroed[1] == HIT
        assert tokens_of(zeroed) != tokens_of(right)
        daemon.clear()

    def test_two_salts_share_nothing(self, daemon: Daemon, engine: EngineProcess, prompt: Prompt) -> None:
        ids = prompt(4, TOKENS)
        one = engine.generate(ids, salt="one")[0]
        settled(daemon, 10)
        two = engine.generate(ids, salt="two")[0]
        assert (one[1], two[1]) == (0, 0)
        settled(daemon, 20)
        assert engine.do("forget")
        assert engine.generate(ids, salt="one")[0] == [one[0], HIT, one[2]]

    def test_a_prompt_shorter_than_a_block_and_one_that_is_a_full_hit(
        self, daemon: Daemon, engine: EngineProcess, prompt: Prompt
    ) -> None:
        short, whole = prompt(5, BLOCK - 1), prompt(6, 4 * BLOCK)
        assert [engine.generate(short, max_tokens=1)[0][1] for _ in range(2)] == [0, 0]
        cold = engine.generate(whole)[0]
        settled(daemon, 4)
        assert engine.do("forget")
        full = engine.generate(whole)[0]
        assert full[1] == 4 * BLOCK - 1
        assert tokens_of(full) == tokens_of(cold)

    def test_what_was_generated_is_found_by_the_next_turn(
        self, daemon: Daemon, engine: EngineProcess, other: EngineProcess, prompt: Prompt
    ) -> None:
        ids = prompt(7, 3 * BLOCK + 20)
        first = engine.generate(ids, max_tokens=2 * BLOCK)[0]
        settled(daemon, 5)
        turn = ids + tokens_of(first) + prompt(8, 10)
        assert other.generate(turn, max_tokens=1)[0][1] == 5 * BLOCK

    def test_each_layer_waits_for_its_own_bytes_only(
        self, daemon: Daemon, engine: EngineProcess, prompt: Prompt
    ) -> None:
        ids = prompt(9, TOKENS)
        cold = engine.generate(ids, max_tokens=1)[0]
        settled(daemon, 10)
        assert engine.do("forget")
        reached, computed, layers, answer = engine.do("held_last_layer", prompt=ids)
        assert (reached, computed) == (True, layers - 1)
        assert answer == [cold[0], HIT, cold[2]]


@pytest.mark.usefixtures("clean")
class TestSharing:
    def test_two_engines_at_once(
        self, daemon: Daemon, engine: EngineProcess, other: EngineProcess, prompt: Prompt
    ) -> None:
        shared, prompts = prompt(20, 8 * BLOCK), [prompt(20, 8 * BLOCK) + prompt(21 + i, 40) for i in range(4)]
        engine.generate(shared, max_tokens=1)
        settled(daemon, 8)
        assert engine.do("forget")
        engine.begin("generate", prompts=prompts, max_tokens=4)
        theirs = other.generate(*prompts, max_tokens=4)
        ours = engine.end()
        assert [answer[0] for answer in ours] == [answer[0] for answer in theirs]
        assert all(answer[1] >= 8 * BLOCK for answer in theirs)
        assert other.do("forget")  # its last stores are over before the next test counts blocks

    def test_another_dtype_layout_or_revision_gets_no_hits(
        self, daemon: Daemon, engine: EngineProcess, launch: LaunchEngine, prompt: Prompt, model: Any, tmp_path: Any
    ) -> None:
        ids = prompt(30, TOKENS)
        engine.generate(ids, max_tokens=1)
        settled(daemon, 10)
        revised = tmp_path / model.name
        revised.mkdir()
        for path in model.iterdir():
            (revised / path.name).symlink_to(path)
        (revised / "generation_config.json").unlink(missing_ok=True)
        (revised / "note.json").write_text("{}")
        settings = {"address": daemon.address}
        others: list[dict[str, Any]] = [{"dtype": "bfloat16"}, {"block_size": 64}, {"model": str(revised)}]
        known = {*engine.do("fingerprints")}
        for arguments in others:
            one = launch(settings, **arguments).started()
            assert one.generate(ids, max_tokens=1)[0][1] == 0, arguments
            assert not known & {*one.do("fingerprints")}
            known |= {*one.do("fingerprints")}
            one.close()

    def test_reset_clears_the_daemon_too(self, daemon: Daemon, engine: EngineProcess, prompt: Prompt) -> None:
        ids = prompt(31, TOKENS)
        engine.generate(ids, max_tokens=1)
        settled(daemon, 10)
        assert engine.do("reset_connector")
        assert engine.do("forget")
        assert engine.generate(ids, max_tokens=1)[0][1] == 0

    def test_figures_come_through_vllms_own_metrics(self, engine: EngineProcess) -> None:
        found = engine.do("metrics")
        assert found["vllm:hybridkv_loaded_blocks"] > 0
        assert found["vllm:hybridkv_stored_bytes"] > 0


@pytest.mark.usefixtures("clean")
class TestFailing:
    def test_a_load_that_fails_half_way_is_computed(
        self, daemon: Daemon, engine: EngineProcess, prompt: Prompt
    ) -> None:
        ids = prompt(40, TOKENS)
        right = engine.generate(ids)[0]
        settled(daemon, 10)
        assert engine.do("forget")
        engine.do("fail_layer", layer=15)
        broken = engine.generate(ids)[0]
        engine.do("fail_layer", layer=None)
        assert tokens_of(broken) == tokens_of(right)
        assert broken[2] == "length"
        assert engine.do("forget")
        assert engine.generate(ids)[0] == [right[0], HIT, right[2]]

    def test_the_daemon_is_killed_while_requests_run(
        self, daemon: Daemon, engine: EngineProcess, prompt: Prompt
    ) -> None:
        prompts = [prompt(50 + i, TOKENS) for i in range(3)]
        right = [tokens_of(engine.generate(ids, max_tokens=24)[0]) for ids in prompts]
        settled(daemon, 30)
        assert engine.do("forget")
        engine.begin("generate", prompts=prompts, max_tokens=24)
        daemon.kill()
        assert [tokens_of(answer) for answer in engine.end()] == right
        assert engine.do("forget")
        assert [tokens_of(engine.generate(ids, max_tokens=24)[0]) for ids in prompts] == right
        daemon.start()
        ready(lambda: engine.do("attached"), "the engine attached again")
        assert engine.do("forget")
        engine.generate(*prompts, max_tokens=1)
        settled(daemon, 30)
        assert engine.do("forget")
        again = [engine.generate(ids, max_tokens=24)[0] for ids in prompts]
        assert [(tokens_of(answer), answer[1]) for answer in again] == [(tokens, HIT) for tokens in right]


def test_everything_far_too_small_is_still_right(
    launch: LaunchEngine, engine: EngineProcess, prompt: Prompt, tmp_path: Any, shm: Any
) -> None:
    """A CPU tier of a few blocks without a disk, and a KV pool in which the requests preempt one another."""
    small = Daemon(tmp_path / "small", shm / "small", cpu="32MiB", disk=None)
    small.start()
    try:
        prompts = [prompt(60 + i, 2 * BLOCK - 6 + i) for i in range(6)]  # all fit at first, and grow to twice the pool
        right = [tokens_of(answer) for answer in engine.generate(*prompts, max_tokens=80)]
        tight = launch(
            {"address": small.address},
            kv_cache_memory_bytes=24 << 20,
            max_model_len=256,
            enable_prefix_caching=True,
            max_num_seqs=6,
        ).started()
        for _ in range(2):
            answers = tight.generate(*prompts, max_tokens=80)
            assert [tokens_of(answer) for answer in answers] == right
        assert tight.do("preemptions") > 0
        assert small.stats()["blocks"] > 0
        tight.close()
        assert_nothing_held(small)
    finally:
        small.kill()


def test_at_the_end_nothing_is_held(daemon: Daemon, engine: EngineProcess, other: EngineProcess) -> None:
    ready(lambda: daemon.stats()["requests"] == 0, "every request ended")
    assert_nothing_held(daemon)
