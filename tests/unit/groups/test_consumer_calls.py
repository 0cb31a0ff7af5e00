"""Consumer groups of KIP-848 on a real broker's logs, without its network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.coordinator_records import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedPartitions,
    read_assignment,
    write_versioned,
)
from millrace.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRegularExpressionError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberError,
)
from millrace_broker.broker import Broker
from millrace_broker.coordinators import OFFSETS_TOPIC, partition_of
from millrace_broker.groups import (
    ConsumerGroup,
    GroupShard,
    Heartbeat,
    HeartbeatAnswer,
    Identity,
    JoinAnswer,
    MemberIdGiven,
    SyncRequest,
)
from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.timers import GroupTimer, GroupTimers, TimerKey, TimerKind
from millrace_broker.metadata import TopicSpec

from ...integration.waiting import eventually_async
from ..coordinators.parts import LateReplicas
from .test_coordinator import commit, join_request, opened, run, shard_of

NO_MEMBER = Identity(member_id="", generation_id=-1)


async def create(broker: Broker, name: str = "read", partitions: int = 2) -> None:
    await broker.executors.administer(broker.changes.create, TopicSpec(name=name, partitions=partitions, configs={}))


async def beat(shard: GroupShard, member_id: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
    return await shard.consumer_heartbeat("g", Heartbeat(member_id=member_id, member_epoch=epoch, **fields))


async def join(shard: GroupShard, member_id: str, **fields: Any) -> HeartbeatAnswer:
    values = {"topics": frozenset(["read"]), "rebalance_timeout_ms": 60_000, "owned": frozenset(), **fields}
    return await beat(shard, member_id, 0, **values)


def subscription(*owned: int, user_data: bytes | None = None) -> bytes:
    partitions = (OwnedPartitions(topic="read", partitions=owned),) if owned else ()
    return write_versioned(
        ConsumerProtocolSubscription(topics=("read",), user_data=user_data, owned_partitions=partitions), 3
    )


async def classic_join(shard: GroupShard, member_id: str = "", owned: tuple[int, ...] = ()) -> JoinAnswer:
    content = subscription(*owned, user_data=b"of the assignor")
    request = join_request(member_id, protocols=(("cooperative-sticky", content),))
    answer = await shard.join("g", request)
    if isinstance(answer, MemberIdGiven):
        return await classic_join(shard, answer.member_id, owned)
    return answer


def identity(answer: JoinAnswer) -> Identity:
    return Identity(member_id=answer.member_id, generation_id=answer.generation_id)


def group(shard: GroupShard) -> ConsumerGroup:
    found = shard.entries["g"].group
    assert isinstance(found, ConsumerGroup)
    return found


def assignment(*numbers: int, user_data: bytes | None = None) -> bytes:
    partitions = (AssignedPartitions(topic="read", partitions=numbers),)
    return write_versioned(ConsumerProtocolAssignment(assigned_partitions=partitions, user_data=user_data), 3)


async def assigned(shard: GroupShard, answer: JoinAnswer) -> tuple[int, ...]:
    content = (await shard.sync("g", SyncRequest(identity=identity(answer)))).assignment
    return tuple(number for each in read_assignment(content)[1].assigned_partitions for number in each.partitions)


def test_a_group_is_read_again_as_it_was(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            everything = (await join(shard, "a", instance_id="i", rack_id="r", server_assignor="range")).assignment
            await join(shard, "b", regex="rea.", topics=None)
            await beat(shard, "a", 1, owned=everything, instance_id="i")
            await shard.commit("g", Identity(member_id="a", generation_id=1), {("read", 0): commit(7)})
            before = group(shard)
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            assert group(shard) == before
            assert shard.entries["g"].offsets.committed[("read", 0)].offset == 7
            assert (await beat(shard, "b", 2)).member_epoch == 2

    run(scenario, tmp_path)


def test_a_group_and_its_log_agree_after_a_change_whose_replicas_were_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next change begins at a group without that change, and the log has partitions of two members."""

    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            with monkeypatch.context() as patched:
                number = partition_of("g", broker.groups.partition_count)
                replicas = LateReplicas(patched, broker.replicas.find(OFFSETS_TOPIC, number))
                with pytest.raises(CoordinatorNotAvailableError, match="has not ended within"):
                    await join(shard, "a")
                replicas.are_late = False
                await join(shard, "b")
            before = group(shard)
            assert before.members.keys() == before.target.keys() == {"a", "b"}
        async with opened(directory) as broker:
            assert group(await shard_of(broker, "g")) == before

    run(scenario, tmp_path)


