"""Contents that follow from keys: any change of any byte is seen."""

import numpy as np
import pytest

from hybridkv.benchmarks.content import Content

BLOCK = 4096
KEY, OTHER = b"\x01" * 16, b"\x02" + b"\x01" * 15


@pytest.fixture
def content() -> Content:
    return Content(BLOCK)


def block_of(content: Content, key: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    block = np.zeros(BLOCK, np.uint8)
    content.fill(key, block)
    return block


def test_what_was_filled_is_verified(content: Content) -> None:
    block = block_of(content, KEY)
    assert content.verify(KEY, block)
    assert Content(BLOCK).verify(KEY, block)
    assert not content.verify(OTHER, block)


def test_the_stream_is_splitmix64(content: Content) -> None:
    zero = block_of(content, bytes(8)).view(np.uint64)
    assert [int(value) for value in zero[:3]] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_every_single_byte_counts(content: Content) -> None:
    block = block_of(content, KEY)
    for at in (0, 1, 7, 8, BLOCK // 2, BLOCK - 1):
        block[at] ^= 1
        assert not content.verify(KEY, block)
        block[at] ^= 1
    assert content.verify(KEY, block)


def test_torn_and_shifted_blocks_do_not_pass(content: Content) -> None:
    mine, other = block_of(content, KEY), block_of(content, OTHER)
    torn = np.concatenate([mine[: BLOCK // 2], other[BLOCK // 2 :]])
    assert not content.verify(KEY, torn)
    assert not content.verify(KEY, np.roll(mine, 8))
    assert not content.verify(KEY, np.zeros(BLOCK, np.uint8))


def test_no_eight_bytes_repeat(content: Content) -> None:
    both = np.concatenate([block_of(content, KEY), block_of(content, OTHER)]).view(np.uint64)
    assert len(np.unique(both)) == len(both)


def test_a_read_only_block_can_be_verified(content: Content) -> None:
    block = block_of(content, KEY)
    block.flags.writeable = False
    assert content.verify(KEY, block)
