"""The staging ring: rows are taken and given back in one order, and runs join where chain and rows go on."""

import numpy as np

from hybridkv.service.client.staging import Ring, Run
from tests.service.client.scripted import numbered


def blocks(*values: int) -> np.ndarray:
    return np.repeat(np.array(values, np.uint8)[:, None], 8, axis=1)


def runs(ring: Ring, numbers: list[int], parent: bytes | None = None) -> list[Run]:
    return list(ring.copied(numbered(*numbers), blocks(*numbers), parent))


def test_a_put_across_the_end_of_the_ring_is_two_runs_of_one_chain() -> None:
    ring = Ring(4, 8)
    (first,) = runs(ring, [1, 2, 3])
    ring.give_back(3)
    one, two = runs(ring, [4, 5, 6])
    assert (first.first, one.first, two.first) == (0, 3, 0)
    assert two.parent == one.keys[-1] == numbered(4)[0]
    assert ring.rows(two)[:, 0].tolist() == [5, 6]
    assert not one.takes(two, 9)


def test_free_rows_are_those_that_nobody_has() -> None:
    ring = Ring(4, 8)
    runs(ring, [1, 2, 3])
    assert ring.free == 1
    ring.give_back(2)
    assert ring.free == 3


def test_what_goes_on_in_chain_and_rows_is_one_run() -> None:
    ring = Ring(8, 8)
    (one,) = runs(ring, [1, 2])
    (two,) = runs(ring, [3], numbered(2)[0])
    assert one.takes(two, 3)
    assert one.keys == numbered(1, 2, 3).as_list()
    assert ring.rows(one)[:, 0].tolist() == [1, 2, 3]


def test_another_chain_a_key_again_and_too_many_stay_apart() -> None:
    ring = Ring(8, 8)
    (one,) = runs(ring, [1, 2])
    (other,) = runs(ring, [3])
    assert not one.takes(other, 9)
    follows = Run(numbered(1).as_list(), numbered(2)[0], 2)
    assert not one.takes(follows, 9)
    assert not one.takes(Run(numbered(3).as_list(), numbered(2)[0], 2), 2)
    assert one.keys == numbered(1, 2).as_list()
