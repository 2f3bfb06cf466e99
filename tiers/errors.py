"""Every error this package raises, in one tree.

    HybridKVError
    ├── InvalidArgumentError        a value is wrong; the message names the field and the limit
    ├── NotFoundError               a session, lease, reservation or request that is not known (a key never is an error)
    ├── ForeignHoldError            a hold that belongs to another session
    ├── FailedPreconditionError     the call is right, the state is not
    │   ├── NamespaceMismatchError  fingerprint or block size differ between client and daemon
    │   └── ExpiredError            the hold lapsed before the call
    ├── UnauthenticatedError        the daemon has tenants, and the caller proves to be none of them
    ├── PermissionDeniedError       the caller is known, and this is not for its role
    ├── ResourceExhaustedError      no room, or a limit reached; carries name and figures
    │   └── DiskFullError           the disk tier's physical cap; names the segment that costs least to empty
    ├── DeadlineExceededError       the caller's deadline passed
    ├── UnavailableError            the daemon, or a tier, is not there (draining, off, gone)
    └── InternalError               a bug of ours
        └── LawViolationError       `check()` found the accounting broken

Foreign errors (OSError, lmdb.Error, CUDA) are translated where they arise; `service/status.py` holds the one total table
from this tree to gRPC codes.
"""


class HybridKVError(Exception):
    """Base of every error of this package."""


class InvalidArgumentError(HybridKVError):
    """A value is wrong. `field` names it, the message gives the limit."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class NotFoundError(HybridKVError):
    """A session, lease, reservation or request that is not known."""


class ForeignHoldError(HybridKVError):
    """The hold belongs to another session; nothing was changed."""


class UnauthenticatedError(HybridKVError):
    """The daemon has tenants, and the caller proves to be none of them. Never says how near a wrong proof was."""


class PermissionDeniedError(HybridKVError):
    """The caller is known, and this call is not for its role."""


class FailedPreconditionError(HybridKVError):
    """The call is well formed but the state does not allow it."""


class NamespaceMismatchError(FailedPreconditionError):
    """Client and daemon compute different fingerprints or block sizes; the message holds both values."""


class ExpiredError(FailedPreconditionError):
    """The hold lapsed before the call; nothing was published."""


class ResourceExhaustedError(HybridKVError):
    """No room, or a limit was reached. `resource` names it, the message gives the figures."""

    def __init__(self, resource: str, message: str) -> None:
        super().__init__(f"{resource}: {message}")
        self.resource = resource


class DiskFullError(ResourceExhaustedError):
    """Physical room is lacking. Blocks already durable are in `stored` (segment per block, None = not stored).

    `segment_to_empty` is the segment that costs least to empty, by bytes: drop its blocks from the directory, call
    `drop_segment`, put the rest again. It is a proposal, any other segment will do. It is never one that took blocks in
    this call; None: there is no other, the call does not fit this store at all.
    Deleting blocks of the same size first loses less: their pages can be reused where they are.
    """

    def __init__(self, message: str, segment_to_empty: int | None, stored: tuple[int | None, ...] = ()) -> None:
        super().__init__("disk", message)
        self.segment_to_empty = segment_to_empty
        self.stored = stored


class DeadlineExceededError(HybridKVError):
    """The caller's deadline passed before the work was done."""


class UnavailableError(HybridKVError):
    """The daemon or a tier is not there now; a later call may succeed."""


class InternalError(HybridKVError):
    """A bug of ours."""


class LawViolationError(InternalError):
    """`Directory.check()` found a law of `docs/laws.md` broken. `violations` holds one line per finding."""

    def __init__(self, violations: list[str]) -> None:
        super().__init__(
            "; ".join(violations[:8]) + ("" if len(violations) <= 8 else f"; and {len(violations) - 8} more")
        )
        self.violations = violations
