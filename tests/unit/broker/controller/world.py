"""ZooKeeper's content, a controller and brokers, all in memory.

Brokers carry out the controller's requests when a test lets them.
"""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import Generator
from dataclasses import replace
from typing import Any, TypeVar

from millrace.errors import MillraceError
from millrace_broker.controller import Controller, ControllerMovedError, Effect, LiveBroker
from millrace_broker.controller.effects import (
    BecomeController,
    CreateLeadership,
    DropDeletions,
    ForgetTopic,
    ReadBrokers,
    ReadDeletions,
    ReadLeadership,
    ReadTopics,
    ReadUncleanTopics,
    SendRequests,
    TopicsFound,
    WriteAssignment,
    WriteLeadership,
)
from millrace_broker.decisions import (
    BrokerRequest,
    IsrChange,
    LeaderAndIsrRequest,
    LeaderAndIsrState,
    Leadership,
    ReplicaAssignment,
    StopReplicaRequest,
    TopicPartition,
    UpdateMetadataRequest,
)

T = TypeVar("T")


def tp(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


class World:
    """A controller that crashes after ``crash_after`` effects.

    The leadership of the partitions in ``conflicts`` changes before the next write.
    """

    def __init__(self, *brokers: int) -> None:
        self.controller_epoch = 0
        self.controller: Controller | None = None
        self.transaction = 100
        self.brokers: dict[int, LiveBroker] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.assignments: dict[TopicPartition, ReplicaAssignment] = {}
        self.leadership: dict[TopicPartition, Leadership] = {}
        self.deletions: set[str] = set()
        self.unclean: set[str] = set()
        self.queues: dict[int, deque[BrokerRequest]] = defaultdict(deque)
        self.sent: list[tuple[int, BrokerRequest]] = []
        self.effects: list[Effect] = []
        self.crash_after: int | None = None
        self.conflicts: set[TopicPartition] = set()
        self.leaders_told: dict[tuple[TopicPartition, int], int] = {}
        self.told: dict[int, dict[TopicPartition, LeaderAndIsrState]] = defaultdict(dict)
        self.known_controller: dict[int, int] = defaultdict(int)
        self.has_files: set[tuple[int, TopicPartition]] = set()
        self.refuses_to_delete: set[int] = set()
        for broker_id in brokers:
            self.register(broker_id)

    # Outside: brokers and administrators' tools.

    def register(self, broker_id: int) -> None:
        self.transaction += 1
        self.brokers[broker_id] = LiveBroker(self.transaction)
        self.queues[broker_id].clear()
        self.told[broker_id] = {}

    def start(self, broker_id: int) -> None:
        self.register(broker_id)
        self.event("brokers_changed")

    def stop(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            del self.brokers[broker_id]
        self.event("brokers_changed")

    def create(self, topic: str, *replicas: tuple[int, ...]) -> None:
        for number, each in enumerate(replicas):
            self.assignments.setdefault(TopicPartition(topic, number), ReplicaAssignment(each))
        self.topic_ids.setdefault(topic, uuid.uuid4())
        self.event("topics_changed")

    def delete(self, topic: str) -> None:
        self.deletions.add(topic)
        self.event("deletions_changed")

    def elect(self, broker_id: int = 1) -> None:
        """Elect a new controller, which has no state yet."""
        self.controller = Controller(broker_id)
        self.event("elect")

    def event(self, name: str, *arguments: Any) -> Any:
        """Let the controller handle one event, if there is one."""
        if self.controller is None:
            return None
        return self.run(getattr(self.controller, name)(*arguments))

    def run(self, steps: Generator[Effect, Any, T]) -> T | None:
        """Carry out the effects of a handler. Return None if the controller crashes meanwhile."""
        result: Any = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration as stop:
                value: T = stop.value
                return value
            if self.crash_after is not None:
                if self.crash_after == 0:
                    self.controller, self.crash_after = None, None
                    return None
                self.crash_after -= 1
            self.effects.append(effect)
            result = self._carry_out(effect)

    # ZooKeeper.

    def _carry_out(self, effect: Effect) -> Any:
        match effect:
            case BecomeController():
                self.controller_epoch += 1
                return self.controller_epoch
            case ReadBrokers():
                return dict(self.brokers)
            case ReadTopics():
                return TopicsFound(dict(self.topic_ids), dict(self.assignments))
            case ReadDeletions():
                return set(self.deletions)
            case ReadUncleanTopics(topics):
                return self.unclean & set(topics)
            case ReadLeadership(partitions):
                return {each: self.leadership[each] for each in partitions if each in self.leadership}
            case SendRequests(requests):
                for broker_id, each in requests.items():
                    self.queues[broker_id].extend(each)
                    self.sent += [(broker_id, request) for request in each]
                return None
            case _:
                result = self._write(effect)
                self._check_in_sync()
                return result

    def _check_in_sync(self) -> None:
        """Check that every broker in an ISR is a replica, because a new controller may take over at any moment."""
        for partition, value in self.leadership.items():
            assert set(value.isr) <= set(self.assignments[partition].replicas), partition

    def _write(self, effect: Effect) -> Any:
        controller = self.controller
        if controller is None or controller.context.epoch != self.controller_epoch:
            raise ControllerMovedError("another one is the controller")
        match effect:
            case CreateLeadership(leadership):
                created = {each: value for each, value in leadership.items() if each not in self.leadership}
                self.leadership.update({each: replace(value, partition_epoch=0) for each, value in created.items()})
                return dict.fromkeys(created, 0)
            case WriteLeadership(leadership):
                return self._write_leadership(dict(leadership))
            case WriteAssignment(topic, topic_id, assignments):
                assert topic_id == self.topic_ids[topic]
                for number, assignment in assignments.items():
                    self.assignments[TopicPartition(topic, number)] = assignment
            case DropDeletions(topics):
                self.deletions -= set(topics)
            case ForgetTopic(topic):
                self.deletions.discard(topic)
                self.topic_ids.pop(topic, None)
                for partition in [each for each in self.assignments if each.topic == topic]:
                    del self.assignments[partition]
                    self.leadership.pop(partition, None)
            case _:
                raise AssertionError(f"unknown effect {effect}")
        return None

    def _write_leadership(self, leadership: dict[TopicPartition, Leadership]) -> dict[TopicPartition, int]:
        written = {}
        for partition, value in leadership.items():
            current = self.leadership[partition]
            if partition in self.conflicts:
                self.conflicts.discard(partition)
                current = replace(current, partition_epoch=current.partition_epoch + 1)
                self.leadership[partition] = current
            if current.partition_epoch == value.partition_epoch:
                assert value.leader_epoch >= current.leader_epoch
                written[partition] = value.partition_epoch + 1
                self.leadership[partition] = replace(value, partition_epoch=written[partition])
        return written

    # Brokers.

    def deliver(self, broker_id: int) -> None:
        """Let the broker handle the next request of its queue."""
        if broker_id not in self.brokers or not self.queues[broker_id]:
            return
        request = self.queues[broker_id].popleft()
        is_stale = request.controller_epoch < self.known_controller[broker_id]
        if is_stale or request.broker_epoch < self.brokers[broker_id].epoch:
            return
        self.known_controller[broker_id] = request.controller_epoch
        if isinstance(request, LeaderAndIsrRequest):
            self._follow_or_lead(broker_id, request)
        elif isinstance(request, StopReplicaRequest):
            self._stop_replicas(broker_id, request)

    def _follow_or_lead(self, broker_id: int, request: LeaderAndIsrRequest) -> None:
        for partition, state in request.partitions.items():
            key = (partition, state.leadership.leader_epoch)
            leader = self.leaders_told.setdefault(key, state.leadership.leader)
            assert leader == state.leadership.leader, f"two leaders of {partition} in one epoch"
            known = self.told[broker_id].get(partition)
            if known is None or known.leadership.leader_epoch < state.leadership.leader_epoch:
                self.told[broker_id][partition] = state
                self.has_files.add((broker_id, partition))

    def _stop_replicas(self, broker_id: int, request: StopReplicaRequest) -> None:
        gone = [each for each, state in request.partitions.items() if state.is_deleted]
        for each in request.partitions:
            self.told[broker_id].pop(each, None)
        refused = gone if broker_id in self.refuses_to_delete else []
        self.has_files -= {(broker_id, each) for each in gone if each not in refused}
        self.event("replicas_deleted", broker_id, request, refused)

    def settle(self) -> None:
        """Deliver all requests."""
        while any(self.queues[each] for each in self.brokers):
            for broker_id in sorted(self.brokers):
                self.deliver(broker_id)

    def catch_up(self, name: str | TopicPartition) -> MillraceError | Leadership | None:
        """Have the leader of the partition request an ISR of all replicas that are alive."""
        partition = tp(name) if isinstance(name, str) else name
        current = self.leadership[partition]
        leader = self.brokers.get(current.leader)
        state = self.told[current.leader].get(partition)
        if leader is None or state is None or state.leadership.leader != current.leader or self.controller is None:
            return None
        known = self.controller.context.assignments[partition].replicas
        isr = tuple(each for each in known if each in self.controller.context.live or each == current.leader)
        change = IsrChange(isr=isr, leader_epoch=state.leadership.leader_epoch, partition_epoch=current.partition_epoch)
        answers = self.event("alter_isrs", current.leader, leader.epoch, {partition: change})
        return None if answers is None else answers[partition]

    def requests_of(self, kind: type[BrokerRequest], broker_id: int) -> list[Any]:
        """Return all requests of one kind that were sent to a broker."""
        return [request for to, request in self.sent if to == broker_id and isinstance(request, kind)]

    def led(self, name: str) -> tuple[int, int, tuple[int, ...]]:
        """Return leader, leader epoch and ISR as ZooKeeper has them."""
        value = self.leadership[tp(name)]
        return value.leader, value.leader_epoch, value.isr


__all__ = ["LeaderAndIsrRequest", "StopReplicaRequest", "UpdateMetadataRequest", "World", "tp"]
