"""A simulated cluster in which a test decides the events.

All invariants must hold. A test overrides ``Scenario.play``, and calls ``run``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from millrace.coordination import paths
from millrace.coordination.nodes import PartitionStateNode
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch
from millrace_broker.replication.runtime import HostedReplica

from ...histories.history import Place
from .admin import Administrator
from .clients import check
from .machine import Machine
from .world import World

SEED: Final = 20
"""A seed with four brokers and without limits."""
TOPIC: Final = "moved"
PLACE: Final = Place(TOPIC, 0)


class Scenario(World):
    """A cluster of four brokers without clients and faults, for one test."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.client: Final = Administrator(self, "administrator")

    async def play(self) -> None:
        """Do what the test is about, once the cluster is up."""
        raise NotImplementedError

    async def _drive(self) -> None:
        for machine in self.machines:
            machine.start()
        await self._until(lambda: all(each.is_up for each in self.machines), "the cluster is up")
        await self.play()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. Raises ``AssertionError`` if it does not hold in time."""
        await self._until(condition, what)

    # --- requests --------------------------------------------------------------------------------------------

    async def create(self, *replicas: int, options: Mapping[str, str] | None = None) -> None:
        """Create the topic with one partition on these brokers."""
        topic = pb.NewTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, configs=options or {})
        topic.assignment.add(partition=0, replicas=replicas)
        for result in (await self.client.ask_any(pb.CreateTopicsRequest(topics=[topic], timeout_ms=5_000))).results:
            check(result.error)

    async def delete(self) -> None:
        """Delete the topic."""
        await self.client.ask_any(pb.DeleteTopicsRequest(names=[TOPIC], timeout_ms=100))

    async def move(self, *replicas: int) -> None:
        """Begin to move the partition to these brokers. An error of the controller is noted."""
        try:
            await self.client._alter(PLACE, pb.AlterPartitionReassignmentsRequest.PartitionTarget(replicas=replicas))
        except MillraceError as error:
            self.note(f"the move has no answer: {error.message}")

    async def cancel(self) -> None:
        """Cancel the move of the partition."""
        await self.client._alter(PLACE, pb.AlterPartitionReassignmentsRequest.PartitionTarget(is_cancelled=True))

    async def produce(self, size_bytes: int = 10) -> int:
        """Write a record with acks=all, and return its offset."""
        record = Record(key=None, value=bytes(size_bytes), timestamp_ms=self.now_ms)
        return await self.client.produce(PLACE, build_rows_batch([record]))

    async def produce_to(self, broker_id: int) -> int:
        """Write a record with acks=all to a broker, although another one may have become the leader."""
        self.client._leaders[PLACE] = broker_id, 0
        return await self.produce()

    # --- views -----------------------------------------------------------------------------------------------

    def controller(self) -> Machine:
        """Return the machine of the controller."""
        return next(
            each for each in self.machines if each.broker is not None and each.broker.member.controlling.is_active
        )

    def replica(self, broker_id: int) -> HostedReplica | None:
        """Return a broker's replica of the partition."""
        broker = self.machines[broker_id - 1].broker
        return None if broker is None else broker.replicas.find(*PLACE)

    def state(self) -> PartitionStateNode:
        """Return the leader and the ISR of the partition in ZooKeeper."""
        return PartitionStateNode.decode(self.ensemble.outside.get(paths.partition_state_path(*PLACE))[0])

    def has_topic(self) -> bool:
        """Tell whether the nodes of the topic exist."""
        return self.ensemble.outside.exists(paths.topic_path(TOPIC)) is not None

    async def pause(self, seconds: float) -> None:
        """Let the cluster work on its own."""
        await asyncio.sleep(seconds)
