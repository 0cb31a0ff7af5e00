"""Tests of rare orders of events in a simulated cluster."""

from __future__ import annotations

import pytest

from millrace.errors import RequestTimedOutError

from .__main__ import run
from .ensemble import ZOOKEEPER
from .scenario import SEED, Scenario


class MoveToOneReplica(Scenario):
    """A controller keeps the only replica of a move, and loses ZooKeeper before it removes the others from the ISR."""

    kept: int | None = None
    is_cut = False

    def _step(self) -> None:
        replica = None if self.kept is None else self.replica(self.kept)
        if replica is not None and replica.leads and replica.leader.leaving and not self.is_cut:
            self.note("the controller loses ZooKeeper")
            self.is_cut = True
            self.network.cut.add((f"broker-{self.kept}", ZOOKEEPER))
        super()._step()

    async def play(self) -> None:
        kept = self.kept = self.controller().broker_id
        others = [each for each in self.broker_ids if each != kept][:2]
        await self.create(others[0], kept, others[1], options={"min.insync.replicas": "1"})
        await self.produce()
        await self.move(kept)
        assert self.is_cut
        with pytest.raises(RequestTimedOutError):
            await self.produce_to(kept)
        await self.until(lambda: self.state().leader in others, "another broker leads")
        self.network.cut.clear()
        await self.until(lambda: self.state().isr == (kept,), "the move has ended")
        assert await self.produce_to(kept) == 1


def test_a_single_replica_acknowledges_nothing_while_former_replicas_may_be_elected() -> None:
    run(SEED, MoveToOneReplica)
