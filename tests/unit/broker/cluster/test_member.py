"""What a broker of a cluster says to the controller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.errors import BrokerUnavailableError, RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker
from millrace_broker.cluster.member import Member
from millrace_broker.decisions import LeaderAndIsrRequest, StopReplicaRequest
from millrace_broker.network.peers import Peers


class SilentPeers(Peers):
    """Nobody ever answers; ``waited_s`` is how long was waited for that."""

    waited_s = -1.0

    async def call(self, broker_id: int, name: str, request: Any, *, timeout_s: float, decode: Any = None) -> Any:
        self.waited_s = timeout_s
        raise RequestTimedOutError(f"broker {broker_id} says nothing")


def test_a_silent_controller_is_waited_for_as_long_as_the_configuration_says(tmp_path: Path) -> None:
    """Otherwise an ISR cannot change for as long, though there is another controller by then."""
    options = {"log.dirs": str(tmp_path), "zookeeper.connect": "nowhere:2181", "controller.socket.timeout.ms": "1500"}
    peers = SilentPeers()

    async def ask() -> None:
        broker = Broker(BrokerConfig.load(options), peers=peers)
        member = broker.membership
        assert isinstance(member, Member)
        member._controller_id = 2
        with pytest.raises(RequestTimedOutError):
            await member.at_controller("AlterPartition", pb.AlterPartitionRequest())

    asyncio.run(ask())
    assert peers.waited_s == 1.5


def test_before_it_is_registered_a_broker_cannot_know_whether_it_is_meant_and_takes_nothing(tmp_path: Path) -> None:
    """What was meant for an earlier life may make it follow a leader that was replaced, and count for that one."""
    options = {"log.dirs": str(tmp_path), "zookeeper.connect": "nowhere:2181"}
    led = LeaderAndIsrRequest(
        controller_id=2, controller_epoch=3, broker_epoch=17, topic_ids={}, partitions={}, live_leaders=()
    )
    stopped = StopReplicaRequest(controller_id=2, controller_epoch=3, broker_epoch=17, partitions={})

    async def tell() -> None:
        member = Broker(BrokerConfig.load(options), peers=SilentPeers()).member
        with pytest.raises(BrokerUnavailableError, match="is not registered yet"):
            await member.leader_and_isr(led, ())
        with pytest.raises(BrokerUnavailableError, match="is not registered yet"):
            await member.stop_replica(stopped)

    asyncio.run(tell())


def test_between_the_removal_of_its_registration_and_the_next_one_a_broker_takes_no_decision(tmp_path: Path) -> None:
    """It may be of the time before the broker was taken for dead."""
    options = {"log.dirs": str(tmp_path), "zookeeper.connect": "nowhere:2181"}
    led = LeaderAndIsrRequest(
        controller_id=2, controller_epoch=3, broker_epoch=17, topic_ids={}, partitions={}, live_leaders=()
    )

    async def tell() -> None:
        member = Broker(BrokerConfig.load(options), peers=SilentPeers()).member
        member._registration.epoch = 17
        member._registration.is_removed = True
        with pytest.raises(BrokerUnavailableError, match="was removed"):
            await member.leader_and_isr(led, ())

    asyncio.run(tell())
