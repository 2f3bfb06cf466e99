"""`hybridkv watch`: one line an event, for people and as JSON."""

import json
import threading

from typer.testing import CliRunner

from hybridkv.service.cli import app
from hybridkv.service.cli.watching import line, of_namespaces, whole
from hybridkv.service.in_thread import DaemonThread
from hybridkv.service.watching import WatchEvent, WatchKind
from hybridkv.tiers.namespace import Namespace
from tests.migration.gates import PATIENCE_S
from tests.service.wire import Wire, key, write

runner = CliRunner()


def test_events_are_printed_as_they_happen(daemon: DaemonThread, wire: Wire, space: Namespace) -> None:
    stream = wire.attach(space)
    results = []

    def watch(*options: str) -> None:
        command = ["watch", "--socket", daemon.address, "--count", "2", "--kind", "sealed", *options]
        results.append(runner.invoke(app, command))

    watcher = threading.Thread(target=watch, args=("--json", "--namespace", space.fingerprint.hex()[:16]))
    watcher.start()
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if daemon.host.feed.figures["watchers"]:
            break
        pause.wait(0.01)
    write(wire, stream.session, 1)
    watcher.join(PATIENCE_S)
    (result,) = results
    assert result.exit_code == 0
    epoch, sealed = map(json.loads, result.stdout.splitlines())
    assert (epoch["event"], epoch["epoch"]) == ("epoch", daemon.host.epoch)
    assert (sealed["event"], sealed["to"], sealed["keys"]) == ("sealed", "cpu", [key(1).hex()])


def test_a_beginning_of_a_fingerprint_names_the_namespace() -> None:
    events = [WatchEvent(7, 1, WatchKind.EPOCH)]
    events += [WatchEvent(7, 2 + i, WatchKind.SEALED, bytes([i]) * 32) for i in range(3)]
    assert [event.sequence for event in of_namespaces(events, [bytes([1]) * 2])] == [1, 3]
    assert [event.sequence for event in of_namespaces(events, [bytes([1]), bytes([2]) * 32])] == [1, 3, 4]
    assert list(of_namespaces(events, [])) == events
    assert whole([bytes([2]) * 32]) == [bytes([2]) * 32]
    assert whole([bytes([1]), bytes([2]) * 32]) == []  # the daemon knows whole ones only


def test_lines_for_people() -> None:
    keys = (b"\x01" * 16, b"\x02" * 16, b"\x03" * 16)
    moved = WatchEvent(7, 12, WatchKind.MOVED, b"\xaa" * 32, keys, 3, "gpu0", "cpu", "watermark")
    assert line(moved) == (
        f"12 moved gpu0 → cpu 3 blocks (watermark) of aaaaaaaaaaaaaaaa: {'01' * 16} {'02' * 16} and 1 more"
    )
    evicted = WatchEvent(7, 13, WatchKind.EVICTED, b"\xaa" * 32, keys[:1], 1, "cpu", None, "reclaim", last=True)
    assert line(evicted) == "13 evicted cpu 1 blocks (reclaim, last copy) of aaaaaaaaaaaaaaaa: " + "01" * 16
    assert line(WatchEvent(7, 14, WatchKind.GAP)) == "14 gap: events before this number are missing"


def test_bad_options_are_named() -> None:
    for option, text in (("--kind", "gone"), ("--namespace", "xyz")):
        result = runner.invoke(app, ["watch", option, text])
        assert result.exit_code == 2
        assert f"{option}: '{text}'" in result.output
