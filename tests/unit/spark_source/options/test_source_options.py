"""Tests of source options, which are all checked before the start.

A refusal names option, value and accepted form.
"""

from collections import defaultdict

import pytest

from millrace.config.client import ClientConfig, ConsumerConfig
from millrace.errors import UsageError
from pyspark_millrace.options.limits import TriggerLimits
from pyspark_millrace.options.positions import AtTimestamp, AtTimestamps, ExactOffsets, OffsetSpec
from pyspark_millrace.options.reference import DECODE_OPTIONS, READ_OPTIONS, names_of
from pyspark_millrace.options.source import (
    AssignedPartitions,
    DirectReads,
    IsolationLevel,
    NoMatch,
    TopicPattern,
    Topics,
    parse_options,
    with_whole_partitions,
)
from pyspark_millrace.partition_key import PartitionKey

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def refusal(**options):
    return refusal_of(**{**BASE, **options})


def refusal_of(**options):
    with pytest.raises(UsageError) as caught:
        parse_options({"kafka.bootstrap.servers": "localhost:9092"} | options)
    return caught.value.message


def test_options_that_are_not_given_have_their_defaults():
    options = parse_options(BASE)
    assert options.subscription == Topics(("orders",))
    assert options.batch_range() == (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    assert options.stream_start() is OffsetSpec.LATEST
    assert options.fail_on_data_loss
    assert options.direct_reads is DirectReads.AUTO
    assert options.limits == TriggerLimits()
    assert options.starting_no_match is NoMatch.ERROR
    assert options.isolation_level is IsolationLevel.READ_COMMITTED


def test_names_are_not_case_sensitive():
    options = parse_options({"KAFKA.BOOTSTRAP.SERVERS": "h:1", "SubScribe": "a, b", "FAILONDATALOSS": "False"})
    assert options.subscription == Topics(("a", "b"))
    assert not options.fail_on_data_loss


def test_bootstrap_servers_are_read_without_prefix_and_client_options_with_it():
    options = parse_options({"bootstrap.servers": "a:1,b:2", "subscribe": "t", "kafka.request.timeout.ms": "5000"})
    assert options.bootstrap_servers == "a:1,b:2"
    assert options.client_config == {"request.timeout.ms": "5000"}


def outcome_of(setting, value):
    """Return what the source does with a setting of a consumer."""
    try:
        options = parse_options({**BASE, f"kafka.{setting}": value})
    except UsageError as error:
        return "refused" if "is not supported: " in error.message else error.message
    return "for clients" if setting in options.client_config else "without effect"


def test_a_consumer_option_goes_to_the_clients_or_has_no_effect_or_is_refused_with_the_reason():
    of_the_source = {"bootstrap.servers", "group.id", "isolation.level"}
    outcomes = defaultdict(set)
    for name, default in ConsumerConfig().options().items():
        if name not in of_the_source:
            outcomes[outcome_of(name, str(default))].add(name)
    assert outcomes.keys() == {"refused", "for clients", "without effect"}
    assert outcomes["for clients"] == set(ClientConfig.option_names()) - of_the_source
    assert outcomes["without effect"] == {
        "auto.commit.interval.ms",
        "check.crcs",
        "client.rack",
        "exclude.internal.topics",
    }


def test_a_consumer_option_without_effect_is_checked():
    assert "check.crcs='perhaps'" in refusal(**{"kafka.check.crcs": "perhaps"})
    assert "name them in subscribe" in refusal(**{"kafka.exclude.internal.topics": "false"})


def test_isolation_level_is_read_with_and_without_prefix():
    for name in ("isolation.level", "kafka.isolation.level", "Isolation.Level"):
        options = parse_options({**BASE, name: "read_uncommitted"})
        assert options.isolation_level is IsolationLevel.READ_UNCOMMITTED
        assert options.client_config == {}
    with pytest.raises(UsageError, match=r"isolation\.level='dirty': expected one of read_committed"):
        parse_options({**BASE, "isolation.level": "dirty"})


def test_tasks_wait_for_brokers_as_long_as_a_poll_may_take():
    options = parse_options({**BASE, "kafkaConsumer.pollTimeoutMs": "2500", "kafka.request.timeout.ms": "700"})
    assert options.client_config == {"request.timeout.ms": "700"}
    assert options.task_client_config() == {
        "socket.connection.setup.timeout.ms": "2500",
        "request.timeout.ms": "700",
    }
    assert parse_options(BASE).task_client_config() == {}


def test_assign_and_subscribe_pattern_select_partitions_and_topics():
    assign = parse_options({"bootstrap.servers": "h:1", "assign": '{"b": [1, 0], "a": [2]}'})
    assert assign.subscription == AssignedPartitions((PartitionKey("a", 2), PartitionKey("b", 0), PartitionKey("b", 1)))
    pattern = parse_options({"bootstrap.servers": "h:1", "subscribePattern": "or.*"})
    assert pattern.subscription == TopicPattern("or.*")


def test_offsets_of_json_become_the_range_of_the_batch():
    options = parse_options(
        {**BASE, "startingOffsets": '{"orders": {"1": 0, "0": -2}}', "endingOffsets": '{"orders": {"0": -1, "1": 9}}'}
    )
    start, end = options.batch_range()
    assert start == ExactOffsets({PartitionKey("orders", 0): -2, PartitionKey("orders", 1): 0})
    assert end == ExactOffsets({PartitionKey("orders", 0): -1, PartitionKey("orders", 1): 9})


@pytest.mark.parametrize(("text", "start"), [("earliest", OffsetSpec.EARLIEST), (" Latest ", OffsetSpec.LATEST)])
def test_a_stream_starts_at_the_edge_that_is_named(text, start):
    assert parse_options({**BASE, "startingOffsets": text}).stream_start() is start


def test_a_timestamp_wins_over_timestamps_and_these_over_offsets():
    by_time = {"startingOffsetsByTimestamp": '{"orders": {"0": 0}}', "startingOffsets": "earliest"}
    assert parse_options({**BASE, **by_time}).batch_range()[0] == AtTimestamps({PartitionKey("orders", 0): 0})
    assert parse_options({**BASE, **by_time, "startingTimestamp": "8"}).batch_range()[0] == AtTimestamp(8)


WRONG = [
    ("failOnDataLoss", "yes", "true or false"),
    *((flag, "1", "true or false") for flag in ("includeHeaders", "includeMetadata", "pushFilters", "byReference")),
    ("maxOffsetsPerTrigger", "0", "a whole number from 1"),
    ("maxOffsetsPerTrigger", "1e6", "a whole number from 1"),
    ("maxBytesPerTrigger", "64m", "a whole number from 1"),
    ("minOffsetsPerTrigger", "-1", "a whole number from 1"),
    ("minBytesPerTrigger", "0", "a whole number from 1"),
    ("maxTriggerDelay", "soon", "a duration as Spark writes it"),
    ("maxTriggerDelay", "5 weeks", "a duration as Spark writes it"),
    ("maxBytesPerSecond", "10MB", "a whole number from 1"),
    ("kafkaConsumer.pollTimeoutMs", "0", "a whole number from 1 to 2147483647"),
    ("fetchOffset.numRetries", "-1", "a whole number from 0"),
    ("fetchOffset.retryIntervalMs", "1s", "a whole number from 0"),
    ("minPartitions", "-4", "a whole number from 1"),
    ("splitBytes", "8m", "a whole number from 1"),
    ("splitPartitions", "0", "true or false"),
    ("directReads", "sometimes", "auto, always, never"),
    ("startingOffsets", "newest", "earliest, latest"),
    ("startingOffsets", '{"orders": [1]}', "JSON such as"),
    ("startingOffsets", '{"orders": {"0": "5"}}', "JSON such as"),
    ("startingOffsets", '{"orders": {"0": -3}}', "JSON such as"),
    ("startingOffsets", "{", "JSON such as"),
    ("startingTimestamp", "yesterday", "ms since 1970"),
    ("startingTimestamp", str(2**63), "ms since 1970"),
    ("endingTimestamp", str(2**63), "ms since 1970"),
    ("endingOffsetsByTimestamp", f'{{"orders": {{"0": {2**63}}}}}', "ms since 1970"),
    ("endingOffsets", f'{{"orders": {{"0": {2**63}}}}}', "-1 is latest"),
    ("startingOffsetsByTimestamp", '{"orders": {"0": -1}}', "ms since 1970"),
    ("endingOffsets", "soon", "latest"),
    ("columns", "a,,b", "separated by commas"),
    ("columns", "a,a", "each once"),
    ("kafka.bootstrap.servers", "localhost", "host:port"),
    ("kafka.bootstrap.servers", "localhost:port", "host:port"),
    ("subscribe", "a,,b", "separated by commas"),
    ("bootstrap.servers", "localhost", "host:port"),
    ("subscribePattern", "a(", "a regular expression"),
    *(("assign", text, "JSON such as") for text in ('{"orders": 0}', "{}", "[0, 1]")),
    ("maxRecordsPerPartition", "0", "a whole number from 1"),
    ("maxRecordsPerBatch", "many", "a whole number from 1"),
    ("startingOffsetsByTimestampStrategy", "earliest", "error, latest"),
    ("endingTimestamp", "tomorrow", "ms since 1970"),
    ("endingOffsetsByTimestamp", '{"orders": {"x": 1}}', "ms since 1970"),
    ("streamEndingOffsets", "latest", "JSON such as"),
    ("streamEndingOffsets", '{"orders": {"0": -3}}', "JSON such as"),
    ("isolation.level", "dirty", "read_uncommitted"),
    ("kafka.isolation.level", "dirty", "read_uncommitted"),
    ("group.id", " ", "the name of a group"),
    ("kafka.group.id", " ", "the name of a group"),
    ("groupIdPrefix", " ", "the beginning of a group's name"),
    ("filter", "a >", "filter"),
    ("decode", "xml", "avro, json, protobuf"),
    ("decode.key", "xml", "avro, json, protobuf"),
    *((name, "x", "which is missing") for name in sorted({*names_of(DECODE_OPTIONS)} - {"decode", "decode.key"})),
]


@pytest.mark.parametrize(("option", "value", "expected"), WRONG)
def test_a_wrong_value_is_refused_by_name_value_and_form(option, value, expected):
    rivals = {"bootstrap.servers": "kafka.bootstrap.servers", "subscribePattern": "subscribe", "assign": "subscribe"}
    options = {name: text for name, text in BASE.items() if name != rivals.get(option)}
    with pytest.raises(UsageError) as caught:
        parse_options({**options, option: value})
    assert option in caught.value.message
    assert value in caught.value.message
    assert expected in caught.value.message


def test_every_option_has_a_wrong_value_here():
    assert {option for option, _, _ in WRONG} | {"transform", "transformSchema"} == set(names_of(READ_OPTIONS))


def test_exactly_one_option_must_select_the_topics():
    assert "exactly one of" in refusal(assign='{"orders": [0]}')
    with pytest.raises(UsageError, match="none of them"):
        parse_options({"kafka.bootstrap.servers": "h:1"})


def test_bootstrap_servers_are_required():
    with pytest.raises(UsageError, match=r"kafka\.bootstrap\.servers is required"):
        parse_options({"subscribe": "orders"})


def test_an_unknown_option_is_refused_with_the_nearest_names():
    assert "did you mean subscribe" in refusal(subscribes="x")
    assert "the options are" in refusal(xyz="1")


@pytest.mark.parametrize(
    "option",
    ["path", "topic", "kafka.auto.offset.reset"],
)
def test_an_unsupported_option_is_refused_with_the_reason(option):
    message = refusal(**{option: "1"})
    assert "is not supported: " in message
    assert option.lower() in message


def test_options_of_another_kind_of_query_are_refused():
    with pytest.raises(UsageError, match=r"startingOffsets='latest' is not possible"):
        parse_options({**BASE, "startingOffsets": "latest"}).batch_range()
    with pytest.raises(UsageError, match=r"endingOffsets='earliest' is not possible"):
        parse_options({**BASE, "endingOffsets": "earliest"}).batch_range()
    with pytest.raises(UsageError, match="a stream has no end"):
        parse_options({**BASE, "endingOffsets": "latest"}).stream_start()
    with pytest.raises(UsageError, match="latest"):
        parse_options({**BASE, "startingOffsets": '{"orders": {"0": -1}}'}).batch_range()


@pytest.mark.parametrize(
    "option",
    [
        "startingOffsets",
        "endingOffsets",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "streamEndingOffsets",
    ],
)
def test_positions_are_of_partitions_that_are_read(option):
    at = '{"orders": {"0": 5}, "ordres": {"1": 7}}'
    assert f"{option}={at!r} names ordres-1, which subscribe=orders does not read" in refusal(**{option: at})
    assert "names orders-1" in refusal_of(assign='{"orders": [0]}', **{option: '{"orders": {"0": 5, "1": 5}}'})


def test_the_end_of_a_stream_is_no_batch_s():
    good = parse_options({**BASE, "streamEndingOffsets": '{"orders": {"0": 5}}'})
    assert good.stream_start() is OffsetSpec.LATEST
    with pytest.raises(UsageError, match=r"streamEndingOffsets is for streams: give endingOffsets"):
        good.batch_range()


def test_contradicting_options_are_refused():
    assert "contradict" in refusal(columns="a", includeMetadata="true")
    assert "contradict" in refusal(columns="a", includeHeaders="true")
    assert "go together" in refusal(transform="x")
    assert "go together" in refusal(transformSchema="a int")
    assert "contradict" in refusal(transform="x", transformSchema="a int", byReference="true")


def test_the_transformation_is_not_part_of_the_text():
    assert "c2VjcmV0" not in repr(parse_options({**BASE, "transform": "c2VjcmV0", "transformSchema": "a int"}))


def test_the_group_id_is_read_with_and_without_prefix() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    assert parse_options(options).group_id is None
    assert parse_options({**options, "group.id": "g"}).group_id == "g"
    with_kafkas_name = parse_options({**options, "kafka.group.id": "g"})
    assert (with_kafkas_name.group_id, dict(with_kafkas_name.client_config)) == ("g", {})
    with pytest.raises(UsageError, match="differ"):
        parse_options({**options, "group.id": "g", "kafka.group.id": "h"})
    with pytest.raises(UsageError, match="name of a group"):
        parse_options({**options, "group.id": " "})


@pytest.mark.parametrize("name", ["minPartitions", "maxRecordsPerPartition", "splitBytes"])
def test_a_whole_partition_is_not_cut(name):
    with pytest.raises(UsageError, match=f"splitPartitions=false and {name} contradict each other"):
        parse_options({**BASE, "SplitPartitions": "false", name: "5"})
    assert parse_options({**BASE, "splitPartitions": "true", name: "5"}).split_partitions


def test_partitions_are_whole_unless_an_option_defines_the_splits():
    assert not parse_options(with_whole_partitions(BASE)).split_partitions
    for name, value in {"SPLITPARTITIONS": "true", "splitbytes": "5", "minPartitions": "2"}.items():
        assert with_whole_partitions({**BASE, name: value}) == {**BASE, name: value}
