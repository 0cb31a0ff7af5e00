"""Tests of partitions as ``millrace topics describe`` and ``cluster describe`` show them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.cli.partition_views import views
from millrace.clients import Admin, TopicPartition

TOPIC: Any = SimpleNamespace(
    name="t", partitions=[SimpleNamespace(partition=0, leader=1, replicas=(1, 2, 3), isr=(1, 2))]
)


class Brokers:
    """Brokers 1 and 2, with or without a controller, and their answers."""

    def __init__(self, controller_id: int) -> None:
        self.controller_id = controller_id

    def describe_cluster(self) -> Any:
        return SimpleNamespace(controller_id=self.controller_id, brokers=[SimpleNamespace(node_id=n) for n in (1, 2)])

    def list_partition_reassignments(self) -> Any:
        assert self.controller_id in (1, 2), "no broker could answer"
        return {TopicPartition("t", 0): SimpleNamespace(adding=(3,), removing=())}


@pytest.mark.parametrize(("controller_id", "adding"), [(2, (3,)), (-1, ()), (3, ())])
def test_partitions_are_shown_without_a_controller_too(controller_id: int, adding: tuple[int, ...]) -> None:
    [view] = views(cast("Admin", Brokers(controller_id)), [TOPIC], None)
    assert (view.leader, view.isr, view.adding) == (1, (1, 2), adding)
