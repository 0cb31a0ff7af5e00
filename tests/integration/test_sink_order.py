"""Tests of the order of records between two topics."""

import importlib.util
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, Producer
from millrace_streams import StreamsBuilder, run_stream

from .streaming_query import finish
from .waiting import Stall

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = Path(__file__).parents[2] / "jobs" / "topic_to_topic.py"
RECORDS = 30_000
"""With 1 kB each, more than a source reads in one task by default."""


@pytest.fixture(scope="module")
def numbers(module_broker):
    """Make a topic of one partition with ascending numbers, all of one key."""
    values = [b"%08d" % number + b"." * 1000 for number in range(RECORDS)]
    keys = pa.array([b"k"] * RECORDS, pa.binary())
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic("numbers", partitions=1)
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers, "compression.type": "none"}) as producer:
        producer.send_table("numbers", pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
    return "numbers"


def numbers_in(broker, topic):
    found, stall = [], Stall("all records")
    config = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    with Consumer({**config, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        while len(found) < RECORDS:
            stall.check(len(found))
            found += [int(record.value[:8]) for record in consumer.poll(100)]
    return found


def copied_by_the_job(spark, servers, source, target, checkpoint):
    spec = importlib.util.spec_from_file_location("jobs_topic_to_topic", JOB)
    job = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = job
    spec.loader.exec_module(job)
    given = {"--bootstrap-servers": servers, "--source": source, "--target": target, "--checkpoint": checkpoint}
    return job.start_query(spark, job.parse_arguments([each for pair in given.items() for each in pair]))


def written_by_a_topology(spark, servers, source, target, checkpoint):
    builder = StreamsBuilder()
    builder.stream(source, key="bytes", value="bytes").filter(lambda value: True).to(target)
    return run_stream(builder.build(), spark, checkpoint=checkpoint, bootstrap_servers=servers, available_now=True)


@pytest.mark.parametrize("write", [copied_by_the_job, written_by_a_topology])
def test_records_of_a_partition_stay_in_order(spark, module_broker, numbers, tmp_path, write):
    servers, target = module_broker.bootstrap_servers, f"{numbers}-{write.__name__}"
    with Admin(servers) as admin:
        admin.create_topic(target, partitions=1)
    finish(write(spark, servers, numbers, target, str(tmp_path / "checkpoint")))
    assert numbers_in(module_broker, target) == list(range(RECORDS))
