from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID

import pytest

from millrace.coordinator_records import (
    ExternalCommitKey,
    ExternalCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
    write_key,
    write_versioned,
)
from millrace.errors import UsageError
from millrace.records import Record, build_rows_batch
from millrace_broker.log_tools import DumpOptions, Note, Problem, Row, dump_file, files_of
from millrace_broker.log_tools.decoders import OFFSETS, TRANSACTIONS, decoder_of, decoder_of_topic, plain_decoder

COMMIT = Record(
    key=write_key(OffsetCommitKey(group="g", topic="t", partition=1)),
    value=write_versioned(OffsetCommitValue(offset=5, metadata="", commit_timestamp=9), 3),
    timestamp_ms=1,
)


def dumped(directory: Path, record: Record, **options: object) -> list[object]:
    directory.mkdir()
    path = directory / f"{0:020d}.log"
    path.write_bytes(build_rows_batch([record]))
    return [each for each in dump_file(path, DumpOptions(**options)) if getattr(each, "kind", "") != "batch"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "data", "shown"),
    [
        ("string", "å".encode(), "å"),
        ("kafka.serializer.StringDecoder", b"x", "x"),
        ("org.apache.kafka.common.serialization.LongDeserializer", struct.pack(">q", -5), -5),
        ("integer", struct.pack(">i", 7), 7),
        ("double", struct.pack(">d", 1.5), 1.5),
        ("uuid", UUID(int=1).bytes, "AAAAAAAAAAAAAAAAAAAAAQ"),
        ("hex", b"\xff", "ff"),
        ("base64", b"\xff", "/w=="),
        ("binascii:hexlify", b"\xff", b"ff"),
    ],
)
def test_keys_and_values_are_decoded(name: str, data: bytes, shown: object) -> None:
    assert decoder_of(name)(data) == shown


@pytest.mark.parametrize("name", ["nothing", "no.such:function", "math:nothing"])
def test_unknown_decoders_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="decoder"):
        decoder_of(name)


def test_records_of_the_coordinators_are_decoded_by_their_topics_name(tmp_path: Path) -> None:
    (row,) = dumped(tmp_path / "__consumer_offsets-3", COMMIT, with_data=True)
    assert isinstance(row, Row)
    assert row.values["key"] == {"type": "1", "data": {"group": "g", "topic": "t", "partition": 1}}
    assert row.values["value"]["data"]["offset"] == 5
    external = Record(
        key=write_key(ExternalCommitKey(external_id="query")),
        value=write_versioned(ExternalCommitValue(external_epoch=7, commit_timestamp_ms=9), 0),
        timestamp_ms=1,
    )
    (row,) = dumped(tmp_path / "__transaction_state-3", external, with_data=True)
    assert isinstance(row, Row)
    assert row.values["key"] == {"type": "1000", "data": {"externalId": "query"}}
    assert row.values["value"] == {"version": "0", "data": {"externalEpoch": 7, "commitTimestampMs": 9}}
    assert decoder_of_topic("__transaction_state") is TRANSACTIONS
    assert decoder_of_topic("orders") is None


def test_a_named_decoder_decodes_records_in_any_directory(tmp_path: Path) -> None:
    (row,) = dumped(tmp_path / "elsewhere", COMMIT, with_data=True, decoder=OFFSETS, with_metadata=False)
    assert isinstance(row, Row)
    assert list(row.values) == ["key", "value"]


def test_undecodable_values_are_shown_as_bytes_with_a_note(tmp_path: Path) -> None:
    record = Record(key=b"\0\1\0", value=None, timestamp_ms=1)
    row, note = dumped(tmp_path / "__consumer_offsets-0", record, with_data=True)
    assert isinstance(row, Row)
    assert row.values["key"] == b"\0\1\0"
    assert isinstance(note, Note)
    assert "offset 0 cannot be decoded" in note.text
    row, note = dumped(tmp_path / "orders-0", record, with_data=True, decoder=plain_decoder("long", None))
    assert isinstance(note, Note)


def test_batches_above_a_size_are_problems(tmp_path: Path) -> None:
    (problem,) = dumped(tmp_path / "orders-0", COMMIT, max_message_bytes=50)
    assert isinstance(problem, Problem)
    assert "more than 50" in problem.text


def test_transaction_indexes_belong_to_a_partition(tmp_path: Path) -> None:
    dumped(tmp_path / "orders-0", COMMIT)
    path = tmp_path / "orders-0" / f"{0:020d}.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 7, 1, 5, 6) + struct.pack(">hqqqq", 0, 8, 2, 4, 6))
    assert path in files_of(tmp_path / "orders-0", DumpOptions())
    rows = list(dump_file(path, DumpOptions()))
    assert [each.values["producer_id"] for each in rows if isinstance(each, Row)] == [7, 8]
    assert any(isinstance(each, Problem) and "ends at 4" in each.text for each in rows)
    path.write_bytes(b"\0" * 33)
    assert any(isinstance(each, Problem) for each in dump_file(path, DumpOptions()))
