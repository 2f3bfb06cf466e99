"""The door to the daemon: attached in the background, left alone while nobody is there, closed at any moment."""

import threading

from hybridkv.connectors.vllm.door import Door
from hybridkv.service.client import KV
from hybridkv.tiers.errors import UnavailableError
from hybridkv.tiers.layout import BlockLayout
from hybridkv.tiers.namespace import Namespace

SPACE = Namespace(model="m", layout=BlockLayout.opaque(4096, 16, "door"))
PATIENCE_S = 30.0


def test_it_closes_in_the_pause_between_two_tries() -> None:
    tried = threading.Event()

    def nobody(space: Namespace) -> KV:
        tried.set()
        raise UnavailableError(f"nobody is there for {space.model}")

    door = Door(SPACE, nobody, 1000.0)
    assert tried.wait(PATIENCE_S)
    closing = threading.Thread(target=door.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert door.kv is None
    door.close()  # again
