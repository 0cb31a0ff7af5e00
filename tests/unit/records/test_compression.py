from __future__ import annotations

import contextlib
import gc
import gzip
import os
import random
import struct
import tracemalloc
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, UnsupportedCompressionError
from millrace.records.compression import Compression, compress, decompress, decompressed_chunks
from millrace.records.xxhash32 import xxhash32

REAL = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
TEXT = b"the quick brown fox jumps over the lazy dog " * 5_000  # several blocks of each codec


def drain(chunks: Iterator[bytes], into: bytearray) -> None:
    for chunk in chunks:
        into += chunk


@pytest.mark.parametrize("compression", list(Compression))
@given(data=st.binary(max_size=200))
def test_decompressing_gives_back_what_was_compressed(compression: Compression, data: bytes) -> None:
    if data or compression is not Compression.SNAPPY:
        assert decompress(compress(data, compression), compression) == data


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_bodies_of_many_blocks_survive(compression: Compression, magic: int) -> None:
    noise = random.Random(7).randbytes(200_000)
    for data in (TEXT, noise):
        assert decompress(compress(data, compression, magic=magic), compression, magic=magic) == data


@pytest.mark.parametrize("compression", REAL)
def test_output_beyond_the_limit_is_refused_before_it_is_held(compression: Compression) -> None:
    compressed = compress(bytes(50_000_000), compression)
    held = bytearray()
    with pytest.raises(CorruptBatchError, match=r"1000000|larger"):
        drain(decompressed_chunks(compressed, compression, max_bytes=1_000_000), held)
    assert len(held) <= 1_000_000


@pytest.mark.parametrize("compression", REAL)
@pytest.mark.parametrize("data", [b"x", TEXT], ids=["small", "large"])
def test_output_of_just_the_limit_is_accepted(compression: Compression, data: bytes) -> None:
    compressed = compress(data, compression)
    assert decompress(compressed, compression, max_bytes=len(data)) == data
    with pytest.raises(CorruptBatchError):
        decompress(compressed, compression, max_bytes=len(data) - 1)


@pytest.mark.parametrize("compression", REAL)
def test_a_body_without_a_byte_is_corrupt(compression: Compression) -> None:
    with pytest.raises(CorruptBatchError):
        decompress(b"", compression)


def test_all_bytes_before_the_damage_are_handed_out() -> None:
    noise = random.Random(5).randbytes(20_000)
    got = bytearray()
    with pytest.raises(CorruptBatchError):
        drain(decompressed_chunks(compress(noise, Compression.ZSTD) + b"damage", Compression.ZSTD), got)
    assert got == noise


@pytest.mark.parametrize("compression", REAL)
@given(junk=st.binary(max_size=60))
def test_any_bytes_give_data_or_an_error(compression: Compression, junk: bytes) -> None:
    try:
        decompress(junk, compression, max_bytes=100_000)
    except CorruptBatchError:
        return


@pytest.mark.parametrize("compression", REAL)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_damaged_bytes_give_data_or_an_error(compression: Compression, position: int, value: int) -> None:
    damaged = bytearray(compress(TEXT[:3_000] + os.urandom(50), compression))
    damaged[position % len(damaged)] = value
    try:
        decompress(bytes(damaged), compression, max_bytes=1_000_000)
    except CorruptBatchError:
        return


