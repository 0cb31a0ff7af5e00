"""Requests of a broker to the controller.

The requests are leader elections, reassignments, ISR changes, and the broker's controlled shutdown. Any broker accepts
elections and reassignments from clients. A broker that is not the controller forwards them to the controller, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace.config.broker import BrokerConfig
from millrace.errors import BrokerUnavailableError, ElectionNotNeededError, MillraceError, NotControllerError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.cluster.wire import alter_partition_message, partitions_of, read_errors, read_isr_answers
from millrace_broker.controller import Controller, Occasion, Steps
from millrace_broker.controller.event_loop import ControllerEventLoop
from millrace_broker.decisions import Answers, IsrChange, Leadership, ReplicaAssignment, TopicPartition
from millrace_broker.network import Peers

_MARGIN_S: Final = 5.0
"""Time that a forwarded request may take beyond its own time-out."""


class ControllerRequests:
    """Requests to the controller, which may be this broker itself. For the event loop's thread."""

    def __init__(self, config: BrokerConfig, peers: Peers, controlling: ControllerEventLoop) -> None:
        """``controlling`` is this broker's own controller."""
        self.controller_id = -1
        """The controller that sent the last UpdateMetadata; -1 before the first."""
        self._broker_id: Final = config.broker_id
        self._timeout_s: Final = config.controller_socket_timeout_ms / 1000
        self._peers: Final = peers
        self._controlling: Final = controlling

    async def elect_leaders(self, request: pb.ElectLeadersRequest) -> Answers:
        """Elect leaders; with all partitions requested, only those that need an election are in the answer."""
        if not self._controlling.is_active:
            return read_errors((await self._forward("ElectLeaders", request)).topics)
        occasion = Occasion.PREFERRED if request.election_type == pb.PREFERRED else Occasion.UNCLEAN
        wanted = None if request.all_partitions else partitions_of(request.topics)

        def steps(controller: Controller) -> Steps[Answers]:
            partitions = sorted(controller.context.assignments) if wanted is None else wanted
            return (yield from controller.elect_leaders(partitions, occasion))

        answers = await self._controlling.ask("elect leaders", steps)
        if wanted is None:
            return {each: error for each, error in answers.items() if not isinstance(error, ElectionNotNeededError)}
        return answers

    async def reassign(self, request: pb.AlterPartitionReassignmentsRequest) -> Answers:
        """Begin, change or cancel reassignments."""
        if not self._controlling.is_active:
            return read_errors((await self._forward("AlterPartitionReassignments", request)).topics)
        targets = {
            TopicPartition(topic.name, each.partition): None if each.is_cancelled else tuple(each.replicas)
            for topic in request.topics
            for each in topic.partitions
        }
        return await self._controlling.ask(
            "reassign",
            lambda controller: controller.reassign(targets, keeps_replication_factor=request.keeps_replication_factor),
        )

    async def reassignments(
        self, request: pb.ListPartitionReassignmentsRequest
    ) -> Mapping[TopicPartition, ReplicaAssignment]:
        """Return the reassignments in progress."""
        if not self._controlling.is_active:
            answer = await self._forward("ListPartitionReassignments", request)
            return {
                TopicPartition(topic.name, each.partition): ReplicaAssignment(
                    tuple(each.replicas), tuple(each.adding), tuple(each.removing)
                )
                for topic in answer.topics
                for each in topic.partitions
            }
        wanted = None if request.all_topics else set(partitions_of(request.topics))

        def steps(controller: Controller) -> Steps[dict[TopicPartition, ReplicaAssignment]]:
            yield from ()
            context = controller.context
            found = sorted(each for each in context.reassigning if wanted is None or each in wanted)
            return {each: context.assignments[each] for each in found if context.assignments[each].is_being_reassigned}

        return await self._controlling.ask("list reassignments", steps)

    async def alter_partitions(
        self, broker_epoch: int, changes: Mapping[TopicPartition, IsrChange]
    ) -> Mapping[TopicPartition, Leadership | MillraceError]:
        """Change the ISRs of partitions that this broker leads; returns the new leadership of each, or the error."""
        broker_id = self._broker_id
        if self._controlling.is_active:
            return await self._controlling.ask(
                "ask for ISRs", lambda each: each.alter_isrs(broker_id, broker_epoch, changes)
            )
        request = alter_partition_message(broker_id, broker_epoch, changes)
        return read_isr_answers(await self._call("AlterPartition", request))

    async def shut_down(self, broker_epoch: int) -> list[TopicPartition]:
        """Move the leaders from this broker, which stops; returns the partitions without another possible leader."""
        broker_id = self._broker_id
        if self._controlling.is_active:
            return await self._controlling.ask("shut down", lambda each: each.shut_down(broker_id, broker_epoch))
        request = pb.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        return partitions_of((await self._call("ControlledShutdown", request)).remaining)

    async def _forward(self, name: str, request: Any) -> Any:
        """Send a client's request to the controller. Raises ``NotControllerError`` if another broker forwarded it."""
        if request.is_forwarded:
            raise NotControllerError("the controller has changed: try again")
        forwarded = type(request)()
        forwarded.CopyFrom(request)
        forwarded.is_forwarded = True
        timeout_ms = getattr(request, "timeout_ms", 0)
        return await self._call(name, forwarded, timeout_s=timeout_ms / 1000 + _MARGIN_S if timeout_ms > 0 else None)

    async def _call(self, name: str, message: Any, *, timeout_s: float | None = None) -> Any:
        """Call the controller on another broker. Raises its error, ``BrokerUnavailableError``.

        The default time-out is that of the controller's own calls, because the controller may be dead.
        """
        if self.controller_id in (-1, self._broker_id):
            raise BrokerUnavailableError("no controller is known at the moment: try again")
        if timeout_s is None:
            timeout_s = self._timeout_s
        return await self._peers.call(self.controller_id, name, message, timeout_s=timeout_s)
