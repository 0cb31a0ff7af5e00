"""Effects of a follower's state machine on its log. The functions block.

They run in a thread while the caller holds the partitions' locks. No other code calls the state machines of these
partitions meanwhile, because a decision about a partition requires its lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.errors import MillraceError
from millrace_broker.log import LogManager, PartitionLog, ReplicatedBatches
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.core import FetchedRecords, FetchFrom, Follower
from millrace_broker.replication.core.follower import Append, Effect, RaiseLogStart, StartAt, Truncate
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.wire import ReplicaRecords

_logger: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Fetched:
    """A leader's answer that is to be applied to a follower's log.

    ``error`` is the answer's own error, or the reason why the answer could not be applied.
    """

    replica: HostedReplica
    follower: Follower
    question: FetchFrom
    answer: ReplicaRecords
    error: MillraceError | None = None

    @property
    def takes_at_once(self) -> bool:
        """True if the answer needs only a write, without a truncation, an fsync or a new file."""
        return self.answer.diverging is None and self.replica.log.takes_at_once(len(self.answer.records))


def apply_fetched(logs: LogManager, fetched: Sequence[Fetched]) -> None:
    """Append the fetched records, or truncate where the logs diverge."""
    ends: dict[PartitionKey, int] = {}
    for each in fetched:
        try:
            _apply_one(logs, each, ends)
        except MillraceError as error:
            each.error = error
    failed = logs.truncate(ends) if ends else {}
    for each in fetched:
        each.error = each.error or failed.get(each.replica.key)
        if each.error is None:
            each.replica.log.raise_watermark(each.follower.high_watermark)


def _apply_one(logs: LogManager, fetched: Fetched, ends: dict[PartitionKey, int]) -> None:
    answer, log = fetched.answer, fetched.replica.log
    if answer.error is not None:
        fetched.error = answer.error
        return
    replicated = ReplicatedBatches(answer.records)
    batches = replicated.headers
    end_offset = batches[-1][1].next_offset if batches else fetched.question.offset
    effects = fetched.follower.fetched(
        fetched.question,
        FetchedRecords(
            end_offset=end_offset,
            high_watermark=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
            diverging=answer.diverging,
        ),
    )
    for effect in effects:
        if isinstance(effect, Append):
            _append(logs, log, replicated)
        else:
            carry_out(logs, fetched.replica, effect, ends)


def _append(logs: LogManager, log: PartitionLog, replicated: ReplicatedBatches) -> None:
    first = replicated.headers[0][1]
    if first.base_offset < log.log_end_offset < first.next_offset and not log.size_bytes:
        # The leader's log starts within a batch, whose file keeps it whole. This log starts within the batch too.
        logs.begin_at(log.topic, log.partition, first.base_offset)
    log.append_replicated(replicated)
    if log.config.syncs_before_ack:  # the next fetch reports to the leader that this replica has the records
        log.flush()


def carry_out(logs: LogManager, replica: HostedReplica, effect: Effect, ends: dict[PartitionKey, int]) -> None:
    """Carry out one effect; truncations are collected in ``ends``, to be done together.

    Raises the errors of the log.
    """
    match effect:
        case Truncate(offset):
            ends[replica.key] = offset
        case StartAt(offset):
            logs.begin_at(*replica.key, offset)
            replica.log.hold_watermark(offset)
        case RaiseLogStart(offset):
            replica.log.start_at(offset)
        case Append():
            raise AssertionError("records are appended by the code that has them")


def carry_out_all(
    logs: LogManager, wanted: Iterable[tuple[HostedReplica, Sequence[Effect]]]
) -> dict[PartitionKey, MillraceError]:
    """Carry out the effects of several state machines. Returns the replicas for which that failed, with the errors."""
    ends: dict[PartitionKey, int] = {}
    failed: dict[PartitionKey, MillraceError] = {}
    for replica, effects in wanted:
        for effect in effects:
            try:
                carry_out(logs, replica, effect, ends)
            except MillraceError as error:
                failed[replica.key] = error
    return failed | (logs.truncate(ends) if ends else {})
