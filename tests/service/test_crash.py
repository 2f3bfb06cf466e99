"""A daemon that is killed in the middle of demotions: what was on the disk alone is there again, and nothing is made up."""

from pathlib import Path

import numpy as np

from hybridkv.service.admin_client import AdminClient
from hybridkv.service.client import KV, connect
from hybridkv.tiers.errors import HybridKVError
from hybridkv.tiers.keys import Keys
from hybridkv.tiers.namespace import Namespace
from hybridkv.tiers.states import Outcome, Tier
from tests.service.client.conftest import chain_of, check_content, make_space, store
from tests.service.test_serve import WAIT_S, serving

BLOCK_BYTES, CHAIN, CHAINS = 64 << 10, 16, 40
VALUES = {
    "cpu__capacity_bytes": "8MiB",
    "cpu__high_watermark": "0.5",
    "cpu__low_watermark": "0.2",
    "disk__capacity_bytes": "256MiB",
    "migration__batch_bytes": "1MiB",
}


def written_until_it_dies(kv: KV, chains: list[Keys]) -> set[bytes]:
    """Keys whose blocks the daemon said were on the disk alone, when it was last asked."""
    lower: set[bytes] = set()
    try:
        for number, keys in enumerate(chains):
            store(kv, keys)
            for known in chains[: number + 1]:
                found = kv.lookup(known)
                on_disk = (found.states == Outcome.HIT) & (found.tiers == Tier.DISK)
                lower.update(known[i] for i in np.flatnonzero(on_disk).tolist())
    except HybridKVError:
        return lower
    raise AssertionError("the daemon never came to the point where it was to die")


def test_what_was_on_the_disk_is_there_after_a_kill_between_batches(tmp_path: Path) -> None:
    """By the environment, as an operator would; every point has its turn in `tests/service/crash/`."""
    space: Namespace = make_space(block_bytes=BLOCK_BYTES)
    with (
        serving(tmp_path, None, "disk.put.committed:3", **VALUES) as (process, address, _),
        connect(address, space, timeout_s=2.0) as kv,
    ):
        chains = [chain_of(kv, CHAIN, number * 100_000) for number in range(CHAINS)]
        lower = written_until_it_dies(kv, chains)
        process.wait(WAIT_S)
    with serving(tmp_path, None, "", **VALUES) as (_, address, _), connect(address, space) as kv:
        there: set[bytes] = set()
        for keys in chains:
            out = np.zeros((CHAIN, BLOCK_BYTES), np.uint8)
            hits = np.flatnonzero(kv.read(keys, out, timeout_s=WAIT_S) == Outcome.HIT)
            check_content(keys.at(hits), out[hits])
            there.update(keys.at(hits))
        assert there, "two batches were durable before it died"
        assert lower <= there
        with AdminClient(address) as admin:
            assert admin.check() == []
