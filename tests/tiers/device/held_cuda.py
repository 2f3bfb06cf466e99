"""A worker's CUDA whose streams stand still while those of others go on."""

from hybridkv.tiers.errors import UnavailableError
from tests.tiers.device.fake_cuda import FakeCuda
from tests.tiers.device.fake_world import EventState, StreamState, World


class HeldWorld(World):
    """`held`: streams that make no progress. `destroyed`: events whose maker destroyed them."""

    def __init__(self, devices: int = 2) -> None:
        super().__init__(devices)
        self.held: set[StreamState] = set()
        self.destroyed: set[EventState] = set()

    def let_run(self) -> None:
        with self.changed:
            self.held.clear()
            self.changed.notify_all()


class HeldCuda(FakeCuda):
    """One process of a `HeldWorld`. Refuses, beyond what `FakeCuda` does, an event that its maker has destroyed.

    `visible`: how many devices this process sees.
    """

    world: HeldWorld

    def __init__(self, world: HeldWorld, visible: int | None = None) -> None:
        super().__init__(world)
        self.visible = world.devices if visible is None else visible
        self._made: set[int] = set()

    def device_count(self) -> int:
        return self.visible

    def hold(self, device: int = 0) -> None:
        """This process's current stream stands still from now on."""
        with self.world.changed:
            self.world.held.add(self._stream(device, self.current_stream(device)))

    def create_event(self, device: int) -> int:
        handle = super().create_event(device)
        self._made.add(handle)
        return handle

    def destroy_event(self, device: int, event: int) -> None:
        if event in self._made:
            self.world.destroyed.add(self._event(event))
        super().destroy_event(device, event)

    def event_done(self, device: int, event: int) -> bool:
        state = self._event(event)
        if state in self.world.destroyed:
            raise UnavailableError("fake cuda: an event that the process which made it has destroyed")
        with self.world.changed:
            if state.record is not None and state.record[0] in self.world.held:
                return False
            super().event_done(device, event)  # the fake lets things happen at the first question
            return super().event_done(device, event)

    def wait_event(self, device: int, event: int) -> None:
        with self.world.changed:
            record = self._event(event).record
            self.world.changed.wait_for(lambda: record is None or record[0] not in self.world.held)
        super().wait_event(device, event)
