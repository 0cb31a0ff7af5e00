"""Tests of Kafka requests about options that Kafka refuses or interprets specially."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.errors import InvalidRequestError
from millrace.kafka_protocol.calls import alter_configs, describe_configs, incremental_alter_configs
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import create_topic
from .kafka_wire import KafkaWire


@pytest.fixture
def wire(module_broker: EmbeddedBroker, topic: str) -> Iterator[KafkaWire]:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as opened:
        yield opened


def test_an_option_that_a_request_sets_twice_is_not_changed(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str
) -> None:
    options = tuple(alter_configs.AlterableConfig(name="retention.ms", value=value) for value in ("1000", "2000"))
    resource = alter_configs.AlterConfigsResource(resource_type=2, resource_name=topic, configs=options)
    request = alter_configs.AlterConfigsRequest(resources=(resource,), validate_only=False)
    assert wire.call(request, 2).responses[0].error_code == InvalidRequestError.code
    assert not module_broker.server.broker.catalog.topics[topic].overrides


def test_a_resource_that_a_request_names_twice_is_not_changed(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str
) -> None:
    option = alter_configs.AlterableConfig(name="retention.ms", value="1000")
    resource = alter_configs.AlterConfigsResource(resource_type=2, resource_name=topic, configs=(option,))
    request = alter_configs.AlterConfigsRequest(resources=(resource, resource), validate_only=False)
    codes = [each.error_code for each in wire.call(request, 2).responses]
    assert codes == [InvalidRequestError.code] * 2
    assert not module_broker.server.broker.catalog.topics[topic].overrides


@pytest.mark.parametrize(("kind", "name"), [(2, None), (4, "0"), (4, ""), (16, "m"), (32, "g")])
def test_the_deletion_of_an_option_that_no_resource_has_changes_nothing(
    wire: KafkaWire, topic: str, kind: int, name: str | None
) -> None:
    option = incremental_alter_configs.AlterableConfig(name="no.such.option", config_operation=1, value=None)
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind, resource_name=topic if name is None else name, configs=(option,)
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    assert wire.call(request, 1).responses[0].error_code == 0


def test_a_group_without_a_name_has_no_options(wire: KafkaWire) -> None:
    described = describe_configs.DescribeConfigsResource(resource_type=32, resource_name="", configuration_keys=None)
    answer = wire.call(describe_configs.DescribeConfigsRequest(resources=(described,)), 4)
    assert answer.results[0].error_code == InvalidRequestError.code
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=32, resource_name="", configs=())
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    assert wire.call(request, 1).responses[0].error_code == InvalidRequestError.code


def test_all_options_are_described_if_none_is_named(wire: KafkaWire, topic: str) -> None:
    counts = []
    for keys in (None, (), ("retention.ms",)):
        resource = describe_configs.DescribeConfigsResource(
            resource_type=2, resource_name=topic, configuration_keys=keys
        )
        (answer,) = wire.call(describe_configs.DescribeConfigsRequest(resources=(resource,)), 4).results
        counts.append(len(answer.configs))
    assert counts[0] == counts[1] > counts[2] == 1


def test_an_option_of_a_broker_that_is_not_set_is_described_by_null(wire: KafkaWire) -> None:
    names = ("ssl.keystore.location", "log.cleanup.policy", "num.partitions")
    resource = describe_configs.DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=names)
    (answer,) = wire.call(
        describe_configs.DescribeConfigsRequest(resources=(resource,), include_synonyms=True), 4
    ).results
    values = {each.name: (each.value, [synonym.value for synonym in each.synonyms]) for each in answer.configs}
    assert values["ssl.keystore.location"] == (None, [None])
    assert values["num.partitions"] == ("1", ["1"])
    assert values["log.cleanup.policy"] == ("delete", ["delete"])
