"""Requests that tools write into ZooKeeper nodes.

The requests are reassignments and preferred leader elections. Older Kafka tools write these requests into nodes,
because brokers did not accept such requests then. A node exists until its request is carried out as far as possible. So
a controller that is elected meanwhile continues with it.

Source: Kafka's ``KafkaController.processZkPartitionReassignment`` and ``processReplicaLeaderElection``.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any

from millrace.errors import ElectionNotNeededError, MillraceError
from millrace_broker.controller import Controller, Occasion
from millrace_broker.controller.store import ControllerStore, StoreCall
from millrace_broker.decisions import TopicPartition

_logger = logging.getLogger(__name__)

_Steps = Generator[Any, Any, None]


class ToolRequests:
    """The tools' requests to one controller. Each method is an event; run its steps to the end."""

    def __init__(self) -> None:
        self._moving: dict[TopicPartition, tuple[int, ...]] = {}
        """The reassignments of the node that have begun."""

    def forget(self) -> None:
        """Forget the requests, because this broker is no longer the controller."""
        self._moving = {}

    def has_moved(self, controller: Controller) -> bool:
        """Return whether ``reassignments`` should run, because a reassignment of the node is not in progress any
        more.
        """
        return controller.is_active and not self._moving.keys() <= controller.context.reassigning

    def reassignments(self, controller: Controller) -> _Steps:
        """Begin the reassignments of the node, and remove those that are done, impossible, or replaced by other
        targets.
        """
        if not controller.is_active:
            return
        asked: Mapping[TopicPartition, tuple[int, ...]] | None = yield StoreCall(ControllerStore.read_reassignments)
        if asked is None:
            self.forget()
            return
        new = {each: target for each, target in asked.items() if self._moving.get(each) != target}
        _log_failures("be moved", (yield from controller.reassign(new)))
        context = controller.context
        left = {
            each: target
            for each, target in asked.items()
            if each in context.reassigning and context.assignments[each].target == target
        }
        self._moving = left
        if left != asked or not left:
            yield StoreCall(partial(ControllerStore.write_reassignments, left=left))

    def elections(self, controller: Controller) -> _Steps:
        """Elect the leaders that the node requests, and delete the node."""
        if not controller.is_active:
            return
        asked: tuple[TopicPartition, ...] | None = yield StoreCall(ControllerStore.read_elections)
        if asked is not None:
            answers = yield from controller.elect_leaders(asked, Occasion.PREFERRED)
            needed = {each: why for each, why in answers.items() if not isinstance(why, ElectionNotNeededError)}
            _log_failures("be led by its preferred replica", needed)
            yield StoreCall(ControllerStore.drop_elections)


def _log_failures(what: str, answers: Mapping[TopicPartition, MillraceError | None]) -> None:
    for partition, error in answers.items():
        if error is not None:
            _logger.warning("the request of a tool failed, because %s cannot %s: %s", partition, what, error.message)
