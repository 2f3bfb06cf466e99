"""The client's cache of translations: bounded, checked, counted."""

import threading

import numpy as np
import numpy.typing as npt
import pytest

from hybridkv.service.client.translations import Slots, TranslationCounts, Translations
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.pools import SLOT_DTYPE
from tests.service.client.scripted import numbered


class Memory:
    """Says of every translation that it holds, unless its header is in `gone`."""

    def __init__(self) -> None:
        self.gone: set[int] = set()

    def valid(self, slots: Slots) -> npt.NDArray[np.bool_]:
        return np.asarray((slots["generation"] != 0) & ~np.isin(slots["header"], list(self.gone)))


def slots_of(*headers: int, generation: int = 2) -> Slots:
    slots = np.zeros(len(headers), SLOT_DTYPE)
    slots["header"], slots["generation"], slots["offset"] = headers, generation, np.array(headers) * 4096
    return slots


def headers(known: Translations, *numbers: int) -> list[int | None]:
    found = known.find(numbered(*numbers))
    return [int(slot["header"]) if slot["generation"] else None for slot in found]


def test_what_was_learned_is_found_and_counted() -> None:
    known = Translations(Memory().valid)
    known.learn(numbered(1, 2), slots_of(11, 12))
    assert headers(known, 2, 3, 1) == [12, None, 11]
    assert known.counts == TranslationCounts(entries=2, hits=2, misses=1, invalidations=0)


def test_rows_without_a_slot_teach_nothing() -> None:
    known = Translations(Memory().valid)
    known.learn(numbered(1), slots_of(11))
    told = slots_of(21, 22)
    told[0] = np.zeros(1, SLOT_DTYPE)[0]
    known.learn(numbered(1, 2), told)
    assert headers(known, 1, 2) == [11, 22]


def test_the_last_word_on_a_key_counts() -> None:
    known = Translations(Memory().valid)
    known.learn(numbered(1), slots_of(11))
    known.learn(numbered(1), slots_of(31))
    assert headers(known, 1) == [31]
    assert len(known) == 1


def test_what_holds_no_longer_is_forgotten_and_counted() -> None:
    memory = Memory()
    known = Translations(memory.valid)
    known.learn(numbered(1, 2), slots_of(11, 12))
    memory.gone = {11}
    assert headers(known, 1, 2) == [None, 12]
    memory.gone = set()
    assert headers(known, 1, 2) == [None, 12]
    assert known.counts == TranslationCounts(entries=1, hits=2, misses=2, invalidations=1)


def test_what_was_learned_meanwhile_is_not_forgotten_with_the_old() -> None:
    known = Translations(Memory().valid)
    known.learn(numbered(1), slots_of(11, generation=2))
    stale = known.find(numbered(1))
    known.learn(numbered(1), slots_of(11, generation=4))
    known.invalidate(numbered(1), stale)
    assert headers(known, 1) == [11]
    assert known.counts.invalidations == 1


def test_one_key_as_plain_numbers() -> None:
    known = Translations(Memory().valid)
    known.learn(numbered(1), slots_of(11))
    key = numbered(1)[0]
    one = known.known(key)
    assert one == (11 * 4096, 2, 0, 11, 0, 0)
    known.disproved(key, one)
    assert known.known(key) is None
    assert known.counts == TranslationCounts(entries=0, hits=0, misses=2, invalidations=1)


def test_beyond_the_limit_the_oldest_go() -> None:
    known = Translations(Memory().valid, 3)
    for number in range(1, 6):
        known.learn(numbered(number), slots_of(10 + number))
    assert headers(known, 1, 2, 3, 4, 5) == [None, None, 13, 14, 15]
    known.learn(numbered(3, 6), slots_of(33, 16))  # 3 is the oldest still: renewing it does not make it younger
    assert headers(known, 3, 4, 5, 6) == [None, 14, 15, 16]
    assert len(known) == 3


def test_more_at_once_than_are_kept() -> None:
    known = Translations(Memory().valid, 100)
    known.learn(numbered(*range(250)), slots_of(*range(250)))
    assert len(known) == 100
    assert headers(known, 149, 150, 249) == [None, 150, 249]


def test_a_place_of_a_forgotten_key_is_taken_again() -> None:
    memory = Memory()
    known = Translations(memory.valid, 2)
    known.learn(numbered(1, 2), slots_of(11, 12))
    memory.gone = {11}
    known.find(numbered(1))
    known.learn(numbered(1), slots_of(21))  # in the place of the oldest, which was its own
    known.learn(numbered(3), slots_of(13))
    assert headers(known, 1, 2, 3) == [21, None, 13]


def test_none_are_kept_with_a_limit_of_none() -> None:
    known = Translations(Memory().valid, 0)
    known.learn(numbered(1), slots_of(11))
    assert headers(known, 1) == [None]


@pytest.mark.parametrize("limit", [-1, (1 << 24) + 1])
def test_limit_is_checked(limit: int) -> None:
    with pytest.raises(InvalidArgumentError, match="translations_count"):
        Translations(Memory().valid, limit)


def test_cleared_is_empty() -> None:
    known = Translations(Memory().valid)
    known.learn(numbered(1, 2), slots_of(11, 12))
    known.clear()
    assert headers(known, 1, 2) == [None, None]
    known.learn(numbered(2), slots_of(22))
    assert headers(known, 1, 2) == [None, 22]


def test_threads_never_get_the_translation_of_another_key() -> None:
    """Each key is always learned with its own header; places change hands all the time."""
    known = Translations(Memory().valid, 8)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(400):
            numbers = rng.choice(32, 6, replace=False).tolist()
            known.learn(numbered(*numbers[:3]), slots_of(*numbers[:3]))
            found = headers(known, *numbers)
            wrong.extend(n for n, header in zip(numbers, found, strict=True) if header not in (None, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(known) <= 8


def test_keys_by_position() -> None:
    assert numbered(5, 6, 7).at(np.array([2, 0])) == numbered(7, 5)
    assert numbered(5).at(np.zeros(0, np.int64)) == Keys(b"", 16)
