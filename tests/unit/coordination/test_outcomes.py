from __future__ import annotations

from collections.abc import Sequence

import pytest

from millrace.coordination import (
    Check,
    ConnectionLossError,
    Create,
    Delete,
    EmbeddedCoordination,
    EmbeddedStore,
    NodeExistsError,
    NodeStat,
    Operation,
    Write,
)
from millrace.coordination.outcomes import Outcome, find_out, settle

CREATE, NODE = Create("/new", b"1"), Create("/controller", b"me", ephemeral=True)
WRITE, ANY, DELETE = Write("/a", b"2", 0), Write("/a", b"2"), Delete("/gone")


class Lossy(EmbeddedCoordination):
    """A session that loses answers. A test sets which calls, and whether they were carried out."""

    def __init__(self, store: EmbeddedStore) -> None:
        session = store.connect()
        super().__init__(store, session.session_id)
        self.losses: list[bool | None] = []

    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        if not self.losses or (applied := self.losses.pop(0)) is None:
            return super().multi(operations)
        if applied:
            super().multi(operations)
        raise ConnectionLossError("lost", maybe_applied=True)


@pytest.fixture
def session() -> Lossy:
    session = Lossy(EmbeddedStore())
    session.create("/a", b"1")
    session.create("/gone")
    return session


@pytest.mark.parametrize("operations", [[CREATE], [NODE], [WRITE], [ANY], [DELETE], [NODE, WRITE, Check("/a")]])
def test_a_write_is_known_by_what_it_does(session: Lossy, operations: list[Operation]) -> None:
    assert find_out(session, operations) is Outcome.NOT_APPLIED
    session.multi(operations)
    assert find_out(session, operations) is Outcome.APPLIED


@pytest.mark.parametrize(
    ("operation", "others", "outcome"),
    [
        (NODE, [Create("/controller", b"me")], Outcome.NOT_APPLIED),  # the same data, but another session's node
        (CREATE, [Create("/new", b"other")], Outcome.NOT_APPLIED),
        (CREATE, [CREATE, Write("/new", b"2")], Outcome.UNKNOWN),
        (WRITE, [Write("/a", b"other")], Outcome.NOT_APPLIED),
        (WRITE, [WRITE, Write("/a", b"3")], Outcome.UNKNOWN),
        (WRITE, [Delete("/a")], Outcome.NOT_APPLIED),
        (Create("/a/n-", sequential=True), [], Outcome.UNKNOWN),
        (Check("/a"), [], Outcome.NOT_APPLIED),
    ],
)
def test_changes_of_other_sessions_are_distinguished_as_far_as_possible(
    session: Lossy, operation: Operation, others: list[Operation], outcome: Outcome
) -> None:
    session.multi(others)
    assert find_out(session, [operation]) is outcome


def test_several_changes_of_a_node_count_as_the_last(session: Lossy) -> None:
    operations = [Create("/x"), Write("/x", b"1", 0), Write("/x", b"2", 1)]
    session.multi(operations)
    assert find_out(session, operations) is Outcome.APPLIED
    operations = [Create("/y"), Delete("/y")]
    session.multi(operations)
    assert find_out(session, operations) is Outcome.APPLIED


@pytest.mark.parametrize("losses", [[], [True], [False], [False, False, True], [False, None]])
def test_a_settled_write_is_applied_once(session: Lossy, losses: list[bool | None]) -> None:
    session.losses = losses
    settle(session, [NODE, WRITE])
    assert session.get("/a")[1].version == 1


def test_a_settled_write_fails_as_any(session: Lossy) -> None:
    session.losses = [False]
    with pytest.raises(NodeExistsError):
        settle(session, [Create("/a", b"other")])


def test_an_unknown_outcome_is_reported(session: Lossy) -> None:
    session.losses = [True]
    with pytest.raises(ConnectionLossError):
        settle(session, [Create("/a/n-", sequential=True)])
    assert session.children("/a") == ["n-0000000000"]
