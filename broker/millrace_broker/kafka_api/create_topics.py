"""Kafka's CreateTopics call, which creates or refuses each topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from millrace.acls import AclOperation, ResourceType
from millrace.errors import InvalidConfigError, TopicAuthorizationError
from millrace.kafka_protocol.calls.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.api.common.access_rules import denied_items
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.create_topics import handle as create
from millrace_broker.api.describe_configs import topic_entries
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.configs import SOURCES
from millrace_broker.kafka_api.error_codes import code_of, text_of
from millrace_broker.kafka_api.topics import read_id

_WITH_QUOTA_ERROR: Final = 6
"""First version whose clients know the error THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(message: CreateTopicsRequest, request: KafkaRequest) -> CreateTopicsResponse:
    """Create the topics, which are opaque."""
    without_values = _without_values(message)
    wanted = pb.CreateTopicsRequest(
        topics=[_new_topic(topic) for topic in message.topics if topic.name not in without_values],
        timeout_ms=max(0, message.timeout_ms),
        validate_only=message.validate_only,
    )
    request.refuse_mutations(_WITH_QUOTA_ERROR)
    answer = await create(request.broker, wanted, request.context)
    # A topic that is named twice is refused once.
    results = {each.name: each for each in (*answer.results, *_refused(without_values, request))}
    return CreateTopicsResponse(throttle_time_ms=0, topics=tuple(_result(request, each) for each in results.values()))


def _without_values(message: CreateTopicsRequest) -> dict[str, list[str]]:
    """Return the options without a value, by topic. A topic that is named twice is refused for that instead."""
    times = Counter(topic.name for topic in message.topics)
    found = {}
    for topic in message.topics:
        options = [config.name for config in topic.configs if config.value is None]
        if options and times[topic.name] == 1:
            found[topic.name] = options
    return found


def _refused(
    without_values: Mapping[str, Sequence[str]], request: KafkaRequest
) -> Iterator[pb.CreateTopicsResponse.Result]:
    """Refuse the topics with options that have no value. A client without the right to a topic learns no more."""
    asked = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name) for name in without_values])
    denied = denied_items("CreateTopics", request.broker, asked, request.context)
    for name, options in without_values.items():
        text = f"{', '.join(options)} of topic {name}: no value: set one, or name no option"
        error = denied.get(name) or InvalidConfigError(text)
        yield pb.CreateTopicsResponse.Result(name=name, error=error_message(error))


def _new_topic(topic: CreatableTopic) -> pb.NewTopic:
    return pb.NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs={config.name: config.value or "" for config in topic.configs},
        assignment=[
            pb.PartitionReplicas(partition=each.partition_index, replicas=each.broker_ids) for each in topic.assignments
        ],
    )


def _result(request: KafkaRequest, result: pb.CreateTopicsResponse.Result) -> CreatableTopicResult:
    broker, access = request.broker, access_for(request.broker, request.context)
    created = broker.catalog.topics.get(result.name) if result.topic_id else None
    need = Need(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name)
    if created is not None and access is not None and not access.allows(need, is_logged=False):
        return CreatableTopicResult(
            name=result.name,
            topic_id=created.topic_id,
            error_code=code_of(result.error),
            error_message=text_of(result.error),
            topic_config_error_code=TopicAuthorizationError.code,
            configs=None,
        )
    configs = () if created is None else tuple(map(_config, topic_entries(broker, created.name)))
    return CreatableTopicResult(
        name=result.name,
        topic_id=read_id(result.topic_id),
        error_code=code_of(result.error),
        error_message=text_of(result.error),
        num_partitions=result.num_partitions or -1,
        replication_factor=-1 if created is None else len(created.partitions[0].replicas),
        configs=configs,
    )


def _config(entry: pb.ConfigEntry) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=False,
        config_source=SOURCES[entry.source],
        is_sensitive=entry.is_sensitive,
    )


def refuse(message: CreateTopicsRequest, version: int, error_code: int) -> CreateTopicsResponse:
    """Answer each topic with the error."""
    failed = tuple(
        CreatableTopicResult(name=topic.name, error_code=error_code, error_message=None) for topic in message.topics
    )
    return CreateTopicsResponse(throttle_time_ms=0, topics=failed)
