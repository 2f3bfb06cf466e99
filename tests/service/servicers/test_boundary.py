"""The boundary, for what no caller can bring about: a bug is logged and answered, a server that stopped is no bug."""

import asyncio
import logging
from typing import Any

import grpc
import pytest
from grpc._cython.cygrpc import _ServerStoppedError  # type: ignore[import-not-found]  # it has no public name

from hybridkv.service.servicers.boundary import PREFIX, Boundary, CallCounters


class _Call:
    method = f"{PREFIX}Session/Attach"


class _Context:
    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        raise grpc.aio.AbortError(code.name)


def _run(counters: CallCounters, error: Exception) -> None:
    """One call whose handler raises `error`."""

    async def failing(request: Any, context: Any) -> Any:
        raise error

    async def continuation(details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(failing)

    async def call() -> None:
        handler: Any = await Boundary(counters).intercept_service(continuation, _Call())
        await handler.unary_unary(b"", _Context())

    asyncio.run(call())


def test_a_call_that_comes_in_while_the_server_stops_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    counters = CallCounters()
    with caplog.at_level(logging.ERROR), pytest.raises(_ServerStoppedError):
        _run(counters, _ServerStoppedError("Server already stopped."))
    assert caplog.records == []
    assert counters.snapshot() == [{"method": "Session.Attach", "status": "CANCELLED", "count": 1}]


def test_a_bug_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AbortError, match="INTERNAL"):
        _run(CallCounters(), ZeroDivisionError("a bug"))
    assert "Session.Attach failed" in caplog.text
