"""Which pools serve a call, and where a block that lies elsewhere is brought. Called under the directory's lock."""

from hybridkv.tiers.directory import Directory
from hybridkv.tiers.errors import InvalidArgumentError
from hybridkv.tiers.states import Tier


class Placement:
    """Least-used placement over the pools of a tier."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def acceptable(self, tier: Tier | None, device: int | None) -> tuple[list[int], int]:
        """Pools whose copy serves, best first, and the one a block is brought to otherwise."""
        state = self._directory.state
        cpu = state.pools_in(Tier.CPU)[0]
        gpus = [p for p in state.pools_in(Tier.GPU) if device is None or state.books[p].id.device == device]
        if device is not None and not gpus:
            raise InvalidArgumentError(
                "device", f"{device}: no such device; {len(state.pools_in(Tier.GPU))} have a pool"
            )
        if tier is Tier.CPU:
            return [cpu], cpu
        if tier is Tier.GPU:
            if not gpus:
                raise InvalidArgumentError("tier", "gpu: this daemon has no GPU tier")
            return gpus, self.least_used(gpus)
        if tier is Tier.DISK:
            raise InvalidArgumentError("tier", "disk: only mapped tiers (gpu, cpu) can be acquired or reserved")
        return [*gpus, cpu], cpu

    def target_of(self, tier: Tier | None, device: int | None) -> int:
        """The pool that a block asked for in `tier` is brought to."""
        return self.acceptable(tier, device)[1]

    def least_used(self, pools: list[int]) -> int:
        """The pool with the smallest used fraction."""
        books = self._directory.books
        return min(pools, key=lambda p: (books[p].used_bytes / books[p].capacity_bytes, p))
