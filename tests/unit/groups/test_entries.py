"""Tests of groups whose protocol changes while a call waits."""

from __future__ import annotations

import pytest

from millrace.errors import CoordinatorNotAvailableError
from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup
from millrace_broker.groups.entries import GroupEntry

from .world import SETTINGS


def test_a_call_of_the_former_protocol_is_to_be_tried_again() -> None:
    classic, consumer = ClassicGroup("g", SETTINGS), ConsumerGroup(group_id="g")
    assert GroupEntry(classic).classic is classic
    assert GroupEntry(consumer).consumer is consumer
    with pytest.raises(CoordinatorNotAvailableError, match="group g has become a classic group: retry"):
        _ = GroupEntry(classic).consumer
    with pytest.raises(CoordinatorNotAvailableError, match="group g has become a consumer group: retry"):
        _ = GroupEntry(consumer).classic
