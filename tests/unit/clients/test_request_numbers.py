"""Tests of numbers that no request can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.clients import Admin, TopicPartition
from millrace.clients.request_numbers import numbers_checked
from millrace.errors import UsageError

FAR = TopicPartition("t", 2**40)


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.create_topic("t", partitions=2**40),
        lambda admin: admin.create_topic("t", replication_factor=2**40),
        lambda admin: admin.create_topic("t", assignment={0: [2**40]}),
        lambda admin: admin.create_partitions("t", -(2**40)),
        lambda admin: admin.elect_leaders([FAR]),
        lambda admin: admin.alter_partition_reassignments({FAR: [1]}),
        lambda admin: admin.list_partition_reassignments([FAR]),
        lambda admin: admin.list_transactions(producer_ids=[2**64]),
        lambda admin: admin.list_transactions(duration_ms_min=2**64),
        lambda admin: admin.describe_producers([FAR]),
        lambda admin: admin.write_abort_marker(("t", 0), producer_id=2**64, producer_epoch=0, coordinator_epoch=0),
        lambda admin: admin.alter_group_offsets("g", {FAR: 1}),
    ],
)
def test_a_number_outside_of_its_field_is_refused_before_a_call(call: Callable[[Admin], Any]) -> None:
    with Admin("127.0.0.1:1") as admin, pytest.raises(UsageError, match="too large or too small"):
        call(admin)


def test_other_errors_of_values_pass() -> None:
    with pytest.raises(ValueError, match="no schema"), numbers_checked():
        raise ValueError("no schema")
