"""The sections that say how much memory each tier has and when blocks move."""

from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hybridkv.service.config.sections import GIB, KIB, MIB, Section
from hybridkv.service.config.values import (
    AbsolutePath,
    Bytes,
    Count,
    Devices,
    Fraction,
    NumaNode,
    OptionalPath,
    PageLock,
    Policy,
    PositiveSeconds,
    Seconds,
    parse_bytes,
)

MIN_POOL_BYTES = 64 * KIB  # 16 extents of one page
MIN_DISK_BYTES = MIB
MAX_CAPACITY_BYTES = 1 << 50

Capacity = Annotated[Bytes, Field(ge=MIN_POOL_BYTES, le=MAX_CAPACITY_BYTES)]

_HIGH = "Used fraction above which blocks are moved down; 1.0 = off"
_LOW = "Used fraction at which moving down stops; below high_watermark, or 1.0 with it"
_POLICY = "Which blocks go first"
_IDLE = "A block not used for this long is moved down; 0 = off"
_MIN_BYTES = "Under memory pressure the tier gives memory back down to this; capacity_bytes where that is smaller"


class _Tier(Section):
    """What every tier has: how large it is, when it is full, and who goes first."""

    capacity_bytes: Capacity = Field(default=GIB, description="Size of the tier")
    high_watermark: Fraction = Field(default=0.95, description=_HIGH)
    low_watermark: Fraction = Field(default=0.90, description=_LOW)
    policy: Policy = Field(default="lru", description=_POLICY)

    @field_validator("low_watermark")
    @classmethod
    def _low_below_high(cls, low: float, info: ValidationInfo) -> float:
        high = info.data.get("high_watermark", 2.0)
        if low >= high and not low == high == 1.0:
            raise ValueError(f"must be below high_watermark ({high:g}), or both 1.0 to turn them off")
        return low


class _MappedTier(_Tier):
    """What the tiers in memory share."""

    idle_timeout_s: Seconds = Field(default=300.0, description=_IDLE)
    demote_below_accesses: Count = Field(default=0, description="A block used fewer times is moved down; 0 = off")
    min_residency_s: Seconds = Field(
        default=5.0, description="How long a block stays before demote_below_accesses applies"
    )
    min_bytes: Bytes = Field(default=0, ge=0, description=_MIN_BYTES)

    @model_validator(mode="before")
    @classmethod
    def _default_floor_fits(cls, given: Any) -> Any:
        """A small tier needs no `min_bytes` of its own: the default floor is cut to its capacity."""
        if not isinstance(given, dict) or "min_bytes" in given or "capacity_bytes" not in given:
            return given
        try:
            capacity = parse_bytes(given["capacity_bytes"])
        except ValueError:  # reported for capacity_bytes itself
            return given
        return {**given, "min_bytes": max(0, min(cls.model_fields["min_bytes"].default, capacity))}

    @field_validator("min_bytes")
    @classmethod
    def _floor_within_capacity(cls, floor: int, info: ValidationInfo) -> int:
        if floor > (capacity := info.data.get("capacity_bytes", MAX_CAPACITY_BYTES)):
            raise ValueError(f"must be at most capacity_bytes ({capacity})")
        return floor


class GpuConfig(_MappedTier):
    """One pool of blocks per device."""

    devices: Devices = Field(default=(), description="Devices with a pool, in order: cuda:N, or host:N (host memory)")
    capacity_bytes: Capacity = Field(default=GIB, description="Size of the pool on each device")


class CpuConfig(_MappedTier):
    """Host memory that workers map."""

    idle_timeout_s: Seconds = Field(default=600.0, description=_IDLE)
    min_bytes: Bytes = Field(default=64 * MIB, ge=0, description=_MIN_BYTES)
    shm_dir: AbsolutePath = Field(default="/dev/shm", description="Directory of the shared-memory files")
    page_lock: PageLock = Field(
        default="auto", description="Page-lock host memory: where CUDA is used, always, or never"
    )
    huge_pages: bool = Field(default=False, description="Ask for huge pages")
    numa_node: NumaNode = Field(
        default=None, description="NUMA node the memory is taken from; unset = the kernel's choice"
    )


