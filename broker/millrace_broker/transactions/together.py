"""Several producers committed as one, under an external id and an epoch of it: all of them or none, and once.

Whoever runs many producers for one purpose (Spark, with one in every attempt of a task) wants to say in the end which
of them count. The external id names the purpose (a query), the external epoch the step (its micro-batch). An epoch
is committed once: who asks again, after a crash, is told so, and what was written for the second time is aborted.

The records of all members and the record of the external id are one batch of the log: a crash leaves all of them or
none. That needs the members in one partition of ``__transaction_state``: they are initialised with the external id as
their ``coordinator_key``. Each member's ``transaction.timeout.ms`` must be longer than it may take from its first
record to this commit: a member whose time was up before makes the whole commit impossible.

Members that take part in an attempt (see ``attempts``) need not all be known to whoever commits: what the attempt has
open beside those that count is aborted with the commit.

Like ``rules`` this is pure: what is returned has to be written before it is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from millrace.coordinator_records import TransactionState
from millrace.errors import InvalidRequestError, InvalidTxnStateError
from millrace.records import NO_PRODUCER_ID
from millrace_broker.transactions import attempts, rules
from millrace_broker.transactions.metadata import ExternalCommit, Producer, Transaction


class Member(NamedTuple):
    """A transactional id, and the producer that wrote under it."""

    transactional_id: str
    producer: Producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of the members. ``commit`` is the external id's new record, if there is one."""

    transactions: tuple[Transaction, ...]
    commit: ExternalCommit | None
    was_committed_before: bool
    last_committed_epoch: int


def decide(
    last: ExternalCommit | None,
    external_id: str,
    external_epoch: int,
    *,
    committed: Sequence[Member],
    aborted: Sequence[Member],
    find: Callable[[str], Transaction | None],
    new_producer_ids: Iterator[int],
    now_ms: int,
    attempt: str = "",
    places: Sequence[Transaction] = (),
) -> Decision:
    """Commit ``committed`` and abort ``aborted``; all are aborted if this epoch, or a later one, was committed before.

    ``last`` is what was committed before, ``find`` gives the state of a transactional id, and ``new_producer_ids`` has
    one for each member of ``needing_producer_ids``. Members to be aborted that have no open transaction are left alone.
    ``places`` are those in use under the external id: with an ``attempt`` those that are no members are retired.

    Raises ``InvalidTxnStateError`` if one of ``committed`` has no open transaction or is fenced,
    ``ProducerFencedError`` if the attempt is, ``InvalidRequestError`` for a request that contradicts itself: nothing
    may be written then.
    """
    _check(external_id, external_epoch, [*committed, *aborted])
    if last is not None and attempts.was_committed(last, external_epoch):
        return Decision(
            transactions=tuple(_aborted([*committed, *aborted], find, new_producer_ids, now_ms)),
            commit=None,
            was_committed_before=True,
            last_committed_epoch=last.external_epoch,
        )
    if attempt:
        attempts.check_is_present(last, external_id, external_epoch, attempt)
    open_ones = [_open_of(member, find) for member in committed]
    decided = [_ended(each, is_committed=True, new_producer_ids=new_producer_ids, now_ms=now_ms) for each in open_ones]
    lost = [*_aborted(aborted, find, new_producer_ids, now_ms)]
    if attempt:
        members = {*committed, *aborted}
        # A member that was fenced is none: what is open in its place is of somebody whom nobody here knows.
        others = [place for place in places if Member(place.transactional_id, place.producer) not in members]
        lost += retired(others, now_ms)
    return Decision(
        transactions=(*decided, *lost),
        commit=replace(
            last or ExternalCommit(external_id=external_id),
            external_epoch=external_epoch,
            committed_ms=now_ms,
            updated_ms=now_ms,
        ),
        was_committed_before=False,
        last_committed_epoch=external_epoch,
    )


def retired(places: Sequence[Transaction], now_ms: int) -> list[Transaction]:
    """What becomes of places when those who hold them are to write nothing more."""
    return [after for place in places if (after := rules.retire(place, now_ms)) is not None]


def count_needing_producer_ids(members: Sequence[Member], find: Callable[[str], Transaction | None]) -> int:
    """How many producer ids ``decide`` may take."""
    return sum(rules.end_needs_producer_id(find(member.transactional_id)) for member in members)


def _check(external_id: str, external_epoch: int, members: Sequence[Member]) -> None:
    if not external_id or external_epoch < 0:
        raise InvalidRequestError(
            f"external id {external_id!r}, epoch {external_epoch}: expected a name, and a number from 0 on"
        )
    names = [member.transactional_id for member in members]
    if len(set(names)) != len(names):
        raise InvalidRequestError(f"a transactional id is in the commit of {external_id} twice")


def _open_of(member: Member, find: Callable[[str], Transaction | None]) -> Transaction:
    current = find(member.transactional_id)
    if current is None:
        problem = "is not known here: initialise it with the external id as coordinator_key"
    elif current.producer != member.producer:
        problem = (
            f"has producer {current.producer_id} with epoch {current.epoch}, not {member.producer.producer_id} with "
            f"{member.producer.epoch}: it was fenced, or timed out (transaction.timeout.ms)"
        )
    elif current.state is not TransactionState.ONGOING:
        problem = f"has no open transaction: it is {current.state.kafka_name}"
    else:
        return current
    raise InvalidTxnStateError(f"nothing was committed: transactional id {member.transactional_id} {problem}")


def _aborted(
    members: Sequence[Member],
    find: Callable[[str], Transaction | None],
    new_producer_ids: Iterator[int],
    now_ms: int,
) -> Iterator[Transaction]:
    for member in members:
        current = find(member.transactional_id)
        is_theirs = current is not None and current.producer == member.producer
        if current is not None and is_theirs and current.state is TransactionState.ONGOING:
            yield _ended(current, is_committed=False, new_producer_ids=new_producer_ids, now_ms=now_ms)


def _ended(current: Transaction, *, is_committed: bool, new_producer_ids: Iterator[int], now_ms: int) -> Transaction:
    needs_id = rules.end_needs_producer_id(current)
    after = rules.end(
        current,
        current.producer,
        committed=is_committed,
        new_producer_id=next(new_producer_ids) if needs_id else NO_PRODUCER_ID,
        now_ms=now_ms,
    )
    assert after is not None, "an open transaction has not been ended before"
    return after
