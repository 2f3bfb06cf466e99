"""Copies without a call: of blocks whose translation holds from before the copy until after it."""

import numpy as np

from hybridkv.service.client.core import Wish
from hybridkv.service.client.memory import Memory
from hybridkv.service.client.outputs import Rows
from hybridkv.service.client.translations import Translations
from hybridkv.service.client.transport import Indices
from hybridkv.tiers.errors import ExpiredError, UnavailableError
from hybridkv.tiers.hints import NO_HINTS
from hybridkv.tiers.keys import Keys


def may_be_free(wish: Wish) -> bool:
    """Whether the daemon need not know of a read before it is made: a request's blocks are protected until its end."""
    return wish.request is None and wish.hints == NO_HINTS and len(wish.keys) > 0


def copy_known(memory: Memory | None, translations: Translations | None, keys: Keys, target: Rows) -> Indices:
    """Copy what can be copied without a call; the positions of its keys. A row that was given up in the middle of its copy
    holds anything. Any thread."""
    if memory is None or translations is None or not len(translations):
        return NOTHING
    if len(keys.packed) == keys.width:
        return _FIRST if copy_one(memory, translations, keys.packed, target) else NOTHING
    return _copy_many(memory, translations, keys, target)


def copy_one(memory: Memory, translations: Translations, key: bytes, target: Rows) -> bool:
    """`copy_known` for a single key, in plain numbers: a fifth of the time. False: its row may hold anything."""
    one = translations.known(key)
    if one is None or memory.out_of_reach(one[-1]):
        return False
    try:
        if memory.copy_one(one, 0, target):
            return True
    except (UnavailableError, ExpiredError):  # the page, or the session, went in the middle of the copy
        pass
    translations.disproved(key, one)
    return False


def _copy_many(memory: Memory, translations: Translations, keys: Keys, target: Rows) -> Indices:
    """The positions of the keys that were copied."""
    slots = translations.find(keys)
    positions = np.flatnonzero((slots["generation"] != 0) & memory.within_reach(slots))
    if not len(positions):
        return NOTHING
    slots = slots[positions]
    try:
        unchanged = memory.copy(slots, positions, target)
    except (UnavailableError, ExpiredError):  # a page, or the session, went in the middle of the copy
        return NOTHING
    if not unchanged.all():
        translations.invalidate(keys.at(positions[~unchanged]), slots[~unchanged])
        positions = positions[unchanged]
    return positions


NOTHING = np.zeros(0, np.int64)
_FIRST = np.zeros(1, np.int64)
