"""Tests of fetch sessions.

Requests and responses name only changes, and both sides agree on the partitions.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.replication.core import FetchFrom, FetchSession
from millrace_broker.replication.core.fetch_session import EPOCH_MAX


def at(offset: int) -> FetchFrom:
    return FetchFrom(leader_epoch=1, offset=offset, last_epoch=1, log_start_offset=0)


def test_after_the_first_answer_only_changes_are_named() -> None:
    session: FetchSession[str, FetchFrom] = FetchSession()
    assert session.request({"a": at(0), "b": at(0)}).is_full
    session.answered(77)
    request = session.request({"a": at(5), "c": at(1)})
    assert (request.session_id, request.epoch) == (77, 1)
    assert request.fetches == {"a": at(5), "c": at(1)}
    assert request.forgotten == ("b",)
    session.answered(77)
    request = session.request({"a": at(5), "c": at(1)})
    assert (request.session_id, request.epoch, request.fetches, request.forgotten) == (77, 2, {}, ())


def test_an_error_starts_again() -> None:
    session: FetchSession[str, FetchFrom] = FetchSession()
    session.request({"a": at(0)})
    session.answered(77)
    session.failed(is_session_lost=False)
    request = session.request({"a": at(0)})
    assert (request.session_id, request.is_full) == (77, True)  # the leader ends the session of that id
    session.failed(is_session_lost=True)
    assert session.request({"a": at(0)}).session_id == 0


def test_epochs_go_round_without_the_first() -> None:
    session: FetchSession[str, FetchFrom] = FetchSession()
    session.request({})
    session.answered(7)
    session._epoch = EPOCH_MAX
    session.answered(7)
    assert session.request({}).epoch == 1


wanted = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3).map(at))


@given(
    st.lists(st.tuples(wanted, st.sampled_from(["answer", "no session", "lost", "error"]))),
    st.booleans(),
)
def test_a_leader_derives_the_wanted_partitions_from_the_changes(
    rounds: list[tuple[dict[str, FetchFrom], str]], is_known_what_changed: bool
) -> None:
    session: FetchSession[str, FetchFrom] = FetchSession()
    kept: dict[str, FetchFrom] = {}
    before: dict[str, FetchFrom] = {}
    for number, (fetches, outcome) in enumerate(rounds):
        changed = {each for each in {*before, *fetches} if before.get(each) != fetches.get(each)}
        request = session.request(fetches, changed if is_known_what_changed else None)
        before = fetches
        if request.is_full:
            kept = {}
        for each in request.forgotten:
            del kept[each]
        kept.update(request.fetches)
        assert kept == fetches
        if outcome == "answer":
            session.answered(request.session_id or number + 1)
        elif outcome == "no session":
            session.answered(0)
        else:
            session.failed(is_session_lost=outcome == "lost")
