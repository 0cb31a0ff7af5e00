"""Tests of a broker's requests to the controller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import ConnectionLossError
from millrace.errors import BrokerUnavailableError, RequestTimedOutError
from millrace_broker.cluster.member import Member
from millrace_broker.cluster.notifications import config_notifications
from millrace_broker.cluster.opened_metadata import OpenedMetadata
from millrace_broker.cluster.session import RenewedCoordination
from millrace_broker.config import LiveConfig
from millrace_broker.decisions import LeaderAndIsrRequest, StopReplicaRequest
from millrace_broker.log import OsFiles
from millrace_broker.metadata import TopicCatalog
from millrace_broker.metadata.gone_topics import GoneTopics
from millrace_broker.network.peers import PeerListener, Peers
from millrace_broker.purgatory import Timer
from millrace_broker.runtime import Executors, SystemClock


class SilentPeers(Peers):
    """Peers that never answer. ``waited_s`` is the time that the caller waited for them."""

    waited_s = -1.0

    async def call(self, broker_id: int, name: str, request: Any, *, timeout_s: float, decode: Any = None) -> Any:
        self.waited_s = timeout_s
        raise RequestTimedOutError(f"broker {broker_id} says nothing")


def member_of(config: BrokerConfig, peers: Peers) -> Member:
    """Create a broker of a cluster that has no session yet and leads no partition."""
    nothing: Any = None

    class Configs:
        current = config

    configs: Any = Configs()
    clock = SystemClock()
    executors = Executors(1, clock.monotonic)
    coordination = RenewedCoordination(nothing, 0)
    metadata = OpenedMetadata(
        store=nothing,
        coordination=coordination,
        cluster_id="c",
        catalog=TopicCatalog(coordination, config.topic_defaults),
        notifications=config_notifications(),
        directory=None,
    )
    return Member(
        config,
        directories=(),
        metadata=metadata,
        live=LiveConfig(configs),
        entity_types={},
        security=nothing,
        clock=clock,
        timer=Timer(clock),
        executors=executors,
        files=OsFiles(),
        peers=peers,
        logs=nothing,
        replicas=nothing,
        gone=GoneTopics(executors),
        fail=nothing,
    )


def test_a_silent_controller_is_waited_for_as_long_as_the_configuration_says() -> None:
    # Without this limit an ISR could not change for so long, even when there is a new controller.
    options = {"zookeeper.connect": "nowhere:2181", "controller.socket.timeout.ms": "1500"}
    peers = SilentPeers(PeerListener("PLAINTEXT"))

    async def ask() -> None:
        member = member_of(BrokerConfig.load(options), peers)
        member.controller_requests.controller_id = 2
        with pytest.raises(RequestTimedOutError):
            await member.controller_requests.alter_partitions(17, {})

    asyncio.run(ask())
    assert peers.waited_s == 1.5


def test_before_it_is_registered_a_broker_cannot_know_whether_it_is_meant_and_takes_nothing() -> None:
    # A request for an earlier broker epoch could make the broker follow a replaced leader and acknowledge records.
    options = {"zookeeper.connect": "nowhere:2181"}
    led = LeaderAndIsrRequest(
        controller_id=2, controller_epoch=3, broker_epoch=17, topic_ids={}, partitions={}, live_leaders=()
    )
    stopped = StopReplicaRequest(controller_id=2, controller_epoch=3, broker_epoch=17, partitions={})

    async def tell() -> None:
        member = member_of(BrokerConfig.load(options), SilentPeers(PeerListener("PLAINTEXT")))
        with pytest.raises(BrokerUnavailableError, match="is not registered yet"):
            await member.leader_and_isr(led, ())
        with pytest.raises(BrokerUnavailableError, match="is not registered yet"):
            await member.stop_replica(stopped)

    asyncio.run(tell())


def test_between_the_removal_of_its_registration_and_the_next_one_a_broker_takes_no_decision() -> None:
    # The decision may be older than the moment at which the broker was taken for dead.
    options = {"zookeeper.connect": "nowhere:2181"}
    led = LeaderAndIsrRequest(
        controller_id=2, controller_epoch=3, broker_epoch=17, topic_ids={}, partitions={}, live_leaders=()
    )

    async def tell() -> None:
        member = member_of(BrokerConfig.load(options), SilentPeers(PeerListener("PLAINTEXT")))
        member._registration.epoch = 17
        member._registration.is_removed = True
        with pytest.raises(BrokerUnavailableError, match="was removed"):
            await member.leader_and_isr(led, ())

    asyncio.run(tell())


def test_changes_that_could_not_be_read_are_read_again_under_the_same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    # The watch of the store fires once. Without another attempt, the broker would miss all later changes of ACLs.
    monkeypatch.setattr("millrace_broker.cluster.member._PAUSE_S", 0.0)
    attempts: list[object] = []

    def take(session: object) -> None:
        attempts.append(session)
        if len(attempts) < 3:
            raise ConnectionLossError("ZooKeeper is out of reach", maybe_applied=False)

    async def notice() -> None:
        member = member_of(BrokerConfig.load({"zookeeper.connect": "nowhere:2181"}), SilentPeers(PeerListener("X")))
        monkeypatch.setattr(member, "_take_notices", take)
        await member._read_notices(member._coordination.session)

    asyncio.run(notice())
    assert len(attempts) == 3