def test_calls_do_not_pile_up_behind_a_change_whose_replicas_are_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            with monkeypatch.context() as patched:
                number = partition_of("g", broker.groups.partition_count)
                LateReplicas(patched, broker.replicas.find(OFFSETS_TOPIC, number))
                before = len(asyncio.all_tasks())
                commits = (shard.commit("h", NO_MEMBER, {("read", number): commit(1)}) for number in range(10))
                calls = [*(join(shard, f"member-{number}") for number in range(10)), *commits]
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert {type(answer) for answer in answers} == {CoordinatorNotAvailableError}
                # Only the first change, which is in the log, and the writer of the log are left.
                await eventually_async(lambda: len(asyncio.all_tasks()) <= before + 2, "the end of the other calls")
                assert not shard.entries["h"].offsets.committed
                await broker.groups.close()

    run(scenario, tmp_path)


def test_a_repeated_heartbeat_that_arrives_during_the_first_changes_nothing_more(tmp_path: Path) -> None:
    """A client repeats a heartbeat when it has waited too long for the answer."""

    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            first, second = await asyncio.gather(join(shard, "a"), join(shard, "a"))
            assert first == second
            assert first.member_epoch == 1
            assert first.assignment is not None
            assert len(first.assignment) == 2

    run(scenario, tmp_path)


def test_a_member_without_heartbeats_is_removed(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory, **{"group.consumer.session.timeout.ms": "50"}) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "a")
            await eventually_async(lambda: not group(shard).members, "the end of the session")
            with pytest.raises(UnknownMemberError):
                await beat(shard, "a", 1)

    run(scenario, tmp_path)


@pytest.mark.parametrize("is_classic", [False, True])
def test_a_heartbeat_that_arrives_while_its_member_is_removed_is_refused(tmp_path: Path, is_classic: bool) -> None:
    """An answer would tell the member that it may go on, while its partitions are given to others."""

    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "a")
            member = identity(await classic_join(shard)) if is_classic else Identity(member_id="a")
            entry = shard.entries["g"]
            async with entry.changing():  # as while the removal is appended
                call = shard.heartbeat("g", member) if is_classic else beat(shard, "a", 1)
                answering = asyncio.ensure_future(call)
                await asyncio.sleep(0)
                assert not answering.done()
                others = {each: value for each, value in group(shard).members.items() if each != member.member_id}
                entry.group = replace(group(shard), members=others)
            with pytest.raises(UnknownMemberError):
                await answering

    run(scenario, tmp_path)


def test_a_heartbeat_that_is_answered_before_the_removal_begins_keeps_its_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: dict[TimerKey, Callable[[], None]] = {}
    begin = GroupTimers.set

    def observed(timers: GroupTimers, timer: GroupTimer, delay_ms: int, action: Callable[[], None]) -> None:
        def end() -> None:
            timers.cancel(timer)
            action()

        ends[timer[1]] = end
        begin(timers, timer, delay_ms, action)

    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "a")
            entry = shard.entries["g"]
            async with entry.changing():  # as while another change is appended
                answering = asyncio.ensure_future(beat(shard, "a", 1, topics=frozenset(["read", "other"])))
                await asyncio.sleep(0)
                ends[TimerKey(TimerKind.SESSION, "a")]()
            epoch = (await answering).member_epoch
            assert (await beat(shard, "a", epoch)).member_epoch == epoch

    monkeypatch.setattr(GroupTimers, "set", observed)
    run(scenario, tmp_path)


