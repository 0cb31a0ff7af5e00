"""Tests of Kafka Streams' own scripted cases in the test driver.

Every update is compared record for record, with its window, timestamp and order, and so are the calls of functions and
the final state. Each case is run in batches of 1, 3 and 1000 records. ``integration/test_streams_conformance.py`` does
it on Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace_streams import TestRecord, TopologyTestDriver

from .stream_capabilities import DOCUMENT, document
from .stream_cases import QUIRKS, Script, expected_outputs, is_quirk, load_cases, windowed

BATCHES = (1, 3, 1000)


def cases() -> Iterator[Any]:
    for case in load_cases():
        marks = [pytest.mark.xfail(reason=QUIRKS[case["name"]], strict=True)] if is_quirk(case) else []
        for records in BATCHES:
            identity = f"streams-{case['category']}-{case['name']}-batches-of-{records}"
            yield pytest.param(case, records, id=identity, marks=marks)


def run(driver: TopologyTestDriver, inputs: list[dict[str, Any]], batch_records: int) -> None:
    """Pipe a script in batches, and advance the wall clock between them."""
    batch: list[TestRecord] = []
    for entry in [*inputs, {"advance_wall_clock_ms": 0}]:
        if "advance_wall_clock_ms" in entry or len(batch) == batch_records:
            driver.pipe_records(batch)
            batch = []
        if "advance_wall_clock_ms" in entry:
            driver.advance_wall_clock(entry["advance_wall_clock_ms"])
        else:
            batch.append(TestRecord(entry["topic"], entry["key"], entry["value"], entry["timestamp_ms"]))


@pytest.mark.parametrize(("case", "batch_records"), list(cases()))
def test_results_of_the_test_driver_are_those_of_kafka_streams(case: dict[str, Any], batch_records: int) -> None:
    script = Script(case)
    driver = TopologyTestDriver(script.topology())
    run(driver, case["inputs"], batch_records)
    for topic, expected in expected_outputs(case).items():
        assert [(record.key, record.value, record.timestamp) for record in driver.read_records(topic)] == expected
    shown = [(effect["node"], effect["key"], effect["value"]) for effect in case.get("side_effects", [])]
    for node in {node for node, _, _ in shown}:
        assert [each for each in script.shown if each[0] == node] == [each for each in shown if each[0] == node]
    for name, store in case["final_state"].items():
        check_store(driver, name, store)


def check_store(driver: TopologyTestDriver, name: str, store: dict[str, Any]) -> None:
    if store["type"] == "versioned_kv":
        view = driver.view(name)
        for entry in store["entries"]:
            assert version(view.get(entry["key"])) == entry["latest"]
            for moment in entry["as_of"]:
                assert version(view.get(entry["key"], moment["as_of_ms"])) == moment["record"]
        return
    timed = store["type"].startswith("timestamped")
    expected = [
        (windowed(entry), entry["value"], *([entry["timestamp_ms"]] if timed else [])) for entry in store["entries"]
    ]
    entries = [entry if timed else entry[:2] for entry in map(tuple, driver.entries(name))]
    assert sorted(entries, key=repr) == sorted(expected, key=repr)


def version(record: Any) -> Any:
    return record and {"value": record.value, "timestamp_ms": record.timestamp, "valid_to_ms": record.valid_to}


def test_the_documents_table_is_what_these_suites_run() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document()
