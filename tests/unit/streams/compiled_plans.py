"""Topologies of every kind with their reviewed plans in ``plans/<name>.txt``.

.venv/bin/python -m tests.unit.streams.compiled_plans     rewrites the plans; review the differences in git

Each topology is small and shows one feature. The applications in ``jobs/`` show features together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from millrace.schemas import parse_schema
from millrace_streams import (
    BufferConfig,
    StreamsBuilder,
    Suppressed,
    TopicShape,
    Topology,
    batchwise,
    coalesce,
    col,
    compile_topology,
    count,
    explain,
    hopping,
    json_rows,
    key_value_store,
    left,
    mean,
    right,
    row,
    sessions,
    sliding,
    tumbling,
    unlimited,
    versioned_store,
    when,
    within,
)
from millrace_streams import max as max_
from millrace_streams import sum as sum_
from millrace_streams.application import load_topology
from millrace_streams.compiler import Plan

ROOT: Final = Path(__file__).parents[3]
PLANS: Final = Path(__file__).with_name("plans")
FLIGHTS: Final = "origin STRING NOT NULL, carrier STRING, flight INT, tailnum STRING, delay DOUBLE, at TIMESTAMP"
LONGS: Final = {"key": "string", "value": "long"}

Built: Final[dict[str, Callable[[StreamsBuilder], Any]]] = {}


def plan_of(build: Callable[[StreamsBuilder], Any]) -> Callable[[StreamsBuilder], Any]:
    """Register a function's topology under the name of its plan file."""
    Built[build.__name__] = build
    return build


def flights(builder: StreamsBuilder) -> Any:
    return builder.stream("flights", schema=FLIGHTS, key_columns=["origin"], timestamp="at")


def numbers(builder: StreamsBuilder, topic: str = "numbers") -> Any:
    return builder.stream(topic, **LONGS)


def even(value: int) -> bool:
    return value % 2 == 0


def digit(key: str, value: int) -> str:
    return str(value % 10)


def pair(key: str, value: int) -> tuple[str, int]:
    return key, value


def digit_of_window(key: Any, value: int) -> tuple[str, int]:
    return str(value % 10), value


def twice(value: int) -> list[int]:
    return [value, value]


def late(frame: Any) -> Any:
    return frame["delay"] > 15


def add(one: int, other: int) -> int:
    return one + other


def subtract(one: int, other: int) -> int:
    return one - other


def show(key: Any, value: Any) -> None:
    """Do nothing. Peek and for_each call it."""


def zero() -> int:
    return 0


def added(key: Any, value: int, aggregate: int) -> int:
    return aggregate + value


def taken(key: Any, value: int, aggregate: int) -> int:
    return aggregate - value


def by_digit(key: int, value: int) -> str:
    """Name a topic for each last digit."""
    return f"digit-{value % 10}"


class Last:
    """A processor with a store."""

    def process(self, record: Any) -> None:
        """Do nothing, because the processor is compiled and not run."""


@plan_of
def columns_and_filters_are_pushed_down(builder: StreamsBuilder) -> None:
    stream = flights(builder).filter((col("delay") > 15) & col("tailnum").is_not_null()).filter_not(batchwise(late))
    stream.map_values(hours=col("delay") / 60, late=when(col("delay") > 60, "very", "a bit")).to("late")


@plan_of
def what_nobody_needs_is_neither_read_nor_computed(builder: StreamsBuilder) -> None:
    computed = flights(builder).with_columns(hours=col("delay") / 60, who=coalesce(col("tailnum"), col("carrier")))
    computed.group_by("origin").aggregate(hours=sum_("hours"), store="hours").to_delta("hours")


@plan_of
def functions_of_records(builder: StreamsBuilder) -> None:
    stream = numbers(builder).filter(even).map_values(abs).flat_map_values(twice).peek(show, name="shown")
    stream.map(pair).flat_map(lambda key, value: [(key, value)]).select_key(digit).to("digits")
    stream.for_each(show)


@plan_of
def branches_that_meet_again(builder: StreamsBuilder) -> None:
    split = numbers(builder).split(name="numbers-")
    small, rest = split.branch(col("value") < 10, name="small"), split.default_branch(name="rest")
    small.merge(rest.map_values(value=col("value") / 10, name="tenths").map_values(value=col("value").cast("bigint")))
    small.merge(rest).to("all")


@plan_of
def payloads_of_rows_through_a_topic(builder: StreamsBuilder) -> None:
    orders = builder.stream("orders", key="string", value=json_rows("customer STRING, amount DOUBLE"))
    orders.select_key("customer").through("by-customer").group_by_key().aggregate(total=sum_("amount")).to_delta("t")


