"""Tests of joins at their boundaries.

The boundaries are windows and waits of streams, versions and graces, and keys of other tables.
"""

from __future__ import annotations

from typing import Any

import pytest

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    TestRecord,
    TopologyTestDriver,
    count,
    mean,
    sessions,
    tumbling,
    within,
)
from millrace_streams.stores import KeyValueStore, ObjectStore, StoreSpec, SubscriptionStore, TimeBuffer

TYPES = {"key": "string", "value": "string"}
Script = list[tuple[str, str | None, str | None, int]]


def joining(kind: str, window: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    left, right = builder.stream("l", **TYPES), builder.stream("r", **TYPES)
    getattr(left, kind)(right, lambda one, other: f"{one}{other}", window=window, value="string").to("out")
    return TopologyTestDriver(builder.build())


def piped(driver: TopologyTestDriver, script: Script) -> list[tuple[str, int]]:
    """Pipe records of topic, key, value and time; returns the values and times of the results."""
    driver.pipe_records([TestRecord(*record) for record in script])
    return [(each.value, each.timestamp) for each in driver.read_records("out")]


def kept(driver: TopologyTestDriver, form: str) -> list[Any]:
    """Return the entries of the stores of a form."""
    [task] = driver._tasks
    found = []
    for store in task.stores.values():
        if isinstance(store, ObjectStore) and isinstance(store.spec, StoreSpec) and store.spec.form == form:
            found += [entry for _, entry in store.packed_entries()]
    return found


@pytest.mark.parametrize(("right_ms", "is_joined"), [(17, False), (18, True), (20, True), (27, True), (28, False)])
@pytest.mark.parametrize("left_first", [True, False])
def test_records_are_joined_up_to_both_ends_of_the_window(right_ms: int, is_joined: bool, left_first: bool) -> None:
    driver = joining("join", within(2).after(7))
    script: Script = [("l", "k", "L", 20), ("r", "k", "R", right_ms), ("r", "other", "O", 20)]
    found = piped(driver, script if left_first else [script[1], script[2], script[0]])
    assert found == ([("LR", max(20, right_ms))] if is_joined else [])


@pytest.mark.parametrize(("right_ms", "is_joined"), [(0, True), (1, False)])
def test_a_window_that_would_end_before_the_epoch_ends_there(right_ms: int, is_joined: bool) -> None:
    # KStreamKStreamJoin of Kafka Streams 3.9.1: timeTo = max(0, time + joinAfterMs)
    driver = joining("join", within(10).after(-5))
    assert piped(driver, [("r", "k", "R", right_ms), ("l", "k", "L", 3)]) == ([("LR", 3)] if is_joined else [])


def test_a_record_whose_window_would_end_before_the_epoch_waits_at_stream_time_zero() -> None:
    # KStreamKStreamJoin of Kafka Streams 3.9.1: timeTo = max(0, time + joinAfterMs), and timeTo < stream time
    driver = joining("left_join", within(15).after(-5))
    assert piped(driver, [("l", "k", "L", 0)]) == []
    assert piped(driver, [("r", "k", "R", 0)]) == []
    assert piped(driver, [("l", "k", "M", 1)]) == [("LNone", 0), ("MR", 1)]
    assert piped(driver, [("l", "other", "N", 2)]) == [("NNone", 2)]


@pytest.mark.parametrize(("newest_ms", "is_joined"), [(9, True), (10, False), (11, False)])
def test_a_record_is_kept_for_as_long_as_the_window_spans(newest_ms: int, is_joined: bool) -> None:
    for key in ("k", "other"):
        driver = joining("join", within(5))
        found = piped(driver, [("r", "k", "R", 0), ("r", key, "N", newest_ms), ("l", "k", "L", 3)])
        assert [value for value, _ in found if value == "LR"] == (["LR"] if is_joined else [])


def test_the_records_that_are_kept_for_the_other_side_are_few() -> None:
    driver = joining("outer_join", within(5, grace=3))
    for time_ms in range(200):
        piped(driver, [("lr"[time_ms % 2], "k", "x", time_ms), ("l", "k", "late", max(0, time_ms - 4))])
    # Those of the left side after 198 - 13 ms, and those of the right side after 199 - 13 ms.
    assert sum(map(len, kept(driver, "records"))) == 17 + 7
    assert kept(driver, "waiting_for_partner") == []


@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
@pytest.mark.parametrize("size", [1, 50, 400])
def test_records_of_keys_that_never_come_again_expire(kind: str, size: int) -> None:
    driver = joining(kind, within(5, grace=3))
    script: Script = [("lr"[number % 2], f"{number}", "x", number) for number in range(400)]
    found = [each for first in range(0, 400, size) for each in piped(driver, script[first : first + size])]
    assert bool(found) == (kind != "join")
    # Those of the left side after 398 - 13 ms, and those of the right side after 399 - 13 ms.
    assert sorted(kept(driver, "records"), key=repr) == [("x",)] * 14


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        # The left record at 10 looks ahead for 7, then the grace is 3: its wait is over after 20.
        ("left_join", ("l", 10), ("l", 20), []),
        ("left_join", ("l", 10), ("l", 21), [("XNone", 10)]),
        ("outer_join", ("l", 10), ("r", 20), []),
        ("outer_join", ("l", 10), ("r", 21), [("XNone", 10)]),
        # The right record looks ahead for 2.
        ("outer_join", ("r", 10), ("r", 15), []),
        ("outer_join", ("r", 10), ("r", 16), [("NoneX", 10)]),
        ("outer_join", ("r", 10), ("l", 20), []),
        ("outer_join", ("r", 10), ("l", 21), [("NoneX", 10)]),
        ("left_join", ("r", 10), ("l", 90), []),
    ],
)
def test_a_record_without_a_match_waits_until_its_window_and_the_grace_have_passed(
    kind: str, first: tuple[str, int], second: tuple[str, int], expected: list[tuple[str, int]]
) -> None:
    for batches in (1, 2):
        driver = joining(kind, within(2, grace=3).after(7))
        script: Script = [(first[0], "k", "X", first[1]), (second[0], "other", "Y", second[1])]
        found = [each for part in (script[:batches], script[batches:]) for each in piped(driver, part)]
        assert [each for each in found if "X" in each[0]] == expected


