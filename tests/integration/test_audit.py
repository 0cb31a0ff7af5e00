"""Tests of ``millrace audit``.

It proves a sound table, and finds each fault planted in table, checkpoint and topic.
"""

import json
import shutil
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.cli.main import main
from millrace.clients import Admin, Producer, TopicPartition
from millrace.ids import id_text
from pyspark_millrace.delta import ingest, upsert

from .streaming_query import finish

pytestmark = pytest.mark.spark

PROVED, UNVERIFIABLE, FAULTS = 0, 3, 4
BATCHES = 6


def produce(servers, topic, count, *, abort=False):
    with Producer({"bootstrap.servers": servers, "transactional.id": f"audit-{topic}"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send_table(topic, pa.table({"n": range(partition, count, 2)}), partition=partition)
        producer.flush()
        producer.abort_transaction() if abort else producer.commit_transaction()


class Case:
    """A table and its query's checkpoint, each in its own directory."""

    def __init__(self, servers, topic, table, checkpoint):
        self.servers, self.topic, self.table, self.checkpoint = servers, topic, table, checkpoint

    def copy(self, directory):
        copied = Case(self.servers, self.topic, directory / "table", directory / "checkpoint")
        shutil.copytree(self.table, copied.table)
        shutil.copytree(self.checkpoint, copied.checkpoint)
        return copied

    @property
    def query_id(self):
        return json.loads((self.checkpoint / "metadata").read_text())["id"]

    def commit(self, version):
        return self.table / "_delta_log" / f"{version:020d}.json"

    def version_of(self, batch):
        """Return the version that holds a batch."""
        wanted = {"appId": self.query_id, "version": batch}
        return next(
            int(path.stem)
            for path in (self.table / "_delta_log").glob("*.json")
            if any(wanted.items() <= action.get("txn", {}).items() for action in self.actions(int(path.stem)))
        )

    @property
    def newest(self):
        return max(int(path.stem) for path in (self.table / "_delta_log").glob("*.json"))

    def actions(self, version):
        return [json.loads(line) for line in self.commit(version).read_text().splitlines()]

    def write(self, version, actions):
        self.commit(version).write_text("".join(json.dumps(action) + "\n" for action in actions))

    def ranges_of_the_first_batch(self):
        offsets = json.loads((self.checkpoint / "offsets" / "0").read_text().split("\n")[-1])
        return [f"{self.topic}-{partition} 0..{end - 1}" for partition, end in offsets[self.topic].items() if end]

    def change_offsets(self, batch, change):
        path = self.checkpoint / "offsets" / str(batch)
        *head, line = path.read_text().split("\n")
        offsets = json.loads(line)
        change(offsets)
        path.write_text("\n".join([*head, json.dumps(offsets)]))
        (path.parent / f".{batch}.crc").unlink(missing_ok=True)

    def audit(self, capfd, *arguments):
        capfd.readouterr()
        command = ["audit", "-c", str(self.checkpoint), "-t", str(self.table), "-b", self.servers, "--json", *arguments]
        code = main(command)
        told = json.loads(capfd.readouterr().out)
        assert told["exit_code"] == code
        verdicts = {batch["batch_id"]: batch["verdict"] for batch in told["batches"]}
        return code, verdicts, told


@pytest.fixture(scope="module")
def sound(module_broker, spark, tmp_path_factory):
    """Write sixty records in two partitions, and some that were aborted.

    The writers are ``ingest`` with and without offset columns, Spark's sink, and ``upsert`` in several batches and in
    one.
    """
    directory, topic, servers = tmp_path_factory.mktemp("sound"), "audited", module_broker.bootstrap_servers
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions=2, schema="n BIGINT", configs={"retention.ms": "-1"})
    for abort in (False, True, False):
        produce(servers, topic, 30, abort=abort)
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    given["maxOffsetsPerTrigger"] = 16
    cases = {}
    for name, columns in (("rows", "n,__partition,__offset"), ("counts", "n"), ("sink", "n,__partition,__offset")):
        case = cases[name] = Case(servers, topic, directory / name, directory / f"{name}-checkpoint")
        options = given | {"columns": columns}
        if name == "sink":
            records = spark.readStream.format("millrace").options(**options).load()
            writer = records.writeStream.format("delta").option("checkpointLocation", str(case.checkpoint))
            query = writer.trigger(availableNow=True).start(str(case.table))
        else:
            query = ingest(spark, options, str(case.table), checkpoint=str(case.checkpoint))
        finish(query)
    for name in ("merged", "merged-at-once"):
        case = cases[name] = Case(servers, topic, directory / name, directory / f"{name}-checkpoint")
        options = given | {"columns": "n,__offset", "maxOffsetsPerTrigger": 16 if name == "merged" else 1000}
        writer = spark.readStream.format("millrace").options(**options).load().writeStream
        writer = writer.foreachBatch(upsert(str(case.table), key=["n"]))
        query = writer.option("checkpointLocation", str(case.checkpoint)).trigger(availableNow=True).start()
        finish(query)
    return cases


@pytest.fixture(params=["rows", "counts", "sink"])
def case(request, sound, tmp_path):
    return sound[request.param].copy(tmp_path)


@pytest.fixture(params=["merged", "merged-at-once"])
def merged(request, sound, tmp_path):
    return sound[request.param].copy(tmp_path)


@pytest.fixture
def by_rows(sound, tmp_path):
    return sound["rows"].copy(tmp_path / "by-rows")


@pytest.fixture
def by_counts(sound, tmp_path):
    return sound["counts"].copy(tmp_path / "by-counts")


def test_a_sound_table_is_proved(case, capfd):
    code, verdicts, told = case.audit(capfd)
    assert (code, told["findings"]) == (PROVED, [])
    assert len(verdicts) == BATCHES
    assert set(verdicts.values()) <= {"once", "nothing to land"}
    assert sum(batch["rows"] or 0 for batch in told["batches"]) == 60
    assert main(["audit", "-c", str(case.checkpoint), "-t", str(case.table), "-b", case.servers]) == PROVED
    shown = capfd.readouterr().out
    assert "proved: each range of offsets landed once" in shown
    assert ("each row was looked at" in shown) == told["by_rows"]


def landed(case):
    """Return the first batch that has files."""
    return next(
        batch
        for batch in range(BATCHES)
        if (case.checkpoint / "offsets" / str(batch)).exists()
        and any(
            action.get("txn", {}).get("version") == batch
            for path in (case.table / "_delta_log").glob("*.json")
            for action in map(json.loads, path.read_text().splitlines())
        )
        and any("add" in action for action in case.actions(case.version_of(batch)))
    )


def test_a_batch_whose_files_were_taken_out_of_the_log_is_missing(case, capfd):
    batch = landed(case)
    version = case.version_of(batch)
    case.write(version, [action for action in case.actions(version) if "add" not in action])
    code, verdicts, told = case.audit(capfd)
    assert (code, verdicts[batch]) == (FAULTS, "missing")
    ranges = case.ranges_of_the_first_batch()
    assert batch == 0
    assert told["batches"][batch]["ranges"] == ranges
    main(["audit", "-c", str(case.checkpoint), "-t", str(case.table), "-b", case.servers])
    assert f"\nmissing, batch 0: {', '.join(ranges)}\n" in capfd.readouterr().out


def test_a_batch_whose_commit_was_taken_out_of_the_log_is_missing(case, capfd):
    batch = landed(case)
    version = case.version_of(batch)
    case.write(version, [action for action in case.actions(version) if "commitInfo" in action or "metaData" in action])
    code, verdicts, _ = case.audit(capfd)
    assert (code, verdicts[batch]) == (FAULTS, "missing")


def test_a_table_of_changes_by_key_is_proved_by_its_transactions(merged, capfd):
    code, verdicts, told = merged.audit(capfd)
    assert (code, told["findings"]) == (PROVED, [])
    assert set(verdicts.values()) <= {"once", "nothing to land"}
    assert not told["counts_rows"]
    assert (sum(batch["rows"] or 0 for batch in told["batches"]) == 30) == (len(verdicts) == 1), "a row for each key"
    main(["audit", "-c", str(merged.checkpoint), "-t", str(merged.table), "-b", merged.servers])
    assert "no rows were counted: the query merges, so new rows replace old ones" in capfd.readouterr().out


def test_a_batch_of_changes_that_was_taken_out_of_the_log_is_missing(merged, capfd):
    version = merged.version_of(landed(merged))
    kept = [action for action in merged.actions(version) if "commitInfo" in action]
    merged.write(version, kept)
    code, verdicts, told = merged.audit(capfd)
    assert (code, verdicts[0]) == (FAULTS, "missing")
    assert told["batches"][0]["ranges"] == merged.ranges_of_the_first_batch()


def test_a_batch_of_changes_that_two_versions_hold_is_doubled(merged, capfd):
    batch = landed(merged)
    doubled = [action for action in merged.actions(merged.version_of(batch)) if "txn" in action]
    merged.write(merged.newest + 1, [{"commitInfo": {"operation": "MERGE"}}, *doubled])
    code, verdicts, _ = merged.audit(capfd)
    assert (code, verdicts[batch]) == (FAULTS, "doubled")


def test_a_missing_version_of_the_table_is_named(case, capfd):
    version = case.newest - 1
    case.commit(version).unlink()
    code, _, told = case.audit(capfd)
    assert code == FAULTS
    assert f"version {version} is missing from the table's log" in str(told["findings"])


@pytest.mark.parametrize("with_transaction", [True, False])
def test_a_batch_that_was_written_twice_is_doubled(case, with_transaction, capfd):
    batch = landed(case)
    actions = case.actions(case.version_of(batch))
    doubled = [action for action in actions if "add" in action or ("txn" in action and with_transaction)]
    for action in doubled:
        if "add" in action:
            again = f"again-{uuid.uuid4().hex}.parquet"
            shutil.copy(case.table / action["add"]["path"], case.table / again)
            action["add"]["path"] = again
    case.write(case.newest + 1, [{"commitInfo": {"operation": "WRITE"}}, *doubled])
    code, verdicts, told = case.audit(capfd)
    if told["by_rows"] or with_transaction:
        assert (code, verdicts[batch]) == (FAULTS, "doubled")
    else:
        # The batch of these rows is unknown, and the audit reports only their presence.
        assert code == UNVERIFIABLE
        assert "rows of another writer" in str(told["findings"])


def test_rows_that_were_deleted_are_found(case, capfd):
    DeltaTable(str(case.table)).delete("n = 3")
    code, verdicts, told = case.audit(capfd)
    assert code == FAULTS
    assert "(DELETE) rewrote files with rows of batch" in str(told["findings"])
    assert ("missing" in verdicts.values()) == told["by_rows"]


def test_files_that_are_put_together_are_no_fault(case, capfd):
    assert DeltaTable(str(case.table)).optimize.compact()["numFilesRemoved"] > 1
    code, _, told = case.audit(capfd)
    assert (code, told["findings"]) == (PROVED, [])


def test_rows_lost_in_putting_files_together_are_found(case, capfd):
    DeltaTable(str(case.table)).optimize.compact()
    actions = case.actions(case.newest)
    (added,) = (action["add"] for action in actions if "add" in action)
    rows = pq.read_table(case.table / added["path"])
    pq.write_table(rows.slice(1), case.table / added["path"])
    added["stats"] = json.dumps({"numRecords": rows.num_rows - 1})
    case.write(case.newest, actions)
    code, _, told = case.audit(capfd)
    assert code == FAULTS
    assert "states that it changed no rows, but it replaced 60 rows by 59" in str(told["findings"])


def test_a_file_that_is_gone_is_found(case, capfd):
    (action, *_) = (each for each in case.actions(case.version_of(landed(case))) if "add" in each)
    (case.table / action["add"]["path"]).unlink()
    code, _, told = case.audit(capfd)
    assert code == FAULTS
    assert f"file {action['add']['path']} of the table does not exist" in str(told["findings"])


def test_offsets_that_the_checkpoint_leaves_out_are_missing(module_broker, case, capfd):
    # The last entry was advanced by hand. No query has read the skipped offsets, although they are in the log.
    produce(module_broker.bootstrap_servers, case.topic, 10)

    def ahead(offsets):
        for partition in offsets[case.topic]:
            offsets[case.topic][partition] += 5

    case.change_offsets(BATCHES - 1, ahead)
    code, verdicts, _ = case.audit(capfd)
    assert (code, verdicts[BATCHES - 1]) == (FAULTS, "missing")


def test_a_missing_entry_of_the_checkpoint_is_named(case, capfd):
    (case.checkpoint / "offsets" / "2").unlink()
    code, verdicts, told = case.audit(capfd)
    assert code == FAULTS
    assert "the checkpoint has no entry of batch 2" in str(told["findings"])
    assert verdicts[3] == "unverifiable"


def test_an_older_checkpoint_is_found(case, capfd):
    for name in ("offsets", "commits"):
        for batch in (BATCHES - 2, BATCHES - 1):
            (case.checkpoint / name / str(batch)).unlink()
    code, _, told = case.audit(capfd)
    assert code == FAULTS
    assert "an older copy of the checkpoint was restored" in str(told["findings"])


def test_an_unfinished_batch_that_landed_is_no_fault(case, capfd):
    (case.checkpoint / "commits" / str(BATCHES - 1)).unlink()
    code, verdicts, _ = case.audit(capfd)
    assert (code, verdicts[BATCHES - 1]) == (PROVED, case.audit(capfd)[1][BATCHES - 1])
    assert verdicts[BATCHES - 1] in ("once", "not landed yet")


def test_another_querys_table_is_found(sound, case, capfd):
    other = next(each for each in sound.values() if each.query_id != case.query_id)
    code, verdicts, told = Case(case.servers, case.topic, other.table, case.checkpoint).audit(capfd)
    assert code == FAULTS
    assert "the table belongs to another query" in str(told["findings"])
    assert told["by_rows"] or "missing" in verdicts.values()


def test_another_topic_of_the_same_name_is_found(case, capfd):
    for batch in range(BATCHES):
        case.change_offsets(batch, lambda offsets: offsets["@topic-ids"].update({case.topic: id_text(uuid.uuid4())}))
    code, _, told = case.audit(capfd)
    assert code == FAULTS
    assert f"topic {case.topic} is not the topic that was read" in str(told["findings"])


def test_purged_entries_leave_something_unproved(case, capfd):
    # Spark keeps the last hundred entries.
    for name in ("offsets", "commits"):
        for batch in (0, 1):
            (case.checkpoint / name / str(batch)).unlink()
    code, verdicts, told = case.audit(capfd)
    assert code == UNVERIFIABLE
    assert "batches 0 to 1" in str(told["findings"])
    assert verdicts[2] == "unverifiable"
    assert {verdicts[batch] for batch in (3, 4, 5)} <= {"once", "nothing to land"}


def test_commits_that_left_the_tables_log_are_proved_only_by_rows(case, capfd):
    DeltaTable(str(case.table)).create_checkpoint()
    first = case.version_of(landed(case))
    for version in range(first + 1):
        case.commit(version).unlink()
    code, verdicts, told = case.audit(capfd)
    assert told["table_versions"][0] == first + 1
    if told["by_rows"]:
        assert code == PROVED, "the rows are there"
    else:
        assert (code, verdicts[0]) == (UNVERIFIABLE, "unverifiable")
    assert set(verdicts.values()) <= {"once", "unverifiable", "nothing to land"}


def test_rows_of_other_writers_are_unverifiable_by_counts_and_a_fault_by_rows(by_counts, by_rows, capfd):
    write_deltalake(str(by_counts.table), pa.table({"n": pa.array([1], pa.int64())}), mode="append")
    assert by_counts.audit(capfd)[0] == UNVERIFIABLE
    assert by_counts.audit(capfd, "--other-writers")[0] == PROVED
    row = {"n": pa.array([1], pa.int64()), "__partition": pa.array([0], pa.int32())}
    row["__offset"] = pa.array([10_000], pa.int64())
    write_deltalake(str(by_rows.table), pa.table(row), mode="append")
    code, _, told = by_rows.audit(capfd)
    assert code == FAULTS
    assert f"offsets 10000 of {by_rows.topic}-0 are in the table, but no batch of the query read them" in str(told)


def test_a_batch_that_retention_deleted_is_not_proved_by_counts(module_broker, by_counts, capfd):
    # If a batch has fewer rows than offsets, only the topic can prove the rest.
    servers, other = by_counts.servers, f"audited-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topic(other, partitions=2, schema="n BIGINT", configs={"retention.ms": "-1"})
        topic_id = admin.describe_topic(other).topic_id
        for abort in (False, True, False):
            produce(servers, other, 30, abort=abort)

        def rename(offsets):
            for where in (offsets, offsets.get("@from", {})):
                if by_counts.topic in where:
                    where[other] = where.pop(by_counts.topic)
            offsets["@topic-ids"] = {other: id_text(topic_id)}

        for batch in range(BATCHES):
            by_counts.change_offsets(batch, rename)
        assert by_counts.audit(capfd)[0] == PROVED
        admin.delete_records({TopicPartition(other, p): "latest" for p in (0, 1)})
    code, verdicts, _ = by_counts.audit(capfd)
    assert code == UNVERIFIABLE
    assert "unverifiable" in verdicts.values()
    assert "missing" not in verdicts.values()


def test_records_that_were_read_again_on_purpose_are_no_fault(spark, by_rows, capfd):
    assert (
        main(
            ["offsets", "reset", "-c", str(by_rows.checkpoint), "-b", by_rows.servers, "--shift-by", "-3", "--execute"]
        )
        == 0
    )
    given = {
        "kafka.bootstrap.servers": by_rows.servers,
        "subscribe": by_rows.topic,
        "columns": "n,__partition,__offset",
    }
    query = ingest(spark, given, str(by_rows.table), checkpoint=str(by_rows.checkpoint))
    finish(query)
    code, verdicts, told = by_rows.audit(capfd)
    assert code == PROVED
    assert verdicts[BATCHES] == "nothing to land"
    assert "is a reset" in str(told["findings"])


def test_directories_without_a_table_or_checkpoint_are_refused(by_rows, tmp_path, capfd):
    assert main(["audit", "-c", str(by_rows.checkpoint), "-t", str(tmp_path), "-b", by_rows.servers]) == 2
    assert "is not a Delta table" in capfd.readouterr().err
    assert main(["audit", "-c", str(tmp_path), "-t", str(by_rows.table), "-b", by_rows.servers]) == 2
    assert "is not the checkpoint of a query" in capfd.readouterr().err


def test_locations_that_are_not_mounted_are_refused(by_rows, capfd):
    assert main(["audit", "-c", str(by_rows.checkpoint), "-t", "s3://bucket/table", "-b", by_rows.servers]) == 2
    assert "s3://bucket/table: tables are audited on local and mounted file systems" in capfd.readouterr().err
    assert main(["audit", "-c", "s3://bucket/c", "-t", str(by_rows.table), "-b", by_rows.servers]) == 2
    assert "s3://bucket/c: checkpoints are read from local and mounted file systems" in capfd.readouterr().err


def test_a_topic_that_the_query_does_not_read_is_refused(by_counts, capfd):
    command = ["audit", "-c", str(by_counts.checkpoint), "-t", str(by_counts.table), "-b", by_counts.servers]
    assert main([*command, "--topic", by_counts.topic]) == PROVED
    assert main([*command, "--topic", "elsewhere"]) == 2
    assert "the query does not read elsewhere" in capfd.readouterr().err
