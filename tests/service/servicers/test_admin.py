"""Admin over the wire: config changes and their refusals, explain, and what bad input is told."""

import pytest

from hybridkv.proto import hybridkv_pb2 as pb
from hybridkv.service.admin_client import AdminClient
from hybridkv.service.in_thread import DaemonThread
from hybridkv.tiers.errors import FailedPreconditionError, InvalidArgumentError
from hybridkv.tiers.namespace import Namespace
from tests.service.wire import TIMEOUT_S, Wire, key, write


def test_an_update_is_versioned_and_told(daemon: DaemonThread) -> None:
    with AdminClient(daemon.address) as client:
        assert client.config_version() == 1
        update = client.update_config({"cpu.high_watermark": "0.8", "cpu.low_watermark": 0.7}, expected_version=1)
        assert (update.version, update.previous_version) == (2, 1)
        assert update.changed == {"cpu.high_watermark": (0.95, 0.8), "cpu.low_watermark": (0.9, 0.7)}
        entries = {entry.key: entry for entry in client.config()}
        assert entries["cpu.high_watermark"].value == 0.8
        assert entries["cpu.high_watermark"].source == "update to version 2"
        assert entries["cpu.idle_timeout_s"].source == "default"
        assert client.stats()["config_version"] == client.config_version() == 2


def test_refusals_name_the_keys_and_change_nothing(daemon: DaemonThread) -> None:
    with AdminClient(daemon.address) as client:
        with pytest.raises(InvalidArgumentError, match=r"cpu\.low_watermark: must be below high_watermark"):
            client.update_config({"cpu.high_watermark": 0.5})
        with pytest.raises(FailedPreconditionError, match=r"gpu\.devices: needs a restart"):
            client.update_config({"gpu.devices": ["host:0"], "cpu.idle_timeout_s": 1})
        with pytest.raises(FailedPreconditionError, match="version 7 was expected, 1 is in force"):
            client.update_config({"cpu.idle_timeout_s": 1}, expected_version=7)
        assert client.config_version() == 1
        assert daemon.host.config.cpu.idle_timeout_s == 600


def test_bad_changes_are_refused(wire: Wire) -> None:
    one = pb.ConfigAssignment(key="cpu.idle_timeout_s", json_value="1")
    for changes, named in (
        ([], "changes"),
        ([one, one], "given twice"),
        ([pb.ConfigAssignment(key="cpu.idle_timeout_s", json_value="{")], "no JSON"),
        ([pb.ConfigAssignment(key="cpu.idle_timeout_s", json_value="[1]")], "cpu.idle_timeout_s"),
        ([pb.ConfigAssignment(key="", json_value="1")], "unknown key"),
    ):
        error = wire.error(wire.admin.UpdateConfig, pb.UpdateConfigRequest(changes=changes))
        assert isinstance(error, InvalidArgumentError)
        assert named in str(error)


def test_a_block_is_explained(daemon: DaemonThread, wire: Wire, space: Namespace) -> None:
    stream = wire.attach(space)
    write(wire, stream.session, 1)
    with AdminClient(daemon.address) as client:
        (account,) = client.explain(key(1))
        assert account["state"] == "sealed"
        assert account["fingerprint"] == space.fingerprint.hex()
        assert [copy["pool"] for copy in account["copies"]] == ["cpu"]
        assert len(client.explain(key(1), space.fingerprint[:3])) == 1
        assert client.explain(key(2)) == []


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (pb.ExplainRequest(), "key: 0 bytes"),
        (pb.ExplainRequest(key=bytes(65)), "key: 65 bytes"),
        (pb.ExplainRequest(key=b"x", fingerprint_prefix=bytes(33)), "fingerprint_prefix: 33 bytes"),
    ],
)
def test_bad_keys_are_refused(wire: Wire, request_: pb.ExplainRequest, named: str) -> None:
    error = wire.error(wire.admin.Explain, request_)
    assert isinstance(error, InvalidArgumentError)
    assert named in str(error)


def test_config_carries_its_version(wire: Wire) -> None:
    assert wire.admin.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S).version == 1
