"""Tests of ended controller sessions and lost calls at every step.

The caller of the controller retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from millrace.coordination import paths
from millrace.coordination.nodes import TopicNode
from millrace.errors import MillraceError
from millrace_broker.controller import Controller, Occasion
from millrace_broker.decisions import IsrChange, Leadership, TopicPartition

from ....integration.waiting import eventually_async
from .controllers import Cluster, registration_epoch

PARTITION = TopicPartition("t", 0)
STEPS_MAX = 60


class Protocol(NamedTuple):
    """Requests to a controller of brokers 0, 1 and 2.

    Partition 0 of t has replicas 2 (the preferred leader) and 1.
    """

    prepare: Callable[[Cluster], Awaitable[None]]
    carry_out: Callable[[Cluster], Awaitable[None]]


async def ask(
    cluster: Cluster, name: str, steps: Callable[[Controller], object], *, is_done: Callable[[], bool]
) -> None:
    """Repeat a request to the current controller until it is done, as brokers and tools do."""

    async def is_done_now() -> bool:
        for each in cluster.active[:1]:
            try:
                await cluster.nodes[each].controlling.ask(name, steps)  # type: ignore[arg-type]
            except MillraceError as error:
                if not error.retriable:
                    raise
        return is_done()

    await eventually_async(is_done_now, name)


def isr_of(cluster: Cluster) -> tuple[int, ...]:
    state = cluster.state("t")
    return () if state is None else tuple(sorted(state.isr))


async def nothing(cluster: Cluster) -> None:
    pass


async def change_isr(cluster: Cluster, isr: tuple[int, ...]) -> None:
    """Have the leader request an ISR, each time with the epochs of its latest state."""
    before = set(isr_of(cluster))
    there, gone = set(isr) - before, before - set(isr)

    def steps(controller: Controller) -> object:
        state = cluster.state("t")
        assert state is not None
        told: Leadership = cluster.nodes[state.leader].told[PARTITION]
        version = cluster.outside.get(paths.partition_state_path("t", 0))[1].version
        change = IsrChange(isr=isr, leader_epoch=told.leader_epoch, partition_epoch=version)
        return controller.alter_isrs(state.leader, registration_epoch(cluster, state.leader), {PARTITION: change})

    await ask(cluster, "isr", steps, is_done=lambda: there <= set(isr_of(cluster)) and not gone & set(isr_of(cluster)))


async def shrink_isr(cluster: Cluster) -> None:
    state = cluster.state("t")
    assert state is not None
    await change_isr(cluster, (state.leader,))


async def shut_down_the_leader(cluster: Cluster) -> None:
    def steps(controller: Controller) -> object:
        return controller.shut_down(2, registration_epoch(cluster, 2))

    await ask(cluster, "shut down", steps, is_done=lambda: cluster.leads("t", 1))
    assert 2 not in isr_of(cluster)


async def lead_by_another(cluster: Cluster) -> None:
    """Stop the preferred leader, restart it and bring it in sync."""
    cluster.nodes[2].is_closed = True  # the broker does not restart by itself
    cluster.nodes[2].expire()
    await eventually_async(lambda: cluster.leads("t", 1))
    cluster.nodes[2].is_closed = False
    cluster.nodes[2]._over()
    await eventually_async(lambda: cluster.nodes[2].leader_of(PARTITION) == 1)
    await cluster.bring_in_sync("t", (1, 2))


async def elect_the_preferred(cluster: Cluster) -> None:
    def steps(controller: Controller) -> object:
        return controller.elect_leaders([PARTITION], Occasion.PREFERRED)

    await ask(cluster, "elect", steps, is_done=lambda: cluster.leads("t", 2))


async def move(cluster: Cluster) -> None:
    """Move the partition from 2 and 1 to 1 and 0. The leader brings the new replica in sync once it knows of it."""

    def node() -> TopicNode:
        return TopicNode.decode(cluster.outside.get(paths.topic_path("t"))[0])

    def steps(controller: Controller) -> object:
        return controller.reassign({PARTITION: (1, 0)})

    await ask(cluster, "reassign", steps, is_done=lambda: 0 in node().assignment[0])
    if 0 not in isr_of(cluster):
        await eventually_async(lambda: PARTITION in cluster.nodes[0].told)
        await change_isr(cluster, (0, 1, 2))
    await eventually_async(lambda: (node().assignment[0], node().adding, node().removing) == ((1, 0), {}, {}))
    await eventually_async(lambda: isr_of(cluster) == (0, 1) and cluster.leads("t", 1))


PROTOCOLS = {
    "an ISR shrinks": Protocol(nothing, shrink_isr),
    "the leader shuts down": Protocol(nothing, shut_down_the_leader),
    "the preferred leader is elected": Protocol(lead_by_another, elect_the_preferred),
    "a partition moves": Protocol(nothing, move),
}


async def run(protocol: Protocol, dies_at: int, how: str) -> int:
    """Run the operation while the controller's ``dies_at``-th call fails.

    Return the number of that controller's calls.
    """
    cluster = Cluster(0, 1, 2)
    async with cluster:
        await eventually_async(lambda: len(cluster.active) == 1)
        cluster.create("t", (2, 1))
        await eventually_async(lambda: all(PARTITION in each.clients_told for each in cluster.nodes.values()))
        await protocol.prepare(cluster)
        first = cluster.nodes[cluster.active[0]]
        first.calls, first.dies_at, first.how = 0, dies_at, how
        await protocol.carry_out(cluster)
        await eventually_async(lambda: len(cluster.active) == 1)
    return first.calls


@pytest.mark.parametrize("how", ["before", "after", "lost before", "lost after"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_requests_to_a_controller_are_done_although_its_session_ends(name: str, how: str) -> None:
    dies_at = 1
    while asyncio.run(run(PROTOCOLS[name], dies_at, how)) >= dies_at:
        dies_at += 1
        assert dies_at < STEPS_MAX, "the operation has fewer steps"
    assert dies_at > 2, "more than one call"
