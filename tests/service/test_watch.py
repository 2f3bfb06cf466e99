"""The event stream over the wire: what it tells, in which order, and what it does with those who do not listen."""

import itertools
import resource
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.config import Config, load_config
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.mirror import BlockMirror
from hybridkv.service.servicers.watch import LOOK_EVERY_S
from hybridkv.service.watching import WatchEvent, WatchKind
from hybridkv.tiers.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from tests.migration.gates import PATIENCE_S
from tests.service.conftest import make_space
from tests.service.model.watcher import Watcher, listed
from tests.service.wire import TIMEOUT_S, Wire, key, read, some_keys, wired, write

BUFFER_BYTES = 64 << 10


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    """Three tiers and a short log; every test uses a namespace of its own."""
    folder = tmp_path_factory.mktemp("watch")
    with DaemonThread(config_in(folder)) as running:
        yield running
        assert running.host.check() == []


def config_in(folder: Any) -> Config:
    return load_config(
        overrides={
            "daemon.socket": f"unix://{folder}/kv.sock",
            "cpu.shm_dir": str(folder),
            "cpu.capacity_bytes": "1MiB",
            "gpu.devices": ["host:0"],
            "gpu.capacity_bytes": "256KiB",
            "disk.path": str(folder / "disk"),
            "disk.capacity_bytes": "16MiB",
            "limits.watch_buffer_bytes": BUFFER_BYTES,
            "limits.watchers_count": 3,
            "migration.interval_s": 0.05,
            "migration.host_pressure_high": 1.0,
        },
        env={},
    )


@pytest.fixture
def client(shared: DaemonThread) -> Iterator[AdminClient]:
    with AdminClient(shared.address) as admin:
        yield admin


@pytest.fixture
def kv(shared: DaemonThread) -> Iterator[Wire]:
    with wired(shared.address) as connected:
        yield connected


@pytest.fixture
def mine(request: pytest.FixtureRequest) -> Namespace:
    return make_space(salt=request.node.name)


def until(events: Iterator[WatchEvent], kind: WatchKind) -> list[WatchEvent]:
    """Events up to the first of this kind."""
    found = []
    for event in events:
        found.append(event)
        if event.kind is kind:
            return found
    raise AssertionError(f"the stream ended without {kind!r}: {found}")


def names(numbers: list[int]) -> set[bytes]:
    return {key(number) for number in numbers}