@pytest.mark.parametrize(("stream_time_ms", "expected"), [(17, []), (18, [("XNone", 10)])])
def test_a_record_whose_window_has_passed_does_not_wait(stream_time_ms: int, expected: list[Any]) -> None:
    driver = joining("left_join", within(2, grace=100).after(7))
    assert piped(driver, [("r", "other", "R", stream_time_ms), ("l", "k", "X", 10)]) == expected


def test_records_of_one_key_and_time_wait_together_and_leave_in_order_of_time() -> None:
    driver = joining("outer_join", within(5))
    script: Script = [("l", "b", "2", 11), ("l", "b", "3", 11), ("r", "a", "4", 11), ("l", "c", "1", 10)]
    assert piped(driver, script) == []
    assert piped(driver, [("l", "z", "Z", 90)]) == [("1None", 10), ("None4", 11), ("2None", 11), ("3None", 11)]


@pytest.mark.parametrize("size", [1, 7])
def test_results_without_a_match_come_with_the_records_with_which_kafka_streams_sends_them(size: int) -> None:
    # At y of 23 it sends the record of 15, and stops after an open record of each side, of 19. Two with one key and
    # time are read one by one, so that it continues at 19 and not at 20.
    script: Script = [
        ("l", "b", "B", 15),
        ("r", "c", "C", 19),
        ("l", "a", "A", 19),
        ("l", "a", "O", 19),
        ("l", "b", "D", 20),
        ("r", "a", "E", 23),
        ("r", "b", "F", 25),
    ]
    driver = joining("outer_join", within(0, grace=5))
    found = [each for first in range(0, 7, size) for each in piped(driver, script[first : first + size])]
    assert found == [("BNone", 15), ("NoneC", 19), ("ANone", 19), ("ONone", 19)]


