"""The seam at which OSError and lmdb.Error become our own: what kind of trouble is it, and whose?"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import lmdb


class Trouble(Enum):
    """Kinds of trouble, by what is to be done about them."""

    FULL = "no space on the device"  # writes stop, reads go on
    READ_ONLY = "not writable"  # writes stop, reads go on
    DEVICE = "the device fails"  # everything stops
    GONE = "the directory or a file has vanished"  # everything stops
    DAMAGED = "damaged"  # one segment's tree: that segment is set aside


class StorageFault(Exception):  # noqa: N818 - caught inside this package only, never raised to callers
    """A failed operation on storage."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


_BY_ERRNO = {
    errno.ENOSPC: Trouble.FULL,
    errno.EDQUOT: Trouble.FULL,
    errno.EFBIG: Trouble.FULL,
    errno.EROFS: Trouble.READ_ONLY,
    errno.EACCES: Trouble.READ_ONLY,
    errno.EPERM: Trouble.READ_ONLY,
    errno.ENOENT: Trouble.GONE,
    errno.ENOTDIR: Trouble.GONE,
    errno.ESTALE: Trouble.GONE,
}


def classify(error: OSError | lmdb.Error) -> Trouble:
    """The kind of trouble. An LMDB error that is no errno tells of the tree, an unknown errno of the device."""
    if isinstance(error, lmdb.MapFullError):
        return Trouble.FULL
    code = error.errno if isinstance(error, OSError) else error.code
    if isinstance(error, lmdb.Error) and (code is None or code <= 0 or isinstance(error, lmdb.InvalidParameterError)):
        return Trouble.DAMAGED
    return _BY_ERRNO.get(code or 0, Trouble.DEVICE)


@contextmanager
def storage(what: str) -> Iterator[None]:
    """Operations on files and on LMDB; `what` names them in the message."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        trouble = classify(error)
        raise StorageFault(trouble, f"{what}: {trouble.value} ({error})") from error
