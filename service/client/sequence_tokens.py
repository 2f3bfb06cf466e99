"""The tokens of a sequence as far as keys need them: how many there are, the keys of full blocks, and the tail behind them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.keys import MAX_TOKEN, Keys, chain
from hybridkv.tiers.namespace import Namespace


@dataclass(frozen=True)
class SequenceTokens:
    """Immutable. `tail` are the tokens behind the last full block, uint32."""

    space: Namespace
    keys: Keys
    tail: npt.NDArray[np.uint32]

    @classmethod
    def none(cls, space: Namespace) -> "SequenceTokens":
        return cls(space, Keys(b"", space.key_bytes), np.zeros(0, np.uint32))

    def __len__(self) -> int:
        return len(self.keys) * self.space.layout.block_tokens + len(self.tail)

    def following(self, tokens: Any) -> "Following":
        """These tokens behind the present ones. Raises InvalidArgumentError."""
        more = _tokens(tokens)
        joined = np.concatenate([self.tail, more])
        keys = chain(self.space, joined, self.keys[len(self.keys) - 1] if len(self.keys) else None)
        left = joined[len(keys) * self.space.layout.block_tokens :]
        after = SequenceTokens(self.space, Keys(self.keys.packed + keys.packed, self.space.key_bytes), left)
        return Following(len(more), after)


@dataclass(frozen=True)
class Following:
    """What `added` more tokens make of a sequence's."""

    added: int
    after: SequenceTokens


def _tokens(tokens: Any) -> npt.NDArray[np.uint32]:
    try:
        values = np.asarray(tokens)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError("tokens", f"must be one-dimensional integers on the host: {error}") from error
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise InvalidArgumentError("tokens", f"must be one-dimensional integers within [0, {MAX_TOKEN}]")
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= MAX_TOKEN:
        raise InvalidArgumentError("tokens", f"must be within [0, {MAX_TOKEN}]")
    return values.astype(np.uint32)