@plan_of
def aggregates_begun_in_the_reader(builder: StreamsBuilder) -> None:
    hours = flights(builder).group_by("origin").windowed_by(tumbling(3_600_000, grace=60_000))
    hours.aggregate(n=count(), latest=max_("flight"), store="hours", emit="last").to_delta("hours")


@plan_of
def aggregates_of_every_update(builder: StreamsBuilder) -> None:
    hours = flights(builder).group_by("origin").windowed_by(hopping(3_600_000, advance=1_800_000))
    hours.aggregate(n=count("tailnum"), mean_delay=mean("delay"), store="hours").to_stream().to("hours")


@plan_of
def aggregates_of_doubles_stay_in_record_order(builder: StreamsBuilder) -> None:
    flights(builder).group_by("origin").aggregate(total=sum_("delay"), store="totals", emit="last").to_delta("totals")


@plan_of
def one_move_for_two_aggregations(builder: StreamsBuilder) -> None:
    by_carrier = flights(builder).group_by("carrier")
    by_carrier.count(store="flights").to_delta("flights_by_carrier")
    by_carrier.windowed_by(tumbling(60_000)).count(store="minutes").to_delta("minutes_by_carrier")


@plan_of
def no_move_where_the_key_contains_the_old_one(builder: StreamsBuilder) -> None:
    flights(builder).group_by("carrier", "origin").count(store="flights").to_delta("flights_by_carrier")


@plan_of
def two_moves_in_two_stages(builder: StreamsBuilder) -> None:
    counts = numbers(builder).group_by(digit, key="string").count(column="value", store="digits")
    counts.to_stream().group_by(digit, key="string").reduce(add, store="digits-of-counts").to_delta("counts")


@plan_of
def folds_by_all_kinds_of_windows(builder: StreamsBuilder) -> None:
    grouped = numbers(builder).group_by_key()
    grouped.aggregate(zero, added, value="long", store="sums").to_stream().to("sums")
    for name, window in (("sliding", sliding(5)), ("tumbling", tumbling(10)), ("ever", unlimited())):
        grouped.windowed_by(window).reduce(add, store=name).to_delta(name)
    visits = grouped.windowed_by(sessions(30, grace=10))
    visits.aggregate(zero, added, lambda key, one, other: one + other, value="long", store="visits").to_delta("visits")


@plan_of
def finals_when_windows_close(builder: StreamsBuilder) -> None:
    grouped = numbers(builder).group_by_key()
    grouped.windowed_by(tumbling(10)).emit_strategy("on_window_close").count(store="a").to_stream().to("finals")
    held = grouped.windowed_by(tumbling(10, grace=5)).count(store="b")
    held.suppress(Suppressed.until_window_closes(), name="final").to_delta("held")
    counts = grouped.count(store="c")
    counts.suppress(Suppressed.until_time_limit(100, BufferConfig.max_records(9).emit_early_when_full()), name="later")
    counts.to_delta("counts")


@plan_of
def cogrouped_streams(builder: StreamsBuilder) -> None:
    one, other = numbers(builder).group_by_key(), numbers(builder, "others").group_by_key()
    both = one.cogroup(added).cogroup(other, taken).windowed_by(tumbling(10))
    both.aggregate(zero, value="long", store="both").to_stream().to("both")


@plan_of
def tables_row_by_row(builder: StreamsBuilder) -> None:
    table = builder.table("numbers", **LONGS, store="numbers")
    kept = table.filter(col("value") > 1, store="large").map_values(abs, name="absolute").filter_not(even)
    kept.map_values(value=col("value") + 1, name="next").to_stream().to("changes")


@plan_of
def tables_grouped_anew_need_old_values(builder: StreamsBuilder) -> None:
    groups = builder.table("numbers", **LONGS).filter(even).group_by(lambda key, value: (digit(key, value), value))
    groups.count(store="counts").to_delta("counts")
    groups.reduce(add, subtract, store="sums").to_delta("sums")
    groups.aggregate(zero, added, taken, store="differences").to_delta("differences")


@plan_of
def a_table_that_a_join_looks_up_is_kept(builder: StreamsBuilder) -> None:
    mapped = builder.table("numbers", **LONGS).map_values(abs, name="absolute")
    numbers(builder, "others").join(mapped, add).to("joined")


@plan_of
def joins_of_streams(builder: StreamsBuilder) -> None:
    left, right = numbers(builder), numbers(builder, "others")
    for kind in ("join", "left_join", "outer_join"):
        getattr(left, kind)(right, add, window=within(10, grace=5), name=kind).to(kind)


