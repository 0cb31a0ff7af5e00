"""Consumer of a share group (KIP-932; Kafka's ``KafkaShareConsumer``).

Each record goes to one consumer of the group.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from millrace.clients.consuming.connections import ConsumerConnections
from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.membership.coordinator import Coordinator, check_group_id
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import ConsumerRecord, TopicPartition
from millrace.clients.sharing.acknowledgements import AcknowledgeType, InHand, Run
from millrace.clients.sharing.fetching import Given, ShareFetcher
from millrace.clients.sharing.member import ShareMember
from millrace.clients.signal import Signal
from millrace.clients.subscription import Subscription
from millrace.config.client import AcknowledgementMode, ShareConsumerConfig
from millrace.errors import (
    ClientClosedError,
    FencedMemberEpochError,
    InvalidRecordStateError,
    MillraceError,
    UnknownMemberError,
    UsageError,
)
from millrace.protocol import millrace_pb2 as pb

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_ACKNOWLEDGEMENTS: Final = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
OnAcknowledged = Callable[[TopicPartition, MillraceError | None], None]


class ShareConsumer:
    """Member of a share group (Kafka's ``KafkaShareConsumer``). One thread at a time; only ``wakeup`` is thread safe.

    ``config`` is a mapping of ``ShareConsumerConfig``'s options, including ``group.id``. Records come in no fixed
    order. They are redelivered if not acknowledged within the broker's ``group.share.record.lock.duration.ms``, up to
    ``group.share.delivery.count.limit`` times. With ``share.acknowledgement.mode=implicit`` the next ``poll`` or
    ``commit`` accepts the last poll's records. With ``explicit`` every record must be acknowledged before. A poll
    calls ``on_acknowledged(partition, error)`` with the outcome of acknowledgements; without it errors are logged.
    """

    def __init__(self, config: Mapping[str, Any], on_acknowledged: OnAcknowledged | None = None) -> None:
        self._config = ShareConsumerConfig.of(config)
        check_group_id(self._config.group_id)
        self._on_acknowledged = on_acknowledged
        self._signal = Signal()
        self._connections = ConsumerConnections(self._config, self._signal)
        self._metadata = MetadataCache(self._connections)
        coordinator = Coordinator(self._connections, self._config.group_id, pb.SHARE)
        self._member = ShareMember(self._config, self._connections, coordinator, self._signal)
        self._fetcher = ShareFetcher(self._config, self._connections, coordinator, self._metadata, self._signal)
        self._topics: frozenset[str] = frozenset()
        self._in_hand: dict[TopicPartition, InHand] = {}
        self._unseen: deque[ConsumerRecord] = deque()
        self._to_tell: dict[TopicPartition, list[Run]] = {}
        self._failure: MillraceError | None = None
        self._is_closed = False

    # --- subscription ---------------------------------------------------------------------------------------------

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Subscribe to topics; new partitions are added automatically."""
        with self._signal.in_use():
            self._check_open()
            names = Subscription.of(topics).names
            if not names:
                raise UsageError("subscribe to at least one topic, or close the consumer")
            self._topics = names
            self._member.subscribe(names)

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics."""
        return self._topics

    # --- reading --------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int = 0) -> ConsumerRecords:
        """Acquire the next records, waiting for the first of them; each has its ``delivery_count``, from 1.

        The result is empty if no records come within ``timeout_ms``. Raises ``UsageError`` without a subscription, or
        (with explicit acknowledgement) if a record of the last poll was not acknowledged. Raises ``WakeupError``,
        ``ConcurrentUseError``, ``ClientClosedError`` and fatal errors of the group.
        """
        with self._signal.in_use():
            self._check_open()
            self._settle_last_poll()
            try:
                return ConsumerRecords(self._next_records(time.monotonic() + timeout_ms / 1000))
            except Exception:
                raise
            except BaseException:  # an interrupt, after which the next poll must not accept records that none has seen
                self._say_of_the_rest(AcknowledgeType.RELEASE)
                raise

    def _next_records(self, deadline: float) -> dict[TopicPartition, list[ConsumerRecord]]:
        while True:
            serial = self._signal.serial
            self._signal.check()
            self._member.raise_failure()
            if records := self._take_in():
                return records
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            wait_s = self._ask()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return {}
            self._signal.wait(serial, min(remaining, wait_s))

    def _settle_last_poll(self) -> None:
        if not self._topics:
            raise UsageError("the consumer has no subscription: subscribe to topics first")
        unsaid = sum(hand.unsaid for hand in self._in_hand.values())
        if unsaid and self._config.share_acknowledgement_mode is AcknowledgementMode.EXPLICIT:
            raise UsageError(
                f"{unsaid} records of the last poll were not acknowledged: accept, release or reject each before the "
                "next poll, or set share.acknowledgement.mode=implicit"
            )
        self._say_of_the_rest(AcknowledgeType.ACCEPT)

    def _say_of_the_rest(self, what: AcknowledgeType) -> None:
        unseen: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        for record in self._unseen:
            unseen[TopicPartition(record.topic, record.partition)].add(record.offset)
        for partition, hand in self._in_hand.items():
            hand.say_of_the_rest(what, unseen=unseen[partition])
        self._put_aside_what_was_said()

    def _release_unseen(self) -> None:
        """Release the records that an iterator has not passed on."""
        while self._unseen:
            record = self._unseen.popleft()
            self._in_hand[TopicPartition(record.topic, record.partition)].say(record.offset, AcknowledgeType.RELEASE)

    def _put_aside_what_was_said(self) -> None:
        for partition, hand in list(self._in_hand.items()):
            if runs := hand.take():
                self._to_tell.setdefault(partition, []).extend(runs)
            if not hand.said:
                del self._in_hand[partition]

    def _ask(self) -> float:
        """Send fetches unless one is in flight; returns the seconds until the next attempt."""
        partitions = self._member.assigned
        try:
            told = self._fetcher.send(self._member.member_id, partitions, self._to_tell)
        except MillraceError as error:
            if not error.retriable:
                raise
            self._metadata.forget(partition.topic for partition in partitions)
            return _RETRY_S
        for partition in told:
            self._to_tell.pop(partition, None)
        return 3600.0

    def _take_in(self) -> dict[TopicPartition, list[ConsumerRecord]]:
        records: dict[TopicPartition, list[ConsumerRecord]] = {}
        for given in self._fetcher.take_in():
            self._note_errors(given)
            if given.acquired:
                hand = self._in_hand.setdefault(given.partition, InHand(given.partition))
                hand.received(given.acquired, (record.offset for record in given.records))
            if given.records:
                records.setdefault(given.partition, []).extend(given.records)
        if not records:
            self._put_aside_what_was_said()  # gaps
        return records

    def _note_errors(self, given: Given) -> None:
        if given.acknowledge_error is not None:
            if self._on_acknowledged is not None:
                self._on_acknowledged(given.partition, given.acknowledge_error)
            else:
                text = given.acknowledge_error.message
                logger.warning("%s: the broker refused acknowledgements: %s", given.partition, text)
        error = given.error
        if error is None:
            return
        if isinstance(error, (UnknownMemberError, FencedMemberEpochError)):
            self._member.rejoin(error)
        elif error.retriable:
            self._metadata.forget(given.partition.topic)
        else:
            # Raise this only after its records are returned, because otherwise they would be accepted unseen.
            self._failure = error

    # --- acknowledging --------------------------------------------------------------------------------------------

    def acknowledge(self, record: ConsumerRecord, what: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Acknowledge a record of the last poll; the next poll or ``commit`` sends it to the broker.

        Raises ``InvalidRecordStateError`` for another record, ``UsageError`` with implicit acknowledgement.
        """
        with self._signal.in_use():
            self._check_open()
            if self._config.share_acknowledgement_mode is AcknowledgementMode.IMPLICIT:
                raise UsageError("the next poll acknowledges the records: set share.acknowledgement.mode=explicit")
            if what not in _ACKNOWLEDGEMENTS:
                raise UsageError(
                    f"acknowledge with ACCEPT, RELEASE or REJECT, not {what!r}: GAP is for offsets without a record"
                )
            partition = TopicPartition(record.topic, record.partition)
            hand = self._in_hand.get(partition)
            if hand is None:
                raise InvalidRecordStateError(f"offset {record.offset} of {partition} is not acquired by this consumer")
            hand.say(record.offset, what)

    def commit(self) -> dict[TopicPartition, MillraceError | None]:
        """Send the acknowledgements (implicit mode: accept all records), and wait.

        Returns each partition's error, ``None`` on success. ``InvalidRecordStateError`` means that a record's lock
        expired, and another member may have it. Raises ``WakeupError``; the next ``poll`` or ``commit`` sends the
        acknowledgements again.
        """
        with self._signal.in_use():
            self._check_open()
            if self._config.share_acknowledgement_mode is AcknowledgementMode.IMPLICIT:
                self._say_of_the_rest(AcknowledgeType.ACCEPT)
            self._put_aside_what_was_said()
            return self._tell()

    def _tell(self, timeout_s: float | None = None) -> dict[TopicPartition, MillraceError | None]:
        outcome: dict[TopicPartition, MillraceError | None] = {}
        if self._to_tell:
            outcome = self._fetcher.acknowledge(self._member.member_id, self._to_tell, timeout_s)
        self._to_tell = {}
        for partition, error in outcome.items():
            if self._on_acknowledged is not None:
                self._on_acknowledged(partition, error)
        return outcome

    # --- life -----------------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End the wait of a ``poll`` with ``WakeupError``, now or the next time. Thread safe."""
        self._signal.wakeup()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records without end. Records that the loop did not get are released after it, not accepted."""
        while True:
            self._unseen = deque(self.poll(self._config.fetch_max_wait_ms))
            try:
                while self._unseen:
                    yield self._unseen.popleft()
            finally:
                self._release_unseen()

    def close(self, timeout_ms: int = 30_000) -> None:
        """Send acknowledgements, release the other records, and leave the group. May be called twice.

        Waits at most ``timeout_ms`` for brokers. Records that were not released then are delivered again after their
        lock expires. In a forked process it does nothing, because the membership belongs to the other process.
        """
        if self._connections.is_forked:
            return
        with self._signal.in_use():
            if self._is_closed:
                return
            self._is_closed = True
            self._signal.ignore_wakeups()
            deadline = time.monotonic() + timeout_ms / 1000
            try:
                self._fetcher.close()
                self._release_unseen()
                self._say_of_the_rest(AcknowledgeType.RELEASE)
                for partition, error in self._tell(timeout_ms / 1000).items():
                    if error is not None and self._on_acknowledged is None:
                        logger.warning("%s: the broker refused acknowledgements: %s", partition, error.message)
                self._member.leave(deadline - time.monotonic())
            except MillraceError as error:  # the records are redelivered after their lock expires
                logger.warning("closing the consumer: %s", error.message)
            finally:
                self._connections.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the consumer is closed: make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
