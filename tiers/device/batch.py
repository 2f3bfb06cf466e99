"""A batch of equal blocks to copy: its checks, and the joining of neighbours. Pure but for the pools' use counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv.tiers.device.base import Bytes, Direction, Offsets
from hybridkv.tiers.device.pool import DevicePool
from hybridkv.tiers.errors import InvalidArgumentError


class Runs(NamedTuple):
    """Ranges to copy: starts in the destination and in the source, and lengths; int64, bytes."""

    destinations: Offsets
    sources: Offsets
    lengths: Offsets

    def rows(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.destinations.tolist(), self.sources.tolist(), self.lengths.tolist(), strict=True)


def join_runs(
    destinations: Offsets, sources: Offsets, nbytes: int, breaks: npt.NDArray[np.bool_] | None = None
) -> Runs:
    """Join blocks that follow one another on both sides, in the given order; no run goes on into i where breaks[i]."""
    if len(destinations) == 0:
        return Runs(destinations, sources, destinations)
    starts = np.ones(len(destinations), np.bool_)
    starts[1:] = (np.diff(destinations) != nbytes) | (np.diff(sources) != nbytes)
    if breaks is not None:
        starts |= breaks
    first = np.flatnonzero(starts)
    lengths = np.diff(first, append=len(destinations)) * nbytes
    return Runs(destinations[first], sources[first], lengths)


def changes(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Where a label differs from its predecessor; a break mask for `join_runs`."""
    mask = np.zeros(len(labels), np.bool_)
    mask[1:] = labels[1:] != labels[:-1]
    return mask


@dataclass(frozen=True, slots=True)
class Batch:
    """A checked batch. It keeps `other` alive, and its extents in use until `release`."""

    direction: Direction
    pool: DevicePool
    device_offsets: Offsets
    other: Bytes | DevicePool
    other_offsets: Offsets
    nbytes: int
    uses: tuple[tuple[DevicePool, Offsets], ...]

    @property
    def destinations(self) -> Offsets:
        return self.other_offsets if self.direction is Direction.TO_HOST else self.device_offsets

    @property
    def sources(self) -> Offsets:
        return self.device_offsets if self.direction is Direction.TO_HOST else self.other_offsets

    @property
    def host(self) -> Bytes:
        """The host side of a TO_DEVICE or TO_HOST batch."""
        assert isinstance(self.other, np.ndarray)
        return self.other

    def release(self) -> None:
        """End the use of its extents."""
        for pool, extents in self.uses:
            pool.end_use(extents)


def check_batch(
    direction: Direction,
    pool: DevicePool,
    device_offsets: Offsets,
    other: Bytes | DevicePool,
    other_offsets: Offsets,
    nbytes: int,
) -> Batch:
    """Check the arguments of `Stream.copy` and take the extents in use. Raises InvalidArgumentError."""
    device_offsets, other_offsets = _offsets("device_offsets", device_offsets), _offsets("other_offsets", other_offsets)
    if len(device_offsets) != len(other_offsets):
        raise InvalidArgumentError("other_offsets", f"{len(other_offsets)} for {len(device_offsets)} device_offsets")
    if nbytes <= 0:
        raise InvalidArgumentError("nbytes", f"{nbytes}: must be positive")
    if isinstance(other, DevicePool):
        _check_pools(direction, pool, other)
        one_space = [device_offsets, other_offsets] if other is pool else [device_offsets]
        _check_disjoint(np.concatenate(one_space), nbytes)
    else:
        _check_host(direction, other, other_offsets, nbytes)
        _check_disjoint(other_offsets if direction is Direction.TO_HOST else device_offsets, nbytes)
    uses = _begin_uses(pool, device_offsets, other, other_offsets, nbytes)
    return Batch(direction, pool, device_offsets, other, other_offsets, nbytes, uses)


def _begin_uses(
    pool: DevicePool, device_offsets: Offsets, other: Bytes | DevicePool, other_offsets: Offsets, nbytes: int
) -> tuple[tuple[DevicePool, Offsets], ...]:
    mine = (pool, pool.begin_use(device_offsets, nbytes))
    if not isinstance(other, DevicePool):
        return (mine,)
    try:
        return (mine, (other, other.begin_use(other_offsets, nbytes)))
    except BaseException:
        pool.end_use(mine[1])
        raise


def _offsets(field: str, offsets: Offsets) -> Offsets:
    array = np.array(offsets)  # a copy: the caller may change its own
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(field, f"{array.dtype}{list(array.shape)}: must be int64, one dimension")
    return array.astype(np.int64, copy=False)


def _check_pools(direction: Direction, pool: DevicePool, other: DevicePool) -> None:
    if direction is not Direction.ON_DEVICE:
        raise InvalidArgumentError("other", f"{direction.value}: must be host memory, not a pool")
    if other.device is not pool.device:
        raise InvalidArgumentError("other", f"a pool of {other.device.uuid}, not of {pool.device.uuid}")


def _check_host(direction: Direction, other: Bytes, offsets: Offsets, nbytes: int) -> None:
    if direction is Direction.ON_DEVICE:
        raise InvalidArgumentError("other", "on_device: must be a pool")
    if other.dtype != np.uint8 or other.ndim != 1 or not other.flags.c_contiguous:
        raise InvalidArgumentError("other", "must be a flat contiguous uint8 array")
    if direction is Direction.TO_HOST and not other.flags.writeable:
        raise InvalidArgumentError("other", "to_host: the array is read-only")
    if len(offsets) and (offsets.min() < 0 or offsets.max() + nbytes > other.nbytes):
        raise InvalidArgumentError("other_offsets", f"a block leaves the array's {other.nbytes} bytes")


def _check_disjoint(offsets: Offsets, nbytes: int) -> None:
    if len(offsets) > 1 and int(np.diff(np.sort(offsets)).min()) < nbytes:
        raise InvalidArgumentError("device_offsets", "blocks overlap within one batch, whose order is undefined")
