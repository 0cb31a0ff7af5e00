"""Options that a runner gives to its sources and sinks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from millrace.errors import UsageError
from millrace_streams import IncompatibleStateError, StreamsBuilder
from millrace_streams.graph import Topology
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.runners.sinks import check_options
from millrace_streams.runners.source import Job, JobInputs


def prepared(topology: Topology, options: Mapping[str, Any], *, partitions: int = 1) -> Job:
    """Return the job of a topology that reads topics of bytes."""
    inputs = JobInputs(bootstrap_servers="nowhere:1", options=options)
    with mock.patch.object(JobInputs, "shape_of", return_value=(OPAQUE_SHAPE, partitions)):
        return Job.prepare(topology, inputs)


def source_options(options: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the options of two sources by topic."""
    builder = StreamsBuilder()
    for topic in ("orders", "customers"):
        builder.stream(topic, key="string", value="string").to("out")
    job = prepared(builder.build(), options)
    spark = mock.MagicMock()
    job.packed(spark, streaming=True, defaults=defaults)
    found = [call.kwargs for call in spark.readStream.format.return_value.options.call_args_list]
    return {each["subscribe"]: each for each in found}


def test_a_position_of_one_topic_leaves_the_default_to_the_others() -> None:
    found = source_options({"startingOffsets": {"orders": {"0": 5}}}, {"startingOffsets": "earliest"})
    assert json.loads(found["orders"]["startingOffsets"]) == {"orders": {"0": 5}}
    assert found["customers"]["startingOffsets"] == "earliest"


def test_sinks_get_the_options_of_clients_and_producers_in_any_case() -> None:
    options = {"Kafka.Security.Protocol": "SSL", "kafka.linger.ms": 5, "kafka.client.rack": "a", "failOnDataLoss": "no"}
    client = JobInputs(bootstrap_servers="nowhere:1", options=options).client
    assert client == {"security.protocol": "SSL", "linger.ms": "5", "bootstrap.servers": "nowhere:1"}
    check_options(client)
    found = source_options(options, {})["orders"]
    assert found.keys() >= {"Kafka.Security.Protocol", "kafka.client.rack"}
    assert "kafka.linger.ms" not in found


@pytest.mark.parametrize(
    ("name", "value"), [("acks", "1"), ("transactional.id", "mine"), ("linger.ms", "soon"), ("lingerms", "5")]
)
def test_options_that_a_sink_cannot_use_are_refused_before_the_start(name: str, value: str) -> None:
    client = JobInputs(bootstrap_servers="nowhere:1", options={f"kafka.{name}": value}).client
    assert client is not None
    with pytest.raises(UsageError, match=re.escape(name)):
        check_options(client)


def batch_of(partition: int) -> pa.RecordBatch:
    """Return one record of a partition, as the source gives it."""
    return pa.RecordBatch.from_pylist(
        [{"key": b"k", "value": b"v", "__partition": partition, "__offset": 0, "__timestamp": 0}],
        schema=pa.schema(
            {
                "key": pa.binary(),
                "value": pa.binary(),
                "__partition": pa.int32(),
                "__offset": pa.int64(),
                "__timestamp": pa.timestamp("us"),
            }
        ),
    )


@pytest.mark.parametrize("keeps", [True, False], ids=["with a store", "without a store"])
def test_a_partition_that_a_topic_gets_in_a_running_query_stops_a_store_of_its_keys(keeps: bool) -> None:
    builder = StreamsBuilder()
    words = builder.stream("words", key="string", value="string")
    (words.group_by_key().count(store="counts").to_stream() if keeps else words).to("out")
    job = prepared(builder.build(), {}, partitions=2)
    [run] = [job._run(*source) for source in job._sources]
    assert list(run(iter([batch_of(1)])))
    if not keeps:
        assert list(run(iter([batch_of(2)])))
        return
    with pytest.raises(IncompatibleStateError, match="words-2 is new, but the query's state is of 2 partitions"):
        list(run(iter([batch_of(2)])))
    more = prepared(builder.build(), {}, partitions=3)
    assert job.kept_partitions == {"words": 2}
    assert more.kept_partitions == {"words": 3}