def wait_until_left(daemon: DaemonThread) -> None:
    """The streams that tests closed have ended at the daemon."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if daemon.host.feed.figures["watchers"] == 0:
            return
        pause.wait(0.01)
    raise AssertionError("a watcher stays")


def test_a_block_s_life_is_told(client: AdminClient, kv: Wire, mine: Namespace) -> None:
    events = client.watch(fingerprints=[mine.fingerprint])
    stream = kv.attach(mine)
    first = next(events)
    assert (first.kind, first.epoch) == (WatchKind.EPOCH, stream.reply.epoch)
    write(kv, stream.session, 1, 2, 3)
    (sealed,) = until(events, WatchKind.SEALED)
    assert (set(sealed.keys), sealed.target, sealed.source, sealed.count) == (names([1, 2, 3]), "gpu0", None, 3)
    assert sealed.fingerprint == mine.fingerprint
    client.drain(TIMEOUT_S)
    moved = until(events, WatchKind.MOVED)
    assert [(set(event.keys), event.source, event.target, event.kept, event.reason) for event in moved] == [
        (names([1, 2, 3]), "gpu0", "disk", True, "drain")
    ]
    kv.kv.Remove(pb.RemoveRequest(session=stream.session, **some_keys(2)), timeout=TIMEOUT_S)
    (removed,) = until(events, WatchKind.REMOVED)
    assert (removed.keys, removed.reason) == ((key(2),), "remove")
    assert client.clear(mine.fingerprint) == 2
    (cleared,) = until(events, WatchKind.CLEARED)
    assert (cleared.keys, cleared.count, cleared.fingerprint) == ((), 2, mine.fingerprint)
    told = [first.sequence - 1, sealed.sequence, moved[0].sequence, removed.sequence, cleared.sequence]
    assert told == sorted(set(told))


def test_filters_leave_out_and_numbers_stay(client: AdminClient, kv: Wire, mine: Namespace) -> None:
    everything, removals = client.watch(), client.watch(kinds=[WatchKind.REMOVED])
    of_another = client.watch(fingerprints=[bytes(32)])
    stream = kv.attach(mine)
    write(kv, stream.session, 1)
    kv.kv.Remove(pb.RemoveRequest(session=stream.session, **some_keys(1)), timeout=TIMEOUT_S)
    all_of_them = until(everything, WatchKind.REMOVED)
    assert [event.kind for event in all_of_them] == [WatchKind.EPOCH, WatchKind.SEALED, WatchKind.REMOVED]
    assert [event.kind for event in until(removals, WatchKind.REMOVED)] == [WatchKind.EPOCH, WatchKind.REMOVED]
    assert next(of_another).kind is WatchKind.EPOCH
    last = all_of_them[-1].sequence
    assert all_of_them[1].sequence == last - 1
    # Whoever comes back with a number that is remembered misses nothing.
    removals.close()
    again = client.watch(from_sequence=last, epoch=stream.reply.epoch)
    assert [(event.kind, event.sequence) for event in itertools.islice(again, 2)] == [
        (WatchKind.EPOCH, last), (WatchKind.REMOVED, last)
    ]  # fmt: skip


def test_what_cannot_be_told_is_a_gap(shared: DaemonThread, client: AdminClient) -> None:
    wait_until_left(shared)
    host = shared.host
    begin = host.feed.next_sequence
    churn(shared, 100)  # nobody watches: the log fills, and is given up
    events = client.watch(from_sequence=begin, epoch=host.epoch)
    epoch, gap = itertools.islice(events, 2)
    assert (epoch.kind, epoch.sequence) == (WatchKind.EPOCH, begin)
    assert (gap.kind, gap.sequence) == (WatchKind.GAP, host.feed.next_sequence)
    of_another = client.watch(from_sequence=1, epoch=host.epoch + 1)
    assert [event.kind for event in itertools.islice(of_another, 2)] == [WatchKind.EPOCH, WatchKind.GAP]
    mirror = BlockMirror()
    assert not mirror.apply_all([epoch, gap])
    mirror.load(client.snapshot())
    assert mirror.blocks == listed(host)


END, CHURN = make_space(salt="the end"), make_space(salt="churn")


def verify_from(daemon: DaemonThread, mirror: BlockMirror) -> None:
    """What the mirror has not heard of yet is in the log."""
    watcher = Watcher(daemon.host)
    watcher.mirror = mirror
    watcher.verify()
    daemon.host.feed.leave()


def churn(daemon: DaemonThread, count: int, space: Namespace = CHURN) -> None:
    """So many blocks sealed and removed again, without a wire between: two events each."""
    host = daemon.host
    session = host.attach(space).session
    for number in range(count):
        ticket = host.reserve(session, Keys.of([key(number)]))
        assert ticket.wait(PATIENCE_S)
        host.seal(session, ticket.reply().reservation, None, None)
        host.remove(session, Keys.of([key(number)]))
    host.detach(session)


def flood(daemon: DaemonThread, space: Namespace, count: int, pause_s: float = 0.002) -> None:
    """So many events of 48 KB in a row, more than the connection of a peer that does not read takes in."""
    directory, feed = daemon.host.directory, daemon.host.feed
    known = directory.space(space.fingerprint)
    assert known is not None
    rows = np.repeat(directory.of_space(known.index), 1500)
    pause = threading.Event()
    for _ in range(count):
        with directory.lock:
            feed.sealed(rows, 0)
        pause.wait(pause_s)


def test_bad_requests_are_refused(client: AdminClient, shared: DaemonThread) -> None:
    ahead = shared.host.feed.next_sequence + 5
    with pytest.raises(InvalidArgumentError, match="from_sequence"):
        client.watch(from_sequence=ahead)
    with pytest.raises(InvalidArgumentError, match="fingerprints: one has 3 bytes"):
        client.watch(fingerprints=[b"abc"])
    for kind in (WatchKind.GAP, WatchKind.EPOCH):
        with pytest.raises(InvalidArgumentError, match="cannot be asked for"):
            client.watch(kinds=[kind])
    with pytest.raises(InvalidArgumentError, match="fingerprint"):
        client.snapshot(b"abc")
    assert client.snapshot(bytes(32)).blocks == {}


def test_snapshots_are_counted(client: AdminClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridkv.service.servicers.watch.SNAPSHOTS", 0)
    with pytest.raises(ResourceExhaustedError, match="snapshots: 0 are being sent, 0 are allowed"):
        client.snapshot()


def test_watchers_are_counted(client: AdminClient, shared: DaemonThread) -> None:
    wait_until_left(shared)
    streams = [client.watch() for _ in range(3)]
    with pytest.raises(ResourceExhaustedError, match=r"limits\.watchers_count: 3 are open, 3 are allowed"):
        client.watch()
    for stream in streams:
        next(stream)
        stream.close()
    wait_until_left(shared)
    client.watch().close()


def test_replayed_over_a_snapshot_it_is_the_directory(
    shared: DaemonThread, client: AdminClient, mine: Namespace
) -> None:
    """Workers write, remove and clear while tiers overflow and a watcher follows; at the end both say the same."""
    wait_until_left(shared)
    mirror, events = BlockMirror(), client.watch()

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        with wired(shared.address) as wire:
            stream = wire.attach(mine)
            for _ in range(25):
                numbers = random.integers(0, 2000) + np.arange(random.integers(1, 12))
                write(wire, stream.session, *numbers.tolist())
                removed = random.integers(0, 2000, 20).tolist()
                wire.kv.Remove(pb.RemoveRequest(session=stream.session, **some_keys(*removed)), timeout=TIMEOUT_S)
                read(wire, stream.session, *numbers[:3].tolist())
                if random.random() < 0.04:
                    client.clear(mine.fingerprint)
            stream.detach()

    def follow() -> None:
        for event in events:
            if not mirror.apply(event):
                mirror.load(client.snapshot())
            if event.kind is WatchKind.REMOVED and event.fingerprint == END.fingerprint:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    assert shared.host.migrator.quiesce(PATIENCE_S)
    churn(shared, 1, END)  # tells the follower that this is all
    follower.join(PATIENCE_S)
    assert not follower.is_alive()
    with shared.host.directory.lock:
        if mirror.next_sequence == shared.host.feed.next_sequence:
            assert mirror.blocks == listed(shared.host)
        else:  # a background pass moved something meanwhile
            verify_from(shared, mirror)
    assert any(len(pools) for pools in mirror.blocks.values())


def test_a_watcher_that_never_reads_costs_nothing(shared: DaemonThread, client: AdminClient, mine: Namespace) -> None:
    """Its stream stands still, the log keeps its bound, others are told everything; when it reads at last it hears of a
    gap."""
    wait_until_left(shared)
    deaf, host = client.watch(), shared.host
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with wired(shared.address) as wire:
        stream = wire.attach(mine)
        assert write(wire, stream.session, 1, 2) == [1, 1]
        flood(shared, mine, 200)
        assert read(wire, stream.session, 1)[0] == [1]
        assert host.feed.figures["buffered_bytes"] <= BUFFER_BYTES
        stream.detach()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    told = until(deaf, WatchKind.GAP)
    assert told[-1].sequence > told[-2].sequence + 1
    assert host.feed.figures["gaps"] >= 1


def test_a_watcher_that_never_reads_is_given_up(
    shared: DaemonThread, client: AdminClient, mine: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until_left(shared)
    monkeypatch.setattr(shared.daemon._watchers, "patience_s", 0.2)
    deaf = client.watch()
    with wired(shared.address) as wire:
        stream = wire.attach(mine)
        write(wire, stream.session, 1, 2)
        for _ in range(500):  # 24 MB at most: its connection takes in a few
            if not shared.host.feed.figures["watchers"]:
                break
            flood(shared, mine, 1, pause_s=2 * LOOK_EVERY_S)
        assert shared.host.feed.figures["watchers"] == 0
        stream.detach()
    with pytest.raises(DeadlineExceededError, match=r"not read within 0\.2 s"):
        until(deaf, WatchKind.CLEARED)


def test_the_end_of_the_daemon_ends_the_stream(tmp_path: Any) -> None:
    with DaemonThread(config_in(tmp_path)) as daemon, AdminClient(daemon.address) as client:
        events = client.watch()
        next(events)
        with wired(daemon.address) as wire:
            stream = wire.attach(make_space())
            write(wire, stream.session, 1)
            stream.cancel()
        daemon.stop()
        with pytest.raises(UnavailableError, match=r"the daemon is stopping|Cancelling all calls"):
            until(events, WatchKind.CLEARED)