@plan_of
def joins_with_tables(builder: StreamsBuilder) -> None:
    stream, everywhere = numbers(builder), builder.global_table("everywhere", **LONGS, store="everywhere")
    versions = builder.table("versions", **LONGS, store="versions", versioned=1000)
    stream.left_join(versions, add, grace=100, name="as-of-its-time").to("a")
    stream.join(everywhere, add, selector=digit, name="everywhere").to("b")


@plan_of
def joins_by_expressions_read_what_they_need(builder: StreamsBuilder) -> None:
    planes = builder.table("planes", schema="tailnum STRING, seats INT, year INT", key_columns=["tailnum"])
    by_plane = flights(builder).select_key("tailnum").join(planes, delay=left("delay"), seats=right("seats"))
    by_plane.to("seats_late")
    numbers(builder).left_join(builder.global_table("others", **LONGS), left() + right(), selector="key").to("sums")


@plan_of
def joins_of_tables(builder: StreamsBuilder) -> None:
    left, right = builder.table("numbers", **LONGS), builder.table("others", **LONGS)
    for kind in ("join", "left_join", "outer_join"):
        getattr(left, kind)(right, add, name=kind).to_stream().to(kind)


@plan_of
def a_join_by_foreign_key(builder: StreamsBuilder) -> None:
    left, right = builder.table("numbers", **LONGS), builder.table("others", **LONGS)
    left.left_join(right, add, foreign_key=str, foreign_key_type="string", name="foreign").to_delta("foreign")


@plan_of
def a_table_lives_on_the_stage_that_looks_at_it(builder: StreamsBuilder) -> None:
    table = builder.table("others", **LONGS, store="others")
    counts = numbers(builder).group_by(digit, key="string").count(column="value", store="digits").to_stream()
    counts.select_key(digit).join(table, add).to("joined")


@plan_of
def windows_that_two_stages_look_at(builder: StreamsBuilder) -> None:
    records, others = numbers(builder), numbers(builder, "others")
    windows = others.group_by_key().windowed_by(tumbling(1000, grace=500))
    table = windows.emit_strategy("on_window_close").count(store="per-second")
    first = records.group_by_key().windowed_by(tumbling(1000)).count().to_stream().join(table, add)
    again = first.map(digit_of_window, key="string").group_by_key().windowed_by(tumbling(1000)).count()
    again.to_stream().join(table, add).to_delta("both")


@plan_of
def processors_and_their_stores(builder: StreamsBuilder) -> None:
    builder.add_state_store(versioned_store("versions", **LONGS, history=1000))
    stream = numbers(builder).filter(col("value") > 1)
    stream.process(Last, stores=[key_value_store("last", **LONGS)], name="process").to("processed")
    stream.process_values(Last, stores=["versions"], value=row("n BIGINT"), name="values").to("values")


@plan_of
def a_processor_with_children_and_topics_by_a_function(builder: StreamsBuilder) -> None:
    stream = numbers(builder).process(Last, stores=[key_value_store("last", **LONGS)], name="process")
    stream.filter(even, name="even").to(by_digit, name="topics")
    stream.to("all")


JOB_TOPICS: Final = {
    "flights": TopicShape(schema=parse_schema(ROOT / "conf/demo/flights.ddl"), key_columns=("origin",)),
    "weather": TopicShape(schema=parse_schema(ROOT / "conf/demo/weather.ddl"), key_columns=("origin",)),
    "planes": TopicShape(
        schema=pa.schema([("tailnum", pa.string()), ("year", pa.int32()), ("seats", pa.int32())]),
        key_columns=("tailnum",),
    ),
}
JOBS: Final = (
    "flights_enriched",
    "hot_words",
    "hourly_departures",
    "log_analysis",
    "malicious_access",
    "stock_highs_lows",
    "word_count",
)


def topologies() -> dict[str, Topology]:
    """Return all topologies by the names of their files."""
    found = {f"job_{name}": load_topology(str(ROOT / "jobs" / f"{name}.py")) for name in JOBS}
    for name, build in Built.items():
        builder = StreamsBuilder()
        build(builder)
        found[name] = builder.build()
    return found


def compiled(topology: Topology) -> Plan:
    """Compile the plan. Columns that topologies do not declare are those of the jobs' topics."""
    return compile_topology(topology, JOB_TOPICS)


def snapshot(topology: Topology) -> str:
    """Return the reviewed text, with the graph as it was written, and the plan."""
    return f"{topology.describe()}\n{explain(compiled(topology))}\n"


def write() -> None:
    """Write all plans again, and remove those of topologies that no longer exist."""
    wanted = {PLANS / f"{name}.txt": snapshot(topology) for name, topology in topologies().items()}
    PLANS.mkdir(exist_ok=True)
    for path in set(PLANS.iterdir()) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
