"""Tests of GetTelemetrySubscriptions: no client sends metrics."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from millrace.kafka_protocol.calls.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from millrace.kafka_protocol.fields import NIL_UUID
from millrace_broker.kafka_api import get_telemetry_subscriptions

UNUSED: Any = None


def answer_to(instance_id: UUID) -> GetTelemetrySubscriptionsResponse:
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    answer = asyncio.run(get_telemetry_subscriptions.handle(request, UNUSED))
    return GetTelemetrySubscriptionsResponse.decode(answer.encode(0), 0)


def test_a_client_is_asked_for_no_metrics() -> None:
    answer = answer_to(UUID(int=7))
    assert (answer.error_code, answer.requested_metrics, answer.client_instance_id) == (0, (), UUID(int=7))
    assert answer.accepted_compression_types == (4, 3, 1, 2)  # zstd, lz4, gzip, snappy, as in Kafka
    assert (answer.push_interval_ms, answer.telemetry_max_bytes, answer.delta_temporality) == (300_000, 2**20, True)


def test_a_client_without_an_instance_id_gets_a_new_one() -> None:
    first, second = answer_to(NIL_UUID), answer_to(NIL_UUID)
    assert len({NIL_UUID, first.client_instance_id, second.client_instance_id}) == 3


@pytest.mark.parametrize(
    ("instance_id", "subscription_id"),
    [
        (UUID(int=7), -725_132_327),
        (UUID("f0000000-0000-0001-0000-0002000000ff"), 617_044_770),
    ],
)
def test_a_subscription_without_metrics_has_kafkas_id(instance_id: UUID, subscription_id: int) -> None:
    """The numbers are of Java: the CRC-32C of ``[]300000``, combined with the id's hash."""
    assert answer_to(instance_id).subscription_id == subscription_id
