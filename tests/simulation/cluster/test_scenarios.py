"""Tests of rare orders of events in a simulated cluster."""

from __future__ import annotations

from unittest import mock

import pytest

from millrace.errors import RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.log.log_truncation import LogTruncation

from .__main__ import run
from .ensemble import ZOOKEEPER
from .scenario import SEED, TOPIC, Scenario


class MoveToOneReplica(Scenario):
    """The move of a partition to one replica, on the controller's broker.

    That broker loses ZooKeeper before it removes the other replicas from the ISR.
    """

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


class DeleteWhileMoved(Scenario):
    """The deletion of a topic while its new replicas catch up slowly.

    With ``is_cancelled`` the move of the topic is then cancelled.
    """

    is_cancelled = False

    async def play(self) -> None:
        await self.create(1, 2)
        for _ in range(10):
            await self.produce(3_000)
        await self.client._set(pb.TOPIC, TOPIC, {"follower.replication.throttled.replicas": "*"})
        await self.throttle(3, "500")
        await self.throttle(4, "500")
        await self.pause(0.5)
        await self.move(3, 4)
        await self.pause(0.5)
        await self.delete()
        assert self.state().isr == (1, 2), "the deletion waits for the move"
        if self.is_cancelled:
            await self.cancel()
        else:
            await self.catch_up(3)
            await self.catch_up(4)
        await self.until(lambda: not self.has_topic(), "the topic is deleted")
        await self.until(lambda: all(self.replica(each) is None for each in self.broker_ids), "so are its replicas")

    async def throttle(self, broker_id: int, bytes_per_s: str) -> None:
        """Throttle the replication to a broker."""
        await self.client._set(pb.BROKER, str(broker_id), {"follower.replication.throttled.rate": bytes_per_s})

    async def catch_up(self, broker_id: int) -> None:
        """Lift the throttle of a broker, and wait until it is in sync."""
        await self.throttle(broker_id, "1000000")
        await self.until(lambda: not self.has_topic() or broker_id in self.state().isr, f"{broker_id} is in sync")


class CancelAndDelete(DeleteWhileMoved):
    """A cancelled move of a topic that is marked for deletion.

    The administrator cancels the move.
    """

    is_cancelled = True


@pytest.mark.parametrize("scenario", [DeleteWhileMoved, CancelAndDelete])
def test_a_topic_that_is_deleted_while_it_is_moved_goes_after_the_move(scenario: type[Scenario]) -> None:
    run(SEED, scenario)


class RegisteredAgain(Scenario):
    """A follower whose broker registers again.

    Its leader knows the broker epoch of its fetches (KIP-903).
    """

    async def play(self) -> None:
        await self.create(1, 2)
        await self.produce()
        await self.until(self.is_known, "the leader knows the follower's broker epoch")
        before = self.registered()
        self.ensemble.expire("broker-2")
        await self.until(lambda: self.registered() not in (before, -1), "the follower's broker registers again")
        await self.until(lambda: self.is_known() and set(self.state().isr) == {1, 2}, "the follower is in sync again")

    def registered(self) -> int:
        """Return the broker epoch of the follower."""
        broker = self.machines[1].broker
        assert broker is not None
        return broker.member.broker_epoch

    def is_known(self) -> bool:
        """Return whether the leader's last fetch of the follower has that broker epoch."""
        replica = self.replica(1)
        return (
            replica is not None and replica.leads and replica.leader.followers[2].broker_epoch == self.registered() > 0
        )


def test_a_leader_knows_the_broker_epoch_of_its_followers() -> None:
    run(SEED, RegisteredAgain)


class SingleReplica(Scenario):
    """A topic with a single replica.

    The replica is fenced, is elected again, and is deleted.
    """

    async def play(self) -> None:
        await self.create(1)
        for _ in range(5):
            await self.produce()
        replica = self.replica(1)
        assert replica is not None
        assert self.machines[0].broker is not None
        await self.machines[0].broker.replicas.fence()
        assert replica.log.high_watermark == replica.machine.high_watermark == 5
        assert not replica.log.is_led_here, "a fenced leader copies nothing to tiered storage"
        self.ensemble.expire("broker-1")
        await self.until(lambda: replica.leads, "broker 1 leads again")
        assert await self.produce() == 5
        with mock.patch.object(LogTruncation, "reload_completed") as reload:
            await self.delete()
            await self.until(lambda: self.replica(1) is None, "the replica is deleted")
        reload.assert_not_called()


def test_the_high_watermark_of_a_single_replica_does_not_go_back_when_its_role_ends() -> None:
    run(SEED, SingleReplica)
