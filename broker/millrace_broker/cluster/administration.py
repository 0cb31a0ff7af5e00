"""Requests to the controller: elections, reassignments, and controlled shutdowns.

Any broker accepts such a request. A broker that is not the controller forwards it to the controller, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from millrace.errors import ElectionNotNeededError, NotControllerError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.cluster.wire import partitions_of, read_errors
from millrace_broker.controller import Controller, Occasion, Steps
from millrace_broker.controller.event_loop import ControllerEventLoop
from millrace_broker.decisions import Answers, ReplicaAssignment, TopicPartition

_MARGIN_S = 5.0


class ControllerAccess(Protocol):
    """A broker's access to the controller, which may be the broker itself."""

    @property
    def controlling(self) -> ControllerEventLoop:
        """This broker's own controller."""
        ...

    async def at_controller(self, name: str, message: Any, *, timeout_s: float | None = None) -> Any:
        """Call the controller on another broker."""
        ...


async def elect_leaders(member: ControllerAccess, request: pb.ElectLeadersRequest) -> Answers:
    """Elect leaders; with all partitions requested, only those that need an election are in the answer."""
    if not member.controlling.is_active:
        return read_errors((await _forward(member, "ElectLeaders", request)).topics)
    occasion = Occasion.PREFERRED if request.election_type == pb.PREFERRED else Occasion.UNCLEAN
    wanted = None if request.all_partitions else partitions_of(request.topics)

    def steps(controller: Controller) -> Steps[Answers]:
        partitions = sorted(controller.context.assignments) if wanted is None else wanted
        return (yield from controller.elect_leaders(partitions, occasion))

    answers = await member.controlling.ask("elect leaders", steps)
    if wanted is None:
        return {each: error for each, error in answers.items() if not isinstance(error, ElectionNotNeededError)}
    return answers


async def reassign(member: ControllerAccess, request: pb.AlterPartitionReassignmentsRequest) -> Answers:
    """Begin, change or cancel reassignments."""
    if not member.controlling.is_active:
        return read_errors((await _forward(member, "AlterPartitionReassignments", request)).topics)
    targets = {
        TopicPartition(topic.name, each.partition): None if each.is_cancelled else tuple(each.replicas)
        for topic in request.topics
        for each in topic.partitions
    }
    return await member.controlling.ask("reassign", lambda controller: controller.reassign(targets))


async def reassignments(
    member: ControllerAccess, request: pb.ListPartitionReassignmentsRequest
) -> Mapping[TopicPartition, ReplicaAssignment]:
    """Return the reassignments in progress."""
    if not member.controlling.is_active:
        answer = await _forward(member, "ListPartitionReassignments", request)
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

    return await member.controlling.ask("list reassignments", steps)


async def shut_down(member: ControllerAccess, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
    """Move the leaders from a broker that stops; returns the partitions without another possible leader."""
    if not member.controlling.is_active:
        request = pb.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        answer = await member.at_controller("ControlledShutdown", request)
        return partitions_of(answer.remaining)
    return await member.controlling.ask("shut down", lambda each: each.shut_down(broker_id, broker_epoch))


async def _forward(member: ControllerAccess, name: str, request: Any) -> Any:
    if request.is_forwarded:
        raise NotControllerError("the controller has changed: try again")
    forwarded = type(request)()
    forwarded.CopyFrom(request)
    forwarded.is_forwarded = True
    timeout_ms = getattr(request, "timeout_ms", 0)
    if timeout_ms > 0:
        return await member.at_controller(name, forwarded, timeout_s=timeout_ms / 1000 + _MARGIN_S)
    return await member.at_controller(name, forwarded)
