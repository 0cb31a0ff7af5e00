"""Kafka Streams' own cases (``oracles/streams``) as topologies of ours, for each runner.

Cases come from the directory in ``ORACLES`` (by default those beside this suite).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace_streams import (
    BufferConfig,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    UnlimitedWindows,
    Windowed,
    key_value_store,
    session_store,
    versioned_store,
    window_store,
)

ORACLES = Path(os.environ.get("ORACLES", Path(__file__).parents[1] / "oracles")) / "streams"
QUIRKS = {
    "emit_final_default_retention": "Kafka Streams loses these finals when stream time jumps past the store's "
    "retention, and millrace emits them",
}
"""Cases marked CAUTION that we do not follow, with the reason."""
DRIVER_ALONE = {
    "proc_cancel_punctuation": "it punctuates by the wall clock, which a test can set only in the test driver",
}
"""Cases that are not run on Spark, with the reason."""


SPARK_RUNNERS = ("stream", "batch")


def turn_of(number: int) -> str:
    """Return the Spark runner of a case in ``make test``, by the case's number."""
    return SPARK_RUNNERS[number % 2]


def load_cases() -> list[dict[str, Any]]:
    """Load all cases, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ORACLES.glob("*.json"))]


def is_quirk(case: dict[str, Any]) -> bool:
    return case["name"] in QUIRKS and "CAUTION" in case["topology"]["description"]


def expected_outputs(case: dict[str, Any]) -> dict[str, list[tuple[Any, Any, int]]]:
    """Return the library's output by topic, in order.

    A record is a key (``Windowed`` if it is), a value and a time.
    """
    expected: dict[str, list[tuple[Any, Any, int]]] = defaultdict(list)
    for output in case["outputs"]:
        expected[output["topic"]].append((windowed(output), output["value"], output["timestamp_ms"]))
    return {topic: expected[topic] for topic in case["topology"]["output_topics"]}


class Script:
    """A case's topology in our language. ``shown`` collects the calls of peek and foreach.

    Several scripts may share a ``builder``. Then ``prefix`` begins the names of topics, and of those stores that no
    processor names.
    """

    def __init__(self, case: dict[str, Any], builder: StreamsBuilder | None = None, prefix: str = "") -> None:
        self.case = case
        self.builder = builder or StreamsBuilder()
        self.prefix = prefix
        self.handles: dict[str, Any] = {}
        self.shown: list[tuple[str, Any, Any]] = []
        for call in case["topology"]["calls"]:
            handle = self.handles.get(call.get("input"))
            arguments = call.get("args", {})
            self.handles[call["id"]] = getattr(self, call["op"])(call["id"], handle, arguments)

    def topology(self) -> Topology:
        return self.builder.build()

    def named(self, a: dict[str, Any]) -> dict[str, Any]:
        return {"store": self.prefix + a["store"]} if a.get("store") is not None else {}

    def stream(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        extractor = function(a, "timestamp_extractor")
        return self.builder.stream(
            self.prefix + a["topic"], key=a["key_type"], value=a["value_type"], timestamp=extractor
        )

    def table(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        history = a["history_retention_ms"] if a.get("versioned") else None
        types = {"key": a["key_type"], "value": a["value_type"]}
        return self.builder.table(self.prefix + a["topic"], **types, **self.named(a), versioned=history)

    def globalTable(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802 - the oracle's names
        types = {"key": a["key_type"], "value": a["value_type"]}
        return self.builder.global_table(self.prefix + a["topic"], **types, **self.named(a))

    def addStateStore(self, call: str, handle: Any, a: dict[str, Any]) -> None:  # noqa: N802
        types = {"key": a["key_type"], "value": a["value_type"]}
        match a["kind"]:
            case "key_value":
                store = key_value_store(a["store"], **types)
            case "window":
                store = window_store(a["store"], **types, retention=a["retention_ms"])
            case "session":
                store = session_store(a["store"], **types, retention=a["retention_ms"])
            case _:
                store = versioned_store(a["store"], **types, history=a["history_retention_ms"])
        self.builder.add_state_store(store)

    def filter(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle.filter(function(a, "predicate"), **self.named(a))

    def filterNot(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.filter_not(function(a, "predicate"), **self.named(a))

    def map(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle.map(function(a, "mapper"), key=a.get("key_type"), value=a.get("value_type"))

    def flatMap(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.flat_map(function(a, "mapper"), key=a.get("key_type"), value=a.get("value_type"))

    def mapValues(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.map_values(function(a, "mapper", "mapper_with_key"), value=a.get("value_type"), **self.named(a))

    def flatMapValues(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.flat_map_values(function(a, "mapper", "mapper_with_key"), value=a.get("value_type"))

    def selectKey(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.select_key(function(a, "mapper"), key=a.get("key_type"))

    def groupBy(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        if "selector" in a:
            return handle.group_by(function(a, "selector"), key=a.get("key_type"), value=a.get("value_type"))
        return handle.group_by(function(a, "key_selector"), key=a.get("key_type"))

    def groupByKey(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.group_by_key()

    def windowedBy(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return lambda retention_ms=0: handle_of(handle).windowed_by(window_of(a["window"], retention_ms))

    def emitStrategy(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        strategy = {"onWindowClose": "on_window_close", "onWindowUpdate": "on_window_update"}[a["strategy"]]
        return lambda retention_ms=0: handle(retention_ms).emit_strategy(strategy)

    def count(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle_of(handle, a).count(**self.named(a))

    def reduce(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        if "adder" in a:
            return handle.reduce(function(a, "adder"), function(a, "subtractor"), **self.named(a))
        return handle_of(handle, a).reduce(function(a, "reducer"), **self.named(a))

    def aggregate(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        names = ("initializer", "aggregator", "adder", "subtractor", "session_merger")
        functions = [function(a, name) for name in names if name in a]
        return handle_of(handle, a).aggregate(*functions, value=a.get("value_type"), **self.named(a))

    def cogroup(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        # The oracle's first call names no other stream. Each further call adds `other`.
        if "other" in a:
            cogrouped = handle.cogroup(self.handles[a["other"]], function(a, "aggregator"))
        else:
            cogrouped = handle.cogroup(function(a, "aggregator"))
        return cogrouped

    def toStream(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.to_stream(function(a, "mapper"), key=a.get("key_type"))

    def toTable(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.to_table(**self.named(a))

    def suppress(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        if a["mode"] == "untilWindowCloses":
            return handle.suppress(Suppressed.until_window_closes())
        limit = a["buffer"]
        buffer = BufferConfig.unbounded() if limit == "unbounded" else BufferConfig.max_records(limit["max_records"])
        return handle.suppress(Suppressed.until_time_limit(a["time_limit_ms"], buffer))

    def split(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        split = handle.split()
        branches = {index: split.branch(eval(predicate)) for index, predicate in enumerate(a["predicates"])}
        if a.get("default_branch"):
            branches["default"] = split.default_branch()
        return branches

    def branch(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle[a["index"]]

    def merge(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle.merge(self.handles[a["other"]])

    def peek(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle.peek(lambda key, value: self.shown.append((call, key, value)))

    def foreach(self, call: str, handle: Any, a: dict[str, Any]) -> None:
        handle.for_each(lambda key, value: self.shown.append((call, key, value)))

    def repartition(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle.repartition(self.prefix + a["name"] if a.get("name") else None)

    def through(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle.through(self.prefix + a["topic"])

    def join(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return self._join(handle.join, a)

    def leftJoin(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return self._join(handle.left_join, a)

    def outerJoin(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return self._join(handle.outer_join, a)

    def _join(self, join: Callable[..., Any], a: dict[str, Any]) -> Any:
        options = {"value": a.get("value_type"), **self.named(a)}
        if "window" in a:
            options["window"] = JoinWindows(**a["window"])
        if "key_selector" in a:
            options["selector"] = function(a, "key_selector")
        if "foreign_key_extractor" in a:
            options["foreign_key"] = function(a, "foreign_key_extractor")
        if "grace_ms" in a:
            options["grace"] = a["grace_ms"]
        return join(self.handles[a["other"]], function(a, "joiner", "joiner_with_key"), **options)

    def process(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        types = {"key": a.get("key_type"), "value": a.get("value_type")}
        return handle.process(processor(a["python"]), stores=a["stores"], **types)

    def processValues(self, call: str, handle: Any, a: dict[str, Any]) -> Any:  # noqa: N802
        return handle.process_values(processor(a["python"]), stores=a["stores"], value=a.get("value_type"))

    def to(self, call: str, handle: Any, a: dict[str, Any]) -> None:
        handle.to(self.prefix + a["topic"])


def function(arguments: dict[str, Any], *names: str) -> Any:
    for name in names:
        if name in arguments:
            return eval(arguments[name])
    return None


def processor(source: str) -> type:
    names: dict[str, Any] = {}
    exec(source, names)
    found: type = names["P"]
    return found


def handle_of(handle: Any, arguments: dict[str, Any] | None = None) -> Any:
    """Build a windowed stream after its retention is known, which the oracle names with the aggregation."""
    if callable(handle):
        return handle((arguments or {}).get("retention_ms") or 0)
    return handle


def window_of(window: dict[str, Any], retention_ms: int) -> Any:
    common = {"grace_ms": window.get("grace_ms") or 0, "retention_ms": retention_ms}
    match window["type"]:
        case "sliding":
            return SlidingWindows(difference_ms=window["time_difference_ms"], **common)
        case "session":
            return SessionWindows(gap_ms=window["inactivity_gap_ms"], **common)
        case "unlimited":
            return UnlimitedWindows(start_ms=window.get("start_ms") or 0)
    size = window["size_ms"]
    return TimeWindows(size_ms=size, advance_ms=window.get("advance_ms") or size, **common)


def windowed(entry: dict[str, Any]) -> Any:
    window = entry["window"]
    return Windowed(entry["key"], window["start_ms"], window["end_ms"]) if window else entry["key"]
