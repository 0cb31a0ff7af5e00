"""Tests of the checker with incorrect and correct histories.

The checker must find each anomaly, and none in a correct history.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from .checker import anomalies, processing_anomalies
from .history import Commits, History, Outcome, Place, Poll, Read, Recorder, Send, Write, load

A, B = Place("t", 0), Place("t", 1)

WRITES = (
    Write("w1", 1, False, (Send(A, "a1", 0), Send(B, "b1", 0)), Outcome.OK),
    Write("w2", 1, True, (Send(A, "a2", 1), Send(B, "b2", 1)), Outcome.OK, commit_ns=10),
    Write("w2", 2, True, (Send(A, "a3", 3), Send(B, "b3", 3)), Outcome.FAILED),
    Write("w2", 3, True, (Send(A, "a4"), Send(B, "b4")), Outcome.UNKNOWN, commit_ns=20),
    Write("w1", 2, False, (Send(A, "a5", 5),), Outcome.OK),
)
PARTLY = Write("w3", 1, False, (Send(A, "a6", 6), Send(A, "a7")), Outcome.UNKNOWN)
FINAL = (
    Read(A, 0, "a1"),
    Read(A, 1, "a2"),
    Read(A, 5, "a5"),
    Read(B, 0, "b1"),
    Read(B, 1, "b2"),
)
POLLS = (
    Poll("r1", 0, 12, (Read(A, 0, "a1"), Read(B, 0, "b1"), Read(A, 1, "a2"))),
    Poll("r1", 0, 30, (Read(A, 5, "a5"),)),
    Poll("r1", 1, 40, (Read(A, 1, "a2"),)),
)
COMMITS = (Commits(1, {A: 0}), Commits(2, {A: 2, B: 1}), Commits(3, {A: 2}))
GOOD = History(WRITES, POLLS, COMMITS)


def kinds(history: History = GOOD, final: tuple[Read, ...] = FINAL) -> set[str]:
    return {each.kind for each in anomalies(history, final)}


def test_a_correct_history_has_no_anomaly() -> None:
    assert anomalies(GOOD, FINAL) == []


@pytest.mark.parametrize("there", [("a4", "b4"), ()])
def test_a_transaction_with_an_unknown_end_may_be_committed_or_aborted(there: tuple[str, ...]) -> None:
    more = [Read(Place("t", "ab".index(value[0])), 7, value) for value in there]
    assert kinds(final=(*FINAL, *more)) == set()


def polled(*reads: Read, at_ns: int = 50, assignment: int = 9) -> History:
    return replace(GOOD, polls=(*POLLS, Poll("r2", assignment, at_ns, reads)))


@pytest.mark.parametrize(
    ("kind", "history", "final"),
    [
        ("lost write", GOOD, FINAL[:4]),
        ("lost write", polled(Read(A, 9, "a4")), FINAL),
        ("lost write", replace(GOOD, writes=(*WRITES, PARTLY)), FINAL),
        ("duplicate", GOOD, (*FINAL, Read(A, 8, "a1"))),
        ("inconsistent offset", polled(Read(A, 5, "a1")), FINAL),
        ("invented", polled(Read(A, 9, "a9")), FINAL),
        ("aborted read", polled(Read(A, 3, "a3")), FINAL),
        ("aborted read", GOOD, (*FINAL, Read(A, 3, "a3"))),
        ("uncommitted read", polled(Read(A, 1, "a2"), at_ns=9), FINAL),
        ("uncommitted read", polled(Read(A, 3, "a3")), FINAL),
        ("torn transaction", GOOD, (*FINAL, Read(A, 7, "a4"))),
        ("reordered", GOOD, (Read(A, 6, "a1"), *FINAL[1:])),
        ("nonmonotonic poll", polled(Read(A, 1, "a2"), Read(A, 0, "a1")), FINAL),
        ("skipped by poll", polled(Read(A, 0, "a1"), Read(A, 5, "a5")), FINAL),
        ("regressing commit", replace(GOOD, commits=(*COMMITS, Commits(4, {A: 1}))), FINAL),
    ],
)
def test_each_anomaly_is_found(kind: str, history: History, final: tuple[Read, ...]) -> None:
    assert kind in kinds(history, final)


def test_inputs_processed_never_or_twice_are_anomalies() -> None:
    assert processing_anomalies(["a", "b"], ["a>1"], is_finished=False) == []
    assert processing_anomalies(["a", "b"], ["a>1", "b>1"], is_finished=True) == []
    found = processing_anomalies(["a", "b", "c"], ["a>1", "a>2", "z>1"], is_finished=True)
    assert sorted(each.kind for each in found) == [
        "never processed",
        "never processed",
        "processed nothing",
        "processed twice",
    ]


def test_a_history_is_read_up_to_the_line_at_which_its_writer_died(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "w.jsonl")
    first = recorder.begin([(A, "x"), (B, "y")], is_transaction=True)
    recorder.committing(first)
    recorder.ended(first, Outcome.OK, [3, 4])
    second = recorder.begin([(A, "z")], is_transaction=False)
    recorder.polled([Read(A, 3, "x")])
    recorder.moved()
    recorder.polled([Read(B, 4, "y")])
    recorder.committed(5, {A: 4})
    with (tmp_path / "w.jsonl").open("ab") as file:
        file.write(b'{"event": "end", "wri')
    history = load(tmp_path)
    assert [(write.number, write.sends, write.outcome) for write in history.writes] == [
        (first, (Send(A, "x", 3), Send(B, "y", 4)), Outcome.OK),
        (second, (Send(A, "z"),), Outcome.UNKNOWN),
    ]
    assert history.writes[0].commit_ns is not None
    assert [(poll.assignment, poll.reads) for poll in history.polls] == [
        (0, (Read(A, 3, "x"),)),
        (1, (Read(B, 4, "y"),)),
    ]
    assert history.commits == (Commits(5, {A: 4}),)
