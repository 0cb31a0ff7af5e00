"""Tests of transactions in Spark reads.

By default, Spark reads only committed records. The reads are batches, streams and direct ingest.
"""

import uuid

import pytest

from millrace.clients import Producer, TopicPartition
from millrace.errors import UsageError
from pyspark_millrace.delta import ingest
from pyspark_millrace.spark_errors import millrace_error_in

from .streaming_query import finish

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def producers(module_broker):
    """Return a function that creates transactional producers. Their open transactions stay open."""
    made = []

    def make():
        producer = Producer(
            {
                "bootstrap.servers": module_broker.bootstrap_servers,
                "transactional.id": f"spark-{uuid.uuid4().hex[:8]}",
                "batch.size": 2048,
            }
        )
        producer.init_transactions()
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close()


class Written:
    """A topic with transactions of all outcomes in each partition.

    The transactions are side by side.
    """

    def __init__(self, name):
        self.name = name
        self.committed = set()
        self.next = 0

    def write(self, producer, count, *, committed):
        """Write numbers within the producer's open transaction. ``committed`` is its later outcome."""
        numbers = range(self.next, self.next + count)
        self.next += count
        for number in numbers:
            producer.send(self.name, b"%d" % number, partition=number % 2)
            if number % 7 == 0:
                producer.flush()  # many small batches, so that splits begin within transactions
        producer.flush()
        if committed:
            self.committed.update(numbers)


@pytest.fixture(scope="module")
def written(admin, producers):
    """Create a topic that all tests read, and to which some append."""
    topic = Written(f"transactions-{uuid.uuid4().hex[:8]}")
    admin.create_topic(topic.name, partitions=2, configs={"retention.ms": "-1"})
    steady, aborting = producers(), producers()
    for _ in range(6):
        steady.begin_transaction()
        aborting.begin_transaction()
        topic.write(steady, 40, committed=True)
        topic.write(aborting, 40, committed=False)
        topic.write(steady, 20, committed=True)
        aborting.abort_transaction()
        steady.commit_transaction()
        # The same producer commits and aborts in turn.
        aborting.begin_transaction()
        topic.write(aborting, 15, committed=True)
        aborting.commit_transaction()
    return topic


@pytest.fixture
def read(spark, module_broker):
    def load(topic, reader=None, **options):
        named = {"kafka.bootstrap.servers": module_broker.bootstrap_servers, "subscribe": topic.name}
        return (reader or spark.read).format("millrace").options(**named, **options).load()

    return load


def numbers(frame):
    return [int(row.value) for row in frame.select("value").collect()]


def settled(admin, topic):
    """Wait until markers are written. They reach the partitions after the producer has its answer."""
    wanted = {TopicPartition(topic.name, partition): "latest" for partition in (0, 1)}
    for _ in range(2000):
        levels = ("read_committed", "read_uncommitted")
        stable, end = (
            {key: at.offset for key, at in admin.list_offsets(wanted, isolation_level=level).items()}
            for level in levels
        )
        if stable == end:
            return
    raise AssertionError(f"not decided: {stable} of {end}")


@pytest.mark.parametrize(
    "options",
    [{"splitBytes": "1500"}, {"directReads": "never", "minPartitions": "5"}],
    ids=str,
)
def test_only_committed_records_are_read_on_every_path_and_split(admin, written, read, options):
    settled(admin, written)
    assert sorted(numbers(read(written, **options))) == sorted(written.committed)


def test_read_uncommitted_reads_all_records(admin, written, read):
    settled(admin, written)
    for name in ("isolation.level", "kafka.isolation.level"):
        assert sorted(numbers(read(written, **{name: "read_uncommitted"}))) == list(range(written.next))
    with pytest.raises(Exception, match="differ: give one") as raised:
        read(written, **{"isolation.level": "read_committed", "kafka.isolation.level": "read_uncommitted"})
    assert isinstance(millrace_error_in(raised.value), UsageError)


def test_reading_ends_where_a_transaction_is_open(admin, written, read, producers):
    settled(admin, written)
    before = set(written.committed)
    is_open = producers()
    is_open.begin_transaction()
    written.write(is_open, 10, committed=True)
    behind = producers()
    behind.begin_transaction()
    written.write(behind, 10, committed=True)
    behind.commit_transaction()
    assert set(numbers(read(written))) == before
    ends = f'{{"{written.name}": {{"0": 1, "1": 100000}}}}'
    with pytest.raises(Exception, match="not in the log"):
        numbers(read(written, endingOffsets=ends))
    latest = read(written, **{"isolation.level": "read_uncommitted", "columns": "partition,offset"}).collect()
    ends = {partition: max(row.offset for row in latest if row.partition == partition) + 1 for partition in (0, 1)}
    ending = f'{{"{written.name}": {{"0": {ends[0]}, "1": {ends[1]}}}}}'
    with pytest.raises(Exception, match="belongs to a transaction that is still open"):
        numbers(read(written, endingOffsets=ending))
    is_open.commit_transaction()
    settled(admin, written)
    assert set(numbers(read(written))) == written.committed


def test_a_stream_reads_each_committed_record_once(spark, admin, written, read, producers, tmp_path):
    seen = []

    def take(frame, _):
        seen.extend(numbers(frame))

    query = (
        read(written, spark.readStream, startingOffsets="earliest", maxOffsetsPerTrigger="400")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        late, lost = producers(), producers()
        for producer, committed in ((late, True), (lost, False)):
            producer.begin_transaction()
            written.write(producer, 30, committed=committed)
        lost.abort_transaction()
        late.commit_transaction()
        settled(admin, written)
        query.processAllAvailable()
        assert sorted(seen) == sorted(written.committed)
    finally:
        query.stop()


def test_direct_ingest_writes_committed_records_only(spark, module_broker, admin, written, tmp_path):
    settled(admin, written)
    options = {
        "kafka.bootstrap.servers": module_broker.bootstrap_servers,
        "subscribe": written.name,
        "startingOffsets": "earliest",
    }
    table = str(tmp_path / "table")
    query = ingest(spark, options, table, checkpoint=str(tmp_path / "checkpoint"))
    finish(query)
    assert sorted(numbers(spark.read.format("delta").load(table))) == sorted(written.committed)
