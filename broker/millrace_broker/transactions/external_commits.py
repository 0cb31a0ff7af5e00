"""Commit of several producers as one, under an external id.

A caller may have many producers for one purpose. Spark, for example, has one producer for each task attempt. The caller
decides at the end which of the producers count. The external id names the purpose (a query). The external epoch names
the step (its micro-batch). An epoch is committed once. A caller that repeats the commit after a crash learns that, and
the records of the repetition are aborted.

The records of all producers and the record of the external id are one batch of the log. A crash therefore leaves all of
them or none. So all producers must be in one partition of ``__transaction_state``. They are initialised with the
external id as ``coordinator_key``. The ``transaction.timeout.ms`` of each producer must cover the time from its first
record to this commit. A producer that has timed out makes the whole commit impossible.

The committing caller need not know all producers of an attempt (see ``attempts``). Other open transactions of the
attempt are aborted with the commit.

The functions are pure, as in ``states``. A returned state counts after its record is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from millrace.coordinator_records import TransactionState
from millrace.errors import InvalidRequestError, InvalidTxnStateError
from millrace.records import NO_PRODUCER_ID
from millrace_broker.transactions import attempts, states
from millrace_broker.transactions.metadata import ExternalCommit, ProducerIdAndEpoch, TransactionMetadata


class TransactionalProducer(NamedTuple):
    """Transactional id, with the producer id and epoch that wrote under it."""

    transactional_id: str
    producer: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDecision:
    """Result of a commit under an external id.

    ``commit`` is the new state of the external id, None if it does not change.
    """

    transactions: tuple[TransactionMetadata, ...]
    commit: ExternalCommit | None
    was_committed_before: bool
    last_committed_epoch: int


def decide(
    last: ExternalCommit | None,
    external_id: str,
    external_epoch: int,
    *,
    committed: Sequence[TransactionalProducer],
    aborted: Sequence[TransactionalProducer],
    find: Callable[[str], TransactionMetadata | None],
    new_producer_ids: Iterator[int],
    now_ms: int,
    attempt: str = "",
    in_use: Sequence[TransactionMetadata] = (),
) -> CommitDecision:
    """Commit ``committed`` and abort ``aborted``; abort all of them if this epoch or a later one is committed already.

    ``last`` is the state of the external id, and ``find`` gives the state of a transactional id. ``new_producer_ids``
    has as many producer ids as ``count_needing_producer_ids`` says. A producer of ``aborted`` without an open
    transaction is ignored. ``in_use`` are the transactional ids that are in use under the external id. With an
    ``attempt``, those among them that belong to neither list are fenced.

    Raises ``InvalidTxnStateError`` if a producer of ``committed`` has no open transaction or is fenced. Raises
    ``ProducerFencedError`` if the attempt is fenced, and ``InvalidRequestError`` for a request that contradicts itself.
    The caller must then write nothing.
    """
    _check(external_id, external_epoch, [*committed, *aborted])
    if last is not None and attempts.was_committed(last, external_epoch):
        return CommitDecision(
            transactions=tuple(_aborted([*committed, *aborted], find, new_producer_ids, now_ms)),
            commit=None,
            was_committed_before=True,
            last_committed_epoch=last.external_epoch,
        )
    if attempt:
        attempts.check_is_current(last, external_id, external_epoch, attempt)
    open_ones = [_open_of(member, find) for member in committed]
    decided = [_ended(each, is_committed=True, new_producer_ids=new_producer_ids, now_ms=now_ms) for each in open_ones]
    lost = [*_aborted(aborted, find, new_producer_ids, now_ms)]
    if attempt:
        members = {*committed, *aborted}
        # A fenced producer is not in the lists with its present epoch, so the transaction after it is fenced too.
        others = [each for each in in_use if TransactionalProducer(each.transactional_id, each.producer) not in members]
        lost += fence_all(others, now_ms)
    return CommitDecision(
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


def fence_all(transactions: Sequence[TransactionMetadata], now_ms: int) -> list[TransactionMetadata]:
    """Return the new states that fence the producers of these transactional ids."""
    return [after for each in transactions if (after := states.fence_unless_decided(each, now_ms)) is not None]


def count_needing_producer_ids(
    members: Sequence[TransactionalProducer], find: Callable[[str], TransactionMetadata | None]
) -> int:
    """Count the new producer ids that ``decide`` needs."""
    return sum(states.end_needs_producer_id(find(member.transactional_id)) for member in members)


def _check(external_id: str, external_epoch: int, members: Sequence[TransactionalProducer]) -> None:
    if not external_id or external_epoch < 0:
        raise InvalidRequestError(
            f"external id {external_id!r} with epoch {external_epoch} is invalid: expected a name, "
            "and a number of 0 or more"
        )
    names = [member.transactional_id for member in members]
    if len(set(names)) != len(names):
        raise InvalidRequestError(f"the commit of {external_id} names a transactional id twice: name each id once")


def _open_of(member: TransactionalProducer, find: Callable[[str], TransactionMetadata | None]) -> TransactionMetadata:
    current = find(member.transactional_id)
    if current is None:
        problem = "is not known here: initialise it with the external id as coordinator_key"
    elif current.producer != member.producer:
        problem = (
            f"has producer {current.producer_id} with epoch {current.epoch}, not {member.producer.producer_id} with "
            f"{member.producer.epoch}: it was fenced, or timed out (transaction.timeout.ms)"
        )
    elif current.state is not TransactionState.ONGOING:
        problem = (
            f"has no open transaction, because its state is {current.state.kafka_name}: send records before the commit"
        )
    else:
        return current
    raise InvalidTxnStateError(f"nothing was committed: transactional id {member.transactional_id} {problem}")


def _aborted(
    members: Sequence[TransactionalProducer],
    find: Callable[[str], TransactionMetadata | None],
    new_producer_ids: Iterator[int],
    now_ms: int,
) -> Iterator[TransactionMetadata]:
    for member in members:
        current = find(member.transactional_id)
        is_theirs = current is not None and current.producer == member.producer
        if current is not None and is_theirs and current.state is TransactionState.ONGOING:
            yield _ended(current, is_committed=False, new_producer_ids=new_producer_ids, now_ms=now_ms)


def _ended(
    current: TransactionMetadata, *, is_committed: bool, new_producer_ids: Iterator[int], now_ms: int
) -> TransactionMetadata:
    needs_id = states.end_needs_producer_id(current)
    after = states.end(
        current,
        current.producer,
        committed=is_committed,
        new_producer_id=next(new_producer_ids) if needs_id else NO_PRODUCER_ID,
        now_ms=now_ms,
    )
    assert after is not None, "an open transaction has not been ended before"
    return after
