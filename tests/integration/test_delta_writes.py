"""Tests of streams into Delta tables by ``append`` and ``upsert``, and back.

Each batch counts once. A table's changes also go to a topic.
"""

import json
import uuid

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from millrace.clients import Admin, Consumer, Producer
from millrace.errors import SchemaMismatchError, UsageError
from pyspark_millrace.delta import Compaction, append, changes_to_topic, in_turn, ingest, upsert
from pyspark_millrace.spark_errors import explain

from .documented import blocks
from .streaming_query import finish

pytestmark = pytest.mark.spark

SCHEMA = "id INT NOT NULL, word STRING, op STRING"


class Changes:
    """A topic of changes, with ``id`` as the key."""

    def __init__(self, broker, schema=SCHEMA, partitions=2):
        self.name, self.servers = f"changes-{uuid.uuid4().hex[:8]}", broker.bootstrap_servers
        with Admin(self.servers) as admin:
            keys = ["id"] if schema else ()
            configs = {"retention.ms": "-1"}
            admin.create_topic(self.name, partitions=partitions, schema=schema, key_columns=keys, configs=configs)

    def send(self, *changes, partition=None):
        names = ("id", "word", "op")
        with Producer(self.servers) as producer:
            for change in changes:
                producer.send(self.name, dict(zip(names, change, strict=False)), partition=partition)

    def read(self, spark, **options):
        defaults = {"kafka.bootstrap.servers": self.servers, "subscribe": self.name, "startingOffsets": "earliest"}
        if "columns" not in options:
            defaults["includeMetadata"] = "true"
        return spark.readStream.format("millrace").options(**defaults | options).load()


@pytest.fixture
def changes(module_broker):
    return Changes(module_broker)


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


def run(frame, write, checkpoint):
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    finish(query)


def rows_in(table, *names):
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    names = names or ("id", "word")
    return sorted(tuple(row[name] for name in names) for row in found)


