"""CUDA pools as a worker reaches them, on the fake runtime: two processes of one machine in one of this one.

The daemon and the worker have a CUDA of their own. What the worker's kernels do has not happened until the test lets it.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridkv.service.client import KV, connect, devices, open, rpc
from hybridkv.service.client.core import Budget
from hybridkv.service.client.reservation import Reservation
from hybridkv.service.facade import Host
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.clock import ManualClock
from hybridkv.tiers.errors import FailedPreconditionError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, SealOutcome, Tier
from tests.service.client.conftest import BLOCK_BYTES, chain_of, check_content, content, make_config
from tests.tiers.device.held_cuda import HeldCuda, HeldWorld

GPU_BYTES = 2 << 20
ALLOCATION_BLOCKS = GPU_BYTES // 4 // BLOCK_BYTES
CONFIG = {"gpu__devices": ("cuda:0",), "gpu__capacity_bytes": GPU_BYTES}


class Machine:
    """The daemon's CUDA and the worker's, which sees `visible` devices."""

    def __init__(self, patch: pytest.MonkeyPatch, visible: int = 2) -> None:
        self.world = HeldWorld()
        self.daemon = HeldCuda(self.world)
        self.worker = HeldCuda(self.world, visible)
        patch.setattr("hybridkv.tiers.device.cuda.torch_runtime", lambda: self.daemon)
        patch.setattr("hybridkv.tiers.device.cuda_torch.torch_runtime", lambda: self.worker)

    @property
    def mappings(self) -> int:
        """Allocations of the daemon that another process has open."""
        return sum(allocation.mappings for allocation in self.daemon._allocations.values())

    def kernel(self, view: torch.Tensor, key: bytes, runtime: HeldCuda | None = None) -> None:
        """Fill a block, when the current stream comes to it."""
        runtime = runtime or self.worker
        runtime.kernel(0, runtime.current_stream(0), partial(np.copyto, view.numpy(), content(key)))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(monkeypatch)
    yield made
    gc.collect()
    assert made.world.violations == []


@contextmanager
def served(folder: Path, **overrides: object) -> Iterator[DaemonThread]:
    with DaemonThread(make_config(folder, **CONFIG | overrides)) as daemon:
        yield daemon
        assert daemon.host.check() == []


def worker_of(daemon: DaemonThread, space: Namespace) -> KV:
    return connect(daemon.address, space, timeout_s=20.0)


def enqueue(machine: Machine, slots: Reservation, keys: Keys, runtime: HeldCuda | None = None) -> None:
    for i in slots.new:
        machine.kernel(slots.view(i), keys[i], runtime)


def write(machine: Machine, kv: KV, keys: Keys, parent: bytes | None = None) -> None:
    with kv.reserve(keys, parent=parent, tier="gpu") as slots:
        enqueue(machine, slots, keys)
        assert slots.seal().tolist() == [SealOutcome.SEALED] * len(keys)


def test_blocks_are_written_and_read_in_place_and_copied_once_they_are_there(
    machine: Machine, tmp_path: Path, space: Namespace
) -> None:
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv, worker_of(daemon, space) as other:
        keys = chain_of(kv, 3)
        machine.worker.hold()
        write(machine, kv, keys)
        assert other.lookup(keys).states.tolist() == [Outcome.MISS] * 3
        machine.world.let_run()
        with other.acquire(keys, tier="gpu", timeout_s=10.0) as lease:
            check_content(keys, np.stack([lease.view(i).numpy() for i in range(3)]))
        with other.acquire(keys, tier="cpu", timeout_s=10.0) as below:  # a lane has copied it, checksum and all
            check_content(keys, np.stack([below.array(i) for i in range(3)]))


def test_the_same_in_the_daemon_s_own_process(machine: Machine, tmp_path: Path, space: Namespace) -> None:
    with open(make_config(tmp_path, **CONFIG), space) as kv:
        keys = chain_of(kv, 2)
        machine.daemon.hold()
        with kv.reserve(keys, tier="gpu") as slots:
            enqueue(machine, slots, keys, machine.daemon)
            slots.seal()
        assert kv.lookup(keys).prefix == 0
        machine.world.let_run()
        with kv.acquire(keys, tier="gpu", timeout_s=10.0) as lease:
            check_content(keys, np.stack([lease.view(i).numpy() for i in range(2)]))
            with pytest.raises(FailedPreconditionError, match="device memory"):
                lease.array(0)


def test_device_memory_has_no_arrays(machine: Machine, tmp_path: Path, space: Namespace) -> None:
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv:
        keys = chain_of(kv, 1)
        with kv.reserve(keys, tier="gpu") as slots, pytest.raises(FailedPreconditionError, match="take a view"):
            slots.array(0)
        write(machine, kv, keys)
        with kv.acquire(keys, tier="gpu") as lease, pytest.raises(FailedPreconditionError, match="take a view"):
            lease.array(0)
        with kv.acquire(keys, tier="gpu", views=False) as lease, pytest.raises(FailedPreconditionError, match="read"):
            lease.view(0)


def test_a_lease_s_slots_are_not_reused_while_its_kernels_may_read(
    machine: Machine, tmp_path: Path, space: Namespace
) -> None:
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv:
        keys = chain_of(kv, 2)
        write(machine, kv, keys)
        assert kv.lookup(keys).prefix == 2
        machine.worker.hold()
        with kv.acquire(keys, tier="gpu") as lease:
            machine.worker.kernel(0, machine.worker.current_stream(0), lambda: None)
            assert lease.view(0).shape == (BLOCK_BYTES,)
        kv.remove(keys)
        assert kv.stats()["tiers"]["gpu0"]["used_bytes"] == 2 * BLOCK_BYTES
        machine.world.let_run()
        kv.lookup(keys)
        assert kv.stats()["tiers"]["gpu0"]["used_bytes"] == 0


def test_an_aborted_slot_is_not_reused_while_its_kernels_may_write(
    machine: Machine, tmp_path: Path, space: Namespace
) -> None:
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv:
        machine.worker.hold()
        keys = chain_of(kv, 2)
        with kv.reserve(keys, tier="gpu") as slots:
            enqueue(machine, slots, keys)
        assert kv.stats()["tiers"]["gpu0"]["used_bytes"] == 2 * BLOCK_BYTES
        machine.world.let_run()
        kv.lookup(keys)
        assert kv.stats()["tiers"]["gpu0"]["used_bytes"] == 0


def test_memory_allocated_after_the_attach_is_asked_for(machine: Machine, tmp_path: Path, space: Namespace) -> None:
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv:
        write(machine, kv, chain_of(kv, 1))
        assert machine.mappings == 1
        count = ALLOCATION_BLOCKS // 2
        for start in range(count, 4 * ALLOCATION_BLOCKS, count):
            write(machine, kv, chain_of(kv, count, first_token=16 * start))
        assert machine.mappings == 4


def test_reads_copy_to_arrays_and_tensors(machine: Machine, tmp_path: Path, space: Namespace) -> None:
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv:
        keys = chain_of(kv, 3)
        write(machine, kv, keys)
        assert kv.lookup(keys).tiers.tolist() == [Tier.GPU] * 3
        array, tensor = np.zeros((3, BLOCK_BYTES), np.uint8), torch.zeros(3, BLOCK_BYTES, dtype=torch.uint8)
        apart = [np.zeros(BLOCK_BYTES, np.uint8), torch.zeros(BLOCK_BYTES, dtype=torch.uint8), np.zeros_like(array[0])]
        for out in (array, tensor, apart):
            assert kv.read(keys, out).tolist() == [Outcome.HIT] * 3
            check_content(keys, np.stack([np.asarray(row) for row in out]))
        with kv.acquire(keys, tier="gpu") as lease:
            array[:] = 0
            lease.read_into(array)
            check_content(keys, array)


def test_a_worker_that_sees_none_of_the_devices_gets_the_cpu_tier(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, space: Namespace
) -> None:
    Machine(monkeypatch, visible=0)
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv:
        keys = chain_of(kv, 1)
        with kv.reserve(keys) as slots:
            slots.array(0)[:] = content(keys[0])
            slots.seal()
        assert kv.lookup(keys).tiers.tolist() == [Tier.CPU]
        with pytest.raises(FailedPreconditionError, match="not visible to this process"):
            kv.acquire(keys, tier="gpu")


def test_a_worker_that_sees_one_of_the_devices_uses_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, space: Namespace
) -> None:
    machine = Machine(monkeypatch, visible=1)
    with served(tmp_path, gpu__devices=("cuda:1", "cuda:0")) as daemon, worker_of(daemon, space) as kv:
        keys = chain_of(kv, 1)
        write(machine, kv, keys)
        assert kv.stats()["tiers"]["gpu1"]["used_bytes"] == BLOCK_BYTES
        with pytest.raises(FailedPreconditionError, match="not visible"):
            kv.acquire(keys, tier="gpu", device=0)
        assert kv.acquire(keys, tier="gpu", device=1).prefix == 1


def test_a_goodbye_waits_for_kernels_and_unmaps_first(machine: Machine, tmp_path: Path, space: Namespace) -> None:
    with served(tmp_path) as daemon:
        kv = worker_of(daemon, space)
        keys = chain_of(kv, 1)
        write(machine, kv, keys)
        assert machine.mappings == 1
        gc.collect()
        kv.close()
        assert machine.mappings == 0
        assert daemon.host.session_count == 0
        with worker_of(daemon, space) as other:
            assert other.lookup(keys).prefix == 1  # it was not told goodbye before the kernel had run


def test_a_view_that_outlives_its_client_keeps_the_memory(machine: Machine, tmp_path: Path, space: Namespace) -> None:
    with served(tmp_path) as daemon:
        kv = worker_of(daemon, space)
        keys = chain_of(kv, 1)
        write(machine, kv, keys)
        lease = kv.acquire(keys, tier="gpu")
        part = lease.view(0)[10:20]
        kv.close()
        assert machine.mappings == 1
        assert part.tolist() == content(keys[0])[10:20].tolist()
        assert daemon.host.session_count == 1  # no goodbye: its process may still look
        del part
        gc.collect()
        assert machine.mappings == 0


def test_a_lapsed_session_keeps_its_memory_until_its_process_is_gone(
    machine: Machine, tmp_path: Path, space: Namespace
) -> None:
    clock = ManualClock()
    with DaemonThread(make_config(tmp_path, **CONFIG), make_host=lambda config: Host(config, clock=clock)) as daemon:
        host, pool = daemon.host, daemon.host.memory.device_pools[0]
        kv = worker_of(daemon, space)
        session = kv._link.current(Budget(0.0, 5.0)).attached.session
        with kv.reserve(chain_of(kv, 1), tier="gpu") as slots:
            view = slots.view(0)
        kv.close()
        host.stream_broken(session)
        clock.advance(host.config.daemon.grace_s + 1)
        host.tick()
        extent = next(number for number in range(pool.extent_count) if pool.is_committed(number))
        assert pool.release_extent(extent) == 0  # mapped by a process that lives
        pool.commit_extent(extent)
        del view, slots
        gc.collect()
        host.on_gone(session)
        assert host.session_count == 0
        assert pool.release_extent(extent) > 0
        pool.commit_extent(extent)


def test_a_kernel_that_hangs_means_no_goodbye_and_events_that_stay(
    machine: Machine, tmp_path: Path, space: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "LET_GO_S", 0.01)
    with served(tmp_path) as daemon:
        kv = worker_of(daemon, space)
        keys = chain_of(kv, 1)
        machine.worker.hold()
        with kv.reserve(keys, tier="gpu") as slots:
            assert slots.view(0).shape == (BLOCK_BYTES,)
            machine.worker.kernel(0, machine.worker.current_stream(0), lambda: None)  # holds no view
            slots.seal()
        kv.close()
        del kv, slots
        gc.collect()
        assert len(daemon.host.migrator.fences) == 1
        assert machine.world.destroyed == set()
        machine.world.let_run()
        assert daemon.host.migrator.fences.settle()
        with worker_of(daemon, space) as other:
            assert other.lookup(keys).prefix == 1


def test_events_are_recorded_again_and_kept_while_the_daemon_may_ask(
    machine: Machine, tmp_path: Path, space: Namespace
) -> None:
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv:
        for number in range(10):
            write(machine, kv, chain_of(kv, 1, first_token=number << 10))
            assert kv.lookup(chain_of(kv, 1, first_token=number << 10)).prefix == 1
        assert len(machine.worker._events) <= 2
        machine.worker.hold()
        for number in range(10, 15):
            write(machine, kv, chain_of(kv, 1, first_token=number << 10))
        assert len(machine.worker._events) >= 5
        assert len(daemon.host.migrator.fences) == 5
        machine.world.let_run()


def test_when_every_event_is_in_use_a_call_waits_for_the_oldest(
    machine: Machine, tmp_path: Path, space: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "MAX_EVENTS", 1)
    with served(tmp_path) as daemon, worker_of(daemon, space) as kv:
        waits = machine.world.calls("wait_event")
        for number in range(3):
            write(machine, kv, chain_of(kv, 1, first_token=number << 10))
        assert machine.world.calls("wait_event") >= waits + 2
        assert len(machine.worker._events) == 1


def test_a_session_s_end_frees_what_it_kept_from_being_given_back(
    machine: Machine, tmp_path: Path, space: Namespace
) -> None:
    with served(tmp_path) as daemon:
        host, pool = daemon.host, daemon.host.memory.device_pools[0]
        kv = worker_of(daemon, space)
        write(machine, kv, chain_of(kv, 1))
        extent = next(number for number in range(pool.extent_count) if pool.is_committed(number))
        assert pool.release_extent(extent) == 0  # the worker has it mapped
        pool.commit_extent(extent)
        kv.close()
        assert pool.release_extent(extent) > 0
        pool.commit_extent(extent)
        assert host.session_count == 0
