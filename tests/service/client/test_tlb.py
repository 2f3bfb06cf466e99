"""The TLB: bounded, last learned stays, nothing is found that was forgotten, and the counts are exact."""

import random
import threading

import numpy as np
import pytest

from hybridkv.paging.entries import PageFlag, offsets_of
from hybridkv.service.client.tlb import Tlb, TlbCounts
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.pools import SLOT_DTYPE


def slots_of(*generations: int) -> np.ndarray:
    slots = np.zeros(len(generations), SLOT_DTYPE)
    slots["generation"] = generations
    slots["offset"] = np.array(generations, np.uint64) * 4096
    return slots


def test_what_was_learned_is_known_one_by_one_and_together() -> None:
    tlb = Tlb(64)
    tlb.learn(np.array([3, 200, 5]), slots_of(4, 6, 0))
    assert tlb.known(3) == (4 * 4096, 4, 0, 0, 0, 0)
    assert tlb.known(3) == (4 * 4096, 4, 0, 0, 0, 0)
    assert tlb.known(5) is None
    assert tlb.find(np.array([200, 5, 3, 3]))["generation"].tolist() == [6, 0, 4, 4]
    assert tlb.counts == TlbCounts(hits=5, misses=2)
    assert tlb.counts.since(TlbCounts(1, 1, 0)) == TlbCounts(4, 1)


def test_what_is_disproved_is_a_miss_after_all_and_forgotten() -> None:
    tlb = Tlb(64)
    tlb.learn(np.array([3, 4]), slots_of(4, 4))
    assert tlb.known(3) is not None
    tlb.disproved(np.array([3]))
    assert tlb.known(3) is None
    assert tlb.counts == TlbCounts(hits=0, misses=2, invalidations=1)
    tlb.forget(np.array([4]))
    assert tlb.known(4) is None
    assert tlb.counts.invalidations == 1


def test_it_grows_to_its_limit_and_no_further() -> None:
    tlb = Tlb(1000)
    assert tlb.limit == 1024
    small = tlb.nbytes
    for start in range(0, 100_000, 100):
        tlb.learn(np.arange(start, start + 100), slots_of(*[2] * 100))
    assert len(tlb) == 1024
    assert small < tlb.nbytes == 1024 * 80
    assert (tlb.find(np.arange(99_000, 100_000))["generation"] == 2).all()
    assert tlb.known(50) is None
    tlb.clear()
    assert (len(tlb), tlb.nbytes) == (0, small)
    assert tlb.known(99_999) is None


def test_entries_of_many_hold_by_both_counters() -> None:
    tlb = Tlb(64)
    slots = slots_of(4, 6, 7)
    slots["header"], slots["extent"], slots["extent_epoch"] = [0, 1, 2], [0, 0, 1], [2, 2, 8]
    tlb.learn(np.array([10, 11, 12]), slots)
    generations, epochs = np.array([4, 6, 7], np.uint64), np.array([2, 8], np.uint64)
    words, known = tlb.checked(generations, epochs).words(np.array([10, 12, 13, 10, 11]))
    assert known.tolist() == [True, True, False, True, True]
    assert offsets_of(words).tolist() == [4 * 4096, 7 * 4096, 0, 4 * 4096, 6 * 4096]
    assert [bool(word & PageFlag.PRIVATE) for word in words.tolist()] == [False, True, False, False, False]
    generations[1], epochs[1] = 8, 10
    words, known = tlb.checked(generations, epochs).words(np.array([10, 11, 12, 11, 10 + 64]))
    assert known.tolist() == [True, False, False, False, False]
    assert words.tolist()[1:] == [0] * 4
    assert tlb.counts == TlbCounts(hits=5, misses=5, invalidations=2)
    assert tlb.known(11) is None


@pytest.mark.parametrize("seed", range(5))
def test_against_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    tlb, model = Tlb(128), dict[int, int]()
    for _ in range(300):
        blocks = [rng.randrange(400) for _ in range(rng.randrange(1, 30))]
        match rng.choice(["learn", "forget", "find", "known"]):
            case "learn":
                generations = [2 * rng.randrange(1, 100) for _ in blocks]
                tlb.learn(np.array(blocks), slots_of(*generations))
                model.update(zip(blocks, generations, strict=True))
            case "forget":
                tlb.forget(np.array(blocks))
                for block in blocks:
                    model.pop(block, None)
            case "find":
                found = tlb.find(np.array(blocks))["generation"].tolist()
                assert all(got in (0, model.get(block)) for block, got in zip(blocks, found, strict=True))
            case _:
                one = tlb.known(blocks[0])
                assert one is None or one[1] == model[blocks[0]]
        assert len(tlb) <= 128


def test_threads_never_see_anothers_translation() -> None:
    tlb, wrong, stop = Tlb(64), [], threading.Event()

    def look() -> None:
        while not stop.is_set():
            for block in range(0, 640, 7):
                one = tlb.known(block)
                if one is not None and one[1] != 2 * block + 2:
                    wrong.append((block, one))

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        blocks = np.arange(turn % 10, 640, 10)
        tlb.learn(blocks, slots_of(*(2 * blocks + 2).tolist()))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("limit", [0, -1, 1 << 23])
def test_bad_limits_are_refused(limit: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^tlb_entries"):
        Tlb(limit)