@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
def test_a_release_reads_no_records_that_wait_behind_others(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = [0]

    def counting(function: Any) -> Any:
        def entries(self: TimeBuffer) -> Any:
            for entry in function(self):
                reads[0] += 1
                yield entry

        def entry(self: TimeBuffer, identity: Any) -> Any:
            reads[0] += 1
            return function(self, identity)

        return entry if function is TimeBuffer.entry else entries

    monkeypatch.setattr(TimeBuffer, "entries", counting(TimeBuffer.entries))
    monkeypatch.setattr(TimeBuffer, "entry", counting(TimeBuffer.entry))
    driver = joining(kind, within(0, grace=5).after(100_000))
    found = piped(driver, [("l", f"{number}", "L", number) for number in range(400)])
    found += piped(driver, [("r", f"{number}", "R", 400 + number) for number in range(400)])
    assert found == [("LR", 400 + number) for number in range(400)]
    assert reads[0] < 400 * 16


@pytest.mark.parametrize(
    ("kind", "side", "dropped", "found"),
    [("join", "l", 2, 0), ("join", "r", 2, 0), ("left_join", "l", 1, 1), ("left_join", "r", 2, 0),
     ("outer_join", "l", 1, 1), ("outer_join", "r", 1, 1)],
)  # fmt: skip
def test_records_without_a_key_or_value_are_dropped_unless_they_need_no_match(
    kind: str, side: str, dropped: int, found: int
) -> None:
    driver = joining(kind, within(5))
    assert len(piped(driver, [(side, None, "x", 1), (side, "k", None, 2)])) == found
    assert driver.dropped_records == dropped


def looking_up(kind: str, **options: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    table = builder.table("t", **TYPES, versioned=100)
    stream = builder.stream("s", **TYPES)
    getattr(stream, kind)(table, lambda one, other: f"{one}{other}", value="string", **options).to("out")
    return TopologyTestDriver(builder.build())


@pytest.mark.parametrize("options", [{}, {"grace": 0}, {"grace": 10}], ids=["none", "no grace", "grace"])
def test_records_that_a_table_of_versions_cannot_answer_are_dropped_one_by_one(options: dict[str, int]) -> None:
    for kind, dropped, expected in (("join", 3, ["ba"]), ("left_join", 2, ["nNone", "ba"])):
        driver = looking_up(kind, **options)
        driver.pipe_records([TestRecord("t", "a", "a", 5)])
        found = piped(driver, [("s", "a", None, 6), ("s", None, "n", 7), ("s", None, None, 7), ("s", "a", "b", 8)])
        found += piped(driver, [("s", "none", None, 90), ("s", "a", "z", 90)])
        assert [value for value, _ in found if value != "za"] == expected
        assert driver.dropped_records == dropped + 1


@pytest.mark.parametrize(("now_ms", "expected"), [(14, []), (15, [("x1", 5)]), (16, [("x1", 5)])])
def test_a_record_waits_for_the_grace_and_sees_the_version_of_its_time(now_ms: int, expected: list[Any]) -> None:
    driver = looking_up("join", grace=10)
    assert (
        piped(driver, [("s", "a", "x", 5), ("t", "a", "1", 4), ("t", "a", "2", 6), ("s", "b", "y", now_ms)]) == expected
    )
    assert len(kept(driver, "waiting_for_table")) == 2 - len(expected)


def test_records_leave_their_wait_in_order_of_time_and_arrival() -> None:
    driver = looking_up("left_join", grace=10)
    script: Script = [
        ("s", "b", "3", 7),
        ("s", "a", "1", 5),
        ("s", "b", "4", 7),
        ("s", "a", "2", 7),
        ("s", "a", "0", 90),
    ]
    found = piped(driver, [*script, ("s", "a", "late", 50), ("s", "a", "end", 100)])
    assert [value.removesuffix("None") for value, _ in found] == ["1", "2", "3", "4", "late", "0"]


def test_records_leave_their_wait_in_order_of_time_though_a_dropped_one_was_newer() -> None:
    driver = looking_up("left_join", grace=10)
    script: Script = [("s", "a", "1", 0), ("s", "a", None, 20), ("s", "a", "2", 5), ("s", "a", "end", 60)]
    found = piped(driver, [*script, ("s", "a", "more", 90)])
    assert [value.removesuffix("None") for value, _ in found] == ["1", "2", "end"]


@pytest.mark.parametrize(("newest_ms", "is_found"), [(29, True), (30, False)])
@pytest.mark.parametrize("kind", ["stream", "stream of a filtered table", "table"])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_join_finds_no_row_of_a_window_that_has_expired(
    newest_ms: int, is_found: bool, kind: str, batches: int
) -> None:
    builder = StreamsBuilder()
    # The window of 0 is kept until a window starts at 21 or later.
    left, right = (builder.stream(topic, **TYPES).group_by_key().windowed_by(tumbling(10, grace=11)) for topic in "lr")
    table = left.count().filter(lambda number: number > 0) if "filtered" in kind else left.count()
    rows: Any = table if kind == "table" else table.to_stream()
    counts, texts = right.count(), right.reduce(lambda one, other: one + other)
    joined = rows.left_join(counts, lambda row, number: f"{number}", value="string")
    both = joined.left_join(texts, lambda one, other: f"{one} {other}", value="string")
    (both.to_stream() if kind == "table" else both).to("out")
    driver = TopologyTestDriver(builder.build())
    script: Script = [("r", "k", "y", 0), ("r", "other", "y", newest_ms), ("l", "k", "x", 0)]
    found = [each for part in ([script] if batches == 1 else [script[:2], script[2:]]) for each in piped(driver, part)]
    assert [value for value, _ in found] == ["1 y" if is_found else "None None"]


@pytest.mark.parametrize(("newest_ms", "is_found"), [(25, True), (26, False)])
def test_a_join_finds_no_session_that_expired_in_the_same_batch(newest_ms: int, is_found: bool) -> None:
    builder = StreamsBuilder()
    # A session is kept until another ends 21 ms or more after it.
    left, right = (
        builder.stream(topic, **TYPES).group_by_key().windowed_by(sessions(10, grace=11)).count() for topic in "lr"
    )
    left.to_stream().left_join(right, lambda number, other: f"{number} {other}", value="string").to("out")
    driver = TopologyTestDriver(builder.build())
    script: Script = [("r", "k", "y", 0), ("r", "k", "y", 5), ("r", "other", "y", newest_ms)]
    found = piped(driver, [*script, ("l", "k", "x", 0), ("l", "k", "x", 5)])
    assert [value for value, _ in found] == ["1 None", "2 2" if is_found else "2 None"]


@pytest.mark.parametrize("batches", [[1, 2], [1, 1, 1]])
def test_records_that_have_waited_come_just_before_the_record_that_ends_their_wait(batches: list[int]) -> None:
    builder = StreamsBuilder()
    table = builder.table("t", **TYPES, versioned=100)
    stream = builder.stream("s", **TYPES)
    late = stream.left_join(table, lambda one, other: f"late {one}", value="string", grace=10)
    late.merge(stream).to("out")
    driver = TopologyTestDriver(builder.build())
    script = iter([("s", "k", "1", 5), ("s", "k", "2", 6), ("s", "k", "3", 16)])
    found = [value for number in batches for value, _ in piped(driver, [next(script) for _ in range(number)])]
    assert found == ["1", "2", "late 1", "late 2", "3"]


def linked(kind: str) -> TopologyTestDriver:
    """Join rows whose value begins with the key of another table's row."""
    builder = StreamsBuilder()
    left, right = builder.table("l", **TYPES), builder.table("r", **TYPES)
    key: Any = lambda value: None if value[0] == "-" else value[0]  # noqa: E731
    joined = getattr(left, kind)(right, lambda one, other: f"{one} {other}", foreign_key=key, value="string")
    joined.to_stream().to("out")
    return TopologyTestDriver(builder.build())


def changes(driver: TopologyTestDriver, *script: tuple[str, str, str | None]) -> list[tuple[str, str | None]]:
    driver.pipe_records([TestRecord(*record, at) for at, record in enumerate(script)])
    return [(each.key, each.value) for each in driver.read_records("out")]


def subscribed(driver: TopologyTestDriver) -> list[Any]:
    """Return the pairs of a right key and a left key that subscribes to it."""
    [task] = driver._tasks
    [store] = (store for store in task.stores.values() if isinstance(store, SubscriptionStore))
    return [identity for identity, _ in store.entries()]


def test_a_row_that_loses_its_foreign_key_loses_its_result() -> None:
    inner, left = linked("join"), linked("left_join")
    for driver in (inner, left):
        assert changes(driver, ("r", "x", "X"), ("l", "a", "x1")) == [("a", "x1 X")]
    assert changes(inner, ("l", "a", "-2")) == [("a", None)]
    assert changes(left, ("l", "a", "-2")) == [("a", "-2 None")]
    assert kept(inner, "subscriptions") == kept(left, "subscriptions") == []
    assert changes(inner, ("r", "x", "Y")) == changes(left, ("r", "x", "Y")) == []
    assert changes(inner, ("l", "a", None)) == []
    assert changes(left, ("l", "a", None)) == [("a", None)]
    assert changes(inner, ("l", "none", None)) == changes(left, ("l", "none", None)) == []


def test_a_deletion_is_as_new_as_the_row_that_it_was_joined_with() -> None:
    driver = linked("join")
    assert piped(driver, [("r", "x", "X", 9), ("l", "a", "x1", 3), ("l", "a", None, 5)]) == [("x1 X", 9), (None, 9)]


@pytest.mark.parametrize("kind", ["join", "left_join"])
def test_a_row_subscribes_to_the_one_row_that_it_names(kind: str) -> None:
    driver = linked(kind)
    changes(driver, ("r", "x", "X"), ("r", "y", "Y"), ("l", "a", "x1"), ("l", "b", "x1"), ("l", "a", "y1"))
    assert subscribed(driver) == [("x", "b"), ("y", "a")]
    changes(driver, ("l", "a", "y2"), ("l", "b", "y2"))
    assert subscribed(driver) == [("y", "a"), ("y", "b")]
    assert changes(driver, ("r", "x", None), ("r", "y", "Z")) == [("a", "y2 Z"), ("b", "y2 Z")]
    changes(driver, ("l", "a", None), ("l", "b", None))
    assert kept(driver, "subscriptions") == []


@pytest.mark.parametrize("kind", ["join", "left_join"])
def test_the_rows_that_name_a_changed_row_are_joined_in_order_of_their_keys(kind: str) -> None:
    driver = linked(kind)
    keys = "hbfadgce"
    changes(driver, *(("l", key, f"x{key}") for key in keys))
    assert changes(driver, ("r", "x", "X")) == [(key, f"x{key} X") for key in sorted(keys)]


@pytest.mark.parametrize(("kind", "is_kept"), [("join", False), ("left_join", True)])
def test_a_repartition_before_an_outer_side_keeps_records_without_a_key(kind: str, is_kept: bool) -> None:
    # NodesWithRelaxedNullKeyJoinDownstream of Kafka Streams 3.9: any join after the repartition counts.
    builder = StreamsBuilder()
    moved = builder.stream("l", **TYPES).repartition()
    moved.to("moved")
    both = getattr(moved.map_values(str.upper), kind)(builder.stream("r", **TYPES).to_table(), "{}{}".format)
    both.to("out")
    driver = TopologyTestDriver(builder.build())
    assert piped(driver, [("r", "k", "R", 0), ("l", None, "n", 1), ("l", "k", "v", 2)]) == (
        [("NNone", 1), ("VR", 2)] if is_kept else [("VR", 2)]
    )
    assert [each.key for each in driver.read_records("moved")] == ([None, "k"] if is_kept else ["k"])


@pytest.mark.parametrize("at_once", [False, True])
def test_a_join_finds_the_row_of_the_change_that_its_record_comes_from(at_once: bool) -> None:
    builder = StreamsBuilder()
    counts = builder.stream("l", **TYPES).group_by_key().count()
    pair = {"joiner": lambda one, other: f"{one} {other}", "value": "string"}
    counts.to_stream().join(counts, **pair).to("itself")
    counts.suppress(Suppressed.until_time_limit(0)).to_stream().left_join(counts, **pair).to("held-back")
    counts.to_stream().left_join(counts.filter(lambda number: number % 2 == 0), **pair).to("filtered")
    counts.to_stream().left_join(counts.join(counts.map_values(lambda number: number * 10), max), **pair).to("joined")
    driver = TopologyTestDriver(builder.build())
    records = [TestRecord("l", "a", "x", time_ms) for time_ms in range(3)]
    for batch in [records] if at_once else [[record] for record in records]:
        driver.pipe_records(batch)
    found = {topic: [each.value for each in driver.read_records(topic)] for topic in _OUT}
    assert found == _OUT


_OUT = {
    "itself": ["1 1", "2 2", "3 3"],
    "held-back": ["1 1", "2 2", "3 3"],
    "filtered": ["1 None", "2 2", "3 None"],
    "joined": ["1 10", "2 20", "3 30"],
}


def test_results_of_named_aggregates_are_looked_up_by_joins() -> None:
    builder = StreamsBuilder()
    numbers = {"key": "string", "value": "long"}
    table, other = builder.table("x", **numbers), builder.table("t", **numbers)
    groups = table.group_by(lambda key, value: ("all", value), key="string").aggregate(m=mean("value"), n=count())
    groups.join(other, lambda one, two: f"{one['m']} {one['n']} {two}", value="string").to_stream().to("groups")
    counts = builder.stream("s", **numbers).group_by_key().aggregate(n=count(), m=mean("value"))
    counts.join(other, lambda one, two: f"{one['m']} {one['n']} {two}", value="string").to_stream().to("counts")
    driver = TopologyTestDriver(builder.build())
    for topic, key in (("x", "a"), ("x", "b"), ("s", "all"), ("s", "all")):
        driver.pipe_records([TestRecord(topic, key, ord(key[0]) % 2, 5)])
    assert driver.read_records("groups") == driver.read_records("counts") == []
    driver.pipe_records([TestRecord("t", "all", 7, 3), TestRecord("t", "none", 7, 3)])
    assert [(each.value, each.timestamp) for each in driver.read_records("groups")] == [("0.5 2 7", 5)]
    assert [(each.value, each.timestamp) for each in driver.read_records("counts")] == [("1.0 2 7", 5)]
    driver.pipe_records([TestRecord("t", None, 7, 3)])
    assert driver.read_records("groups") == []


def test_a_table_forwards_the_deletion_of_a_row_that_it_never_had() -> None:
    builder = StreamsBuilder()
    builder.table("l", **TYPES).map_values(lambda value: value * 2, store="m").to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    assert changes(driver, ("l", "a", None), ("l", "b", "x"), ("l", "b", None)) == [
        ("a", None),
        ("b", "xx"),
        ("b", None),
    ]
    [store] = [store for name, store in driver._tasks[0].stores.items() if name == "m"]
    assert isinstance(store, KeyValueStore)
    assert list(store.packed_entries()) == []


@pytest.mark.parametrize(("options", "dropped"), [({}, 1), ({"versioned": 10}, 2)])
def test_a_table_drops_records_without_a_key_and_versions_before_its_history(
    options: dict[str, int], dropped: int
) -> None:
    builder = StreamsBuilder()
    builder.table("l", **TYPES, **options).to_stream().to("out")  # type: ignore[arg-type]
    driver = TopologyTestDriver(builder.build())
    found = piped(driver, [("l", None, "x", 1), ("l", "a", "b", 20), ("l", "a", "c", 9), ("l", "a", "d", 10)])
    assert found == [("b", 20), *([] if options else [("c", 9)]), ("d", 10)]
    assert driver.dropped_records == dropped


NEWEST: dict[str, Any] = {
    "join": lambda x, y: x.join(y, lambda one, other: f"{one}{other}", value="string"),
    "join of the other": lambda x, y: y.left_join(x, lambda one, other: f"{other}{one}", value="string"),
    "by foreign key": lambda x, y: x.join(
        y, lambda one, other: f"{one}{other}", foreign_key=lambda value: "a", value="string"
    ),
    "by foreign key of the other": lambda x, y: y.join(
        x, lambda one, other: f"{other}{one}", foreign_key=lambda value: "a", value="string"
    ),
    "groups": lambda x, y: x.group_by(lambda key, value: ("g", value), value="string").reduce(
        lambda one, other: one + other, lambda one, other: one.replace(other, "")
    ),
}


@pytest.mark.parametrize("build", NEWEST)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_version_that_is_not_the_newest_changes_no_result_and_is_counted(build: str, at_once: bool) -> None:
    builder = StreamsBuilder()
    x, y = builder.table("x", **TYPES, versioned=100), builder.table("y", **TYPES)
    NEWEST[build](x, y).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    script: Script = [("y", "a", "Y", 1), ("x", "a", "new", 10), ("x", "a", "old", 5), ("x", "a", "newer", 11)]
    found = [
        each for batch in ([script] if at_once else [[record] for record in script]) for each in piped(driver, batch)
    ]
    values = [value.removesuffix("Y") for value, _ in found if value not in (None, "NoneY")]
    assert values[-1] == "newer"
    assert set(values) <= {"new", "newer", ""}
    assert driver.dropped_records == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_row_stays_subscribed_with_its_newest_version(at_once: bool) -> None:
    builder = StreamsBuilder()
    x, y = builder.table("x", **TYPES, versioned=100), builder.table("y", **TYPES)
    NEWEST["by foreign key"](x, y).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    script: Script = [("y", "a", "Y", 1), ("x", "k", "new", 10), ("x", "k", "old", 5), ("y", "a", "Z", 12)]
    batches = [script] if at_once else [[record] for record in script]
    assert [value for batch in batches for value, _ in piped(driver, batch)] == ["newY", "newZ"]


@pytest.mark.parametrize("batches", [[1, 2], [3]])
def test_all_joins_with_a_versioned_table_find_the_same_versions(batches: list[int]) -> None:
    builder = StreamsBuilder()
    table = builder.table("t", **TYPES, versioned=100)
    stream = builder.stream("s", **TYPES)
    for kind in ("join", "left_join", "join"):
        getattr(stream, kind)(table, lambda one, other: f"{one} {other}", value="string").to("out")
    driver = TopologyTestDriver(builder.build())
    script = iter([("t", "k", "old", 1), ("s", "k", "x", 9), ("t", "k", "new", 5)])
    found = [value for number in batches for value, _ in piped(driver, [next(script) for _ in range(number)])]
    assert found == ["x old"] * 3
