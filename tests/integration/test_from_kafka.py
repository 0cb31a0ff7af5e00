"""Tests of ``jobs/from_kafka.py`` against a real Kafka broker.

Every record is copied once with all its fields, and groups continue.
"""

import contextlib
import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.workspace import Workspace
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import NewTopic

from millrace.clients import Admin, Consumer

from .waiting import STALL_S, Stall, eventually, output_of, while_it_works

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "from_kafka.py"
START_MS = 1_600_000_000_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """Start a Kafka broker for this module. Maven resolves its JARs once, and the benchmarks use the same ones."""
    root = tmp_path_factory.mktemp("kafka")
    for shared in ("jars", "m2"):
        (root / shared).symlink_to(Workspace().folder(shared))
    with KafkaBroker(Workspace(root)) as broker:
        yield broker


class Orders:
    """A topic in Kafka whose values are numbers. Markers of transactions leave gaps in its offsets."""

    def __init__(self, kafka, partitions=2, **configs):
        self.kafka, self.name = kafka, f"orders-{uuid.uuid4().hex[:8]}"
        created = NewTopic(self.name, partitions, 1, config={"retention.ms": "-1", **configs})
        kafka.admin.create_topics([created])[self.name].result(STALL_S)
        self.partitions = partitions

    def produce(self, numbers, *, commit=True):
        settings = {"bootstrap.servers": self.kafka.bootstrap, "transactional.id": self.name, "log_level": 0}
        producer = KafkaProducer(settings)
        producer.init_transactions(STALL_S)
        producer.begin_transaction()
        for number in numbers:
            producer.produce(
                self.name,
                None if number % 10 == 7 else b"%d" % number,
                None if number % 5 == 3 else b"key %d" % (number % 4),
                partition=number % self.partitions,
                timestamp=START_MS + number,
                headers=[("h", b"%d" % number), ("none", None)] if number % 3 == 0 else None,
            )
        if commit:
            producer.commit_transaction(STALL_S)
        else:
            producer.flush(STALL_S)
            producer.abort_transaction(STALL_S)

    def expected(self, numbers):
        return {
            partition: [
                (
                    None if number % 5 == 3 else b"key %d" % (number % 4),
                    None if number % 10 == 7 else b"%d" % number,
                    [("h", b"%d" % number), ("none", None)] if number % 3 == 0 else [],
                    START_MS + number,
                )
                for number in numbers
                if number % self.partitions == partition
            ]
            for partition in range(self.partitions)
        }

    def commit(self, group, offsets):
        places = [TopicPartition(self.name, partition, offset) for partition, offset in offsets.items()]
        wanted, stall = [ConsumerGroupTopicPartitions(group, places)], Stall("the coordinator")
        while True:
            (done,) = self.kafka.admin.alter_consumer_group_offsets(wanted).values()
            errors = [place.error for place in done.result(STALL_S).topic_partitions if place.error is not None]
            if not errors:
                return
            # A broker that has just started may be loading its groups.
            stall.check(errors)


@pytest.fixture
def job(kafka, module_broker):
    """Return a function that starts the job. All jobs are stopped at the end."""
    started = []

    def start(topic, *more):
        command = [sys.executable, JOB, "--kafka-bootstrap-servers", kafka.bootstrap, "--topic", topic.name]
        command += ["--bootstrap-servers", module_broker.bootstrap_servers, *more]
        process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        with contextlib.suppress(ValueError):
            process.communicate(timeout=STALL_S)


def ended(process, code=0):
    output, _ = output_of(process)
    assert process.returncode == code, output
    return output


