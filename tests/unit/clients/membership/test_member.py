"""Tests of a member's look-ups of its topics."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.clients.membership.coordinator import Coordinator
from millrace.clients.membership.member import Member
from millrace.clients.signal import Signal
from millrace.clients.subscription import Subscription
from millrace.config.client import ConsumerConfig


def test_without_an_age_of_the_metadata_the_backoff_limits_the_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ConsumerConfig.of({"group.id": "g", "metadata.max.age.ms": 0, "retry.backoff.ms": 3_600_000})
    connections: Any = SimpleNamespace(config=config)
    monkeypatch.setattr(Member, "_run", lambda self: None)
    member = Member(connections, Coordinator(connections, "g"), Signal(), [])
    member.subscribe(Subscription.of("t"), ())
    assert member._watch_at > time.monotonic() + 3000
