"""Sessions as the facade keeps them: who is attached, what they may map, and how their holds end."""

import hmac
import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hybridkv.migration.memory import Memory
from hybridkv.migration.migrator import Migrator
from hybridkv.service.config import Config
from hybridkv.service.exports import SessionExports
from hybridkv.service.replies import Attached, LimitsInfo, PoolInfo
from hybridkv.service.side.handles import handles_to_extra
from hybridkv.service.side.protocol import RegionKind
from hybridkv.service.side.server import RegionOffer
from hybridkv.service.tenants import check_leases_quota
from hybridkv.tiers.directory import Directory
from hybridkv.tiers.directory.books import MappedBook
from hybridkv.tiers.directory.holds import Reservation, Session
from hybridkv.tiers.errors import (
    FailedPreconditionError,
    ForeignHoldError,
    InvalidArgumentError,
    NamespaceMismatchError,
    NotFoundError,
    ResourceExhaustedError,
)
from hybridkv.tiers.namespace import Namespace, owned_fingerprint
from hybridkv.tiers.pools import MIN_BLOCK_BYTES
from hybridkv.tiers.process import GONE, boot_id, start_time
from hybridkv.tiers.shm import SharedRegion
from hybridkv.tiers.states import Tier


@dataclass(slots=True)
class _Record:
    """What belongs to a session and is not the directory's business.

    `exports` is None for a session of this very process, which cannot import its own device memory.
    """

    token: bytes
    pid: int
    told: LimitsInfo
    exports: SessionExports | None
    owner: str | None = None  # the tenant it belongs to
    proof: bool = False
    """Its processes are watched: their end will be told."""
    broken_at: float | None = None
    entries: dict[int, int] = field(default_factory=dict)
    """Of the session table, by pid of the process that maps the regions."""
    block_tokens: int = 1
    lapsed: bool = False


