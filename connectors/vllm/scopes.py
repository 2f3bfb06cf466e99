"""The client's request handles, one for each request of vLLM and door: blocks are protected until its end, then touched."""

import threading
from collections.abc import Sequence

from hybridkv.connectors.vllm.door import Door
from hybridkv.service.client import KV, Request
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.hints import Hints


class Scopes:
    """Thread-safe. `doors`: one for each group."""

    def __init__(self, doors: Sequence[Door]) -> None:
        self.doors = doors
        self._lock = threading.Lock()
        self._open: dict[str, dict[int, tuple[KV, Request]]] = {}

    def request(self, kv: KV, request_id: str, hints: Hints) -> Request:
        """The handle on `kv`; a new one when the daemon was lost meanwhile."""
        with self._lock:
            known = self._open.setdefault(request_id, {})
            if id(kv) not in known:
                request = kv.request(
                    priority=hints.priority,
                    expected_next_use_s=hints.expected_next_use_s,
                    request_class=hints.request_class,
                )
                known[id(kv)] = (kv, request)
            return known[id(kv)][1]

    def end_all(self) -> None:
        """None of them is under way."""
        with self._lock:
            ids = list(self._open)
        for request_id in ids:
            self.end(request_id, end_of_session=False)

    def end(self, request_id: str, *, end_of_session: bool) -> None:
        """The request is over. Never raises: what is not ended ends with its session or its time."""
        with self._lock:
            known = self._open.pop(request_id, {})
        current = {id(door.kv): door for door in self.doors}
        for kv, request in known.values():
            door = current.get(id(kv))
            if door is None:
                continue
            try:
                request.end(end_of_session=end_of_session)
            except HybridKVError as error:
                door.failed(kv, error)