def copied(broker, topic):
    """Return the copied records with their offsets, by partition, as readers see them."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    with Consumer({**config, "isolation.level": "read_committed"}) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends, found = consumer.end_offsets(partitions), {place.partition: [] for place in partitions}
        while any(consumer.position(place) < end for place, end in ends.items()):
            for record in consumer.poll(500):
                found[record.partition].append(record)
    return found


def facts(records):
    return {
        partition: [(each.key, each.value, list(each.headers), each.timestamp_ms) for each in found]
        for partition, found in records.items()
    }


def test_records_keep_all_they_have_and_groups_continue_where_they_were(kafka, module_broker, job, tmp_path):
    orders = Orders(kafka, **{"cleanup.policy": "delete", "max.message.bytes": "2000000"})
    orders.produce(range(100))
    orders.produce(range(1000, 1010), commit=False)
    orders.produce(range(100, 150))
    ahead = {partition: high for partition in range(2) for _, high in [watermarks(kafka, orders, partition)]}
    for group, offsets in (("reader", {0: 20, 1: 51}), ("done", ahead), ("other", {})):
        if offsets:
            orders.commit(f"{group}-{orders.name}", offsets)
    groups = ",".join(f"{group}-{orders.name}" for group in ("reader", "done", "other"))
    output = ended(job(orders, "--groups", groups, "--map-file", tmp_path / "map.json"))
    found = copied(module_broker, orders.name)
    assert facts(found) == orders.expected(range(150))
    with Admin(module_broker.bootstrap_servers) as admin:
        assert admin.describe_configs(orders.name)["max.message.bytes"].value in ("2000000", 2000000)
        reader = admin.list_group_offsets(f"reader-{orders.name}")
        done = admin.list_group_offsets(f"done-{orders.name}")
    assert f"group reader-{orders.name} continues at 0: " in output
    # Record 20 of partition 0 is number 40. Record 51 of partition 1 follows its first 50 records and a marker.
    next_values = {
        place.partition: next(each.value for each in found[place.partition] if each.offset >= committed.offset)
        for place, committed in reader.items()
    }
    assert next_values == {0: b"40", 1: b"101"}
    assert all(committed.offset == found[place.partition][-1].offset + 1 for place, committed in done.items())
    written = json.loads((tmp_path / "map.json").read_text())["partitions"]
    for partition, each in written.items():
        offsets = [new + n for _, new, count in each["runs"] for n in range(count)]
        assert offsets == [record.offset for record in found[int(partition)]]


def watermarks(kafka, orders, partition):
    from confluent_kafka import Consumer as KafkaConsumer

    consumer = KafkaConsumer({"bootstrap.servers": kafka.bootstrap, "group.id": "look", "log_level": 0})
    try:
        return consumer.get_watermark_offsets(TopicPartition(orders.name, partition), timeout=STALL_S)
    finally:
        consumer.close()


def test_a_copy_that_is_killed_and_stopped_has_every_record_once(kafka, module_broker, job):
    orders, count = Orders(kafka, partitions=3), 30_000
    orders.produce(range(count))
    limited = ("--records-per-transaction", "500")
    for _ in range(3):
        process = job(orders, *limited)
        wait_for_batches(process, 3)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=STALL_S)
    following = job(orders, "--continuous")
    wait_for_batches(following, 1)
    orders.produce(range(count, count + 100))

    def written():
        return sum(map(len, copied(module_broker, orders.name).values()))

    eventually(lambda: written() >= count + 100, "all records", progress=written, pause_s=0.1)
    following.send_signal(signal.SIGTERM)
    ended(following)
    assert facts(copied(module_broker, orders.name)) == orders.expected(range(count + 100))
    assert "0 records in" in ended(job(orders)), "no record is left to copy"


def wait_for_batches(process, count):
    """Read a job's output until it has committed that many batches."""
    seen = 0
    while seen < count:
        line = while_it_works(process, process.stdout.readline, "a line of the job")
        assert line, "the job ended"
        seen += line.startswith("batch ")


def test_a_topic_that_cannot_be_copied_gives_an_error_of_one_sentence(kafka, module_broker, job):
    orders, others = Orders(kafka), Orders(kafka)
    servers = module_broker.bootstrap_servers
    orders.produce(range(20))
    ended(job(orders))
    orders.commit(f"ahead-{orders.name}", {0: 1000})
    with Admin(servers) as admin:
        admin.create_topic(f"typed-{orders.name}", partitions=2, schema="n INT")
        admin.create_topic(f"wide-{orders.name}", partitions=3)
    calls = {
        ("--groups", f"ahead-{orders.name}"): "is ahead of the copy",
        ("--target", f"typed-{orders.name}"): "is typed: copy into an opaque topic",
        ("--target", f"wide-{orders.name}"): "has 3 partitions, and 2 in Kafka",
        ("--kafka-option", "security.protocl=SSL"): "No such configuration property",
    }
    running = [(job(orders, *more), problem) for more, problem in calls.items()]
    running.append((job(others, "--target", orders.name), f"is the offsets map of {orders.name}"))
    gone = Orders.__new__(Orders)
    gone.name = "nowhere"
    running.append((job(gone), "Kafka has no topic nowhere"))
    for process, problem in running:
        output = ended(process, code=1)
        assert problem in output, output
        assert "Traceback" not in output
