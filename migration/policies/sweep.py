"""What second-chance policies share: which rows a hand passed over on its way to the victims."""

import numpy as np

from hybridkv.migration.policies.lists import RowLists
from hybridkv.tiers.replacement import Rows

_BUDGET_PER_VICTIM = 8
_BUDGET = 512


def passed_over(lists: RowLists, number: int, leaving: Rows) -> Rows:
    """The rows that stay, from the head of list `number` up to the last of `leaving` (held, any list) that is near it.

    Rows that leave from the middle (removed by name, say) move no hand far: the walk ends when all of `leaving` were met,
    or after a number of rows in proportion to them, so that a removal costs what it removes.
    """
    here = leaving[lists.list_of(leaving) == number]
    if not len(here):
        return np.zeros(0, np.int64)
    budget = _BUDGET + _BUDGET_PER_VICTIM * len(here)
    walked, last, met = [np.zeros(0, np.int64)], 0, 0
    seen = 0
    for rows, _ in lists.scan(number):
        found = np.flatnonzero(np.isin(rows, here))
        walked.append(rows)
        if len(found):
            last = seen + int(found[-1]) + 1
            met += len(found)
        seen += len(rows)
        if met == len(here) or seen >= budget:
            break
    passed = np.concatenate(walked)[:last]
    staying: Rows = passed[~np.isin(passed, here)]
    return staying
