"""Kafka's DescribeConfigs call.

The call returns options of topics, brokers and groups, with their sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.kafka_protocol.calls.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.describe_configs import handle as describe
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.configs import SOURCES, is_read_only, resource, type_of
from millrace_broker.kafka_api.error_codes import code_of, text_of
from millrace_broker.kafka_api.hash_order import capacity_of, in_hash_order

_EMPTY_IN_KAFKA: Final = frozenset(("authorizer.class.name", "log.cleanup.policy", "ssl.cipher.suites"))
"""Broker options that Kafka may describe by an empty text."""


async def handle(message: DescribeConfigsRequest, request: KafkaRequest) -> DescribeConfigsResponse:
    """Describe each resource, all of its options or those that are named."""
    wanted = pb.DescribeConfigsRequest(
        resources=[resource(each.resource_type, each.resource_name) for each in message.resources]
    )
    answer = await describe(request.broker, wanted, request.context)
    return DescribeConfigsResponse(
        throttle_time_ms=0,
        results=tuple(
            _result(asked, found, message) for asked, found in zip(message.resources, answer.results, strict=True)
        ),
    )


def _result(
    asked: DescribeConfigsResource, found: pb.DescribeConfigsResponse.Result, message: DescribeConfigsRequest
) -> DescribeConfigsResult:
    names = asked.configuration_keys
    entries = found.entries if asked.resource_type != pb.TOPIC else _in_order(found.entries)
    return DescribeConfigsResult(
        error_code=code_of(found.error),
        error_message=text_of(found.error, ""),
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=tuple(
            _option(asked.resource_type, entry, message) for entry in entries if not names or entry.name in names
        ),
    )


def _in_order(entries: Sequence[pb.ConfigEntry]) -> list[pb.ConfigEntry]:
    return in_hash_order(entries, name=lambda entry: entry.name, capacity=capacity_of(len(entries)))


def _option(kind: int, entry: pb.ConfigEntry, message: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = tuple(
        DescribeConfigsSynonym(
            name=each.name, value=_value(kind, entry, each.value), source=SOURCES.get(each.source, 0)
        )
        for each in entry.synonyms
    )
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=_value(kind, entry, entry.value),
        read_only=is_read_only(kind, entry.name),
        config_source=SOURCES.get(entry.source, 0),
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms if message.include_synonyms else (),
        config_type=type_of(kind, entry.name),
        documentation=entry.documentation if message.include_documentation else None,
    )


def _value(kind: int, entry: pb.ConfigEntry, text: str) -> str | None:
    """Return a value as Kafka answers it: null for a secret, and for a broker's option that is not set."""
    is_unset = not text and kind == pb.BROKER and entry.name not in _EMPTY_IN_KAFKA
    return None if entry.is_sensitive or is_unset else text


def refuse(message: DescribeConfigsRequest, version: int, error_code: int) -> DescribeConfigsResponse:
    """Answer each resource with the error."""
    return DescribeConfigsResponse(
        throttle_time_ms=0,
        results=tuple(
            DescribeConfigsResult(
                error_code=error_code,
                error_message=None,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=(),
            )
            for each in message.resources
        ),
    )