def forget_last_batch(checkpoint):
    """Remove the last commit from the checkpoint, as if the driver had died after the table's commit."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)


def versions(table):
    return DeltaTable(str(table)).version()


def test_changes_are_applied_the_latest_of_each_key(spark, changes, table):
    into = upsert(str(table), key=["id"], delete_when="op = 'd'", drop=["op"])
    changes.send((1, "a", "i"), (2, "b", "i"), (1, "aa", "u"), (3, "c", "i"), (3, None, "d"))
    run(changes.read(spark), into, table / "_checkpoint")
    assert rows_in(table) == [(1, "aa"), (2, "b")]
    # Changes of existing rows: updated, deleted, inserted again after a deletion, and unknown to the table.
    changes.send((1, None, "d"), (2, "bb", "u"), (4, "d", "i"), (1, "A", "i"), (5, None, "d"), (2, "B", "u"))
    run(changes.read(spark), into, table / "_checkpoint")
    assert rows_in(table) == [(1, "A"), (2, "B"), (4, "d")]
    assert DeltaTable(str(table)).schema().to_arrow().names == ["id", "word"]
    before = versions(table)
    forget_last_batch(table / "_checkpoint")
    run(changes.read(spark), into, table / "_checkpoint")
    assert versions(table) == before, "the batch was merged again"


def test_tombstones_delete_and_order_can_be_another_than_that_of_offsets(spark, changes, table, tmp_path):
    with Producer(changes.servers) as producer:
        columns = {"id": pa.array([1, 2, 1], pa.int32()), "word": ["a", "b", None], "__tombstone": [False, False, True]}
        producer.send_table(changes.name, pa.table(columns))
    columns = "id,word,__offset,__partition,__tombstone"
    run(changes.read(spark, columns=columns), upsert(str(table), key=["id"]), tmp_path / "c")
    assert rows_in(table) == [(2, "b")]
    # One key is in two partitions, and offsets cannot show which record is newer.
    changes.send((7, "old"), partition=0)
    changes.send((7, "new"), partition=1)
    with pytest.raises(StreamingQueryException) as failure:
        run(changes.read(spark, columns=columns), upsert(str(table), key=["id"]), tmp_path / "c")
    assert "changes of one key (id) come from several partitions, " in explain(failure.value)
    by_word = upsert(str(table), key=["id"], order_by=["word"])
    run(changes.read(spark, columns=columns), by_word, tmp_path / "c")
    assert rows_in(table) == [(2, "b"), (7, "old")]


def test_a_guard_keeps_changes_that_are_older_than_the_row(spark, changes, table, tmp_path):
    versioned = "id", "CAST(word AS INT) AS version", "op", "__offset"
    into = upsert(str(table), key=["id"], guard="version", delete_when="op = 'd'", drop=["op"])
    for batch in (
        [(1, "5"), (2, "5"), (3, "5")],
        [(1, "4"), (2, "6"), (3, "4", "d"), (4, "1")],
    ):
        changes.send(*batch)
        run(changes.read(spark).selectExpr(*versioned), into, tmp_path / "c")
    assert rows_in(table, "id", "version") == [(1, 5), (2, 6), (3, 5), (4, 1)]
    # A new checkpoint reads all records again, under another query id.
    run(changes.read(spark).selectExpr(*versioned), into, tmp_path / "again")
    assert rows_in(table, "id", "version") == [(1, 5), (2, 6), (3, 5), (4, 1)]


def test_a_batch_is_written_only_to_those_tables_of_a_stream_that_lack_it(spark, changes, tmp_path):
    log, state = tmp_path / "log", tmp_path / "state"
    keyed = upsert(str(state), key=["id"], delete_when="op = 'd'", drop=["op"])
    dead = True

    def dies(rows, transaction):
        if dead:
            raise ValueError("killed between the commits of the two tables")
        return rows

    fragile = upsert(str(state), key=["id"], delete_when="op = 'd'", drop=["op"], select=lambda rows: dies(rows, 0))
    added = append(str(log), select=lambda rows: rows.select("id", "word", "op"))
    changes.send((1, "a", "i"), (2, "b", "i"), (1, None, "d"))
    with pytest.raises(StreamingQueryException) as failure:
        run(changes.read(spark), in_turn(added, fragile), tmp_path / "c")
    assert "killed between the commits of the two tables" in explain(failure.value)
    assert len(rows_in(log, "id")) == 3
    assert not state.exists()
    run(changes.read(spark), in_turn(added, keyed), tmp_path / "c")
    assert len(rows_in(log, "id")) == 3, "the first table had the batch already"
    assert rows_in(state) == [(2, "b")]
    with pytest.raises(UsageError, match="two writers of"):
        in_turn(added, append(str(log)))


def test_appended_rows_are_those_of_sparks_sink_and_of_direct_ingest(spark, changes, table, tmp_path):
    # The three take turns on one checkpoint, each after a crash before Spark logged the batch.
    checkpoint = tmp_path / "c"
    options = {"kafka.bootstrap.servers": changes.servers, "subscribe": changes.name, "startingOffsets": "earliest"}
    changes.send(*((number, "a") for number in range(10)))
    query = ingest(spark, options, str(table), checkpoint=str(checkpoint))
    finish(query)
    forget_last_batch(checkpoint)
    changes.send(*((number, "b") for number in range(10, 20)))
    frame = changes.read(spark, includeMetadata="false")
    run(frame, append(str(table)), checkpoint)
    assert [row[0] for row in rows_in(table)] == list(range(20))
    forget_last_batch(checkpoint)
    changes.send(*((number, "c") for number in range(20, 30)))
    writer = frame.writeStream.format("delta").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    finish(writer.start(str(table)))
    assert [row[0] for row in rows_in(table)] == list(range(30))


def test_columns_that_the_table_lacks_are_added_when_that_is_wanted(spark, changes, table, tmp_path):
    changes.send((1, "a", "i"), (2, "b", "i"))
    run(changes.read(spark), upsert(str(table), key=["id"], drop=["op"]), tmp_path / "c")
    changes.send((1, "A", "u"), (3, "c", "i"))
    with pytest.raises(StreamingQueryException) as failure:
        run(changes.read(spark), upsert(str(table), key=["id"]), tmp_path / "c")
    assert "has no column op: allow columns to be added (merge_schema), or drop them" in explain(failure.value)
    run(changes.read(spark), upsert(str(table), key=["id"], merge_schema=True), tmp_path / "c")
    assert rows_in(table, "id", "word") == [(1, "A"), (2, "b"), (3, "c")]
    assert {row["id"]: row["op"] for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()} == {
        1: "u",
        2: None,
        3: "i",
    }


@pytest.mark.parametrize("writer", [append, lambda table: upsert(table, key=["id"])], ids=["append", "upsert"])
def test_types_that_do_not_fit_the_table_are_named(spark, changes, table, tmp_path, writer):

    def written_as(word):
        columns = changes.read(spark).selectExpr("id", f"{word} AS word", "__offset AS offset")
        run(columns, writer(str(table)), tmp_path / "c")

    changes.send((1, "a"), (2, "bb"))
    written_as("length(word)")
    before = versions(table)
    changes.send((2, "12"))
    with pytest.raises(StreamingQueryException) as failure:
        written_as("word")
    problem = (
        f"{table}: column word is int in the table and string in the written rows: cast it (select), or choose another"
    )
    assert explain(failure.value).startswith(problem)
    assert "An error occurred while calling" not in explain(failure.value)
    assert versions(table) == before
    written_as("CAST(word AS INT)")
    assert (2, 12) in rows_in(table)


def test_small_files_are_put_together_after_so_many_batches(spark, changes, tmp_path):
    compaction = Compaction(after_batches=3)
    options = {"kafka.bootstrap.servers": changes.servers, "subscribe": changes.name, "startingOffsets": "earliest"}
    changes.send(*((number, "a") for number in range(40)))
    one, other = tmp_path / "ingested", tmp_path / "appended"
    limited = options | {"maxOffsetsPerTrigger": 10}
    query = ingest(spark, limited, str(one), checkpoint=str(tmp_path / "c1"), compaction=compaction)
    finish(query)
    frame = changes.read(spark, maxOffsetsPerTrigger="10", includeMetadata="false")
    run(frame, append(str(other), compaction=compaction), tmp_path / "c2")
    for table in (one, other):
        assert [row[0] for row in rows_in(table)] == list(range(40))
        operations = [entry["operation"] for entry in reversed(DeltaTable(str(table)).history())]
        assert operations.index("OPTIMIZE") == len(operations) - 2
        assert operations.count("OPTIMIZE") == 1
    forget_last_batch(tmp_path / "c1")
    query = ingest(spark, limited, str(one), checkpoint=str(tmp_path / "c1"))
    finish(query)
    assert [row[0] for row in rows_in(one)] == list(range(40)), "the batch is known after the files were compacted"


def test_small_files_are_put_together_after_so_many_seconds_or_bytes(spark, changes, tmp_path):
    changes.send(*((number, "a") for number in range(40)))
    options = {"kafka.bootstrap.servers": changes.servers, "subscribe": changes.name, "startingOffsets": "earliest"}
    options["maxOffsetsPerTrigger"] = 10
    first = tmp_path / "measured"
    query = ingest(spark, options, str(first), checkpoint=str(tmp_path / "c0"))
    finish(query)
    sizes = DeltaTable(str(first)).get_add_actions(flatten=True).column("size_bytes").to_pylist()
    by_bytes = Compaction(after_batches=None, after_bytes=sum(sizes) // 2)
    frame = changes.read(spark, maxOffsetsPerTrigger="10")
    keyed = upsert(str(tmp_path / "merged"), key=["id"], compaction=by_bytes)
    ingested = ingest(spark, options, str(tmp_path / "added"), checkpoint=str(tmp_path / "c1"), compaction=by_bytes)
    finish(ingested)
    run(frame, keyed, tmp_path / "c2")
    by_seconds = Compaction(after_batches=None, after_seconds=0.01)
    run(frame, append(str(tmp_path / "timed"), compaction=by_seconds), tmp_path / "c3")
    for name, least, most in (("added", 1, 3), ("merged", 1, 4), ("timed", 3, 6)):
        history = DeltaTable(str(tmp_path / name)).history()
        assert least <= [entry["operation"] for entry in history].count("OPTIMIZE") <= most, name
        assert [row[0] for row in rows_in(tmp_path / name)] == list(range(40))


# --- back -------------------------------------------------------------------------------------------------------


def records_of(servers, topic):
    """Return key and value of each committed record, by partition and offset."""
    config = {"bootstrap.servers": servers, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with Consumer(config) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends, found = consumer.end_offsets(partitions), []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.poll(500)
    return found


def test_changes_of_a_table_are_written_to_topics_in_order(spark, module_broker, table, tmp_path):
    servers, opaque = module_broker.bootstrap_servers, f"opaque-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topic(opaque, partitions=2, configs={"retention.ms": "-1"})
    typed = Changes(module_broker, "id INT NOT NULL, word STRING")
    name = f"delta.`{table}`"
    spark.sql(
        f"CREATE TABLE {name} (id INT, word STRING) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    for statement in (
        f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        f"UPDATE {name} SET word = 'A' WHERE id = 1",
        f"DELETE FROM {name} WHERE id = 2",
        f"INSERT INTO {name} VALUES (2, 'B'), (4, 'd'), (5, 'e')",
        f"UPDATE {name} SET id = id + 1 WHERE id >= 4",
    ):
        spark.sql(statement)

    def follow(topic, checkpoint, **more):
        options = {"kafka.bootstrap.servers": servers, "topic": topic}
        place = str(tmp_path / checkpoint)
        query = changes_to_topic(spark, str(table), options, checkpoint=place, key=["id"], **more)
        finish(query)

    follow(opaque, "c1", starting_version=0)
    follow(typed.name, "c2")
    expected = {1: ["a", "A"], 2: ["b", None, "B"], 3: ["c"], 4: ["d", None], 5: ["e", "d"], 6: ["e"]}
    words = {}
    for record in records_of(servers, opaque):
        value = None if record.value is None else json.loads(record.value)["word"]
        words.setdefault(json.loads(record.key)["id"], []).append(value)
    assert words == expected
    # Without a version the existing rows come first, and then the changes. A replayed batch is not written again.
    forget_last_batch(tmp_path / "c2")
    spark.sql(f"DELETE FROM {name} WHERE id = 3")
    follow(typed.name, "c2")
    run(
        typed.read(spark, columns="id,word,__offset,__partition,__tombstone"),
        upsert(str(tmp_path / "copy"), key=["id"]),
        tmp_path / "c3",
    )
    assert rows_in(tmp_path / "copy") == [(1, "A"), (2, "B"), (5, "d"), (6, "e")]
    assert len(records_of(servers, typed.name)) == 6


def test_invalid_options_are_refused_before_any_read(spark, changes, table, tmp_path):
    options = {"kafka.bootstrap.servers": changes.servers, "topic": changes.name}
    spark.sql(f"CREATE TABLE delta.`{table}` (id INT, extra STRING) USING delta")
    place = str(tmp_path / "c")
    with pytest.raises(UsageError, match="has no change data feed: run ALTER TABLE"):
        changes_to_topic(spark, str(table), options, checkpoint=place, key=["id"])
    with pytest.raises(UsageError, match="has no column nowhere"):
        changes_to_topic(spark, str(table), options, checkpoint=place, key=["nowhere"], appended_only=True)
    with pytest.raises(SchemaMismatchError, match="has no column extra: leave it out"):
        changes_to_topic(spark, str(table), options, checkpoint=place, key=["id"], appended_only=True)
    with pytest.raises(UsageError, match="is not a Delta table"):
        changes_to_topic(spark, str(tmp_path / "no"), options, checkpoint=place, key=["id"])
    with pytest.raises(UsageError, match="name the columns that identify"):
        upsert(str(table), key=[])


def test_the_page_on_delta_says_what_works(spark, module_broker, tmp_path, monkeypatch):
    [block] = blocks("docs/delta.md")
    snippet = block.body
    customers = Changes(module_broker, "id INT NOT NULL, name STRING")
    again = f"again-{customers.name}"
    with Producer(customers.servers) as producer:
        for number in range(6):
            producer.send(customers.name, {"id": number % 3, "name": str(number)})
    with Admin(customers.servers) as admin:
        admin.create_topic(again, partitions=1, configs={"retention.ms": "-1"})
    places = {
        "localhost:9092": customers.servers,
        '"customers_again"': f'"{again}"',
        '"customers"': f'"{customers.name}"',
    }
    places |= {"tables/": f"{tmp_path}/tables/", "checkpoints/": f"{tmp_path}/checkpoints/"}
    for written, meant in places.items():
        snippet = snippet.replace(written, meant)
    exec(snippet, {"spark": spark})
    assert rows_in(tmp_path / "tables" / "customers", "id", "name") == [(0, "3"), (1, "4"), (2, "5")]
    assert len(rows_in(tmp_path / "tables" / "customers_history", "id", "name")) == 6
    values = [json.loads(record.value) for record in records_of(customers.servers, again)]
    assert sorted(value["name"] for value in values) == ["3", "4", "5"]
