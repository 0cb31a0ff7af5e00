"""Tests of the begin of a membership while brokers do not answer."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from millrace.clients.consuming.assignment import Assignment
from millrace.clients.consuming.group import ConsumerGroup
from millrace.clients.consuming.interceptors import ConsumerInterceptors
from millrace.clients.signal import Signal
from millrace.clients.subscription import Subscription
from millrace.config.client import ConsumerConfig
from millrace.errors import (
    BrokerUnavailableError,
    MillraceError,
    RequestTimedOutError,
    TopicAuthorizationError,
    WakeupError,
)


class Brokers:
    """Brokers that do not answer; ``error`` is the error of each call."""

    def __init__(self, error: MillraceError) -> None:
        self.error = error
        self.timeouts_ms: list[int] = []
        self.config: ConsumerConfig

    def call(self, method: Any, request: Any, timeout_ms: int) -> Any:
        self.timeouts_ms.append(timeout_ms)
        raise self.error


def _group(brokers: Brokers, **limits_ms: int) -> ConsumerGroup:
    config = ConsumerConfig.of(
        {"bootstrap.servers": "a:1", "group.id": "g", **{name.replace("_", "."): ms for name, ms in limits_ms.items()}}
    )
    brokers.config = config
    connections: Any = brokers
    schemas: Any = None
    return ConsumerGroup(config, connections, Assignment(config, schemas), Signal(), ConsumerInterceptors([], {}))


@pytest.mark.parametrize("topics", ["t", re.compile("t.*")])
@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), RequestTimedOutError("silent")])
def test_a_poll_waits_for_topics_until_its_deadline_and_a_later_one_asks_again(
    error: MillraceError, topics: Any
) -> None:
    brokers = Brokers(error)
    group = _group(brokers)
    group.subscribe(Subscription.of(topics), None)
    now = time.monotonic()
    for left_s in (0, 3600):
        group.poll(now + left_s)
    assert brokers.timeouts_ms[0] == 1000
    assert 3_000_000 < brokers.timeouts_ms[1] <= 3_600_000


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (BrokerUnavailableError("away"), {"socket_connection_setup_timeout_ms": 1}),
        (RequestTimedOutError("silent"), {"default_api_timeout_ms": 1}),
        (TopicAuthorizationError("denied"), {}),
        (WakeupError("woken"), {}),
    ],
)
def test_a_poll_raises_the_error_of_topics_that_are_not_found_in_time(error: MillraceError, limit: Any) -> None:
    group = _group(Brokers(error), **limit)
    group.subscribe(Subscription.of("t"), None)
    with pytest.raises(type(error)):
        group.poll(time.monotonic())
    with pytest.raises(type(error)):
        group.poll(time.monotonic())
