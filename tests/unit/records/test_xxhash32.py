from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from millrace.records.xxhash32 import xxhash32


@pytest.mark.parametrize(("data", "expected"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)])
def test_hashes_are_the_published_ones(data: bytes, expected: int) -> None:
    assert xxhash32(data) == expected


@pytest.mark.parametrize("descriptor", [b"\x60\x40", b"\x68\x70" + struct.pack("<Q", 5)])
def test_liblz4_accepts_it_in_a_frame_header(descriptor: bytes) -> None:
    header = b"\x04\x22\x4d\x18" + descriptor + bytes(((xxhash32(descriptor) >> 8) & 0xFF,))
    frame = header + struct.pack("<I", 5 | 0x8000_0000) + b"hello" + bytes(4)
    assert pa.CompressedInputStream(pa.BufferReader(frame), "lz4").read() == b"hello"


def test_inputs_of_16_bytes_and_more_are_refused() -> None:
    with pytest.raises(ValueError, match="below 16"):
        xxhash32(bytes(16))
