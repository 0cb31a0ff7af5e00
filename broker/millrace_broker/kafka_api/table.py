"""Table of Kafka's calls that this broker answers.

A call's versions are those of its messages, which are Kafka's own, unless the table names others.
"""

from __future__ import annotations

from typing import Final

from millrace.kafka_protocol.calls.api_versions import ApiVersion
from millrace.kafka_protocol.calls.table import LATEST_UNSTABLE, VERSIONS, ApiKey
from millrace_broker.kafka_api.call import KafkaCall
from millrace_broker.kafka_api.differences import UNANSWERED
from millrace_broker.kafka_api.state import KafkaState

_VERSION_MIN: Final = {ApiKey.SASL_HANDSHAKE: 1}
"""Lowest versions where Kafka's oldest is not answered: SASL without Kafka's framing."""
_ADVERTISED_FROM: Final = {ApiKey.PRODUCE: 0}
"""Lowest advertised versions that are not answered. librdkafka needs them to choose compression (KAFKA-18659)."""
_NOT_ADVERTISED: Final = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,)
"""Answered calls that ApiVersions does not name, because Java's clients would use them all the time."""


def kafka_calls(state: KafkaState) -> dict[int, KafkaCall]:
    """Return the calls of a broker by their API keys. They share its state."""
    calls = {key: KafkaCall(key, state, _versions(key)) for key in ApiKey if key not in UNANSWERED}
    state.api_versions = tuple(
        ApiVersion(api_key=key, min_version=_ADVERTISED_FROM.get(key, call.versions[0]), max_version=call.versions[-1])
        for key, call in sorted(calls.items())
        if key not in _NOT_ADVERTISED
    )
    return {int(key): call for key, call in calls.items()}


def _versions(key: ApiKey) -> range:
    versions = VERSIONS[key]
    # The newest version of InitProducerId is of KIP-939, which Kafka itself offers on request only.
    return range(_VERSION_MIN.get(key, versions.start), versions.stop - (key in LATEST_UNSTABLE))