class DiskConfig(_Tier):
    """Blocks that outlive the daemon."""

    path: OptionalPath = Field(default="", description="Directory of the disk tier; empty = no disk tier")
    capacity_bytes: Capacity = Field(
        default=8 * GIB, ge=MIN_DISK_BYTES, description="Most bytes the directory may take"
    )
    high_watermark: Fraction = Field(
        default=0.98, description="Used fraction above which blocks are evicted; 1.0 = off"
    )
    low_watermark: Fraction = Field(
        default=0.95, description="Used fraction at which evicting stops; below high_watermark, or 1.0 with it"
    )
    admit_min_accesses: Count = Field(default=0, description="A block used fewer times is dropped instead of written")
    verify_at_start: bool = Field(
        default=True, description="After an unclean stop, verify every segment before it is used"
    )


class PagingConfig(Section):
    """Sequences: virtual address spaces over blocks."""

    page_blocks: int = Field(default=1, ge=1, le=256, description="Blocks of a page of a new sequence; a power of two")
    idle_timeout_s: Seconds = Field(
        default=0.0, description="A sequence that nobody used for this long leaves the GPU tier; 0 = off"
    )
    sticky_limit: Fraction = Field(
        default=0.25, description="Fraction of a pool that may be sticky, and likewise kept for attention windows"
    )
    sequences_per_session_count: int = Field(
        default=4096, ge=1, le=1_000_000, description="Most sequences of one session"
    )
    positions_count: int = Field(default=16_777_216, ge=1, le=1 << 40, description="Most tokens of one sequence")

    @field_validator("page_blocks")
    @classmethod
    def _power_of_two(cls, size: int) -> int:
        if size & (size - 1):
            raise ValueError("must be a power of two")
        return size


class MigrationConfig(Section):
    """When blocks move, and how much of the machine that may take."""

    interval_s: PositiveSeconds = Field(default=0.5, description="Time between two looks at the tiers")
    inflight_bytes: Bytes = Field(default=256 * MIB, ge=4 * KIB, description="Most bytes being copied at a time")
    batch_bytes: Bytes = Field(default=16 * MIB, ge=4 * KIB, le=GIB, description="Most bytes of one batch of copies")
    background_bytes_per_s: Bytes = Field(
        default=1_000_000_000, ge=0, description="Cap on background copies where no CUDA is used; 0 = no cap"
    )
    lane_slots_count: int = Field(default=16, ge=1, le=4096, description="CPU slots reserved for lanes, per layout")
    promote_at_accesses: Count = Field(
        default=2, description="A block is moved up at this many accesses within promote_window_s; 0 = off"
    )
    promote_window_s: PositiveSeconds = Field(default=60.0, description="Window in which promote_at_accesses counts")
    chain_prefetch_max_blocks: int = Field(
        default=32, ge=0, le=4096, description="Most blocks fetched ahead of a chain that was acquired; 0 = off"
    )
    decay_half_life_s: PositiveSeconds = Field(default=600.0, description="An access counts half after this time")
    cooldown_s: Seconds = Field(
        default=5.0, description="A block that moved is not moved again in the background for this long"
    )
    explain_moves_count: int = Field(
        default=65_536, ge=1, le=1_000_000, description="Moves that are remembered for explain; the oldest give way"
    )
    host_pressure_high: Fraction = Field(
        default=0.95, description="Used fraction of host memory above which the CPU tier gives memory back; 1.0 = off"
    )
    device_pressure_high: Fraction = Field(
        default=1.0, description="Used fraction of device memory above which the GPU tier gives memory back; 1.0 = off"
    )

    @field_validator("batch_bytes")
    @classmethod
    def _batch_within_inflight(cls, size: int, info: ValidationInfo) -> int:
        if size > (inflight := info.data.get("inflight_bytes", size)):
            raise ValueError(f"must be at most inflight_bytes ({inflight})")
        return size
