"""Bytes and messages that no client of ours sends: every one is answered, and the daemon serves on."""

from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.status import error_from
from hybridkv.tiers.errors import InternalError, InvalidArgumentError
from hybridkv.tiers.namespace import Namespace
from tests.service.wire import TIMEOUT_S, Wire, read

METHODS = [
    (f"/hybridkv.v1.{service.name}/{method.name}", method)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name != "Drain"
]
BROKEN = b"\x0a\xff\xff"  # a field that says it is longer than the message
STREAMS = {"/hybridkv.v1.Session/Attach", "/hybridkv.v1.KVCache/Write"}

session_calls = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def call(wire: Wire, path: str, raw: bytes) -> Any:
    """The error that raw bytes are answered with, or None."""
    try:
        if path in STREAMS:
            list(wire.channel.stream_stream(path, bytes, bytes)(iter([raw]), timeout=TIMEOUT_S))
        else:
            list(wire.channel.unary_stream(path, bytes, bytes)(raw, timeout=TIMEOUT_S))
    except grpc.RpcError as error:
        return error_from(error)
    return None


@pytest.mark.parametrize("path", [path for path, method in METHODS if method.input_type.fields])
def test_what_is_no_message_is_refused(wire: Wire, path: str) -> None:
    error = call(wire, path, BROKEN)
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "message"


@session_calls
@given(data=st.data())
def test_any_bytes_are_answered_without_a_bug(wire: Wire, space: Namespace, daemon: DaemonThread, data: Any) -> None:
    path, _ = data.draw(st.sampled_from(METHODS))
    raw = data.draw(st.binary(max_size=200))
    assert not isinstance(call(wire, path, raw), InternalError)


@session_calls
@given(data=st.data())
def test_any_values_of_a_session_are_answered_without_a_bug(wire: Wire, space: Namespace, data: Any) -> None:
    stream = wire.attach(space)
    path, method = data.draw(st.sampled_from([m for m in METHODS if "session" in m[1].input_type.fields_by_name]))
    message = getattr(pb, method.input_type.name)(session=stream.session)
    for field in method.input_type.fields:
        if field.name == "session" or not data.draw(st.booleans()):
            continue
        if field.type == field.TYPE_BYTES:
            setattr(message, field.name, data.draw(st.binary(max_size=64)))
        elif field.type in (field.TYPE_UINT32, field.TYPE_UINT64) and not field.is_repeated:
            setattr(message, field.name, data.draw(st.integers(0, 2**32 - 1)))
        elif field.type == field.TYPE_DOUBLE:
            setattr(message, field.name, data.draw(st.floats(max_value=0.01)))
    assert not isinstance(call(wire, path, message.SerializeToString()), InternalError)
    assert read(wire, stream.session, 1)[0]
    stream.detach()
