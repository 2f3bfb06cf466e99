"""The one boundary at which every exception of a handler becomes a gRPC status, and every call is counted.

It is a server interceptor, so that no handler can be without it. Errors of ours are sent as `status.py` says; any
other exception is a bug: INTERNAL to the caller, with its traceback in the log. A call that was cancelled, or came
in while the server stopped, has nobody to answer.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc._cython.cygrpc import _ServerStoppedError  # type: ignore[import-not-found]  # it has no public name
from grpc.aio import AbortError

from hybridkv.service.servicers.streams import MALFORMED, malformed_error
from hybridkv.service.status import Status, status_of, unexpected_status
from hybridkv.tiers.errors import HybridKVError

log = logging.getLogger(__name__)

PREFIX = "/hybridkv.v1."
OK = grpc.StatusCode.OK.name
CANCELLED = grpc.StatusCode.CANCELLED.name

Handler = Callable[[Any, Any], Awaitable[Any]]


class CallCounters:
    """Calls that ended, by method ("KVCache.Acquire") and status name. Written by the event loop's thread only.

    Bounded: methods are those of our services, statuses those of gRPC.
    """

    def __init__(self) -> None:
        self._ended: Counter[tuple[str, str]] = Counter()

    def note(self, method: str, status: str) -> None:
        self._ended[method, status] += 1

    def snapshot(self) -> list[dict[str, str | int]]:
        """One entry per method and status that occurred; from any thread."""
        ended = sorted(self._ended.copy().items())
        return [{"method": method, "status": status, "count": count} for (method, status), count in ended]


class Boundary(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps each handler of our services; those of health and reflection answer for themselves."""

    def __init__(self, counters: CallCounters) -> None:
        self._counters = counters
        self._known: dict[str, Any] = {}
        """Wrapped handlers by path: there is one for each method of ours, for the server's life."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        path: str = handler_call_details.method
        known = self._known.get(path)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None or not path.startswith(PREFIX):
            return handler
        wrapped = self._known[path] = self._wrapped(handler, path.removeprefix(PREFIX).replace("/", "."))
        return wrapped

    def _wrapped(self, handler: Any, method: str) -> Any:
        codec = {
            "request_deserializer": _tolerant(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._guarded(handler.stream_stream, method), **codec)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._guarded(handler.stream_unary, method), **codec)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._guarded(handler.unary_stream, method), **codec)
        return grpc.unary_unary_rpc_method_handler(self._guarded(handler.unary_unary, method), **codec)

    def _guarded(self, inner: Handler, method: str) -> Any:
        async def guarded(request: Any, context: Any) -> Any:
            try:
                if request is MALFORMED:
                    raise malformed_error()
                reply = await inner(request, context)
            except (asyncio.CancelledError, _ServerStoppedError):  # the latter: it came in while the server stopped
                self._counters.note(method, CANCELLED)
                raise
            except AbortError:
                raise
            except HybridKVError as error:
                await self._abort(context, method, status_of(error))
            except Exception as error:
                log.exception("%s failed", method)
                await self._abort(context, method, unexpected_status(error))
            self._counters.note(method, OK)
            return reply

        return guarded

    async def _abort(self, context: Any, method: str, status: Status) -> NoReturn:
        self._counters.note(method, status.code.name)
        await context.abort(status.code, status.details, status.trailing_metadata)
        raise AssertionError("abort raises")


def _tolerant(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """gRPC parses before the handler runs, beyond the boundary: what is no message goes in as MALFORMED instead."""

    def parsed(raw: bytes) -> Any:
        try:
            return parse(raw)
        except DecodeError:
            return MALFORMED

    return parsed
