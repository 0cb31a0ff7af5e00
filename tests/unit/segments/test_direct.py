"""Tests of segment files that are read directly.

A file is read only while it is a present segment of the broker.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.ids import id_text
from millrace.records import HEADER_BYTES, build_columnar_batch
from millrace.segments.direct import map_located

TOPIC, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
BATCH = build_columnar_batch(pa.record_batch({"key": [b"key"], "value": [b"here"]}), timestamps_ms=1)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    write(path, TOPIC)
    return path


def write(path: Path, topic_id: uuid.UUID) -> None:
    path.parent.mkdir()
    path.write_bytes(BATCH)
    (path.parent / "partition.metadata").write_text(f"version: 0\ntopic_id: {id_text(topic_id)}\n")


def mapped(path: Path | str, topic_id: uuid.UUID = TOPIC, end: int = len(BATCH), start_offset: int = 0) -> bytes | str:
    found = map_located(str(path), 0, end, start_offset=start_offset, topic_id=topic_id)
    return found if isinstance(found, str) else found.to_pybytes()


def test_a_file_of_the_topic_is_mapped(segment: Path) -> None:
    assert mapped(segment) == BATCH


def test_a_directory_that_another_topic_of_the_name_has_now_is_not_read(segment: Path) -> None:
    assert mapped(segment) == BATCH
    shutil.rmtree(segment.parent)
    write(segment, OTHER)
    assert mapped(segment) == f"{segment.parent} holds another topic"
    assert mapped(segment, OTHER) == BATCH


def test_an_unreadable_segment_is_reported(segment: Path, tmp_path: Path) -> None:
    assert mapped("") == "the broker does not name its files"
    assert mapped(tmp_path / "none") == f"{tmp_path}/none: No such file or directory"
    assert mapped(segment, end=len(BATCH) + 1) == (
        f"{segment} has {len(BATCH)} bytes here, but the extent ends at {len(BATCH) + 1}"
    )
    (segment.parent / "partition.metadata").unlink()
    assert mapped(segment) == f"{segment.parent} holds another topic"


def test_a_file_that_took_the_name_of_one_that_was_compacted_is_not_read(segment: Path) -> None:
    later = bytearray(BATCH)
    later[:8] = (5).to_bytes(8, "big")
    segment.write_bytes(later)
    assert mapped(segment) == f"{segment} has been replaced since it was located"
    assert mapped(segment, start_offset=5) == later


@pytest.mark.parametrize(("end", "is_noticed"), [(HEADER_BYTES - 1, False), (HEADER_BYTES, True), (len(BATCH), True)])
def test_a_replaced_file_is_noticed_by_the_header_of_its_batch(segment: Path, end: int, is_noticed: bool) -> None:
    later = (5).to_bytes(8, "big") + BATCH[8:]
    segment.write_bytes(later)
    for start_offset in (5, 6):
        assert mapped(segment, end=end, start_offset=start_offset) == later[:end]
    assert mapped(segment, end=end, start_offset=4) == (
        f"{segment} has been replaced since it was located" if is_noticed else later[:end]
    )


def test_damage_is_left_to_the_reader_of_the_batch(segment: Path) -> None:
    damaged = BATCH[:16] + b"\x09" + BATCH[17:]
    segment.write_bytes(damaged)
    assert mapped(segment) == damaged


@pytest.mark.parametrize("metadata", ["", "version: 0\n", "version: 0\ntopic_id: x\n", "no colon\n"])
def test_a_directory_without_the_id_of_its_topic_is_not_read(segment: Path, metadata: str) -> None:
    (segment.parent / "partition.metadata").write_text(metadata)
    assert mapped(segment) == f"{segment.parent} holds another topic"
