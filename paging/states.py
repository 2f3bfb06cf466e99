"""The words of paging, as enums. Wire values are the enum values: never renumber."""

from enum import IntEnum


class Backed(IntEnum):
    """What backs a block of a sequence. NOTHING: never written. SEALED: a block of the directory. WRITABLE: a reserved slot
    of the sequence's own. LOST: it was sealed, and no tier has it any more."""

    NOTHING = 0
    SEALED = 1
    WRITABLE = 2
    LOST = 3


class PageState(IntEnum):
    """What a caller may do with a block of a sequence now. FRESH: writable, and there is nothing in it. ELSEWHERE: a fault
    brings it."""

    UNMAPPED = 0
    READABLE = 1
    WRITABLE = 2
    FRESH = 3
    ELSEWHERE = 4
    LOST = 5


class PublishOutcome(IntEnum):
    """Answer of a publication, per block. ALREADY_SEALED: the sequence maps the copy that another sealed first. KEPT_PRIVATE:
    somebody writes that key now, or the block was sealed for the sequence alone before. NOT_WRITABLE: there is no block."""

    SEALED = 1
    ALREADY_SEALED = 2
    KEPT_PRIVATE = 3
    NOT_WRITABLE = 4
