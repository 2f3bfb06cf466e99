"""Where LMDB puts a value in its file.

py-lmdb touches every page of a value it returns (to fault pages in outside the GIL), so that even asking for a value's
address costs a cold read of the whole value through the map, and raises SIGBUS where the device fails. We therefore
learn a value's page once, in the transaction that writes it, and keep it in the small `meta` record: reads look that up
and go to the file with `preadv`. The page never changes while the value lives: LMDB copies a run of overflow pages only
when its own value is replaced.
"""

import ctypes

import numpy as np

from hybridkv.tiers.disk.codec import PAGE_HEADER_BYTES


def page_of(value: memoryview) -> int:
    """First page, in the file, of a large `value` that LMDB returned as a buffer within a running transaction.

    A large value starts right behind its page's header, whose first field is the page's own number; this holds for
    pages not yet written as well as for mapped ones. Callers verify what they read at that page, so that a wrong
    answer is a miss.
    """
    address = int(np.frombuffer(value, dtype=np.uint8).__array_interface__["data"][0])
    return int.from_bytes(ctypes.string_at(address - PAGE_HEADER_BYTES, 8), "little")
