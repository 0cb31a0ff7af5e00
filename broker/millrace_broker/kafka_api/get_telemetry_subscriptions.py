"""Kafka's GetTelemetrySubscriptions call (KIP-714), which asks for no metrics.

As in a Kafka broker without a metrics receiver, ApiVersions does not name the call, so that clients do not poll.
"""

from __future__ import annotations

import uuid
from typing import Final
from uuid import UUID

import google_crc32c

from millrace.kafka_protocol.calls.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.records import Compression
from millrace_broker.kafka_api.call import KafkaRequest

_INTERVAL_MS: Final = 300_000
"""Kafka's default of ``interval.ms``."""
_BYTES_MAX: Final = 2**20
"""Kafka's default of ``telemetry.max.bytes``."""
_COMPRESSIONS: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
_NO_METRICS: Final = "[]"
"""Java's text of an empty set of metrics."""


async def handle(message: GetTelemetrySubscriptionsRequest, request: KafkaRequest) -> GetTelemetrySubscriptionsResponse:
    """Answer without metrics. A client without an instance id gets a new one."""
    instance_id = uuid.uuid4() if message.client_instance_id == NIL_UUID else message.client_instance_id
    return GetTelemetrySubscriptionsResponse(
        throttle_time_ms=0,
        error_code=0,
        client_instance_id=instance_id,
        subscription_id=_subscription_id(instance_id),
        accepted_compression_types=tuple(map(int, _COMPRESSIONS)),
        push_interval_ms=_INTERVAL_MS,
        telemetry_max_bytes=_BYTES_MAX,
        delta_temporality=True,
        requested_metrics=(),
    )


def _subscription_id(instance_id: UUID) -> int:
    """Return Kafka's id of a subscription without metrics (``ClientMetricsManager.computeSubscriptionId``)."""
    checksum = google_crc32c.value(f"{_NO_METRICS}{_INTERVAL_MS}".encode())
    halves = instance_id.int >> 64 ^ instance_id.int & (2**64 - 1)  # with the next line Java's ``Uuid.hashCode``
    number = checksum ^ halves >> 32 ^ halves & (2**32 - 1)
    return int.from_bytes(number.to_bytes(4, "big"), "big", signed=True)


def refuse(
    message: GetTelemetrySubscriptionsRequest, version: int, error_code: int
) -> GetTelemetrySubscriptionsResponse:
    """Answer with the error."""
    return GetTelemetrySubscriptionsResponse(
        throttle_time_ms=0,
        error_code=error_code,
        client_instance_id=NIL_UUID,
        subscription_id=0,
        accepted_compression_types=(),
        push_interval_ms=0,
        telemetry_max_bytes=0,
        delta_temporality=False,
        requested_metrics=(),
    )