def test_a_member_that_does_not_revoke_is_removed(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            everything = (await join(shard, "a", rebalance_timeout_ms=50)).assignment
            await join(shard, "b")
            await beat(shard, "a", 1, owned=everything)
            await eventually_async(lambda: set(group(shard).members) == {"b"}, "the end of the rebalance timeout")
            assert (await beat(shard, "b", 2)).assignment == everything

    run(scenario, tmp_path)


def test_offsets_belong_to_members_of_the_present_epoch(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "a")
            with pytest.raises(StaleMemberEpochError):
                await shard.commit("g", Identity(member_id="a", generation_id=0), {("read", 0): commit(1)})
            with pytest.raises(StaleMemberEpochError):
                shard.check_fetch("g", "a", 0)
            await shard.commit("g", Identity(member_id="a", generation_id=1), {("read", 0): commit(1)})
            refused = await shard.delete_offsets("g", [("read", 0)])
            assert isinstance(refused[("read", 0)], GroupSubscribedToTopicError)
            with pytest.raises(NonEmptyGroupError):
                await shard.delete_group("g")
            await beat(shard, "a", -1)
            await shard.delete_group("g")
            assert "g" not in shard.entries
        async with opened(directory) as broker:
            assert "g" not in (await shard_of(broker, "g")).entries

    run(scenario, tmp_path)


def test_an_empty_group_expires_with_its_offsets(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "a")
            await shard.commit("g", Identity(member_id="a", generation_id=1), {("read", 0): commit(1)})
            assert await shard.expire(0) == 0  # the group subscribes to the topic
            await beat(shard, "a", -1)
            assert await shard.expire(0) == 1
            assert "g" not in shard.entries

    run(scenario, tmp_path)


def test_a_first_member_that_is_refused_leaves_no_group(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            with pytest.raises(InvalidRegularExpressionError):
                await join(shard, "a", regex="(")
            with pytest.raises(GroupIdNotFoundError):
                await beat(shard, "a", 3)
            assert "g" not in shard.entries

    run(scenario, tmp_path)


def test_a_classic_member_reconciles_by_join_group(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            first = await classic_join(shard)
            owned = assignment(0, 1)
            await shard.sync("g", SyncRequest(identity=identity(first), assignments={first.member_id: owned}))
            assert (await join(shard, "new")).assignment == frozenset()
            with pytest.raises(RebalanceInProgressError):
                await shard.heartbeat("g", identity(first))
            again = await classic_join(shard, first.member_id, (0, 1))
            kept = await assigned(shard, again)
            assert len(kept) == 1
            with pytest.raises(RebalanceInProgressError):
                await shard.heartbeat("g", identity(again))
            last = await classic_join(shard, first.member_id, kept)
            assert last.generation_id == group(shard).epoch
            with pytest.raises(IllegalGenerationError):
                await shard.heartbeat("g", identity(first))
            await shard.heartbeat("g", identity(last))
            assert await assigned(shard, last) == kept
            moved = (await beat(shard, "new", last.generation_id)).assignment
            assert moved is not None
            assert {number for _, number in moved} == {0, 1} - set(kept)
            before = group(shard)
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            assert group(shard) == before
            await beat(shard, "new", -1)
            classic = shard.entries["g"].group
            assert isinstance(classic, ClassicGroup)
            assert classic.generation_id == last.generation_id
            await shard.commit("g", identity(last), {("read", 0): commit(1)})
            with pytest.raises(RebalanceInProgressError):
                await shard.heartbeat("g", identity(last))
            rejoined = await classic_join(shard, first.member_id, kept)
            assert rejoined.leader == first.member_id

    run(scenario, tmp_path)


def test_members_of_both_protocols_leave_at_the_same_time(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "new")
            member = await classic_join(shard)
            await asyncio.gather(beat(shard, "new", -1), shard.leave("g", identity(member)))
            classic = shard.entries["g"].group
            assert isinstance(classic, ClassicGroup)
            assert classic.is_empty

    run(scenario, tmp_path)


def test_a_member_that_is_no_consumer_is_refused(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "new")
            with pytest.raises(InconsistentGroupProtocolError):
                await shard.join("g", join_request("c", protocol_type="connect"))

    run(scenario, tmp_path)
