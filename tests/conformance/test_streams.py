"""What Kafka Streams itself puts out for scripted inputs, record for record, whatever the batches are.

Cases come from the directory in ``ORACLES`` (by default those beside this suite): those whose operators are there.
Every update is compared, with its window, timestamp and order, and the state at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import StreamsBuilder, TimeWindows, Topology, TopologyTestDriver

ORACLES = Path(os.environ.get("ORACLES", Path(__file__).parents[1] / "oracles")) / "streams"
TYPES = {"string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "double": pa.float64()}
NOT_YET = "an operator of the full algebra"


def cases() -> Iterator[Any]:
    for path in sorted(ORACLES.glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        if supported(case):
            yield pytest.param(case, id=f"streams-{case['category']}-{case['name']}")


def supported(case: dict[str, Any]) -> bool:
    calls = case["topology"]["calls"]
    # Filters of tables, joins, sessions and the rest are another day's.
    known = {"stream", "groupByKey", "windowedBy", "count", "toStream", "to", "filter", "filterNot", "mapValues"}
    on_tables = {call["id"] for call in calls if call["op"] == "count"}
    windows = [call["args"]["window"]["type"] for call in calls if call["op"] == "windowedBy"]
    plain_time = not any("timestamp_extractor" in call.get("args", {}) for call in calls)
    return (
        {call["op"] for call in calls} <= known
        and set(windows) <= {"tumbling", "hopping"}
        and not any(call["op"] in ("filter", "mapValues") and call["input"] in on_tables for call in calls)
        and plain_time
    )


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
            return builder.stream(arguments["topic"], schema=pa.schema(types), key_columns=["key"])
        case "groupByKey":
            return handle.group_by_key()
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


@pytest.mark.parametrize("batch_records", [1, 3, 1000])
@pytest.mark.parametrize("case", list(cases()))
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
