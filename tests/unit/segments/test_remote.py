from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import OffsetsLostError, RemoteStorageError
from millrace.records import Record, build_rows_batch
from millrace.segments.remote import child_uri, open_file_system, read_remote_extent


def batch(first: int, records: int, size_bytes: int) -> bytes:
    return build_rows_batch(
        [Record(key=None, value=b"v" * size_bytes, timestamp_ms=number) for number in range(records)],
        base_offset=first,
    )


@pytest.fixture
def log(tmp_path: Path) -> tuple[str, list[bytes]]:
    batches = [batch(number * 10, 10, 20 if number != 4 else 500) for number in range(9)]
    path = tmp_path / "a segment" / "x.log"
    path.parent.mkdir()
    path.write_bytes(b"".join(batches))
    return path.as_uri(), batches


@pytest.mark.parametrize("chunk_bytes", [62, 100, 700, 1000, 10**6])
def test_chunks_are_whole_batches(log: tuple[str, list[bytes]], chunk_bytes: int) -> None:
    uri, batches = log
    start, end = len(batches[0]), sum(map(len, batches[:-1]))
    chunks = [chunk.to_pybytes() for chunk in read_remote_extent(uri, start, end, chunk_bytes=chunk_bytes)]
    assert b"".join(chunks) == b"".join(batches[1:-1])
    boundaries = {sum(map(len, batches[1:number])) for number in range(1, len(batches))}
    position = 0
    for chunk in chunks:
        position += len(chunk)
        assert position in boundaries
        assert len(chunk) <= max(chunk_bytes, max(map(len, batches)))


def test_an_empty_extent_has_no_chunks(log: tuple[str, list[bytes]]) -> None:
    assert list(read_remote_extent(log[0], 10, 10)) == []


def test_a_missing_or_truncated_object_is_reported(log: tuple[str, list[bytes]], tmp_path: Path) -> None:
    uri, batches = log
    with pytest.raises(OffsetsLostError, match="was removed"):
        list(read_remote_extent((tmp_path / "none.log").as_uri(), 0, 100))
    with pytest.raises(RemoteStorageError, match="ends at"):
        list(read_remote_extent(uri, 0, sum(map(len, batches)) + 1))
    with pytest.raises(RemoteStorageError, match="cannot be"):
        list(read_remote_extent("nostore://there/x.log", 0, 1))


def test_uris_are_put_together_before_their_options() -> None:
    uri = "s3://bucket/logs/?region=eu-central-1"
    assert child_uri(uri, "orders-0/x.log") == "s3://bucket/logs/orders-0/x.log?region=eu-central-1"
    assert child_uri("file:///mnt/a", "b") == "file:///mnt/a/b"
    assert child_uri("/mnt/a", "b") == "/mnt/a/b"


def test_stores_are_shared_and_paths_are_theirs(tmp_path: Path) -> None:
    first, path = open_file_system("file:///mnt/with%20blank/x")
    second, plain = open_file_system("/mnt/y")
    assert first is second
    assert (path, plain) == ("/mnt/with blank/x", "/mnt/y")
    bucket, key = open_file_system("s3://bucket/logs/x?region=eu-central-1&scheme=http")
    assert (bucket.type_name, key) == ("s3", "bucket/logs/x")
