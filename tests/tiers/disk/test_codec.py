"""Bytes on disk: golden values, so that what is written today is read tomorrow; and refusal of what is not ours."""

import pytest

from hybridkv.tiers.disk import codec
from hybridkv.tiers.disk.codec import MetaRecord, pack_header, pack_meta, shape_of, unpack_header, unpack_meta
from hybridkv.tiers.errors import InvalidArgumentError

SPACE, KEY, PARENT = b"f" * 32, b"k" * 8, b"p" * 64


def test_header_round_trip_and_golden_bytes() -> None:
    raw = pack_header(SPACE, KEY, PARENT, 0x0123456789ABCDEF, 65536)
    assert len(raw) == codec.HEADER_BYTES == 256
    assert raw[:24].hex() == "484b5642010008000000010000000000efcdab8967452301"
    assert unpack_header(raw) == (SPACE, KEY, PARENT, 0x0123456789ABCDEF, 65536)
    assert raw.startswith(codec.identity(SPACE, KEY, 0x0123456789ABCDEF, 65536))


@pytest.mark.parametrize("position", [0, 4, 8, 20, 40, 80, 125, 180, 200, 255])
def test_header_with_one_flipped_bit_is_refused(position: int) -> None:
    raw = bytearray(pack_header(SPACE, KEY, PARENT, 7, 65536))
    raw[position] ^= 1
    assert unpack_header(raw) is None


def test_identity_differs_by_every_field() -> None:
    variants = {
        codec.identity(SPACE, KEY, 1, 4096),
        codec.identity(b"g" * 32, KEY, 1, 4096),
        codec.identity(SPACE, KEY + b"\0", 1, 4096),
        codec.identity(SPACE, KEY, 2, 4096),
        codec.identity(SPACE, KEY, 1, 8192),
    }
    assert len(variants) == 5


def test_meta_record_belongs_to_its_key() -> None:
    record = MetaRecord(page=17, checksum=2**64 - 1, block_bytes=4096, stored_at=1.5, parent=PARENT)
    raw = pack_meta(SPACE + KEY, record)
    assert len(raw) == codec.META_BYTES == 112
    assert unpack_meta(SPACE + KEY, raw) == record
    assert codec.page_in_meta(raw) == 17
    assert unpack_meta(SPACE + b"l" * 8, raw) is None
    assert unpack_meta(SPACE + KEY, raw[:-1]) is None


def test_meta_record_of_another_version_is_not_guessed_at() -> None:
    raw = bytearray(pack_meta(SPACE + KEY, MetaRecord(17, 1, 4096, 0.0, b"")))
    raw[0] = codec.VERSION + 1
    assert unpack_meta(SPACE + KEY, bytes(raw)) is None
    assert codec.page_in_meta(bytes(raw)) is None


@pytest.mark.parametrize("block_bytes", [4096, 65536, 2 << 20])
def test_payload_of_whole_pages_starts_on_a_page(block_bytes: int) -> None:
    shape = shape_of(block_bytes)
    assert (shape.header_offset(5) + codec.HEADER_BYTES) % codec.PAGE_BYTES == 0
    assert shape.pages == block_bytes // 4096 + 1


def test_padding_costs_no_page() -> None:
    shape = shape_of(4096 + 512)
    assert (shape.lead_bytes, shape.pages) == (0, 2)


@pytest.mark.parametrize("block_bytes", [0, 2048, 4097, 65536 + 256])
def test_block_size_is_checked(block_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match="block_bytes"):
        shape_of(block_bytes)


@pytest.mark.parametrize(("space", "key"), [(b"f" * 31, KEY), (SPACE, b"k" * 7), (SPACE, b"k" * 65)])
def test_key_widths_are_checked(space: bytes, key: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        codec.lmdb_key(space, key)
