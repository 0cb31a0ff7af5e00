"""What Kafka Streams itself puts out for scripted inputs, record for record, whatever the batches are.

Cases come from the directory in ``ORACLES`` (by default those beside this suite). Every update is compared, with its
window, timestamp and order, and the state at the end. A case whose topology the language cannot say yet is skipped,
and the skip says what is missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import Expression, StreamsBuilder, TimeWindows, Topology, TopologyTestDriver, col

ORACLES = Path(os.environ.get("ORACLES", Path(__file__).parents[1] / "oracles")) / "streams"
TYPES = {"string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "double": pa.float64()}
BATCHES = (1, 3, 1000)
STREAM_OPERATIONS = {"stream", "groupByKey", "groupBy", "windowedBy", "count", "filter", "filterNot", "mapValues", "to"}
TABLE_OPERATIONS = {"toStream"}
TABLES = {"count", "reduce", "aggregate", "table", "globalTable", "toTable"}
VALUE_IS_TIME = "lambda k, v, ts: v"
# Key selectors are expressions in our language: these are those that it can say.
KEY_SELECTORS: dict[str, Expression] = {"lambda k, v: v": col("value"), "lambda k, v: v % 3": col("value") % 3}


def cases() -> Iterator[Any]:
    for path in sorted(ORACLES.glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        identity = f"streams-{case['category']}-{case['name']}"
        gaps = sorted(set(gaps_of(case)))
        if gaps:
            skipped = pytest.mark.skip(reason=f"not in the language yet: {', '.join(gaps)}")
            yield pytest.param(case, 0, id=identity, marks=skipped)
            continue
        for records in BATCHES:
            yield pytest.param(case, records, id=f"{identity}-batches-of-{records}")


def gaps_of(case: dict[str, Any]) -> Iterator[str]:
    """What the case's topology needs and the language has not."""
    calls = case["topology"]["calls"]
    tables: set[str] = set()
    for call in calls:
        operation, arguments = call["op"], call.get("args", {})
        on_table = call.get("input") in tables
        if operation in TABLES or (on_table and operation != "toStream"):
            tables.add(call["id"])
        if on_table and operation not in TABLE_OPERATIONS:
            yield f"{operation} of a table"
        elif operation not in STREAM_OPERATIONS | TABLE_OPERATIONS:
            yield operation
        elif operation == "windowedBy" and arguments["window"]["type"] not in ("tumbling", "hopping"):
            yield f"{arguments['window']['type']} windows"
        elif operation == "groupBy" and arguments["key_selector"] not in KEY_SELECTORS:
            yield f"the key selector {arguments['key_selector']}"
        elif operation == "toStream" and "mapper" in arguments:
            yield "toStream with a mapper"
        elif arguments.get("timestamp_extractor") not in (None, VALUE_IS_TIME):
            yield f"the timestamp extractor {arguments['timestamp_extractor']}"


def build(case: dict[str, Any]) -> tuple[Topology, str]:
    builder = StreamsBuilder()
    handles: dict[str, Any] = {}
    for call in case["topology"]["calls"]:
        arguments = call.get("args", {})
        handle = handles.get(call.get("input"))
        handles[call["id"]] = apply(builder, handle, call["op"], arguments)
    [topic] = case["topology"]["input_topics"]
    return builder.build(), topic


def apply(builder: StreamsBuilder, handle: Any, operation: str, arguments: dict[str, Any]) -> Any:
    match operation:
        case "stream":
            types = [("key", TYPES[arguments["key_type"]]), ("value", TYPES[arguments["value_type"]])]
            timestamp = "value" if "timestamp_extractor" in arguments else None
            return builder.stream(arguments["topic"], schema=pa.schema(types), key_columns=["key"], timestamp=timestamp)
        case "groupByKey":
            return handle.group_by_key()
        case "groupBy":
            return handle.group_by(key=KEY_SELECTORS[arguments["key_selector"]])
        case "windowedBy":
            window = arguments["window"]
            size = window["size_ms"]
            return handle.windowed_by(
                TimeWindows(
                    size_ms=size, advance_ms=window.get("advance_ms") or size, grace_ms=window.get("grace_ms") or 0
                )
            )
        case "count":
            return handle.count(column="value", store=arguments.get("store"), emit="every")
        case "toStream":
            return handle.to_stream()
        case "filter":
            return handle.filter(eval(arguments["predicate"]))
        case "filterNot":
            return handle.filter_not(eval(arguments["predicate"]))
        case "mapValues":
            result = pa.schema([("value", TYPES[arguments.get("value_type", "string")])])
            return handle.map_values(eval(arguments["mapper"]), schema=result)
        case "to":
            handle.to(arguments["topic"])
            return None
    raise AssertionError(operation)


@pytest.mark.parametrize(("case", "batch_records"), list(cases()))
def test_gives_what_kafka_streams_gives(case: dict[str, Any], batch_records: int) -> None:
    topology, topic = build(case)
    driver = TopologyTestDriver(topology)
    inputs = case["inputs"]
    for start in range(0, len(inputs), batch_records):
        batch = inputs[start : start + batch_records]
        rows = [{"key": record["key"], "value": record["value"]} for record in batch]
        driver.pipe(topic, rows, timestamps_ms=[record["timestamp_ms"] for record in batch])
    [output_topic] = case["topology"]["output_topics"]
    expected = [(*identity(output), output["value"], output["timestamp_ms"]) for output in case["outputs"]]
    assert [update(row) for row in driver.read(output_topic)] == expected
    for name, store in case["final_state"].items():
        entries = {(*identity(entry), entry["value"], entry["timestamp_ms"]) for entry in store["entries"]}
        assert {stored(row, case) for row in driver.store(name).to_dicts()} == entries
    if not any(call["op"] == "groupBy" for call in case["topology"]["calls"]):
        # There the library filters records without a key before its repartition topic, and does not count them.
        assert driver.dropped_records == case["dropped_records_total"]


def identity(entry: dict[str, Any]) -> tuple[Any, Any, Any]:
    window = entry["window"] or {"start_ms": None, "end_ms": None}
    return entry["key"], window["start_ms"], window["end_ms"]


def update(row: dict[str, Any]) -> tuple[Any, ...]:
    start, end = (
        round(row[name].timestamp() * 1000) if name in row else None for name in ("window_start", "window_end")
    )
    return row["key"], start, end, row["value"], row["__timestamp"]


def stored(row: dict[str, Any], case: dict[str, Any]) -> tuple[Any, ...]:
    sizes = [call["args"]["window"]["size_ms"] for call in case["topology"]["calls"] if call["op"] == "windowedBy"]
    start = row.get("__window")
    end = start + sizes[0] if start is not None else None
    return row["key"], start, end, row["value.count"], row["__timestamp"]
