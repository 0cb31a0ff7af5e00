"""Cases of every aggregate, kind of window and emit strategy.

The values are easy to get wrong. One topology has all cases, so that it runs on Spark at once; each key is a case.

``expected`` is an independent oracle. It is plain Python that follows the rules of ``docs/streams/semantics.md`` record
by record, with no code of the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    Topology,
    Windowed,
    col,
    count,
    hopping,
    mean,
    sessions,
    sliding,
    tumbling,
    unlimited,
)
from millrace_streams import max as max_
from millrace_streams import min as min_
from millrace_streams import sum as sum_

TOPIC = "cases"
LARGEST, SMALLEST = 2**63 - 1, -(2**63)
NAN, INFINITY = math.nan, math.inf
VALUES = pa.schema(
    [
        ("i", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("d", pa.decimal128(20, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
    ]
)
SCHEMA = pa.schema([("case", pa.string()), ("part", pa.string()), *VALUES])
CASES: dict[str, tuple[str, list[Any]]] = {
    "NaN first": ("x", [NAN, 1.5, -2.5, 3.0]),
    "NaN between": ("x", [1.5, -2.5, NAN, 3.0]),
    "NaN alone": ("x", [NAN, None, NAN, None]),
    "NaN of floats": ("f", [1.5, NAN, -2.5, None]),
    "both infinities": ("x", [INFINITY, -INFINITY, 1.5, NAN]),
    "negative zeros": ("x", [-0.0, -0.0, None, -0.0]),
    "negative zero first": ("x", [-0.0, 0.0, -0.0, 0.0]),
    "zero first": ("f", [0.0, -0.0, 0.0, -0.0]),
    "nothing": ("x", [None, None, None, None]),
    "nulls between": ("i", [None, 4, None, -9]),
    "past the largest long": ("i", [LARGEST, 1, LARGEST, 5]),
    "past the smallest long": ("i", [SMALLEST, -1, SMALLEST, SMALLEST]),
    "integers past their range": ("n", [2**31 - 1, 2**31 - 1, None, -(2**31)]),
    "decimals": ("d", [Decimal("0.10"), Decimal("-999999999999999999.99"), None, Decimal("0.20")]),
    "strings": ("s", ["b", "", None, "Z"]),
    "strings beyond ASCII": ("s", ["\U0001f600", "\uffff", "é", "e\u0301"]),
    "booleans": ("b", [True, False, None, True]),
}
"""The column of each case, and its values; the other columns are null."""
TIMES = (1_000, 1_030, 1_015, 1_060)
"""Timestamps of the records of each case. The third record is late and joins two sessions."""
END, END_TIME = "end of time", 10_000
"""The case whose record closes all windows before it."""

WINDOWS: dict[str, Any] = {
    "none": None,
    "tumbling": tumbling(40, grace=100),
    "hopping": hopping(50, advance=20, grace=100),
    "sliding": sliding(25, grace=100),
    "sessions": sessions(20, grace=100),
    "unlimited": unlimited(),
}
FINAL = ("tumbling", "hopping", "sliding", "sessions")
OUTPUTS = [
    *(f"{window}.{emit}" for window in (*WINDOWS, "table-groups") for emit in ("every", "last")),
    *(f"{window}.{final}" for window in FINAL for final in ("final", "suppressed")),
]
"""Topics of the topology's sinks."""

Row = tuple[Any, int, int, dict[str, Any] | None]
"""A result: its case, the start and end of its window (0 without), its values.

The values are None for a removed session.
"""


class Record(NamedTuple):
    """A record in the order of its topic. ``part`` is the key of the table that is grouped by case."""

    case: str
    part: str
    time_ms: int
    values: dict[str, Any]


