"""Which versions of client and daemon work together: those of neighbouring minor versions.

Fields of the wire are only ever added, and a minor version may stop to use one only when the version before it could do without
already. So a client of minor version N works with daemons of N - 1, N and N + 1, and a host can be upgraded one side at a time.
"""

import re

from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(\..{0,64})?")
_NEIGHBOURS = 1


def check_versions(client: str, daemon: str) -> None:
    """Raises FailedPreconditionError naming both when they do not work together, InvalidArgumentError when the client's is no
    version. A client that names none is taken at its word that it speaks hybridkv.v1."""
    if not client:
        return
    theirs, ours = _VERSION.fullmatch(client), _VERSION.fullmatch(daemon)
    if theirs is None or ours is None:
        raise InvalidArgumentError("client_version", f"{client[:80]!r} is no version like {daemon}")
    if theirs[1] != ours[1] or abs(int(theirs[2]) - int(ours[2])) > _NEIGHBOURS:
        raise FailedPreconditionError(
            f"client_version: the client has hybridkv {client}, the daemon {daemon}: these work together only with the same "
            "major and the same or neighbouring minor versions; upgrade the older one"
        )
