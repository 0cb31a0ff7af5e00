"""Tests of reads from a log that changes meanwhile.

Segments roll, expire and are compacted between planning, mapping and reading. A list model of the topic has the
expected record of each offset. The readers are called as Spark calls them.
"""

import random
import threading

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millrace.clients import Producer, TopicPartition

from .reader_model import checkpointed, rows_of, source, stream
from .waiting import Stall, eventually

BROKER_OPTIONS = {"log.cleaner.backoff.ms": 20, "log.segment.delete.delay.ms": 0}


def read_beside(work, reader, limit):
    """Read micro-batches while ``work`` runs in a thread, and until all records are read."""
    failures = []

    def run():
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    worker = threading.Thread(target=run)
    offset = checkpointed(reader.initialOffset())
    rows = []
    worker.start()
    stall = Stall("the writer to end")
    while True:
        is_last = not worker.is_alive()
        end = checkpointed(reader.latestOffset(offset, limit))
        if end != offset:
            rows += rows_of(reader, reader.partitions(offset, end))
            offset = end
        elif is_last:
            break
        stall.check(len(rows))
    worker.join()
    assert not failures
    reader.stop()
    return rows


def offsets_of(rows, partition):
    return [row[2] for row in rows if row[1] == partition]


@pytest.mark.parametrize("path", ["auto", "never"])
def test_reads_during_rolls_and_deletions_of_segments_give_the_records_of_the_log(new_model, admin, path):
    model = new_model(2, **{"file.delete.delay.ms": "0", "segment.bytes": "6000"})
    deleted = {0: 0, 1: 0}
    chosen = random.Random(7)

    def live():
        for step in range(60):
            for partition in (0, 1):
                model.append(partition, chosen.randrange(1, 60))
            partition = step % 2
            before = len(model.rows[partition]) - chosen.randrange(200)
            if step % 3 and before > deleted[partition]:
                # The offset is recorded first, because a reader may find the records gone before the answer arrives.
                deleted[partition] = before
                admin.delete_records({TopicPartition(model.name, partition): before})

    options = {"startingOffsets": "earliest", "failOnDataLoss": "false", "directReads": path, "splitBytes": "3000"}
    rows = read_beside(live, stream(model, options), ReadMaxRows(300))
    assert all(value == model.rows[partition][offset] for value, partition, offset in rows)
    for partition, values in model.rows.items():
        offsets = offsets_of(rows, partition)
        assert offsets == sorted(set(offsets))
        missing = set(range(len(values))) - set(offsets)
        assert all(offset < deleted[partition] for offset in missing)
        assert offsets, "nothing was read, so the test shows nothing"


@pytest.mark.parametrize("path", ["auto", "never"])
def test_only_records_deleted_between_planning_and_reading_are_skipped(new_model, admin, path):
    model = new_model(1, **{"file.delete.delay.ms": "0", "segment.bytes": "6000"})
    for _ in range(10):
        model.append(0, 50)
    found, schema = source(model, failOnDataLoss="false", directReads=path, splitBytes="3000")
    reader = found.reader(schema)
    tasks = reader.partitions()
    admin.delete_records({TopicPartition(model.name, 0): 217})
    offsets = offsets_of(rows_of(reader, tasks), 0)
    # A remaining file may be read, and a batch that spans the start offset is there completely.
    assert offsets == sorted(set(offsets))
    assert set(range(217, 500)) <= set(offsets)


@pytest.mark.parametrize("path", ["auto", "never"])
def test_a_compacted_topic_gives_the_last_value_of_every_key(new_model, module_broker, admin, path):
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "4000"}
    model = new_model(1, **configs, **{"file.delete.delay.ms": "0"})
    last_of = {}

    def live():
        with Producer(module_broker.bootstrap_servers) as producer:
            for number in range(1500):
                value = b"%d" % number + b"." * 60
                last_of[number % 11] = value
                model.rows[0].append(value)
                producer.send(model.name, value, key=b"%d" % (number % 11), partition=0)
                if number % 25 == 0:
                    producer.flush()
            producer.flush()

    rows = read_beside(live, stream(model, {"startingOffsets": "earliest", "directReads": path}), ReadAllAvailable())
    assert all(value == model.rows[0][offset] for value, _, offset in rows)
    offsets = offsets_of(rows, 0)
    assert offsets == sorted(set(offsets))
    assert set(last_of.values()) <= {row[0] for row in rows}

    def compacted():
        found, schema = source(model, directReads=path, failOnDataLoss="true")
        reader = found.reader(schema)
        return rows_of(reader, reader.partitions())

    left = eventually(lambda: (found := compacted()) and len(found) < 1500 and found, "the cleaner")
    # Gaps are no loss, so failOnDataLoss does not apply.
    assert all(value == model.rows[0][offset] for value, _, offset in left)
    assert set(last_of.values()) <= {row[0] for row in left}
