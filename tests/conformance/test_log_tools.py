"""Tests of dump, verify and convert on Kafka's own log directories.

The dump is that of Kafka's tool. Cases come from the directory in ``ORACLES`` (by default those beside this suite).
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import UnsupportedForFormatError
from millrace.records import BatchEntry, Compression, RecordFormat, decode_batch, read_entries
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log_tools import DumpOptions, Problem, Row, dump_file
from millrace_broker.log_tools.convert import ConvertOptions, convert_partition
from millrace_broker.log_tools.verify import VerifyOptions, segment_bases, verify_partition
from millrace_broker.runtime.clock import SystemClock

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "segments"
_FIELD = re.compile(r"(\w+): (\S+)")
_WORDS = {
    "offset entry": {"offset": "offset", "position": "position"},
    "time entry": {"timestamp": "timestamp", "offset": "offset"},
    "aborted transaction": {
        "producer_id": "producerId",
        "first_offset": "firstOffset",
        "last_offset": "lastOffset",
        "last_stable_offset": "lastStableOffset",
    },
    "producer": {
        "producer_id": "producerId",
        "producer_epoch": "producerEpoch",
        "last_sequence": "lastSequence",
        "last_offset": "lastOffset",
        "last_timestamp": "lastTimestamp",
        "coordinator_epoch": "coordinatorEpoch",
        "transaction_start_offset": "currentTxnFirstOffset",
    },
}
"""Kafka's words for the values in our rows."""
_RECORD = re.compile(r"^\| offset: (\d+) .*? headerKeys: \[.*?\](?: key: (.*?))? payload: (.*)$")


def directories() -> Iterator[Any]:
    for path in sorted(ORACLES.glob("*/topic-0")):
        yield pytest.param(path, id=f"segments-{path.parent.name}")
    for path in sorted(ORACLES.glob("broker-*/data/*")):
        if path.is_dir():
            yield pytest.param(path, id=f"segments-{path.parent.parent.name}-{path.name}")


def dumps(topic: str) -> Iterator[Any]:
    for path in sorted(ORACLES.glob(f"broker-*/dump-{topic}.txt")):
        yield pytest.param(path, id=f"segments-{path.parent.name}-{path.stem}")


def deep_dumps() -> Iterator[Any]:
    for path in sorted(ORACLES.glob("*/dump.txt")):
        yield pytest.param(path, id=f"segments-{path.parent.name}-dump")


