#!/usr/bin/env python3
r"""Exactly-once copy of a Kafka topic.

The job copies partition, key, value, headers and timestamp of each record, and keeps an offset map. Each transaction
writes records, and their new offsets to the topic <target>-offsets-map. A job that is killed at any moment resumes at
the end of the map when it is run again. Only committed records are copied. A missing target is created with the
partitions and options that the topic has in Kafka. By default the job copies the records that Kafka holds and ends.
With --continuous it runs until it is stopped (SIGTERM or Ctrl-C stop it cleanly).

--groups also migrates consumer groups: a group's committed offsets in Kafka are committed here for the group of the
same name, as offsets of the copy. To migrate a topic, copy with --continuous, stop the producers, and let the job end.
Then run it once more with --groups, and start producers and consumers here.

  python jobs/from_kafka.py --kafka-bootstrap-servers kafka:9092 --topic orders
  python jobs/from_kafka.py --kafka-bootstrap-servers kafka:9092 --topic orders --groups all \
      --kafka-option security.protocol=SASL_SSL --kafka-option 'sasl.password=${env:KAFKA_PASSWORD}' \
      --map-file orders-offsets.json

confluent-kafka reads Kafka (pip install 'millrace[kafka]'). The job needs no Spark. Exit codes: 0 done or stopped,
1 failed (the reason is on standard error), 2 wrong arguments.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Annotated

from typer import Option

from millrace.clients import Admin
from millrace.config.references import resolve_references
from millrace.migration import KafkaTopic, OffsetsMap, TopicCopy, carry_groups_over
from pyspark_millrace.job import (
    JobArguments,
    Report,
    pair_option,
    pairs,
    run_job,
    say,
)
from pyspark_millrace.job import parse_arguments as parse


@dataclass(frozen=True, kw_only=True)
class Arguments(JobArguments):
    """Options of this job."""

    kafka_bootstrap_servers: Annotated[str, Option(metavar="HOST:PORT,...", help="brokers of the Kafka cluster")]
    topic: Annotated[str, Option(help="topic to copy")]
    target: Annotated[str | None, Option(metavar="TOPIC", help="topic to write to (default: the same name)")] = None
    map_topic: Annotated[
        str | None, Option(metavar="TOPIC", help="topic for the map of offsets (default: TARGET-offsets-map)")
    ] = None
    map_file: Annotated[str | None, Option(metavar="FILE", help="write the map as JSON to this file at the end")] = None
    groups: Annotated[
        str | None, Option(metavar="A,B,...", help="consumer groups whose offsets are translated at the end, or all")
    ] = None
    records_per_transaction: Annotated[int, Option(metavar="N", help="largest number")] = 20_000
    skip_lost: Annotated[
        bool, Option("--skip-lost", help="continue if Kafka has deleted records before they were copied")
    ] = False
    continuous: Annotated[
        bool, Option("--continuous", help="run until stopped, instead of ending after the present records")
    ] = False
    kafka_option: Annotated[list[str], pair_option("setting of librdkafka, the client that reads Kafka")] = field(
        default_factory=list
    )
    option: Annotated[list[str], pair_option("setting of the producer")] = field(default_factory=list)
    topic_config: Annotated[
        list[str], pair_option("option of a new target topic; it overrides the topic's option in Kafka")
    ] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Read the command line and the configuration. Exits with code 2 if they are invalid."""
    return parse(Arguments, arguments, script=__file__, description=__doc__)


def write_map(copy: TopicCopy, topic: str, target: str, file: str) -> None:
    """Write the map as JSON: per partition, runs of [old offset, new offset, records], and the end of the copy."""
    partitions = {
        str(partition): {"next_old": found.next_old, "runs": [list(run) for run in found.runs]}
        for partition, found in sorted(copy.maps.items())
    }
    content = {"topic": topic, "target": target, "partitions": partitions}
    Path(file).write_text(json.dumps(content) + "\n", encoding="utf-8")


def run(arguments: Arguments, stopping: Event) -> None:
    """Copy the topic, then migrate the groups."""
    target = arguments.target or arguments.topic
    config = {**arguments.client_options, **pairs(arguments.option), "bootstrap.servers": arguments.servers}
    kafka_options = resolve_references(pairs(arguments.kafka_option))
    kafka = KafkaTopic(arguments.kafka_bootstrap_servers, arguments.topic, kafka_options)
    with kafka:
        copy = TopicCopy(
            kafka,
            config,
            target,
            map_topic=arguments.map_topic,
            topic_configs=pairs(arguments.topic_config),
            say=say,
        )
        say(f"Kafka's {arguments.topic} at {arguments.kafka_bootstrap_servers} -> {target} at {arguments.servers}")
        started, report = time.monotonic(), Report()
        copy.run(
            stopping=stopping,
            continuous=arguments.continuous,
            records_max=arguments.records_per_transaction,
            skip_lost=arguments.skip_lost,
            on_commit=lambda copied: report.add(copied.number, copied.records, copied.seconds),
        )
        seconds = time.monotonic() - started
        say(f"{report.rows:,} records in {seconds:.1f} s ({report.rows / seconds:,.0f} records/s) -> {target}")
        if arguments.groups is not None and not stopping.is_set():
            carry_over(kafka, config, copy.maps, target, arguments.groups)
        if arguments.map_file is not None:
            write_map(copy, arguments.topic, target, arguments.map_file)


def carry_over(
    kafka: KafkaTopic, config: dict[str, str], maps: dict[int, OffsetsMap], target: str, groups: str
) -> None:
    """Commit the groups' offsets, and print them. ``groups`` has names separated by commas, or is ``all``."""
    chosen = kafka.groups() if groups == "all" else groups.split(",")
    with Admin(config) as admin:
        carried = carry_groups_over(kafka, admin, target, maps, chosen)
    for group, offsets in carried.items():
        places = ", ".join(f"{place.partition}: {offset}" for place, offset in sorted(offsets.items()))
        say(f"group {group} continues at {places}")
    if not carried:
        say("no group has committed offsets of the topic")


if __name__ == "__main__":
    sys.exit(run_job(run, parse_arguments(sys.argv[1:])))
