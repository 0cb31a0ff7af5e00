"""Tests of the topologies that may continue from a checkpoint.

All others are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from millrace_streams import (
    IncompatibleStateError,
    StreamsBuilder,
    TopicShape,
    col,
    compile_topology,
    count,
    hopping,
    lit,
    mean,
    tumbling,
    within,
)
from millrace_streams import sum as sum_
from millrace_streams.checkpoints.compatibility import admit, differences_between
from millrace_streams.checkpoints.files import MountedFiles, checkpoint_files
from millrace_streams.checkpoints.manifest import Manifest, read_manifest
from millrace_streams.compiler import stages_of
from millrace_streams.layout import OPAQUE_SHAPE

SHAPE = TopicShape(
    schema=pa.schema(
        [("origin", pa.string()), ("carrier", pa.string()), ("delay", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
    ),
    key_columns=("origin",),
)
HOUR = tumbling(timedelta(hours=1))

Build = Callable[[StreamsBuilder], None]


def manifest(
    build: Build, *, buckets: int = 2, partitions: dict[str, int] | None = None, shape: TopicShape = SHAPE
) -> Manifest:
    builder = StreamsBuilder()
    build(builder)
    shapes = dict.fromkeys(("flights", "others"), shape)
    return Manifest.of(stages_of(compile_topology(builder.build(), shapes)), buckets, partitions)


def flights(builder: StreamsBuilder) -> Any:
    return builder.stream("flights", timestamp="at")


def hours(builder: StreamsBuilder, **change: Any) -> None:
    """Count by hour, with changes that a test sets."""
    stream = flights(builder)
    if "predicate" in change:
        stream = stream.filter(change["predicate"])
    keys: dict[str, Any] = change.get("keys", {})
    grouped = stream.group_by("origin", **keys) if keys else stream.group_by("origin")
    windows = grouped.windowed_by(change.get("windows", HOUR))
    aggregates = change.get("aggregates", {"n": count(), "delay": mean("delay")})
    table = windows.aggregate(**aggregates, store=change.get("store", "hours"))
    table.to_delta(change.get("table", "hours"))


def changed(**change: Any) -> Build:
    return lambda builder: hours(builder, **change)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"predicate": col("delay") > 3},
        {"windows": tumbling(timedelta(hours=1), grace=timedelta(hours=5))},
        {"windows": HOUR.retain(timedelta(days=9))},
        {"table": "another table"},
    ],
    ids=["nothing", "a filter before", "grace", "retention", "sink"],
)
def test_changes_that_do_not_affect_state_are_allowed(change: dict[str, Any]) -> None:
    assert list(differences_between(manifest(hours), manifest(changed(**change)))) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"windows": tumbling(7_200_000)},
            "windows of its store hours: 7200000 ms every 7200000 ms, before 3600000 ms",
        ),
        ({"windows": hopping(3_600_000, advance=60_000)}, "windows of its store hours: 3600000 ms every 60000 ms"),
        ({"aggregates": {"n": count()}}, "columns of its store hours: origin String, __window Int64, n.count"),
        ({"aggregates": {"n": count(), "delay": mean(col("delay") + lit(1.0))}}, "aggregates of its store hours: n="),
        ({"keys": {"carrier": col("carrier")}}, "columns of its store hours: origin String, carrier String"),
        ({"store": "per-hour"}, "its store hours is now called per-hour: set store='hours'"),
    ],
)
def test_changes_that_affect_state_are_named(change: dict[str, Any], said: str) -> None:
    found = list(differences_between(manifest(hours), manifest(changed(**change))))
    assert any(said in clause for clause in found), found
    assert all(clause.startswith("KSTREAM-") for clause in found), found


def test_a_key_that_is_computed_otherwise_is_named() -> None:
    first, other = (manifest(changed(keys={"group": col("carrier").lower()})) for _ in range(2))
    assert list(differences_between(first, other)) == []
    found = list(differences_between(first, manifest(changed(keys={"group": col("carrier").upper()}))))
    assert len(found) == 1
    assert "key of its store hours" in found[0]


def test_stores_that_come_and_go_are_named() -> None:
    def both(builder: StreamsBuilder) -> None:
        hours(builder)
        builder.stream("others", timestamp="at").group_by("origin").aggregate(total=sum_("delay"), store="totals")

    one, two = manifest(hours), manifest(both)
    more = list(differences_between(one, two))
    less = list(differences_between(two, one))
    assert any("reads the topic others, which was not read before" in clause for clause in more), more
    assert any("its store totals is new, and would lack the records" in clause for clause in more), more
    assert any("the topic others is no longer read" in clause for clause in less), less
    assert any("its store totals was removed" in clause for clause in less), less


def test_another_order_of_topics_and_other_moves_are_named() -> None:
    def in_order(first: str, second: str) -> Build:
        def build(builder: StreamsBuilder) -> None:
            one, two = (builder.stream(topic, timestamp="at") for topic in (first, second))
            one.merge(two).group_by("origin").aggregate(n=count(), store="counts").to_delta("counts")

        return build

    found = list(differences_between(manifest(in_order("flights", "others")), manifest(in_order("others", "flights"))))
    assert found == ["KSTREAM-SOURCE-0000000000: topics are read in the order others, flights, before flights, others"]

    def moved(builder: StreamsBuilder) -> None:
        counts = flights(builder).group_by("origin").aggregate(n=count(), store="counts", emit="every")
        counts.to_stream().group_by("n").aggregate(times=count(), store="times").to_delta("times")

    def longer(builder: StreamsBuilder) -> None:
        counts = flights(builder).group_by("origin").aggregate(n=count(), store="counts", emit="every")
        counts.to_stream().to_delta("counts")

    found = list(differences_between(manifest(moved), manifest(longer)))
    assert any("records move in 1 stages, before in 2" in clause for clause in found), found


def joined(named: dict[str, str], *, filtered: bool) -> Build:
    """Build all kinds of joins with state, of tables with named stores."""

    def build(builder: StreamsBuilder) -> None:
        left: Any = builder.stream("flights", timestamp="at")
        if filtered:
            left = left.filter(col("delay") > 3)
        right = builder.stream("others", timestamp="at")
        left.join(right, first, window=within(5), **named_as(named, "pairs")).to("pairs")
        versions = right.to_table(store="versions", versioned=50, name="versions" if named else None)
        left.join(versions, first, grace=9, **named_as(named, "waiting")).to("waiting")
        rows = left.to_table(store="rows", name="rows" if named else None)
        rows.join(
            versions, first, foreign_key=col("carrier"), store="by-carrier", **named_as(named, "carriers")
        ).to_stream().to("carriers")
        moved = left.select_key("carrier").repartition("moved")
        moved.join(versions, first, **named_as(named, "looked-up")).to("looked-up")

    return build


def first(left: Any, right: Any) -> Any:
    return left


def named_as(named: dict[str, str], join: str) -> dict[str, Any]:
    return {"name": named[join]} if named else {}


def test_named_joins_keep_their_state_when_a_node_is_inserted_before_them() -> None:
    named = {join: f"the-{join}" for join in ("pairs", "waiting", "carriers", "looked-up")}
    before, now = (manifest(joined(named, filtered=filtered)) for filtered in (False, True))
    assert list(differences_between(before, now)) == []
    kept = {store.name for store in now.stores}
    assert {"the-pairs-left-store", "the-pairs-waiting-store", "the-waiting-BUFFER-STORE"} <= kept
    assert {"the-carriers-subscription-store", "by-carrier", "versions-for-the-looked-up"} <= kept
    before, now = (manifest(joined({}, filtered=filtered)) for filtered in (False, True))
    assert any("KSTREAM-JOIN-" in clause for clause in differences_between(before, now))


def test_another_foreign_key_is_named_and_one_that_an_earlier_version_did_not_store_is_allowed() -> None:
    def by(column: str) -> Build:
        def build(builder: StreamsBuilder) -> None:
            tables = [builder.table(topic, store=topic) for topic in ("flights", "others")]
            tables[0].join(tables[1], first, foreign_key=column, name="fk").to_stream().to("out")

        return build

    before, now = manifest(by("origin")), manifest(by("carrier"))
    assert list(differences_between(before, before)) == []
    assert list(differences_between(before, now)) == [
        "fk-answer: foreign key of its store fk-subscription-store: carrier, before origin"
    ]
    told = before.to_json()
    for store in told["stores"]:
        store["meaning"].pop("foreign key", None)
    assert list(differences_between(Manifest.from_json(told), now)) == []


def people(kind: str) -> Build:
    def build(builder: StreamsBuilder) -> None:
        stream: Any = builder.stream("flights", key="string", value="string")
        if kind == "global_table":
            stream.join(builder.global_table("others", **SCALARS), first, selector=first, value="string").to("out")
        else:
            stream.join(builder.table("others", **SCALARS), first, value="string").to("out")

    return build


SCALARS: Any = {"key": "string", "value": "string", "store": "people"}


def last(key: str, value: str) -> Build:
    def build(builder: StreamsBuilder) -> None:
        builder.stream("flights", key=key, value=value).group_by_key().reduce(first, store="last").to_stream().to("out")

    return build


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (people("table"), people("global_table"), "each bucket has its whole store people, before a part of its store"),
        (people("global_table"), people("table"), "each bucket has a part of its store people, before its whole store"),
        (last("string", "string"), last("string", "json"), "value of its store last is of json, before of string"),
        (last("json", "json"), last("string", "json"), "key of its store last is of string, before of json"),
    ],
)
def test_state_of_other_buckets_or_serdes_is_named(before: Build, now: Build, said: str) -> None:
    before_manifest, now_manifest = (manifest(build, shape=OPAQUE_SHAPE) for build in (before, now))
    assert list(differences_between(before_manifest, before_manifest)) == []
    assert [clause for clause in differences_between(before_manifest, now_manifest) if said in clause]


def test_more_partitions_are_named() -> None:
    found = list(differences_between(manifest(hours), manifest(hours, buckets=5)))
    assert found == [
        "KSTREAM-SOURCE-0000000000: the state has 2 buckets, but the topology now has 5, the partitions of its "
        "largest topic"
    ]


def test_more_partitions_of_a_topic_that_is_not_the_largest_are_named() -> None:
    before, now = (manifest(hours, partitions={"flights": number}) for number in (1, 2))
    assert list(differences_between(before, now)) == [
        "KSTREAM-SOURCE-0000000000: flights has 2 partitions, before 1, and its keys are now in others"
    ]
    assert list(differences_between(manifest(hours), now)) == []
    assert Manifest.from_json(now.to_json()).partitions == now.partitions


def test_a_checkpoint_binds_from_its_first_batch_on(tmp_path: Path) -> None:
    checkpoint = checkpoint_files(f"file:{tmp_path}", None)
    admit(manifest(hours), checkpoint)
    admit(manifest(changed(store="other")), checkpoint)
    admit(manifest(hours), checkpoint)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    admit(manifest(changed(table="elsewhere")), checkpoint)
    with pytest.raises(
        IncompatibleStateError, match=r"belongs to another topology: KSTREAM-AGGREGATE-\d+: its store hours is"
    ):
        admit(manifest(changed(store="other")), checkpoint)
    kept = read_manifest(MountedFiles(tmp_path))
    assert kept is not None
    assert kept.to_json() == manifest(changed(table="elsewhere")).to_json()
    assert [path.name for path in (tmp_path / "_millrace").iterdir()] == ["topology.json"]


@pytest.mark.parametrize(
    ("location", "default", "found"),
    [
        ("/data/c", "hdfs://nn/", "hdfs://nn/data/c"),
        ("/data/c", "file:///", "/data/c"),
        ("file:/data/c", "hdfs://nn/", "/data/c"),
    ],
)
def test_a_path_without_a_scheme_is_on_the_default_file_system_of_spark(
    location: str, default: str, found: str
) -> None:
    spark = mock.MagicMock()
    spark._jsc.hadoopConfiguration().get.return_value = default
    path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path.return_value
    path.getFileSystem.return_value.makeQualified.return_value.toString.return_value = f"hdfs://nn{location}"
    files = checkpoint_files(location, spark)
    assert files.location == found
    assert isinstance(files, MountedFiles) == found.startswith("/")


def test_manifests_of_others_are_refused(tmp_path: Path) -> None:
    admit(manifest(hours), MountedFiles(tmp_path))
    path = tmp_path / "_millrace" / "topology.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"version": 9}))
    with pytest.raises(IncompatibleStateError, match="has version 9, but this millrace reads version 2"):
        read_manifest(MountedFiles(tmp_path))
    for damaged in ("", "[]", json.dumps({"version": 2}), path.read_text()[:-9]):
        path.write_text(damaged)
        with pytest.raises(IncompatibleStateError, match="cannot be read"):
            read_manifest(MountedFiles(tmp_path))


def ids(kept: Manifest) -> dict[str, str]:
    return {sink.target: sink.id for sink in kept.sinks}


def batches(directory: Path, *, planned: int, finished: int) -> None:
    for log, entries in (("offsets", planned), ("commits", finished)):
        (directory / log).mkdir(exist_ok=True)
        for path in (directory / log).iterdir():
            path.unlink()
        for number in range(entries):
            (directory / log / str(number)).touch()


def into(*topics: str, filtered: bool = False) -> Build:
    """Write flights to topics, and to a table."""

    def build(builder: StreamsBuilder) -> None:
        stream = flights(builder).filter(col("delay") > 3) if filtered else flights(builder)
        for topic in topics:
            stream.to(topic)
        stream.to_delta("flights")

    return build


def test_sinks_are_identified_by_their_targets(tmp_path: Path) -> None:
    files = MountedFiles(tmp_path)
    first = admit(manifest(into("a", "b", "a")), files)
    expected = {target: target for target in ("topic/a/1", "topic/b/1", "topic/a/2", "table/flights/1")}
    assert ids(first) == expected
    batches(tmp_path, planned=3, finished=3)
    changed = admit(manifest(into("b", "a", "a", filtered=True)), files)
    assert ids(changed) == expected


def test_an_unfinished_batch_does_not_refuse_changes_of_sinks_that_are_alone_in_their_topics(tmp_path: Path) -> None:
    files = MountedFiles(tmp_path)
    admit(manifest(into("a", "b", "c")), files)
    batches(tmp_path, planned=3, finished=2)
    found = ids(admit(manifest(into("d", "b", "a", filtered=True)), files))
    assert found == {target: target for target in ("topic/d/1", "topic/b/1", "topic/a/1", "table/flights/1")}


@pytest.mark.parametrize("change", [into("a", "a", filtered=True), into("a"), into("a", "b", "a")])
def test_several_sinks_of_a_topic_change_only_while_no_batch_is_unfinished(tmp_path: Path, change: Build) -> None:
    files = MountedFiles(tmp_path)
    admit(manifest(into("a", "a")), files)
    batches(tmp_path, planned=3, finished=2)
    with pytest.raises(IncompatibleStateError, match=r"has an unfinished micro-batch.*the sinks of topic/a have"):
        admit(manifest(change), files)
    admit(manifest(into("a", "a")), files)
    batches(tmp_path, planned=3, finished=3)
    admit(manifest(change), files)


def test_an_unfinished_batch_of_an_older_millrace_keeps_the_names_of_its_nodes(tmp_path: Path) -> None:
    files = MountedFiles(tmp_path)
    older = manifest(into("a", "b"))
    told = older.to_json() | {"sinks": [sink.node for sink in older.sinks]}
    admit(older, files)
    path = tmp_path / "_millrace" / "topology.json"
    batches(tmp_path, planned=3, finished=2)
    path.write_text(json.dumps(told))
    with pytest.raises(IncompatibleStateError, match="an older millrace planned it, and the names of the sinks"):
        admit(manifest(into("a", "b", filtered=True)), files)
    for _ in range(2):  # the micro-batch fails, and the query starts again
        kept = admit(manifest(into("a", "b")), files)
        assert all(sink.id == sink.node for sink in kept.sinks)
    batches(tmp_path, planned=3, finished=3)
    assert ids(admit(manifest(into("a", "b", filtered=True)), files)) == ids(manifest(into("a", "b")))


def test_dead_letters_of_another_topic_have_another_identity() -> None:
    builder = StreamsBuilder()
    hours(builder)
    stages = stages_of(compile_topology(builder.build(), {"flights": SHAPE}))
    for topic in ("bad", "worse"):
        last = Manifest.of(stages, 2, dead_letters={"letters": topic}).sinks[-1]
        assert (last.node, last.id) == ("letters", f"dead_letters/{topic}/1")
