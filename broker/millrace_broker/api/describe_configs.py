"""Handler of DescribeConfigs for topics, groups, client metrics, brokers and their loggers.

An entry has the option's value and its source. Its synonyms are the values at all sources. For all brokers together (an
empty name), only dynamic options are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from millrace.config.base import field_name
from millrace.config.broker import BrokerConfig
from millrace.config.client_metrics import ClientMetricsConfig
from millrace.config.cluster import ZOOKEEPER_PREFIX
from millrace.config.dynamic import RATES
from millrace.config.group import BROKER_DEFAULTS as GROUP_DEFAULTS
from millrace.config.group import GroupConfig
from millrace.config.listener_options import shared_name
from millrace.config.topic import TopicConfig
from millrace.config.topic_defaults import TOPIC_DEFAULTS
from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.configs import CLIENT_METRICS, check_addressee, is_broker, is_group, text_of
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.config.log_levels import log_levels
from millrace_broker.metadata import topic_rules
from millrace_broker.runtime.turns import Turns

_DYNAMIC_TOPIC = "DYNAMIC_TOPIC_CONFIG"
_DYNAMIC_CLIENT_METRICS = "DYNAMIC_CLIENT_METRICS_CONFIG"
_DYNAMIC_GROUP = "DYNAMIC_GROUP_CONFIG"
_DYNAMIC_BROKER_LOGGER = "DYNAMIC_BROKER_LOGGER_CONFIG"
_DYNAMIC_BROKER = "DYNAMIC_BROKER_CONFIG"
_DYNAMIC_DEFAULT = "DYNAMIC_DEFAULT_BROKER_CONFIG"
_STATIC_BROKER = "STATIC_BROKER_CONFIG"
_DEFAULT = "DEFAULT_CONFIG"


@authorized("DescribeConfigs")
async def handle(
    broker: Broker, request: pb.DescribeConfigsRequest, context: RequestContext
) -> pb.DescribeConfigsResponse:
    """Describe each resource, or report its error."""
    return await describe(broker, request)


async def describe(broker: Broker, request: pb.DescribeConfigsRequest) -> pb.DescribeConfigsResponse:
    """Describe each resource for a caller that has authorized the client."""
    response, turns = pb.DescribeConfigsResponse(), Turns()
    for resource in request.resources:
        await turns.next()
        result = response.results.add(resource=resource)
        try:
            result.entries.extend(await entries_of(broker, resource))
        except Exception as error:  # noqa: BLE001 - the resource's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response


async def entries_of(broker: Broker, resource: pb.ConfigResource) -> Iterable[pb.ConfigEntry]:
    """Return the options of a resource. Raises ``MillraceError``."""
    if resource.type == CLIENT_METRICS:
        return _client_metrics_entries(
            await broker.executors.administer(broker.client_metrics.overrides, resource.name)
        )
    if resource.type == pb.TOPIC:
        topic_rules.check_topic_name(resource.name)
        await broker.partitions.find_topic(resource.name)
    if is_group(resource):
        return _group_entries(broker, resource.name)
    if resource.type == pb.BROKER_LOGGER:
        check_addressee(broker, resource)
        return _logger_entries()
    if not is_broker(broker, resource):
        return topic_entries(broker, resource.name)
    return _broker_entries(broker) if resource.name else _entries_of_all(broker)


def _client_metrics_entries(overrides: Mapping[str, str]) -> Iterator[pb.ConfigEntry]:
    defaults = ClientMetricsConfig.load({}).options()
    for option, value in ClientMetricsConfig.load(overrides).options().items():
        own = [_synonym(option, value, _DYNAMIC_CLIENT_METRICS)] if option in overrides else []
        synonyms = [*own, _synonym(option, defaults[option], _DEFAULT)]
        field = ClientMetricsConfig.model_fields[field_name(option)]
        yield _entry(option, value, synonyms, field.description)


def _group_entries(broker: Broker, group_id: str) -> Iterator[pb.ConfigEntry]:
    if not group_id:
        raise InvalidRequestError("the group id is empty: name a group")
    overrides, of_broker = broker.group_configs.overrides(group_id), _BrokerLayers.of(broker)
    defaults = GroupConfig.load({}).options()
    for option, value in broker.group_configs.get(group_id).options().items():
        own = [_synonym(option, value, _DYNAMIC_GROUP)] if option in overrides else []
        if option in GROUP_DEFAULTS:
            weaker = of_broker.synonyms(GROUP_DEFAULTS[option])
        else:
            weaker = [_synonym(option, defaults[option], _DEFAULT)]
        yield _entry(option, value, own + weaker, GroupConfig.model_fields[field_name(option)].description)


def _logger_entries() -> Iterator[pb.ConfigEntry]:
    for name, level in log_levels().items():
        yield pb.ConfigEntry(
            name=name,
            value=level,
            source=_DYNAMIC_BROKER_LOGGER,
            synonyms=[pb.ConfigSynonym(name=name, value=level, source=_DYNAMIC_BROKER_LOGGER)],
        )


def topic_entries(broker: Broker, name: str) -> Iterator[pb.ConfigEntry]:
    """Yield the options of a topic. Raises ``UnknownTopicOrPartitionError``."""
    topic, of_broker = broker.partitions.topic(name), _BrokerLayers.of(broker)
    defaults, of_topics = TopicConfig.load({}).options(), broker.catalog.defaults.options()
    for option, value in topic.config.options().items():
        if option in TOPIC_DEFAULTS:
            broker_option = TOPIC_DEFAULTS[option][0][0]
            weaker = of_broker.synonyms(broker_option)
            if option not in topic.overrides and value != of_topics[option]:
                weaker = weaker[-1:]  # the broker's value contradicts the topic, which ignores it
        else:
            weaker = [_synonym(option, defaults[option], _DEFAULT)]
        own = [_synonym(option, value, _DYNAMIC_TOPIC)] if option in topic.overrides else []
        yield _entry(option, value, own + weaker, TopicConfig.model_fields[field_name(option)].description)


def _broker_entries(broker: Broker) -> Iterator[pb.ConfigEntry]:
    layers = _BrokerLayers.of(broker)
    for option, value in broker.config.options().items():
        yield _entry(option, value, layers.synonyms(option), _documentation(option))
    for option in RATES:
        if synonyms := layers.synonyms(option):
            yield _entry(option, synonyms[0].value, synonyms, _documentation(option))


def _entries_of_all(broker: Broker) -> Iterator[pb.ConfigEntry]:
    """Yield the dynamic options of all brokers."""
    for option, text in sorted(broker.broker_configs.for_all.items()):
        yield _entry(option, text, [_synonym(option, text, _DYNAMIC_DEFAULT)], _documentation(option))


class _BrokerLayers(NamedTuple):
    """Values of broker options at each source.

    The sources are in the order of precedence, and the defaults come last.
    """

    dynamic: tuple[tuple[str, Mapping[str, Any]], ...]
    file: Mapping[str, Any]
    given: frozenset[str]
    """Options that the file sets, also those that it sets to their defaults."""
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, broker: Broker) -> _BrokerLayers:
        configs = broker.broker_configs
        zookeeper = configs.file.zookeeper_config
        required = {} if zookeeper is None else {"zookeeper.connect": zookeeper.zookeeper_connect}
        return cls(
            dynamic=((_DYNAMIC_BROKER, configs.for_this), (_DYNAMIC_DEFAULT, configs.for_all)),
            file=configs.file.options(),
            given=configs.file.given_options,
            defaults={
                name: value for name, value in BrokerConfig.load(required).options().items() if name not in required
            },
        )

    def synonyms(self, option: str) -> list[pb.ConfigSynonym]:
        found = [_synonym(option, values[option], source) for source, values in self.dynamic if option in values]
        if option in self.given or (option in self.file and self.file[option] != self.defaults.get(option)):
            found.append(_synonym(option, self.file[option], _STATIC_BROKER))
        if option in self.defaults:
            found.append(_synonym(option, self.defaults[option], _DEFAULT))
        shared = shared_name(option)
        return found if shared == option else found + self.synonyms(shared)


def _synonym(option: str, value: object, source: str) -> pb.ConfigSynonym:
    return pb.ConfigSynonym(name=option, value="" if BrokerConfig.is_secret(option) else text_of(value), source=source)


def _entry(
    option: str, value: object, synonyms: Sequence[pb.ConfigSynonym], documentation: str | None
) -> pb.ConfigEntry:
    return pb.ConfigEntry(
        name=option,
        value="" if BrokerConfig.is_secret(option) else text_of(value),
        source=synonyms[0].source,
        is_sensitive=BrokerConfig.is_secret(option),
        documentation=documentation or "",
        synonyms=synonyms,
    )


def _documentation(option: str) -> str:
    field = BrokerConfig.model_fields.get(field_name(shared_name(option)))
    if field is not None:
        return field.description or ""
    if option in RATES:
        return RATES[option]
    return "Connection to ZooKeeper." if option.startswith(ZOOKEEPER_PREFIX) else "Default of topics."
