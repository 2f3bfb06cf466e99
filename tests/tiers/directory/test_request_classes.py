"""Classes of requests: whether their blocks are used again is learned, and those of a class that never does go first."""

import numpy as np

from hybridkv.tiers.directory.hinting import JUDGED_AFTER_BLOCKS, SPARED_EVERY_REQUESTS, ClassCounts
from hybridkv.tiers.hints import Hints, Importance
from tests.tiers.directory.conftest import GPU, Kit, key

BATCH = 3


def use(kit: Kit, *numbers: int, hints: Hints) -> None:
    kit.clock.advance(1)
    kit.directory.accesses.join(kit.session, 7, np.array(kit.rows(*numbers)), 30.0)
    kit.directory.accesses.end(kit.session, 7, hints)


def judged(kit: Kit, used_again: int) -> None:
    """As if so many of the blocks followed so far had been used again."""
    kit.directory.accesses.hinting.classes[BATCH] = ClassCounts(followed=JUDGED_AFTER_BLOCKS, used_again=used_again)


def test_blocks_of_a_class_are_followed_until_they_are_used_again(kit: Kit) -> None:
    kit.seal(1, 2, 3)
    use(kit, 1, 2, 3, hints=Hints(request_class=BATCH))
    counts = kit.directory.accesses.hinting.classes[BATCH]
    assert (counts.followed, counts.used_again) == (3, 0)
    kit.directory.accesses.touch(np.array(kit.rows(1, 2)))
    assert (counts.followed, counts.used_again) == (3, 2)
    kit.directory.accesses.touch(np.array(kit.rows(1, 2)))
    assert counts.used_again == 2, "each block that the class left counts once"


def test_a_class_that_is_never_used_again_goes_first(kit: Kit) -> None:
    kit.seal(9)
    kit.seal(1, 2)
    use(kit, 9, hints=Hints())
    use(kit, 1, 2, hints=Hints(request_class=BATCH))
    assert kit.victims(GPU)[0] == key(9), "nothing is known of the class yet"
    judged(kit, used_again=0)
    use(kit, 1, 2, hints=Hints(request_class=BATCH))
    assert kit.victims(GPU) == [key(2), key(1), key(9)]
    assert kit.directory.check() == []


def test_a_class_whose_blocks_come_back_stays_where_it_is(kit: Kit) -> None:
    kit.seal(9)
    kit.seal(1)
    use(kit, 9, hints=Hints())
    judged(kit, used_again=JUDGED_AFTER_BLOCKS // 2)
    use(kit, 1, hints=Hints(request_class=BATCH))
    assert kit.victims(GPU) == [key(9), key(1)]


def test_what_the_caller_says_counts_more_than_what_was_learned(kit: Kit) -> None:
    kit.seal(9)
    kit.seal(1)
    use(kit, 9, hints=Hints())
    judged(kit, used_again=0)
    use(kit, 1, hints=Hints(request_class=BATCH, priority=Importance.HIGH))
    assert kit.victims(GPU) == [key(9), key(1)]


def test_one_request_in_sixteen_is_spared_so_that_a_class_may_change(kit: Kit) -> None:
    kit.seal(1)
    judged(kit, used_again=0)
    counts = kit.directory.accesses.hinting.classes[BATCH]
    for _ in range(SPARED_EVERY_REQUESTS):
        use(kit, 1, hints=Hints(request_class=BATCH))
    assert counts.followed == JUDGED_AFTER_BLOCKS + 1
