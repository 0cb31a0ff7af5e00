"""Test of ``docs/formats.md``.

The document suffices to read a batch. The reader uses nothing of millrace.
"""

from __future__ import annotations

import base64
import struct

import google_crc32c
import pyarrow as pa

from millrace.records import decode_batch, read_header

# The first release of the format wrote these bytes. Later releases must read them the same.
STORED = base64.b64decode(
    "AAAAAAAAACkAAAI0AAAABgKt4KQbQAQAAAABAAABi8/laAAAAAGLz+VoBQAAAAAAAAAJAAEAAAACAAAAAgECAAAAAAMAAACAAAAB"
    "uAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAD/////EAEAABQAAAAAAAAADAAYAAYA"
    "BQAIAAwADAAAAAADBAAcAAAAoAAAAAAAAAAAAAAADAAeABAABAAIAAwADAAAAKAAAAAkAAAAGAAAAAIAAAAAAAAAAAAAAAAABgAI"
    "AAcABgAAAAAAAAEHAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIQAAAAAAAAAoAAAAAAAAAAAAAAAAAAAAKAAAAAAAAAAhAAAA"
    "AAAAAFAAAAAAAAAAEgAAAAAAAABoAAAAAAAAAB0AAAAAAAAAiAAAAAAAAAASAAAAAAAAAAAAAAADAAAAAgAAAAAAAAAAAAAAAAAA"
    "AAIAAAAAAAAAAAAAAAAAAAACAAAAAAAAAAEAAAAAAAAAEAAAAAAAAAAotS/9IBCBAAAAaOXPiwEAAAVo5c+LAQAAAAAAAAAAABAA"
    "AAAAAAAAKLUv/SAQgQAABwAAAAAAAAAIAAAAAAAAAAAAAAAAAAABAAAAAAAAACi1L/0gAQkAAAEAAAAAAAAMAAAAAAAAACi1L/0g"
    "DGEAAAAAAAABAAAAAQAAAAAAAAEAAAAAAAAAKLUv/SABCQAAYQAAAAAAAAAAAAAAAAAA"
)
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
EXPECTED = {"id": [7, 8], "name": ["a", None]}


def test_a_reader_written_from_the_document_reads_a_stored_batch() -> None:
    fields = struct.unpack_from(">qiibIhiqqqhii", STORED)
    base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp = fields[:8]
    assert (base_offset, leader_epoch, magic, last_offset_delta, base_timestamp) == (41, 6, 2, 1, 1_700_000_000_000)
    assert 12 + length == len(STORED)
    assert len(STORED) % 64 == 0
    assert crc == google_crc32c.value(STORED[21:])
    assert attributes == 0x4000 | 4
    assert fields[8:] == (1_700_000_000_005, 9, 1, 2, 2)

    version, columns, _, schema_id, position, size, statistics, _ = struct.unpack_from(">BBBiiiii", STORED, 61)
    assert (version, columns, schema_id, position, statistics) == (1, 2, 3, 128, 0)
    body = pa.schema([pa.field("__timestamp", pa.int64(), nullable=False), *SCHEMA])
    stream = body.serialize().to_pybytes() + STORED[position : position + size]
    batch = pa.ipc.open_stream(stream).read_next_batch()
    assert batch.to_pydict() == {"__timestamp": [1_700_000_000_000, 1_700_000_000_005]} | EXPECTED


def test_the_codec_reads_the_stored_batch() -> None:
    decoded = decode_batch(pa.py_buffer(STORED), 0, read_header(STORED), lambda _: SCHEMA)
    assert decoded.schema_id == 3
    assert decoded.columns.to_pydict() == EXPECTED
    assert decoded.offsets().to_pylist() == [41, 42]
    assert decoded.timestamps_ms().to_pylist() == [1_700_000_000_000, 1_700_000_000_005]
