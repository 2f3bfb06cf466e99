"""A store whose cap is lowered while it is open: segments keep their sizes, the cap holds for every write after it."""

from hybridkv.tiers.errors import DiskFullError
from tests.tiers.disk.conftest import Kit

BLOCK = 16384


def test_a_lower_cap_is_in_excess_until_segments_go(kit: Kit) -> None:
    store = kit.store(4 << 20)
    store.open()
    places = store.put(kit.blocks(range(100), BLOCK))
    used = store.usage().physical_bytes
    store.resize(used // 2)
    assert store.usage().capacity_bytes == used // 2
    assert store.excess_bytes == used - used // 2
    for segment in dict.fromkeys(places):
        if not store.excess_bytes:
            break
        store.drop_segment(segment)
    assert store.excess_bytes == 0
    assert store.usage().physical_bytes <= used // 2


def test_writes_keep_to_the_lower_cap_and_then_to_the_higher(kit: Kit) -> None:
    store = kit.store(32 << 20)
    store.open()
    store.put(kit.blocks(range(10), BLOCK))
    whole = store.capacity_blocks(BLOCK)
    built = store.capacity_bytes
    store.resize(built // 2)
    assert store.capacity_blocks(BLOCK) < 0.6 * whole
    assert store.capacity_blocks(BLOCK, built) == whole
    stored = 10
    try:
        for number in range(10, whole, 16):
            stored += len(store.put(kit.blocks(range(number, number + 16), BLOCK)))
        raise AssertionError("the lower cap let everything in")
    except DiskFullError as full:
        stored += sum(place is not None for place in full.stored)
    assert stored >= 0.95 * store.capacity_blocks(BLOCK)
    assert store.usage().physical_bytes <= built // 2
    store.resize(built)
    assert len(store.put(kit.blocks(range(5000, 5020), BLOCK))) == 20