class SessionBook:
    """Attaches, maps and ends sessions. Thread-safe."""

    def __init__(self, directory: Directory, memory: Memory, migrator: Migrator, config: Config, epoch: int) -> None:
        self._directory = directory
        self._memory = memory
        self._migrator = migrator
        self._config = config
        self._epoch = epoch
        self._records: dict[int, _Record] = {}
        self.on_end: Callable[[int], None] = lambda _session: None
        """Called under the lock when a session ends or lapses, before its holds do."""
        self._pools = self._describe_pools()
        self._read_only: dict[tuple[int, RegionKind], int] = {}
        self._entries: list[int] = []
        headers = directory.state.mapped(memory.cpu_index).headers
        if headers is not None:
            taken = memory.frozen.entries
            self._entries = [entry for entry in range(len(headers.sessions) - 1, -1, -1) if entry not in taken]
            memory.frozen.on_freed = self._entries.append

    def _describe_pools(self) -> tuple[PoolInfo, ...]:
        return tuple(
            PoolInfo(
                book.index,
                book.id.tier,
                book.id.device,
                kind,
                book.capacity_bytes,
                book.table.extent_bytes if isinstance(book, MappedBook) else 0,
            )
            for book, kind in zip(self._directory.books, self._memory.kinds(), strict=True)
        )

    @property
    def count(self) -> int:
        return len(self._records)

    # ------------------------------------------------------------------------------------------------ attach

    def attach(
        self,
        space: Namespace,
        *,
        fingerprint: bytes | None,
        block_bytes: int | None,
        pid: int | None,
        in_process: bool = False,
        owner: str | None = None,
    ) -> Attached:
        """See `Host.attach`."""
        size = space.layout.block_bytes
        if fingerprint is not None and fingerprint != space.fingerprint:
            raise NamespaceMismatchError(
                f"fingerprint: the client computed {fingerprint.hex()}, the daemon {space.fingerprint.hex()}"
            )
        if block_bytes is not None and block_bytes != size:
            raise NamespaceMismatchError(f"block_bytes: the client computed {block_bytes}, the daemon {size}")
        self._check_block_fits(size)
        while True:
            self._migrator.prepare(size)
            with self._directory.lock:
                # The last session of this size may end in between, and what was prepared go with it.
                if self._migrator.is_prepared(size):
                    return self._open(space, pid or 0, in_process, owner)

    def _open(self, space: Namespace, pid: int, in_process: bool, owner: str | None) -> Attached:
        limits = self._config.limits
        if len(self._records) >= limits.sessions_count:
            raise ResourceExhaustedError("limits.sessions_count", f"{len(self._records)} are attached, the limit")
        known_by = space.fingerprint if owner is None else owned_fingerprint(owner, space.fingerprint)
        size, limit = space.layout.block_bytes, limits.namespaces_count
        session = self._directory.open_session(
            self._directory.add_space_by(known_by, size, space.key_bytes, limit=limit)
        )
        exports = None if in_process else SessionExports(self._memory.device_pools)
        tokens = space.layout.block_tokens
        self._records[session.id] = _Record(
            secrets.token_bytes(16), pid, self._limits(), exports, owner, block_tokens=tokens
        )
        session.maps = in_process
        return self._attached(session.id, space)

    def _check_block_fits(self, size: int) -> None:
        if size < MIN_BLOCK_BYTES:
            raise InvalidArgumentError("block_bytes", f"{size}: under the limit of {MIN_BLOCK_BYTES}")
        for book in self._directory.books:
            if isinstance(book, MappedBook) and size > book.table.extent_bytes:
                raise InvalidArgumentError(
                    "block_bytes",
                    f"{size}: over {book.table.extent_bytes}, an extent of the {book.id} pool (a larger pool has larger ones)",
                )
            if book.capacity_slots(size) < 1:
                raise InvalidArgumentError("block_bytes", f"{size}: no such block fits the {book.id} pool")

    def _attached(self, session: int, space: Namespace) -> Attached:
        return Attached(
            session,
            self._records[session].token,
            self._epoch,
            space.fingerprint,
            space.layout.block_bytes,
            space.key_bytes,
            self._pools,
            self._records[session].told,
        )

    def _limits(self) -> LimitsInfo:
        limits, daemon = self._config.limits, self._config.daemon
        return LimitsInfo(
            limits.keys_per_call_count,
            limits.message_bytes,
            limits.part_bytes,
            daemon.lease_s,
            daemon.reservation_s,
            daemon.grace_s,
        )

    # ------------------------------------------------------------------------------------------------ regions

    def regions(self, session: int, token: bytes) -> list[RegionOffer]:
        """See `Host.regions`."""
        with self._directory.lock:
            exports, offers = self._record(session, token).exports, []
            if self._config.daemon.isolation == "strict":
                raise FailedPreconditionError("daemon.isolation is strict: no worker maps memory")
            for info in self._pools:
                if info.kind == "host":
                    offers += self._offers_of(info)
                elif info.kind == "cuda":
                    offers.append(self._headers_offer(info))
        if exports is not None:  # without the lock: it waits while the device allocates
            offers += [self._device_offer(info, exports) for info in self._pools if info.kind == "cuda"]
        return offers

    def _record(self, session: int, token: bytes) -> _Record:
        record = self._records.get(session)
        if record is None:
            raise NotFoundError(f"session: {session} is not attached")
        if not hmac.compare_digest(record.token, token):
            raise ForeignHoldError(f"token: not that of session {session}")
        return record

    def _offers_of(self, info: PoolInfo) -> list[RegionOffer]:
        region = self._memory.region_of(info.index)
        name = str(self._directory.books[info.index].id)
        return [
            RegionOffer(name, info.index, RegionKind.DATA_RW, region.fd, region.nbytes),
            self._read_only_offer(info, RegionKind.DATA_RO, region),
            self._headers_offer(info),
        ]

    def _headers_offer(self, info: PoolInfo) -> RegionOffer:
        headers = self._directory.state.mapped(info.index).headers
        assert headers is not None
        return self._read_only_offer(info, RegionKind.HEADERS, headers.region)

    def _read_only_offer(self, info: PoolInfo, kind: RegionKind, region: SharedRegion) -> RegionOffer:
        if (info.index, kind) not in self._read_only:
            self._read_only[info.index, kind] = region.read_only_fd()
        name = str(self._directory.books[info.index].id)
        return RegionOffer(name, info.index, kind, self._read_only[info.index, kind], region.nbytes)

    def _device_offer(self, info: PoolInfo, exports: SessionExports) -> RegionOffer:
        uuid = self._memory.device_of(info.index).uuid
        extra = handles_to_extra(uuid, exports.handles(info.index))
        name = str(self._directory.books[info.index].id)
        return RegionOffer(name, info.index, RegionKind.CUDA, None, info.capacity_bytes, extra)

    def on_mapped(self, session: int, pid: int) -> None:
        """See `Host.on_mapped`."""
        with self._directory.lock:
            record = self._records.get(session)
            if record is None:
                raise NotFoundError(f"session: {session} is not attached")
            owner = self.live(session)
            self._enter(owner, record, pid)
            owner.maps = record.proof = True
            record.pid = pid or record.pid

    def _enter(self, session: Session, record: _Record, pid: int) -> None:
        """Note in the session table who maps the regions: the next daemon goes by it.

        Raises ResourceExhaustedError when it is full.
        """
        headers = self._directory.state.mapped(self._memory.cpu_index).headers
        if headers is None or pid in record.entries:
            return
        if not self._entries:
            raise ResourceExhaustedError("session table", f"all {len(headers.sessions)} entries are in use")
        entry = self._entries.pop()
        record.entries[pid] = entry
        started = start_time(pid) if pid else 0
        headers.put_session(entry, session.id, pid, GONE if started is None else started, boot_id(), self._epoch)
        if not session.owner:
            session.owner = entry + 1
            for hold in self._directory.state.ledger.of_session(session):
                if isinstance(hold, Reservation) and hold.told:
                    self._directory.writes.own(hold)

    def confirm_unmapped(self, session: int, epoch: int, former: int) -> bool:
        """See `Host.confirm_unmapped`."""
        with self._directory.lock:
            record = self._records.get(session)
            pids = list(record.entries) if record is not None else []
        # Of several processes that map one session, nobody knows which one speaks.
        return len(pids) == 1 and pids[0] != 0 and self._memory.frozen.confirm(epoch, former, pids[0])

    # ------------------------------------------------------------------------------------------------ end

    def detach(self, session: int) -> None:
        """See `Host.detach`."""
        self._migrator.fences.settle()
        self._end(session)

    def on_gone(self, session: int) -> None:
        """See `Host.on_gone`."""
        self._end(session)

    def _end(self, number: int) -> None:
        with self._directory.lock:
            record = self._records.pop(number, None)
            session = self._directory.state.ledger.sessions.get(number)
            if session is not None:
                self._migrator.demand.forget_session(number)
                self.on_end(number)
                self._migrator.fences.forget(number)
                self._directory.end_session(session)
                self._retire(self._directory.state.spaces[session.namespace].block_bytes)
            headers = self._directory.state.mapped(self._memory.cpu_index).headers
            if record is not None and headers is not None:
                for entry in record.entries.values():
                    headers.clear_session(entry)
                self._entries += record.entries.values()
        if record is not None and record.exports is not None:
            record.exports.close()
        self._migrator.stir()

    def _retire(self, size: int) -> None:
        """Under the lock: was that the last session of a worker with blocks of this size? The verifier's come and go unseen."""
        state = self._directory.state
        workers = (session for number, session in state.ledger.sessions.items() if number in self._records)
        if not any(state.spaces[other.namespace].block_bytes == size for other in workers):
            self._migrator.retire(size)

    def stream_broken(self, session: int) -> None:
        """See `Host.stream_broken`."""
        with self._directory.lock:
            record = self._records.get(session)
            if record is not None and record.broken_at is None:
                record.broken_at = self._directory.state.clock.now()

    def expire(self) -> None:
        """Sessions whose grace is over lapse. A lapsed one stays on record until its process is proved gone."""
        now = self._directory.state.clock.now()
        ended = []
        with self._directory.lock:
            for number, record in self._records.items():
                due = record.broken_at is not None and now - record.broken_at >= self._config.daemon.grace_s
                session = self._directory.state.ledger.sessions.get(number)
                if not due or record.lapsed or session is None:
                    continue
                self._migrator.demand.forget_session(number)
                self.on_end(number)
                self._directory.lapse_session(session)
                record.lapsed = True
                maps_devices = record.proof and record.exports is not None and record.exports.used
                if number not in self._directory.state.ledger.sessions and not maps_devices:
                    ended.append(number)
        for number in ended:
            self._end(number)

    # ------------------------------------------------------------------------------------------------ questions

    def live(self, session: int) -> Session:
        """The directory's session. NotFoundError when it is not attached."""
        return self._directory.state.ledger.session(session)

    def told(self, session: int) -> LimitsInfo:
        """What the session was told when it attached. It renews and splits by that, so that holds for its life."""
        record = self._records.get(session)
        return self._limits() if record is None else record.told

    def block_tokens(self, session: int) -> int:
        """Tokens of a block of the session's namespace."""
        return self._records[session].block_tokens

    def owner_of(self, session: int) -> str | None:
        """See `Host.owner_of`."""
        return record.owner if (record := self._records.get(session)) else None

    def maps(self, session: int) -> bool:
        """See `Host.maps`."""
        return bool((record := self._records.get(session)) and record.proof)

    def retune(self, config: Config) -> None:
        """Go by `config` from now on; under the lock. Sessions keep the limits they were told."""
        self._config = config

    def check_holds(self, session: Session) -> None:
        check_leases_quota(self._config, self.owner_of(session.id), self.holds_by_owner)
        limit = self._config.limits.holds_per_session_count
        if len(session.holds) >= limit:
            raise ResourceExhaustedError(
                "limits.holds_per_session_count",
                f"this session has {len(session.holds)} leases and reservations, the limit",
            )

    def holds_by_owner(self) -> Counter[str]:
        """Leases and reservations of all sessions of each tenant. Under the lock."""
        sessions, held = self._directory.state.ledger.sessions, Counter[str]()
        for number, session in sessions.items():
            held[self.owner_of(number) or ""] += len(session.holds)
        return held

    def target(self, tier: Tier | None, device: int | None) -> int:
        """The pool a prefetch goes to."""
        return self._migrator.demand.placement.target_of(tier, device)

    def close(self) -> None:
        for fd in self._read_only.values():
            os.close(fd)
        self._read_only.clear()
