"""Tests of migrations between the classic and the consumer protocol.

The groups are on a real broker's logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import (
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    InvalidRegularExpressionError,
    InvalidSessionTimeoutError,
    StorageError,
    UnknownMemberError,
    UnsupportedAssignorError,
)
from millrace_broker.coordinators import StateLog, StateRecord
from millrace_broker.groups import Identity, SyncRequest
from millrace_broker.groups.classic_group import ClassicGroup

from .test_consumer_calls import assignment, beat, classic_join, create, group, identity, join
from .test_coordinator import join_request, opened, run, shard_of


@pytest.mark.parametrize("has_members", [True, False])
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"server_assignor": "unknown"}, UnsupportedAssignorError),
        ({"topics": None, "regex": "("}, InvalidRegularExpressionError),
    ],
    ids=["assignor", "regular expression"],
)
def test_a_refused_heartbeat_leaves_a_classic_group_as_it_was(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception], has_members: bool
) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            member = await classic_join(shard)
            if not has_members:
                await shard.leave("g", identity(member))
            before = shard.entries["g"].group
            with pytest.raises(error):
                await join(shard, "new", **fields)
            assert shard.entries["g"].group is before
            if has_members:
                await shard.heartbeat("g", identity(member))
            assert (await join(shard, "new")).member_epoch == before.generation_id + 1

    run(scenario, tmp_path)


def test_a_migration_that_cannot_be_appended_leaves_a_classic_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: StateLog, records: Sequence[StateRecord]) -> int:
        raise StorageError("the disk is full")

    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            member = await classic_join(shard)
            await shard.sync("g", SyncRequest(identity=identity(member), assignments={member.member_id: b""}))
            with monkeypatch.context() as patched:
                patched.setattr(StateLog, "append", fail)
                with pytest.raises(StorageError):
                    await join(shard, "new")
            assert isinstance(shard.entries["g"].group, ClassicGroup)
            await shard.heartbeat("g", identity(member))
            assert (await join(shard, "new")).member_epoch == member.generation_id + 1

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"session_timeout_ms": 1}, InvalidSessionTimeoutError), ({"member_id": "unknown"}, UnknownMemberError)],
)
def test_a_refused_join_leaves_an_empty_consumer_group_as_it_was(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception]
) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "a")
            await beat(shard, "a", -1)
            before = group(shard)
            with pytest.raises(error):
                await shard.join("g", join_request(**fields))
            assert group(shard) is before

    run(scenario, tmp_path)


def test_a_group_of_classic_members_becomes_classic_when_the_policy_allows_it(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory, **{"group.consumer.migration.policy": "upgrade"}) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "new")
            for each in ("a", "b"):
                await shard.join("g", join_request(each))
            await beat(shard, "new", -1)
            assert set(group(shard).members) == {"a", "b"}
        async with opened(directory) as broker:
            shard = await shard_of(broker, "g")
            await shard.leave("g", Identity(member_id="b"))
            classic = shard.entries["g"].group
            assert isinstance(classic, ClassicGroup)
            assert [each.member_id for each in classic.members] == ["a"]

    run(scenario, tmp_path)


def test_the_policy_forbids_a_migration(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory, **{"group.consumer.migration.policy": "disabled"}) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await classic_join(shard)
            with pytest.raises(GroupIdNotFoundError, match=r"group\.consumer\.migration\.policy"):
                await join(shard, "new")
            assert isinstance(shard.entries["g"].group, ClassicGroup)

    run(scenario, tmp_path)


def test_the_policy_forbids_classic_members_in_a_consumer_group(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory, **{"group.consumer.migration.policy": "disabled"}) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "new")
            with pytest.raises(InconsistentGroupProtocolError, match=r"group\.consumer\.migration\.policy"):
                await classic_join(shard)
            await beat(shard, "new", -1)
            await classic_join(shard)
            assert isinstance(shard.entries["g"].group, ClassicGroup)

    run(scenario, tmp_path)


def test_an_assignment_with_data_of_its_assignor_forbids_a_migration(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            first = await classic_join(shard)
            content = assignment(0, 1, user_data=b"of the assignor")
            await shard.sync("g", SyncRequest(identity=identity(first), assignments={first.member_id: content}))
            with pytest.raises(GroupIdNotFoundError, match=r"partition\.assignment\.strategy"):
                await join(shard, "new")
            assert isinstance(shard.entries["g"].group, ClassicGroup)

    run(scenario, tmp_path)


def test_an_empty_group_takes_the_protocol_of_its_next_member(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with opened(directory) as broker:
            await create(broker)
            shard = await shard_of(broker, "g")
            await join(shard, "a")
            await beat(shard, "a", -1)
            member = await classic_join(shard)
            assert isinstance(shard.entries["g"].group, ClassicGroup)
            await shard.leave("g", identity(member))
            await join(shard, "b")
            assert set(group(shard).members) == {"b"}
        async with opened(directory) as broker:
            assert set(group(await shard_of(broker, "g")).members) == {"b"}

    run(scenario, tmp_path)