def records() -> list[Record]:
    """Return all cases' records, those of the same turn together."""
    nothing = dict.fromkeys(VALUES.names)
    found = [
        Record(case, f"{case}/{turn % 2}", TIMES[turn], nothing | {column: values[turn]})
        for turn in range(len(TIMES))
        for case, (column, values) in CASES.items()
    ]
    return [*found, Record(END, END, END_TIME, nothing)]


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as a row of ``SCHEMA``."""
    return {"case": record.case, "part": record.part, **record.values}


def aggregates(*, removing: bool = False) -> dict[str, Any]:
    """Return all kinds of aggregates of all columns, and of an expression."""
    numbers = ("i", "n", "x", "f", "d")
    found: dict[str, Any] = {"records": count(), "twice": sum_(col("i") * 2), "half": mean(col("x") / 2)}
    found |= {f"count_{name}": count(name) for name in VALUES.names}
    for name in numbers:
        found |= {f"sum_{name}": sum_(name), f"mean_{name}": mean(name)}
    for name in () if removing else VALUES.names:
        found |= {f"min_{name}": min_(name), f"max_{name}": max_(name)}
    return found


_NAMES = frozenset(aggregates())
_MEANS = frozenset(name for name in _NAMES if name.startswith("mean")) | {"half"}
_ADD_DOUBLES = frozenset({"half", "mean_i", "sum_x", "mean_x", "sum_f", "mean_f"})
_PARTIAL = sorted(_NAMES - _ADD_DOUBLES - {"sum_d", "mean_d"})
_WHOLE_SUMS = frozenset(name for name in _NAMES if name.startswith("count")) | {"records", "twice", "sum_i", "sum_n"}
SETS: dict[str, frozenset[str]] = {
    "all": _NAMES,
    "no means": _NAMES - _MEANS,
    "no means, no doubles added": _NAMES - _MEANS - _ADD_DOUBLES,
    "sums of whole numbers": _WHOLE_SUMS,
    **{
        f"{name} alone": frozenset({name})
        for name in ("records", "count_s", "sum_i", "sum_x", "sum_d", "mean_n", "mean_x", "half", "min_x", "max_s")
    },
}
"""Names of aggregates by the set in which they are computed.