def files_in(dump: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Return the files of one of Kafka's dumps, and the fields of their lines."""
    for section in dump.split("Dumping ")[1:]:
        name, *lines = section.splitlines()
        fields = (dict(_FIELD.findall(line)) for line in lines if not line.startswith("Log starting offset"))
        yield name, [each for each in fields if each]  # it also says in words that an index is empty


def as_kafka_dumps(row: Row) -> dict[str, Any]:
    """Return a row of ours in the words of Kafka's dump."""
    if row.kind in ("batch", "record", "control record"):
        return _log_line(row.kind, row.values)
    named = {_WORDS[row.kind][name]: value for name, value in row.values.items()}
    if row.kind == "producer":
        open_since = named["currentTxnFirstOffset"]
        named["currentTxnFirstOffset"] = "OptionalLong" + (".empty" if open_since is None else f"[{open_since}]")
    return named


def _log_line(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    if kind == "control record":
        marker = {"endTxnMarker": values["control"].upper(), "coordinatorEpoch": values["coordinator_epoch"]}
        return {"offset": values["offset"], "timestamp": values["timestamp"], **marker}
    if kind == "record":
        sizes = {"keySize": values["key_bytes"], "valueSize": values["value_bytes"]}
        return {"offset": values["offset"], "timestamp": values["timestamp"], **sizes}
    line = {
        "position": values["position"],
        "size": values["bytes"],
        "magic": values["magic"],
        "compresscodec": values["compression"],
        "timestamp": values["max_timestamp"],
        "isvalid": str(values["is_valid"]).lower(),
    }
    if values["body"] == "message":
        return line | {"offset": values["last_offset"]}
    for word, name in (
        ("baseSequence", "base_sequence"),
        ("lastSequence", "last_sequence"),
        ("producerId", "producer_id"),
        ("producerEpoch", "producer_epoch"),
    ):
        line[word] = -1 if values[name] is None else values[name]
    horizon = values["delete_horizon"]
    return line | {
        "baseOffset": values["first_offset"],
        "lastOffset": values["last_offset"],
        "count": values["records"],
        "partitionLeaderEpoch": values["leader_epoch"],
        "isTransactional": str("transactional" in values["flags"]).lower(),
        "isControl": str("control" in values["flags"]).lower(),
        "deleteHorizonMs": "OptionalLong" + (".empty" if horizon is None else f"[{horizon}]"),
        "crc": values["crc"],
    }


@pytest.mark.parametrize("path", list(deep_dumps()))
def test_dumps_batches_records_and_indexes_as_kafka_does(path: Path) -> None:
    files = list(files_in(path.read_text(encoding="utf-8")))
    assert files
    for name, expected in files:
        found = list(dump_file(path.parent / "topic-0" / name, DumpOptions(deep=True)))
        assert not any(isinstance(finding, Problem) for finding in found)
        lines = [as_kafka_dumps(finding) for finding in found if isinstance(finding, Row)]
        assert len(lines) == len(expected)
        for line, fields in zip(lines, expected, strict=True):
            for stamp in ("CreateTime", "LogAppendTime", "NoTimestampType"):
                if stamp in fields:
                    fields["timestamp"] = fields[stamp]
            assert {word: str(value) for word, value in line.items()} == {word: fields.get(word) for word in line}


def dumped(path: Path, topic: str) -> list[Row]:
    """Return our dump of a topic's records in Kafka's order, which is by partition."""
    logs = [log for each in sorted((path.parent / "data").glob(f"{topic}-*")) for log in sorted(each.glob("*.log"))]
    findings = [finding for log in logs for finding in dump_file(log, DumpOptions(with_data=True))]
    assert not any(isinstance(finding, Problem) for finding in findings)
    return [finding for finding in findings if isinstance(finding, Row) and finding.kind == "record"]


@pytest.mark.parametrize("path", list(dumps("__consumer_offsets")))
def test_dumps_committed_offsets_and_groups_as_kafka_does(path: Path) -> None:
    expected = [match for line in path.read_text(encoding="utf-8").splitlines() if (match := _RECORD.match(line))]
    rows = dumped(path, "__consumer_offsets")
    assert len(rows) == len(expected) > 0
    for row, match in zip(rows, expected, strict=True):
        assert row.values["offset"] == int(match[1])
        assert row.values["key"] == json.loads(match[2])
        value = None if match[3] == "<DELETE>" else json.loads(match[3])
        assert row.values["value"] == value


@pytest.mark.parametrize("path", list(dumps("__transaction_state")))
def test_dumps_transactions_as_kafka_does(path: Path) -> None:
    expected = [match for line in path.read_text(encoding="utf-8").splitlines() if (match := _RECORD.match(line))]
    rows = dumped(path, "__transaction_state")
    assert len(rows) == len(expected) > 0
    for row, match in zip(rows, expected, strict=True):
        assert f"transaction_metadata::transactionalId={row.values['key']['data']['transactionalId']}" == match[2]
        assert in_order(transaction_text(row.values["value"])) == in_order(match[3])


def in_order(text: str) -> str:
    """Return a transaction's text with its partitions in order, because Kafka has a set of them."""
    return re.sub(r"\[(.*?)\]", lambda found: f"[{','.join(sorted(found[1].split(',')))}]", text)


def transaction_text(value: dict[str, Any]) -> str:
    data = value["data"]
    partitions = ",".join(
        f"{each['topic']}-{number}" for each in data["transactionPartitions"] or () for number in each["partitionIds"]
    )
    return (
        f"producerId:{data['producerId']},producerEpoch:{data['producerEpoch']},state={value['state']},"
        f"partitions=[{partitions}],txnLastUpdateTimestamp={data['transactionLastUpdateTimestampMs']},"
        f"txnTimeoutMs={data['transactionTimeoutMs']}"
    )


@pytest.mark.parametrize("directory", list(directories()))
def test_finds_kafkas_directories_sound(directory: Path) -> None:
    found = [
        (path.name, str(finding))
        for path, finding in verify_partition(directory, VerifyOptions(deep=True))
        if isinstance(finding, Problem)
    ]
    assert found == []


@pytest.mark.parametrize("directory", list(directories()))
def test_converts_into_a_partition_and_back(directory: Path, tmp_path: Path) -> None:
    rows, columnar, back = (tmp_path / name / "topic-0" for name in ("rows", "columnar", "back"))
    convert_partition(directory, rows, ConvertOptions(topic_id=UUID(int=5)))
    records = records_of(rows)
    assert records == records_of(directory)
    if all(entry.magic == 2 for entry in entries_of(directory)):
        assert logs_of(rows) == logs_of(directory), "a batch that already has the format stays byte for byte"

    log = open_log(copy(rows, tmp_path / "opened-0"))
    assert log_offsets(log) == sorted({each[0] for each in records})
    log.close()

    if any(compression_of(entry) in ("gzip", "snappy") for entry in entries_of(directory)):
        return  # columnar batches have neither, and with another compression the conversion is the same
    convert_partition(rows, columnar, ConvertOptions(record_format=RecordFormat.COLUMNAR))
    log = open_log(copy(columnar, tmp_path / "columns-0"))
    assert log_offsets(log) == sorted({each[0] for each in records})
    log.close()
    convert_partition(columnar, back, ConvertOptions(record_format=RecordFormat.ROWS))
    assert records_of(back) == records


def test_a_conversion_that_would_lose_data_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    (source,) = ORACLES.glob("headers-big/topic-0")
    with pytest.raises(UnsupportedForFormatError):
        convert_partition(source, tmp_path / "topic-0", ConvertOptions(record_format=RecordFormat.MAGIC_1))
    assert list(tmp_path.iterdir()) == []
    options = ConvertOptions(record_format=RecordFormat.MAGIC_1, compression=Compression.NONE, allow_loss=True)
    assert convert_partition(source, tmp_path / "topic-0", options).segments == len(segment_bases(source))


def entries_of(directory: Path) -> list[Any]:
    return [entry for path in sorted(directory.glob("*.log")) for entry in read_entries(path.read_bytes())]


def logs_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.log")}


def compression_of(entry: Any) -> str:
    name: str = entry.compression.name.lower()
    return name


def records_of(directory: Path) -> list[tuple[Any, ...]]:
    """Return offset, key, value and headers of every record, control records included."""
    return [
        (record.offset, as_text(record.key), as_text(record.value), record.headers)
        for entry in entries_of(directory)
        for record in entry.records()
    ]


def as_text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def open_log(directory: Path) -> PartitionLog:
    return PartitionLog(
        topic="topic",
        topic_id=UUID(int=5),
        partition=0,
        directory=directory,
        config=TopicConfig.load({"retention.ms": -1}),
        files=OsFiles(),
        clock=SystemClock(),
    )


def no_schema(schema_id: int) -> pa.Schema:
    raise AssertionError(f"schema {schema_id}")


def log_offsets(log: PartitionLog) -> list[int]:
    """Return the offsets of the records that a reader of the log gets."""
    offset, offsets = log.log_start_offset, []
    while offset < log.high_watermark and (data := log.read(offset, 2**20)):
        for entry in read_entries(data):
            if isinstance(entry, BatchEntry) and entry.header.is_columnar:
                decoded = decode_batch(pa.py_buffer(data), entry.position, entry.header, no_schema)
                offsets += decoded.offsets().to_pylist()
            else:
                offsets += [record.offset for record in entry.records()]
            offset = entry.last_offset + 1
    return sorted(offsets)
