"""One unary call: through the fork gate, with a deadline, its error translated, the epoch of its reply checked."""

from typing import Any, Protocol

import grpc

from hybridkv.service.client.forking import gate
from hybridkv.service.client.proofs import Metadata
from hybridkv.service.client.raising import raised_by
from hybridkv.service.client.transport import LostError
from hybridkv.tiers.errors import DeadlineExceededError

MIN_TIMEOUT_S = 0.001
SHORT_WAIT_S = 1.0
"""A call that may wait longer is made as a future: slower, but a fork of this process need not wait for it."""


class Stream(Protocol):
    """The session's Attach stream."""

    @property
    def lost(self) -> bool: ...


class Calls:
    """Makes the calls of one session and notices its end. Thread-safe."""

    def __init__(self, epoch: int, stream: Stream, metadata: Metadata = ()) -> None:
        """`metadata`: goes with each call, and says who calls."""
        self.metadata = metadata or None
        self._epoch = epoch
        self._stream = stream
        self._other_epoch = False

    @property
    def lost(self) -> bool:
        return self._other_epoch or self._stream.lost

    def __call__(self, method: Any, request: Any, timeout_s: float, *, wait_s: float = 0.0) -> Any:
        """Call `method`, which asks the daemon to wait up to `wait_s` of its `timeout_s`.

        Raises LostError, DeadlineExceededError and what the daemon raises.
        """
        if self.lost:
            raise LostError("the session has ended")
        if timeout_s < MIN_TIMEOUT_S:
            raise DeadlineExceededError("no time was left for the call")
        try:
            call = self._short if wait_s <= SHORT_WAIT_S else self._waiting
            reply = call(method, request, timeout_s)
        except grpc.RpcError as error:
            raise raised_by(error) from error
        except ValueError as error:  # gRPC's word for a channel that another thread closed
            raise LostError(str(error)) from error
        self.check_epoch(reply.epoch)
        return reply

    def check_epoch(self, epoch: int) -> None:
        """Raises LostError when the reply comes from another daemon than the session's."""
        if epoch != self._epoch:
            self._other_epoch = True
            raise LostError(f"the daemon's epoch is {epoch}, the session's was {self._epoch}")

    def _short(self, method: Any, request: Any, timeout_s: float) -> Any:
        with gate.passing():
            return method(request, timeout=timeout_s, metadata=self.metadata)

    def _waiting(self, method: Any, request: Any, timeout_s: float) -> Any:
        with gate.passing():
            future = method.future(request, timeout=timeout_s, metadata=self.metadata)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
