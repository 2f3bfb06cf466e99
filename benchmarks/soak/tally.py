"""What a soak worker did: counts that are written to its file now and then, one JSON object a line, each what is new."""

import json
import time
from collections import Counter
from pathlib import Path

TELL_S = 0.3
OPERATION, ERROR = "op.", "error."
CALL_FREE = "translations_used"
VERIFIED_BLOCKS, VERIFIED_BYTES = "verified_blocks", "verified_bytes"


class WrongBytesError(Exception):
    """A block was served whose bytes are not its key's."""


class Tally:
    """Counts of one worker process. Not thread-safe. A killed worker loses what it did not tell yet, TELL_S of work."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = Counter[str]()
        self._told_at = time.monotonic()

    def note(self, name: str, count: int = 1) -> None:
        self._new[name] += count

    def verified(self, blocks: int, nbytes: int) -> None:
        self.note(VERIFIED_BLOCKS, blocks)
        self.note(VERIFIED_BYTES, nbytes)

    def tell(self, *, now: bool = False) -> None:
        """Write what is new, when it is time."""
        if now or time.monotonic() >= self._told_at + TELL_S:
            self._told_at = time.monotonic()
            with self._path.open("a") as file:
                file.write(json.dumps(self._new) + "\n")
            self._new.clear()


def added_up(folder: Path) -> Counter[str]:
    """What all workers of a soak told. A line that its writer was killed in counts nothing."""
    total = Counter[str]()
    for path in folder.glob("*.tally"):
        for line in path.read_text().splitlines():
            try:
                total.update(json.loads(line))
            except ValueError:
                continue
    return total
