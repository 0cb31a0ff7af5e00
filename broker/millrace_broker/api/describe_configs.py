"""Handler of DescribeConfigs for topics, groups and brokers.

An entry has the option's value and its source. For all brokers together (an empty name), only dynamic options are
listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.config.broker import TOPIC_DEFAULTS, BrokerConfig
from millrace.config.cluster import ZOOKEEPER_PREFIX
from millrace.config.dynamic import RATES
from millrace.config.group import GroupConfig
from millrace.config.topic import TopicConfig
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.configs import is_broker, is_group, text_of
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker

_DYNAMIC_TOPIC = "DYNAMIC_TOPIC_CONFIG"
_DYNAMIC_GROUP = "DYNAMIC_GROUP_CONFIG"
_DYNAMIC_BROKER = "DYNAMIC_BROKER_CONFIG"
_DYNAMIC_DEFAULT = "DYNAMIC_DEFAULT_BROKER_CONFIG"
_STATIC_BROKER = "STATIC_BROKER_CONFIG"
_DEFAULT = "DEFAULT_CONFIG"


async def handle(
    broker: Broker, request: pb.DescribeConfigsRequest, context: RequestContext
) -> pb.DescribeConfigsResponse:
    """Describe each resource, or report its error."""
    response = pb.DescribeConfigsResponse()
    for resource in request.resources:
        result = response.results.add(resource=resource)
        try:
            if resource.type == pb.TOPIC:
                await broker.partitions.find_topic(resource.name)
            result.entries.extend(_entries(broker, resource))
        except Exception as error:  # noqa: BLE001 - the resource's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response


def _entries(broker: Broker, resource: pb.ConfigResource) -> Iterator[pb.ConfigEntry]:
    if is_group(resource):
        return _group_entries(broker, resource.name)
    if not is_broker(broker, resource):
        return _topic_entries(broker, resource.name)
    return _broker_entries(broker) if resource.name else _entries_of_all(broker)


def _group_entries(broker: Broker, group_id: str) -> Iterator[pb.ConfigEntry]:
    overrides = broker.group_configs.overrides(group_id)
    defaults = GroupConfig.load({}).options()
    for option, value in broker.group_configs.get(group_id).options().items():
        if option in overrides:
            source = _DYNAMIC_GROUP
        else:
            source = _DEFAULT if value == defaults[option] else _STATIC_BROKER
        field = GroupConfig.model_fields[option.replace(".", "_")]
        yield pb.ConfigEntry(name=option, value=text_of(value), source=source, documentation=field.description or "")


def _topic_entries(broker: Broker, name: str) -> Iterator[pb.ConfigEntry]:
    topic = broker.partitions.topic(name)
    defaults = TopicConfig.load({}).options()
    for option, value in topic.config.options().items():
        if option in topic.overrides:
            source = _DYNAMIC_TOPIC
        else:
            broker_name = TOPIC_DEFAULTS[option][0][0] if option in TOPIC_DEFAULTS else ""
            source = _source(broker, broker_name, is_default=value == defaults[option])
        field = TopicConfig.model_fields[option.replace(".", "_")]
        yield pb.ConfigEntry(name=option, value=text_of(value), source=source, documentation=field.description or "")


def _broker_entries(broker: Broker) -> Iterator[pb.ConfigEntry]:
    zookeeper = broker.config.zookeeper_config
    own = {} if zookeeper is None else {"zookeeper.connect": zookeeper.zookeeper_connect}
    defaults = {name: value for name, value in BrokerConfig.load(own).options().items() if name not in own}
    for option, value in broker.config.options().items():
        is_sensitive = option.endswith(".password")
        yield pb.ConfigEntry(
            name=option,
            value="" if is_sensitive else text_of(value),
            source=_source(broker, option, is_default=value == defaults.get(option)),
            is_sensitive=is_sensitive,
            documentation=_documentation(option),
        )
    configs = broker.broker_configs
    for option, text in {**configs.for_all, **configs.for_this}.items():
        if option in RATES:
            source = _source(broker, option, is_default=False)
            yield pb.ConfigEntry(name=option, value=text, source=source, documentation=_documentation(option))


def _entries_of_all(broker: Broker) -> Iterator[pb.ConfigEntry]:
    """Yield the dynamic options of all brokers."""
    for option, text in sorted(broker.broker_configs.for_all.items()):
        yield pb.ConfigEntry(name=option, value=text, source=_DYNAMIC_DEFAULT, documentation=_documentation(option))


def _source(broker: Broker, option: str, *, is_default: bool) -> str:
    """Return the source of a broker option's value."""
    if option in broker.broker_configs.for_this:
        return _DYNAMIC_BROKER
    if option in broker.broker_configs.for_all:
        return _DYNAMIC_DEFAULT
    return _DEFAULT if is_default else _STATIC_BROKER


def _documentation(option: str) -> str:
    field = BrokerConfig.model_fields.get(option.replace(".", "_"))
    if field is not None:
        return field.description or ""
    if option in RATES:
        return "Most bytes a second that are exchanged with throttled replicas."
    return "The way to ZooKeeper." if option.startswith(ZOOKEEPER_PREFIX) else "Default of topics."