The other aggregates of a set decide how an aggregate is stored (as its result or as accumulators). They also decide how
batches are folded: by running sums, in parts, or record by record. The results must not depend on it.
"""


def topology(chosen: str = "all") -> Topology:
    """Build all windows and emit strategies of a set of aggregates."""
    builder = StreamsBuilder()
    kept = {name: each for name, each in aggregates().items() if name in SETS[chosen]}
    removable = {name: each for name, each in aggregates(removing=True).items() if name in SETS[chosen]}
    stream = builder.stream(TOPIC, schema=SCHEMA, key_columns=["case"])
    grouped = stream.group_by_key()
    for name, window in WINDOWS.items():
        groups: Any = grouped if window is None else grouped.windowed_by(window)
        for emit in ("every", "last"):
            groups.aggregate(**kept, emit=emit).to_stream().to(f"{name}.{emit}")
        if name in FINAL:
            finals = groups.emit_strategy("on_window_close").aggregate(**kept)
            finals.to_stream().to(f"{name}.final")
            held = groups.aggregate(**kept).suppress(Suppressed.until_window_closes())
            held.to_stream().to(f"{name}.suppressed")
    table = stream.select_key(part=col("part")).to_table()
    for emit in ("every", "last") if removable else ():
        groups = table.group_by("case")
        groups.aggregate(**removable, emit=emit).to_stream().to(f"table-groups.{emit}")
    return builder.build()


def partial_topology(window: str) -> Topology:
    """Build the aggregates that may begin on the source stage, which are all but those that add doubles or decimals."""
    builder = StreamsBuilder()
    groups: Any = builder.stream(TOPIC, schema=SCHEMA, key_columns=["case"]).group_by_key()
    if WINDOWS[window] is not None:
        groups = groups.windowed_by(WINDOWS[window])
    found = aggregates()
    groups.aggregate(**{name: found[name] for name in _PARTIAL}).to_delta("out")
    return builder.build()


def rows_of_table(rows: Iterable[dict[str, Any]]) -> Iterator[Row]:
    """Return the rows of the table that ``partial_topology`` writes, as results."""
    for row in rows:
        bounds = [round(row[name].timestamp() * 1000) if name in row else 0 for name in ("window_start", "window_end")]
        yield row["case"], bounds[0], bounds[1], {name: row[name] for name in _PARTIAL}


def expected_of_partial(window: str) -> Any:
    """Return the final content of that table."""
    last = {update[:3]: update for update in _updates(window)}
    return comparable((*key, {name: update[3][name] for name in _PARTIAL}) for key, update in last.items())


def outputs_of(chosen: str) -> list[str]:
    """Return the outputs of the topology of a set of aggregates. Grouped tables refuse ``min`` and ``max``."""
    removable = SETS[chosen] & frozenset(aggregates(removing=True))
    return [output for output in OUTPUTS if removable or not output.startswith("table-groups")]


def expected(output: str, chosen: str = "all") -> Any:
    """Return the expected output.

    It has all updates or finals in any order, or the last result of each key and window.
    """
    return comparable(
        (*row[:3], {name: value for name, value in row[3].items() if name in SETS[chosen]}) for row in _rows_of(output)
    )


@cache
def _rows_of(output: str) -> list[Any]:
    window, emit = output.split(".")
    updates = list(_table_groups() if window == "table-groups" else _updates(window))
    if emit == "every":
        return updates
    last = {update[:3]: update for update in updates}
    # A session that was merged into another one is removed.
    kept = last.values() if window != "sessions" else _sessions_left(last)
    return [row for row in kept if emit == "last" or row[0] != END]


def rows_of(results: Iterable[tuple[Any, Any]]) -> Iterator[Row]:
    """Return results as rows of their keys and values."""
    for key, value in results:
        bare, start, end = key if isinstance(key, Windowed) else (key, 0, 0)
        yield bare, start, end, value and {name: value[name] for name in value if name in _NAMES}


def settled(output: str, rows: Iterable[Row]) -> Any:
    """Return an output of the topology in the form of ``expected``."""
    return comparable({row[:3]: row for row in rows}.values() if output.endswith("last") else rows)


def comparable(rows: Iterable[Row]) -> list[str]:
    """Return the existing rows in a form that is equal only if all bits are equal."""
    return sorted(repr((*row[:3], sorted(row[3].items()))) for row in rows if row[3] is not None)


def _updates(window: str) -> Iterator[Row]:
    for place, record in enumerate(records()):
        seen = [each for each in records()[: place + 1] if each.case == record.case]
        for start, end in _WINDOWS_OF[window](record.time_ms, seen):
            inside = [each for each in seen if window == "none" or _inside(window, each.time_ms, start, end)]
            yield record.case, start, end, _aggregated([each.values for each in inside])


def _inside(window: str, time_ms: int, start: int, end: int) -> bool:
    return start <= time_ms and (time_ms <= end if window in ("sliding", "sessions") else time_ms < end)


def _none(time_ms: int, seen: list[Record]) -> list[tuple[int, int]]:
    return [(0, 0)]


def _tumbling(time_ms: int, seen: list[Record]) -> list[tuple[int, int]]:
    return [(time_ms - time_ms % 40, time_ms - time_ms % 40 + 40)]


def _hopping(time_ms: int, seen: list[Record]) -> list[tuple[int, int]]:
    return [(start, start + 50) for start in range(0, time_ms + 1, 20) if start + 50 > time_ms]


def _sliding(time_ms: int, seen: list[Record]) -> list[tuple[int, int]]:
    """Return the sliding windows that end at a record, or begin after one and are not empty, and that the last record
    changes.
    """
    before, now = _all_sliding(seen[:-1]), _all_sliding(seen)
    return [window for window in sorted(now) if window[0] <= time_ms <= window[1] or window not in before]


def _all_sliding(seen: list[Record]) -> set[tuple[int, int]]:
    times = [each.time_ms for each in seen]
    right = {(time_ms + 1, time_ms + 26) for time_ms in times}
    return {(time_ms - 25, time_ms) for time_ms in times} | {
        (start, end) for start, end in right if any(start <= time_ms <= end for time_ms in times)
    }


def _sessions(time_ms: int, seen: list[Record]) -> list[tuple[int, int]]:
    """Return the session of the last record, with all records that it reaches by steps of at most the gap."""
    joined = {time_ms}
    while True:
        more = {each.time_ms for each in seen if any(abs(each.time_ms - known) <= 20 for known in joined)}
        if more == joined:
            return [(min(joined), max(joined))]
        joined = more


def _unlimited(time_ms: int, seen: list[Record]) -> list[tuple[int, int]]:
    return [(0, LARGEST)]


_WINDOWS_OF: dict[str, Callable[[int, list[Record]], list[tuple[int, int]]]] = {
    "none": _none,
    "tumbling": _tumbling,
    "hopping": _hopping,
    "sliding": _sliding,
    "sessions": _sessions,
    "unlimited": _unlimited,
}


def _sessions_left(last: dict[Any, Row]) -> list[Row]:
    return [
        row
        for row in last.values()
        if not any(other[0] == row[0] and other[1:3] != row[1:3] and _covers(other, row) for other in last.values())
    ]


def _covers(other: Row, row: Row) -> bool:
    return other[1] <= row[1] and row[2] <= other[2]


def _aggregated(values: list[dict[str, Any]]) -> dict[str, Any]:
    found = _added(values)
    for name in VALUES.names:
        there = [each[name] for each in values if each[name] is not None]
        found[f"min_{name}"], found[f"max_{name}"] = _extremes(there)
    return found


def _extremes(values: list[Any]) -> tuple[Any, Any]:
    """Return minimum and maximum. NaN is larger than any other number, and a negative zero becomes positive."""
    if not values:
        return None, None
    numbers = [value for value in values if not _is_nan(value)]
    nans = [value for value in values if _is_nan(value)]
    smallest, largest = min(numbers or nans), nans[0] if nans else max(numbers)
    return _plain(smallest), _plain(largest)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _plain(value: Any) -> Any:
    return 0.0 if isinstance(value, float) and value == 0 else value


def _added(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the aggregates that can also subtract, which are counts, sums and means."""
    expressions = {
        "twice": [each["i"] and _as_long(each["i"] * 2) for each in values],
        "half": [each["x"] and each["x"] / 2 for each in values],
    }
    found = {
        "records": len(values),
        "twice": _sum(expressions["twice"], whole=True),
        "half": _mean(expressions["half"]),
    }
    for name in VALUES.names:
        column = [each[name] for each in values]
        found[f"count_{name}"] = sum(value is not None for value in column)
        if name not in ("s", "b"):
            found |= {f"sum_{name}": _sum(column, whole=name in ("i", "n")), f"mean_{name}": _mean(column)}
    return found


def _sum(column: list[Any], *, whole: bool) -> Any:
    there = [value for value in column if value is not None]
    if not there:
        return None
    total = sum(there[1:], start=_plain(there[0]))
    return _as_long(total) if whole else total


def _mean(column: list[Any]) -> float | None:
    there = [value for value in column if value is not None]
    if not there:
        return None
    if isinstance(there[0], Decimal):
        return float(sum(there)) / len(there)
    return sum(map(float, there), start=0.0) / len(there)


def _as_long(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _table_groups() -> Iterator[Row]:
    """Return the groups of a table, which have the newest row of each part.

    A NaN or infinity stays in its sum.
    """
    rows: dict[str, Record] = {}
    for place, record in enumerate(records()):
        rows[record.part] = record
        inside = [each.values for each in rows.values() if each.case == record.case]
        gone = [each.values for each in records()[:place] if each.case == record.case and each.values not in inside]
        found = _added(inside)
        for name in ("x", "f"):
            stays = sum(each[name] for each in gone if each[name] is not None and not math.isfinite(each[name]))
            for aggregate in (f"sum_{name}", f"mean_{name}", "half"):
                if stays and found[aggregate] is not None:
                    found[aggregate] = NAN
        yield record.case, 0, 0, found
