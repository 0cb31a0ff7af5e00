"""State of the sender: batches and counters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.clients.model import BatchMetadata, ProducerStatistics, TopicPartition
from millrace.clients.producing.batching import BuiltBatch, halves_of
from millrace.clients.producing.wire import ProducerStamp
from millrace.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerUnavailableError,
    CorruptBatchError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    InvalidTopicError,
    MessageTooLargeError,
    MillraceError,
    NotEnoughReplicasError,
    PolicyViolationError,
    RecordListTooLargeError,
    RequestTimedOutError,
    SchemaError,
    UnsupportedCompressionError,
    UnsupportedForFormatError,
    error_of,
)
from millrace.protocol import millrace_pb2 as pb

Completion = Callable[[BatchMetadata | None, int, MillraceError | None, BuiltBatch], None]
"""Callback with the metadata, the broker's timestamp (-1: the producer's are kept), or an error, and the batch.

It is called once, or once for each part of a batch that was too large for its topic.
"""

_REFUSALS: Final = (
    AuthorizationError,
    CorruptBatchError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    InvalidTopicError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    PolicyViolationError,
    RecordListTooLargeError,
    SchemaError,
    UnsupportedCompressionError,
    UnsupportedForFormatError,
)
"""Errors that a broker answers only before it appends the batch."""


@dataclass(slots=True)
class Outgoing:
    """A batch that is queued or in flight, until it is completed."""

    batch: BuiltBatch
    partition: TopicPartition
    completion: Completion
    deadline: float
    round: int = 0
    """Number of flushes that had begun when the batch was queued."""
    attempts: int = 0
    stamp: ProducerStamp | None = None
    outcome_unknown: bool = False
    """True if the log may contain the batch after an attempt that failed."""
    last_error: MillraceError | None = None

    def attempt_failed(self, error: MillraceError) -> None:
        """Note the error of an attempt. Unless the error proves that nothing was appended, the outcome is unknown."""
        self.last_error = error
        self.outcome_unknown |= not isinstance(error, _REFUSALS)

    def can_be_halved(self, error: MillraceError) -> bool:
        """Return whether the halves can be sent after this error, and the log certainly does not contain the batch."""
        return isinstance(error, MessageTooLargeError) and self.batch.num_rows > 1 and not self.outcome_unknown

    def halves(self) -> list[Outgoing]:
        """Return the two halves of a batch that is too large for its topic."""
        return [
            Outgoing(half, self.partition, self.completion, self.deadline, self.round) for half in halves_of(self.batch)
        ]

    def overdue(self, delivery_timeout_ms: int) -> MillraceError:
        """Return the error of a batch after ``delivery.timeout.ms``, with the reason for the failed delivery."""
        text = (
            f"{self.batch.num_rows} records for {self.partition} were not acknowledged within "
            f"delivery.timeout.ms={delivery_timeout_ms}"
        )
        if self.outcome_unknown:
            text += "; the log may contain them"
        reason = self.last_error
        kind = BrokerUnavailableError if isinstance(reason, BrokerUnavailableError) else RequestTimedOutError
        return kind(f"{text}: {reason.message}" if reason else text)


class Parts:
    """Count of the rows of a batch that are not completed yet. Thread safe."""

    __slots__ = ("_lock", "_rows_left")

    def __init__(self, batch: BuiltBatch) -> None:
        self._lock = threading.Lock()
        self._rows_left = batch.num_rows

    def completed(self, part: BuiltBatch) -> bool:
        """Count the rows of the batch or of a part, and return whether all are completed."""
        with self._lock:
            self._rows_left -= part.num_rows
            return not self._rows_left


class Outstanding:
    """Numbers of batches that are not completed, by their ``round``. The sender's lock guards them."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # without zeros, in ascending order of the rounds
        self._round = 0

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __bool__(self) -> bool:
        return bool(self._counts)  # also without the lock

    def add(self) -> int:
        """Count a queued batch, and return its round."""
        self._counts[self._round] = self._counts.get(self._round, 0) + 1
        return self._round

    def remove(self, outgoing: Outgoing) -> None:
        """Count a batch as completed."""
        self._counts[outgoing.round] -= 1
        if not self._counts[outgoing.round]:
            del self._counts[outgoing.round]

    def halve(self, outgoing: Outgoing) -> None:
        """Count a batch as two."""
        self._counts[outgoing.round] += 1

    def end_round(self) -> int:
        """Begin a new round, and return the last one."""
        self._round += 1
        return self._round - 1

    def has_any_until(self, last_round: int) -> bool:
        """Return whether a batch of this round, or of an earlier one, is not completed."""
        return next(iter(self._counts), last_round + 1) <= last_round


@dataclass(slots=True)
class Counts:
    """Counters of the sender."""

    records_sent: int = 0
    records_failed: int = 0
    batches_sent: int = 0
    bytes_sent: int = 0
    batches_repeated: int = 0
    requests: int = 0

    def completed(self, outgoing: Outgoing, error: MillraceError | None) -> None:
        """Count a batch that is acknowledged or has failed."""
        if error is not None:
            self.records_failed += outgoing.batch.num_rows
            return
        self.records_sent += outgoing.batch.num_rows
        self.batches_sent += 1
        self.bytes_sent += len(outgoing.batch.records)

    def statistics(self, batches_waiting: int, buffer_bytes: int) -> ProducerStatistics:
        """Return the counters as ``ProducerStatistics``."""
        return ProducerStatistics(
            records_sent=self.records_sent,
            records_failed=self.records_failed,
            batches_sent=self.batches_sent,
            bytes_sent=self.bytes_sent,
            batches_repeated=self.batches_repeated,
            requests=self.requests,
            batches_waiting=batches_waiting,
            buffer_bytes=buffer_bytes,
        )


def part_error(error: BaseException, what: str) -> MillraceError:
    """Return the error of a send that ended, perhaps by an interrupt, after a part of it was accepted."""
    if isinstance(error, MillraceError):
        return error
    return AbortableTransactionError(f"the send of {what} ended after a part of it was accepted: {error!r}")


def partition_error(partition: TopicPartition, error: pb.Error) -> MillraceError:
    """Return a partition's error with the partition's name."""
    name = str(partition)
    return error_of(error.code, error.message if name in error.message else f"{name}: {error.message}")