@pytest.mark.parametrize("compression", REAL)
def test_a_body_that_is_cut_off_is_corrupt(compression: Compression) -> None:
    compressed = compress(TEXT, compression)
    with pytest.raises(CorruptBatchError):
        decompress(compressed[: len(compressed) * 2 // 3], compression)


@pytest.mark.parametrize("compression", [Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_blocks_before_the_damage_are_handed_out(compression: Compression) -> None:
    noise = random.Random(3).randbytes(400_000)
    compressed = compress(noise, compression)[:-1000]
    got = bytearray()
    with pytest.raises(CorruptBatchError):
        drain(decompressed_chunks(compressed, compression), got)
    assert 100_000 < len(got) < len(noise)
    assert noise.startswith(got)


@pytest.mark.parametrize(
    ("name", "expected"), [("lz4", Compression.LZ4), ("ZSTD", 4), ("uncompressed", 0), ("none", 0)]
)
def test_names_are_those_of_the_configuration(name: str, expected: int) -> None:
    assert Compression.parse(name) == expected


def test_unknown_names_and_numbers_are_refused_with_what_there_is() -> None:
    with pytest.raises(UnsupportedCompressionError, match="choose one of none, gzip, snappy, lz4, zstd"):
        Compression.parse("brotli")
    with pytest.raises(UnsupportedCompressionError, match="number 5"):
        Compression.of(5)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_levels_trade_time_for_size(compression: Compression) -> None:
    compressed = compress(TEXT, compression, level=9)
    assert len(compressed) <= len(compress(TEXT, compression))
    assert decompress(compressed, compression) == TEXT


def test_a_level_that_gzip_does_not_have_is_refused() -> None:
    with pytest.raises(UnsupportedCompressionError, match="gzip level 1000"):
        compress(TEXT, Compression.GZIP, level=1000)


# --- the framing of each codec, as Kafka's readers accept it --------------------------------------------------


def test_gzip_members_follow_one_another_and_what_follows_them_is_ignored() -> None:
    two = gzip.compress(b"one,") + gzip.compress(b"two")
    assert decompress(two, Compression.GZIP) == b"one,two"
    assert decompress(two + bytes(10), Compression.GZIP) == b"one,two"


@pytest.mark.parametrize("size", [1, 10, 17, 18])
def test_the_beginning_of_a_gzip_member_is_ignored_if_it_is_shorter_than_any(size: int) -> None:
    body = gzip.compress(b"one") + gzip.compress(b"two", mtime=0)[:size]
    if size < 18:
        assert decompress(body, Compression.GZIP) == b"one"
        return
    with pytest.raises(CorruptBatchError):
        decompress(body, Compression.GZIP)


GZIP_PLAIN = gzip.compress(b"data", mtime=0)
GZIP_PARTS = {0x04: struct.pack("<H", 3) + b"a\x00c", 0x08: b"name\x00", 0x10: b"comment\x00"}


def gzip_header(flags: int) -> bytes:
    header = GZIP_PLAIN[:3] + bytes([flags]) + GZIP_PLAIN[4:10]
    header += b"".join(part for flag, part in GZIP_PARTS.items() if flags & flag)
    return header + (struct.pack("<H", zlib.crc32(header) & 0xFFFF) if flags & 0x02 else b"")


@pytest.mark.parametrize("flags", range(0, 0x20, 2))
def test_gzip_headers_may_have_every_optional_part(flags: int) -> None:
    body = gzip_header(flags) + GZIP_PLAIN[10:]
    assert decompress(body, Compression.GZIP) == b"data"
    assert decompress(GZIP_PLAIN + body, Compression.GZIP) == b"datadata"
    for size in range(len(gzip_header(flags))):
        with pytest.raises(CorruptBatchError):
            decompress(body[:size], Compression.GZIP)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_gzip_body_begins_with_the_magic_number(place: int) -> None:
    body = bytearray(GZIP_PLAIN)
    body[place] ^= 1
    with pytest.raises(CorruptBatchError, match="magic number"):
        decompress(bytes(body), Compression.GZIP)


def test_a_gzip_header_may_have_an_extra_field_of_more_than_255_bytes() -> None:
    header = GZIP_PLAIN[:3] + b"\x04" + GZIP_PLAIN[4:10] + struct.pack("<H", 300) + bytes(300)
    assert decompress(header + GZIP_PLAIN[10:], Compression.GZIP) == b"data"


@pytest.mark.parametrize("flags", [0x02, 0x1E])
def test_a_gzip_header_may_have_a_checksum_that_must_be_right(flags: int) -> None:
    for place in range(4, len(gzip_header(flags))):
        damaged = bytearray(gzip_header(flags) + GZIP_PLAIN[10:])
        damaged[place] ^= 0x80
        for before in (b"", GZIP_PLAIN):
            with pytest.raises(CorruptBatchError):
                decompress(before + bytes(damaged), Compression.GZIP)


def test_a_wrong_gzip_trailer_is_noticed_after_the_data() -> None:
    damaged = bytearray(gzip.compress(b"data"))
    damaged[-1] ^= 1
    chunks = decompressed_chunks(bytes(damaged), Compression.GZIP)
    assert next(chunks) == b"data"
    with pytest.raises(CorruptBatchError, match="wrong checksum"):
        list(chunks)


def test_snappy_is_read_with_and_without_framing() -> None:
    raw = pa.compress(b"data" * 100, codec="snappy", asbytes=True)
    framed = compress(b"data" * 100, Compression.SNAPPY)
    assert framed.startswith(b"\x82SNAPPY\x00")
    assert decompress(raw, Compression.SNAPPY) == decompress(framed, Compression.SNAPPY) == b"data" * 100
    assert decompress(framed + framed, Compression.SNAPPY) == b"data" * 200


def test_a_snappy_block_may_not_declare_more_than_allowed() -> None:
    with pytest.raises(CorruptBatchError, match="declares 4294967295 bytes"):
        decompress(b"\xff\xff\xff\xff\x0f" + bytes(20), Compression.SNAPPY)


@pytest.mark.parametrize("size", [-1, 0, 2, 100])
def test_a_snappy_chunk_must_lie_within_the_body(size: int) -> None:
    block = pa.compress(b"", codec="snappy", asbytes=True)
    header = compress(b"", Compression.SNAPPY)
    assert decompress(header + struct.pack(">i", len(block)) + block, Compression.SNAPPY) == b""
    with pytest.raises(CorruptBatchError):
        decompress(header + struct.pack(">i", size) + block, Compression.SNAPPY)


def lz4_frame(flags: int, block_size: int, *blocks: bytes, mark: bytes = bytes(4)) -> bytes:
    """Build a frame of blocks that are not compressed, with the parts that its flags require."""
    descriptor = bytes((flags, block_size)) + (struct.pack("<Q", sum(map(len, blocks))) if flags & 0x08 else b"")
    parts = [b"\x04\x22\x4d\x18", descriptor, bytes([(xxhash32(descriptor) >> 8) & 0xFF])]
    for block in blocks:
        parts += [struct.pack("<I", len(block) | 0x8000_0000), block]
        parts += [struct.pack("<I", xxhash32(block))] if flags & 0x10 else []
    return b"".join([*parts, mark, bytes(4) if flags & 0x04 else b""])


@pytest.mark.parametrize("flags", [0x60, 0x64, 0x68, 0x6C, 0x70, 0x74, 0x78, 0x7C])
def test_an_lz4_frame_may_have_checksums_and_its_size(flags: int) -> None:
    frame = lz4_frame(flags, 0x40, b"one,", b"two")
    assert decompress(frame, Compression.LZ4) == b"one,two"
    for size in range(len(lz4_frame(flags, 0x40, mark=b"")) - (4 if flags & 0x04 else 0)):
        with pytest.raises(CorruptBatchError):
            decompress(frame[:size], Compression.LZ4)


@pytest.mark.parametrize("flags", [0x61, 0x62, 0x20, 0xA0, 0xE0, 0x40])
def test_lz4_frames_of_other_versions_are_refused(flags: int) -> None:
    with pytest.raises(CorruptBatchError, match=r"unknown version|linked blocks"):
        decompress(lz4_frame(flags, 0x40, b"data"), Compression.LZ4)


@pytest.mark.parametrize("block_size", [0x00, 0x30, 0x41, 0x42, 0x44, 0x48, 0xC0])
def test_lz4_frames_with_other_block_sizes_are_refused(block_size: int) -> None:
    with pytest.raises(CorruptBatchError, match="unknown version"):
        decompress(lz4_frame(0x60, block_size, b"data"), Compression.LZ4)


@pytest.mark.parametrize(("block_size", "largest"), [(0x40, 2**16), (0x50, 2**18), (0x60, 2**20), (0x70, 2**22)])
def test_an_lz4_block_is_at_most_as_large_as_its_frame_says(block_size: int, largest: int) -> None:
    assert decompress(lz4_frame(0x60, block_size, bytes(largest)), Compression.LZ4) == bytes(largest)
    with pytest.raises(CorruptBatchError, match="but the frame allows"):
        decompress(lz4_frame(0x60, block_size, bytes(largest + 1)), Compression.LZ4)


@pytest.mark.parametrize("flags", [0x60, 0x70])
@pytest.mark.parametrize("mark", [b"", bytes(3), b"\x05\x00\x00\x80more"])
def test_lz4_blocks_before_a_missing_end_mark_are_handed_out(flags: int, mark: bytes) -> None:
    got = bytearray()
    with pytest.raises(CorruptBatchError, match="lz4 body ends"):
        drain(decompressed_chunks(lz4_frame(flags, 0x40, b"one,", b"two", mark=mark), Compression.LZ4), got)
    assert got == b"one,two"


def test_lz4_blocks_are_independent_and_arrow_reads_them() -> None:
    compressed = compress(TEXT, Compression.LZ4)
    assert compressed[4] & 0x20
    assert pa.CompressedInputStream(pa.BufferReader(compressed), "lz4").read() == TEXT


def test_lz4_with_linked_blocks_is_refused_as_kafka_refuses_it() -> None:
    linked = pa.compress(TEXT, codec="lz4", asbytes=True)
    if linked[4] & 0x20:
        pytest.skip("this version of Arrow writes independent blocks")
    with pytest.raises(CorruptBatchError, match="linked blocks"):
        decompress(linked, Compression.LZ4)


def test_lz4_header_checksum_counts_from_magic_1_on() -> None:
    old, new = (compress(b"data" * 9, Compression.LZ4, magic=magic) for magic in (0, 1))
    assert old[:6] == new[:6]
    assert old[6] != new[6]
    assert decompress(old, Compression.LZ4, magic=0) == decompress(new, Compression.LZ4, magic=0) == b"data" * 9
    with pytest.raises(CorruptBatchError, match="fails its checksum"):
        decompress(old, Compression.LZ4, magic=1)


def test_bytes_after_the_lz4_frame_are_ignored() -> None:
    assert decompress(compress(b"data" * 9, Compression.LZ4) + b"more", Compression.LZ4) == b"data" * 9


@pytest.mark.parametrize("compression", [each for each in Compression if each is not Compression.NONE])
def test_damaged_bodies_leave_nothing_behind_in_memory(compression: Compression) -> None:
    good = compress(bytes(range(256)) * 200, compression)
    damaged = [good[: len(good) // 2] + bytes([number % 251]) + good[len(good) // 2 + 1 :] for number in range(100)]

    def read_all() -> None:
        for data in damaged:
            with contextlib.suppress(CorruptBatchError):
                decompress(data[:-10], compression)

    read_all()
    tracemalloc.start()
    try:
        for _ in range(3):
            read_all()
        gc.collect()
        left_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left_bytes < 300_000
